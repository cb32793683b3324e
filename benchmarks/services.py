"""How fast is `seriatim run` on RabbitMQ and MariaDB? `scripts/bench --on-services`.

Prints Markdown: messages a second, CPU, commits, statements and syncs per message over a backlog, then delays at given
rates, beside a loop written by hand (`benchmarks.services_by_hand`) in the same run. Figures, never a verdict.

Each run has fresh queues and a fresh database. The backlog is sent and confirmed before the consumers start; what they
need to start isn't counted: a rate is that between the first and the last commit by the database's clock, and costs are
counted from the moment when the first commit was seen. MariaDB counts for all its clients: nobody else may use it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated

import pika
import typer
from sqlalchemy import Connection, create_engine
from sqlalchemy.pool import NullPool

from benchmarks import delays, mariadb
from benchmarks.machine import describe_machine
from benchmarks.processes import cpu_of, family_of, running, wait_until
from benchmarks.shop import Shop, open_shop
from examples.orders.app import app, orders
from examples.orders.processes import seriatim
from examples.proving.databases import fresh_database
from seriatim import Settings
from seriatim.adapters.rabbitmq import RabbitBroker
from seriatim.core.store.port import MICROSECOND

LEASE_S = 2.0
SETTLE_S = 1.0  #: between the consumers' start and the first paced message
_NUMBERS = count(1)


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to consume: by hand, or `seriatim run` with so many processes."""

    queue_type: str
    workers: int = 0  #: 0 is by hand
    cursor: bool = False  #: the handler's own statements go through `ctx.cursor`, as those by hand do

    @property
    def by_hand(self) -> bool:
        """Whether it is the loop by hand."""
        return not self.workers

    @property
    def rival(self) -> Kind:
        """The loop by hand that it is compared with: the one on queues like its own, where there is one."""
        return Kind("classic" if self.queue_type == "classic" else "quorum")

    def __str__(self) -> str:
        if self.by_hand:
            return f"by hand, {self.queue_type}: {len(orders.partitions)} threads"
        processes = "1 process" if self.workers == 1 else f"`--workers {self.workers}`"
        return f"`seriatim run`, {self.queue_type}: {processes}{', `ctx.cursor`' if self.cursor else ''}"

    @property
    def module(self) -> str:
        """Where the handler is."""
        return "benchmarks.orders_with_cursor" if self.cursor else "examples.orders.app"

    def command(self, folder: Path) -> Sequence[str]:
        """What is run over a backlog."""
        if self.by_hand:
            return [sys.executable, "-m", "benchmarks.services_by_hand", str(folder / "ready"), str(folder / "delays")]
        return seriatim("run", f"{self.module}:app", "--workers", str(self.workers))

    def noting_delays(self, folder: Path) -> Sequence[str]:
        """What is run at a steady rate: it leaves its delays in the file `delays`."""
        alone = [sys.executable, "-m", "benchmarks.delays", self.module, str(folder / "delays")]
        return self.command(folder) if self.by_hand else alone


QUEUE_TYPES = ("quorum", "classic", "stream")
BY_HAND = (Kind("quorum"), Kind("classic"))
WAYS = ((1, False), (1, True), (2, False), (2, True))
OVER_A_BACKLOG = (*BY_HAND, *(Kind(name, workers, cursor) for workers, cursor in WAYS for name in QUEUE_TYPES))
AT_A_RATE = (*BY_HAND, *(Kind(name, 1, cursor) for cursor in (False, True) for name in QUEUE_TYPES))


@dataclass(frozen=True, slots=True)
class Servers:
    """URLs: of the broker without options, and of the store, whose database's name is the beginning of ours."""

    broker: str
    store: str

    @contextmanager
    def prepared(self, queue_type: str, messages: int, skus: int) -> Iterator[Shop]:
        """A shop in a database of its own, and its topic with no message yet."""
        url = f"{self.store}_{next(_NUMBERS)}"
        with fresh_database(url), tempfile.TemporaryDirectory(prefix="seriatim-bench-") as name:
            app.configure(Settings(broker=f"{self.broker}?queue_type={queue_type}", store=url, lease_s=LEASE_S))
            with closing(app.open_store()) as store:
                store.init()
            app.declare()
            try:
                yield open_shop(Path(name), url, messages, skus)
            finally:
                RabbitBroker(app.settings.broker).delete(orders.name, [app.group])

    def describe(self) -> str:
        """What is measured on, and how durable it is."""
        with closing(pika.BlockingConnection(pika.URLParameters(self.broker))) as connection:
            version = connection._impl.server_properties["version"]  # noqa: SLF001 - the only way to know
        with connected(self.store, database="") as connection:
            return f"RabbitMQ {version}: persistent messages, each confirmed. {mariadb.describe(connection)}"


@contextmanager
def connected(url: str, database: str | None = None) -> Iterator[Connection]:
    """A connection without transactions."""
    target = url if database is None else url.removesuffix(url.rpartition("/")[2]) + database
    engine = create_engine(target, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection
    engine.dispose()


# -- over a backlog


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a run had come, and what it had cost by then."""

    settled: int
    cpu_s: float
    server: Mapping[str, int]

    @classmethod
    def now(cls, connection: Connection, process: subprocess.Popen[bytes]) -> Mark:
        """As things stand."""
        return cls(mariadb.settled(connection), cpu_of(family_of(process.pid)), mariadb.counters(connection))


@dataclass(frozen=True, slots=True)
class Run:
    """What one run over a backlog did: messages a second, and costs per message."""

    rate: float
    cpu_us: float
    server: Mapping[str, float]

    @classmethod
    def between(cls, first: Mark, last: Mark, rate: float) -> Run:
        """What lies between two marks."""
        messages = last.settled - first.settled
        server = {name: (value - first.server[name]) / messages for name, value in last.server.items()}
        return cls(rate, (last.cpu_s - first.cpu_s) / messages * MICROSECOND, server)


def run_over_backlog(servers: Servers, kind: Kind, messages: int, skus: int) -> Run:
    """Send a backlog, then let it be consumed."""
    with servers.prepared(kind.queue_type, messages, skus) as shop, connected(shop.url) as connection:
        shop.send()
        with running(kind.command(shop.folder), shop.folder, app.settings) as process:
            wait_until(process, lambda: mariadb.settled(connection) > 0, every_s=0.01)
            first = Mark.now(connection, process)
            wait_until(process, lambda: mariadb.settled(connection) == messages, every_s=0.1)
            last = Mark.now(connection, process)
        shop.check()
        return Run.between(first, last, mariadb.rate(connection))


def print_backlogs(servers: Servers, messages: int, skus: int, repeat: int) -> None:
    """Every kind in turn, `repeat` times, so that a noisy minute hits them all."""
    rounds: list[dict[Kind, Run]] = [{} for _ in range(repeat)]
    for number, found in enumerate(rounds, start=1):
        for kind in OVER_A_BACKLOG:
            found[kind] = run_over_backlog(servers, kind, messages, skus)
            print(f"round {number} of {repeat}: {kind}: {found[kind].rate:,.0f}/s", file=sys.stderr, flush=True)
    names = ("messages/s, median (range)", "of by hand", "µs CPU", "commits", "statements", "InnoDB syncs")
    print(f"| {messages:,} messages, {repeat} rounds; per message: | {' | '.join(names)} |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for kind in OVER_A_BACKLOG:
        runs = [found[kind] for found in rounds]
        rates = sorted(run.rate for run in runs)
        ratio = statistics.median(found[kind].rate / found[kind.rival].rate for found in rounds)
        cells = [
            f"{statistics.median(rates):,.0f} ({rates[0]:,.0f}–{rates[-1]:,.0f})",
            f"{ratio:.0%}",
            f"{statistics.median(run.cpu_us for run in runs):,.0f}",
            *(
                f"{statistics.median(run.server[name] for run in runs):.2f}"
                for name in ("commits", "statements", "fsyncs")
            ),
        ]
        print(f"| {kind} | {' | '.join(cells)} |")
    print(
        "\n“Of by hand”: the median of the rounds' ratios, to the loop by hand on queues of that type; of streams, to "
        "the one on quorum queues.\n"
    )


# -- delays at a rate


def delays_at(servers: Servers, kind: Kind, rate: int, seconds: float, skus: int) -> str:
    """A line of delays of messages that come at a steady rate."""
    messages = int(rate * seconds)
    with servers.prepared(kind.queue_type, messages, skus) as shop, connected(shop.url) as connection:
        ready = (shop.folder / "ready").exists if kind.by_hand else lambda: bool(shop.owners())
        with running(kind.noting_delays(shop.folder), shop.folder, app.settings) as process:
            wait_until(process, ready)
            time.sleep(SETTLE_S)
            shop.send_at_rate(rate)
            wait_until(process, lambda: mariadb.settled(connection) == messages)
            process.terminate()
            process.wait(30)
        shop.check()
        return delays.row(f"{rate:,}/s, {kind}", shop.folder / "delays")


def main(
    *,
    broker: Annotated[str, typer.Option(help="RabbitMQ's URL, without options; the vhost is empty.")],
    store: Annotated[str, typer.Option(help="MariaDB's URL; the databases' names begin with its database's.")],
    messages: Annotated[int, typer.Option(min=100, help="Messages of each run over a backlog.")] = 6_000,
    skus: Annotated[int, typer.Option(min=1, help="Stock rows.")] = 1_000,
    rates: Annotated[str, typer.Option(help="Offered rates for the delays, comma-separated.")] = "500,1000",
    seconds: Annotated[float, typer.Option(min=1, help="How long each rate is offered.")] = 8.0,
    repeat: Annotated[int, typer.Option(min=1, help="Rounds over a backlog; the median one counts.")] = 3,
) -> None:
    """Measure `seriatim run` on RabbitMQ and MariaDB; prints Markdown."""
    for name in [name for name in os.environ if name.startswith("SERIATIM_")]:
        del os.environ[name]
    servers = Servers(broker, store)
    print(
        f"{describe_machine()}. {servers.describe()}. {len(orders.partitions)} partitions, {skus:,} stock rows; "
        "one lane in each process; servers and consumers share the machine. "
        f"Load while it began: {os.getloadavg()[0]:.1f}.\n",
        flush=True,
    )
    print_backlogs(servers, messages, skus, repeat)
    print(*delays.HEADER, sep="\n")
    for kind in AT_A_RATE:
        for rate in (int(one) for one in rates.split(",")):
            print(delays_at(servers, kind, rate, seconds, skus), flush=True)
    print(
        "\n“Received” is when the message was read from the socket; by hand, when its callback began. "
        f"Load at the end: {os.getloadavg()[0]:.1f}."
    )


if __name__ == "__main__":
    typer.run(main)
