"""The file: how it is made, opened, locked and left, and what an error of SQLite means."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from seriatim.adapters.embedded import tables
from seriatim.adapters.embedded.settings import Settings
from seriatim.core.errors import BrokerError, ConfigurationError
from seriatim.core.filelock import FileLock, LockTimeout

_LOCK_TIMEOUT_S = 30.0  # for one's turn to write
_BUSY_TIMEOUT_S = 10.0  # for programs that don't know our lock, such as the sqlite3 shell
_WAL_LIMIT = 64 << 20  # bytes that the write-ahead log keeps after a burst


class CommitInDoubt(BrokerError):
    """COMMIT failed: what was written may or may not be there."""


class NoLog(BrokerError):
    """There is no log in the file, or no file."""


class Log:
    """One connection to the file, opened when needed and again after an error. For one thread at a time."""

    def __init__(self, settings: Settings) -> None:
        self.path = settings.path
        self._settings = settings
        self._lock = FileLock(f"{settings.path}.lock")
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None  # device and inode of what is open
        self._opened = 0  # how many times
        self._closed = False
        _logs.add(self)

    def __enter__(self) -> Log:  # noqa: PYI034 - Self is of Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection for good. Idempotent."""
        self._closed = True
        self._drop()
        self._lock.close()

    def check_usable(self) -> None:
        """Refuse what can't be used in this process. Thread-safe, takes no lock.

        Raises:
            BrokerError: it was closed, or the process was forked while the file was open.
        """
        if self._closed:
            raise BrokerError(f"{self.path}: this consumer or producer was closed")
        if self.path in _inherited:
            raise BrokerError(
                f"{self.path} was open when this process was forked, and SQLite can't share that: close the "
                "broker's producers and consumers before a fork, or start processes with the method 'spawn'"
            )

    def create(self) -> None:
        """Make the file and its tables where they are missing.

        Raises:
            ConfigurationError: the folder is missing, or the file is another program's.
            BrokerError: the file can't be written.
        """
        if not self.path.parent.is_dir():
            raise ConfigurationError(f"the folder {self.path.parent} of the embedded log doesn't exist: make it")
        with (
            self._explaining(),
            self._turn_to_write(),
            contextlib.closing(_connect(self.path, "rwc")) as connection,
        ):
            if tables.is_empty(connection):
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("BEGIN IMMEDIATE")
                tables.create(connection)
                connection.execute("COMMIT")

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One snapshot of the file.

        Raises:
            BrokerError: the file is missing, damaged or can't be opened; the next call opens it anew.
            ConfigurationError: the file is no log.
        """
        with self._explaining():
            connection = self._open()
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                self._roll_back(connection)

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, durable at the end; rolled back on any error.

        Raises:
            CommitInDoubt: it may or may not have happened.
            BrokerError: nothing was written: the file is missing, damaged, full, locked for too long.
            ConfigurationError: the file is no log.
        """
        with self._explaining(), self._turn_to_write():
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                self._roll_back(connection)
                raise
            self._commit(connection)

    def stamp(self, connection: sqlite3.Connection) -> tuple[int, int]:
        """Two numbers: one changes when the file was opened anew, one when another connection wrote to it."""
        return self._opened, tables.number_of(connection, "data_version")

    def _commit(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._drop()
            raise CommitInDoubt(f"{self.path}: no answer whether the write was kept: {error}") from error

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:  # closing does the same
            self._drop()

    @contextlib.contextmanager
    def _turn_to_write(self) -> Iterator[None]:
        self.check_usable()
        self._lock.acquire(_LOCK_TIMEOUT_S)
        try:
            yield
        finally:
            self._lock.release()

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            self._drop()
            raise _explain(self.path, error) from error

    def _open(self) -> sqlite3.Connection:
        """The connection to the file that is in place now."""
        self.check_usable()
        if self._connection is not None and _identity(self.path) == self._file:
            return self._connection
        self._drop()
        self._connection = self._connect()
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        file = _identity(self.path)
        if file is None:
            raise NoLog(f"there is no embedded log at {self.path}: declare a topic first")
        connection = _connect(self.path, "rw")
        try:
            _check_kind(self.path, connection)
            connection.execute(f"PRAGMA synchronous = {self._settings.synchronous}")
            connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT}")
        except BaseException:
            connection.close()
            raise
        self._file = file
        self._opened += 1
        return connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None or self.path in _inherited:
            return
        with contextlib.suppress(sqlite3.Error):
            connection.close()


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}",
        uri=True,
        timeout=_BUSY_TIMEOUT_S,
        isolation_level=None,  # transactions are ours
        check_same_thread=False,  # one thread at a time, but not always the same
    )


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - three times as fast as Path.stat, and in every look
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _check_kind(path: Path, connection: sqlite3.Connection) -> None:
    if tables.is_empty(connection):
        raise NoLog(f"there is no embedded log in {path} yet: declare a topic first")
    if tables.number_of(connection, "application_id") != tables.APPLICATION_ID:
        raise ConfigurationError(f"{path} is a database of something else: an embedded log needs a file of its own")
    version = tables.number_of(connection, "user_version")
    if version != tables.VERSION:
        raise ConfigurationError(
            f"{path} is an embedded log of version {version}, and this program knows {tables.VERSION}: "
            "upgrade Seriatim, or give another file"
        )


# What SQLite says, whose fault that is, and what to do. By text: error codes came with Python 3.11 only.
_MEANINGS: Sequence[tuple[str, type[BrokerError | ConfigurationError], str]] = (
    ("file is not a database", ConfigurationError, "it is no SQLite file; give another path"),
    ("malformed", BrokerError, "the file is damaged; keep a copy, and restore it or delete it"),
    ("locked", BrokerError, "another program holds it (the sqlite3 shell? a backup?); end that"),
    ("readonly", BrokerError, "make the file and its folder writable for this user"),
    ("unable to open", BrokerError, "make the file and its folder readable and writable for this user"),
    ("full", BrokerError, "make room on the disk"),
    ("no such table", BrokerError, "the file is damaged; restore it or delete it"),
    ("disk I/O error", BrokerError, "look at the disk and the system's log"),
)


def _explain(path: Path, error: sqlite3.Error | OSError) -> BrokerError | ConfigurationError:
    text = str(error)
    if isinstance(error, LockTimeout):
        return BrokerError(f"embedded log {text}: let that process go on (kill -CONT), or end it")
    if isinstance(error, OSError):
        return BrokerError(f"embedded log {path}: {text}: make the file and its folder writable for this user")
    for part, kind, remedy in _MEANINGS:
        if part in text:
            return kind(f"embedded log {path}: {text}: {remedy}")
    return BrokerError(f"embedded log {path}: {text}")


# A connection that a fork copied can't be used, nor closed, and SQLite's locks on its file are wrong for the
# whole child (https://www.sqlite.org/howtocorrupt.html, 2.6): it keeps the connection untouched and refuses
# the file.
_logs: weakref.WeakSet[Log] = weakref.WeakSet()
_inherited: dict[Path, list[sqlite3.Connection]] = {}


def _remember_inherited() -> None:
    for log in list(_logs):
        connection = log._connection  # noqa: SLF001 - the module's own
        if connection is not None:
            _inherited.setdefault(log.path, []).append(connection)


os.register_at_fork(after_in_child=_remember_inherited)
