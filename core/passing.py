"""One pass over a transaction's tasks: each judged by the view, run in its turn, and its end told to the view."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from seriatim.core.decision import Action, Failed, Place, Reason
from seriatim.core.holding import Holding
from seriatim.core.store.port import Scope, Session
from seriatim.core.task import Task, of_row
from seriatim.core.topic import Topic
from seriatim.core.turn import Result, Turn
from seriatim.core.view import Success, TooEarly, Verdict, View

MAX_INLINE = 100  #: early messages that one transaction runs because their predecessor came
_MESSAGE = "seriatim_message"


class Again(Exception):
    """A message failed in the optimistic pass, after it may have written something."""


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
    """What a committed transaction did: how many tasks of each part, the verdicts in order, and how long it took.

    `crowded` are keys that have come over their cap.
    """

    handled: dict[str, int] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    crowded: list[str] = field(default_factory=list)
    handler_s: float = 0.0
    runs: int = 0
    needed_savepoints: bool = False


@dataclass(slots=True)
class Pass:
    """One pass over the tasks of a transaction.

    `safe`: a savepoint for each message; otherwise the first that fails after it may have written raises `Again`.
    `unsuccessful` is what passes before this one saw, and how many calls that took: it is counted and not repeated, and
    what is tried once more has a savepoint of its own. `effects` are the last effect number of each partition.
    """

    session: Session
    scope: Scope
    topic: Topic
    limits: Limits
    view: View
    turn: Turn
    done: Executed
    unsuccessful: dict[str, tuple[Failed | TooEarly, int]]
    effects: dict[str, int]
    safe: bool
    stop_at_failure: bool
    inline: int = MAX_INLINE
    _known: dict[str, tuple[Failed | TooEarly, int]] = field(init=False)

    def __post_init__(self) -> None:
        self._known = dict(self.unsuccessful)

    def run_part(self, part: Part) -> int:
        """Handle the tasks of a part in order; how many were handled."""
        for index, task in enumerate(part.tasks):
            if index and self.done.handler_s > self.limits.batch_s:
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
        return self.stop_at_failure and task.row is not None and task.row.id not in self.view.writes.unparks

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
        known = self._known.pop(task.arrival.biz_key or "", None)
        result, calls = known if known is not None else self._try(task, before, 0)
        tries = self.view.policy.tries_at_once
        while isinstance(result, Failed) and _again_at_once(result) and calls < tries:
            if before + calls >= self.view.policy.max_attempts:
                break
            result, calls = self._try(task, before, calls)
        self._ended(task, result, before, calls)

    def _try(self, task: Task, before: int, calls: int) -> tuple[Result, int]:
        """One call; its result, and how many calls there were by now."""
        started = time.perf_counter()
        try:
            with self._protected(task, calls + 1) as undo:
                result, touched = self.turn.run(task, before + calls + 1)
                if not isinstance(result, Success):
                    if isinstance(result, Failed) and touched:
                        result = _counted(result, calls + 1)
                    if touched:
                        undo(result)
        finally:  # also of a call that ends the optimistic pass
            took_s = time.perf_counter() - started
            self.done.handler_s += took_s
            task.handler_s += took_s
        self.done.runs += 1
        return result, calls + 1

    @contextmanager
    def _protected(self, task: Task, calls: int) -> Iterator[Callable[[Failed | TooEarly], None]]:
        session, guard, tx = self.session, self.turn.guard, self.turn.tx
        name = task.arrival.biz_key or ""
        alone = self.safe or name in self.unsuccessful
        if alone:
            guard.flush()
            session.savepoint(_MESSAGE)

        def undo(result: Failed | TooEarly) -> None:
            if not alone:
                self.unsuccessful[name] = result, calls
                raise Again
            session.rollback_to(_MESSAGE)
            guard.forget(task)
            tx.forgive()

        yield undo
        if alone:
            session.release(_MESSAGE)

    def _ended(self, task: Task, result: Result, before: int, calls: int) -> None:
        if isinstance(result, Success):
            counted = before + calls
            self.view.succeeded(task, result, self._next_effect(task.partition), counted)
            self._follow(task, result)
        elif isinstance(result, TooEarly):
            self.view.early(task, result, awaited=self._is_awaited(task, result))
        else:
            self.view.failed(task, result)

    def _next_effect(self, partition: str) -> int:
        self.effects[partition] += 1
        return self.effects[partition]

    def _follow(self, task: Task, success: Success) -> None:
        """A success lets the early ones run that waited for it, in order, in the same transaction."""
        reached = frozenset(name for name in (success.reached, task.biz_key) if name is not None)
        key = task.sharding_key
        tried: set[str] = set()
        if self.inline <= 0 and self.view.standing(key).aside:
            self.view.defer_aside(task)
        while self.inline > 0 and self.view.standing(key).aside and not self.view.standing(key).blocked:
            follower = self.view.recall(key, reached, tried) or self._waiting_row(key, reached)
            if follower is None:
                return
            tried.add(follower.biz_key)
            self.inline -= 1
            if follower.row is None:  # of this batch, and judged already
                self._run(follower)
            else:
                self._handle(follower)

    def _is_awaited(self, task: Task, early: TooEarly) -> bool:
        """Whether what an expired early message waits for is itself parked: it must not be given up before that is."""
        if task.row is None or not self.view.may_give_up(task):
            return False
        if self.view.waiting.keys() & set(early.wants):
            return True
        if self.session.parking.waiting(self.scope, list(early.wants)):
            return True
        reaching = self.topic.types_reaching(early.wants)
        return self.session.parking.has_aside(self.scope, task.sharding_key, reaching, but=task.row.id)

    def _waiting_row(self, key: str, reached: frozenset[str]) -> Task | None:
        writes = self.view.writes
        gone = {*writes.unparks, *(row.id for row in writes.moves)}
        for row in self.session.parking.wanting(self.scope, key, reached):
            if row.id not in gone and row.reason is Reason.EARLY and reached.intersection(row.wants):
                task = of_row(self.topic, row)
                if row.biz_key is not None and row.biz_key not in self.view.records:
                    self.view.records |= self.session.records.look_up(self.scope, [row.biz_key])
                return task
        return None


def _again_at_once(failure: Failed) -> bool:
    """Whether a failed call is worth another on the spot: not where the handler said what it wants."""
    return failure.counted and not failure.final and failure.after_s is None and failure.reason is Reason.FAILED


def _counted(failure: Failed, calls: int) -> Failed:
    return replace(failure, calls=calls)
