"""Finding a broker by its URL."""

from __future__ import annotations

from importlib.metadata import entry_points
from urllib.parse import urlsplit

from seriatim.core.broker import Broker, BrokerFactory
from seriatim.core.errors import ConfigurationError

GROUP = "seriatim.adapters"


def open_broker(url: str) -> Broker:
    """The broker at `url`, whose scheme names an installed adapter.

    Raises:
        ConfigurationError: no adapter has that scheme, or the adapter can't read the URL or lacks its library.
        BrokerError: the broker is away.
    """
    scheme = urlsplit(url).scheme
    known = {point.name: point for point in entry_points(group=GROUP)}
    if scheme not in known:
        raise ConfigurationError(
            f"broker URL {redact(url)!r}: no adapter for {scheme or 'no scheme'!r}; installed are "
            f"{', '.join(sorted(known)) or 'none'}"
        )
    try:
        factory: BrokerFactory = known[scheme].load()
    except ImportError as error:
        raise ConfigurationError(
            f"the adapter for {scheme}:// needs a library that isn't installed: {error}"
        ) from error
    return factory(url)


def redact(url: str) -> str:
    """`url` without its password and without what its query may hold: fit for logs and errors."""
    parts = urlsplit(url)
    netloc = parts.netloc
    if "@" in netloc:
        user, _, host = netloc.rpartition("@")
        netloc = f"{user.split(':')[0]}:***@{host}" if ":" in user else f"{user}@{host}"
    query = "?…" if parts.query else ""
    slashes = "//" if netloc or url.startswith(f"{parts.scheme}://") else ""
    return f"{parts.scheme}:{slashes}{netloc}{parts.path}{query}" if parts.scheme else f"{netloc}{parts.path}{query}"
