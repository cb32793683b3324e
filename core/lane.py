"""A lane: one thread of execution with its own database connection.

A partition is in one lane at a time. What others want of a lane they put into its inbox; the lane looks there between
rounds. When the store or the broker is away it pauses with back-off, for as long as it takes, and loses nothing.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from seriatim.core.backoff import Backoff
from seriatim.core.errors import PASSING, BrokerError, Contention, FenceLost
from seriatim.core.health import Condition, Pulse, ThreadHealth, look_at
from seriatim.core.holding import Holding
from seriatim.core.observer import Observer
from seriatim.core.store.port import Scope, Session
from seriatim.core.topic_lane import TopicLane

IDLE_S = 0.5  #: how long a round waits for something to arrive; `wake` ends it early
_TROUBLE = Backoff(base_s=0.1, cap_s=5.0)


class Lane:
    """Runs `TopicLane`s, one after another, on a thread of its own."""

    def __init__(self, name: str, make: Callable[[], tuple[Session, Sequence[TopicLane]]], observer: Observer) -> None:
        self.name = name
        self.failure: BaseException | None = None
        self._make = make
        self._observer = observer
        self._inbox: deque[Callable[[], None]] = deque()
        self._stopping = threading.Event()
        self._topics: dict[Scope, TopicLane] = {}
        self._pulse = Pulse()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    # -- called by others

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def take(self, scope: Scope, holding: Holding) -> None:
        """Hand a claimed partition to the lane."""
        self._post(lambda: self._topics[scope].take(holding))

    def give(self, scope: Scope, partition: str) -> None:
        """Ask the lane to give a partition up."""
        self._post(lambda: self._topics[scope].give(partition))

    def wake(self) -> None:
        """Make the lane look at its inbox soon."""
        for topic in list(self._topics.values()):
            topic.consumer.wake()

    def stop(self) -> None:
        """Finish the transaction in hand, give every partition up, and end."""
        self._stopping.set()
        self.wake()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; whether it came."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    @property
    def last_activity(self) -> float:
        """When it last had anything to do, on this process's own clock; 0 before it began."""
        return max((topic.last_activity for topic in list(self._topics.values())), default=0.0)

    @property
    def has_orders(self) -> bool:
        """Whether something that was asked of it isn't done yet."""
        return bool(self._inbox)

    def health(self, patience_s: float) -> ThreadHealth:
        """How it is; a round that takes longer than `patience_s` outside any handler hangs."""
        may_end = self._stopping.is_set() and self.failure is None
        at_work = max((topic.seen_at_work for topic in list(self._topics.values())), default=0.0)
        found = look_at(self.name, self._thread, self._pulse, patience_s, at_work=at_work, may_end=may_end)
        if found.condition is Condition.READY and any(topic.troubled for topic in list(self._topics.values())):
            return replace(found, condition=Condition.PARTITION_AWAY)
        return found

    def _post(self, command: Callable[[], None]) -> None:
        self._inbox.append(command)
        self.wake()

    # -- on its thread

    def _run(self) -> None:
        try:
            session, topics = self._make()
        except BaseException as error:  # noqa: BLE001 - the worker raises it
            self.failure = error
            return
        self._topics = {topic.scope: topic for topic in topics}
        try:
            self._rounds()
        except BaseException as error:  # noqa: BLE001 - a bug: the worker stops everything and raises it
            self.failure = error
            self._observer.event(logging.CRITICAL, "lane failed", lane=self.name, error=repr(error))
        finally:
            self._close(session)

    def _rounds(self) -> None:
        troubles = 0
        while not self._stopping.is_set():
            try:
                with self._pulse.round():
                    self._obey()
                    self._round()
                troubles = 0
            except (*PASSING, BrokerError, FenceLost) as error:
                troubles += 1
                wait_s = _TROUBLE.delay(troubles)
                self._observer.event(
                    logging.WARNING,
                    "lane paused",
                    lane=self.name,
                    cause=_cause(error),
                    error=str(error),
                    wait_s=round(wait_s, 3),
                )
                self._stopping.wait(wait_s)

    def _obey(self) -> None:
        while self._inbox:
            self._inbox[0]()
            self._inbox.popleft()  # not before it is done: what comes after it must not overtake it

    def _round(self) -> None:
        topics = [topic for topic in self._topics.values() if topic.holdings]
        if not topics:
            self._stopping.wait(0.01)
        wait_s = IDLE_S if len(topics) == 1 else 0.005
        for topic in topics:
            topic.work(wait_s)

    def _close(self, session: Session) -> None:
        for topic in self._topics.values():
            try:
                if self.failure is None:
                    topic.close()
                else:
                    topic.consumer.close()  # nothing is released: the next owner shall be careful
            except (*PASSING, BrokerError) as error:
                self._observer.event(logging.WARNING, "lane closed badly", lane=self.name, error=str(error))
        session.close()


def _cause(error: Exception) -> str:
    """Whose trouble it is, in a word."""
    if isinstance(error, BrokerError):
        return "broker"
    if isinstance(error, Contention):
        return "contention"
    return "fence" if isinstance(error, FenceLost) else "store"
