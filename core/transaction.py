"""The handler's side of the transaction: `ctx.tx`.

A handler works inside a transaction that isn't its own. `HandlerTransaction` lets it use the connection and keeps two
things safe. It refuses, before they are sent, statements that would end or change the transaction. And it remembers the
first error seen and is poisoned by it: every later use raises, and the lane reads its verdict here, never from the
exception that came out of the handler, which may have swallowed or wrapped it. An error inside ``with tx.savepoint():``
that is the handler's own affair (a constraint, say) is undone with the savepoint and poisons nothing.

The checks hang on SQLAlchemy's events, so they see every way to the connection: `tx`, its session and its cursor.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, CursorResult, Engine, Executable, event
from sqlalchemy.orm import Session as OrmSession

from seriatim.core.errors import ForbiddenStatement
from seriatim.core.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

_GUARD = "seriatim_guard"
_FIRST_WORD = re.compile("(?:[\\s(;\ufeff]|--[^\\n]*(?:\\n|$)|/\\*(?!M?!).*?\\*/)*(/\\*|\\w+)", re.DOTALL)
_OF_SESSION = re.compile(r"(?:SAVEPOINT|RELEASE SAVEPOINT|ROLLBACK TO SAVEPOINT) sa_savepoint_\d+\Z")
_ENDING = ("commit", "rollback", "begin", "start", "end", "savepoint", "release", "xa", "set", "reset")
_DEFINING = ("create", "alter", "drop", "truncate", "rename", "grant", "revoke", "analyze", "optimize", "reindex")
_RUNNING = ("pragma", "attach", "detach", "vacuum", "lock", "unlock", "flush", "install", "uninstall", "load", "cache")
_ESCAPING = (
    "call",
    "prepare",
    "execute",
    "use",
    "kill",
    "shutdown",
    "handler",
    "import",
    "check",
    "repair",
    "change",
    "stop",
)
_REFUSED = frozenset((*_ENDING, *_DEFINING, *_RUNNING, *_ESCAPING, "/*"))


class HandlerTransaction:
    """What a handler may do with the transaction of its batch. Used by one thread, for one message at a time."""

    def __init__(self, connection: Connection, classify: Callable[[BaseException], Fault]) -> None:
        self._connection = connection
        self._classify = classify
        self._session: OrmSession | None = None
        self._nested = 0
        self._seen_at = 0
        self._open = False
        self._ours = False
        self.fault: Fault | None = None
        self.error: BaseException | None = None
        self._info = connection.info  # asked for once: a connection that was lost has none
        self._info[_GUARD] = self

    # -- what handlers use

    def execute(self, statement: Executable, params: Any = None) -> CursorResult[Any]:
        """Execute a statement in the batch's transaction.

        Raises:
            ForbiddenStatement: it would end or change the transaction.
        """
        self._usable()
        return self._connection.execute(statement, params)

    @property
    def session(self) -> OrmSession:
        """An ORM session on the batch's transaction; flushed at the end of the message's turn, never committed."""
        self._usable()
        if self._session is None:
            self._session = OrmSession(bind=self._connection, join_transaction_mode="create_savepoint")
            event.listen(self._session, "before_commit", self._before_session_commit)
        return self._session

    def cursor(self) -> GuardedCursor:
        """A cursor in the driver's own style, on the batch's transaction."""
        self._usable()
        return GuardedCursor(self, self._connection)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A part that may fail by itself: its error undoes the part and leaves the transaction usable."""
        self._usable()
        with self._internal():
            nested = self._connection.begin_nested()
        self._nested += 1
        depth = self._nested
        try:
            yield
        except BaseException:
            self._nested = depth - 1
            with self._internal():
                nested.rollback()
            if self.fault is Fault.HANDLER and self._seen_at >= depth:
                self.forgive()
            raise
        self._nested = depth - 1
        self._usable()
        with self._internal():
            nested.commit()

    # -- what the lane uses

    @contextmanager
    def turn(self) -> Iterator[None]:
        """One message's turn: the handler may use the transaction inside this block only."""
        self._open = True
        try:
            yield
            if self._session is not None and self.error is None:
                self._session.flush()
                with self._internal():
                    self._session.commit()  # releases the session's own savepoint
        finally:
            self._open = False
            session, self._session = self._session, None
            if session is not None:
                with self._internal():
                    session.close()

    @property
    def in_turn(self) -> bool:
        """Whether a handler has the transaction just now."""
        return self._open and not self._ours

    def _before_session_commit(self, _: OrmSession) -> None:
        if not self._ours:
            raise ForbiddenStatement(
                "a handler may not commit its session: the batch's transaction is committed by the lane"
            )

    def forgive(self) -> None:
        """Forget a handler's own error: the lane has rolled back to a savepoint of its own."""
        self.fault = self.error = None

    def close(self) -> None:
        """Take the guard off the connection."""
        self._info.pop(_GUARD, None)

    def note(self, error: BaseException) -> None:
        """Remember the first error; a store's or a contention's outweighs a handler's own."""
        fault = self._classify(error)
        if self.fault is None or self.fault is Fault.HANDLER:
            self.fault, self.error, self._seen_at = fault, error, self._nested

    def check(self, statement: str) -> None:
        """Refuse what would end or change the transaction."""
        if not self._open or self._ours or _OF_SESSION.match(statement):
            return
        self._usable()
        found = _FIRST_WORD.match(statement)
        word = found.group(1).lower() if found else ""
        if not word or word in _REFUSED:
            raise ForbiddenStatement(
                f"a handler may not send {word.upper() or repr(statement[:20])}: its transaction also holds the record "
                "of the message, and is committed with it; use tx.savepoint() for a part that may fail"
            )

    def _usable(self) -> None:
        if not self._open:
            raise ForbiddenStatement("the transaction can be used only while its handler runs")
        if self.error is not None and not (self._nested and self.fault is Fault.HANDLER):
            raise ForbiddenStatement(
                f"the transaction already failed ({self.error}); nothing more can be done in it"
            ) from self.error

    @contextmanager
    def _internal(self) -> Iterator[None]:
        self._ours = True
        try:
            yield
        finally:
            self._ours = False


class GuardedCursor:
    """A driver's cursor whose statements and errors the transaction sees."""

    def __init__(self, tx: HandlerTransaction, connection: Connection) -> None:
        driver = connection.connection.driver_connection
        assert driver is not None  # an open connection has one  # noqa: S101
        self._tx = tx
        self._cursor = driver.cursor()

    def execute(self, statement: str, params: Any = ()) -> GuardedCursor:
        """Execute one statement in the driver's own parameter style."""
        return self._send(self._cursor.execute, statement, params)

    def executemany(self, statement: str, params: Any) -> GuardedCursor:
        """Execute one statement for each set of parameters."""
        return self._send(self._cursor.executemany, statement, params)

    def _send(self, method: Callable[[str, Any], Any], statement: str, params: Any) -> GuardedCursor:
        self._tx._usable()  # noqa: SLF001 - the cursor is a part of the transaction
        self._tx.check(statement)
        try:
            method(statement, params)
        except Exception as error:
            self._tx.note(error)
            raise
        return self

    @property
    def rowcount(self) -> int:
        """Rows touched by the last statement."""
        return int(self._cursor.rowcount)

    @property
    def lastrowid(self) -> int | None:
        """The id of the row inserted last."""
        value: int | None = self._cursor.lastrowid
        return value

    def fetchone(self) -> Any:
        """The next row, or None."""
        return self._cursor.fetchone()

    def fetchall(self) -> list[Any]:
        """Every row that is left."""
        return list(self._cursor.fetchall())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._cursor)

    def close(self) -> None:
        """Let go of the cursor."""
        self._cursor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def install_guard(engine: Engine) -> None:
    """Make an engine's connections obey the guard of the handler that uses them."""
    event.listen(engine, "before_cursor_execute", _before_execute)
    event.listen(engine, "handle_error", _on_error)
    event.listen(engine, "commit", _before_commit)
    event.listen(engine, "rollback", _before_commit)


def _guard_of(connection: Connection | None) -> HandlerTransaction | None:
    if connection is None or connection.invalidated or connection.closed:
        return None
    guard: HandlerTransaction | None = connection.info.get(_GUARD)
    return guard


def _before_execute(connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:
    guard = _guard_of(connection)
    if guard is not None:
        guard.check(statement)


def _on_error(context: Any) -> None:
    guard = _guard_of(context.connection)
    if guard is not None and guard.in_turn and context.sqlalchemy_exception is not None:
        guard.note(context.original_exception)


def _before_commit(connection: Connection) -> None:
    guard = _guard_of(connection)
    if guard is not None:
        guard.check("COMMIT")
