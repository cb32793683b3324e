"""One transaction of a lane: fence, look up, claim, run, finish, commit.

`execute` is the heart. It is given the partitions and their tasks, and everything it decides comes from `View`, which
is pure. The first pass is optimistic and sets one savepoint for all; when a message fails after it may have written
something, the transaction goes back to that savepoint and begins again, knowing how that message ended. When another
one fails then, the third pass gives each message a savepoint of its own. The innocent run again, in a pass that counts
after one that was undone; each call of a failing message counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from seriatim.core.clock import StoreClock
from seriatim.core.decision import Action, Failed, Record
from seriatim.core.errors import Contention, DuplicateKey, FenceLost, StoreError, StoreUnavailable
from seriatim.core.guard import Guard, MoveRefused
from seriatim.core.holding import Holding
from seriatim.core.message import Position
from seriatim.core.passing import MAX_INLINE, Again, Executed, Limits, Part, Pass
from seriatim.core.store.port import MICROSECOND, Fenced, FenceStep, NewRecord, Scope, Session
from seriatim.core.task import Task
from seriatim.core.topic import Topic
from seriatim.core.transaction import HandlerTransaction
from seriatim.core.turn import Turn
from seriatim.core.view import TooEarly, View

OPTIMISTIC_PASSES = 2
_CLAIMED = "seriatim_claimed"


class StampMoved(StoreError):
    """Someone changed a partition's parked keys since they were last read: read them again, then try again."""

    def __init__(self, partitions: Sequence[str]) -> None:
        super().__init__(f"what is remembered of {', '.join(partitions)} is out of date")
        self.partitions = tuple(partitions)


class TransactionBroken(StoreError):
    """A handler ended the transaction that it was given, past every guard."""

    def __init__(self, message: str, parts: Sequence[Part]) -> None:
        super().__init__(message)
        self.parts = tuple(parts)


class PartitionsLost(FenceLost):
    """These partitions belong to another owner now."""

    def __init__(self, partitions: Sequence[str]) -> None:
        super().__init__(f"{', '.join(partitions)} belong to another owner")
        self.partitions = tuple(partitions)


@dataclass(slots=True)
class Execution:
    """One transaction over some partitions of one topic."""

    session: Session
    scope: Scope
    topic: Topic
    limits: Limits
    parts: Sequence[Part]
    savepoints: bool = False
    thorough: bool = False  #: look parked keys up even where a partition is remembered to have none
    stop_at_failure: bool = False  #: a drain stops at its first failure: the rest stay behind it
    before_commit: Callable[[Session], None] = lambda _: None  #: the last word: what it raises forbids the commit
    known: Mapping[str, Record] = field(default_factory=dict)  #: final records that needn't be looked up
    visiting: bool = False  #: not by the partitions' owner: their rows are held, whoever owns them
    _unsuccessful: dict[str, tuple[Failed | TooEarly, int]] = field(default_factory=dict)
    _effects: dict[str, int] = field(default_factory=dict)

    def execute(self) -> Executed:
        """Run the transaction.

        Raises:
            PartitionsLost, StampMoved: a fence didn't hold; nothing was done.
            StoreUnavailable, Contention: rolled back, nobody's fault.
            CommitUnknown: it may or may not have happened.
        """
        done = Executed()
        began = time.monotonic()
        with self.session.transaction():
            self._fence()
            clock = StoreClock(self.session.now, max_age_s=math.inf)  # asked once, then carried on: a round trip less
            view = self._look_up(clock.now())
            self._claim(view)
            self.session.savepoint(_CLAIMED)
            with self._unbroken():
                view = self._run(view, done)
                self.session.release(_CLAIMED)
            self._cut(view, done)
            self.session.write(self.scope, view.writes, clock.now())
            if time.monotonic() - began > self.limits.ttl / MICROSECOND / 3:
                self._prolong(view.now)
            outlooks = {
                part.holding.partition: self.session.parking.outlook(self.scope, part.holding.partition)
                for part in self.parts
                if view.writes.keys
            }
            self.before_commit(self.session)
        for part in self.parts:
            part.holding.committed(self._advance(part), outlooks.get(part.holding.partition))
            if part.positioned:
                part.holding.position = self._position(part, done.handled[part.holding.partition])
        done.verdicts, done.crowded = view.verdicts, view.crowded
        return done

    @contextmanager
    def _unbroken(self) -> Iterator[None]:
        """While handlers run: an error of our own statements means that one of them ended the transaction."""
        try:
            yield
        except (StoreUnavailable, Contention):
            raise
        except StoreError as error:
            raise TransactionBroken(str(error), self.parts) from error

    # -- the steps

    def _advance(self, part: Part) -> int:
        return 2 * len(part.tasks) + MAX_INLINE

    def _fence(self) -> None:
        if self.visiting:
            self._visit()
        else:
            self._fence_ours()
        self._effects = {part.holding.partition: part.holding.effect for part in self.parts}

    def _visit(self) -> None:
        """Hold the rows; what was read of a partition before is true as long as its stamp is the one that was seen."""
        for part in sorted(self.parts, key=lambda part: part.holding.partition.encode()):
            visit(self.session, self.scope, part.holding, self._advance(part))

    def _fence_ours(self) -> None:
        steps = [
            FenceStep(
                partition=part.holding.partition,
                owner=part.holding.owner,
                epoch=part.holding.epoch,
                effect=part.holding.effect,
                advance=self._advance(part),
                position=self._position(part, len(part.tasks)) if part.positioned else None,
                read_through=part.holding.read_through,
            )
            for part in self.parts
        ]
        broken = self.session.leases.fence(self.scope, steps, self.limits.ttl)
        if lost := [partition for partition, why in broken.items() if why is Fenced.LOST]:
            raise PartitionsLost(lost)
        if broken:
            raise StampMoved(list(broken))

    def _prolong(self, since: int) -> None:
        """The transaction took long: its leases begin anew, so that nobody takes a slow owner for a dead one."""
        partitions = [] if self.visiting else [part.holding.partition for part in self.parts]
        self.session.leases.prolong(self.scope, partitions, self.limits.ttl, since)

    def _tasks(self) -> Iterator[Task]:
        for part in self.parts:
            yield from part.tasks

    def _look_up(self, now: int) -> View:
        biz_keys = sorted({task.arrival.biz_key for task in self._tasks() if task.arrival.biz_key is not None})
        view = View(policy=self.topic.policy, now=now, keep_body=self.topic.keep_body)
        unknown = [biz_key for biz_key in biz_keys if biz_key not in self.known]
        view.records = {**self.known, **self.session.records.look_up(self.scope, unknown)}
        if not self.visiting:  # only its lane gives an early message up
            view.read_through = {part.holding.partition: part.holding.read_through or 0 for part in self.parts}
        if self.thorough or any(part.holding.outlook.any_keys or part.aside for part in self.parts):
            keys = {task.arrival.sharding_key for task in self._tasks() if task.arrival.sharding_key is not None}
            view.keys = self.session.parking.keys(self.scope, keys)
            view.waiting = self.session.parking.waiting(self.scope, biz_keys)
        for part in self.parts:
            if part.aside:
                key = part.tasks[0].sharding_key
                view.keys[key] = replace(view.standing(key), aside_due_at=part.aside_rest)
        for task in self._tasks():
            if view.judge(task) is Action.CONFLICT:
                view.conflicts[task.biz_key] = self.session.parking.conflicts(self.scope, task.biz_key)
        return view

    def _claim(self, view: View) -> None:
        """Insert records of status 1 for what will run, before it runs; a crash mark is such a record already."""
        new: dict[str, NewRecord] = {}
        for task in self._tasks():
            if task.arrival.biz_key is None or task.biz_key in view.records or task.biz_key in new:
                continue
            if view.judge(task) in (Action.RUN, Action.PARK):
                new[task.biz_key] = new_record(self.topic, task)
        try:
            self.session.records.claim(self.scope, list(new.values()), view.now)
        except DuplicateKey as error:  # another partition's owner was quicker: look again
            raise Contention(f"a biz_key was claimed by another partition's owner: {error}") from error
        view.claimed = set(new)

    def _run(self, view: View, done: Executed) -> View:
        fresh = _copy(view)
        for _ in range(0 if self.savepoints else OPTIMISTIC_PASSES):
            try:
                self._pass(view, done, safe=False)
            except (Again, MoveRefused) as error:
                self._begin_again(done)
                view = _copy(fresh)
                if isinstance(error, MoveRefused):
                    break
            else:
                return view
        done.needed_savepoints = not self.savepoints
        self._pass(view, done, safe=True)
        return view

    def _begin_again(self, done: Executed) -> None:
        self.session.rollback_to(_CLAIMED)
        done.handled, done.runs, done.handler_s = {}, 0, 0.0
        self._effects = {part.holding.partition: part.holding.effect for part in self.parts}

    def _pass(self, view: View, done: Executed, *, safe: bool) -> None:
        tx = HandlerTransaction(self.session.connection, self.session.classify)
        guard = Guard(self.session.run, self.session.run_each, self.session.locking, together=not safe)
        runner = Pass(
            session=self.session,
            scope=self.scope,
            topic=self.topic,
            limits=self.limits,
            view=view,
            turn=Turn(tx, guard, self.limits.max_response),
            done=done,
            unsuccessful=self._unsuccessful,
            effects=self._effects,
            safe=safe,
            stop_at_failure=self.stop_at_failure,
            inline=0 if any(part.holding.careful for part in self.parts) else MAX_INLINE,
        )
        try:
            guard.prefetch(task for task in self._tasks() if view.judge(task) is Action.RUN)
            for part in self.parts:
                done.handled[part.holding.partition] = runner.run_part(part)
            guard.flush()
        finally:
            tx.close()

    def _cut(self, view: View, done: Executed) -> None:
        """Where a part was cut short, take its claims back and let the position say so."""
        for part in self.parts:
            handled = done.handled[part.holding.partition]
            if handled == len(part.tasks):
                continue
            settled = {task.arrival.biz_key for task in part.tasks[:handled]}
            for task in part.tasks[handled:]:
                if task.arrival.biz_key is not None and task.arrival.biz_key not in settled:
                    view.unclaim(task)
            if part.aside:
                view.defer_aside(part.tasks[0])
            if part.positioned:
                view.writes.positions[part.holding.partition] = self._position(part, handled)

    def _position(self, part: Part, handled: int) -> Position | None:
        return part.tasks[handled - 1].delivery.position if handled else part.holding.position


def visit(session: Session, scope: Scope, holding: Holding, advance: int) -> None:
    """Hold a partition's row, whoever owns it, as the first statement of a transaction.

    Raises:
        StampMoved: somebody has changed the partition since `holding` was read.
    """
    row = session.leases.hold_row(scope, holding.partition, advance)
    if row.effect != holding.effect + advance:
        raise StampMoved([holding.partition])


def new_record(topic: Topic, task: Task) -> NewRecord:
    """The record that a task claims."""
    return NewRecord(
        biz_key=task.biz_key,
        type=task.arrival.type,
        sharding_key=task.arrival.sharding_key,
        partition=task.partition,
        seq=None if task.message is None else task.message.seq,
        digest=task.arrival.digest,
        body=task.delivery.body if topic.keep_body == "always" else None,
        produced_at=task.produced_at,
        received_at=task.received_at,
    )


def _copy(view: View) -> View:
    """The view as it was looked up, for a second pass."""
    return View(
        policy=view.policy,
        now=view.now,
        keep_body=view.keep_body,
        records=dict(view.records),
        waiting=dict(view.waiting),
        keys=dict(view.keys),
        conflicts={biz_key: list(known) for biz_key, known in view.conflicts.items()},
        read_through=view.read_through,
        claimed=set(view.claimed),
    )
