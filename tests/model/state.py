"""Values: the tables of one partition, the lanes and the verb at work on it, and how a write changes the
tables.

`Tables` is what the database holds, together with three ghosts that only the promises look at: `effects`
(which is also the business state that the guard reads), `skipped` and `excused`. Sets of messages are bit
masks. `Change` is one write; a transaction keeps its changes to itself until it commits (READ COMMITTED),
so a plan made on an old reading does its harm.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeVar

from .scenario import Budget, Scenario

Record = Literal["", "applied", "parked", "early", "rejected"]
"""The outcome in idempotent_record: '' = no row; applied = status 2; the others = status 3."""
Place = Literal["queue", "aside"]
Kind = Literal[
    "record",
    "park",
    "park_first",
    "put_back",
    "dead",
    "unpark",
    "aside",
    "key",
    "effect",
    "skip",
    "give_up",
    "reopen",
    "position",
]
Phase = Literal[
    "out", "subscribing", "idle", "peeked", "waiting", "decided", "unknown", "settling", "late", "positioning"
]
FINAL: tuple[Record, ...] = ("applied", "rejected")


class Row(NamedTuple):
    """A row of parked_message: in the queue of its key (head or behind), or aside (early, or set aside).

    Aside it blocks nobody. A dead one blocks its key until a person comes.
    """

    message: int
    place: Place
    dead: bool = False


class Key(NamedTuple):
    """A row of parked_key."""

    head: int | None
    early: int
    held: bool

    @property
    def blocked(self) -> bool:
        """Whether a delivery of this key goes behind."""
        return self.head is not None or self.held


class Change(NamedTuple):
    """One write of a transaction."""

    kind: Kind
    target: int
    value: object = None


Writes = tuple[Change, ...]


class Tables(NamedTuple):
    """The store's truth about the partition."""

    record: tuple[Record, ...]
    parked: tuple[Row, ...]
    keys: tuple[Key | None, ...]
    effects: int
    skipped: int
    excused: int
    position: int

    def row(self, b: int) -> Row | None:
        """Return the parked row of a message."""
        return next((row for row in self.parked if row.message == b), None)

    def rows(self, scenario: Scenario, k: int, place: Place) -> tuple[int, ...]:
        """Return the parked messages of a key in one place, in order."""
        return tuple(b for b, where, _ in self.parked if where == place and scenario.messages[b].key == k)

    def has_effect(self, b: int) -> bool:
        """Say whether the effect of a message is committed."""
        return bool(self.effects >> b & 1)


class Lane(NamedTuple):
    """A consumer. `owns` = its token is the one in partition_owner; `locks` = it holds that row."""

    phase: Phase
    owns: bool = False
    locks: bool = False
    subscribed: bool = False
    cursor: int = 0
    size: int = 0
    writes: Writes = ()
    after: Phase = "idle"
    peeked: tuple[int, tuple[Row, ...]] | None = None
    stamp_moved: bool = False
    epoch: int = 0
    owned_before: bool = False


class Verb(NamedTuple):
    """An operator's (or daemon's) transaction under way."""

    name: str
    key: int
    writes: Writes
    locks: bool
    wants_owner: bool = False


class Shown(NamedTuple):
    """What an operator was shown: a parked message, whether it was the head, and those behind it then."""

    message: int
    head: bool
    followers: tuple[int, ...]


class Pending(NamedTuple):
    """A transaction whose COMMIT went unanswered; it will end either way."""

    writes: Writes
    locks: bool
    current: bool


class State(NamedTuple):
    """Everything."""

    tables: Tables
    acked: int
    lanes: tuple[Lane, Lane]
    verb: Verb | None
    shown: Shown | None
    pending: Pending | None
    budget: Budget
    epoch: int
    fresh_claim: bool


OUT = Lane("out")
T = TypeVar("T")


def replaced(items: tuple[T, ...], i: int, value: T) -> tuple[T, ...]:
    """Return the tuple with one item replaced."""
    return (*items[:i], value, *items[i + 1 :])


def first_state(scenario: Scenario) -> State:
    """Return the state before anybody has started."""
    n = len(scenario.messages)
    no_record: Record = ""
    tables = Tables((no_record,) * n, (), (None,) * scenario.keys, 0, 0, 0, 0)
    return State(tables, 0, (OUT, OUT), None, None, None, scenario.budget, 0, fresh_claim=False)


def write(tables: Tables, change: Change) -> Tables:
    """Carry out one change."""
    kind, b, value = change
    if kind == "record":
        return tables._replace(record=replaced(tables.record, b, value))  # type: ignore[arg-type]
    if kind == "key":
        return tables._replace(keys=replaced(tables.keys, b, value))  # type: ignore[arg-type]
    if kind == "position":
        return tables._replace(position=b)
    if kind in ("effect", "skip", "give_up", "reopen"):
        return _ghost(tables, kind, 1 << b)
    goes_aside = kind == "aside" or value == "aside"
    excused = tables.excused | 1 << b if goes_aside else tables.excused
    return tables._replace(parked=_park(tables.parked, kind, b, value), excused=excused)


def _ghost(tables: Tables, kind: Kind, bit: int) -> Tables:
    if kind == "effect":
        return tables._replace(effects=tables.effects | bit)
    if kind == "reopen":
        return tables._replace(skipped=tables.skipped & ~bit)
    return tables._replace(skipped=tables.skipped | bit, excused=tables.excused | bit)


def _park(rows: tuple[Row, ...], kind: Kind, b: int, value: object) -> tuple[Row, ...]:
    if kind == "unpark":
        return tuple(row for row in rows if row.message != b)
    if kind == "aside":
        return tuple(Row(b, "aside") if row.message == b else row for row in rows)
    if kind == "dead":
        return tuple(row._replace(dead=True) if row.message == b else row for row in rows)
    if kind in ("put_back", "park_first"):
        alive = tuple(row._replace(dead=False) if row.message == b else row for row in rows)
        return alive if any(row.message == b for row in rows) else _put_back(rows, b, first=kind == "park_first")
    if any(row.message == b for row in rows):  # UNIQUE among the waiting
        return rows
    return (*rows, Row(b, value))  # type: ignore[arg-type]


def _put_back(rows: tuple[Row, ...], b: int, *, first: bool) -> tuple[Row, ...]:
    """Insert a row where it stood: messages are numbered as in the log, parked rows by their ids."""
    i = next((i for i, row in enumerate(rows) if row.message > b and row.place == "queue"), len(rows))
    i = 0 if first else i
    return (*rows[:i], Row(b, "queue"), *rows[i:])
