"""Digests: whether two bodies say the same.

Bodies that are equal byte for byte are the same. JSON bodies that differ only in the order of their names or in white
space are the same, too (RFC 8785 in spirit: names sorted, no white space). A body with duplicate names or numbers that
aren't finite has no canonical form and is compared by its bytes alone.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

_JSON_STARTS = frozenset({b"{", b"["})


class _NotCanonical(ValueError):
    """The JSON has more than one reading."""


def digest(body: bytes) -> bytes:
    """32 bytes that are equal for bodies that say the same."""
    return hashlib.sha256(_canonical(body)).digest()


def _canonical(body: bytes) -> bytes:
    if body.lstrip()[:1] not in _JSON_STARTS:
        return body
    try:
        return _ENCODER.encode(_DECODER.decode(body.decode())).encode()
    except (ValueError, RecursionError):  # not JSON, or none with one reading: the bytes speak for themselves
        return body


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _NotCanonical
    return value


def _refuse(constant: str) -> Any:
    raise _NotCanonical(constant)


def _float(text: str) -> float | int:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise _NotCanonical(text)
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_refuse, parse_float=_float)
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)
