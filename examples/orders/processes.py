"""The demo's consumers: `seriatim run` in processes of their own, as in real life."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STOP_S = 10.0  #: how long a consumer may take to finish what is in hand
ORPHAN_S = 60.0  #: a consumer that the demo couldn't stop ends by itself after so long without a message


class ProcessFailed(Exception):
    """A process that the demo started ended as it shouldn't have; says what it wrote last."""


def seriatim(*arguments: str) -> Sequence[str]:
    """The command line of ``seriatim …``, with this interpreter."""
    return [sys.executable, "-m", "seriatim.cli.main", *arguments]


def environment() -> dict[str, str]:
    """This process's environment, in which `examples` can be imported from anywhere."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


def call(folder: Path, *arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run ``seriatim …`` in `folder` to its end."""
    return subprocess.run(  # noqa: S603 - our own command
        seriatim(*arguments),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@dataclass(slots=True)
class Consumer:
    """One `seriatim run`. `killed` says that its end was our doing."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    killed: bool = False

    @classmethod
    def start(cls, name: str, folder: Path) -> Consumer:
        """Start it; what it logs goes to a file in `folder`."""
        log = folder / f"consumer-{name}.log"
        command = seriatim("run", "examples.orders.app:app", "--until-idle", str(ORPHAN_S))
        with log.open("wb") as out:
            process = subprocess.Popen(  # noqa: S603 - our own command
                command,
                cwd=folder,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is the demo's, which stops its consumers in good order
            )
        return cls(name, process, log)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def check(self) -> None:
        """Raise `ProcessFailed` if it ended by itself."""
        code = self.process.poll()
        if code is not None and not self.killed:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-10:])
            raise ProcessFailed(f"consumer {self.name} ended by itself with status {code}:\n{tail}")

    def kill(self) -> None:
        """End it without a word (SIGKILL)."""
        self.killed = True
        self.process.kill()
        self.process.wait()

    def ask_to_stop(self) -> None:
        """SIGTERM: it finishes what is in hand."""
        if self.process.poll() is None:
            self.killed = True
            self.process.terminate()

    def wait(self) -> None:
        """Wait until it is gone; kill it if that takes too long."""
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()


def stop_all(consumers: Sequence[Consumer]) -> None:
    """Stop all of them, and wait until they are gone."""
    for consumer in consumers:
        consumer.ask_to_stop()
    for consumer in consumers:
        consumer.wait()
