"""What is being sent: per key one unconfirmed message at a time, keys side by side. On the connection's thread only.

The server may refuse one message and take the next. If several of a key were unconfirmed at once, sending the refused
one again would put it behind its followers. So the next of a key goes out when the one before was confirmed.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from pika.spec import BasicProperties

from seriatim.core.errors import BrokerError
from seriatim.core.message import Message

Key = tuple[str, str]  # topic and sharding key


@dataclass(eq=False, slots=True)
class Call:
    """One `send`: how many of its messages have no answer yet, and what went wrong first."""

    left: int
    done: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None


@dataclass(eq=False, slots=True)
class Item:
    """One message of a call."""

    call: Call
    message: Message
    exchange: str
    routing_key: str
    properties: BasicProperties
    body: bytes
    confirmed: bool = False
    sent: bool = False

    def succeed(self) -> None:
        """It is confirmed."""
        self.confirmed = True
        self._finish()

    def fail(self, error: Exception) -> None:
        """It isn't, and won't be."""
        self.call.error = self.call.error or error
        self._finish()

    def _finish(self) -> None:
        self.call.left -= 1
        if self.call.left == 0:
            self.call.done.set()

    @property
    def key(self) -> Key:
        """What must stay in order."""
        return self.message.topic, self.message.sharding_key


class Sending:
    """The messages on their way and those waiting for them. `publish` puts one on the wire and gives its tag."""

    def __init__(self, publish: Callable[[Item], int]) -> None:
        self._publish = publish
        self._queues: dict[Key, deque[Item]] = {}  # the first of each is on its way
        self._on_their_way: dict[int, Item] = {}  # by tag, rising
        self._refused: dict[int, Exception] = {}  # returned, to be settled by their confirmation

    def add(self, items: list[Item]) -> None:
        """Send these, each when its turn comes."""
        for item in items:
            queue = self._queues.setdefault(item.key, deque())
            queue.append(item)
            if len(queue) == 1:
                self._go(item)

    def confirmed(self, tag: int, *, multiple: bool, accepted: bool) -> None:
        """The server took, or refused, one message or all up to it."""
        for one in self._up_to(tag) if multiple else (tag,):
            item = self._on_their_way.pop(one, None)
            if item is None:  # of a channel that is gone
                continue
            refusal = self._refused.pop(one, None)
            if refusal is None and not accepted:
                refusal = BrokerError(f"RabbitMQ refused biz_key {item.message.biz_key!r} (basic.nack)")
            if refusal is None:
                self._taken(item)
            else:
                self._failed(item, refusal)

    def returned(self, properties: BasicProperties, routing_key: str, error: Callable[[Message], Exception]) -> None:
        """The server can't route a message; its confirmation follows."""
        for tag, item in self._on_their_way.items():
            if item.routing_key == routing_key and item.properties.headers == properties.headers:
                self._refused.setdefault(tag, error(item.message))

    def give_up(self, call: Call) -> bool:
        """Nobody waits for this call any more: what wasn't sent of it won't be; whether any is on its way."""
        for key, queue in list(self._queues.items()):
            kept = deque(item for item in queue if item.call is not call or item.sent)
            if kept:
                self._queues[key] = kept
            else:
                del self._queues[key]
        return any(item.call is call for item in self._on_their_way.values())

    def lost(self, error: Exception) -> None:
        """The channel is gone: nothing of what is on its way, or waits, will be confirmed."""
        items = [item for queue in self._queues.values() for item in queue]
        self._queues.clear()
        self._on_their_way.clear()
        self._refused.clear()
        for item in items:
            item.fail(error)

    def _up_to(self, tag: int) -> list[int]:
        return list(itertools.takewhile(lambda one: one <= tag, self._on_their_way))

    def _go(self, item: Item) -> None:
        item.sent = True
        self._on_their_way[self._publish(item)] = item

    def _taken(self, item: Item) -> None:
        item.succeed()
        queue = self._queues[item.key]
        queue.popleft()
        if queue:
            self._go(queue[0])
        else:
            del self._queues[item.key]

    def _failed(self, item: Item, error: Exception) -> None:
        """One wasn't taken: those of its key that wait behind it aren't sent, whoever's they are."""
        for one in self._queues.pop(item.key):
            one.fail(error)
