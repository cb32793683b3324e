"""Disturbing a stream on purpose: copies, soon and late, and messages that overtake their predecessor.

Pure code over values: the same log, plan and seed give the same stream. It holds only what is pending: the overtaken
until their successor has come, and the copies until they are due.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from seriatim.cli.replaying.survey import Plan
from seriatim.core.message import Message

SOON = 100  #: messages within which a soon copy follows, and an overtaken message its overtaker
LATE = 10_000  #: messages after which a late copy follows, at the earliest
LATE_SPREAD = 1_000


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One sending. `index` is the message's place in the log; `copy` says that it was sent before."""

    index: int
    message: Message
    copy: bool = False
    early: bool = False


@dataclass(slots=True)
class Mixer:
    """Turns the messages of a log, in their order, into what is sent."""

    plan: Plan
    rng: random.Random
    _count: int = 0
    _due: list[tuple[int, int, Outgoing]] = field(default_factory=list)  # a heap: when (in sendings), tie-break, what
    _pushed: int = 0
    _overtaken: dict[str, Outgoing] = field(default_factory=dict)  # by key: waits for its successor to be sent
    _trailing: dict[str, Outgoing] = field(default_factory=dict)  # by key: its successor was sent

    def mix(self, messages: Iterable[Message]) -> Iterator[Outgoing]:
        """What is sent, in order."""
        for index, message in enumerate(messages):
            for outgoing in self._arrived(index, message):
                yield outgoing
                yield from self._what_is_due()
        for outgoing in [*self._trailing.values(), *self._overtaken.values()]:
            yield self._sent(outgoing)
        self._trailing.clear()
        while self._due:
            outgoing = heapq.heappop(self._due)[2]
            if outgoing.copy:
                yield outgoing

    def _arrived(self, index: int, message: Message) -> Iterator[Outgoing]:
        key = message.sharding_key
        if key in self._trailing:
            yield self._sent(self._trailing.pop(key))
        if index in self.plan.overtaken:
            self._overtaken[key] = Outgoing(index, message)
            return
        overtaken = self._overtaken.pop(key, None)
        yield self._sent(Outgoing(index, message, early=overtaken is not None))
        if overtaken is not None:
            self._trailing[key] = overtaken
            self._later(overtaken, self.rng.randint(0, SOON))

    def _what_is_due(self) -> Iterator[Outgoing]:
        while self._due and self._due[0][0] <= self._count:
            outgoing = heapq.heappop(self._due)[2]
            if outgoing.copy:
                self._count += 1
                yield outgoing
            elif self._trailing.get(outgoing.message.sharding_key) is outgoing:  # else it was sent already
                yield self._sent(self._trailing.pop(outgoing.message.sharding_key))

    def _sent(self, outgoing: Outgoing) -> Outgoing:
        """It is sent for the first time now; its copies follow."""
        self._count += 1
        copy = Outgoing(outgoing.index, outgoing.message, copy=True)
        if outgoing.index in self.plan.soon:
            self._later(copy, self.rng.randint(1, SOON))
        if outgoing.index in self.plan.late:
            self._later(copy, LATE + self.rng.randint(0, LATE_SPREAD))
        return outgoing

    def _later(self, outgoing: Outgoing, sendings: int) -> None:
        self._pushed += 1
        heapq.heappush(self._due, (self._count + sendings, self._pushed, outgoing))
