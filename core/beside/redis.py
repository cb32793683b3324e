"""A client of Redis that answers within a known time, and what to ask a server before relying on it."""

from __future__ import annotations

from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from seriatim.core.brokers import redact
from seriatim.core.errors import ConfigurationError

#: What a call may end in when the server is away, slow, full, refuses us, or answers what can't be read.
FAILURES: tuple[type[Exception], ...] = (redis.RedisError, OSError, UnicodeError)

_ASK_S = 1.0


def open_client(url: str, *, connect_s: float, read_s: float) -> Any:
    """A client of the server at `url`; connects at its first use, and again after each failure.

    A call costs at most `connect_s` for each address of the host, and `read_s` for each answer. Nothing is tried
    twice: redis-py would by itself, and then a SET NX answers None although it was ours that was stored.

    Raises:
        ConfigurationError: the URL can't be read, or has an option that the client doesn't know.
    """
    kind: Any = redis.Redis  # its types differ from release to release
    try:
        client = kind.from_url(
            url, socket_connect_timeout=connect_s, socket_timeout=read_s, retry=Retry(NoBackoff(), 0), protocol=2
        )
        client.connection_pool.make_connection()  # reads the options, connects to nothing
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"Redis URL {redact(url)!r} can't be read ({type(error).__name__}); it looks like redis://host:6379/0"
        ) from error
    except redis.RedisError as error:
        raise ConfigurationError(f"Redis URL {redact(url)!r}: {error}") from error
    return client


def eviction(url: str, part: str) -> str | None:
    """See `seriatim.core.beside.check_eviction`."""
    client = open_client(url, connect_s=_ASK_S, read_s=_ASK_S)
    where = f"Redis {redact(url)}"
    try:
        policy = _text(client.config_get("maxmemory-policy").get("maxmemory-policy"))
    except FAILURES as error:
        return (
            f"{where}: whether it removes keys when its memory is full can't be known ({_first_line(error)}); see to "
            "it that maxmemory-policy is noeviction"
        )
    finally:
        client.close()
    if policy == "noeviction":
        return None
    harm = "a lock that is removed is had by two" if part == "lock" else "what it removes is looked up again"
    return (
        f"{where}: maxmemory-policy {policy} may remove keys when its memory is full, and {harm}; "
        "CONFIG SET maxmemory-policy noeviction, here and in redis.conf, or use a server of its own"
    )


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "unknown")


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
