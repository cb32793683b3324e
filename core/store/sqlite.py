"""SQLite: the embedded default, for one host.

SQLite has one writer at a time and waits for it by polling, which starves a second process. So every write
transaction takes a fair file lock beside the store first, and then begins with BEGIN IMMEDIATE by our own hand: the
driver on its own would begin late (not before a SELECT), and its savepoints could outlive the transaction around them.
A process that is stopped inside its transaction stops the store until it goes on or dies; the lock names its pid.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, ColumnElement, Engine, Integer, Select, Update, create_engine, event, func
from sqlalchemy.pool import NullPool

from seriatim.core.errors import ConfigurationError, StoreUnavailable
from seriatim.core.faults import Fault
from seriatim.core.filelock import FileLock, LockTimeout, holder

#: Beginnings of SQLite's messages that mean the store, not the statement. Python 3.10 has no codes for them.
_STORE_MESSAGES = (
    "database is locked",
    "database table is locked",
    "disk i/o error",
    "database or disk is full",
    "attempt to write a readonly database",
    "unable to open database file",
    "database disk image is malformed",
    "file is not a database",
    "locking protocol",
    "out of memory",
    "interrupted",
)


class FileTurn:
    """A session's turn to write: a fair lock on a file beside the store."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        self._lock = FileLock(path)
        self._timeout_s = timeout_s

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the turn for the length of the block."""
        try:
            self._lock.acquire(self._timeout_s)
        except LockTimeout as error:
            raise StoreUnavailable(f"the store is busy: {error}") from error
        except OSError as error:
            raise StoreUnavailable(f"the store's lock file can't be used: {error}") from error
        try:
            yield
        finally:
            self._lock.release()

    def close(self) -> None:
        """Let go of the lock file."""
        self._lock.close()


class SqliteDialect:
    """SQLite 3.35 or newer, in a file. `clock` gives microseconds since the epoch."""

    def __init__(self, url: URL, *, lock_timeout_s: float = 30.0, clock: Callable[[], int] | None = None) -> None:
        if not url.database or url.database == ":memory:":
            raise ConfigurationError(
                "store URL: SQLite needs a file, several connections share it; say sqlite:///path/to/store.db"
            )
        self._url = url
        self._path = Path(url.database)
        self._lock_timeout_s = lock_timeout_s
        self._clock = clock or _host_clock

    @property
    def single_writer(self) -> bool:
        """One at a time."""
        return True

    @property
    def lock_path(self) -> Path:
        """The file whose lock is the turn to write."""
        return self._path.with_name(self._path.name + ".lock")

    def exists(self) -> bool:
        """Whether the file is there."""
        return self._path.exists()

    def create_engine(self) -> Engine:
        """An engine with driver transactions off, WAL, and durable commits."""
        if not self._path.parent.is_dir():
            raise ConfigurationError(
                f"store {self.describe()}: the folder {self._path.parent} doesn't exist; make it first"
            )
        engine = create_engine(
            self._url, poolclass=NullPool, connect_args={"check_same_thread": False, "timeout": 10.0}
        )
        event.listen(engine, "connect", self._on_connect)
        event.listen(engine, "begin", _on_begin)
        return engine

    def _on_connect(self, connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None
        connection.create_function("seriatim_now", 0, self._clock)
        connection.execute("PRAGMA journal_mode = WAL").close()
        connection.execute("PRAGMA synchronous = FULL").close()
        connection.execute("PRAGMA foreign_keys = ON").close()

    def fold(self, statement: Update, rows: Sequence[Mapping[str, Any]]) -> None:
        """One by one: there are no round trips, and SQLite keeps the statement prepared."""

    def exclusive(self) -> FileTurn:
        """The file lock of one session."""
        return FileTurn(self.lock_path, self._lock_timeout_s)

    def now(self) -> ColumnElement[int]:
        """The host's clock, which is the database's here."""
        return func.seriatim_now(type_=Integer())

    def lock(self, query: Select[Any], *, wait: bool) -> Select[Any]:
        """The query itself: a writer holds the whole database."""
        del wait
        return query

    def classify(self, error: BaseException) -> Fault:
        """Whose fault a driver's error is, by SQLite's message."""
        original = getattr(error, "orig", error)
        if isinstance(original, sqlite3.Error) and str(original).lower().startswith(_STORE_MESSAGES):
            return Fault.STORE
        return Fault.HANDLER

    def writer(self) -> int | None:
        """The process that holds the file lock."""
        return holder(self.lock_path)

    def describe(self) -> str:
        """The URL without a secret; SQLite has none."""
        return self._url.render_as_string()


def _on_begin(connection: Any) -> None:
    info = connection.info
    connection.exec_driver_sql("BEGIN" if info.get("seriatim_reader") else "BEGIN IMMEDIATE")


def _host_clock() -> int:
    return time.time_ns() // 1000
