"""A process of its own that does what it is told, verb by verb, to be killed or frozen at a known moment.

The parent holds a `Remote` and tells it what to do; between two verbs the process waits for the next, in `serve`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, TypeVar

from seriatim.core.errors import SeriatimError

R = TypeVar("R", bound="Remote")


class ChildFailed(Exception):
    """The child's verb ended in an error of Seriatim's, died, or took too long."""


class Remote:
    """The parent's side of a process that runs `module` with these arguments. Every answer is awaited `patience_s`."""

    def __init__(self, module: str, *arguments: str, patience_s: float) -> None:
        ours, theirs = Pipe()
        self._pipe = ours
        self._patience_s = patience_s
        program = [sys.executable, "-m", module, str(theirs.fileno()), *arguments]
        self._process = subprocess.Popen(program, pass_fds=[theirs.fileno()])
        theirs.close()

    def __enter__(self: R) -> R:  # noqa: PYI019 - Self is of Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """End it by SIGKILL. Idempotent."""
        self._process.kill()
        self._process.wait()
        self._pipe.close()

    def freeze(self) -> None:
        """Stop it by SIGSTOP, between two verbs, and see that it stands."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def tell(self, verb: str, *arguments: object) -> None:
        """Begin a verb; `answer` gives its result."""
        self._pipe.send((verb, arguments))

    def answer(self) -> Any:
        """The result of the verb that was told.

        Raises:
            ChildFailed: it ended in an error, or there is no answer.
        """
        if not self._pipe.poll(self._patience_s):
            raise ChildFailed(f"no answer within {self._patience_s:g} s")
        try:
            worked, result = self._pipe.recv()
        except EOFError:
            raise ChildFailed("it died") from None
        if not worked:
            raise ChildFailed(result)
        return result

    def ask(self, verb: str, *arguments: object) -> Any:
        """Do a verb and give its result."""
        self.tell(verb, *arguments)
        return self.answer()


def serve(pipe: Connection, actor: object) -> None:
    """The process's side: one method of `actor` per verb, until the parent is gone."""
    while True:
        try:
            verb, arguments = pipe.recv()
        except EOFError:  # the parent is gone
            return
        try:
            answer = (True, getattr(actor, verb)(*arguments))
        except SeriatimError as error:
            answer = (False, f"{type(error).__name__}: {error}")
        pipe.send(answer)
