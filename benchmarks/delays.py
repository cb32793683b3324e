"""Delays from received, and from produced, to committed, noted in the memory of the process that consumes.

``python -m benchmarks.delays MODULE OUT`` is such a process: one worker of MODULE's `app`, on the broker and the store
of the environment, until SIGTERM; then it writes its delays to OUT.
"""

from __future__ import annotations

import json
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from seriatim import App
from seriatim.core.store.port import MICROSECOND, Scope
from seriatim.core.view import Verdict

HEADER = ("| offered | received → committed P50 | P99 | produced → committed P50 | P99 |", "|---|---:|---:|---:|---:|")


class Timed:
    """An observer that notes how many milliseconds after its receipt, and its production, a message was committed."""

    def __init__(self) -> None:
        self.received: list[float] = []
        self.produced: list[float] = []

    @property
    def count(self) -> int:
        """Messages that were committed."""
        return len(self.received)

    def committed(self, scope: Scope, verdicts: Sequence[Verdict], duration_s: float) -> None:
        del scope, duration_s
        now = time.time() * MICROSECOND
        self.produced.extend([(now - verdict.task.produced_at) / 1000 for verdict in verdicts])
        self.received.extend([(now - verdict.task.received_at) / 1000 for verdict in verdicts])

    def event(self, level: int, name: str, **fields: Any) -> None:
        del level, name, fields

    def write(self, out: Path) -> None:
        """Leave what was noted in a file."""
        out.write_text(json.dumps({"received": self.received, "produced": self.produced}))


def observe(app: App, out: Path) -> None:
    """Consume until SIGTERM, noting every message's delays."""
    observer = Timed()
    with app.worker(observer) as worker:
        signal.signal(signal.SIGTERM, lambda *_: worker.stop())
        worker.run()
    observer.write(out)


def row(what: str, out: Path) -> str:
    """A line of the table under `HEADER`, from the file that a process left."""
    found: dict[str, list[float]] = json.loads(out.read_text())
    cells = [f"{_percentile(found[name], share):.1f} ms" for name in ("received", "produced") for share in (50, 99)]
    return f"| {what} | {' | '.join(cells)} |"


def _percentile(values: Sequence[float], share: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[share - 1]


if __name__ == "__main__":
    observe(import_module(sys.argv[1]).app, Path(sys.argv[2]))
