"""What is blocked, since when, behind what, why, and what will be tried when: read from the store, for a person.

Plain reads on one snapshot, which stop no writer. Every list is bounded, the totals aren't: they read the keys once,
and of each blocked key its head through the index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, case, func, select

from seriatim.compensation.selecting import of_scope
from seriatim.core.decision import Place
from seriatim.core.store import SqlStore
from seriatim.core.store.schema import group_member as members
from seriatim.core.store.schema import parked_key as keys
from seriatim.core.store.schema import parked_message as messages
from seriatim.core.store.schema import partition_owner as owners


@dataclass(frozen=True, slots=True)
class BlockedKey:
    """A key whose messages wait. Times in microseconds; `next_attempt_at` is None where only a person can help."""

    group: str
    topic: str
    partition: str
    sharding_key: str
    since: int
    depth: int
    held: bool
    stops_partition: bool
    attempts: int
    next_attempt_at: int | None
    parked_id: int | None
    biz_key: str | None
    type: str | None
    reason: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class EarlyMessage:
    """A message that waits for a predecessor, or was set aside; it blocks nobody."""

    group: str
    topic: str
    sharding_key: str
    biz_key: str | None
    type: str | None
    reason: str
    wants: str | None
    error: str | None
    since: int
    next_attempt_at: int | None


@dataclass(frozen=True, slots=True)
class PartitionLine:
    """Who consumes a partition, or why nobody does. `host` and `pid` are None for one that nobody holds."""

    group: str
    topic: str
    partition: str
    host: str | None
    pid: int | None
    lease_until: int
    position: str | None
    paused: str | None
    duplicates: int
    parked_rows: int = 0
    parked_bytes: int = 0
    full: bool = False
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class FailureClass:
    """Blocked keys whose heads failed alike. `since` is when the first was blocked, `parked_id` the head of one."""

    group: str
    topic: str
    reason: str
    type: str | None
    error_type: str | None
    keys: int
    dead: int
    since: int
    parked_id: int
    error: str | None


@dataclass(frozen=True, slots=True)
class Totals:
    """How much is parked in all: keys and messages. `parked_rows` and `parked_bytes` count all of parking."""

    blocked_keys: int
    waiting: int
    dead_heads: int
    aside: int
    closed: int
    held: int = 0
    parked_rows: int = 0
    parked_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """How everything stands at `now`. `classes` are of all blocked keys, the largest first, up to a limit."""

    now: int
    totals: Totals
    blocked: Sequence[BlockedKey]
    aside: Sequence[EarlyMessage]
    partitions: Sequence[PartitionLine]
    classes: Sequence[FailureClass] = ()
    more_classes: int = 0


CLASSES = 8  #: failure classes that are listed
MAX_CLASSES = 1_000  #: … and that are told apart


def standing(store: SqlStore, *, group: str | None = None, topic: str | None = None, limit: int = 20) -> Standing:
    """How the store stands, of one group or topic or all; at most `limit` blocked keys and messages aside.

    Raises:
        StoreError: the store can't be read.
    """
    with store.read() as connection:
        now = int(connection.execute(select(store.dialect.now())).scalar_one())
        partitions = _partitions(connection, group, topic)
        totals = _totals(connection, group, topic, partitions)
        classes = connection.execute(classes_query(group, topic)).all()
        return Standing(
            now=now,
            totals=totals,
            blocked=_blocked(connection, group, topic, limit),
            aside=_aside(connection, group, topic, limit) if totals.aside else [],
            partitions=partitions,
            classes=[_class(connection, row) for row in classes[:CLASSES]],
            more_classes=max(0, len(classes) - CLASSES),
        )


def _totals(
    connection: Connection, group: str | None, topic: str | None, partitions: Sequence[PartitionLine]
) -> Totals:
    blocked = keys.c.depth > 0
    dead = blocked & keys.c.next_attempt_at.is_(None) & ~keys.c.held
    row = connection.execute(
        select(
            func.coalesce(func.sum(case((blocked | keys.c.held, 1), else_=0)), 0),
            func.coalesce(func.sum(keys.c.depth), 0),
            func.coalesce(func.sum(case((dead, 1), else_=0)), 0),
            func.coalesce(func.sum(keys.c.aside), 0),
            func.coalesce(func.sum(case((keys.c.held, 1), else_=0)), 0),
        ).where(*of_scope(keys, group, topic))
    ).one()
    blocked_keys, waiting, dead_heads, aside, held = (int(value) for value in row)
    return Totals(
        blocked_keys=blocked_keys,
        waiting=waiting,
        dead_heads=dead_heads,
        aside=aside,
        closed=int(connection.execute(closed_query(group, topic)).scalar_one()),
        held=held,
        parked_rows=sum(line.parked_rows for line in partitions),
        parked_bytes=sum(line.parked_bytes for line in partitions),
    )


def closed_query(group: str | None, topic: str | None) -> Select[Any]:
    """How much is kept that nothing tries: by the index alone, no body is read."""
    return (
        select(func.count())
        .select_from(messages)
        .where(*of_scope(messages, group, topic), messages.c.place == Place.CLOSED.value)
    )


def classes_query(group: str | None, topic: str | None) -> Select[Any]:
    """Blocked keys by what their heads failed of: of each key the head alone is read, through the index."""
    heads = messages.alias("heads")
    first = (
        select(func.min(messages.c.id))
        .where(
            messages.c.consumer_group == keys.c.consumer_group,
            messages.c.topic == keys.c.topic,
            messages.c.sharding_key == keys.c.sharding_key,
            messages.c.place == Place.QUEUE.value,
        )
        .scalar_subquery()
    )
    alike = (keys.c.consumer_group, keys.c.topic, heads.c.reason, heads.c.message_type, heads.c.error_type)
    count = func.count()
    return (
        select(
            *alike,
            count.label("keys"),
            func.sum(case((keys.c.next_attempt_at.is_(None) & ~keys.c.held, 1), else_=0)).label("dead"),
            func.min(keys.c.since).label("since"),
            func.min(heads.c.id).label("parked_id"),
        )
        .select_from(keys.join(heads, heads.c.id == first))
        .where(*of_scope(keys, group, topic), keys.c.depth > 0)
        .group_by(*alike)
        .order_by(count.desc(), func.min(heads.c.id))
        .limit(MAX_CLASSES)
    )


def _class(connection: Connection, row: Any) -> FailureClass:
    error = connection.execute(select(messages.c.error).where(messages.c.id == row.parked_id)).scalar()
    return FailureClass(
        group=row.consumer_group,
        topic=row.topic,
        reason=row.reason,
        type=row.message_type,
        error_type=row.error_type,
        keys=int(row.keys),
        dead=int(row.dead),
        since=row.since,
        parked_id=row.parked_id,
        error=error,
    )


def _blocked(connection: Connection, group: str | None, topic: str | None, limit: int) -> list[BlockedKey]:
    chosen = (
        select(keys)
        .where(*of_scope(keys, group, topic), (keys.c.depth > 0) | keys.c.held)
        .order_by(keys.c.since)
        .limit(limit)
    )
    return [_blocked_key(connection, row) for row in connection.execute(chosen).mappings().all()]


def _blocked_key(connection: Connection, key: RowMapping) -> BlockedKey:
    head = (
        connection.execute(
            select(messages.c.id, messages.c.biz_key, messages.c.message_type, messages.c.reason, messages.c.error)
            .where(
                messages.c.consumer_group == key["consumer_group"],
                messages.c.topic == key["topic"],
                messages.c.sharding_key == key["sharding_key"],
                messages.c.place == Place.QUEUE.value,
            )
            .order_by(messages.c.id)
            .limit(1)
        ).first()
        or (None,) * 5
    )
    return BlockedKey(
        group=key["consumer_group"],
        topic=key["topic"],
        partition=key["partition_id"],
        sharding_key=key["sharding_key"],
        since=key["since"],
        depth=key["depth"],
        held=bool(key["held"]),
        stops_partition=bool(key["stops_partition"]),
        attempts=key["attempts"],
        next_attempt_at=key["next_attempt_at"],
        parked_id=head[0],
        biz_key=head[1],
        type=head[2],
        reason=head[3],
        error=head[4],
    )


def _aside(connection: Connection, group: str | None, topic: str | None, limit: int) -> list[EarlyMessage]:
    query = (
        select(
            messages.c.consumer_group,
            messages.c.topic,
            messages.c.sharding_key,
            messages.c.biz_key,
            messages.c.message_type,
            messages.c.reason,
            messages.c.wants,
            messages.c.error,
            messages.c.parked_at,
            messages.c.next_attempt_at,
        )
        .where(*of_scope(messages, group, topic), messages.c.place == Place.ASIDE.value)
        .order_by(messages.c.id)
        .limit(limit)
    )
    return [EarlyMessage(*tuple(row)) for row in connection.execute(query).all()]


def _partitions(connection: Connection, group: str | None, topic: str | None) -> list[PartitionLine]:
    query = (
        select(
            owners.c.consumer_group,
            owners.c.topic,
            owners.c.partition_id,
            members.c.host,
            members.c.pid,
            owners.c.lease_until,
            owners.c.position,
            owners.c.paused,
            owners.c.duplicates,
            owners.c.parked_rows,
            owners.c.parked_bytes,
            owners.c.full,
            owners.c.trouble,
        )
        .outerjoin(
            members,
            (members.c.consumer_group == owners.c.consumer_group)
            & (members.c.topic == owners.c.topic)
            & (members.c.member == owners.c.member),
        )
        .where(*of_scope(owners, group, topic))
    )
    lines = [PartitionLine(*row) for row in connection.execute(query)]
    return sorted(lines, key=lambda line: (line.group, line.topic, len(line.partition), line.partition))
