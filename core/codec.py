"""Codecs: how a topic's bodies become bytes and come back."""

from __future__ import annotations

import json
from typing import Any, Protocol

from seriatim.core.errors import InvalidMessage


class Codec(Protocol):
    """Turns a body into bytes for the wire and back for the handler. Must be pure and thread-safe."""

    def encode(self, body: Any) -> bytes:
        """The bytes of `body`; raises `InvalidMessage` when it has none."""
        ...

    def decode(self, data: bytes) -> Any:
        """What the handler gets as its event; raises `InvalidMessage` when `data` can't be read."""
        ...


class JsonCodec:
    """JSON in UTF-8; the default. A handler always gets an object (a dict), unless `any_value` is set.

    `max_depth` bounds how deeply a body may nest, so that no body can exhaust the stack of what handles it later.
    Refuses what JSON can't say (NaN, sets, arbitrary objects).
    """

    def __init__(self, *, any_value: bool = False, max_depth: int = 40) -> None:
        self._any_value = any_value
        self._max_depth = max_depth

    def encode(self, body: Any) -> bytes:
        """The body as compact JSON."""
        try:
            data = _ENCODER.encode(body).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidMessage(f"the body can't be written as JSON: {error}") from error
        self._check(body, data)
        return data

    def decode(self, data: bytes) -> Any:
        """The JSON value in `data`."""
        try:
            value = _DECODER.decode(data.decode())
        except (ValueError, RecursionError) as error:
            raise InvalidMessage(f"the body isn't JSON: {str(error) or type(error).__name__}") from error
        self._check(value, data)
        return value

    def _check(self, value: Any, data: bytes) -> None:
        if not self._any_value and not isinstance(value, dict):
            raise InvalidMessage(
                f"the body is a JSON {type(value).__name__}, not an object; a topic of other values says "
                "codec=JsonCodec(any_value=True)"
            )
        brackets = data.count(b"{") + data.count(b"[")
        if brackets > self._max_depth and _deeper(value, self._max_depth):
            raise InvalidMessage(f"the body nests deeper than {self._max_depth} levels")


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} isn't a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise ValueError(f"{text[:40]} is beyond any number that JSON readers agree on")
    return value


def _deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent if isinstance(parent, list) else ())
        ]
        if not level:
            return False
    return any(isinstance(value, (dict, list)) for value in level)


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)


class BytesCodec:
    """Bodies are bytes already."""

    def encode(self, body: Any) -> bytes:
        """The body itself."""
        if not isinstance(body, (bytes, bytearray, memoryview)):
            raise InvalidMessage(f"the body is {type(body).__name__}: this topic takes bytes")
        return bytes(body)

    def decode(self, data: bytes) -> Any:
        """The bytes themselves."""
        return data
