"""Processes that are measured: started, watched, and what they cost."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from examples.orders.processes import environment
from seriatim import Settings

TIMEOUT_S = 180.0
TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def running(command: Sequence[str], folder: Path, settings: Settings) -> Iterator[subprocess.Popen[bytes]]:
    """A process tree of ours in `folder`, told the settings that matter here; ended at the end."""
    told = {
        "BROKER": settings.broker,
        "STORE": settings.store,
        "LEASE_S": str(settings.lease_s),
        "LANES": str(settings.lanes),
        "LOG_LEVEL": "WARNING",
    }
    named = {f"SERIATIM_{name}": value for name, value in told.items()}
    process = subprocess.Popen(command, cwd=folder, env={**environment(), **named})  # noqa: S603 - our own command
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def wait_until(process: subprocess.Popen[bytes], holds: Callable[[], bool], every_s: float = 0.2) -> None:
    """Wait for it, while the process lives and for a bounded time."""
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{process.args!r} ended too early, or takes too long")
        time.sleep(every_s)


def cpu_of(pids: set[int]) -> float:
    """Processor seconds that these processes have used."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split() for pid in pids]
    return sum(int(one[11]) + int(one[12]) for one in fields) / TICKS


def family_of(pid: int) -> set[int]:
    """A process, its children and theirs."""
    children: set[int] = set()
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError):  # a thread may end meanwhile
            children.update(int(child) for child in thread.read_text().split())
    return {pid}.union(*(family_of(child) for child in children))
