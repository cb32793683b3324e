"""Finding a broker by its URL."""

from __future__ import annotations

import re
from importlib.metadata import entry_points

from seriatim.core.broker import Broker, BrokerFactory
from seriatim.core.errors import ConfigurationError

GROUP = "seriatim.adapters"
_URL = re.compile(r"([A-Za-z][\w+.-]*:)?(//)?(.*)", re.DOTALL)


def open_broker(url: str) -> Broker:
    """The broker at `url`, whose scheme names an installed adapter.

    Raises:
        ConfigurationError: no adapter has that scheme, or the adapter can't read the URL or lacks its library.
        BrokerError: the broker is away.
    """
    scheme = (_URL.fullmatch(url).group(1) or "").rstrip(":").lower()  # type: ignore[union-attr]  # it matches any text
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
    try:
        return factory(url)
    except ValueError as error:
        raise ConfigurationError(f"broker URL {redact(url)!r} can't be read: {error}") from error


def redact(url: str) -> str:
    """`url` without its password and without what its query may hold: fit for logs and errors.

    By its text alone, since a URL that can't be parsed may hold a secret, too: what stands between the user's name and
    the last ``@`` goes; where there is no ``//``, all that stands before the ``@``.
    """
    scheme, slashes, rest = _URL.fullmatch(url).groups("")  # type: ignore[union-attr]  # it matches any text
    login, at, rest = rest.rpartition("@")
    place = re.split(r"[?#]", rest, maxsplit=1)
    shown = place[0] + ("?…" if len(place) > 1 else "")
    user, colon, _ = login.partition(":")
    if not at:
        return f"{scheme}{slashes}{shown}"
    if not slashes:
        return f"{scheme}***@{shown}"
    return f"{scheme}{slashes}{user}{':***' if colon else ''}@{shown}"
