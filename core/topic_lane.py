"""One topic's share of a lane: the partitions it holds, its consumer, and the work on both.

All of it runs on the lane's thread. `work` does one round: what is due, then a transaction over what has arrived.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from seriatim.core.broker import Batch, Consumer, Notice, NoticeKind
from seriatim.core.clock import StoreClock
from seriatim.core.decision import FREE, Place, Reason, Status
from seriatim.core.errors import CommitUnknown, Contention, DuplicateKey, StoreUnavailable
from seriatim.core.execution import (
    Executed,
    Execution,
    Limits,
    Part,
    PartitionsLost,
    StampMoved,
    TransactionBroken,
    new_record,
)
from seriatim.core.holding import Holding
from seriatim.core.observer import Observer
from seriatim.core.sizing import BatchSize
from seriatim.core.store.port import MICROSECOND, FenceStep, Scope, Session, Writes
from seriatim.core.task import Task, of_delivery, of_row
from seriatim.core.topic import Topic

DUE_KEYS = 20  #: due keys that one round runs for a partition, before it takes ordinary batches again
SLICE = 50  #: followers that one transaction of a drain runs
ASIDE = 100  #: early messages of a key that one transaction tries
STAMPS_S = 0.1  #: how often the change stamps are read
SAFE_BATCHES = 20  #: batches that use savepoints from the start after one had to be run again
CONTENTION_TRIES = 5
CONTENTION_S = 30.0


@dataclass(slots=True)
class TopicLane:
    """The partitions of one topic in one lane. `gone` is called when a partition isn't held here any more."""

    scope: Scope
    topic: Topic
    session: Session
    consumer: Consumer
    positions: bool
    limits: Limits
    size: BatchSize
    observer: Observer
    gone: Callable[[Scope, str], None]
    clock: StoreClock
    holdings: dict[str, Holding] = field(default_factory=dict)
    last_activity: float = field(default_factory=time.monotonic)
    _in_hand: dict[str, Batch] = field(default_factory=dict)
    _stamps_read: float = float("-inf")
    _safe_batches: int = 0
    _contended: dict[str, tuple[str, int, float]] = field(default_factory=dict)
    _suspects: set[str] = field(default_factory=set)  #: messages whose handlers ended a transaction, alone
    _one_by_one: int = 0  #: messages that are still taken alone, to find the one that does so

    # -- partitions come and go

    def take(self, holding: Holding) -> None:
        """Begin with a partition whose lease was claimed."""
        holding.outlook = self.session.parking.outlook(self.scope, holding.partition)
        self.holdings[holding.partition] = holding
        self.consumer.start(holding.partition, holding.position if self.positions else None)
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
        except StoreUnavailable as error:  # the lease runs out by itself
            self._tell(logging.WARNING, "lease not released", partition, error=str(error))
        finally:
            self.gone(self.scope, partition)

    def drop(self, partition: str, why: str) -> None:
        """A partition belongs to somebody else now: what is in hand of it is dropped, unsettled."""
        if self.holdings.pop(partition, None) is not None:
            self._stop(partition)
            self._tell(logging.WARNING, "partition lost", partition, why=why)
            self.gone(self.scope, partition)

    def _stop(self, partition: str) -> None:
        self._in_hand.pop(partition, None)
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
        busy = self._run_due()
        batches = self._gather(0.0 if busy else timeout_s)
        if batches:
            self._handle(batches)
            busy = True
        if busy:
            self.last_activity = time.monotonic()
        return busy

    def _read_stamps(self) -> None:
        """Learn of changes by others: verbs, the daemon, another owner."""
        if time.monotonic() - self._stamps_read < STAMPS_S:
            return
        self._stamps_read = time.monotonic()
        for row in self.session.leases.owners(self.scope):
            holding = self.holdings.get(row.partition)
            if holding is None:
                continue
            if row.owner != holding.owner or row.epoch != holding.epoch:
                self.drop(row.partition, "another owner has it")
            elif row.effect != holding.effect:
                self._reread([row.partition])

    def _reread(self, partitions: Sequence[str]) -> None:
        rows = {row.partition: row for row in self.session.leases.owners(self.scope)}
        for partition in partitions:
            holding = self.holdings.get(partition)
            if holding is None:
                continue
            was_paused = holding.paused
            holding.reread(rows[partition], self.session.parking.outlook(self.scope, partition))
            if was_paused and not holding.paused:  # an operator accepted the gap
                self._stop(partition)
                self.consumer.start(partition, holding.position)

    # -- what has arrived

    def _gather(self, timeout_s: float) -> list[Batch]:
        """What has arrived in every partition that may be worked, within the batch size."""
        self._poll_once(0.0 if self._ready() else timeout_s)
        while sum(len(batch.deliveries) for batch in self._ready()) < self._limit and self._poll_once(0.0):
            pass
        return self._ready()

    @property
    def _limit(self) -> int:
        return 1 if self._one_by_one else self.size.limit

    def _ready(self) -> list[Batch]:
        return [
            batch
            for partition, batch in self._in_hand.items()
            if not (self.holdings[partition].paused or self.holdings[partition].outlook.stopped)
        ]

    def _poll_once(self, timeout_s: float) -> bool:
        got = self.consumer.poll(timeout_s, self._limit)
        if isinstance(got, Notice):
            self._note(got)
        elif got is not None and got.partition in self.holdings:
            self._in_hand[got.partition] = got
        return got is not None

    def _note(self, notice: Notice) -> None:
        holding = self.holdings.get(notice.partition)
        if holding is None:
            return
        if notice.kind is NoticeKind.READ_THROUGH:
            holding.read_up_to(self.clock.now())
            return
        level = logging.WARNING if notice.kind is NoticeKind.LOST else logging.ERROR
        self._tell(level, f"partition {notice.kind.value}", notice.partition, detail=notice.detail)
        if notice.kind is NoticeKind.TRIMMED:
            holding.paused = notice.detail
            self.session.leases.pause(self.scope, notice.partition, holding.owner, notice.detail)
        elif notice.kind is NoticeKind.LOST:
            self._in_hand.pop(notice.partition, None)

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
        self._refuse_suspect(tasks[0])
        if self._contention_is_its_own(batch.partition, tasks[0]):
            tasks[0].refuse(Reason.CONTENTION, f"met contention {CONTENTION_TRIES} times and more, each time alone")
        return Part(self.holdings[batch.partition], tasks, positioned=self.positions)

    def _attempt(self, parts: Sequence[Part]) -> bool:
        """One transaction over ordinary batches; whether it is done with, one way or another."""
        parts = [part for part in parts if part.holding.partition in self._in_hand]
        try:
            done = self._execute(parts, savepoints=self._safe_batches > 0) if parts else Executed()
        except (PartitionsLost, StampMoved) as error:
            self._fenced(error)
            return False
        except Contention as error:
            self._contention(parts, error)
        except CommitUnknown as error:
            self._recover(parts, error)
        except TransactionBroken as error:
            self._broken(parts, error)
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

    def _broken(self, parts: Sequence[Part], error: TransactionBroken, *, settle: bool = True) -> None:
        """A handler ended its transaction. If nothing was kept, find out which, one by one; else a person decides."""
        alone = sum(len(part.tasks) for part in parts) == 1
        for part in parts:
            if self._stopped_by(part, error):
                continue
            if alone:
                self._suspects.add(part.tasks[0].arrival.biz_key or "")
            if settle and part.tasks[0].row is None:
                self.consumer.settle(self._in_hand.pop(part.holding.partition), 0)
            self._one_by_one = max(self._one_by_one, len(part.tasks))

    def _stopped_by(self, part: Part, error: TransactionBroken) -> bool:
        """Stop the partition if a part of the broken transaction was kept."""
        partition = part.holding.partition
        kept = self._committed_claims(part)
        if not kept:
            self._tell(logging.ERROR, "transaction ended by a handler", partition, error=str(error))
            return False
        why = f"a handler committed part of its batch ({', '.join(kept[:3])}): {error}"
        self._tell(logging.CRITICAL, "partition stopped", partition, why=why)
        part.holding.paused = why
        self.session.leases.pause(self.scope, partition, part.holding.owner, why)
        return True

    def _committed_claims(self, part: Part) -> list[str]:
        """Records at status 1 that aren't crash marks: claims that only the end of their transaction could commit."""
        wanted = [task.biz_key for task in part.tasks if task.arrival.biz_key is not None]
        found = self.session.records.look_up(self.scope, wanted)
        return sorted(k for k, one in found.items() if one.status is Status.PROCESSING and not one.crash_attempts)

    def _refuse_suspect(self, task: Task) -> None:
        """A message whose handler ended a transaction fails this time, without being run."""
        if task.arrival.biz_key in self._suspects:
            self._suspects.discard(task.biz_key)
            task.refuse(Reason.FAILED, "its handler ended the transaction of its batch; use tx.savepoint() instead")

    def _execute(self, parts: Sequence[Part], *, savepoints: bool, drain: bool = False) -> Executed:
        started = time.perf_counter()
        execution = Execution(
            session=self.session,
            scope=self.scope,
            topic=self.topic,
            limits=self.limits,
            parts=parts,
            savepoints=savepoints,
            stop_at_failure=drain,
        )
        try:
            done = execution.execute()
        except DuplicateKey:  # a biz_key waits under another partition, where nothing was remembered to wait
            execution.thorough = True
            done = execution.execute()
        self._safe_batches = SAFE_BATCHES if done.reran else max(0, self._safe_batches - 1)
        self.size.succeeded(done.runs, done.handler_s)
        self.observer.committed(self.scope, done.verdicts, time.perf_counter() - started)
        return done

    def _settle(self, parts: Sequence[Part], done: Executed) -> None:
        self._one_by_one = max(0, self._one_by_one - sum(done.handled.values()))
        for part in parts:
            partition = part.holding.partition
            self._contended.pop(partition, None)
            last = part.tasks[done.handled[partition] - 1].delivery
            if last.appended_at is not None:
                part.holding.read_up_to(int(last.appended_at * MICROSECOND))
            self.consumer.settle(self._in_hand.pop(partition), done.handled[partition])

    def _contention(self, parts: Sequence[Part], error: Contention) -> None:
        """Put the batch back, to be taken in smaller pieces; a message that always meets it alone is parked."""
        self.size.contended()
        for part in parts:
            partition = part.holding.partition
            self.consumer.settle(self._in_hand.pop(partition), 0)
            self._tell(logging.INFO, "contention", partition, error=str(error))
            if len(parts) == len(part.tasks) == 1 and part.tasks[0].arrival.biz_key is not None:
                self._count_contention(partition, part.tasks[0])

    def _count_contention(self, partition: str, task: Task) -> None:
        biz_key, tries, since = self._contended.get(partition, ("", 0, 0.0))
        if biz_key != task.biz_key:
            biz_key, tries, since = task.biz_key, 0, time.monotonic()
        self._contended[partition] = (biz_key, tries + 1, since)

    def _contention_is_its_own(self, partition: str, task: Task) -> bool:
        biz_key, tries, since = self._contended.get(partition, ("", 0, 0.0))
        return (
            biz_key == task.arrival.biz_key and tries >= CONTENTION_TRIES and time.monotonic() - since >= CONTENTION_S
        )

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
            if self.positions:
                self._stop(holding.partition)
                self.consumer.start(holding.partition, holding.position)

    # -- after an owner that never let go

    def _carefully(self, batch: Batch) -> None:
        """The first batch after such an owner: message by message, each counted before it runs."""
        holding = self.holdings[batch.partition]
        handled = 0
        alone: list[Part] = []
        try:
            for task in self._part(batch).tasks:
                self._mark(holding, task)
                alone = [Part(holding, (task,), positioned=self.positions)]
                self._execute(alone, savepoints=True)
                handled += 1
            holding.careful = False
        except (PartitionsLost, StampMoved) as error:
            self._fenced(error)
        except TransactionBroken as error:
            self._broken(alone, error, settle=False)
        except Contention as error:
            self._tell(logging.INFO, "contention", batch.partition, error=str(error))
        except CommitUnknown as error:
            self._recover([self._part(batch)], error)
            return
        finally:
            if self._in_hand.pop(batch.partition, None) is not None:
                self.consumer.settle(batch, handled)

    def _mark(self, holding: Holding, task: Task) -> None:
        """Commit a crash mark for a message that may kill its process; past the limit, keep it from running."""
        if task.arrival.problem is not None or task.arrival.biz_key is None:
            return
        new = new_record(self.topic, task)
        crashes = failures = 0
        with self.session.transaction():
            self._hold(holding)
            record = self.session.records.look_up(self.scope, [task.biz_key]).get(task.biz_key)
            standing = self.session.parking.keys(self.scope, [task.sharding_key]).get(task.sharding_key, FREE)
            unfinished = record is None or record.status is Status.PROCESSING
            if task.row is not None or (unfinished and not standing.blocked):
                crashes = self.session.records.mark_crash(self.scope, new, self.session.now())
            if task.row is not None:  # each failure since then buys a head one more run
                failures = standing.attempts
        holding.committed(1, None)
        if crashes > self.topic.policy.max_crashes + failures:
            task.refuse(Reason.FAILED, f"it ended its process {crashes - 1} times")

    def _hold(self, holding: Holding) -> None:
        step = FenceStep(holding.partition, holding.owner, holding.epoch, holding.effect, advance=1)
        broken = self.session.leases.fence(self.scope, [step], self.limits.ttl)
        if broken:
            raise (
                PartitionsLost([holding.partition])
                if "lost" in {why.value for why in broken.values()}
                else (StampMoved([holding.partition]))
            )

    # -- what is due

    def _run_due(self) -> bool:
        """Heads and early messages whose time has come; whether there were any."""
        waiting = [
            h for h in self.holdings.values() if h.outlook.due_at is not None or h.outlook.aside_due_at is not None
        ]
        if not waiting:
            return False
        now = self.clock.now()
        busy = False
        for holding in waiting:
            try:
                busy |= not holding.paused and self._run_due_of(holding, now)
            except (PartitionsLost, StampMoved) as error:
                self._fenced(error)
            except Contention as error:
                self._tell(logging.INFO, "contention", holding.partition, error=str(error))
            except CommitUnknown as error:
                self._recover([Part(holding, ())], error)
        return busy

    def _run_due_of(self, holding: Holding, now: int) -> bool:
        busy = False
        if holding.outlook.due_at is not None and holding.outlook.due_at <= now:
            for key in self.session.parking.due_keys(self.scope, holding.partition, now, DUE_KEYS):
                self._drain(holding, key)
                busy = True
        if holding.outlook.aside_due_at is not None and holding.outlook.aside_due_at <= now:
            for key in self.session.parking.aside_due_keys(self.scope, holding.partition, now, DUE_KEYS):
                self._try_aside(holding, key, now)
                busy = True
        return busy

    def _drain(self, holding: Holding, key: str) -> None:
        """One slice of a key's queue: the head alone, or some followers after it has gone."""
        rows = self.session.parking.rows(self.scope, key, Place.QUEUE, SLICE)
        if not rows:
            self._mend(holding, key)
            return
        alone = rows[0].reason is not Reason.BEHIND or holding.careful or self._one_by_one > 0
        tasks = [of_row(self.topic, row) for row in (rows[:1] if alone else rows)]
        if alone:
            self._mark_if_deadly(holding, tasks[0])
        self._refuse_suspect(tasks[0])
        self._execute_rows(Part(holding, tuple(tasks)), drain=True)

    def _execute_rows(self, part: Part, *, drain: bool) -> None:
        try:
            self._execute([part], savepoints=True, drain=drain)
        except TransactionBroken as error:
            self._broken([part], error)
        else:
            self._one_by_one = max(0, self._one_by_one - 1)

    def _mark_if_deadly(self, holding: Holding, task: Task) -> None:
        if task.arrival.biz_key is None:
            return
        record = self.session.records.look_up(self.scope, [task.biz_key]).get(task.biz_key)
        if holding.careful or (record is not None and record.crash_attempts):
            self._mark(holding, task)

    def _try_aside(self, holding: Holding, key: str, now: int) -> None:
        rows = self.session.parking.rows(self.scope, key, Place.ASIDE, ASIDE + 1)
        chosen = [row for row in rows[:ASIDE] if row.reason is Reason.EARLY or (row.next_attempt_at or 0) <= now]
        if not rows:
            self._mend(holding, key)
            return
        rest = [row.next_attempt_at for row in rows[:ASIDE] if row not in chosen and row.next_attempt_at is not None]
        if len(rows) > ASIDE:
            rest.append(now + MICROSECOND)
        tasks = tuple(of_row(self.topic, row) for row in chosen)
        part = Part(holding, tasks, aside=True, aside_rest=min(rest, default=None))
        if tasks:
            self._refuse_suspect(tasks[0])
            self._execute_rows(part, drain=False)
        else:
            self._mend(holding, key, aside_due_at=part.aside_rest)

    def _mend(self, holding: Holding, key: str, aside_due_at: int | None = None) -> None:
        """A key says that it has something due and has nothing: count its rows and let the key say so."""
        with self.session.transaction():
            self._hold(holding)
            standing = self.session.parking.keys(self.scope, [key]).get(key)
            if standing is not None:
                queue = self.session.parking.count(self.scope, key, Place.QUEUE)
                aside = self.session.parking.count(self.scope, key, Place.ASIDE)
                due_at = standing.due_at if queue else None
                mended = replace(standing, depth=queue, aside=aside, due_at=due_at, aside_due_at=aside_due_at)
                self.session.write(self.scope, Writes(keys={key: (holding.partition, mended)}), self.session.now())
            outlook = self.session.parking.outlook(self.scope, holding.partition)
        holding.committed(1, outlook)
        self._tell(logging.WARNING, "parked key mended", holding.partition, key=key)

    def _tell(self, level: int, name: str, partition: str, **fields: object) -> None:
        self.observer.event(level, name, group=self.scope.group, topic=self.scope.topic, partition=partition, **fields)
