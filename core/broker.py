"""The contract between core and adapters: the smallest that serves every broker.

An adapter carries messages; it never decides. It has no retry policy, no dead-lettering, no dedup: what happens to a
delivery is core's business. `seriatim.contract.broker` runs the same behaviours against every adapter; a new adapter is
done when it passes.

How it is used. A lane opens one `Consumer` per topic and asks it to `start` each partition whose lease it has claimed.
`poll` then hands out what has arrived, one partition at a time and in order; a partition isn't handed out again until
its batch is settled. After the commit the lane settles a prefix; what is left is handed out again first. To give a
partition up, the lane settles and calls `stop`, and releases the lease after. Nothing is ever requeued through the
broker to be retried.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from seriatim.core.message import Delivery, Message, Position


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a broker is like, as data; core reads this and never asks for an adapter's class.

    `positions`: it is a log; consumption starts from a position that the store keeps, and settling is only memory.
    `partial_refusal`: it may refuse one message and take the next, so a key may have one unconfirmed batch at a time.
    `max_body`: the largest body in bytes, None where the broker names no limit.
    `silence_s`: how long a lost link may look like silence; what is older than that has been handed out when a
    partition is said to be read through.
    """

    positions: bool
    partial_refusal: bool
    max_body: int | None = None
    silence_s: float = 1.0


class NoticeKind(enum.Enum):
    """What an adapter has to say about a partition besides deliveries."""

    READ_THROUGH = "read through"  #: everything that the broker holds of it has been handed out and settled
    REWOUND = "rewound"  #: the log was cut or replaced; consumption goes on from an earlier message: an alarm
    TRIMMED = "trimmed"  #: the log begins after the position: nothing is read until an operator accepts the gap
    LOST = "lost"  #: the broker took the partition away; what was handed out of it is void


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that happened to a partition, to be acted on, logged and shown in `status`."""

    partition: str
    kind: NoticeKind
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """The next deliveries of one partition, in order; never empty."""

    partition: str
    deliveries: tuple[Delivery, ...]


class Consumer(Protocol):
    """Hands out the deliveries of the partitions it was told to start. Used by one thread, except `wake`."""

    def start(self, partition: str, position: Position | None) -> None:
        """Begin with the message after `position` (None: the earliest kept), once nothing of it is in flight elsewhere.

        Returns at once; a hand-over, or a probe of the log's identity, goes on behind `poll`.
        """
        ...

    def poll(self, timeout_s: float, limit: int) -> Batch | Notice | None:
        """The next deliveries of one partition (at most `limit`), a notice, or None when `timeout_s` went by.

        `READ_THROUGH` is given once each time the end of a partition is reached.

        Raises:
            BrokerError: the broker is away; calling again later goes on where it stood.
        """
        ...

    def settle(self, batch: Batch, upto: int) -> None:
        """Acknowledge the first `upto` deliveries, a prefix; the rest are handed out again first."""
        ...

    def stop(self, partition: str) -> None:
        """Give the partition up so that its next owner gets what wasn't settled, in order. Unknown ones are ignored."""
        ...

    def wake(self) -> None:
        """Make a waiting `poll` return soon. Thread-safe."""
        ...

    def close(self) -> None:
        """Stop every partition and let go of the broker. Idempotent."""
        ...


class Producer(Protocol):
    """Sends to explicit partitions. Thread-safe."""

    def send(self, messages: Sequence[tuple[str, Message]]) -> None:
        """Send each (partition, message); return once the broker has confirmed every one durably.

        Messages of one sharding key arrive in the order given.

        Raises:
            SendFailed: not all were confirmed; it carries those that weren't, in order.
            BrokerError: nothing was sent (the broker is away, or a partition doesn't exist).
        """
        ...

    def close(self) -> None:
        """Let go of the broker. Idempotent."""
        ...


class Broker(Protocol):
    """One broker, found by its URL's scheme through the entry points `seriatim.adapters`."""

    @property
    def capabilities(self) -> Capabilities:
        """What the broker is like."""
        ...

    def declare(self, topic: str, partitions: Sequence[str], group: str | None = None) -> None:
        """Make what is missing of a topic, and of a group's part in it; existing partitions are left as they are.

        Raises:
            ConfigurationError: what is there contradicts the declaration, with the remedy.
            BrokerError: the broker is away or refuses.
        """
        ...

    def partitions(self, topic: str) -> tuple[str, ...]:
        """The partitions that the broker holds of a topic now; empty where it knows no such topic."""
        ...

    def consumer(self, topic: str, group: str) -> Consumer:
        """A consumer, owned and closed by the caller."""
        ...

    def producer(self) -> Producer:
        """A producer, owned and closed by the caller."""
        ...

    def dead_letters(self, topic: str, source: str) -> Consumer:
        """A consumer of what the broker itself gave up of `topic`, in its queue `source`, the one partition of it.

        Raises:
            ConfigurationError: the broker gives nothing up.
        """
        ...

    def close(self) -> None:
        """Close what this object opened for itself. Idempotent."""
        ...


class BrokerFactory(Protocol):
    """What an entry point in `seriatim.adapters` names."""

    def __call__(self, url: str) -> Broker:
        """Open the broker at `url`. Raises `ConfigurationError` for a URL it can't read."""
        ...
