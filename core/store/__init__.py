"""The store: records, parked messages, leases and positions, in the database of the business tables."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from seriatim.core.errors import ConfigurationError
from seriatim.core.store.sql import SqlStore
from seriatim.core.store.sqlite import SqliteDialect

__all__ = ["SqlStore", "open_store"]


def open_store(url: str, *, lock_timeout_s: float = 30.0, clock: Callable[[], int] | None = None) -> SqlStore:
    """The store at `url`, an SQLAlchemy URL. `clock` (microseconds) stands in for the host's, for tests.

    Raises:
        ConfigurationError: the URL can't be read, or no such database is supported.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise ConfigurationError("the store URL can't be read; it looks like sqlite:///path/to/store.db") from error
    if parsed.get_backend_name() == "sqlite":
        return SqlStore(SqliteDialect(parsed, lock_timeout_s=lock_timeout_s, clock=clock))
    raise ConfigurationError(f"store URL: {parsed.drivername!r} isn't supported; supported are: sqlite")
