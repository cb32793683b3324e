"""A worker: one process's lanes, and the keeper that holds their leases.

The keeper is one thread on a connection of its own. It keeps this process a living member of each group, claims and
gives up partitions by the pure `plan`, and renews the leases that no transaction of ours has renewed lately. It tells a
lane at once when a lease is lost.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from seriatim.core.assignment import plan
from seriatim.core.broker import Broker
from seriatim.core.clock import StoreClock
from seriatim.core.errors import PASSING, StoreError
from seriatim.core.health import Health, Pulse, look_at, patience_s
from seriatim.core.holding import Holding
from seriatim.core.lane import Lane
from seriatim.core.observer import Observer
from seriatim.core.optional import OptionalParts
from seriatim.core.passing import Limits
from seriatim.core.response import MAX_RESPONSE
from seriatim.core.sizing import BatchSize
from seriatim.core.store.port import MICROSECOND, OwnerRow, Scope, Session, Store
from seriatim.core.topic import Topic
from seriatim.core.topic_lane import TopicLane
from seriatim.core.transactor import Transactor

PATIENT_TRIES = 2  #: tries that leave a locked row out, before one waits for it


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How a worker works. Times in seconds, sizes in messages and bytes.

    `lease_s` is how long a silent owner keeps its partitions; a stopped one is replaced within twice that.
    """

    lanes: int = 1
    lease_s: float = 10.0
    batch_size: int = 100
    batch_s: float = 0.05
    max_response: int = MAX_RESPONSE
    stop_s: float = 30.0


@dataclass(slots=True)
class _Assigned:
    lane: Lane
    holding: Holding


@dataclass(slots=True)
class Worker:
    """Consumes the topics of one group in this process."""

    group: str
    topics: Sequence[Topic]
    store: Store
    broker: Broker
    observer: Observer
    options: WorkerOptions = field(default_factory=WorkerOptions)
    parts: OptionalParts = field(default_factory=OptionalParts)
    member: str = field(default_factory=lambda: secrets.token_hex(8))
    _lanes: list[Lane] = field(default_factory=list)
    _assigned: dict[tuple[Scope, str], _Assigned] = field(default_factory=dict)
    _giving: set[tuple[Scope, str]] = field(default_factory=set)
    _mutex: threading.Lock = field(default_factory=threading.Lock)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _stop_wanted: bool = False
    _claimed: bool = False  #: whether this process has claimed its share of every topic
    _shared: bool = False  #: … and its lanes have taken it
    _failure: BaseException | None = None
    _keeper: threading.Thread | None = None
    _pulse: Pulse = field(default_factory=Pulse)  #: the keeper's
    _tries: dict[tuple[Scope, str], int] = field(default_factory=dict)

    @property
    def ttl(self) -> int:
        """The lease in microseconds."""
        return int(self.options.lease_s * MICROSECOND)

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stop_wanted

    # -- the main thread

    def run(self, until_idle_s: float | None = None, on_ready: Callable[[], None] = lambda: None) -> None:
        """Consume until `stop` is called, or until nothing has arrived for `until_idle_s` seconds.

        Raises:
            SeriatimError: a lane or the keeper failed in a way that waiting can't mend.
        """
        self._lanes = [Lane(f"lane-{number}", self._make_topics, self.observer) for number in range(self.options.lanes)]
        for lane in self._lanes:
            lane.start()
        keeper = self._keeper = threading.Thread(target=self._keep, name="keeper", daemon=True)
        keeper.start()
        on_ready()
        try:
            self._watch(keeper, until_idle_s)
        finally:
            self._shut_down(keeper)
        failures = [self._failure, *(lane.failure for lane in self._lanes)]
        for failure in failures:
            if failure is not None:
                raise failure

    def stop(self) -> None:
        """Finish what is in hand and end `run`. Thread-safe, and safe in a signal handler."""
        self._stop_wanted = True  # a plain attribute: a signal handler may interrupt whoever holds a lock

    def health(self) -> Health:
        """How it is, for whoever watches it. Thread-safe, and never waits for the store or the broker."""
        patience = patience_s(self.options.lease_s)
        ending = self.stopping or self._stopping.is_set()
        keeper = look_at("keeper", self._keeper, self._pulse, patience, may_end=ending and self._failure is None)
        lanes = tuple(lane.health(patience) for lane in list(self._lanes))
        return Health(keeper, lanes, has_share=self._shared, stopping=ending)

    def held(self) -> dict[str, int]:
        """How many partitions of each topic this process holds. Thread-safe."""
        with self._mutex:
            scopes = [scope for scope, _ in self._assigned]
        return {topic.name: scopes.count(Scope(self.group, topic.name)) for topic in self.topics}

    def _watch(self, keeper: threading.Thread, until_idle_s: float | None) -> None:
        began = time.monotonic()
        while not self._stop_wanted:
            time.sleep(0.05)
            if not self._shared:
                self._shared = self._claimed and not any(lane.has_orders for lane in self._lanes)
                began = time.monotonic()  # to wait for one's share isn't to be idle
            if not keeper.is_alive() or not all(lane.alive for lane in self._lanes):
                return
            last = max(began, *(lane.last_activity for lane in self._lanes))
            if until_idle_s is not None and time.monotonic() - last >= until_idle_s:
                return

    def _shut_down(self, keeper: threading.Thread) -> None:
        self._stopping.set()
        for lane in self._lanes:
            lane.stop()
        deadline = time.monotonic() + self.options.stop_s
        late = [lane.name for lane in self._lanes if not lane.join(max(0.0, deadline - time.monotonic()))]
        keeper.join(max(1.0, deadline - time.monotonic()))
        if late:
            self.observer.event(logging.ERROR, "lanes did not stop in time", lanes=late)

    def _make_topics(self) -> tuple[Session, list[TopicLane]]:
        """Called on a lane's thread: its session, and its share of every topic."""
        session = self.store.session()
        topics = [self._make_topic(topic, session) for topic in self.topics]
        return session, topics

    def _make_topic(self, topic: Topic, session: Session) -> TopicLane:
        options = self.options
        transactor = Transactor(
            scope=Scope(self.group, topic.name),
            topic=topic,
            session=session,
            limits=Limits(ttl=self.ttl, batch_s=options.batch_s * 4, max_response=options.max_response),
            size=BatchSize(options.batch_size, options.batch_s),
            observer=self.observer,
            parts=self.parts,
        )
        return TopicLane(
            transactor=transactor,
            consumer=self.broker.consumer(topic.name, self.group),
            capabilities=self.broker.capabilities,
            declare=partial(self.broker.declare, topic.name, topic.partitions, self.group),
            gone=self._gone,
            clock=StoreClock(session.now),
        )

    # -- the keeper

    def _keep(self) -> None:
        session = self.store.session()
        pause_s = self.options.lease_s / 3
        try:
            while not self._stopping.is_set():
                started = time.monotonic()
                settled = self._keep_once(session)
                self._claimed |= settled
                wait_s = pause_s if settled else min(0.1, pause_s)
                self._stopping.wait(max(0.0, wait_s - (time.monotonic() - started)))
            while any(not lane.join(pause_s / 4) for lane in self._lanes):
                self._renew_all(session)  # a handler in hand may take its time
            self._leave(session)
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self._failure = error
        finally:
            session.close()

    def _keep_once(self, session: Session) -> bool:
        """One round of the keeper; whether every topic has its share."""
        try:
            with self._pulse.round():
                settled = [self._keep_topic(session, Scope(self.group, topic.name)) for topic in self.topics]
            return all(settled)
        except PASSING as error:
            self.observer.event(logging.WARNING, "keeper paused", error=str(error))
            return False

    def _renew_all(self, session: Session) -> None:
        try:
            for topic in self.topics:
                self._renew(session, Scope(self.group, topic.name))
        except PASSING as error:
            self.observer.event(logging.WARNING, "keeper paused", error=str(error))

    def _keep_topic(self, session: Session, scope: Scope) -> bool:
        self._renew(session, scope)
        alive = session.leases.beat(scope, self.member, self.ttl)
        rows = session.leases.owners(scope)
        self._release_strays(session, scope, rows)
        wanted = plan(self.member, alive, rows, session.now())
        may_wait = True
        for partition in wanted.claims:
            may_wait = not self._claim(session, scope, partition, may_wait=may_wait) and may_wait
        self._give_surplus(scope, wanted.surplus)
        return not wanted.claims and not wanted.surplus

    def _renew(self, session: Session, scope: Scope) -> None:
        """Renew the leases that no transaction has renewed lately, and tell the lanes of those that are lost."""
        fresh = time.monotonic() - self.options.lease_s / 3
        with self._mutex:
            stale = [
                assigned.holding
                for (of, _), assigned in self._assigned.items()
                if of == scope and not assigned.holding.lost and assigned.holding.touched_at < fresh
            ]
        if not stale:
            return
        lost = session.leases.renew(scope, [(one.partition, one.owner, one.epoch) for one in stale], self.ttl)
        for holding in stale:
            if holding.partition in lost:
                holding.lost = True
            else:
                holding.touched_at = time.monotonic()
        for lane in self._lanes:
            if lost:
                lane.wake()

    def _claim(self, session: Session, scope: Scope, partition: str, *, may_wait: bool) -> bool:
        """Try to claim a partition; whether it waited for a locked row, which one claim of a round may."""
        tries = self._tries.get((scope, partition), 0)
        wait = may_wait and tries >= PATIENT_TRIES
        claimed = session.leases.claim(scope, partition, self.member, self.ttl, wait=wait)
        if claimed is None:
            self._tries[scope, partition] = tries + 1
            return wait
        self._tries.pop((scope, partition), None)
        holding = Holding.of(claimed)
        with self._mutex:
            lane = min(self._lanes, key=lambda lane: self._load(lane, scope))
            self._assigned[scope, partition] = _Assigned(lane, holding)
        self.observer.event(
            logging.INFO,
            "partition claimed",
            group=scope.group,
            topic=scope.topic,
            partition=partition,
            lane=lane.name,
            epoch=holding.epoch,
        )
        lane.take(scope, holding)
        return wait

    def _load(self, lane: Lane, scope: Scope) -> int:
        return sum(1 for (of, _), assigned in self._assigned.items() if assigned.lane is lane and of == scope)

    def _release_strays(self, session: Session, scope: Scope, rows: Sequence[OwnerRow]) -> None:
        """Let go of leases of ours that no lane has: a claim whose answer was lost."""
        with self._mutex:
            mine = {assigned.holding.owner for (of, _), assigned in self._assigned.items() if of == scope}
        for row in rows:
            if row.member == self.member and row.owner is not None and row.owner not in mine:
                session.leases.release(scope, row.partition, row.owner, row.epoch)

    def _release(self, session: Session, scope: Scope, partition: str, holding: Holding) -> None:
        try:
            session.leases.release(scope, partition, holding.owner, holding.epoch)
        except StoreError as error:  # the lease runs out by itself
            self.observer.event(logging.WARNING, "lease not released", partition=partition, error=str(error))

    def _give_surplus(self, scope: Scope, surplus: int) -> None:
        with self._mutex:
            mine = sorted(partition for of, partition in self._assigned if of == scope)
            going = sum(1 for of, _ in self._giving if of == scope)
            chosen = [one for one in reversed(mine) if (scope, one) not in self._giving][: max(0, surplus - going)]
            self._giving.update((scope, partition) for partition in chosen)
            lanes = [(self._assigned[scope, partition].lane, partition) for partition in chosen]
        for lane, partition in lanes:
            lane.give(scope, partition)

    def _gone(self, scope: Scope, partition: str) -> None:
        """Called by a lane: it doesn't hold the partition any more."""
        with self._mutex:
            self._assigned.pop((scope, partition), None)
            self._giving.discard((scope, partition))

    def _leave(self, session: Session) -> None:
        for (scope, partition), assigned in list(self._assigned.items()):  # claimed after its lane had ended
            if assigned.lane.failure is None:
                self._release(session, scope, partition, assigned.holding)
        for topic in self.topics:
            try:
                session.leases.leave(Scope(self.group, topic.name), self.member)
            except StoreError as error:  # the membership runs out by itself
                self.observer.event(logging.WARNING, "membership not ended", topic=topic.name, error=str(error))
