"""A batch's running view: what it knows of records, waiting rows and keys, and what it will write.

Pure code over values. The lane fills it once from the store, asks it about each task in order, tells it how each
ended, and has the store carry its `writes` out. So a later message of the batch sees what an earlier one did, before
any of it is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from seriatim.core.decision import (
    FREE,
    SET_ASIDE,
    Action,
    Disposal,
    Failed,
    KeyStanding,
    Outcome,
    Place,
    Policy,
    Reason,
    Record,
    Status,
    Waiting,
    dispose,
    expired,
    judge,
    judge_parked,
)
from seriatim.core.message import Position
from seriatim.core.store.port import MICROSECOND, Finish, ParkedMessage, Writes
from seriatim.core.task import Task

MAX_CONFLICTS = 10  #: different bodies that are kept for one biz_key


@dataclass(frozen=True, slots=True)
class Success:
    """A message that was run to its end. `before` and `reached` are its entity's states, if it has any."""

    outcome: Outcome = Outcome.APPLIED
    response: bytes | None = None
    illegal: bool = False
    before: str | None = None
    reached: str | None = None


@dataclass(frozen=True, slots=True)
class TooEarly:
    """A message whose predecessor hasn't come; `wants` names the states, or the biz_key, that it waits for."""

    wants: tuple[str, ...]
    error: str = "its predecessor hasn't come"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one task, for the log."""

    task: Task
    outcome: Outcome
    reason: Reason | None = None
    attempts: int = 0
    error: str = ""
    wait_s: float | None = None
    illegal: bool = False


@dataclass(slots=True)
class View:
    """What a transaction knows and will write. `now` is the database's time in microseconds."""

    policy: Policy
    now: int
    keep_body: str = "on_failure"
    records: dict[str, Record] = field(default_factory=dict)
    waiting: dict[str, Waiting] = field(default_factory=dict)
    keys: dict[str, KeyStanding] = field(default_factory=dict)
    conflicts: dict[str, list[bytes]] = field(default_factory=dict)
    read_through: Mapping[str, int] = field(default_factory=dict)
    claimed: set[str] = field(default_factory=set)
    writes: Writes = field(default_factory=Writes)
    verdicts: list[Verdict] = field(default_factory=list)
    crowded: list[str] = field(default_factory=list)  #: keys that have just got too many messages
    _early: dict[str, list[tuple[Task, ParkedMessage]]] = field(default_factory=dict)

    def standing(self, sharding_key: str) -> KeyStanding:
        """How a key stands by now."""
        return self.keys.get(sharding_key, FREE)

    def judge(self, task: Task) -> Action:
        """What to do with a task."""
        arrival = task.arrival
        record = self.records.get(arrival.biz_key) if arrival.biz_key is not None else None
        if task.row is not None:
            return judge_parked(arrival, record, task.row.reason)
        waiting = self.waiting.get(arrival.biz_key) if arrival.biz_key is not None else None
        key = FREE if arrival.sharding_key is None else self.standing(arrival.sharding_key)
        return judge(arrival, record, waiting, key)

    def attempts(self, task: Task) -> int:
        """How often the message of a task was called before."""
        if task.row is None:
            return 0
        if task.row.place is Place.ASIDE:
            return task.row.attempts
        return self.standing(task.sharding_key).attempts

    # -- how a task ended

    def succeeded(self, task: Task, success: Success, effect: int, attempts: int) -> None:
        """It was run to its end."""
        self._finish(
            task,
            Status.SUCCESS,
            success.outcome,
            response=success.response,
            attempts=attempts,
            effect=effect,
            illegal=success.illegal,
            states=(success.before, success.reached),
        )
        self._leave(task)
        self._tell(task, success.outcome, attempts=attempts, illegal=success.illegal)

    def failed(self, task: Task, failure: Failed) -> Disposal:
        """It failed; what that means."""
        before = self.attempts(task)
        aside = task.row is not None and task.row.place is Place.ASIDE
        disposal = dispose(failure, before, self.policy, aside=aside)
        self._dispose(task, disposal, failure)
        return disposal

    def order_broken(self, task: Task, failure: Failed) -> None:
        """It was given up elsewhere, and what came after it may have run: dead, behind what its key has parked."""
        standing = self.standing(task.sharding_key)
        disposal = dispose(failure, 0, self.policy)
        self._dispose(task, disposal, failure)
        if disposal.blocks and standing.blocked:
            self._stand(task, standing.with_behind())

    def early(self, task: Task, early: TooEarly, *, awaited: bool = False) -> None:
        """Its predecessor hasn't come: it goes aside, or is given up once its deadline has passed.

        `awaited` says that what it waits for is itself parked somewhere, so that it may still come.
        """
        tries = self.attempts(task) + 1 if task.row is not None and task.row.reason is Reason.EARLY else 1
        if task.row is not None and not awaited and self.may_give_up(task):
            failure = Failed(Reason.EARLY, f"gave up waiting: {early.error}", final=True)
            self._dispose(task, Disposal(Place.CLOSED, Reason.DEAD, Outcome.REJECTED, tries, None), failure)
            return
        wait_s = self.policy.backoff.delay(tries)
        disposal = Disposal(Place.ASIDE, Reason.EARLY, Outcome.EARLY, tries, wait_s)
        row = self._dispose(task, disposal, Failed(Reason.EARLY, early.error), wants=early.wants)
        if task.row is None:
            self._early.setdefault(task.sharding_key, []).append((task, row))

    def may_give_up(self, task: Task) -> bool:
        """Whether an early message that is still early has run out of time."""
        key = self.standing(task.sharding_key)
        return expired(task.received_at, self.policy.early_deadline_s, self.read_through.get(task.partition, 0), key)

    def duplicate(self, task: Task) -> None:
        """Its record is final."""
        if task.row is None:
            self._count_duplicate(task)
        self._leave(task)
        self._tell(task, Outcome.DUPLICATE)

    def already_parked(self, task: Task) -> None:
        """The same message waits already."""
        self._count_duplicate(task)
        self._tell(task, Outcome.PARKED, Reason.BEHIND)

    def behind(self, task: Task) -> None:
        """Its key is blocked: it waits its turn, without a record of its own."""
        row = self._row(task, Place.QUEUE, Reason.BEHIND, "", None)
        self.writes.parks.append(row)
        if task.arrival.biz_key is not None:
            self.waiting[task.biz_key] = Waiting(task.arrival.type, task.arrival.digest)
            self.unclaim(task)
        standing = self.standing(task.sharding_key).with_behind()
        self._stand(task, standing)
        if standing.depth == self.policy.max_behind + 1:
            self.crowded.append(task.sharding_key)
        self._tell(task, Outcome.PARKED, Reason.BEHIND)

    def conflict(self, task: Task) -> None:
        """Another body or type came under its biz_key: it is kept, once for each different body."""
        known = self.conflicts.setdefault(task.biz_key, [])
        error = "another message was received under this biz_key before"
        if task.row is not None:
            self._leave(task)
        if task.arrival.digest not in known and len(known) < MAX_CONFLICTS:
            known.append(task.arrival.digest)
            self._keep(replace(self._row(task, Place.CLOSED, Reason.CONFLICT, error, None), conflict=True))
        self._tell(task, Outcome.CONFLICT, Reason.CONFLICT, error=error)

    def stands(self, task: Task) -> None:
        """It is dead and the head of its key: nothing tries it, and nothing passes it, until a person decides."""
        key = self.standing(task.sharding_key)
        self._stand(task, key.head_failed(self.attempts(task) or (task.row.attempts if task.row else 0), None))
        self._tell(task, Outcome.REJECTED, Reason.DEAD)

    def stray(self, task: Task) -> None:
        """It can't be read, not even its key: it is kept, alone."""
        self._keep(self._row(task, Place.CLOSED, Reason.MALFORMED, task.error, None))
        self._tell(task, Outcome.REJECTED, Reason.MALFORMED, error=task.error)

    def ignored(self, task: Task) -> None:
        """The topic ignores its type."""
        self._tell(task, Outcome.REJECTED, error="the topic ignores this type")

    def unclaim(self, task: Task) -> None:
        """It didn't get its turn after all: its claim goes."""
        if task.biz_key in self.claimed:
            self.claimed.discard(task.biz_key)
            self.writes.unclaims.add(task.biz_key)

    def defer_aside(self, task: Task) -> None:
        """Some of those aside didn't get their turn: they are due still."""
        self._stand(task, replace(self.standing(task.sharding_key), aside_due_at=self.now))

    def recall(self, sharding_key: str, reached: frozenset[str], tried: set[str]) -> Task | None:
        """The first message of this batch, not among `tried`, that is aside as early and waits for one of `reached`."""
        waiting = self._early.get(sharding_key, [])
        for index, (task, row) in enumerate(waiting):
            if task.biz_key not in tried and reached.intersection(row.wants):
                del waiting[index]
                self.writes.parks.remove(row)
                self.writes.failures.remove(row)
                self._stand(task, self.standing(sharding_key).aside_left())
                return task
        return None

    # -- how that is written

    def _finish(
        self,
        task: Task,
        status: Status,
        outcome: Outcome,
        *,
        response: bytes | None = None,
        attempts: int = 0,
        effect: int | None = None,
        illegal: bool = False,
        states: tuple[str | None, str | None] = (None, None),
        first: str | None = None,
    ) -> None:
        if task.arrival.biz_key is None:
            return
        biz_key = task.biz_key
        earlier = self.writes.finishes.get(biz_key)
        if earlier is not None:
            first = earlier.first or earlier.outcome.value
        keep = self.keep_body == "always" or (self.keep_body == "on_failure" and status is Status.FAILED)
        self.writes.finishes[biz_key] = Finish(
            biz_key=biz_key,
            status=status,
            outcome=outcome,
            response=response,
            body=task.delivery.body if keep else None,
            attempts=attempts,
            effect=effect,
            illegal=illegal,
            state_before=states[0],
            state_after=states[1],
            first=first,
            keep_crashes=task.deadly,
        )
        known = self.records.get(biz_key)
        self.records[biz_key] = Record(
            status=status,
            outcome=outcome,
            type=task.arrival.type,
            digest=task.arrival.digest,
            first_digest=None if known is None else known.first_digest,
        )

    def _dispose(
        self, task: Task, disposal: Disposal, failure: Failed, *, wants: tuple[str, ...] = ()
    ) -> ParkedMessage:
        due_at = None if disposal.wait_s is None else self.now + int(disposal.wait_s * MICROSECOND)
        error = failure.error.encode("utf-8", "replace")[:2000] if disposal.outcome is Outcome.REJECTED else None
        first = SET_ASIDE if disposal.place is Place.ASIDE and disposal.reason is not Reason.EARLY else None
        self._finish(task, Status.FAILED, disposal.outcome, response=error, attempts=disposal.attempts, first=first)
        row = replace(
            self._row(task, disposal.place, disposal.reason, failure.error, due_at),
            wants=wants,
            attempts=disposal.attempts,
            error_type=failure.error_type or None,
            detail=failure.detail or None,
        )
        if task.row is None:
            self._keep(row)
        else:
            self.writes.moves.append(row)
            self.writes.failures.append(row)
        self._stand(task, self._standing_after(task, disposal, due_at))
        if row.waits and task.arrival.biz_key is not None:
            self.waiting[task.biz_key] = Waiting(task.arrival.type, task.arrival.digest)
        self._tell(
            task,
            disposal.outcome,
            disposal.reason,
            attempts=disposal.attempts,
            error=failure.error,
            wait_s=disposal.wait_s,
        )
        return row

    def _keep(self, row: ParkedMessage) -> None:
        """Park a message that failed, in one way or another."""
        self.writes.parks.append(row)
        self.writes.failures.append(row)

    def _standing_after(self, task: Task, disposal: Disposal, due_at: int | None) -> KeyStanding:
        key, place = self.standing(task.sharding_key), disposal.place
        if task.row is not None and task.row.place is Place.QUEUE:
            if place is Place.QUEUE:
                return replace(key.head_failed(disposal.attempts, due_at), stops_partition=disposal.stops_partition)
            key = key.head_left(self.now)
        elif task.row is not None:
            key = key.aside_left()
        if place is Place.QUEUE:
            return key.with_head(disposal.attempts, due_at, stops_partition=disposal.stops_partition)
        return key.with_aside(due_at) if place is Place.ASIDE else key

    def _leave(self, task: Task) -> None:
        """A parked row is done with."""
        row = task.row
        if row is None:
            return
        self.writes.unparks.append(row.id)
        key = self.standing(task.sharding_key)
        if row.place is Place.ASIDE:
            self._stand(task, key.aside_left())
            return
        self._stand(task, key.head_left(self.now))

    def _stand(self, task: Task, key: KeyStanding) -> None:
        self.keys[task.sharding_key] = key
        self.writes.keys[task.sharding_key] = (task.partition, key)

    def _row(self, task: Task, place: Place, reason: Reason, error: str, due_at: int | None) -> ParkedMessage:
        message = task.message
        return ParkedMessage(
            id=0 if task.row is None else task.row.id,
            partition=task.partition,
            sharding_key=task.arrival.sharding_key,
            biz_key=task.arrival.biz_key,
            place=place,
            reason=reason,
            type=task.arrival.type,
            seq=None if message is None else message.seq,
            headers=task.delivery.raw,
            body=task.delivery.body,
            digest=task.arrival.digest,
            produced_at=task.produced_at,
            received_at=task.received_at,
            error=error or None,
            next_attempt_at=due_at,
        )

    def _count_duplicate(self, task: Task) -> None:
        self.writes.duplicates[task.partition] = self.writes.duplicates.get(task.partition, 0) + 1

    def _tell(
        self,
        task: Task,
        outcome: Outcome,
        reason: Reason | None = None,
        *,
        attempts: int = 0,
        error: str = "",
        wait_s: float | None = None,
        illegal: bool = False,
    ) -> None:
        self.verdicts.append(Verdict(task, outcome, reason, attempts, error, wait_s, illegal))


def position_of(tasks: list[Task]) -> Position | None:
    """The position after these tasks of one partition."""
    return tasks[-1].delivery.position if tasks else None


__all__ = ["MAX_CONFLICTS", "Success", "TooEarly", "Verdict", "View", "position_of"]
