"""The store port: what core asks of a database.

A `Store` opens `Session`s. A session is one connection, used by one thread at a time: a lane has one, the keeper
another. Every change of a partition's records, parked messages or position happens in a transaction whose first
statement is the fence; whoever changes a key holds its `partition_owner` row, so after the fence plain reads tell the
truth. `seriatim.contract.store` runs the same behaviours against every store.

Times are microseconds since the epoch by the database's clock.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from sqlalchemy import Connection, CursorResult, Executable, Select, Update

from seriatim.core.decision import KeyStanding, Outcome, Place, Reason, Record, Status, Waiting
from seriatim.core.faults import Fault
from seriatim.core.message import Position

MICROSECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class Scope:
    """A consumer group and a topic: what records and leases belong to."""

    group: str
    topic: str


@dataclass(frozen=True, slots=True)
class OwnerRow:
    """A row of `partition_owner`. `owner` is the random token of the claim, None when it was released."""

    partition: str
    member: str | None
    owner: str | None
    epoch: int
    lease_until: int
    effect: int
    position: Position | None
    read_through: int
    paused: str | None
    parked_rows: int = 0  #: of `parked_message`, whatever their place
    parked_bytes: int = 0  #: of their bodies
    full: bool = False  #: its owner waits for room in the parking


@dataclass(frozen=True, slots=True)
class Claimed:
    """A lease that was got. `released` is False where the last owner never let go: its last message may be a killer."""

    row: OwnerRow
    released: bool


@dataclass(frozen=True, slots=True)
class FenceStep:
    """One partition's part in a fence: the claim, the stamp as last seen, and what the transaction advances."""

    partition: str
    owner: str
    epoch: int
    effect: int
    advance: int
    position: Position | None = None
    read_through: int | None = None


class Fenced(enum.Enum):
    """Why a fence didn't hold."""

    LOST = "lost"  #: another owner has the partition
    MOVED = "moved"  #: still ours, but someone changed its parked keys: what is remembered must be read again


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to be claimed (status 1) before its message runs."""

    biz_key: str
    type: str | None
    sharding_key: str | None
    partition: str
    seq: int | None
    digest: bytes
    body: bytes | None
    produced_at: int
    received_at: int


@dataclass(frozen=True, slots=True)
class Finish:
    """How a claimed record ends. `effect` is None where nothing was run to an end."""

    biz_key: str
    status: Status
    outcome: Outcome
    response: bytes | None = None
    body: bytes | None = None
    attempts: int = 0
    effect: int | None = None
    illegal: bool = False
    first: str | None = None  #: what it was first judged to be, where that differs
    state_before: str | None = None
    state_after: str | None = None
    keep_crashes: bool = False  #: it was not run; otherwise a run that came back clears its crash marks


@dataclass(frozen=True, slots=True)
class ParkedMessage:
    """A row of `parked_message`; `id` is 0 until it is inserted. `order` within a key is by `id`."""

    partition: str
    sharding_key: str | None
    biz_key: str | None
    place: Place
    reason: Reason
    type: str | None
    seq: int | None
    headers: Mapping[str, str]
    body: bytes
    digest: bytes
    produced_at: int
    received_at: int
    wants: tuple[str, ...] = ()
    conflict: bool = False
    attempts: int = 0
    next_attempt_at: int | None = None
    error_type: str | None = None
    error: str | None = None
    detail: str | None = None
    parked_at: int = 0
    id: int = 0

    @property
    def waits(self) -> bool:
        """Whether it still waits its turn under its biz_key."""
        return self.place is not Place.CLOSED


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a lane remembers of a partition's parked keys, true as long as the change stamp matches.

    `any_keys`: some key has something parked, so the keys of a batch must be looked up. `due_at` is when the next
    head, `aside_due_at` when the next one aside is due. `stopped`: a failed message stops the whole partition.
    """

    any_keys: bool = False
    due_at: int | None = None
    aside_due_at: int | None = None
    stopped: bool = False

    @property
    def anything_due(self) -> bool:
        """Whether something will come due."""
        return self.due_at is not None or self.aside_due_at is not None


@dataclass(frozen=True, slots=True)
class Writes:
    """What a transaction leaves behind: gathered while it runs, carried out set-wise at its end."""

    finishes: dict[str, Finish] = field(default_factory=dict)
    unclaims: set[str] = field(default_factory=set)
    parks: list[ParkedMessage] = field(default_factory=list)
    moves: list[ParkedMessage] = field(default_factory=list)
    failures: list[ParkedMessage] = field(
        default_factory=list
    )  #: of `parks` and `moves`, those to be remembered as such
    unparks: list[int] = field(default_factory=list)
    keys: dict[str, tuple[str, KeyStanding]] = field(default_factory=dict)  # sharding key: (partition, standing)
    duplicates: dict[str, int] = field(default_factory=dict)
    positions: dict[str, Position | None] = field(default_factory=dict)


class Leases(Protocol):
    """Members, claims and renewals; each call is a short transaction of its own unless it says otherwise."""

    def beat(self, scope: Scope, member: str, ttl: int) -> list[str]:
        """Renew this process's membership; the members that are alive, this one among them, sorted."""
        ...

    def leave(self, scope: Scope, member: str) -> None:
        """End this process's membership."""
        ...

    def owners(self, scope: Scope) -> list[OwnerRow]:
        """Every row of the topic, sorted by the bytes of the partition's id."""
        ...

    def claim(self, scope: Scope, partition: str, member: str, ttl: int, *, wait: bool = False) -> Claimed | None:
        """Take a lease that is free or over; None when it is neither, or its row is locked and `wait` is False."""
        ...

    def renew(self, scope: Scope, claims: Sequence[tuple[str, str, int]], ttl: int) -> set[str]:
        """Renew (partition, owner, epoch) leases, skipping rows in a transaction; the partitions that are lost."""
        ...

    def release(self, scope: Scope, partition: str, owner: str, epoch: int) -> bool:
        """Let a lease go, so that the next owner needn't be careful; False when it wasn't ours any more."""
        ...

    def pause(self, scope: Scope, partition: str, owner: str, why: str | None) -> None:
        """Say why nothing of a partition is consumed; None says that it is again."""
        ...

    def set_trouble(self, scope: Scope, partition: str, owner: str, trouble: str | None) -> None:
        """Say what keeps the owner from reading a partition at the broker; None says that nothing does any more."""
        ...

    def unpause(self, scope: Scope, partition: str) -> None:
        """Inside a transaction that holds the row: a paused partition may be consumed again."""
        ...

    def set_full(self, scope: Scope, partitions: Sequence[str], *, full: bool) -> None:
        """Say that the owner of these partitions waits for room in the parking, or doesn't any more."""
        ...

    def set_position(self, scope: Scope, partition: str, position: Position | None) -> None:
        """Inside a transaction that holds the row: set the position."""
        ...

    def fence(self, scope: Scope, steps: Sequence[FenceStep], ttl: int) -> dict[str, Fenced]:
        """Inside a transaction, as its first statement: hold these partitions. Empty means every one is held."""
        ...

    def prolong(self, scope: Scope, partitions: Sequence[str], ttl: int, since: int) -> None:
        """Inside a fenced transaction that took long, `since` a time of the database: its leases begin anew.

        Where one writer at a time has the whole store, nobody could renew anything meanwhile: every lease and
        membership that was in force at its beginning lasts longer by as much.
        """
        ...

    def begin_visit(self, scope: Scope, partition: str, visitor: str, ttl: int) -> OwnerRow | None:
        """Be the one visitor of a partition, whoever owns it: its row, or None while another visits it.

        It keeps visitors out of each other's way, and guards nothing: what they do is guarded by the row they hold.
        """
        ...

    def end_visit(self, scope: Scope, partition: str, visitor: str) -> None:
        """Let the next visitor come."""
        ...

    def hold_row(self, scope: Scope, partition: str, changes: int = 1) -> OwnerRow:
        """Inside a transaction, as its first statement: lock the row and raise its stamp, whoever owns it."""
        ...


class Records(Protocol):
    """The idempotency records; every call is inside a fenced transaction."""

    def look_up(self, scope: Scope, biz_keys: Sequence[str]) -> dict[str, Record]:
        """The records of these biz_keys, without bodies and responses."""
        ...

    def claim(self, scope: Scope, records: Sequence[NewRecord], now: int) -> None:
        """Insert records of status 1 (none of them exists)."""
        ...

    def mark_crash(self, scope: Scope, record: NewRecord, now: int) -> int:
        """Count one run of a message that may kill its process; how often it was counted, this time included."""
        ...

    def unmark_crash(self, scope: Scope, biz_key: str) -> None:
        """Take back what `mark_crash` counted: the message wasn't run, or its run came back."""
        ...

    def attempts(self, scope: Scope, biz_key: str) -> int:
        """The attempts stored for a record."""
        ...

    def response(self, scope: Scope, biz_key: str) -> bytes | None:
        """The stored response."""
        ...


class Parking(Protocol):
    """Parked messages and keys; every call is inside a fenced transaction unless it says otherwise."""

    def keys(self, scope: Scope, sharding_keys: Iterable[str]) -> dict[str, KeyStanding]:
        """How these keys stand; absent ones are free."""
        ...

    def waiting(self, scope: Scope, biz_keys: Sequence[str]) -> dict[str, Waiting]:
        """Rows that wait their turn under these biz_keys."""
        ...

    def outlook(self, scope: Scope, partition: str) -> Outlook:
        """What there is to remember of a partition. Also outside a transaction."""
        ...

    def due_partitions(self, scope: Scope, now: int) -> list[str]:
        """Partitions with a head, or something aside, that is due. Also outside a transaction."""
        ...

    def due_keys(self, scope: Scope, partition: str, now: int, limit: int) -> list[str]:
        """Keys whose head is due, the longest due first. Also outside a transaction."""
        ...

    def aside_due_keys(self, scope: Scope, partition: str, now: int, limit: int) -> list[str]:
        """Unblocked keys with something aside that is due. Also outside a transaction."""
        ...

    def rows(self, scope: Scope, sharding_key: str, place: Place, limit: int) -> list[ParkedMessage]:
        """The first `limit` rows of a key in a place, in order."""
        ...

    def soonest(self, scope: Scope, sharding_key: str, limit: int) -> list[ParkedMessage]:
        """The rows aside of a key that are due first."""
        ...

    def wanting(self, scope: Scope, sharding_key: str, names: Iterable[str]) -> list[ParkedMessage]:
        """Some rows aside of a key that wait for one of these states or biz_keys, in order."""
        ...

    def has_aside(self, scope: Scope, sharding_key: str, types: Iterable[str], but: int) -> bool:
        """Whether a row of one of these types (`ANY`: of any) is aside of a key, besides the one of id `but`."""
        ...

    def aside_due_at(self, scope: Scope, sharding_key: str) -> int | None:
        """When the next row aside of a key is due."""
        ...

    def count(self, scope: Scope, sharding_key: str, place: Place) -> int:
        """How many rows a key has in a place."""
        ...

    def conflicts(self, scope: Scope, biz_key: str) -> list[bytes]:
        """The digests of the conflicts kept for a biz_key."""
        ...


class Session(Protocol):
    """One connection. A failed statement raises `StoreUnavailable`, `Contention` or `StoreError`."""

    @property
    def leases(self) -> Leases:
        """Leases, members and the fence."""
        ...

    @property
    def records(self) -> Records:
        """The idempotency records."""
        ...

    @property
    def parking(self) -> Parking:
        """Parked messages and keys."""
        ...

    @property
    def connection(self) -> Connection:
        """The connection that handlers work on, inside the transaction."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """One write transaction: committed at the end of the block, rolled back when it raises.

        Raises:
            CommitUnknown: the commit was sent and its answer lost; nothing may be assumed.
        """
        ...

    def run(self, statement: Executable, params: Any = None) -> CursorResult[Any]:
        """Execute one statement of our own; outside a transaction it is a read."""
        ...

    def run_each(self, statement: Update, rows: Sequence[Mapping[str, Any]]) -> int:
        """Execute an UPDATE for each of these parameters, in this order; how many rows it found."""
        ...

    def locking(self, query: Select[Any]) -> Select[Any]:
        """`query` as a read that locks its rows until the transaction ends."""
        ...

    def classify(self, error: BaseException) -> Fault:
        """Whose fault a database error is."""
        ...

    def now(self) -> int:
        """The database's time."""
        ...

    def savepoint(self, name: str) -> None:
        """Set a savepoint."""
        ...

    def rollback_to(self, name: str) -> None:
        """Undo what came after a savepoint; it stays set."""
        ...

    def release(self, name: str) -> None:
        """Let a savepoint go. Raises `StoreError` when it is gone: the transaction isn't the one we began."""
        ...

    def write(self, scope: Scope, writes: Writes, now: int) -> None:
        """Carry `writes` out. Raises `StoreError` when fewer rows were touched than were claimed."""
        ...

    def close(self) -> None:
        """Let go of the connection. Idempotent."""
        ...


class Store(Protocol):
    """A database. Thread-safe."""

    def session(self) -> Session:
        """A session of its own, owned and closed by the caller."""
        ...

    def read(self) -> AbstractContextManager[Connection]:
        """A connection for reading (status, audit): blocks no writer."""
        ...

    def init(self) -> bool:
        """Make the tables; True when there were none. Raises `SchemaMismatch` for those of another version."""
        ...

    def check(self) -> None:
        """Raise `SchemaMismatch` unless the tables are this program's."""
        ...

    def declare(self, scope: Scope, partitions: Sequence[str]) -> None:
        """Record a topic's partitions and make the group's rows.

        Raises:
            ConfigurationError: the store knows another list of partitions.
        """
        ...

    def partitions(self, topic: str) -> tuple[str, ...]:
        """The declared partitions, in their order; empty for an unknown topic."""
        ...

    def classify(self, error: BaseException) -> Fault:
        """Whose fault a database error is."""
        ...

    def close(self) -> None:
        """Let go of every connection it opened. Idempotent."""
        ...


Params = Mapping[str, Any]
