"""The program that a `Child` runs: one method per verb."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

from seriatim.contract.child import Taken
from seriatim.contract.reading import Reader
from seriatim.contract.remote import serve
from seriatim.core.brokers import open_broker
from seriatim.core.envelope import BIZ_KEY
from seriatim.core.message import Message, Position


class _Actor:
    """One producer and, once started, one consumer."""

    def __init__(self, url: str) -> None:
        self._broker = open_broker(url)
        self._producer = self._broker.producer()
        self._reader: Reader | None = None

    def declare(self, topic: str, partitions: Sequence[str], group: str) -> None:
        self._broker.declare(topic, partitions, group)

    def send(self, messages: Sequence[tuple[str, Message]]) -> float:
        self._producer.send(messages)
        return time.time()

    def send_and_die(self, messages: Sequence[tuple[str, Message]]) -> None:
        self._producer.send(messages)
        os.kill(os.getpid(), signal.SIGKILL)

    def start(self, topic: str, group: str, partition: str, position: Position | None) -> None:
        self._reader = Reader(self._broker.consumer(topic, group), patience_s=60.0)
        self._reader.consumer.start(partition, position)

    def take(self, count: int) -> list[Taken]:
        assert self._reader is not None
        batch = self._reader.batch(count)
        return [Taken(delivery.raw[BIZ_KEY], delivery.position) for delivery in batch.deliveries]

    def settle(self, upto: int) -> None:
        assert self._reader is not None
        self._reader.settle(upto)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), _Actor(sys.argv[2]))
