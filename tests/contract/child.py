"""A process of its own that sends and receives on command, to be killed or frozen at a known moment.

The parent holds a `Child` and tells it what to do, one verb after another; between two verbs it waits for the next.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from types import TracebackType
from typing import Any, cast

from seriatim.core.message import Message, Position


@dataclass(frozen=True, slots=True)
class Taken:
    """What a child was handed: enough to compare and to go on after."""

    biz_key: str
    position: Position | None


class ChildFailed(Exception):
    """The child's verb ended in an error of Seriatim's, died, or took too long."""


class Child:
    """The parent's side of a process that works on the broker at `url`. Every answer is awaited `patience_s`."""

    def __init__(self, url: str, patience_s: float) -> None:
        ours, theirs = Pipe()
        self._pipe = ours
        self._patience_s = patience_s
        self._process = subprocess.Popen(
            [sys.executable, "-m", "seriatim.contract.actor", str(theirs.fileno()), url], pass_fds=[theirs.fileno()]
        )
        theirs.close()

    def __enter__(self) -> Child:  # noqa: PYI034 - Self is of Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def declare(self, topic: str, partitions: Sequence[str], group: str) -> None:
        self.ask("declare", topic, partitions, group)

    def send(self, messages: Sequence[tuple[str, Message]]) -> float:
        """Send; the time (`time.time()`) when send had returned."""
        return cast("float", self.ask("send", messages))

    def send_and_die(self, messages: Sequence[tuple[str, Message]]) -> None:
        """Send, and be killed by SIGKILL as soon as send has returned."""
        self.tell("send_and_die", messages)
        if self._process.wait(self._patience_s) != -signal.SIGKILL:
            raise ChildFailed("it died before send returned")

    def start(self, topic: str, group: str, partition: str, position: Position | None) -> None:
        self.ask("start", topic, group, partition, position)

    def take(self, count: int) -> list[Taken]:
        """What the next batch holds, of at most `count`; it stays unsettled."""
        return cast("list[Taken]", self.ask("take", count))

    def settle(self, upto: int) -> None:
        """Settle the first `upto` of the last batch."""
        self.ask("settle", upto)

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
