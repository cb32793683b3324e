"""What the demo shows while it runs: how far the consumers are, read from Seriatim's tables."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, and_, func, select

from seriatim.core.decision import Outcome, Place, Reason, Status
from seriatim.core.store.schema import group_member, idempotent_record, parked_key, parked_message, partition_owner

MICROSECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How things stand. `owners` gives each partition's living consumer, by process id; `stamp` moves with progress."""

    applied: int
    duplicates: int
    late: int
    dead: int
    early_now: int
    parked_now: int
    parked_keys: int
    behind: int
    due: int
    owners: Mapping[str, int | None]
    stamp: Sequence[object]

    def accounted(self, distinct: int) -> bool:
        """Whether each of so many messages is settled, given up, or waits behind one that was, and nothing is due."""
        return not self.due and self.applied + self.late + self.dead + self.behind == distinct


@dataclass(frozen=True, slots=True)
class Blocked:
    """A key that waits: since when (seconds ago), for which message, how often that was tried, why, and what next."""

    key: str
    since_s: float
    type: str
    attempts: int
    error: str
    behind: int
    next_in_s: float | None


def snapshot(connection: Connection) -> Snapshot:
    """How things stand now."""
    record, row, key = idempotent_record.c, parked_message.c, parked_key.c
    outcomes = {
        (status, outcome): count
        for status, outcome, count in connection.execute(
            select(record.status, record.outcome, func.count()).group_by(record.status, record.outcome)
        )
    }
    parked = {
        (place, reason): count
        for place, reason, count in connection.execute(
            select(row.place, row.reason, func.count()).group_by(row.place, row.reason)
        )
    }
    due, blocked = connection.execute(
        select(
            func.count().filter(key.next_attempt_at.is_not(None) | key.aside_attempt_at.is_not(None)),
            func.count().filter(key.depth > 0),
        )
    ).one()
    owners, stamp, duplicates = _owners(connection)
    return Snapshot(
        applied=outcomes.get((Status.SUCCESS, Outcome.APPLIED.value), 0),
        late=sum(outcomes.get((Status.SUCCESS, one.value), 0) for one in (Outcome.STALE, Outcome.ALREADY)),
        dead=outcomes.get((Status.FAILED, Outcome.REJECTED.value), 0),
        duplicates=duplicates,
        early_now=parked.get((Place.ASIDE.value, Reason.EARLY.value), 0),
        parked_now=sum(count for (place, _), count in parked.items() if place == Place.QUEUE.value),
        parked_keys=blocked,
        behind=parked.get((Place.QUEUE.value, Reason.BEHIND.value), 0),
        due=due,
        owners=owners,
        stamp=stamp,
    )


def _owners(connection: Connection) -> tuple[dict[str, int | None], list[object], int]:
    owner, member = partition_owner.c, group_member.c
    same = and_(
        member.consumer_group == owner.consumer_group, member.topic == owner.topic, member.member == owner.member
    )
    found = connection.execute(
        select(
            owner.partition_id,
            owner.owner,
            owner.lease_until,
            owner.effect,
            owner.position,
            owner.duplicates,
            member.pid,
        )
        .select_from(partition_owner.outerjoin(group_member, same))
        .order_by(func.length(owner.partition_id), owner.partition_id)
    ).all()
    now = time.time() * MICROSECOND
    owners = {row.partition_id: row.pid if row.owner is not None and row.lease_until > now else None for row in found}
    return owners, [(row.effect, row.position) for row in found], sum(row.duplicates for row in found)


def blocked(connection: Connection) -> list[Blocked]:
    """Every key that waits, the longest-waiting first."""
    key, row = parked_key.c, parked_message.c
    now = time.time() * MICROSECOND
    found = []
    for one in connection.execute(select(parked_key).where(key.depth > 0).order_by(key.since)).all():
        head = connection.execute(
            select(row.message_type, row.attempts, row.error_type, row.error)
            .where(row.sharding_key == one.sharding_key, row.place == Place.QUEUE.value)
            .order_by(row.id)
        ).first()
        if head is not None:
            next_in_s = None if one.next_attempt_at is None else max(0.0, one.next_attempt_at - now) / MICROSECOND
            error = f"{head.error_type}: {head.error}" if head.error_type else str(head.error)
            since_s = (now - one.since) / MICROSECOND
            found.append(
                Blocked(one.sharding_key, since_s, head.message_type, head.attempts, error, one.depth - 1, next_in_s)
            )
    return found
