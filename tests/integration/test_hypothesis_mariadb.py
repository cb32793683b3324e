"""The machine of test_hypothesis_store.py on MariaDB: slower, in fewer stories, and with what only a server can do.

Connections are really lost, and a process that is killed leaves its transaction to the server. A COMMIT may take effect
after its answer was lost. Everything happens on one thread, so nobody acts inside another's transaction: who acts waits
for it there, and `test_mariadb_store.py` has the threads for that.
"""

from __future__ import annotations

import ssl
import threading
import time
from contextlib import closing
from weakref import WeakKeyDictionary

import pymysql
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test
from pymysql.constants import ER, SERVER_STATUS
from sqlalchemy import event
from support.mariadb import Database, made_database

from seriatim.core.errors import SeriatimError
from seriatim.core.store import SqlStore, open_store, schema

from ..unit.stream import MESSAGES, bounds, focused, hunting
from .lanes import EXECUTE, Faults
from .test_hypothesis_store import PLANTED as PLANTED_ON_SQLITE
from .test_hypothesis_store import PROCESSES, SCOPE, StoreMachine, accidents

LEDGER = (
    "CREATE TABLE ledger (n BIGINT PRIMARY KEY AUTO_INCREMENT, biz_key VARCHAR(255), sharding_key VARCHAR(255),"
    " home VARCHAR(128), body LONGBLOB, epoch BIGINT) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"
)
LOST = 2013  #: the driver's code for a connection that broke while a statement was on its way
LATE_S = 0.05  #: how long a COMMIT whose answer was lost is on its way
PATIENCE_S = 10.0
COMMIT = b"\x07\x00\x00\x00\x03COMMIT"  #: as it goes over the wire


@pytest.fixture(scope="module", autouse=True)
def database():
    """One for all stories, emptied before each. The driver reads every authority for each connection: once will do."""
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    with pytest.MonkeyPatch.context() as patch, made_database() as made:
        patch.setattr(pymysql.connections.Connection, "_create_ssl_ctx", lambda *_: tls)
        with closing(open_store(made.url)) as store:
            store.init()
        made.sql(LEDGER)
        with closing(Server(made)) as server:
            MariadbMachine.server = server
            yield


class Server:
    """The database as seen from outside. It understands the reading statements that are written for SQLite."""

    def __init__(self, database: Database) -> None:
        self.url = database.url
        self._connection = database.connect(database=database.name)

    def execute(self, query, params=()):
        cursor = self._connection.cursor()
        cursor.execute(query.replace("?", "%s"), params)
        return cursor

    def empty(self) -> None:
        for name in {*schema.metadata.tables, "ledger"} - {"schema_version"}:
            self.execute(f"DELETE FROM {name}")

    def wait_until_gone(self, ids: list[int]) -> None:
        """Until these connections, which were cut, are rolled back."""
        until = time.monotonic() + PATIENCE_S
        query = "SELECT count(*) FROM information_schema.processlist WHERE id IN ?"
        while ids and self.execute(query, [ids]).fetchone() != (0,):
            assert time.monotonic() < until, f"the server keeps the connections {ids}, whose sockets are closed"
            time.sleep(0.001)

    def close(self) -> None:
        self._connection.close()


def in_transaction(raw) -> bool:
    return raw.open and bool(raw.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)


class MariadbFaults(Faults):
    """What goes wrong with a store that is a server's."""

    statements = (*Faults.statements, "deadlock")
    commits = (*Faults.commits, "done late")
    server: Server

    def __init__(self, store: SqlStore) -> None:
        super().__init__(store)
        self.connections = []
        self.deadlocks = 0
        self._late = []
        event.listen(store._engine, "connect", lambda raw, _: self.connections.append(raw))  # noqa: SLF001 - set up where no public way leads

    def in_its_turn(self) -> bool:
        """In a transaction that has begun on the server, and may hold rows."""
        return self.session._writing and in_transaction(self._raw)  # noqa: SLF001 - seen from inside: no public way

    def failure(self, what: str) -> Exception:
        """The connection is lost; or the server chose this transaction to end a deadlock."""
        if what == "deadlock":
            self.deadlocks += 1
            self._raw.rollback()
            return pymysql.err.OperationalError(ER.LOCK_DEADLOCK, "Deadlock found when trying to get lock")
        if what != "done late":
            self._cut([self._raw])
        return pymysql.err.OperationalError(LOST, "Lost connection to MySQL server during query")

    def vanish(self) -> None:
        self._cut(self.connections)

    def over(self) -> None:
        super().over()
        for thread in self._late:
            thread.join(PATIENCE_S)

    @property
    def _raw(self):
        """The driver's connection that it works with."""
        return self.session._connection.connection.driver_connection  # noqa: SLF001 - seen from inside: no public way

    def _cut(self, connections) -> None:
        """The sockets close without a goodbye."""
        there = [raw for raw in connections if raw.open]
        for raw in there:
            with raw.mutex:
                raw._force_close()  # noqa: SLF001 - a fault is planted where no public way leads
        self.server.wait_until_gone([raw.thread_id() for raw in there])

    def _is_now(self) -> bool:
        """A deadlock needs locks."""
        return not (self.what == "deadlock" and not self.in_its_turn()) and super()._is_now()

    def _commit(self, call):
        usual = super()._commit(call)

        def commit(connection):
            if self.at_commit == "done late" and self.after == 0:
                self._commit_later()
                self._happen("done late")
            usual(connection)

        return commit

    def _commit_later(self) -> None:
        """The connection breaks for the client only: its COMMIT is on its way, and the server will see to it."""
        raw = self._raw
        with raw.mutex:
            socket, raw._sock, raw._rfile = raw._sock, None, None  # noqa: SLF001 - a fault is planted where no public way leads

        def arrive():
            time.sleep(LATE_S)
            socket.sendall(COMMIT)
            assert socket.recv(1024)
            socket.close()

        self._late.append(threading.Thread(target=arrive))
        self._late[-1].start()


class MariadbMachine(StoreMachine):
    """The same stories on a server."""

    server: Server
    faults = MariadbFaults

    def make_database(self):
        MariadbFaults.server = self.server
        self.server.empty()
        self.reader = self.server
        with closing(open_store(self.server.url)) as store:
            store.declare(SCOPE, ["0", "1"])

    def open_store(self) -> SqlStore:
        store = open_store(self.server.url)
        _keep_time(store, lambda: self.now)
        return store

    def drop_database(self):
        pass

    @rule(number=PROCESSES, accident=accidents(MariadbFaults), messages=MESSAGES)
    def work_until_an_accident(self, number, accident, messages):
        self.send_all(messages)
        self._work_with(number, *accident)

    @rule(number=PROCESSES, what=st.sampled_from(["unknown", "done late"]), messages=MESSAGES)
    def a_commit_goes_unanswered(self, number, what, messages):
        """It came to nothing, or it will take effect when the lane has long learnt of the lost connection."""
        self.send_all(messages)
        self._work_with(number, what, 0)

    def _work_with(self, number, what, after):
        super()._work_with(number, what, after)
        for process in self.processes:
            for holding in process.lane.holdings.values():
                holding.rests_until = 0.0  # what waits for the clock on the wall isn't told twice alike

    @rule(
        after=st.integers(0, 40),
        what=st.sampled_from(["", "", *MariadbFaults.statements, *MariadbFaults.commits]),
        hours=st.sampled_from([0, 1]),
        beside=st.booleans(),
    )
    def a_daemon_runs_what_is_due(self, after, what, hours, beside):
        super().a_daemon_runs_what_is_due(after, what, hours, beside)

    @invariant()
    def nothing_is_left_open(self):
        """Between two steps no connection is in a transaction, and nobody has waited for a lock in vain."""
        for process in self.processes:
            assert not any(map(in_transaction, process.faults.connections)), "a transaction was left open"
            assert process.faults.deadlocks or "contention" not in process.observer.events


def _keep_time(store: SqlStore, now) -> None:
    """The server's time, as the store's connections see it, is `now`: set anew where it has changed."""
    dialect, told = store._engine.dialect, WeakKeyDictionary()  # noqa: SLF001 - seen from inside: no public way

    def before(call):
        def execute(cursor, *arguments, **options):
            if told.get(cursor.connection) != now():
                told[cursor.connection] = now()
                seconds, fraction = divmod(now(), 1_000_000)
                close_above = f"{seconds}.{fraction:06d}4"  # the server cuts, and its double is inexact
                cursor.connection.query(f"SET timestamp = {close_above}")
            return call(cursor, *arguments, **options)

        return execute

    for name in EXECUTE:
        setattr(dialect, name, before(getattr(dialect, name)))


TestMariadbMachine = MariadbMachine.TestCase
TestMariadbMachine.settings = bounds(examples=12, steps=25)
TestMariadbMachine.pytestmark = pytest.mark.slow


# -- the machine is worth something: it finds what is planted


PLANTED = {name: PLANTED_ON_SQLITE[name] for name in ("fence_open", "rows_stay")} | {
    "commit_believed": (PLANTED_ON_SQLITE["commit_believed"][0], "work a_commit_goes_unanswered"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("patches", "rules"), PLANTED.values(), ids=PLANTED)
def test_a_planted_bug_is_found(monkeypatch, patches, rules):
    for owner, name, bug in patches:
        monkeypatch.setattr(owner, name, bug)
    machine = focused(MariadbMachine, *rules.split())
    with pytest.raises((AssertionError, SeriatimError, LookupError)):
        run_state_machine_as_test(machine, settings=hunting(examples=300, steps=25))
