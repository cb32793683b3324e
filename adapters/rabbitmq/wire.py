"""A message as AMQP headers and properties, and back.

The suite's headers and the producer's own travel as AMQP headers; the rest of the properties is left to foreign
producers, whose messages are read by the mapping in the broker's URL.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from pika import DeliveryMode
from pika.spec import BasicProperties

from seriatim.adapters.rabbitmq.settings import Foreign
from seriatim.core import envelope
from seriatim.core.errors import InvalidMessage
from seriatim.core.message import Delivery, Message, Position

MAX_BODY = 16 << 20  #: bytes: `max_message_size` of RabbitMQ 4, the smallest default there is
OFFSET = "x-stream-offset"
_OF_THE_DELIVERY = (OFFSET, "x-delivery-count")  # the server's words about this delivery, no part of the message
_PERSISTENT = DeliveryMode.Persistent
_LONGEST_NAME = 255  # bytes of a header's name, in AMQP
_MAX_HEADERS = 100_000  # bytes: they travel in one frame, and a server's frames have 131,072


def to_wire(message: Message) -> tuple[BasicProperties, bytes]:
    """The properties and the body of `message`.

    Raises:
        InvalidMessage: the body or the headers are larger than RabbitMQ takes.
    """
    if len(message.body) > MAX_BODY:
        raise InvalidMessage(
            f"the body of biz_key {message.biz_key!r} has {len(message.body)} bytes; RabbitMQ takes {MAX_BODY} by "
            "default: keep it elsewhere and send where it is"
        )
    headers = envelope.seal(message)
    _check_headers(message.biz_key, headers)
    return BasicProperties(headers=headers, delivery_mode=_PERSISTENT), message.body


def _check_headers(biz_key: str, headers: Mapping[str, str]) -> None:
    size = 0
    for name, value in headers.items():
        length = len(name.encode())
        if length > _LONGEST_NAME:
            raise InvalidMessage(f"header {name[:40]!r}… of biz_key {biz_key!r} has a name of more than 255 bytes")
        size += length + len(value.encode()) + 6
    if size > _MAX_HEADERS:
        raise InvalidMessage(
            f"the headers of biz_key {biz_key!r} have {size} bytes; RabbitMQ takes {_MAX_HEADERS}: use the body"
        )


class Opener:
    """Makes deliveries of one partition out of what arrives."""

    def __init__(self, topic: str, partition: str, foreign: Foreign, *, streams: bool) -> None:
        self._streams = streams
        self._topic = topic
        self._partition = partition
        self._foreign = foreign
        self._maps = foreign != Foreign()

    def open(self, properties: BasicProperties, body: bytes, handle: object, *, redelivered: bool) -> Delivery:
        """A delivery; with a position if it comes from a stream."""
        headers = properties.headers or {}
        raw = {
            name: value if type(value) is str else to_text(value)
            for name, value in headers.items()
            if name not in _OF_THE_DELIVERY
        }
        if envelope.KEY not in raw or envelope.TYPE not in raw or self._maps:
            self._map(raw, properties)
        offset = headers.get(OFFSET) if self._streams else None  # in a queue it is only what somebody wrote there
        return Delivery(
            topic=self._topic,
            partition=self._partition,
            raw=raw,
            body=body,
            received_at=time.time(),
            position=None if offset is None else Position(str(int(str(offset))), _digest(raw, body)),
            handle=handle,
            redelivered=redelivered,
        )

    def _map(self, raw: dict[str, str], properties: BasicProperties) -> None:
        """Fill in what a foreign producer says in another place; what is there already stays."""
        foreign = self._foreign
        found: dict[str, str | None] = {
            envelope.KEY: raw.get(foreign.key_header or ""),
            envelope.TYPE: raw.get(foreign.type_header or "") or properties.type,
            envelope.BIZ_KEY: (
                properties.message_id if foreign.biz_key_from == "message_id" else raw.get(foreign.biz_key_from or "")
            ),
            envelope.PRODUCED_AT: None if properties.timestamp is None else str(properties.timestamp),
            envelope.REPLY_TO: properties.reply_to,
            envelope.CORRELATION_ID: properties.correlation_id,
        }
        for name, value in found.items():
            if value:
                raw.setdefault(name, value)


def _digest(raw: Mapping[str, str], body: bytes) -> str:
    """Tells this message from any other at the same offset. Headers keep their order in a stream."""
    seen = hashlib.blake2b(repr(raw).encode("utf-8", "surrogatepass"), digest_size=16)
    seen.update(body)
    return seen.hexdigest()


def to_text(value: Any) -> str:
    """A header's value of any AMQP type as text; tables and lists as JSON."""
    for kind, write in _WRITERS.items():
        if isinstance(value, kind):
            return write(value)
    return str(value)


def _bytes(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


_WRITERS: Mapping[type | tuple[type, ...], Callable[[Any], str]] = {
    str: str,
    bytes: _bytes,
    bytearray: lambda value: _bytes(bytes(value)),
    bool: lambda value: "true" if value else "false",
    int: lambda value: str(int(value)),  # pika's long writes itself with an L
    type(None): lambda _value: "",
    dt.datetime: dt.datetime.isoformat,
    (dict, list): lambda value: json.dumps(value, default=to_text, ensure_ascii=False),
}
