"""Names of locks: which are one, and in which order they are taken."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from seriatim.core.errors import InvalidMessage

MAX_NAME = 255  #: characters that a keeper stores
_KEPT = 180  #: of a longer name, before its digest
_SHOWN = 40


def in_order(names: Iterable[str]) -> dict[str, str]:
    """Each name once, in the order of its bytes, with what the keeper calls it.

    Raises:
        InvalidMessage: one is empty, or can't be written.
    """
    return {name: stored(name) for name in sorted(set(names), key=_bytes_of)}


def stored(name: str) -> str:
    """What the keeper calls a name: the name, or the beginning of a very long one and its digest."""
    if len(name) <= MAX_NAME:
        return name
    return f"{name[:_KEPT]}…sha256:{hashlib.sha256(name.encode()).hexdigest()}"


def _bytes_of(name: str) -> bytes:
    if not name:
        raise InvalidMessage(f"a lock's name is {name!r}: it must be text; name the business key it protects")
    if "\x00" in name:
        raise InvalidMessage(f"the lock's name {name[:_SHOWN]!r} holds a NUL, which servers don't keep")
    try:
        return name.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(
            f"the lock's name {name[:_SHOWN]!r} holds half a surrogate pair: UTF-8 can't carry it"
        ) from error
