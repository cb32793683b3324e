"""Runs a topic's transactions in a lane, and remembers what the next one should know.

Batch size, whether savepoints pay, which message is suspected of ending its transaction or always meets contention:
all of it is memory of this lane alone, and none of it is needed for correctness.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from seriatim.core.decision import FREE, Outcome, Reason, Record, Status
from seriatim.core.errors import PASSING, DuplicateKey, SeriatimError
from seriatim.core.execution import Execution, PartitionsLost, StampMoved, new_record, visit
from seriatim.core.filtering.port import FINAL, FilterEntry
from seriatim.core.holding import Holding
from seriatim.core.observer import Observer
from seriatim.core.optional import OptionalParts, holding_locks
from seriatim.core.passing import Executed, Limits, Part
from seriatim.core.sizing import BatchSize
from seriatim.core.store.port import Fenced, FenceStep, Scope, Session
from seriatim.core.task import Task
from seriatim.core.topic import Topic

SAFE_BATCHES = 20  #: batches that use savepoints from the start after one in which several messages failed
CONTENTION_TRIES = 5
CONTENTION_S = 30.0


@dataclass(slots=True)
class Transactor:
    """The transactions of one topic in one lane."""

    scope: Scope
    topic: Topic
    session: Session
    limits: Limits
    size: BatchSize
    observer: Observer
    parts: OptionalParts = field(default_factory=OptionalParts)
    visiting: bool = False  #: the partitions are somebody else's, or nobody's: their rows are held instead of fenced
    effects: int = 0  #: messages that took effect
    one_by_one: int = 0  #: messages that are still taken alone, to find the one that ends its transaction
    _safe_batches: int = 0
    _contended: dict[str, tuple[str, int, float]] = field(default_factory=dict)
    _suspects: set[str] = field(default_factory=set)

    @property
    def limit(self) -> int:
        """Messages that the next batch may hold."""
        return 1 if self.one_by_one else self.size.limit

    def execute(self, parts: Sequence[Part], *, savepoints: bool = False, drain: bool = False) -> Executed:
        """One transaction over `parts`; a drain stops at its first failure.

        Raises:
            PartitionsLost, StampMoved, StoreUnavailable, Contention, CommitUnknown, TransactionBroken: see `Execution`.
        """
        started = time.perf_counter()
        known = self._known(parts)
        with holding_locks(self.parts, parts) as held:
            execution = Execution(
                session=self.session,
                scope=self.scope,
                topic=self.topic,
                limits=self.limits,
                parts=parts,
                savepoints=savepoints or self._safe_batches > 0,
                stop_at_failure=drain,
                before_commit=held.check,
                known=known,
                visiting=self.visiting,
            )
            try:
                done = execution.execute()
            except DuplicateKey:  # a biz_key waits under another partition, where nothing was remembered to wait
                execution.thorough = True
                done = execution.execute()
        self._remember(done)
        self._safe_batches = SAFE_BATCHES if done.needed_savepoints else max(0, self._safe_batches - 1)
        self.one_by_one = max(0, self.one_by_one - sum(done.handled.values()))
        self.size.succeeded(done.runs, done.handler_s)
        self.effects += sum(verdict.outcome is Outcome.APPLIED for verdict in done.verdicts)
        self.observer.committed(self.scope, done.verdicts, time.perf_counter() - started)
        for key in done.crowded:
            self.tell(logging.ERROR, "key over its cap", key=key, cap=self.topic.policy.max_behind)
        return done

    def _known(self, parts: Sequence[Part]) -> dict[str, Record]:
        """Records that the front filter knows to be final, of deliveries that say what those said."""
        if self.parts.filter is None:
            return {}
        arrivals = [task.arrival for part in parts for task in part.tasks if task.row is None]
        biz_keys = [arrival.biz_key for arrival in arrivals if arrival.biz_key is not None]
        found = self.parts.filter.known(self.scope.group, self.scope.topic, biz_keys)
        records = {
            biz_key: Record(Status.SUCCESS, entry.outcome, entry.type, entry.digest) for biz_key, entry in found.items()
        }
        differ = {one.biz_key for one in arrivals if one.biz_key in records and not records[one.biz_key].same(one)}
        known = {biz_key: record for biz_key, record in records.items() if biz_key not in differ}
        if known:
            self.tell(logging.DEBUG, "filter hits", count=len(known))
        return known

    def _remember(self, done: Executed) -> None:
        """After the commit: what is final now."""
        if self.parts.filter is None:
            return
        entries = {
            verdict.task.biz_key: FilterEntry(verdict.task.arrival.digest, verdict.task.arrival.type, verdict.outcome)
            for verdict in done.verdicts
            if verdict.outcome in FINAL
        }
        if entries:
            self.parts.filter.remember(self.scope.group, self.scope.topic, entries)

    def tell(self, level: int, name: str, **fields: object) -> None:
        """Tell the observer of something in this group and topic."""
        self.observer.event(level, name, group=self.scope.group, topic=self.scope.topic, **fields)

    def hold(self, holding: Holding) -> None:
        """The fence alone, inside a transaction that changes something of one partition; raises its stamp by 1.

        Raises:
            PartitionsLost, StampMoved: it didn't hold.
        """
        if self.visiting:
            visit(self.session, self.scope, holding, 1)
            return
        step = FenceStep(holding.partition, holding.owner, holding.epoch, holding.effect, advance=1)
        broken = self.session.leases.fence(self.scope, [step], self.limits.ttl)
        if Fenced.LOST in broken.values():
            raise PartitionsLost([holding.partition])
        if broken:
            raise StampMoved([holding.partition])

    # -- messages that kill their process

    @contextmanager
    def counted(self, holding: Holding, task: Task) -> Iterator[None]:
        """A run of a message that may kill its process, counted before it begins; see `mark`.

        An error that comes out of the block tells that the process lives: the mark is taken back.
        """
        counted = self.mark(holding, task)
        try:
            yield
        except SeriatimError:
            if counted:
                self._unmark(task)
            raise

    def _unmark(self, task: Task) -> None:
        try:
            with self.session.transaction():
                self.session.leases.hold_row(self.scope, task.partition)
                self.session.records.unmark_crash(self.scope, task.biz_key)
        except PASSING as error:  # it counts for one crash too many, until a run of the message comes back
            self.tell(logging.WARNING, "crash mark left", biz_key=task.biz_key, error=str(error))

    def mark(self, holding: Holding, task: Task) -> bool:
        """Commit a crash mark for a message that may kill its process; past the limit, keep it from running.

        Whether it was marked.

        Raises:
            PartitionsLost, StampMoved, StoreUnavailable, CommitUnknown: nothing was marked, or it isn't known.
        """
        if task.arrival.problem is not None or task.arrival.biz_key is None:
            return False
        with self.session.transaction():
            self.hold(holding)
            record = self.session.records.look_up(self.scope, [task.biz_key]).get(task.biz_key)
            standing = self.session.parking.keys(self.scope, [task.sharding_key]).get(task.sharding_key, FREE)
            crashes = 0 if record is None else record.crash_attempts
            unfinished = record is None or record.status is Status.PROCESSING
            will_run = task.row is not None or (unfinished and not standing.blocked)
            # each failure since then buys a parked one another run
            failures = 0 if task.row is None else max(standing.attempts, task.row.attempts)
            deadly = crashes >= self.topic.policy.max_crashes + failures
            if will_run and not deadly:
                self.session.records.mark_crash(self.scope, new_record(self.topic, task), self.session.now())
        holding.committed(1, None)
        if will_run and deadly:
            task.refuse(Reason.FAILED, f"it ended its process {crashes} times")
            task.deadly = True
        return will_run and not deadly

    @contextmanager
    def counted_if_deadly(self, holding: Holding, task: Task) -> Iterator[None]:
        """A run of a parked message, counted if it may be one that kills its process."""
        with self.counted(holding, task) if holding.careful or self._was_marked(task) else nullcontext():
            yield

    def _was_marked(self, task: Task) -> bool:
        biz_key = task.arrival.biz_key
        record = None if biz_key is None else self.session.records.look_up(self.scope, [biz_key]).get(biz_key)
        return record is not None and record.crash_attempts > 0

    # -- messages that end their transaction

    def suspect(self, parts: Sequence[Part]) -> None:
        """A handler of these ended the transaction: the one task, or one of several, to be found one by one."""
        tasks = [task for part in parts for task in part.tasks]
        if len(tasks) == 1:
            self._suspects.add(tasks[0].arrival.biz_key or "")
        self.one_by_one = max(self.one_by_one, len(tasks))

    def committed_claims(self, part: Part) -> list[str]:
        """Records at status 1 that aren't crash marks: claims that only the end of their transaction could commit."""
        wanted = [task.biz_key for task in part.tasks if task.arrival.biz_key is not None]
        found = self.session.records.look_up(self.scope, wanted)
        return sorted(k for k, one in found.items() if one.status is Status.PROCESSING and not one.crash_attempts)

    def refuse(self, task: Task) -> None:
        """Keep a message from running, this once, whose handler ended a transaction or always meets contention."""
        if task.arrival.biz_key in self._suspects:
            self._suspects.discard(task.biz_key)
            task.refuse(Reason.FAILED, "its handler ended the transaction of its batch; use tx.savepoint() instead")
        biz_key, tries, since = self._contended.get(task.partition, ("", 0, 0.0))
        if biz_key == task.arrival.biz_key and tries >= CONTENTION_TRIES and time.monotonic() - since >= CONTENTION_S:
            del self._contended[task.partition]
            task.refuse(Reason.CONTENTION, f"met contention {tries} times over {CONTENTION_S:.0f} s, each time alone")

    # -- messages that meet contention

    def contended(self, parts: Sequence[Part]) -> None:
        """A transaction met a deadlock or a lock time-out: smaller batches, and a message that was alone is counted."""
        self.size.contended()
        tasks = [task for part in parts for task in part.tasks]
        if len(tasks) != 1 or tasks[0].arrival.biz_key is None:
            return
        task = tasks[0]
        biz_key, tries, since = self._contended.get(task.partition, ("", 0, 0.0))
        if biz_key != task.biz_key:
            tries, since = 0, time.monotonic()
        self._contended[task.partition] = task.biz_key, tries + 1, since
