"""What travels: a message, and its delivery from one partition.

A `Message` is what a producer means. A `Delivery` is what a broker hands out: headers and bytes from one partition,
not yet known to be well formed; `seriatim.core.envelope` turns the one into the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from seriatim.core.errors import InvalidMessage

MAX_TOPIC = 128  #: characters of a topic's name
MAX_KEY = 255  #: characters of a sharding key and of a biz_key
MAX_TYPE = 128  #: characters of a message type
ANY = "*"  #: in place of a type: every type without a handler of its own
MAX_TIME = 253_402_300_800  #: seconds since the epoch, where the year 10000 begins: a time must lie before it
RESERVED_PREFIX = "seriatim-"  #: headers of the suite's own

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Message:
    """One message as its producer means it.

    `sharding_key` names the business entity whose messages stay in order; `biz_key` is the unit of idempotency.
    `state` is the business state that the producer saw, `seq` its rising number within the key; both are optional.
    `produced_at` is in seconds since the epoch (UTC).

    Raises:
        InvalidMessage: a key is missing, blank or too long, or a header uses the reserved prefix.
    """

    topic: str
    sharding_key: str
    biz_key: str
    type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    produced_at: float = 0.0
    state: str | None = None
    seq: int | None = None
    reply_to: str | None = None
    correlation_id: str | None = None

    def __post_init__(self) -> None:
        check_text("topic", self.topic, MAX_TOPIC)
        check_text("sharding key", self.sharding_key, MAX_KEY)
        check_text("biz_key", self.biz_key, MAX_KEY)
        check_text("message type", self.type, MAX_TYPE)
        if not 0 <= self.produced_at < MAX_TIME:
            raise InvalidMessage(
                f"produced_at of biz_key {self.biz_key!r} is {self.produced_at!r}: it is in seconds since the epoch"
            )
        if self.seq is not None and (isinstance(self.seq, bool) or not isinstance(self.seq, int)):
            raise InvalidMessage(f"seq of biz_key {self.biz_key!r} is {self.seq!r}: it is a whole number")
        if self.seq is not None and not -(2**63) <= self.seq < 2**63:
            raise InvalidMessage(f"seq of biz_key {self.biz_key!r} is {self.seq}: it has more than 64 bits")
        for what, text in (("state", self.state), ("reply_to", self.reply_to), ("correlation_id", self.correlation_id)):
            if text is not None and not _encodable(text):
                raise InvalidMessage(f"the {what} of biz_key {self.biz_key!r} holds half a surrogate pair")
        for name in self.headers:
            if name.lower().startswith(RESERVED_PREFIX):
                raise InvalidMessage(
                    f"header {name!r} of biz_key {self.biz_key!r}: names that begin with {RESERVED_PREFIX!r} "
                    "are Seriatim's own; rename the header"
                )

    def with_headers(self, **headers: str) -> Message:
        """The same message with these headers added."""
        return replace(self, headers={**self.headers, **headers})


def check_text(what: str, value: object, limit: int) -> str:
    """Return `value` if it is text that a key column can hold exactly.

    Raises:
        InvalidMessage: it is absent, blank, longer than `limit` characters, or holds what no text column can.
    """
    if not isinstance(value, str) or not value.strip():
        raise InvalidMessage(f"the {what} is {value!r}: it must be text that isn't blank")
    if len(value) > limit:
        raise InvalidMessage(f"the {what} {value[:40]!r}… has {len(value)} characters; at most {limit} are allowed")
    if "\x00" in value or not _encodable(value):
        raise InvalidMessage(f"the {what} {value[:40]!r} holds a NUL or half a surrogate pair, which no store can keep")
    return value


def _encodable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Position:
    """Where a group stands in a partition of a log: the last handled message.

    `offset` is opaque text, ordered only by its adapter; `identity` tells this log and this message from any other,
    so that a log that was cut or replaced is noticed at the next take-over.
    """

    offset: str
    identity: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message as a broker hands it out, from one partition.

    `raw` are the broker's headers as text, the suite's own among them; `handle` is the adapter's, for settling.
    `position` is set where the broker is a log. `appended_at` is the broker's own time of arrival, if it tells one.
    Times are in seconds since the epoch.
    """

    topic: str
    partition: str
    raw: Mapping[str, str]
    body: bytes
    received_at: float
    position: Position | None = None
    handle: object = None
    redelivered: bool = False
    appended_at: float | None = None
