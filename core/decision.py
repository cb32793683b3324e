"""What becomes of a delivery: pure decisions over values.

The lane gathers the values (the record of the biz_key, the standing of its sharding key, a row that waits under the
same biz_key), asks here, and carries the answer out. Nothing in this module does I/O.

Theory of operation. A message meets, in this order:

1. its own record, if that is final: the message is a *duplicate*, whatever the state of its key;
2. its own record, if that failed: it is *parked* and runs only in its turn, never by an ordinary delivery;
3. a row that waits under its biz_key: *parked* likewise;
4. its key, if that is blocked or held: it goes *behind*;
5. the state guard, then the handler.

In 1 to 3 another body or type makes it a *conflict*, which is kept and reported. What the handler's result means for
the message and its key is `dispose`; how a key changes is the methods of `KeyStanding`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from seriatim.core.backoff import Backoff
from seriatim.core.errors import ConfigurationError


class Status(enum.IntEnum):
    """Status of a record."""

    PROCESSING = 1
    SUCCESS = 2
    FAILED = 3


class Outcome(str, enum.Enum):
    """What became of a delivery."""

    APPLIED = "applied"
    ALREADY = "already"
    STALE = "stale"
    DUPLICATE = "duplicate"
    PARKED = "parked"
    EARLY = "early"
    REJECTED = "rejected"
    CONFLICT = "conflict"


class Place(str, enum.Enum):
    """Where a parked message stands."""

    QUEUE = "queue"  #: head or behind: it blocks its key
    ASIDE = "aside"  #: early or set aside: it waits and blocks nobody
    CLOSED = "closed"  #: given up, or kept as evidence: nothing tries it any more


class Reason(str, enum.Enum):
    """Why a message is parked."""

    FAILED = "failed"
    BEHIND = "behind"
    EARLY = "early"
    MALFORMED = "malformed"
    UNHANDLED = "unhandled"
    CONFLICT = "conflict"
    CONTENTION = "contention"
    DEAD = "dead"


class Action(enum.Enum):
    """What the lane does with a delivery."""

    RUN = "run"
    DUPLICATE = "duplicate"
    PARKED = "parked"
    CONFLICT = "conflict"
    BEHIND = "behind"
    PARK = "park"  #: malformed or unhandled: fails without being run
    STAND = "stand"  #: dead, and its key waits for a person: it stands where it is
    STRAY = "stray"  #: malformed and without a readable key: kept, alone
    IGNORE = "ignore"  #: of a type that the topic ignores


@dataclass(frozen=True, slots=True)
class Arrival:
    """What is known of a delivery before it is judged. `problem` says what keeps it from being run, if anything."""

    sharding_key: str | None
    biz_key: str | None
    type: str | None
    digest: bytes
    problem: Reason | None = None
    ignored: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """What the record of a biz_key says. `first_digest` differs from `digest` where an operator edited the body."""

    status: Status
    outcome: Outcome | None
    type: str | None
    digest: bytes
    first_digest: bytes | None = None
    crash_attempts: int = 0

    @property
    def final(self) -> bool:
        """Whether nothing but an operator's retry can change it."""
        return self.status is Status.SUCCESS or self.outcome is Outcome.REJECTED

    def same(self, arrival: Arrival) -> bool:
        """Whether `arrival` says what this record's message said."""
        return self.type == arrival.type and arrival.digest in (self.digest, self.first_digest)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A parked row that waits its turn under a biz_key."""

    type: str | None
    digest: bytes

    def same(self, arrival: Arrival) -> bool:
        """Whether `arrival` says what the waiting message says."""
        return self.type == arrival.type and arrival.digest == self.digest


@dataclass(frozen=True, slots=True)
class KeyStanding:
    """How a sharding key stands: what is parked under it, and when its head is due (in microseconds, UTC).

    `depth` counts its queue (head and behind), `aside` those that wait without blocking. A blocked key has
    ``depth > 0``; a held key sends what comes behind even while its queue is empty. A head that nothing will try by
    itself (dead, or held) has no due time.
    """

    depth: int = 0
    aside: int = 0
    attempts: int = 0
    due_at: int | None = None
    aside_due_at: int | None = None
    held: bool = False
    stops_partition: bool = False

    @property
    def blocked(self) -> bool:
        """Whether an ordinary delivery of this key must go behind."""
        return self.depth > 0 or self.held

    @property
    def idle(self) -> bool:
        """Whether nothing is left to remember: the row can go."""
        return not (self.depth or self.aside or self.held)

    def with_head(self, attempts: int, due_at: int | None, *, stops_partition: bool = False) -> KeyStanding:
        """A free key whose message has just failed: it is the head now."""
        return replace(self, depth=self.depth + 1, attempts=attempts, due_at=due_at, stops_partition=stops_partition)

    def with_behind(self) -> KeyStanding:
        """One more behind the head."""
        return replace(self, depth=self.depth + 1)

    def head_failed(self, attempts: int, due_at: int | None) -> KeyStanding:
        """The head ran and failed again."""
        return replace(self, attempts=attempts, due_at=due_at)

    def head_left(self, now: int) -> KeyStanding:
        """The head is out of the queue: the next one starts afresh, at once; an empty queue frees the key.

        Those aside of a freed key are due: they may have waited for one that was in the queue.
        """
        depth = self.depth - 1
        left = replace(self, depth=depth, attempts=0, due_at=now if depth else None, stops_partition=False)
        return left if left.blocked or not left.aside else replace(left, aside_due_at=now)

    def with_aside(self, due_at: int | None) -> KeyStanding:
        """One more set aside."""
        return replace(self, aside=self.aside + 1, aside_due_at=_earliest(self.aside_due_at, due_at))

    def aside_left(self) -> KeyStanding:
        """One that was aside is gone; the lane says anew when the rest are due."""
        return replace(self, aside=self.aside - 1)


def _earliest(one: int | None, other: int | None) -> int | None:
    times = [time for time in (one, other) if time is not None]
    return min(times) if times else None


FREE = KeyStanding()


def judge(arrival: Arrival, record: Record | None, waiting: Waiting | None, key: KeyStanding) -> Action:
    """What the lane does with a delivery. See the theory of operation above."""
    if arrival.biz_key is not None:
        for known in (record, waiting):
            if known is None:
                continue
            if not known.same(arrival):
                return Action.CONFLICT
            if isinstance(known, Record) and known.status is Status.PROCESSING:
                continue  # a committed status 1 is a crash mark: the message still has to run
            return Action.DUPLICATE if isinstance(known, Record) and known.final else Action.PARKED
    if arrival.sharding_key is None:
        return Action.STRAY
    if arrival.ignored:
        return Action.IGNORE
    if key.blocked:
        return Action.BEHIND
    return Action.PARK if arrival.problem is not None else Action.RUN


def judge_parked(arrival: Arrival, record: Record | None, reason: Reason) -> Action:
    """What the lane does with a parked message whose turn has come.

    A dead one has a final record of its own and must not be taken for a duplicate: it stands until a person decides.
    Any other final record makes it a duplicate.
    """
    if reason is Reason.DEAD:
        return Action.STAND
    if record is not None and record.final:
        return Action.DUPLICATE if record.same(arrival) else Action.CONFLICT
    return Action.PARK if arrival.problem is not None else Action.RUN


#: What the record of a message that was set aside says of its first judgement: later ones may have gone before it.
SET_ASIDE = "set_aside"


class OnFailure(str, enum.Enum):
    """What a topic does when a message fails."""

    PARK = "park"  #: its key waits, every other key goes on
    BLOCK = "block"  #: its partition waits
    SET_ASIDE = "set_aside"  #: only the message leaves; later ones of its key go on

    __str__ = str.__str__


class OnDead(str, enum.Enum):
    """What a topic does when a message is given up."""

    BLOCK_KEY = "block_key"
    SKIP = "skip"

    __str__ = str.__str__


@dataclass(frozen=True, slots=True)
class Policy:
    """A topic's way with failures. Times in seconds.

    `max_attempts` counts every call of the handler; `tries_at_once` of them are made on the spot, before parking.
    `max_crashes` is how often a message may have killed its process before it is parked. `max_behind` is how many
    messages may wait under one key before an alarm is given. From `max_parked` rows, or `max_parked_bytes` bytes of
    bodies, that a group has parked of the topic in all, its partitions pause, and only what is parked is worked off.
    """

    on_failure: OnFailure = OnFailure.PARK
    on_dead: OnDead = OnDead.BLOCK_KEY
    max_attempts: int = 8
    tries_at_once: int = 2
    max_crashes: int = 3
    max_behind: int = 1_000
    max_parked: int = 1_000_000
    max_parked_bytes: int = 4 << 30
    early_deadline_s: float = 3600.0
    backoff: Backoff = Backoff()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "on_failure", OnFailure(self.on_failure))  # plain text is welcome, too
            object.__setattr__(self, "on_dead", OnDead(self.on_dead))
        except ValueError as error:
            raise ConfigurationError(
                f"{error}: on_failure is one of {', '.join(OnFailure)}, on_dead one of {', '.join(OnDead)}"
            ) from None
        if self.max_attempts < 1 or self.tries_at_once < 1:
            raise ConfigurationError("max_attempts and tries_at_once are 1 or more: a message is tried at least once")
        if min(self.max_behind, self.max_parked, self.max_parked_bytes) < 1:
            raise ConfigurationError("max_behind, max_parked and max_parked_bytes are 1 or more: a failure must fit")


@dataclass(frozen=True, slots=True)
class Failed:
    """A run that failed. `after_s` is the handler's own wish (`Retry`); `final` says it asked to give up (`Reject`).

    `counted` is False where the failure is nobody's attempt (contention, a type that this process can't handle yet).
    """

    reason: Reason
    error: str
    detail: str = ""
    error_type: str = ""
    calls: int = 1
    after_s: float | None = None
    final: bool = False
    counted: bool = True


@dataclass(frozen=True, slots=True)
class Disposal:
    """What a failure means: where the message goes, and when it is tried again (seconds from now, None for never)."""

    place: Place
    reason: Reason
    outcome: Outcome
    attempts: int
    wait_s: float | None
    stops_partition: bool = False

    @property
    def blocks(self) -> bool:
        """Whether the key waits for it."""
        return self.place is Place.QUEUE


def dispose(failure: Failed, attempts: int, policy: Policy, *, aside: bool = False) -> Disposal:
    """What a failed run means for its message, which had been called `attempts` times before.

    `aside` says that the message waits aside already and must not block its key by being given up.
    """
    total = attempts + (failure.calls if failure.counted else 0)
    if failure.final or (failure.counted and total >= policy.max_attempts):
        blocks = policy.on_dead is OnDead.BLOCK_KEY and policy.on_failure is not OnFailure.SET_ASIDE and not aside
        return Disposal(
            place=Place.QUEUE if blocks else Place.CLOSED,
            reason=Reason.DEAD,
            outcome=Outcome.REJECTED,
            attempts=total,
            wait_s=None,
            stops_partition=blocks and policy.on_failure is OnFailure.BLOCK,
        )
    wait_s = failure.after_s if failure.after_s is not None else policy.backoff.delay(max(total, 1))
    return Disposal(
        place=Place.ASIDE if policy.on_failure is OnFailure.SET_ASIDE else Place.QUEUE,
        reason=failure.reason,
        outcome=Outcome.PARKED,
        attempts=total,
        wait_s=wait_s,
        stops_partition=policy.on_failure is OnFailure.BLOCK,
    )


def expired(received_at: int, deadline_s: float, read_through: int, key: KeyStanding) -> bool:
    """Whether an early message is given up: its partition was read beyond its deadline and its key isn't parked.

    Times in microseconds. `read_through` is the time up to which the partition is known to be read.
    """
    return not key.blocked and read_through > received_at + int(deadline_s * 1_000_000)
