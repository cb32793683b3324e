"""How fast is `seriatim run` on the orders example? `scripts/bench`, or ``python -m benchmarks.orders``.

Prints Markdown: messages a second, CPU, statements, and delays at a given rate, beside a loop written by hand that
reads the same log into the same tables with the same durability and does nothing else. Figures, never a verdict.

A message here is the dearest of the example, `order.paid`: its record, the order's guarded move, the conditional UPDATE
of the stock and a line of the ledger. The orders are there already, and the whole backlog comes into the log at once,
so that nothing but consuming is measured.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
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
from sqlalchemy import Engine, Pool, create_engine, event, func, insert, select
from sqlalchemy.pool import NullPool

from benchmarks.machine import describe_machine
from benchmarks.orders_by_hand import ByHand
from examples.orders import tables
from examples.orders.app import app, orders
from examples.orders.check import check_orders, check_stock
from examples.orders.processes import environment, seriatim
from seriatim import Message, Settings
from seriatim.core.store.port import Scope
from seriatim.core.store.schema import group_member, idempotent_record, partition_owner
from seriatim.core.view import Verdict

BROKER, STORE = "log.db", "store.db"
QTY = 2
MICROSECOND = 1_000_000
TIMEOUT_S = 180.0
TICK_S = 0.01  #: how often the paced producer sends
TICKS = os.sysconf("SC_CLK_TCK")


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


# -- a warehouse to measure in


@dataclass(frozen=True, slots=True)
class Bench:
    """A folder with an empty log, `messages` unpaid orders, and the messages that pay them."""

    folder: Path
    stream: Sequence[Message]

    @property
    def url(self) -> str:
        """The store's URL."""
        return f"sqlite:///{self.folder / STORE}"

    def send(self) -> None:
        """The whole backlog in one go: it is there at once."""
        with app.producer() as producer:
            producer.send(*self.stream)

    def check(self) -> None:
        """Fast and wrong counts for nothing."""
        engine = create_engine(self.url, poolclass=NullPool)
        with engine.connect() as connection:
            wrong = [*check_stock(connection).wrong, *check_orders(connection).wrong]
            paid = connection.execute(select(func.count()).where(tables.orders.c.status == "PAID")).scalar_one()
        engine.dispose()
        if wrong or paid != len(self.stream):
            raise SystemExit(f"the run is wrong: {paid} of {len(self.stream)} paid; {wrong[:3]}")


@contextmanager
def prepared(messages: int, skus: int) -> Iterator[Bench]:
    """A warehouse in a scratch folder."""
    with tempfile.TemporaryDirectory(prefix="seriatim-bench-") as name:
        folder = Path(name)
        app.configure(
            Settings(broker=f"embedded://{folder / BROKER}", store=f"sqlite:///{folder / STORE}", lease_s=2.0)
        )
        store = app.open_store()
        store.init()
        store.declare(Scope(app.group, orders.name), orders.partitions)
        store.close()
        tables.create(app.settings.store, [(f"sku-{index:05}", QTY * messages) for index in range(skus)])
        stream = [
            orders.message(key=f"o{index:07}", type="order.paid", body={"sku": f"sku-{index % skus:05}", "qty": QTY})
            for index in range(messages)
        ]
        _unpaid_orders(app.settings.store, stream)
        yield Bench(folder, stream)


def _unpaid_orders(url: str, stream: Sequence[Message]) -> None:
    rows = [
        {"order_no": message.sharding_key, "status": "CREATED", "sku": json.loads(message.body)["sku"], "qty": QTY}
        for message in stream
    ]
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(insert(tables.orders).values(created_at=func.now()), rows)
    engine.dispose()


# -- Seriatim


@contextmanager
def running(bench: Bench, command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process tree of ours; ended at the end."""
    settings = {"BROKER": app.settings.broker, "STORE": app.settings.store, "LEASE_S": "2.0", "LOG_LEVEL": "WARNING"}
    named = {f"SERIATIM_{name}": value for name, value in settings.items()}
    process = subprocess.Popen(command, cwd=bench.folder, env={**environment(), **named})  # noqa: S603 - our own command
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def speed_of_run(messages: int, skus: int, workers: int) -> Speed:
    """`seriatim run --workers …` over a backlog, from the moment it is there to the last commit."""
    command = seriatim("run", "examples.orders.app:app", "--workers", str(workers))
    with prepared(messages, skus) as bench, running(bench, command) as process:
        wait_until(process, lambda: len(owners(bench)) == workers)
        pids = owners(bench)
        before = cpu_of(pids)
        bench.send()
        began = time.time()
        wait_until(process, lambda: settled(bench)[0] == messages)
        speed = Speed(messages, settled(bench)[1] / MICROSECOND - began, cpu_of(pids) - before)
        bench.check()
        return speed


def owners(bench: Bench) -> set[int]:
    """The processes that hold partitions, once every partition is held."""
    owner, member = partition_owner.c, group_member.c
    query = select(owner.owner, member.pid).select_from(
        partition_owner.outerjoin(group_member, owner.member == member.member)
    )
    rows = read(bench, query)
    return {pid for _, pid in rows} if all(holder is not None and pid is not None for holder, pid in rows) else set()


def settled(bench: Bench) -> tuple[int, int]:
    """How many messages are settled, and when the last one was."""
    row = read(bench, select(func.count(), func.max(idempotent_record.c.settled_at)))[0]
    return int(row[0]), int(row[1] or 0)


def read(bench: Bench, query: Any) -> Sequence[Any]:
    """Rows of the store."""
    engine = create_engine(bench.url, poolclass=NullPool)
    with engine.connect() as connection:
        rows = connection.execute(query).all()
    engine.dispose()
    return rows


def cpu_of(pids: set[int]) -> float:
    """Processor seconds that these processes have used."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split() for pid in pids]
    return sum(int(one[11]) + int(one[12]) for one in fields) / TICKS


def wait_until(process: subprocess.Popen[bytes], holds: Callable[[], bool]) -> None:
    """Wait for it, while the process lives and for a bounded time."""
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("seriatim run ended too early, or takes too long")
        time.sleep(0.2)


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


class Timed:
    """An observer that notes how long after its receipt, and its production, each message was committed."""

    def __init__(self) -> None:
        self.count = 0
        self.received: list[float] = []
        self.produced: list[float] = []

    def committed(self, scope: Scope, verdicts: Sequence[Verdict], duration_s: float) -> None:
        del scope, duration_s
        now = time.time() * MICROSECOND
        self.count += len(verdicts)
        self.received += [(now - verdict.task.received_at) / 1000 for verdict in verdicts]
        self.produced += [(now - verdict.task.produced_at) / 1000 for verdict in verdicts]

    def event(self, level: int, name: str, **fields: Any) -> None:
        del level, name, fields


def count_statements(messages: int, skus: int) -> Statements:
    """A run in this process, with every statement counted."""
    counted, observer = Statements(), Timed()
    with prepared(messages, skus) as bench:
        bench.send()
        counted.listen()
        with app.worker(observer) as worker:
            threading.Thread(target=_stop_after, args=(observer, messages, worker.stop), daemon=True).start()
            worker.run()
        bench.check()
    return counted


def _stop_after(observer: Timed, messages: int, stop: Callable[[], None]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while observer.count < messages and time.monotonic() < deadline:
        time.sleep(0.02)
    stop()


# -- delays at a rate


def delays(rate: int, seconds: float, skus: int) -> dict[str, list[float]]:
    """Milliseconds from received, and from produced, to committed, of messages that come at a steady rate."""
    messages = int(rate * seconds)
    with prepared(messages, skus) as bench:
        out = bench.folder / "delays.json"
        command = [sys.executable, "-m", "benchmarks.orders", "--observe", str(out)]
        with running(bench, command) as process:
            wait_until(process, lambda: len(owners(bench)) == 1)
            send_at_rate(bench.stream, rate)
            wait_until(process, lambda: settled(bench)[0] == messages)
            process.terminate()
            process.wait(30)
        bench.check()
        found: dict[str, list[float]] = json.loads(out.read_text())
    return found


def send_at_rate(stream: Sequence[Message], rate: int) -> None:
    """Send at a steady rate, a hundred times a second."""
    began, sent = time.monotonic(), 0
    with app.producer() as producer:
        while sent < len(stream):
            due = min(len(stream), int((time.monotonic() - began) * rate) + 1)
            fresh = [
                orders.message(key=one.sharding_key, type=one.type, body=json.loads(one.body))
                for one in stream[sent:due]
            ]
            producer.send(*fresh)
            sent = due
            time.sleep(TICK_S)


def observe(out: Path) -> None:
    """The process that `delays` measures: one worker with one lane, until SIGTERM."""
    observer = Timed()
    with app.worker(observer) as worker:
        signal.signal(signal.SIGTERM, lambda *_: worker.stop())
        worker.run()
    out.write_text(json.dumps({"received": observer.received, "produced": observer.produced}))


# -- by hand


def speed_by_hand(messages: int, skus: int) -> Speed:
    """The loop by hand over the same backlog."""
    with prepared(messages, skus) as bench:
        bench.send()
        hand = ByHand(bench.folder / BROKER, bench.folder / STORE)
        began, used = time.perf_counter(), time.process_time()
        hand.run()
        speed = Speed(hand.done, time.perf_counter() - began, time.process_time() - used)
        bench.check()
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
    observe_into: Annotated[Path | None, typer.Option("--observe", hidden=True)] = None,
) -> None:
    """Measure `seriatim run` on the orders example; prints Markdown."""
    if observe_into is not None:
        observe(observe_into)
        return
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
    print("| offered | received → committed P50 | P99 | produced → committed P50 | P99 |")
    print("|---|---:|---:|---:|---:|")
    for rate in (int(one) for one in rates.split(",")):
        found = delays(rate, seconds, skus)
        cells = [f"{_percentile(found[name], share):.1f} ms" for name in ("received", "produced") for share in (50, 99)]
        print(f"| {rate:,}/s, 1 process | {' | '.join(cells)} |", flush=True)


def _row(what: str, rows: int, runs: Sequence[Speed], hand: Speed) -> None:
    median = runs[len(runs) // 2]
    spread = f"{median.rate:,.0f} ({runs[0].rate:,.0f}–{runs[-1].rate:,.0f})"
    cells = (what, f"{rows:,}", spread, f"{median.rate / hand.rate:.0%}", f"{median.cpu_us:,.0f}")
    print(f"| {' | '.join(cells)} |", flush=True)


def _percentile(values: Sequence[float], share: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[share - 1]


if __name__ == "__main__":
    typer.run(main)
