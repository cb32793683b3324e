"""One channel, opened again with back-off for as long as it is wanted. On the connection's thread only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pika.channel import Channel
from pika.frame import Method

from seriatim.adapters.rabbitmq.channels import bare_close
from seriatim.adapters.rabbitmq.link import Connection, Link
from seriatim.core.backoff import Backoff

_REOPEN = Backoff(base_s=0.05, cap_s=5.0)


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
        self._opening = False
        self._failures = 0

    def connected(self, connection: Connection) -> None:
        """There is a connection: open a channel."""
        if self._wanted:
            self._opening = True
            connection.channel(on_open_callback=self._opened)

    def works(self) -> None:
        """What the channel was opened for goes well: the next one may be opened at once."""
        self._failures = 0

    def is_current(self, channel: Channel) -> bool:
        """Whether `channel` is the one in use: what comes by any other is too late."""
        return channel is self.channel and channel.is_open

    def ask(self, queue: str, then: Callable[[Method[Any]], None]) -> None:
        """Ask the server about a queue, by a passive declare; `then` is given the answer while the channel is used."""
        channel = self.channel
        if channel is not None and channel.is_open:
            channel.queue_declare(
                queue, passive=True, callback=lambda answer: then(answer) if self.is_current(channel) else None
            )

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Have `call` done in `delay_s` seconds, if this channel is still in use then."""
        channel = self.channel

        def now() -> None:
            if channel is not None and self.is_current(channel):
                call()

        self._link.later(delay_s, now)

    def reopen(self, why: str) -> None:
        """Leave the channel, and go on with another."""
        channel, self.channel = self.channel, None
        if channel is not None:
            self._reader.closed(RuntimeError(why))
            bare_close(channel, self._reopen)

    def close(self, then: Callable[[], None]) -> None:
        """Leave the channel for good, and call `then`: what it held has gone back."""
        self._wanted = False
        channel, self.channel = self.channel, None
        if channel is None:
            then()
        else:
            bare_close(channel, then)

    def _opened(self, channel: Channel) -> None:
        self._opening = False
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
        if self.channel is None and not self._opening and connection is not None and connection.is_open:
            self.connected(connection)
