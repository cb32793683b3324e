"""Locks on business keys, kept by Redis or by the store: `lock=` of a handler.

What it stops: two handlers, of whatever topic or group, that work on one account at the same moment. What it doesn't:
anything that a record, a fence or a conditional UPDATE is for. A lock ends by time, and its holder may not know it.
"""

from __future__ import annotations

from functools import partial

from seriatim.core.beside import SCHEMES, incarnation_of, needs_redis
from seriatim.core.brokers import redact
from seriatim.core.errors import ConfigurationError
from seriatim.core.locking.database import DatabaseKeeper
from seriatim.core.locking.leased import LeasedLocks
from seriatim.core.locking.port import Held, LockLost, Locks, LocksClosed, LocksUnavailable
from seriatim.core.store.port import Store
from seriatim.core.store.sql import SqlStore

__all__ = ["Held", "LockLost", "Locks", "LocksClosed", "LocksUnavailable", "open_locks"]

SHORTEST_S = 0.1


def open_locks(url: str, store: Store, *, ttl_s: float = 30.0, answer_s: float = 1.0) -> Locks:
    """The locks at `url`: ``database`` for the store's own, or a URL of Redis (see `seriatim.core.beside`).

    `ttl_s` is how long a lock outlives a process that died or stands still: two to three times the longest handler. A
    live one is renewed at each third of it. `answer_s` is how long Redis may take to connect, and to answer. Names in
    Redis belong to the store's incarnation, so two deployments that share a server don't wait for each other. Open them
    in the process that uses them, and close them before the store.

    Raises:
        ConfigurationError: no such locks, an option out of range, or Redis's client isn't installed.
    """
    if ttl_s < SHORTEST_S or answer_s <= 0:
        raise ConfigurationError(
            f"locks: ttl_s={ttl_s:g} and answer_s={answer_s:g}: a lock lives {SHORTEST_S} s at least"
        )
    if url == "database":
        if not isinstance(store, SqlStore):
            raise ConfigurationError("locks in the database need a store of SQLAlchemy's; say redis://…")
        return LeasedLocks(DatabaseKeeper(store, ttl_s), ttl_s=ttl_s)
    if url.partition(":")[0].lower() not in SCHEMES:
        raise ConfigurationError(f"locks {redact(url)!r}: there are `database` and redis://host:6379/0")
    with needs_redis("lock"):
        from seriatim.core.locking.redis import RedisKeeper  # noqa: PLC0415 - its client is an optional part
    return LeasedLocks(RedisKeeper(url, partial(incarnation_of, store), ttl_s, answer_s), ttl_s=ttl_s)
