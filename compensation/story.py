"""A key's whole story, in the order of time, from what the tables kept of it.

Every table is read through its index and up to a limit, the newest first; so is what comes out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, Table, func, select

from seriatim.compensation.selecting import scopes
from seriatim.core.decision import Place, Reason, Status
from seriatim.core.errors import ConfigurationError
from seriatim.core.store import SqlStore
from seriatim.core.store.port import Scope
from seriatim.core.store.schema import attempt_log as attempts
from seriatim.core.store.schema import idempotent_record as records
from seriatim.core.store.schema import operator_action as actions
from seriatim.core.store.schema import parked_key as keys
from seriatim.core.store.schema import parked_message as rows
from seriatim.core.store.schema import partition_owner as owners

#: What happened, in the order in which things of one moment happen.
PRODUCED, RECEIVED, ATTEMPT, EARLY, PARKED, OPERATOR, OUTCOME = (
    "produced",
    "received",
    "attempt failed",
    "early",
    "parked",
    "operator",
    "outcome",
)
_RANK = {what: rank for rank, what in enumerate((PRODUCED, RECEIVED, ATTEMPT, EARLY, PARKED, OPERATOR, OUTCOME))}
BATCH = 200  #: records of one moment, which only their effects tell apart
NEAR = 3  #: known keys that are named beside an unknown one


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a key. `at` is microseconds; `details` are words for a person, by name."""

    at: int
    what: str
    biz_key: str | None = None
    type: str | None = None
    details: dict[str, Any] = field(default_factory=dict)
    order: int = 0  #: among those of one moment and one kind


@dataclass(frozen=True, slots=True)
class Story:
    """What is known of a key in one group and topic. `more`: older events were left out."""

    group: str
    topic: str
    key: str
    partitions: Sequence[str]
    now: int
    events: Sequence[Event]
    more: bool
    standing: dict[str, Any] | None
    duplicates: int  #: stopped in its partitions, of whatever key


def tell(
    store: SqlStore, key: str, *, group: str | None = None, topic: str | None = None, limit: int = 200
) -> list[Story]:
    """The stories of a sharding key (or of the key of a biz_key), one for each group and topic that knows it.

    Raises:
        ConfigurationError: nobody knows the key, or the store doesn't know the group or the topic.
    """
    with store.read() as connection:
        now = int(connection.execute(select(store.dialect.now())).scalar_one())
        known = scopes(connection, group, topic)
        stories = [story for scope in known if (story := _story(connection, scope, key, now, limit)) is not None]
        if stories:
            return stories
        for scope in known:
            of = _key_of(connection, scope, key)
            story = None if of is None else _story(connection, scope, of, now, limit)
            if story is not None:
                stories.append(story)
        if stories:
            return stories
        near = sorted({one for scope in known for one in _near(connection, scope, key)})
    listed = f"; near it in order: {', '.join(near[: 2 * NEAR])}" if near else ""
    where = ", ".join(f"{one.group}/{one.topic}" for one in known) or "no topic at all"
    raise ConfigurationError(
        f"nothing is known of key {key!r} in {where}: it was never received, or is older than the retention{listed}"
    )


def _story(connection: Connection, scope: Scope, key: str, now: int, limit: int) -> Story | None:
    found: list[Event] = []
    more = False
    for table, events in _SOURCES:
        read = connection.execute(newest(table, scope, key, limit + 1)).all()
        more |= len(read) > limit
        found += [event for row in read[:limit] for event in events(row)]
    standing = _standing(connection, scope, key)
    if not found and standing is None:
        return None
    found.sort(key=lambda event: (event.at, _RANK[event.what], event.order))
    partitions = sorted({event.details["partition"] for event in found if "partition" in event.details})
    return Story(
        group=scope.group,
        topic=scope.topic,
        key=key,
        partitions=partitions,
        now=now,
        events=found[-limit:],
        more=more or len(found) > limit,
        standing=standing,
        duplicates=_duplicates(connection, scope, partitions),
    )


def newest(table: Table, scope: Scope, key: str, limit: int) -> Select[Any]:
    """The newest rows of a key, without bodies."""
    of_key = (table.c.consumer_group == scope.group) & (table.c.topic == scope.topic) & (table.c.sharding_key == key)
    if table is records:
        return _newest_records(scope, of_key, limit)
    big = {"headers", "body", "detail"}
    columns = [column for column in table.c if column.name not in big]
    return select(*columns).where(of_key).order_by(table.c.id.desc()).limit(limit)


def _newest_records(scope: Scope, of_key: ColumnElement[bool], limit: int) -> Select[Any]:
    """Found in the index alone, and read by their primary keys: SQLite would read the whole topic otherwise."""
    found = (
        select(records.c.biz_key).where(of_key).order_by(records.c.received_at.desc()).limit(limit + BATCH).subquery()
    )
    big = {"request_body", "response_body"}
    columns: list[ColumnElement[Any]] = [column for column in records.c if column.name not in big]
    return (
        select(*columns, func.length(records.c.response_body).label("response_bytes"))
        .join(found, found.c.biz_key == records.c.biz_key)
        .where(records.c.consumer_group == scope.group, records.c.topic == scope.topic)
        .order_by(records.c.received_at.desc(), records.c.effect.desc())
        .limit(limit)
    )


def _of_record(row: Row[Any]) -> Iterator[Event]:
    about: dict[str, Any] = {"biz_key": row.biz_key, "type": row.message_type, "order": row.effect or 0}
    yield Event(row.produced_at, PRODUCED, **about, details=_given(seq=row.seq))
    yield Event(row.received_at, RECEIVED, **about, details={"partition": row.partition_id})
    if row.status == Status.PROCESSING:
        details = {"outcome": "begun", "crash_attempts": row.crash_attempts}
        yield Event(row.update_time, OUTCOME, **about, details=details)
    elif row.settled_at is not None:
        yield Event(row.settled_at, OUTCOME, **about, details=_outcome(row))


def _outcome(row: Row[Any]) -> dict[str, Any]:
    moved = None if row.state_before is None and row.state_after is None else [row.state_before, row.state_after]
    first = row.first_outcome if row.first_outcome != row.outcome else None
    return _given(
        outcome=row.outcome,
        attempts=row.attempts or None,
        moved=moved,
        illegal=bool(row.illegal) or None,
        first_outcome=first,
        redelivered=((row.attempts > 1 or first is not None) and row.status == Status.SUCCESS) or None,
        effect=row.effect,
        response_bytes=row.response_bytes,
        edited=row.first_digest is not None or None,
    )


def _of_attempt(row: Row[Any]) -> Iterator[Event]:
    details = _given(
        attempts=row.attempts,
        error_type=row.error_type,
        error=row.error,
        then=_then(row.place, row.reason),
        reason=row.reason,
        next_attempt_at=row.next_attempt_at,
    )
    what = EARLY if row.reason == Reason.EARLY.value else ATTEMPT
    yield Event(row.at, what, biz_key=row.biz_key, details=details, order=row.id)


def _then(place: str, reason: str) -> str:
    """What a failure meant."""
    if reason == Reason.DEAD.value:
        return "dead"
    if reason in (Reason.EARLY.value, Reason.CONFLICT.value):
        return reason
    return {Place.QUEUE.value: "parked", Place.ASIDE.value: "set aside"}.get(place, "kept as evidence")


def _of_parked(row: Row[Any]) -> Iterator[Event]:
    about: dict[str, Any] = {"biz_key": row.biz_key, "type": row.message_type, "order": row.id}
    if row.reason in (Reason.BEHIND.value, Reason.CONFLICT.value):  # it has no record of its own
        yield Event(row.produced_at, PRODUCED, **about, details=_given(seq=row.seq))
        yield Event(row.received_at, RECEIVED, **about, details={"partition": row.partition_id})
    wants = json.loads(row.wants) if row.wants else None
    details = _given(parked_id=row.id, place=row.place, reason=row.reason, wants=wants, partition=row.partition_id)
    yield Event(row.parked_at, PARKED, **about, details=details)


def _of_action(row: Row[Any]) -> Iterator[Event]:
    details = _given(
        verb=row.verb, who=row.who, parked_id=row.parked_id, before=_value(row.before), after=_value(row.after)
    )
    yield Event(row.at, OPERATOR, biz_key=row.biz_key, details=details, order=row.id)


def _value(text: str | None) -> Any:
    if text is None:
        return None
    value = json.loads(text)
    if isinstance(value, dict):  # a body stays where it is
        return {name: one for name, one in value.items() if not name.startswith("body")}
    return value


def _given(**details: Any) -> dict[str, Any]:
    return {name: value for name, value in details.items() if value is not None}


_SOURCES: tuple[tuple[Table, Callable[[Row[Any]], Iterable[Event]]], ...] = (
    (records, _of_record),
    (attempts, _of_attempt),
    (rows, _of_parked),
    (actions, _of_action),
)


def _standing(connection: Connection, scope: Scope, key: str) -> dict[str, Any] | None:
    query = select(keys).where(
        keys.c.consumer_group == scope.group, keys.c.topic == scope.topic, keys.c.sharding_key == key
    )
    row = connection.execute(query).mappings().first()
    if row is None:
        return None
    head = select(func.min(rows.c.id)).where(
        rows.c.consumer_group == scope.group,
        rows.c.topic == scope.topic,
        rows.c.sharding_key == key,
        rows.c.place == Place.QUEUE.value,
    )
    names = ("depth", "aside", "attempts", "next_attempt_at", "held", "stops_partition", "since")
    return {name: row[name] for name in names} | {"head": connection.execute(head).scalar()}


def _duplicates(connection: Connection, scope: Scope, partitions: Sequence[str]) -> int:
    query = select(func.coalesce(func.sum(owners.c.duplicates), 0)).where(
        owners.c.consumer_group == scope.group, owners.c.topic == scope.topic, owners.c.partition_id.in_(partitions)
    )
    return int(connection.execute(query).scalar_one())


def _key_of(connection: Connection, scope: Scope, biz_key: str) -> str | None:
    """The sharding key of a message."""
    for table in (records, rows):
        query = select(table.c.sharding_key).where(
            table.c.consumer_group == scope.group, table.c.topic == scope.topic, table.c.biz_key == biz_key
        )
        found: str | None = connection.execute(query.limit(1)).scalar()
        if found is not None:
            return found
    return None


def _near(connection: Connection, scope: Scope, key: str) -> Iterator[str]:
    """Known keys next to an unknown one in order, that begin as it does."""
    beginning = key[: max(1, len(key) // 2)]
    for larger in (True, False):
        at = key
        for _ in range(NEAR):
            column = records.c.sharding_key
            end = func.min(column) if larger else func.max(column)
            query = select(end).where(
                records.c.consumer_group == scope.group,
                records.c.topic == scope.topic,
                column > at if larger else column < at,
            )
            found: str | None = connection.execute(query).scalar()
            if found is None or not found.startswith(beginning):
                break
            yield found
            at = found
