"""Receiving: the lane's side of the partitions of one topic, on a connection of their own."""

from __future__ import annotations

from collections.abc import Callable

from pika.channel import Channel

from seriatim.adapters.rabbitmq import names
from seriatim.adapters.rabbitmq.inbox import Inbox
from seriatim.adapters.rabbitmq.link import CLOSE_S, Connection, Error, Link
from seriatim.adapters.rabbitmq.queue_reader import QueueReader
from seriatim.adapters.rabbitmq.settings import Settings
from seriatim.adapters.rabbitmq.stream_reader import StreamReader
from seriatim.adapters.rabbitmq.tray import Tray
from seriatim.adapters.rabbitmq.wire import Opener
from seriatim.core.broker import Batch, Notice
from seriatim.core.message import Position

_Reader = QueueReader | StreamReader


class RabbitConsumer:
    """Hands out the partitions of one topic that it was told to start."""

    def __init__(self, settings: Settings, topic: str, queue_of: Callable[[str], str]) -> None:
        """`queue_of` gives the name of a partition's queue; a stream's goes by the topic."""
        self._settings = settings
        self._topic = topic
        self._queue_of = queue_of
        self._inbox = Inbox()
        self._readers: dict[str, _Reader] = {}  # the lane's
        self._reading: set[_Reader] = set()  # the connection thread's
        self._link = Link(settings, self, f"rabbitmq-{topic}")

    def start(self, partition: str, position: Position | None) -> None:
        """Begin after `position`; of a partition that was started before, begin anew. Returns at once.

        Raises:
            BrokerError: this consumer was closed, or its process was forked.
            ConfigurationError: a name is longer than RabbitMQ takes.
        """
        self._link.start()
        self.stop(partition)
        tray = Tray(partition, position)
        reader = self._make_reader(tray, position)
        self._inbox.add(tray)
        self._readers[partition] = reader
        self._link.post(lambda: self._begin(reader))

    def poll(self, timeout_s: float, limit: int) -> Batch | Notice | None:
        """The next batch of at most `limit` messages, a notice, or None after `timeout_s` or a `wake`.

        Raises:
            BrokerError: the server is away; a later call goes on where this one stood.
        """
        self._link.check_usable()
        return self._inbox.poll(timeout_s, limit)

    def settle(self, batch: Batch, upto: int) -> None:
        """Acknowledge the first `upto`; what follows is handed out again first."""
        if not 0 <= upto <= len(batch.deliveries):
            raise ValueError(f"settled {upto} of a batch of {len(batch.deliveries)}")
        last = self._inbox.settle(batch, upto)
        if last is not None:
            handle: tuple[_Reader, Channel, int] = last.handle  # type: ignore[assignment] # made by that reader
            reader, channel, tag = handle
            self._link.post(lambda: reader.settle(channel, tag))

    def stop(self, partition: str) -> None:
        """Give the partition up: what was settled is acknowledged, what wasn't goes back in order."""
        self._stop([partition])

    def wake(self) -> None:
        """Make a waiting `poll`, or the next one, return. Thread-safe."""
        self._inbox.wake()

    def close(self) -> None:
        """Stop every partition and close the connection. Idempotent."""
        self._stop(list(self._readers))
        self._link.close()

    def _stop(self, partitions: list[str]) -> None:
        going = [self._readers.pop(partition) for partition in partitions if partition in self._readers]
        for partition in partitions:
            self._inbox.remove(partition)
        if going and not self._link.ask(lambda done: self._end(going, done), CLOSE_S):
            self._link.cut()  # no answer: the server gets everything back when it sees the socket gone

    def _make_reader(self, tray: Tray, position: Position | None) -> _Reader:
        streams = self._settings.queue_type == "stream"
        opener = Opener(self._topic, tray.partition, self._settings.foreign, streams=streams)
        if streams:
            stream = names.stream(self._topic, tray.partition)
            return StreamReader(self._link, self._inbox, tray, opener, stream, position)
        return QueueReader(self._link, self._inbox, tray, opener, self._queue_of(tray.partition))

    # -- on the connection's thread

    def connected(self, connection: Connection) -> None:
        """Open a channel for each partition."""
        self._inbox.back()
        for reader in self._reading:
            reader.line.connected(connection)

    def disconnected(self, error: Error) -> None:
        """The lane is to know."""
        self._inbox.away(error)

    def _begin(self, reader: _Reader) -> None:
        self._reading.add(reader)
        if self._link.connection is not None:
            reader.line.connected(self._link.connection)

    def _end(self, readers: list[_Reader], done: Callable[[], None]) -> None:
        left = len(readers)

        def one_less() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                done()

        for reader in readers:
            self._reading.discard(reader)
            reader.line.close(one_less)
