"""One topic's share of a lane: the partitions it holds, its consumer, and the work on both.

All of it runs on the lane's thread. `work` does one round: what is due, then a transaction over what has arrived.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from seriatim.core.broker import Batch, Capabilities, Consumer, Notice, NoticeKind
from seriatim.core.clock import StoreClock
from seriatim.core.due import DueWork
from seriatim.core.errors import PASSING, BrokerError, CommitUnknown, ConfigurationError, Contention
from seriatim.core.execution import PartitionsLost, StampMoved, TransactionBroken
from seriatim.core.holding import Holding
from seriatim.core.observer import Observer
from seriatim.core.passing import Executed, Part
from seriatim.core.room import Room
from seriatim.core.store.port import MICROSECOND, OwnerRow, Scope, Session
from seriatim.core.task import of_delivery
from seriatim.core.topic import Topic
from seriatim.core.transactor import Transactor

DECLARE_S = 5.0  #: how often a topic is declared again while a partition of it can't be read
STAMPS_S = 0.1  #: how often the change stamps are read


@dataclass(slots=True)
class TopicLane:
    """The partitions of one topic in one lane. `gone` is called when a partition isn't held here any more."""

    transactor: Transactor
    consumer: Consumer
    capabilities: Capabilities
    gone: Callable[[Scope, str], None]
    clock: StoreClock
    declare: Callable[[], None] = lambda: None  #: the topic and its group's part in it, at the broker
    holdings: dict[str, Holding] = field(default_factory=dict)
    _last_activity: float = field(default_factory=time.monotonic)
    _at_work: bool = False
    _worked_at: float = 0.0
    _in_hand: dict[str, Batch] = field(default_factory=dict)
    _at_end: set[str] = field(default_factory=set)
    _stamps_read: float = float("-inf")
    _declared: float = float("-inf")
    _parking: Room = field(default_factory=Room)

    @property
    def scope(self) -> Scope:
        """The group and the topic."""
        return self.transactor.scope

    @property
    def topic(self) -> Topic:
        """The topic."""
        return self.transactor.topic

    @property
    def session(self) -> Session:
        """The lane's session."""
        return self.transactor.session

    @property
    def observer(self) -> Observer:
        """Who is told."""
        return self.transactor.observer

    # -- partitions come and go

    def take(self, holding: Holding) -> None:
        """Begin with a partition whose lease was claimed."""
        holding.outlook = self.session.parking.outlook(self.scope, holding.partition)
        self.holdings[holding.partition] = holding
        if self._parking.full:
            self.session.leases.set_full(self.scope, [holding.partition], full=True)
        self._begin(holding)
        if holding.careful:
            self._tell(logging.WARNING, "careful take-over", holding.partition)

    def give(self, partition: str) -> None:
        """Give a partition up: stop, then let the lease go."""
        holding = self.holdings.pop(partition, None)
        if holding is None:
            return
        self._stop(partition)
        try:
            if not holding.lost:
                self.session.leases.release(self.scope, partition, holding.owner, holding.epoch)
        except PASSING as error:  # the lease runs out by itself
            self._tell(logging.WARNING, "lease not released", partition, error=str(error))
        finally:
            self.gone(self.scope, partition)

    def drop(self, partition: str, why: str) -> None:
        """A partition belongs to somebody else now: what is in hand of it is dropped, unsettled."""
        if self.holdings.pop(partition, None) is not None:
            self._stop(partition)
            self._tell(logging.WARNING, "partition lost", partition, why=why)
            self.gone(self.scope, partition)

    def _begin(self, holding: Holding) -> None:
        self.consumer.start(holding.partition, holding.position if self.capabilities.positions else None)

    def _begin_anew(self, holding: Holding) -> None:
        self._stop(holding.partition)
        self._begin(holding)

    def _stop(self, partition: str) -> None:
        self._in_hand.pop(partition, None)
        self._at_end.discard(partition)
        self.consumer.stop(partition)

    def close(self) -> None:
        """Give everything up."""
        try:
            for partition in list(self.holdings):
                self.give(partition)
        finally:
            self.consumer.close()

    # -- one round

    def work(self, timeout_s: float) -> bool:
        """One round; whether there was anything to do. Waits up to `timeout_s` for something to arrive.

        Raises:
            StoreUnavailable: nothing was lost; work again later.
        """
        for holding in [holding for holding in self.holdings.values() if holding.lost]:
            self.drop(holding.partition, "the lease was lost")
        if not self.holdings:
            return False
        self._read_stamps()
        self._mend()
        effects = self.transactor.effects
        with self._working():
            busy = self._run_due()
        batches = self._gather(0.0 if busy else self._until_due(timeout_s))
        if batches:
            with self._working():
                self._handle(batches)
        if batches or self.transactor.effects != effects:  # to fail once more isn't activity
            self._last_activity = time.monotonic()
        return busy or bool(batches)

    @property
    def troubled(self) -> bool:
        """Whether a partition can't be read at the broker."""
        return any(holding.trouble for holding in list(self.holdings.values()))

    @property
    def last_activity(self) -> float:
        """When something last arrived or took effect, on this process's own clock; now, while it is at work."""
        return time.monotonic() if self._at_work else self._last_activity

    @contextmanager
    def _working(self) -> Iterator[None]:
        self._at_work = True
        try:
            yield
        finally:
            self._worked_at = time.monotonic()
            self._at_work = False

    @property
    def seen_at_work(self) -> float:
        """When it was last at work, whatever came of it; now, while it is."""
        return time.monotonic() if self._at_work else self._worked_at

    def _until_due(self, timeout_s: float) -> float:
        """How long a round may wait: not past the moment when something comes due."""
        awake = [holding for holding in self.holdings.values() if not (holding.halted or holding.rests)]
        times = [time for one in awake for time in (one.outlook.due_at, one.outlook.aside_due_at) if time is not None]
        if times:
            timeout_s = min(timeout_s, (min(times) - self.clock.now()) / MICROSECOND)
        for holding in self.holdings.values():
            if holding.rests:
                timeout_s = min(timeout_s, holding.rests_until - time.monotonic())
        return max(0.0, timeout_s)

    def _read_stamps(self) -> None:
        """Learn of changes by others: verbs, the daemon, another owner."""
        if time.monotonic() - self._stamps_read < STAMPS_S:
            return
        self._stamps_read = time.monotonic()
        rows = self.session.leases.owners(self.scope)
        self._look_for_room(rows)
        for row in rows:
            holding = self.holdings.get(row.partition)
            if holding is None:
                continue
            if row.owner != holding.owner or row.epoch != holding.epoch:
                self.drop(row.partition, "another owner has it")
            elif row.effect != holding.effect:
                self._reread([row.partition])

    def _look_for_room(self, rows: Sequence[OwnerRow]) -> None:
        """Stop taking ordinary messages while too much is parked, and say so; go on when there is room again."""
        if self._parking.changed(rows, self.topic.policy):
            full = self._parking.full
            self.session.leases.set_full(self.scope, list(self.holdings), full=full)
            level, name = (logging.ERROR, "parking full") if full else (logging.WARNING, "parking has room again")
            self.transactor.tell(level, name, **self._parking.counted())

    def _reread(self, partitions: Sequence[str]) -> None:
        rows = {row.partition: row for row in self.session.leases.owners(self.scope)}
        for partition in partitions:
            holding = self.holdings.get(partition)
            if holding is None:
                continue
            was_paused = holding.paused
            holding.reread(rows[partition], self.session.parking.outlook(self.scope, partition))
            if was_paused and not holding.paused:  # an operator accepted the gap
                self._begin_anew(holding)

    # -- what has arrived

    def _gather(self, timeout_s: float) -> list[Batch]:
        """What has arrived in every partition that may be worked, within the batch size."""
        self._poll_once(0.0 if self._ready() else timeout_s)
        while sum(len(batch.deliveries) for batch in self._ready()) < self.transactor.limit and self._poll_once(0.0):
            pass
        return self._ready()

    def _ready(self) -> list[Batch]:
        if self._parking.full:
            return []
        return [batch for partition, batch in self._in_hand.items() if self._may_run(self.holdings[partition])]

    @staticmethod
    def _may_run(holding: Holding) -> bool:
        return not (holding.paused or holding.outlook.stopped or holding.rests)

    def _poll_once(self, timeout_s: float) -> bool:
        try:
            got = self.consumer.poll(timeout_s, self.transactor.limit)
        except BrokerError:
            self._at_end.clear()  # what comes meanwhile isn't seen
            raise
        if isinstance(got, Notice):
            self._note(got)
        elif got is None:
            self._read_on()
        elif got.partition in self.holdings:
            self._at_end.discard(got.partition)
            self._in_hand[got.partition] = got
            self._say_trouble(self.holdings[got.partition], None)
        return got is not None

    def _read_on(self) -> None:
        """Nothing has come: partitions whose end was reached are read through to a moment ago."""
        if self._at_end:
            then = self._seen_up_to()
            for partition in self._at_end & self.holdings.keys():
                self.holdings[partition].read_up_to(then)

    def _seen_up_to(self) -> int:
        """The time up to which everything is sure to have been seen, where there is nothing more to be read."""
        return self.clock.now() - int(self.capabilities.silence_s * MICROSECOND)

    def _note(self, notice: Notice) -> None:
        holding = self.holdings.get(notice.partition)
        if holding is None:
            return
        if notice.kind is NoticeKind.READ_THROUGH:
            holding.read_up_to(self._seen_up_to())
            self._at_end.add(notice.partition)
            self._say_trouble(holding, None)
            return
        level = logging.WARNING if notice.kind is NoticeKind.LOST else logging.ERROR
        self._tell(level, f"partition {notice.kind.value}", notice.partition, detail=notice.detail)
        if notice.kind is NoticeKind.TRIMMED:
            holding.paused = notice.detail
            self.session.leases.pause(self.scope, notice.partition, holding.owner, notice.detail)
        elif notice.kind is NoticeKind.LOST:
            self._in_hand.pop(notice.partition, None)
            self._at_end.discard(notice.partition)
            self._say_trouble(holding, notice.detail)

    def _say_trouble(self, holding: Holding, trouble: str | None) -> None:
        """Note what keeps a partition from being read, for `status` and health."""
        if trouble != holding.trouble:
            holding.trouble = trouble
            self.session.leases.set_trouble(self.scope, holding.partition, holding.owner, trouble)

    def _mend(self) -> None:
        """Where a partition can't be read, declare the topic again (its queue may have been deleted) and begin anew."""
        now = time.monotonic()
        if now - self._declared < DECLARE_S or not self.troubled:
            return
        self._declared = now
        try:
            self.declare()
        except (BrokerError, ConfigurationError) as error:
            self.transactor.tell(logging.WARNING, "topic not declared again", error=str(error))
            return
        for holding in [holding for holding in self.holdings.values() if holding.trouble]:
            self._begin_anew(holding)

    def _handle(self, batches: Sequence[Batch]) -> None:
        careful = [batch for batch in batches if self.holdings[batch.partition].careful]
        for batch in careful:
            self._carefully(batch)
        together = [batch for batch in batches if batch not in careful and batch.partition in self.holdings]
        if not together:
            return
        parts = [self._part(batch) for batch in sorted(together, key=lambda batch: batch.partition.encode())]
        if not self._attempt(parts) and len(parts) > 1:
            for part in parts:
                self._attempt([part])

    def _part(self, batch: Batch) -> Part:
        tasks = tuple(of_delivery(self.topic, delivery) for delivery in batch.deliveries)
        self.transactor.refuse(tasks[0])
        return Part(self.holdings[batch.partition], tasks, positioned=self.capabilities.positions)

    def _attempt(self, parts: Sequence[Part]) -> bool:
        """One transaction over ordinary batches; whether it is done with, one way or another."""
        parts = [part for part in parts if part.holding.partition in self._in_hand]
        try:
            done = self.transactor.execute(parts) if parts else Executed()
        except (PartitionsLost, StampMoved) as error:
            self._fenced(error)
            return False
        except Contention as error:
            self._contention(parts, error)
            return False
        except CommitUnknown as error:
            self._recover(parts, error)
        except TransactionBroken as error:
            self._broken(parts, error)
            self._put_back(parts)
        else:
            self._settle(parts, done)
        return True

    def _fenced(self, error: PartitionsLost | StampMoved) -> None:
        """A fence didn't hold: drop what is another's, read again what has changed."""
        if isinstance(error, StampMoved):
            self._reread(error.partitions)
            return
        for partition in error.partitions:
            self.drop(partition, "the fence refused it")

    def _broken(self, parts: Sequence[Part], error: TransactionBroken) -> None:
        """A handler ended its transaction. If nothing was kept, find out which, one by one; else a person decides."""
        going_on = [part for part in parts if not self._stopped_by(part, error)]
        if going_on:
            self.transactor.suspect(parts)

    def _stopped_by(self, part: Part, error: TransactionBroken) -> bool:
        """Stop the partition if a part of the broken transaction was kept."""
        holding = part.holding
        kept = self.transactor.committed_claims(part)
        if not kept:
            self._tell(logging.ERROR, "transaction ended by a handler", holding.partition, error=str(error))
            return False
        why = f"a handler committed part of its batch ({', '.join(kept[:3])}): {error}"
        self._tell(logging.CRITICAL, "partition stopped", holding.partition, why=why)
        holding.paused, holding.halted = why, True
        self.session.leases.pause(self.scope, holding.partition, holding.owner, why)
        return True

    def _put_back(self, parts: Sequence[Part]) -> None:
        """Hand batches back, to be taken again in smaller pieces."""
        for part in parts:
            if not part.holding.halted:
                self.consumer.settle(self._in_hand.pop(part.holding.partition), 0)

    def _settle(self, parts: Sequence[Part], done: Executed) -> None:
        for part in parts:
            partition = part.holding.partition
            last = part.tasks[done.handled[partition] - 1].delivery
            if last.appended_at is not None:
                part.holding.read_up_to(int(last.appended_at * MICROSECOND))
            self.consumer.settle(self._in_hand.pop(partition), done.handled[partition])

    def _contention(self, parts: Sequence[Part], error: Contention) -> None:
        """Several partitions are tried apart; one alone goes back, to be taken in smaller pieces after the others."""
        self.transactor.contended(parts)
        for part in parts:
            self._tell(logging.INFO, "contention", part.holding.partition, error=str(error))
        if len(parts) == 1:
            parts[0].holding.rest()
            self._put_back(parts)

    def _recover(self, parts: Sequence[Part], error: CommitUnknown) -> None:
        """A COMMIT's answer was lost. Wait for that transaction to end, and begin again where the store stands."""
        for part in parts:
            holding = part.holding
            with self.session.transaction():
                row = self.session.leases.hold_row(self.scope, holding.partition)
            self._tell(logging.WARNING, "commit unknown", holding.partition, error=str(error))
            if row.owner != holding.owner or row.epoch != holding.epoch:
                self.drop(holding.partition, "lost while a commit was unknown")
                continue
            holding.reread(row, self.session.parking.outlook(self.scope, holding.partition))
            if self.capabilities.positions:
                self._begin_anew(holding)

    # -- after an owner that never let go

    def _carefully(self, batch: Batch) -> None:
        """The first batch after such an owner: message by message, each counted before it runs."""
        holding = self.holdings[batch.partition]
        handled = 0
        alone: list[Part] = []
        try:
            for task in self._part(batch).tasks:
                alone = [Part(holding, (task,), positioned=self.capabilities.positions)]
                with self.transactor.counted(holding, task):
                    self.transactor.execute(alone, savepoints=True)
                handled += 1
                if holding.outlook.aside_due_at is not None:  # one that waited for this message goes before the next
                    DueWork(self.transactor).run(holding, self.clock.now())
            holding.careful = False
        except (PartitionsLost, StampMoved) as error:
            self._fenced(error)
        except TransactionBroken as error:
            self._broken(alone, error)
        except Contention as error:
            self._tell(logging.INFO, "contention", batch.partition, error=str(error))
            holding.rest()
        except CommitUnknown as error:
            self._recover([self._part(batch)], error)
            return
        finally:
            if self._in_hand.pop(batch.partition, None) is not None:
                self.consumer.settle(batch, handled)

    # -- what is due

    def _run_due(self) -> bool:
        """Heads and messages aside whose time has come; whether there were any.

        They get as long as a batch's handlers do: then it is the turn of what has arrived, and of the partitions that
        had to wait.
        """
        waiting = [
            holding
            for holding in self.holdings.values()
            if holding.outlook.anything_due and not (holding.halted or holding.rests)
        ]
        if not waiting:
            return False
        now, until = self.clock.now(), time.monotonic() + self.transactor.limits.batch_s
        work = DueWork(self.transactor)
        busy = False
        for holding in sorted(waiting, key=lambda holding: holding.due_turn):
            if busy and time.monotonic() >= until:
                break
            holding.due_turn = time.monotonic()
            try:
                busy |= work.run(holding, now, until)
            except (PartitionsLost, StampMoved) as error:
                self._fenced(error)
            except Contention as error:
                self._tell(logging.INFO, "contention", holding.partition, error=str(error))
                holding.rest()
            except CommitUnknown as error:
                self._recover([Part(holding, ())], error)
            except TransactionBroken as error:
                self._broken(error.parts, error)
        return busy

    def _tell(self, level: int, name: str, partition: str, **fields: object) -> None:
        self.transactor.tell(level, name, partition=partition, **fields)
