"""Noticing what nobody runs: heads that came due long ago, and why they still wait."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sqlalchemy import RowMapping, func, select

from seriatim.core.observer import Observer
from seriatim.core.store import SqlStore
from seriatim.core.store.port import MICROSECOND
from seriatim.core.store.schema import group_member as members
from seriatim.core.store.schema import parked_key as keys
from seriatim.core.store.schema import partition_owner as owners

OVERDUE_S = 60.0  #: a lane that works runs what is due within a second; a long batch may keep it for longer

_SOONEST = (
    select(func.min(keys.c.next_attempt_at))
    .where(
        keys.c.consumer_group == owners.c.consumer_group,
        keys.c.topic == owners.c.topic,
        keys.c.partition_id == owners.c.partition_id,
        keys.c.next_attempt_at.is_not(None),
    )
    .scalar_subquery()
    .label("due_at")
)
_PARTITIONS = select(
    owners.c.consumer_group,
    owners.c.topic,
    owners.c.partition_id,
    owners.c.lease_until,
    owners.c.paused,
    members.c.host,
    members.c.pid,
    _SOONEST,
).outerjoin(
    members,
    (members.c.consumer_group == owners.c.consumer_group)
    & (members.c.topic == owners.c.topic)
    & (members.c.member == owners.c.member),
)


class Watch:
    """Tells of partitions whose heads are overdue."""

    def __init__(self, store: SqlStore, observer: Observer, overdue_s: float = OVERDUE_S) -> None:
        self._store = store
        self._observer = observer
        self._overdue = int(overdue_s * MICROSECOND)

    def look(self) -> bool:
        """Look once; one warning for each partition. There is never more to do right away."""
        with self._store.read() as connection:
            now = int(connection.execute(select(self._store.dialect.now())).scalar_one())
            rows = connection.execute(_PARTITIONS).mappings().all()
        for row in self._late(rows, now):
            self._observer.event(
                logging.WARNING,
                "heads overdue",
                group=row["consumer_group"],
                topic=row["topic"],
                partition=row["partition_id"],
                overdue_s=round((now - row["due_at"]) / MICROSECOND),
                why=_why(row, now),
            )
        return False

    def _late(self, rows: Sequence[RowMapping], now: int) -> list[RowMapping]:
        return [row for row in rows if row["due_at"] is not None and row["due_at"] < now - self._overdue]


def _why(row: RowMapping, now: int) -> str:
    if row["paused"] is not None:
        return f"the partition is paused: {row['paused']}"
    if row["pid"] is None or row["lease_until"] <= now:
        return "nobody consumes the partition: start `seriatim run`, or run heads with `seriatim compensate --direct`"
    return f"process {row['pid']} on {row['host']} holds the partition and is busy, or stands still"
