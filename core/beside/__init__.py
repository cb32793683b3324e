"""What stands beside the store: a server whose contents may be lost, or rolled back, at any time.

Redis serves the front filter and the lock. It is never the truth (P9): losing it costs speed, never correctness. Its
client is an optional part, `pip install 'seriatim[redis]'`, and only the modules named `redis` load it.

A URL is redis-py's: ``redis://[[user]:password@]host[:port][/db]``, ``rediss://…`` over TLS, or
``unix://[user@]/path/to.sock?db=0``. Options follow the question mark, and go through to the client. With ``rediss://``
the server's certificate and name are checked, against the system's authorities or those of
``?ssl_ca_certs=/path/ca.pem``; ``ssl_certfile=`` and ``ssl_keyfile=`` show one of ours; ``ssl_cert_reqs=none`` and
``ssl_check_hostname=false`` switch the checks off.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import select

from seriatim.core.errors import ConfigurationError, SchemaMismatch
from seriatim.core.store.port import Store
from seriatim.core.store.schema import schema_version

SCHEMES = ("redis", "rediss", "unix")


@contextmanager
def needs_redis(part: str) -> Iterator[None]:
    """Imports of modules that load Redis's client; `part` says in an error what it is needed for.

    Raises:
        ConfigurationError: it isn't installed.
    """
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(f"the {part} needs Redis's client ({error}); pip install 'seriatim[redis]'") from error


def check_eviction(url: str, part: str = "filter") -> str | None:
    """What is wrong with how the server at `url` makes room when its memory is full: a sentence with the remedy.

    None when it removes nothing. `part` is what it serves, ``filter`` or ``lock``: for a filter it is a warning, since
    a removed entry costs a look-up; for a lock it is an error, since a removed lock is had by two. Where the server
    doesn't tell (away, CONFIG forbidden), the sentence says so. Asked for a second at most, at start-up.

    Raises:
        ConfigurationError: the URL can't be read, or Redis's client isn't installed.
    """
    with needs_redis(part):
        from seriatim.core.beside.redis import eviction  # noqa: PLC0415 - its client is an optional part
    return eviction(url, part)


def incarnation_of(store: Store) -> str:
    """What tells this store from a copy or a successor, so that nothing is kept beside it under a wrong name.

    Raises:
        StoreUnavailable: it can't be read just now.
        SchemaMismatch: it has none.
    """
    newest = select(schema_version.c.incarnation).order_by(schema_version.c.version.desc()).limit(1)
    with store.read() as connection:
        incarnation = connection.execute(newest).scalar()
    if incarnation is None:
        raise SchemaMismatch("the store has no Seriatim tables; run `seriatim init` first")
    return str(incarnation)
