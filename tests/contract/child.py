"""A process of its own that sends and receives on command, to be killed or frozen at a known moment."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from seriatim.contract.remote import ChildFailed, Remote
from seriatim.core.message import Message, Position


@dataclass(frozen=True, slots=True)
class Taken:
    """What a child was handed: enough to compare and to go on after."""

    biz_key: str
    position: Position | None


class Child(Remote):
    """The parent's side of a process that works on the broker at `url`. Every answer is awaited `patience_s`."""

    def __init__(self, url: str, patience_s: float) -> None:
        super().__init__("seriatim.contract.actor", url, patience_s=patience_s)

    def declare(self, topic: str, partitions: Sequence[str], group: str) -> None:
        self.ask("declare", topic, partitions, group)

    def send(self, messages: Sequence[tuple[str, Message]]) -> float:
        """Send; the time (`time.time()`) when send had returned."""
        return cast("float", self.ask("send", messages))

    def send_and_die(self, messages: Sequence[tuple[str, Message]]) -> None:
        """Send, and be killed by SIGKILL as soon as send has returned."""
        self.tell("send_and_die", messages)
        if self._process.wait(self._patience_s) != -signal.SIGKILL:
            raise ChildFailed("it died before send returned")

    def start(self, topic: str, group: str, partition: str, position: Position | None) -> None:
        self.ask("start", topic, group, partition, position)

    def take(self, count: int) -> list[Taken]:
        """What the next batch holds, of at most `count`; it stays unsettled."""
        return cast("list[Taken]", self.ask("take", count))

    def settle(self, upto: int) -> None:
        """Settle the first `upto` of the last batch."""
        self.ask("settle", upto)
