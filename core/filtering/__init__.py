"""The front filter: duplicates told from a cache, before anything is asked of the store.

What it stops: the cost of a duplicate that comes within the TTL. What it doesn't: a duplicate itself. What it knows is
written after a commit only, and whatever it has lost, or can't say in time, is unknown: then the store decides. In
atomic mode the store's one look-up for a batch costs about as little; the filter pays where work is expensive to begin.
"""

from __future__ import annotations

from functools import partial

from seriatim.core.beside import SCHEMES, incarnation_of, needs_redis
from seriatim.core.brokers import redact
from seriatim.core.errors import ConfigurationError
from seriatim.core.filtering.breaker import Breaker
from seriatim.core.filtering.port import Filter, FilterEntry
from seriatim.core.store.port import Store

__all__ = ["Breaker", "Filter", "FilterEntry", "open_filter"]

DAY_S = 86_400.0


def open_filter(
    url: str,
    store: Store,
    *,
    ttl_s: float = DAY_S,
    connect_s: float = 0.025,
    read_s: float = 0.025,
    breaker: Breaker | None = None,
) -> Filter:
    """The filter in the Redis at `url` (see `seriatim.core.beside`), for the records of `store`.

    Entries live `ttl_s`. A call waits `connect_s` to connect and `read_s` for the answer, at most; one that takes
    longer than both together, or fails, opens the breaker, and while that is open nothing is waited for. Over TLS, or
    far away, give them more. Name the host by its address: looking a name up takes what the resolver takes.

    Raises:
        ConfigurationError: the URL can't be read, an option is out of range, or Redis's client isn't installed.
    """
    if min(ttl_s, connect_s, read_s) < 0.001:  # noqa: PLR2004 - a millisecond, Redis's own unit
        raise ConfigurationError(f"filter {redact(url)!r}: ttl_s, connect_s and read_s must be a millisecond or more")
    if url.partition(":")[0].lower() not in SCHEMES:
        raise ConfigurationError(f"filter {redact(url)!r}: it must be redis://host:6379/0, rediss://… or unix://…")
    with needs_redis("filter"):
        from seriatim.core.filtering.redis import RedisFilter  # noqa: PLC0415 - its client is an optional part
    return RedisFilter(
        url,
        partial(incarnation_of, store),
        ttl_s=ttl_s,
        connect_s=connect_s,
        read_s=read_s,
        breaker=breaker or Breaker(),
    )
