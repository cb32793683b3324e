"""Reading a partition from a quorum or classic queue.

Order holds only if nobody else has anything of the queue: so a reader subscribes only when the queue has no consumer
at all, its own half-open connection of before included. Single-active-consumer keeps out one that subscribes after
losing its lease; a reader that finds itself standing by leaves again before it is given anything, for a standby is
given later messages before those that return.
"""

from __future__ import annotations

import logging
import math
import time
from typing import Any

from pika.channel import Channel
from pika.frame import Method
from pika.spec import Basic, BasicProperties

from seriatim.adapters.rabbitmq import troubles
from seriatim.adapters.rabbitmq.ending import EndWatch
from seriatim.adapters.rabbitmq.inbox import Inbox
from seriatim.adapters.rabbitmq.line import Line
from seriatim.adapters.rabbitmq.link import Link
from seriatim.adapters.rabbitmq.tray import Tray
from seriatim.adapters.rabbitmq.wire import Opener
from seriatim.core.backoff import Backoff

_LOG = logging.getLogger(__name__)
_OCCUPIED = Backoff(base_s=0.02, cap_s=0.5)
_QUIET_S = 0.05
_OTHERS = (
    "it has had another consumer for {:.0f} s, and nothing is read beside it: rabbitmqctl list_consumers tells whose; "
    "one that isn't Seriatim's must go"
)


class QueueReader:
    """One group's queue of one partition. On the connection's thread only."""

    def __init__(self, link: Link, inbox: Inbox, tray: Tray, opener: Opener, queue: str) -> None:
        self.line = Line(link, self)
        self._inbox = inbox
        self._tray = tray
        self._opener = opener
        self._queue = queue
        self._prefetch = link.settings.prefetch
        self._patience_s = link.settings.hand_over_s
        self._end = EndWatch(self.line, inbox, tray, queue, quiet_s=_QUIET_S, counts=True)
        self._waits = 0
        self._waits_since = 0.0
        self._refused = False  # … and the lane was told

    def opened(self, channel: Channel) -> None:
        """Wait for the queue to be free."""
        channel.add_on_cancel_callback(lambda _frame: self.line.reopen(f"the server cancelled {self._queue!r}"))
        channel.basic_qos(prefetch_count=self._prefetch)
        self._waits, self._waits_since = 0, time.monotonic()
        self._look()

    def closed(self, error: BaseException) -> None:
        """What is in hand is void: it comes again. A refusal is told in any case, once: nothing comes meanwhile."""
        refused = troubles.is_refusal(error)
        why = troubles.of_reading(error, f"queue {self._queue!r}")
        self._inbox.void(self._tray, why, always=refused and not self._refused)
        self._refused = self._refused or refused
        self._end.reset()

    def settle(self, channel: Channel, tag: int) -> None:
        """Acknowledge everything up to `tag`, on the channel that it came by; a late one is dropped."""
        if self.line.is_current(channel):
            channel.basic_ack(tag, multiple=True)
            self._end.look()
        else:
            _LOG.info("queue %s: dropped a late acknowledgement of a channel that is gone", self._queue)

    def _look(self) -> None:
        self.line.ask(self._queue, self._seen)

    def _seen(self, answer: Method[Any]) -> None:
        if answer.method.consumer_count == 0:
            self._subscribe()
            return
        self._waits += 1
        waited_s = time.monotonic() - self._waits_since
        if waited_s > self._patience_s:
            self._waits_since = math.inf  # told once
            self._inbox.void(self._tray, f"queue {self._queue!r}: {_OTHERS.format(waited_s)}", always=True)
        self.line.later(_OCCUPIED.delay(self._waits), self._look)

    def _subscribe(self) -> None:
        seen = self._end.arrivals

        def subscribed(_answer: Method[Any]) -> None:
            self.line.ask(self._queue, lambda answer: self._check_alone(seen, answer))

        self.line.consume(self._queue, self._arrived, subscribed)

    def _check_alone(self, seen: int, answer: Method[Any]) -> None:
        if answer.method.consumer_count > 1 and self._end.arrivals == seen:
            self.line.reopen(f"queue {self._queue!r} has another consumer")
            return
        self._refused = False
        self.line.works()
        self._end.look()

    def _arrived(self, channel: Channel, method: Basic.Deliver, properties: BasicProperties, body: bytes) -> None:
        if self.line.is_current(channel):
            self._end.arrived()
            handle = (self, channel, method.delivery_tag)
            self._inbox.put(self._tray, self._opener.open(properties, body, handle, redelivered=method.redelivered))
