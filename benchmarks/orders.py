"""How fast is `seriatim run` on the orders example? `scripts/bench`, or ``python -m benchmarks.orders``.

Prints Markdown: messages a second, CPU, statements, and delays at a given rate, beside a loop written by hand that
reads the same log into the same tables with the same durability and does nothing else. Figures, never a verdict.

The whole backlog comes into the log at once. `benchmarks.services` measures the same on RabbitMQ and MariaDB.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from sqlalchemy import Engine, Pool, event

from benchmarks import delays
from benchmarks.delays import Timed
from benchmarks.machine import describe_machine
from benchmarks.orders_by_hand import ByHand
from benchmarks.processes import TIMEOUT_S, cpu_of, running, wait_until
from benchmarks.shop import Shop, open_shop
from examples.orders.app import app, orders
from examples.orders.processes import seriatim
from seriatim import Settings
from seriatim.core.store.port import MICROSECOND, Scope

BROKER, STORE = "log.db", "store.db"


@dataclass(frozen=True, slots=True)
class Speed:
    """One measured run of `messages`: how long it took, and the processor seconds of all its processes."""

    messages: int
    wall_s: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.wall_s

    @property
    def cpu_us(self) -> float:
        """Microseconds of processor per message."""
        return self.cpu_s / self.messages * MICROSECOND


@contextmanager
def prepared(messages: int, skus: int) -> Iterator[Shop]:
    """A shop in a scratch folder, with an empty log."""
    with tempfile.TemporaryDirectory(prefix="seriatim-bench-") as name:
        folder = Path(name)
        app.configure(
            Settings(broker=f"embedded://{folder / BROKER}", store=f"sqlite:///{folder / STORE}", lease_s=2.0)
        )
        store = app.open_store()
        store.init()
        store.declare(Scope(app.group, orders.name), orders.partitions)
        store.close()
        yield open_shop(folder, app.settings.store, messages, skus)


# -- Seriatim


def speed_of_run(messages: int, skus: int, workers: int) -> Speed:
    """`seriatim run --workers …` over a backlog, from the moment it is there to the last commit."""
    command = seriatim("run", "examples.orders.app:app", "--workers", str(workers))
    with prepared(messages, skus) as shop, running(command, shop.folder, app.settings) as process:
        wait_until(process, lambda: len(shop.owners()) == workers)
        pids = shop.owners()
        before = cpu_of(pids)
        shop.send()
        began = time.time()
        wait_until(process, lambda: shop.settled()[0] == messages)
        speed = Speed(messages, shop.settled()[1] / MICROSECOND - began, cpu_of(pids) - before)
        shop.check()
        return speed


# -- statements


@dataclass(slots=True)
class Statements:
    """What reaches the database: `trips` of the toolkit (an executemany is one), `run` by SQLite itself."""

    trips: int = 0
    run: int = 0

    def listen(self) -> None:
        """Count on every connection that is opened from now on."""
        event.listen(Engine, "before_cursor_execute", self._trip)
        event.listen(Pool, "connect", lambda connection, _: connection.set_trace_callback(self._run))

    def _trip(self, *_: Any) -> None:
        self.trips += 1

    def _run(self, _: str) -> None:
        self.run += 1


def count_statements(messages: int, skus: int) -> Statements:
    """A run in this process, with every statement counted."""
    counted, observer = Statements(), Timed()
    with prepared(messages, skus) as shop:
        shop.send()
        counted.listen()
        with app.worker(observer) as worker:
            threading.Thread(target=_stop_after, args=(observer, messages, worker.stop), daemon=True).start()
            worker.run()
        shop.check()
    return counted


def _stop_after(observer: Timed, messages: int, stop: Callable[[], None]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while observer.count < messages and time.monotonic() < deadline:
        time.sleep(0.02)
    stop()


# -- delays at a rate


def delays_at(rate: int, seconds: float, skus: int) -> str:
    """A line of delays: of one worker with one lane, of messages that come at a steady rate."""
    messages = int(rate * seconds)
    with prepared(messages, skus) as shop:
        out = shop.folder / "delays.json"
        command = [sys.executable, "-m", "benchmarks.delays", "examples.orders.app", str(out)]
        with running(command, shop.folder, app.settings) as process:
            wait_until(process, lambda: len(shop.owners()) == 1)
            shop.send_at_rate(rate)
            wait_until(process, lambda: shop.settled()[0] == messages)
            process.terminate()
            process.wait(30)
        shop.check()
        return delays.row(f"{rate:,}/s, 1 process", out)


# -- by hand


def speed_by_hand(messages: int, skus: int) -> Speed:
    """The loop by hand over the same backlog."""
    with prepared(messages, skus) as shop:
        shop.send()
        hand = ByHand(shop.folder / BROKER, shop.folder / STORE)
        began, used = time.perf_counter(), time.process_time()
        hand.run()
        speed = Speed(hand.done, time.perf_counter() - began, time.process_time() - used)
        shop.check()
        return speed


# -- what it prints


def main(
    *,
    messages: Annotated[int, typer.Option(min=100, help="Messages of each run over a backlog.")] = 6_000,
    skus: Annotated[int, typer.Option(min=1, help="Stock rows of the wide runs.")] = 1_000,
    hot: Annotated[int, typer.Option(min=1, help="Stock rows of the hot runs.")] = 5,
    rates: Annotated[str, typer.Option(help="Offered rates for the delays, comma-separated.")] = "500,1000",
    seconds: Annotated[float, typer.Option(min=1, help="How long each rate is offered.")] = 8.0,
    repeat: Annotated[int, typer.Option(min=1, help="Runs over each backlog; the median one counts.")] = 3,
) -> None:
    """Measure `seriatim run` on the orders example; prints Markdown."""
    for name in [name for name in os.environ if name.startswith("SERIATIM_")]:
        del os.environ[name]
    print(
        f"{describe_machine()}. {len(orders.partitions)} partitions, batches of up to 100, WAL, "
        f"synchronous=FULL. Load while it began: {os.getloadavg()[0]:.1f}.\n"
    )
    print("| over a backlog | stock rows | messages/s, median (range) | of by hand | µs CPU per message |")
    print("|---|---:|---:|---:|---:|")
    for rows in (skus, hot):
        kinds: Sequence[tuple[str, Callable[[], Speed]]] = (
            ("by hand: one process", partial(speed_by_hand, messages, rows)),
            ("`seriatim run`: 1 process, 1 lane", partial(speed_of_run, messages, rows, 1)),
            ("`seriatim run --workers 4`", partial(speed_of_run, messages, rows, 4)),
        )
        rounds = [[measure() for _, measure in kinds] for _ in range(repeat)]  # in turn: a noisy minute hits them all
        runs = [sorted(column, key=lambda speed: speed.rate) for column in zip(*rounds, strict=True)]
        for (what, _), speeds in zip(kinds, runs, strict=True):
            _row(what, rows, speeds, runs[0][repeat // 2])
    counted = count_statements(messages, skus)
    print(
        f"\nStatements per message in one process: {counted.run / messages:.2f} run by SQLite (each counted), "
        f"{counted.trips / messages:.2f} calls of the driver (an executemany is one, BEGIN and COMMIT count).\n"
    )
    print(*delays.HEADER, sep="\n")
    for rate in (int(one) for one in rates.split(",")):
        print(delays_at(rate, seconds, skus), flush=True)


def _row(what: str, rows: int, runs: Sequence[Speed], hand: Speed) -> None:
    median = runs[len(runs) // 2]
    spread = f"{median.rate:,.0f} ({runs[0].rate:,.0f}–{runs[-1].rate:,.0f})"
    cells = (what, f"{rows:,}", spread, f"{median.rate / hand.rate:.0%}", f"{median.cpu_us:,.0f}")
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
