"""One channel, opened again with back-off for as long as it is wanted. On the connection's thread only.

Every question to the server has a time: one that it takes and never answers would look like a quiet partition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

from pika.channel import Channel
from pika.frame import Method
from pika.spec import Basic, BasicProperties

from seriatim.adapters.rabbitmq.channels import bare_close
from seriatim.adapters.rabbitmq.link import CLOSE_S, Connection, Link
from seriatim.adapters.rabbitmq.troubles import NoAnswer
from seriatim.core.backoff import Backoff

_LOG = logging.getLogger(__name__)
_REOPEN = Backoff(base_s=0.05, cap_s=5.0)
ANSWER_S = 20.0  #: how long the server may take to answer

Arrived = Callable[[Channel, Basic.Deliver, BasicProperties, bytes], None]
Answered = Callable[[Method[Any]], None]


class Reader(Protocol):
    """Who reads by a line."""

    def opened(self, channel: Channel) -> None:
        """There is a fresh channel."""
        ...

    def closed(self, error: BaseException) -> None:
        """It is gone, and with it everything unsettled. Another one follows."""
        ...


class Line:
    """Keeps a channel open for `reader`."""

    def __init__(self, link: Link, reader: Reader) -> None:
        self.channel: Channel | None = None
        self._link = link
        self._reader = reader
        self._wanted = True
        self._opening: Channel | None = None  # of this connection, or of one that was lost
        self._failures = 0

    def connected(self, connection: Connection) -> None:
        """There is a connection: open a channel."""
        if self._wanted:
            self._opening = opening = connection.channel(on_open_callback=self._opened)
            self._link.later(ANSWER_S, lambda: self._see_opened(opening))

    def works(self) -> None:
        """What the channel was opened for goes well: the next one may be opened at once."""
        self._failures = 0

    def is_current(self, channel: Channel) -> bool:
        """Whether `channel` is the one in use: what comes by any other is too late."""
        return channel is self.channel and channel.is_open

    def ask(self, queue: str, then: Answered) -> None:
        """Ask the server about a queue, by a passive declare; `then` is given the answer while the channel is used."""
        channel = self.channel
        if channel is not None and channel.is_open:
            channel.queue_declare(queue, passive=True, callback=self._question(channel, then))

    def consume(self, queue: str, arrived: Arrived, then: Answered, arguments: dict[str, Any] | None = None) -> None:
        """Subscribe; `then` is called when the server has agreed, while the channel is used."""
        channel = self.channel
        if channel is not None and channel.is_open:
            channel.basic_consume(queue, arrived, arguments=arguments, callback=self._question(channel, then))

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Have `call` done in `delay_s` seconds, if this channel is still in use then."""
        channel = self.channel

        def now() -> None:
            if channel is not None and self.is_current(channel):
                call()

        self._link.later(delay_s, now)

    def reopen(self, why: str | BaseException) -> None:
        """Leave the channel, and go on with another."""
        channel, self.channel = self.channel, None
        if channel is not None:
            self._reader.closed(why if isinstance(why, BaseException) else RuntimeError(why))
            bare_close(channel, self._reopen)
            self._link.later(CLOSE_S, lambda: self._see_closed(channel))

    def close(self, then: Callable[[], None]) -> None:
        """Leave the channel for good, and call `then`: what it held has gone back."""
        self._wanted = False
        channel, self.channel = self.channel, None
        if channel is None:
            then()
        else:
            bare_close(channel, then)

    def _question(self, channel: Channel, then: Answered) -> Answered:
        answered = False

        def answer(method: Method[Any]) -> None:
            nonlocal answered
            answered = True
            if self.is_current(channel):
                then(method)

        def due() -> None:
            if not answered and self.is_current(channel):
                self.reopen(NoAnswer(f"no answer from the server within {ANSWER_S:g} s"))

        self._link.later(ANSWER_S, due)
        return answer

    def _see_opened(self, channel: Channel) -> None:
        if channel is self._opening:
            self._cut("opens no channel")

    def _see_closed(self, channel: Channel) -> None:
        if not channel.is_closed:
            self._cut("closes no channel")

    def _cut(self, why: str) -> None:
        _LOG.warning("RabbitMQ at %s %s: the connection is cut", self._link.settings.server, why)
        self._link.cut()

    def _opened(self, channel: Channel) -> None:
        self._opening = None
        if not self._wanted:
            bare_close(channel, lambda: None)
            return
        self.channel = channel
        channel.add_on_close_callback(self._closed)
        self._reader.opened(channel)

    def _closed(self, channel: Channel, error: BaseException) -> None:
        if channel is not self.channel:  # it was left on purpose
            return
        self.channel = None
        self._reader.closed(error)
        self._reopen()

    def _reopen(self) -> None:
        self._failures += 1
        self._link.later(_REOPEN.delay(self._failures), self._open_now)

    def _open_now(self) -> None:
        connection = self._link.connection
        if self.channel is None and self._opening is None and connection is not None and connection.is_open:
            self.connected(connection)
