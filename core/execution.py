"""One transaction of a lane: fence, look up, claim, run, finish, commit.

`execute` is the heart. It is given the partitions and their tasks, and everything it decides comes from `View`, which
is pure. Two passes: the first is optimistic and sets one savepoint for all; when a message fails after it may have
written something, the transaction goes back to that savepoint and the second pass gives each message one of its own.
The innocent run twice then, in an undone pass and in one that counts; the failing message's first call counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from seriatim.core.decision import Action, Failed, Place, Reason
from seriatim.core.errors import Contention, DuplicateKey, FenceLost, StoreError, StoreUnavailable
from seriatim.core.guard import Guard, MoveRefused
from seriatim.core.holding import Holding
from seriatim.core.message import Position
from seriatim.core.store.port import MICROSECOND, Fenced, FenceStep, NewRecord, Scope, Session
from seriatim.core.task import Task, of_row
from seriatim.core.topic import Topic
from seriatim.core.transaction import HandlerTransaction
from seriatim.core.turn import Result, Turn
from seriatim.core.view import Success, TooEarly, Verdict, View

MAX_INLINE = 100  #: early messages that one transaction runs because their predecessor came
_CLAIMED = "seriatim_claimed"
_MESSAGE = "seriatim_message"


class StampMoved(StoreError):
    """Someone changed a partition's parked keys since they were last read: read them again, then try again."""

    def __init__(self, partitions: Sequence[str]) -> None:
        super().__init__(f"what is remembered of {', '.join(partitions)} is out of date")
        self.partitions = tuple(partitions)


class TransactionBroken(StoreError):
    """A handler ended the transaction that it was given, past every guard."""


class PartitionsLost(FenceLost):
    """These partitions belong to another owner now."""

    def __init__(self, partitions: Sequence[str]) -> None:
        super().__init__(f"{', '.join(partitions)} belong to another owner")
        self.partitions = tuple(partitions)


@dataclass(frozen=True, slots=True)
class Part:
    """One partition's share of a transaction: its tasks, in order."""

    holding: Holding
    tasks: tuple[Task, ...]
    positioned: bool = False  #: the tasks are deliveries of a log: the position moves past them
    aside: bool = False  #: the tasks are rows of one key that wait aside
    aside_rest: int | None = None  #: when those of the key that aren't among the tasks are due


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a transaction: leases in microseconds, handler time in seconds, responses in bytes."""

    ttl: int
    batch_s: float
    max_response: int


@dataclass(slots=True)
class Executed:
    """What a committed transaction did: how many tasks of each part, the verdicts in order, and how long it took."""

    handled: dict[str, int] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    handler_s: float = 0.0
    runs: int = 0
    reran: bool = False


class _Again(Exception):
    """A message failed in the optimistic pass, after it may have written something."""


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
    _failures: dict[str, Failed] = field(default_factory=dict)
    _effects: dict[str, int] = field(default_factory=dict)

    def execute(self) -> Executed:
        """Run the transaction.

        Raises:
            PartitionsLost, StampMoved: a fence didn't hold; nothing was done.
            StoreUnavailable, Contention: rolled back, nobody's fault.
            CommitUnknown: it may or may not have happened.
        """
        done = Executed()
        with self.session.transaction():
            self._fence()
            now = self.session.now()
            view = self._look_up(now)
            self._claim(view)
            self.session.savepoint(_CLAIMED)
            with self._unbroken():
                view = self._run(view, done)
                self.session.release(_CLAIMED)
            self._cut(view, done)
            self.session.write(self.scope, view.writes, self.session.now())
            outlooks = {
                part.holding.partition: self.session.parking.outlook(self.scope, part.holding.partition)
                for part in self.parts
                if view.writes.keys
            }
        for part in self.parts:
            part.holding.committed(self._advance(part), outlooks.get(part.holding.partition))
            if part.positioned:
                part.holding.position = self._position(part, done.handled[part.holding.partition])
        done.verdicts = view.verdicts
        return done

    @contextmanager
    def _unbroken(self) -> Iterator[None]:
        """While handlers run: an error of our own statements means that one of them ended the transaction."""
        try:
            yield
        except (StoreUnavailable, Contention):
            raise
        except StoreError as error:
            raise TransactionBroken(f"a handler ended the transaction of its batch: {error}") from error

    # -- the steps

    def _advance(self, part: Part) -> int:
        return 2 * len(part.tasks) + MAX_INLINE

    def _fence(self) -> None:
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
        self._effects = {part.holding.partition: part.holding.effect for part in self.parts}

    def _tasks(self) -> Iterator[Task]:
        for part in self.parts:
            yield from part.tasks

    def _look_up(self, now: int) -> View:
        biz_keys = sorted({task.arrival.biz_key for task in self._tasks() if task.arrival.biz_key is not None})
        view = View(policy=self.topic.policy, now=now, keep_body=self.topic.keep_body)
        view.records = self.session.records.look_up(self.scope, biz_keys)
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
        try:
            self._pass(view, done, safe=self.savepoints)
        except (_Again, MoveRefused):
            self.session.rollback_to(_CLAIMED)
            done.reran, done.handled, done.runs, done.handler_s = True, {}, 0, 0.0
            self._effects = {part.holding.partition: part.holding.effect for part in self.parts}
            view = fresh
            self._pass(view, done, safe=True)
        return view

    def _pass(self, view: View, done: Executed, *, safe: bool) -> None:
        tx = HandlerTransaction(self.session.connection, self.session.classify)
        guard = Guard(self.session.run, self.session.locking, together=not safe)
        runner = _Runner(self, view, Turn(tx, guard, self.limits.max_response), done, safe=safe)
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

    def next_effect(self, partition: str) -> int:
        """The next effect number of a partition."""
        self._effects[partition] += 1
        return self._effects[partition]


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


@dataclass(slots=True)
class _Runner:
    """One pass over the tasks."""

    execution: Execution
    view: View
    turn: Turn
    done: Executed
    safe: bool
    inline: int = MAX_INLINE

    def run_part(self, part: Part) -> int:
        """Handle the tasks of a part in order; how many were handled."""
        for index, task in enumerate(part.tasks):
            if index and self.done.handler_s > self.execution.limits.batch_s:
                return index
            if self._is_done(task):
                continue
            before = len(self.view.verdicts)
            self._handle(task)
            if self._stops(task, before):
                return index + 1
        return len(part.tasks)

    def _is_done(self, task: Task) -> bool:
        """Whether a parked row had its turn already, right after the message that it waited for."""
        writes = self.view.writes
        return task.row is not None and (
            task.row.id in writes.unparks or any(row.id == task.row.id for row in writes.moves)
        )

    def _stops(self, task: Task, before: int) -> bool:
        """Whether what follows this task must not run in this transaction."""
        key = task.arrival.sharding_key
        if key is None or len(self.view.verdicts) == before:
            return False
        standing = self.view.standing(key)
        if standing.stops_partition or (task.row is not None and task.row.place is Place.ASIDE and standing.blocked):
            return True
        return self.execution.stop_at_failure and task.row is not None and task.row.id not in self.view.writes.unparks

    def _handle(self, task: Task) -> None:
        action = self.view.judge(task)
        if action is Action.RUN or (action is Action.PARK):
            self._run(task)
        elif action is Action.DUPLICATE:
            self.view.duplicate(task)
        elif action is Action.CONFLICT:
            self.view.conflict(task)
        elif action is Action.PARKED:
            self.view.already_parked(task)
        elif action is Action.BEHIND:
            self.view.behind(task)
        elif action is Action.STAND:
            self.view.stands(task)
        elif action is Action.STRAY:
            self.view.stray(task)
        else:
            self.view.ignored(task)

    def _run(self, task: Task) -> None:
        before = self.view.attempts(task)
        known = self.execution._failures.pop(task.arrival.biz_key or "", None)  # noqa: SLF001 - of the same transaction
        result, calls = (known, known.calls) if known is not None else self._try(task, before, 0)
        tries = self.view.policy.tries_at_once
        while isinstance(result, Failed) and _again_at_once(result) and calls < tries:
            if before + calls >= self.view.policy.max_attempts:
                break
            result, calls = self._try(task, before, calls)
        self._ended(task, result, before, calls)

    def _try(self, task: Task, before: int, calls: int) -> tuple[Result, int]:
        """One call; its result, and how many calls there were by now."""
        started = time.perf_counter()
        with self._protected(task) as undo:
            result, touched = self.turn.run(task, before + calls + 1)
            if not isinstance(result, Success):
                if isinstance(result, Failed) and touched:
                    result = _counted(result, calls + 1)
                if touched:
                    undo(result)
        self.done.handler_s += time.perf_counter() - started
        self.done.runs += 1
        return result, calls + 1

    @contextmanager
    def _protected(self, task: Task) -> Iterator[Callable[[Result], None]]:
        session, guard, tx = self.execution.session, self.turn.guard, self.turn.tx
        if self.safe:
            session.savepoint(_MESSAGE)

        def undo(result: Result) -> None:
            if not self.safe:
                if isinstance(result, Failed):
                    self.execution._failures[task.arrival.biz_key or ""] = result  # noqa: SLF001
                raise _Again
            session.rollback_to(_MESSAGE)
            guard.forget(task)
            tx.forgive()

        yield undo
        if self.safe:
            session.release(_MESSAGE)

    def _ended(self, task: Task, result: Result, before: int, calls: int) -> None:
        if isinstance(result, Success):
            counted = before + calls
            self.view.succeeded(task, result, self.execution.next_effect(task.partition), counted)
            self._follow(task, result)
        elif isinstance(result, TooEarly):
            self.view.early(task, result, awaited=self._is_awaited(task, result))
        else:
            self.view.failed(task, result)

    def _follow(self, task: Task, success: Success) -> None:
        """A success lets the early ones run that waited for it, in order, in the same transaction."""
        reached = frozenset(name for name in (success.reached, task.biz_key) if name is not None)
        key = task.sharding_key
        tried: set[str] = set()
        while self.inline > 0 and self.view.standing(key).aside and not self.view.standing(key).blocked:
            follower = self.view.recall(key, reached, tried) or self._waiting_row(key, reached)
            if follower is None:
                return
            tried.add(follower.biz_key)
            self.inline -= 1
            self._run(follower)

    def _is_awaited(self, task: Task, early: TooEarly) -> bool:
        """Whether what an expired early message waits for is itself parked: it must not be given up before that is."""
        if task.row is None or not self.view.may_give_up(task):
            return False
        execution = self.execution
        if self.view.waiting.keys() & set(early.wants):
            return True
        if execution.session.parking.waiting(execution.scope, list(early.wants)):
            return True
        others = execution.session.parking.rows(execution.scope, task.sharding_key, Place.ASIDE, MAX_INLINE)
        return any(row.id != task.row.id and self._reaches(row.type, early.wants) for row in others)

    def _reaches(self, kind: str | None, wants: tuple[str, ...]) -> bool:
        handler = self.execution.topic.handler(kind) if kind is not None else None
        return handler is not None and handler.moves is not None and handler.moves.target in wants

    def _waiting_row(self, key: str, reached: frozenset[str]) -> Task | None:
        execution, writes = self.execution, self.view.writes
        gone = {*writes.unparks, *(row.id for row in writes.moves)}
        for row in execution.session.parking.rows(execution.scope, key, Place.ASIDE, MAX_INLINE):
            if row.id not in gone and row.reason is Reason.EARLY and reached.intersection(row.wants):
                task = of_row(execution.topic, row)
                if row.biz_key is not None and row.biz_key not in self.view.records:
                    self.view.records |= execution.session.records.look_up(execution.scope, [row.biz_key])
                return task
        return None


def _again_at_once(failure: Failed) -> bool:
    """Whether a failed call is worth another on the spot: not where the handler said what it wants."""
    return failure.counted and not failure.final and failure.after_s is None and failure.reason is Reason.FAILED


def _counted(failure: Failed, calls: int) -> Failed:
    return replace(failure, calls=calls)


__all__ = ["MICROSECOND", "Executed", "Execution", "Limits", "Part", "PartitionsLost", "StampMoved", "new_record"]
