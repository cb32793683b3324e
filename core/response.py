"""Stored responses: what a handler returned, as bytes that a duplicate gets unchanged.

JSON in UTF-8. Besides what JSON knows, values with one obvious text are written as that text: decimals, dates and
times, UUIDs, enums; bytes as base64, sets as sorted lists, dataclasses and pydantic models as objects.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import decimal
import enum
import json
import uuid
from collections.abc import Callable
from typing import Any

from seriatim.core.errors import SeriatimError

MAX_RESPONSE = 64 * 1024  #: bytes


class BadResponse(SeriatimError):
    """A handler returned what can't be stored: nothing was committed, and the message counts as failed."""


def encode_response(value: Any, limit: int = MAX_RESPONSE) -> bytes | None:
    """The bytes of a response; None for None.

    Raises:
        BadResponse: it has no JSON form, or is longer than `limit` bytes.
    """
    if value is None:
        return None
    try:
        data = json.dumps(value, default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadResponse(f"the handler's response can't be stored: {error}; return what JSON can say") from error
    if len(data) > limit:
        raise BadResponse(
            f"the handler's response has {len(data)} bytes; at most {limit} are stored: return a reference instead"
        )
    return data


def _plain(value: Any) -> Any:
    for kinds, plain in _PLAIN:
        if isinstance(value, kinds):
            return plain(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"a {type(value).__name__} has no JSON form")


_PLAIN: tuple[tuple[tuple[type, ...], Callable[[Any], Any]], ...] = (
    ((decimal.Decimal, uuid.UUID), str),
    ((dt.datetime, dt.date, dt.time), lambda value: value.isoformat()),
    ((enum.Enum,), lambda value: value.value),
    ((bytes, bytearray, memoryview), lambda value: base64.b64encode(value).decode()),
    ((set, frozenset), sorted),
)
