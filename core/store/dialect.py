"""What differs between databases, behind one small protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from sqlalchemy import ColumnElement, Engine, Select, Update

from seriatim.core.faults import Fault


class Exclusive(Protocol):
    """A session's way of waiting for its turn to write, where the database itself doesn't queue writers fairly."""

    def hold(self) -> AbstractContextManager[None]:
        """Hold the turn for the length of the block. Raises `StoreUnavailable` when it can't be had in time."""
        ...

    def close(self) -> None:
        """Let go of what it uses. Idempotent."""
        ...


class Dialect(Protocol):
    """One kind of database."""

    @property
    def single_writer(self) -> bool:
        """Whether one transaction at a time has the whole database to write."""
        ...

    def exists(self) -> bool:
        """Whether there is a database to connect to; False only where connecting would make an empty one."""
        ...

    def create_engine(self) -> Engine:
        """An engine whose connections are ready for use."""
        ...

    def exclusive(self) -> Exclusive:
        """A turn-taker for one session."""
        ...

    def now(self) -> ColumnElement[int]:
        """The database's clock, in microseconds since the epoch."""
        ...

    def lock(self, query: Select[Any], *, wait: bool) -> Select[Any]:
        """`query` with its rows locked for this transaction; without `wait`, locked ones are left out."""
        ...

    def fold(self, statement: Update, rows: Sequence[Mapping[str, Any]]) -> tuple[str, tuple[Any, ...]] | None:
        """One statement, in the driver's own style, for all of these rows; None where one by one is as good."""
        ...

    def classify(self, error: BaseException) -> Fault:
        """Whose fault a driver's error is."""
        ...

    def writer(self) -> int | None:
        """The process that holds the turn to write, where there is one and it can be told."""
        ...

    def describe(self) -> str:
        """The database in words fit for a log: no secret in it."""
        ...
