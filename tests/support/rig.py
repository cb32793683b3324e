"""An app on the embedded broker and SQLite in one folder, and what became of its messages."""

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from sqlalchemy import text

from seriatim import App, Backoff, Policy, Settings
from seriatim.adapters.embedded import tables
from seriatim.adapters.embedded.log import Log
from seriatim.adapters.embedded.settings import read_url
from seriatim.core.envelope import BIZ_KEY, KEY, TYPE
from seriatim.core.store import SqlStore, open_store
from seriatim.core.store.port import Scope

PATIENCE_S = 40.0  #: every wait ends by then, in an error that says what it waited for
LATER = Policy(tries_at_once=1, backoff=Backoff(base_s=3600, cap_s=3600))  #: what failed waits for the test's end
QUICK = Policy(backoff=Backoff(base_s=0.01, cap_s=0.05))  #: what failed is tried again at once

SHOP_TABLES = """
CREATE TABLE IF NOT EXISTS ledger (id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT, biz_key TEXT, type TEXT, note TEXT);
CREATE TABLE IF NOT EXISTS orders (order_no TEXT PRIMARY KEY, status TEXT, version INTEGER);
"""
_ENTER = text("INSERT INTO ledger (key, biz_key, type, note) VALUES (:key, :biz_key, :type, :note)")


def enter(ctx: Any, note: str = "") -> None:
    """Leave a line in the shop's own ledger, inside the message's transaction: nothing in it is unique."""
    message = ctx.message
    ctx.tx.execute(
        _ENTER, {"key": message.sharding_key, "biz_key": message.biz_key, "type": message.type, "note": note}
    )


class Witness:
    """An observer that remembers every verdict and event."""

    def __init__(self) -> None:
        self.verdicts: list[Any] = []
        self.events: list[tuple[str, dict[str, Any]]] = []

    def committed(self, scope: Scope, verdicts: Iterable[Any], duration_s: float) -> None:
        del scope, duration_s
        self.verdicts.extend(verdicts)

    def event(self, level: int, name: str, **fields: Any) -> None:
        del level
        self.events.append((name, fields))

    def outcomes(self, biz_key: str) -> list[str]:
        return [one.outcome.value for one in self.verdicts if one.task.arrival.biz_key == biz_key]

    def arrivals(self) -> int:
        """How many deliveries were settled, besides what came back from parking."""
        return sum(1 for one in self.verdicts if one.task.row is None)

    def seen(self, name: str) -> list[dict[str, Any]]:
        return [fields for event, fields in self.events if event == name]


class Rig:
    """A shop in a folder: its broker's log, its store with tables of its own, and apps on both."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broker = f"embedded:{folder}/log.db"
        self.store = f"sqlite:///{folder}/shop.db"
        self.witness = Witness()
        self._numbers = count(1)
        with closing(open_store(self.store)) as store:
            store.init()
        with closing(sqlite3.connect(folder / "shop.db")) as connection:
            connection.executescript(SHOP_TABLES)

    def app(self, group: str = "shop", **settings: Any) -> App:
        options: dict[str, Any] = {"lease_s": 2.0, "broker": self.broker, "store": self.store} | settings
        return App(group, settings=Settings(**options))

    # -- sending

    def send(self, topic: Any, key: str, kind: str = "step", biz_key: str | None = None, **body: Any) -> str:
        """Send one message; its biz_key."""
        biz_key = biz_key or f"{key}/{next(self._numbers)}"
        self.send_all(topic, [topic.message(key=key, type=kind, biz_key=biz_key, body=body)])
        return biz_key

    def send_many(self, topic: Any, keys: Iterable[str], kind: str = "step") -> list[str]:
        """Send a message for each key, in one call; their biz_keys."""
        sent = [(key, f"{key}/{next(self._numbers)}") for key in keys]
        self.send_all(topic, [topic.message(key=key, type=kind, biz_key=biz_key, body={}) for key, biz_key in sent])
        return [biz_key for _, biz_key in sent]

    def send_all(self, topic: Any, messages: Iterable[Any]) -> None:
        sender = App("sender", settings=Settings(broker=self.broker, store=self.store))
        sender.topics[topic.name] = topic
        with sender.producer() as producer:
            producer.send(*messages)

    def append(
        self, topic: Any, body: bytes, *, partition: str = "0", raw: dict[str, Any] | None = None, **named: str
    ) -> None:
        """Write a delivery as a foreign producer would: nothing is checked. `key`, `biz_key` and `kind` are headers."""
        names = {"key": KEY, "biz_key": BIZ_KEY, "kind": TYPE}
        headers = {names[name]: value for name, value in named.items()} | (raw or {})
        self.declare(topic)
        with Log(read_url(self.broker)) as log, log.writing() as connection:
            span = tables.spans(connection, topic.name)[partition]
            tables.append(connection, span, [(json.dumps(headers), body)], time.time())

    def declare(self, topic: Any) -> None:
        with closing(self.app().open_broker()) as broker:
            broker.declare(topic.name, topic.partitions)

    # -- running

    def run(self, app: App, until_idle_s: float = 0.25) -> Witness:
        """Run a worker until nothing comes any more; what it did."""
        witness = Witness()
        self.witness = witness
        with app.worker(witness) as worker:
            worker.run(until_idle_s)
        return witness

    @contextmanager
    def working(self, app: App) -> Any:
        """A worker on a thread of its own, for as long as the block lasts; what it does so far."""
        witness = Witness()
        with app.worker(witness) as worker:
            ready = threading.Event()
            with on_a_thread(lambda: worker.run(None, ready.set), worker.stop):
                assert ready.wait(PATIENCE_S), "the worker didn't begin"
                yield witness

    def run_until(self, app: App, condition: Callable[[], Any], what: str = "what was awaited") -> Witness:
        """Run a worker until `condition` holds."""
        with self.working(app) as witness:
            wait_until(condition, what)
        return witness

    # -- looking

    def rows(self, query: str, *params: Any) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / "shop.db", timeout=PATIENCE_S)) as connection:
            return connection.execute(query, params).fetchall()

    def write(self, statement: str, *params: Any) -> None:
        with closing(sqlite3.connect(self.folder / "shop.db", timeout=PATIENCE_S)) as connection, connection:
            connection.execute(statement, params)

    def ledger(self, key: str | None = None) -> list[str]:
        """The biz_keys in the shop's ledger, in the order of their effects; of one key or of all."""
        rows = self.rows("SELECT key, biz_key FROM ledger ORDER BY id")
        return [biz_key for of, biz_key in rows if key in (None, of)]

    def record(self, biz_key: str, group: str = "shop", topic: str = "orders") -> Any:
        """(status, outcome, response, attempts) of a record; None where there is none."""
        found = self.rows(
            "SELECT status, outcome, response_body, attempts FROM idempotent_record"
            " WHERE consumer_group = ? AND topic = ? AND biz_key = ?",
            group,
            topic,
            biz_key,
        )
        return found[0] if found else None

    def parked(self, reason: str | None = None) -> list[tuple[Any, ...]]:
        """(biz_key, place, reason, error, body) of what is parked, in order."""
        rows = self.rows("SELECT biz_key, place, reason, error, body FROM parked_message ORDER BY id")
        return [row for row in rows if reason in (None, row[2])]

    def owners(self) -> int:
        """How many members own a partition now."""
        [(owners,)] = self.rows("SELECT count(DISTINCT member) FROM partition_owner WHERE member IS NOT NULL")
        return int(owners)

    def status_of(self, order_no: str) -> str | None:
        found = self.rows("SELECT status FROM orders WHERE order_no = ?", order_no)
        return found[0][0] if found else None

    @contextmanager
    def opened(self) -> Any:
        """The store, opened and closed."""
        store: SqlStore = open_store(self.store)
        try:
            yield store
        finally:
            store.close()


@contextmanager
def on_a_thread(work: Callable[[], None], stop: Callable[[], None]) -> Iterator[None]:
    """Work on a thread of its own while the block lasts, then stop it; what it raised is raised after the block."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again when the block ends
            failures.append(error)

    thread = threading.Thread(target=run, name="at work")
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "it didn't stop"
    if failures:
        raise failures[0]


def wait_until(condition: Callable[[], Any], what: str = "what was awaited", patience_s: float = PATIENCE_S) -> None:
    """Wait for a condition; an error when it takes too long."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} didn't come within {patience_s:g} s"
        time.sleep(0.01)
