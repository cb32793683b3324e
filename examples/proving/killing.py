"""Worker processes that are killed without warning, and replaced, while they work."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from seriatim.core.filelock import holder

LOOK_S = 0.005  #: how often the progress is looked at
JITTER_S = 0.05  #: a hit falls up to so much after its point, so that it isn't always just after a commit
STALL_S = 90.0  #: without progress for so long, something is broken
AIM_S = 5.0  #: how long a hit that is aimed tries to fall inside a transaction; every second one is aimed
DEATH_S = 30.0  #: what a stopped or killed process may take to be that


class ProofError(Exception):
    """The proof can't go on: says why."""


@dataclass(frozen=True, slots=True)
class Toll:
    """What the killing came to. `inside` counts hits within an open transaction, None where that can't be told."""

    kills: int
    inside: int | None
    seconds: float


@dataclass(slots=True)
class Gang:
    """Some worker processes, and helpers that work until they are told to end.

    `lock` is the file whose lock is held inside every write transaction (SQLite).
    """

    workers: Sequence[Sequence[str]]
    environment: Mapping[str, str]
    folder: Path
    lock: Path | None = None
    helpers: Sequence[Sequence[str]] = ()
    _alive: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _logs: dict[int, Path] = field(default_factory=dict)  # by pid

    def work(self, points: Sequence[int], progress: Callable[[], int], rng: random.Random) -> Toll:
        """Start everybody; at each point of `progress` kill one and start it again; wait until the workers are done.

        Raises:
            ProofError: a process failed by itself, or nothing went on.
        """
        with self.running():
            return self._watch(list(points), progress, rng)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Everybody works for the length of the block, and is ended after it.

        Raises:
            ProofError: one doesn't end when it is told to.
        """
        try:
            for command in (*self.workers, *self.helpers):
                self._start(command)
            yield
            for process in self._alive:
                process.terminate()
            for process in self._alive:
                if process.wait(DEATH_S):
                    raise ProofError(f"ended with status {process.returncode}:\n{_tail(self._logs[process.pid])}")
        finally:
            for process in self._alive:
                process.kill()
                process.wait()

    def _watch(self, points: list[int], progress: Callable[[], int], rng: random.Random) -> Toll:
        started = moved = time.monotonic()
        inside: list[bool] = []
        done = 0
        while len(self._alive) > len(self.helpers):
            now = progress()
            if now > done:
                done, moved = now, time.monotonic()
            elif time.monotonic() - moved > STALL_S:
                raise ProofError(f"no progress for {STALL_S:.0f} s at {done:,} events; see {self.folder}")
            self._bury()
            if points and done >= points[0] and self._alive:
                points.pop(0)
                time.sleep(rng.uniform(0, JITTER_S))
                aimed = len(inside) % 2 == 1
                victim = rng.choice(self._alive)
                inside.append(self._hit(victim, rng, aimed=aimed))
                self._start(victim.args)  # type: ignore[arg-type]  # a list, as it was started
            time.sleep(LOOK_S)
        return Toll(len(inside), sum(inside) if self.lock is not None else None, moved - started)

    def _start(self, command: Sequence[str]) -> None:
        path = self.folder / f"worker-{len(self._logs) + 1}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(command, env=dict(self.environment), stdout=log, stderr=log)  # noqa: S603 - our own command
        self._alive.append(process)
        self._logs[process.pid] = path

    def _bury(self) -> None:
        """Take those off the list that are done; one that failed ends the proof."""
        for process in list(self._alive):
            code = process.poll()
            if code is not None:
                self._alive.remove(process)
            if code:
                raise ProofError(f"a worker ended by itself with status {code}:\n{_tail(self._logs[process.pid])}")

    def _hit(self, process: subprocess.Popen[bytes], rng: random.Random, *, aimed: bool) -> bool:
        """Kill one without warning; whether that was inside an open transaction, which an aimed hit tries to meet."""
        inside = self._stopped_inside(process)
        deadline = time.monotonic() + AIM_S
        while aimed and not inside and self.lock is not None and time.monotonic() < deadline and process.poll() is None:
            process.send_signal(signal.SIGCONT)
            time.sleep(rng.uniform(0, 0.01))
            inside = self._stopped_inside(process)
        process.kill()
        process.wait(DEATH_S)
        self._alive.remove(process)
        return inside

    def _stopped_inside(self, process: subprocess.Popen[bytes]) -> bool:
        """Stop one; whether it has the store's lock, as it has inside every write transaction."""
        process.send_signal(signal.SIGSTOP)
        _await_stop(process.pid)
        return self.lock is not None and holder(self.lock) == process.pid


def _await_stop(pid: int) -> None:
    """Wait until a process is stopped (or has ended meanwhile)."""
    deadline = time.monotonic() + DEATH_S
    options = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
    while os.waitid(os.P_PID, pid, options) is None:
        if time.monotonic() > deadline:
            raise ProofError(f"process {pid} didn't stop within {DEATH_S:.0f} s")
        time.sleep(0.001)


def _tail(path: Path, lines: int = 15) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
