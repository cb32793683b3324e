"""MySQL and MariaDB through PyMySQL: the store of more than one host.

The server serialises by its row locks, so several transactions write at once. Every connection works at READ COMMITTED
and tells the server to end a transaction that is silent for a lease: a process that was stopped inside one lets go of
its partitions then. One that is merely slow stays: a thread of ours pings for it, for ten leases at most, and a stopped
process pings for nobody.

Row counts are of rows found, not of rows changed (CLIENT.FOUND_ROWS), and a URL can't turn that off.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from pymysql.connections import Connection as DriverConnection
from pymysql.constants import CLIENT
from pymysql.err import Error, InterfaceError
from sqlalchemy import (
    URL,
    ColumnClause,
    ColumnElement,
    Connection,
    Engine,
    Integer,
    Select,
    TableClause,
    Update,
    create_engine,
    event,
    literal_column,
    text,
)
from sqlalchemy.pool import NullPool
from sqlalchemy.sql.elements import BinaryExpression
from sqlalchemy.sql.operators import in_op

from seriatim.core.errors import ConfigurationError
from seriatim.core.faults import Fault
from seriatim.core.store.folding import Folded, fold
from seriatim.core.store.mysql_connection import KeptConnection, KeptCursor, Pinger

#: What a URL may say after its question mark, besides the options of TLS.
_NUMBERS = {"connect_timeout": 10, "read_timeout": 60, "write_timeout": 60}
_TLS = ("ssl", "ssl_ca", "ssl_cert", "ssl_key", "ssl_verify")
_OPTIONS = (*_NUMBERS, *_TLS, "unix_socket", "one_writer")
_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}

#: Codes that mean the store, not the statement; a fail-over raises them inside whatever statement is on its way.
_STORE_CODES = frozenset(
    (
        *(1021, 1030, 1034, 1037, 1038, 1041, 1114, 1135, 1180, 1194, 1195),  # disk, memory, threads, a broken table
        *(1040, 1129, 1203, 1226),  # too many connections, of everybody or of this user; a host blocked after errors
        *(1047, 1053, 1077, 1079, 1223, 1792, 1836, 1927, 3032, 3169),  # shutting down, killed, read-only, offline
        *(1028, 1317, 1969, 3024, 4031),  # interrupted, over time, silent for too long
        *(1152, 1158, 1159, 1160, 1161, 1184, 1189, 1190, 1218),  # the network, as the server sees it
        *(2000, 2001, 2002, 2003, 2004, 2005, 2006, 2012, 2013, 2014, 2026, 2027, 2045, 2055),  # … as the driver does
    )
)
_READ_ONLY = 1290  #: an option of the server prevents the statement: which one, only its text tells
#: Deadlock, lock time-out, NOWAIT, changed since it was read, certification of a cluster.
_CONTENTION_CODES = frozenset((1020, 1205, 1213, 1614, 3058, 3101, 3572))
_STORE_CLASSES = ("08", "53", "57")  #: of SQLSTATE: connection, resources, operator's intervention

_KEY_INDEX = text(
    "SELECT index_name FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = :name"
    " AND column_name = :key AND seq_in_index = 1 ORDER BY non_unique, index_name <> 'PRIMARY' LIMIT 1"
)


class NoTurn:
    """Writers are queued by the server: there is no turn to wait for."""

    def hold(self) -> NoTurn:
        """Nothing to hold."""
        return self

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None

    def close(self) -> None:
        """Nothing to let go of."""


class MysqlDialect:
    """MariaDB 10.6 or MySQL 8.0.17 and newer. `lease_s` is how long a silent transaction lives."""

    single_writer = False

    def exists(self) -> bool:
        """A server is asked, not made."""
        return True

    def __init__(self, url: URL, *, lease_s: float = 10.0) -> None:
        if url.drivername not in ("mysql+pymysql", "mariadb+pymysql"):
            raise ConfigurationError(f"store URL: {url.drivername!r} isn't supported; say mysql+pymysql://…")
        if not url.database:
            raise ConfigurationError("store URL: it names no database; say mysql+pymysql://user:password@host/database")
        self.url = url
        self.lease_s = lease_s
        self.options = _read_options(url)
        self.alive = Pinger(lease_s)
        self._indexes: dict[tuple[str, str], str | None] = {}
        self._locking: WeakKeyDictionary[Select[Any], Select[Any]] = WeakKeyDictionary()
        self._folded: WeakKeyDictionary[Update, Folded] = WeakKeyDictionary()
        self._engine: Engine | None = None

    @property
    def one_writer(self) -> bool:
        """Whether the URL promises that every process writes to one node of the cluster."""
        return bool(self.options.get("one_writer"))

    def create_engine(self) -> Engine:
        """An engine whose connections are set up for a lane; each session has one of its own."""
        engine = self.engine_for(self.url.drivername)
        event.listen(engine, "engine_disposed", lambda _: self.alive.stop())
        self._engine = engine
        return engine

    def engine_for(self, drivername: str) -> Engine:
        """An engine that speaks to the same database by another name: MariaDB's tables are made by that of MariaDB."""
        engine = create_engine(self.url.set(drivername=drivername, query={}), poolclass=NullPool)
        event.listen(engine, "do_connect", self._connect)
        event.listen(engine, "connect", self._on_connect)
        event.listen(engine, "begin", _on_begin)
        return engine

    def _connect(self, _dialect: object, _record: object, _args: object, named: dict[str, Any]) -> DriverConnection:
        options = {name: value for name, value in self.options.items() if name != "one_writer"}
        flags = (named.pop("client_flag", 0) | CLIENT.FOUND_ROWS) & ~CLIENT.MULTI_STATEMENTS
        connection = KeptConnection(
            **named, **options, charset="utf8mb4", client_flag=flags, cursorclass=KeptCursor, binary_prefix=True
        )
        self.alive.add(connection)
        return connection

    def _on_connect(self, connection: KeptConnection, record: Any) -> None:
        silent_s = max(1, math.ceil(self.lease_s))
        idle = "idle_transaction_timeout" if is_mariadb(connection) else "wait_timeout"
        settings = {
            idle: silent_s,
            "net_read_timeout": silent_s,
            "net_write_timeout": silent_s,  # a stopped reader of a big result isn't idle
            "innodb_lock_wait_timeout": max(1, int(self.lease_s / 3)),
            "lock_wait_timeout": max(1, int(self.lease_s / 3)),
            "sql_mode": "CONCAT(@@sql_mode, ',STRICT_TRANS_TABLES')",  # never cut a value in silence
        }
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            cursor.execute("SET SESSION " + ", ".join(f"{name} = {value}" for name, value in settings.items()))
            cursor.execute("SELECT @@max_allowed_packet")
            largest = cursor.fetchone()
            connection.largest = int(largest[0]) if largest else None
        record.info["seriatim_fresh"] = True

    def exclusive(self) -> NoTurn:
        """The server queues writers."""
        return NoTurn()

    def now(self) -> ColumnElement[int]:
        """The server's clock: the beginning of the statement, in UTC whatever the time zones are."""
        return literal_column("TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))", Integer)

    def lock(self, query: Select[Any], *, wait: bool) -> Select[Any]:
        """`query` FOR UPDATE; one over a list of keys is held to the index of the key.

        At READ COMMITTED a locking read waits for every row that it looks at, and left to itself the server looks at
        the whole of a small table.
        """
        if not wait:
            return query.with_for_update(skip_locked=True)
        locking = self._locking.get(query)
        if locking is None:
            locking = self._hinted(query).with_for_update()
            self._locking[query] = locking
        return locking

    def _hinted(self, query: Select[Any]) -> Select[Any]:
        where, tables = query.whereclause, query.get_final_froms()
        if not (isinstance(where, BinaryExpression) and where.operator is in_op and len(tables) == 1):
            return query
        table, key = tables[0], where.left
        if not (isinstance(table, TableClause) and isinstance(key, ColumnClause)):
            return query
        index = self.index_of(table.name, key.name)
        return query if index is None else query.with_hint(table, f"FORCE INDEX (`{index}`)").order_by(key)

    def index_of(self, name: str, key: str) -> str | None:
        if (name, key) not in self._indexes:
            assert self._engine is not None  # locks are asked for by sessions of the engine  # noqa: S101
            with self._engine.connect() as connection:
                self._indexes[name, key] = connection.execute(_KEY_INDEX, {"name": name, "key": key}).scalar()
        return self._indexes[name, key]

    def fold(self, statement: Update, rows: Sequence[Mapping[str, Any]]) -> tuple[str, tuple[Any, ...]] | None:
        """One statement for all of these rows: each round trip is worth saving."""
        folded = self._folded.get(statement)
        if folded is None:
            assert self._engine is not None  # folded for sessions of the engine  # noqa: S101
            folded = self._folded[statement] = fold(statement, self._engine.dialect)
        return folded.render(rows, self.index_of) if folded.fits(rows) else None

    def classify(self, error: BaseException) -> Fault:
        """Whose fault a driver's error is, by its code."""
        original = getattr(error, "orig", error)
        if not isinstance(original, Error):
            return Fault.HANDLER
        code = original.args[0] if original.args else None
        if code in _CONTENTION_CODES:
            return Fault.CONTENTION
        if code in _STORE_CODES or (code == _READ_ONLY and "read" in str(original)):
            return Fault.STORE
        closed = isinstance(original, InterfaceError) or "already closed" in str(original).lower()
        return Fault.STORE if closed or _sql_state(original).startswith(_STORE_CLASSES) else Fault.HANDLER

    def writer(self) -> int | None:
        """Nobody: many write at once."""
        return None

    def describe(self) -> str:
        """The URL without its password and options."""
        return self.url.set(query={}).render_as_string(hide_password=True)


def is_mariadb(connection: DriverConnection) -> bool:
    """Whether the server at the other end is MariaDB."""
    return "mariadb" in str(connection.get_server_info()).lower()  # type: ignore[no-untyped-call]


def _on_begin(connection: Connection) -> None:
    """A reader of the store, on a connection of its own, sees one snapshot."""
    fresh = connection.info.pop("seriatim_fresh", False)
    if fresh and connection.info.get("seriatim_reader"):
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        connection.exec_driver_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT")


def _sql_state(error: Error) -> str:
    return str(getattr(error, "sqlstate", "") or "")


# -- the URL's options


def _read_options(url: URL) -> dict[str, Any]:
    given = {name: value if isinstance(value, str) else value[-1] for name, value in url.query.items()}
    unknown = sorted(given.keys() - {*_OPTIONS, "charset"})
    if unknown:
        raise ConfigurationError(f"store URL: unknown option {unknown[0]!r}; there are {', '.join(sorted(_OPTIONS))}")
    if given.get("charset", "utf8mb4") != "utf8mb4":
        raise ConfigurationError(f"store URL: charset={given['charset']} would lose text; leave it out (utf8mb4)")
    options: dict[str, Any] = {name: _number(name, given.get(name, default)) for name, default in _NUMBERS.items()}
    if "unix_socket" in given:
        options["unix_socket"] = given["unix_socket"]
    if "one_writer" in given:
        options["one_writer"] = _truth("one_writer", given["one_writer"])
    if not _truth("ssl", given.get("ssl", "true")):
        return options | {"ssl_disabled": True}
    context = _tls(given)
    return options if context is None else options | {"ssl": context}


def _tls(given: dict[str, str]) -> ssl.SSLContext | None:
    """The TLS that a URL asks for: with any of its options the server is verified, unless ssl_verify=false."""
    if not (given.keys() & {*_TLS}):
        return None
    try:
        context = ssl.create_default_context(cafile=given.get("ssl_ca"))
        if "ssl_cert" in given:
            context.load_cert_chain(given["ssl_cert"], given.get("ssl_key"))
    except OSError as error:
        raise ConfigurationError(f"store URL: ssl_ca, ssl_cert or ssl_key can't be used: {error}") from error
    if not _truth("ssl_verify", given.get("ssl_verify", "true")):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _number(name: str, value: str | int) -> int:
    try:
        return max(1, int(value))
    except ValueError:
        raise ConfigurationError(f"store URL: {name}={value} isn't a whole number of seconds") from None


def _truth(name: str, value: str) -> bool:
    if value.lower() not in _WORDS:
        raise ConfigurationError(f"store URL: {name}={value}: say true or false")
    return _WORDS[value.lower()]
