"""The wire mapping: a message as text headers and a body of bytes, the same on every broker.

The suite's own headers carry what a broker has no place for. `open_delivery` is the way back: it gives the message, or
says what is wrong with the delivery and still reads the sharding key where it can, since a malformed message must hold
up its key like a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from seriatim.core.errors import InvalidMessage
from seriatim.core.message import MAX_KEY, MAX_TYPE, RESERVED_PREFIX, Delivery, Message, check_text

N = TypeVar("N", int, float)

KEY = "seriatim-key"
BIZ_KEY = "seriatim-biz-key"
TYPE = "seriatim-type"
PRODUCED_AT = "seriatim-produced-at"
STATE = "seriatim-state"
SEQ = "seriatim-seq"
REPLY_TO = "seriatim-reply-to"
CORRELATION_ID = "seriatim-correlation-id"


def seal(message: Message) -> dict[str, str]:
    """The headers that carry `message` over any broker (its body travels beside them)."""
    headers = dict(message.headers)
    headers[KEY] = message.sharding_key
    headers[BIZ_KEY] = message.biz_key
    headers[TYPE] = message.type
    headers[PRODUCED_AT] = repr(message.produced_at)
    optional = {
        STATE: message.state,
        SEQ: None if message.seq is None else str(message.seq),
        REPLY_TO: message.reply_to,
        CORRELATION_ID: message.correlation_id,
    }
    headers.update({name: value for name, value in optional.items() if value is not None})
    return headers


@dataclass(frozen=True, slots=True)
class Malformed:
    """A delivery that isn't a message: why, and what of it could be read."""

    reason: str
    sharding_key: str | None = None
    biz_key: str | None = None
    type: str | None = None


def open_delivery(delivery: Delivery, default_biz_key: Callable[[str, str], str | None]) -> Message | Malformed:
    """The message in `delivery`, or what is wrong with it.

    `default_biz_key(sharding_key, type)` gives the key of a type that happens once in the life of its sharding key,
    None for any other type: such a message without an explicit biz_key is malformed.
    """
    raw = delivery.raw
    try:
        return _message(delivery, default_biz_key)
    except InvalidMessage as error:
        return Malformed(
            reason=str(error),
            sharding_key=_readable(raw.get(KEY), MAX_KEY),
            biz_key=_readable(raw.get(BIZ_KEY), MAX_KEY),
            type=_readable(raw.get(TYPE), MAX_TYPE),
        )


def _message(delivery: Delivery, default_biz_key: Callable[[str, str], str | None]) -> Message:
    raw = delivery.raw
    key = check_text("sharding key", raw.get(KEY), MAX_KEY)
    kind = check_text("message type", raw.get(TYPE), MAX_TYPE)
    biz_key = raw.get(BIZ_KEY) or default_biz_key(key, kind)
    if biz_key is None:
        raise InvalidMessage(
            f"no biz_key, and type {kind!r} may happen more than once in the life of its key: "
            "the producer must give one (a flow number), or the type be declared once=True"
        )
    return Message(
        topic=delivery.topic,
        sharding_key=key,
        biz_key=biz_key,
        type=kind,
        body=delivery.body,
        headers=_foreign(raw),
        produced_at=_number(raw, PRODUCED_AT, float) or delivery.appended_at or delivery.received_at,
        state=_optional(raw, STATE),
        seq=_number(raw, SEQ, int),
        reply_to=_optional(raw, REPLY_TO),
        correlation_id=_optional(raw, CORRELATION_ID),
    )


def _number(raw: Mapping[str, str], name: str, kind: Callable[[str], N]) -> N | None:
    text = raw.get(name)
    if text is None:
        return None
    try:
        return kind(text)
    except (TypeError, ValueError, OverflowError):
        raise InvalidMessage(f"header {name} is {str(text)[:40]!r}: not a number") from None


def _optional(raw: Mapping[str, str], name: str) -> str | None:
    text = raw.get(name)
    if text is not None and not isinstance(text, str):
        raise InvalidMessage(f"header {name} is a {type(text).__name__}: not text")
    return text


def _foreign(raw: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in raw.items() if not name.lower().startswith(RESERVED_PREFIX)}


def _readable(value: str | None, limit: int) -> str | None:
    try:
        return check_text("text", value, limit)
    except InvalidMessage:
        return None
