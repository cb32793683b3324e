"""The store: records, parked messages, leases and positions, in the database of the business tables."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from seriatim.core.errors import ConfigurationError
from seriatim.core.store.sql import SqlStore
from seriatim.core.store.sqlite import SqliteDialect

__all__ = ["SqlStore", "open_store"]


def open_store(
    url: str, *, lock_timeout_s: float = 30.0, lease_s: float = 10.0, clock: Callable[[], int] | None = None
) -> SqlStore:
    """The store at `url`, an SQLAlchemy URL.

    `lease_s` is how long a silent transaction lives, where a server can end it. `clock` (microseconds) stands in for
    the host's, for tests: where the clock is a server's, it can't.

    Raises:
        ConfigurationError: the URL can't be read, or no such database is supported.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise ConfigurationError("the store URL can't be read; it looks like sqlite:///path/to/store.db") from error
    if parsed.get_backend_name() == "sqlite":
        return SqlStore(SqliteDialect(parsed, lock_timeout_s=lock_timeout_s, clock=clock))
    if parsed.get_backend_name() in ("mysql", "mariadb"):
        return _open_mysql(parsed, lease_s)
    raise ConfigurationError(f"store URL: {parsed.drivername!r} isn't supported; supported are: sqlite, mysql+pymysql")


def _open_mysql(url: URL, lease_s: float) -> SqlStore:
    try:
        from seriatim.core.store.mysql import MysqlDialect  # noqa: PLC0415 - its driver is an optional part
        from seriatim.core.store.mysql_store import MysqlStore  # noqa: PLC0415 - as above
    except ImportError as error:
        raise ConfigurationError(f"store {url.drivername}://: {error}; pip install 'seriatim[mysql]'") from error
    return MysqlStore(MysqlDialect(url, lease_s=lease_s))
