"""Which parked messages are meant: by id, or by what they have in common. Plain reads, which stop no writer.

What is selected here is judged again, row by row, by the verb that is given it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Table, exists, select, true
from sqlalchemy.orm import aliased

from seriatim.core.decision import Place, Reason
from seriatim.core.errors import ConfigurationError
from seriatim.core.store import SqlStore
from seriatim.core.store.port import MICROSECOND, Scope
from seriatim.core.store.schema import parked_key as keys
from seriatim.core.store.schema import parked_message as rows
from seriatim.core.store.schema import partition_owner as owners

PAGE = 1_000  #: rows that are fetched at once
_CHUNK = 500  #: ids in one statement

_older = aliased(rows, name="older")
_IS_BEHIND = exists().where(
    _older.c.consumer_group == rows.c.consumer_group,
    _older.c.topic == rows.c.topic,
    _older.c.sharding_key == rows.c.sharding_key,
    _older.c.place == Place.QUEUE.value,
    _older.c.id < rows.c.id,
)
HEADS = (rows.c.place == Place.QUEUE.value) & ~_IS_BEHIND
ASIDE = rows.c.place == Place.ASIDE.value
CLOSED = rows.c.place == Place.CLOSED.value
DEAD = rows.c.reason == Reason.DEAD.value
EARLY = rows.c.reason == Reason.EARLY.value
_HELD = exists().where(
    keys.c.consumer_group == rows.c.consumer_group,
    keys.c.topic == rows.c.topic,
    keys.c.sharding_key == rows.c.sharding_key,
    keys.c.held,
)

#: Which rows a verb means when it is given a filter and no place: never more than its name promises.
MEANT: dict[str, ColumnElement[bool]] = {
    "list": true(),
    "retry": HEADS | ASIDE | DEAD,
    "skip": HEADS | ASIDE,
    "discard": CLOSED,
    "hold": ~CLOSED,
    "release": _HELD,
    "canary": (HEADS | (ASIDE & ~EARLY) | DEAD) & ~_HELD & rows.c.sharding_key.is_not(None),
}
#: … and what it can't do anything with, wherever that is.
_POSSIBLE: dict[str, ColumnElement[bool]] = {"retry": HEADS | ~(rows.c.place == Place.QUEUE.value), "skip": ~_IS_BEHIND}
_NEWEST_FIRST = {"discard"}  # the head last: those behind it must not run while they are being removed


@dataclass(frozen=True, slots=True)
class Filter:
    """What parked messages have in common. None and empty mean: whatever it is.

    `error` is a part of the error's text, `error_type` its whole type. `older_than_s`: parked for at least so long.
    """

    group: str | None = None
    topic: str | None = None
    ids: tuple[int, ...] = ()
    keys: tuple[str, ...] = ()
    type: str | None = None
    error_type: str | None = None
    error: str | None = None
    reason: Reason | None = None
    place: Place | None = None
    older_than_s: float | None = None

    @property
    def narrows(self) -> bool:
        """Whether it says more than group and topic."""
        return self != Filter(group=self.group, topic=self.topic)

    @property
    def failure_class(self) -> Filter:
        """The same, but only what a later failure would have in common with it."""
        return Filter(self.group, self.topic, type=self.type, error_type=self.error_type, error=self.error)


@dataclass(frozen=True, slots=True)
class Target:
    """A parked message as it was shown."""

    id: int
    group: str
    topic: str
    partition: str
    key: str | None
    biz_key: str | None

    @property
    def scope(self) -> Scope:
        """Its group and topic."""
        return Scope(self.group, self.topic)


_TARGET = (rows.c.id, rows.c.consumer_group, rows.c.topic, rows.c.partition_id, rows.c.sharding_key, rows.c.biz_key)


def select_targets(store: SqlStore, wanted: Filter, verb: str) -> list[Target]:
    """The messages that `verb` would be about, those that were parked first coming first.

    Raises:
        ConfigurationError: an id, a group or a topic that the store doesn't know.
    """
    with store.read() as connection:
        if wanted.ids:
            return _by_id(connection, wanted)
        check_scope(connection, wanted.group, wanted.topic)
        now = int(connection.execute(select(store.dialect.now())).scalar_one())
        meant = MEANT[verb] if wanted.place is None else _POSSIBLE.get(verb, true())
        found = _matching(connection, wanted, meant, now)
    return found[::-1] if verb in _NEWEST_FIRST else found


def _by_id(connection: Connection, wanted: Filter) -> list[Target]:
    ids = sorted(set(wanted.ids))
    found: dict[int, Target] = {}
    for start in range(0, len(ids), _CHUNK):
        chunk = rows.c.id.in_(ids[start : start + _CHUNK])
        query = select(*_TARGET).where(chunk, *of_scope(rows, wanted.group, wanted.topic))
        found |= {row[0]: Target(*row) for row in connection.execute(query)}
    if missing := [f"#{one}" for one in ids if one not in found]:
        where = "".join(
            f" in {what} {name!r}" for what, name in (("group", wanted.group), ("topic", wanted.topic)) if name
        )
        raise ConfigurationError(
            f"there is no parked message {', '.join(missing)}{where}: it has run, or was removed; "
            "`seriatim parked list` shows what there is"
        )
    return [found[one] for one in ids]


def _matching(connection: Connection, wanted: Filter, meant: ColumnElement[bool], now: int) -> list[Target]:
    query = select(*_TARGET).where(meant, *matching(wanted, now)).order_by(rows.c.id)
    return [Target(*row) for row in connection.execute(query.execution_options(yield_per=PAGE))]


def of_scope(table: Table, group: str | None, topic: str | None) -> list[ColumnElement[bool]]:
    """That a row of a table is of the group and the topic, where they are given."""
    pairs = ((table.c.consumer_group, group), (table.c.topic, topic))
    return [column == value for column, value in pairs if value is not None]


def matching(wanted: Filter, now: int) -> list[ColumnElement[bool]]:
    """What must hold of a row of `parked_message` at `now` (microseconds)."""
    clauses = of_scope(rows, wanted.group, wanted.topic)
    if wanted.ids:
        clauses.append(rows.c.id.in_(wanted.ids))
    if wanted.keys:
        clauses.append(rows.c.sharding_key.in_(wanted.keys))
    equal: list[tuple[Any, Any]] = [
        (rows.c.message_type, wanted.type),
        (rows.c.error_type, wanted.error_type),
        (rows.c.reason, wanted.reason and wanted.reason.value),
        (rows.c.place, wanted.place and wanted.place.value),
    ]
    clauses += [column == value for column, value in equal if value is not None]
    if wanted.error is not None:
        clauses.append(rows.c.error.contains(wanted.error, autoescape=True))
    if wanted.older_than_s is not None:
        clauses.append(rows.c.parked_at <= now - int(wanted.older_than_s * MICROSECOND))
    return clauses


def one_of_each_key(targets: Sequence[Target]) -> list[Target]:
    """The first of each key."""
    first: dict[tuple[str, str, str | None], Target] = {}
    for target in targets:
        first.setdefault((target.group, target.topic, target.key), target)
    return list(first.values())


def scopes(connection: Connection, group: str | None = None, topic: str | None = None) -> list[Scope]:
    """The groups and topics that the store knows, narrowed by what is given.

    Raises:
        ConfigurationError: what is given isn't among them.
    """
    query: Select[Any] = select(owners.c.consumer_group, owners.c.topic).distinct()
    known = sorted((Scope(*row) for row in connection.execute(query)), key=lambda one: (one.group, one.topic))
    found = [one for one in known if group in (None, one.group) and topic in (None, one.topic)]
    if found or (group is None and topic is None):
        return found
    for what, name, names in (
        ("group", group, {one.group for one in known}),
        ("topic", topic, {one.topic for one in known}),
    ):
        if name is not None and name not in names:
            raise ConfigurationError(
                f"the store knows no {what} {name!r}; it knows: {', '.join(sorted(names)) or 'none'}"
            )
    raise ConfigurationError(
        f"group {group!r} doesn't consume topic {topic!r}; it consumes: "
        f"{', '.join(one.topic for one in known if one.group == group)}"
    )


def check_scope(connection: Connection, group: str | None, topic: str | None) -> None:
    """Raise `ConfigurationError` for a group or a topic that the store doesn't know."""
    if group is not None or topic is not None:
        scopes(connection, group, topic)


def still_failing(connection: Connection, ids: Sequence[int], failure_class: Filter) -> set[int]:
    """Those of `ids` that are parked and match `failure_class`."""
    found: set[int] = set()
    for start in range(0, len(ids), _CHUNK):
        chunk = replace(failure_class, ids=tuple(ids[start : start + _CHUNK]))
        found.update(connection.execute(select(rows.c.id).where(*matching(chunk, 0))).scalars())
    return found
