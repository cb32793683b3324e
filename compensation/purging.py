"""Removing what is settled and old enough that no copy of it can come any more.

A record is what stops a duplicate, so it may go only when the last possible copy has come: see `horizon`. Each slice is
a transaction of its own over at most `SLICE` rows, found by a plain read and removed by their primary keys. Records of
a key that has anything parked are kept, however old: a duplicate of theirs may be among what is parked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from sqlalchemy import bindparam, delete, exists, select

from seriatim.core.decision import Place, Policy
from seriatim.core.errors import ConfigurationError
from seriatim.core.store.port import MICROSECOND, Scope, Session, Writes
from seriatim.core.store.schema import attempt_log
from seriatim.core.store.schema import idempotent_record as records
from seriatim.core.store.schema import parked_key as keys
from seriatim.core.store.schema import parked_message as rows

SLICE = 200  #: rows that one transaction removes

_IS_PARKED = exists().where(
    keys.c.consumer_group == records.c.consumer_group,
    keys.c.topic == records.c.topic,
    keys.c.sharding_key == records.c.sharding_key,
)
_OLD_RECORDS = (
    select(records.c.consumer_group, records.c.topic, records.c.biz_key, records.c.settled_at)
    .where(records.c.settled_at < bindparam("before"), ~_IS_PARKED)
    .order_by(records.c.settled_at)
    .limit(SLICE)
)
_DELETE_RECORD = delete(records).where(
    records.c.consumer_group == bindparam("at_group"),
    records.c.topic == bindparam("at_topic"),
    records.c.biz_key == bindparam("at_biz_key"),
    records.c.settled_at == bindparam("seen"),  # an operator may have reopened it since
)
_OLD_EVIDENCE = (
    select(rows.c.consumer_group, rows.c.topic, rows.c.partition_id, rows.c.id)
    .where(rows.c.place == Place.CLOSED.value, rows.c.parked_at < bindparam("before"))
    .order_by(rows.c.id)
    .limit(SLICE)
)
_OLD_ATTEMPTS = select(attempt_log.c.id).where(attempt_log.c.at < bindparam("before")).limit(SLICE)


@dataclass(frozen=True, slots=True)
class Horizon:
    """How late the last copy of a message may come, in seconds, and what that is made of."""

    redelivery_s: float
    retries_s: float
    early_s: float

    @property
    def total_s(self) -> float:
        """The shortest time for which records must be kept."""
        return self.redelivery_s + self.retries_s + self.early_s

    def __str__(self) -> str:
        return (
            f"{self.redelivery_s:,.0f} s (how late the broker or a producer may send a copy: redelivery_s) + "
            f"{self.retries_s:,.0f} s (the longest way through max_attempts and back-off) + "
            f"{self.early_s:,.0f} s (the early deadline) = {self.total_s:,.0f} s"
        )


def horizon(redelivery_s: float, policies: Sequence[Policy]) -> Horizon:
    """The horizon for topics of these policies."""
    return Horizon(
        redelivery_s,
        max((_span(policy) for policy in policies), default=0.0),
        max((policy.early_deadline_s for policy in policies), default=0.0),
    )


def check_retention(retention_s: float, needed: Horizon) -> None:
    """Refuse a retention that would let a late copy run a second time.

    Raises:
        ConfigurationError: it is too short; with the arithmetic.
    """
    if retention_s < needed.total_s:
        raise ConfigurationError(
            f"retention_s is {retention_s:,.0f} s, and a copy of a message may come as late as {needed}: its record "
            f"would be gone, and it would run again; keep records for {needed.total_s:,.0f} s or longer"
        )


def _span(policy: Policy) -> float:
    """The longest time that back-off can spread all attempts over."""
    backoff = policy.backoff
    waits, wait = 0.0, min(backoff.base_s, backoff.cap_s)
    for done in range(1, policy.max_attempts):
        if wait >= backoff.cap_s:
            return waits + backoff.cap_s * (policy.max_attempts - done)
        waits += wait
        wait = min(wait * max(backoff.factor, 1.0), backoff.cap_s)
    return waits


class Purge:
    """Removes settled records, evidence and logged attempts that are older than `retention_s`."""

    def __init__(self, session: Session, retention_s: float) -> None:
        self._session = session
        self._retention = int(retention_s * MICROSECOND)

    def step(self) -> bool:
        """Remove a slice of each kind; whether there may be more.

        Raises:
            StoreUnavailable, Contention: nothing of the slice in hand went; try again later.
        """
        before = self._session.now() - self._retention
        return any([self._remove_records(before), self._remove_evidence(before), self._remove_attempts(before)])

    def _remove_records(self, before: int) -> int:
        found = self._session.run(_OLD_RECORDS, {"before": before}).all()
        if not found:
            return 0
        params = [
            {"at_group": row.consumer_group, "at_topic": row.topic, "at_biz_key": row.biz_key, "seen": row.settled_at}
            for row in sorted(found, key=lambda row: (row.consumer_group, row.topic, row.biz_key.encode()))
        ]
        with self._session.transaction():
            return int(self._session.run(_DELETE_RECORD, params).rowcount)

    def _remove_evidence(self, before: int) -> int:
        """Rows that are kept and that nothing tries: each partition's under its row, which counts them."""
        found = self._session.run(_OLD_EVIDENCE, {"before": before}).all()
        ordered = sorted(found, key=lambda row: (row.consumer_group, row.topic, row.partition_id.encode(), row.id))
        for (group, topic, partition), these in groupby(ordered, key=lambda row: tuple(row[:3])):
            self._remove_closed(Scope(group, topic), partition, [row.id for row in these])
        return len(found)

    def _remove_closed(self, scope: Scope, partition: str, ids: Sequence[int]) -> None:
        with self._session.transaction():
            self._session.leases.hold_row(scope, partition)
            closed = select(rows.c.id).where(rows.c.id.in_(ids), rows.c.place == Place.CLOSED.value)
            still = list(self._session.run(closed).scalars())
            self._session.write(scope, Writes(unparks=still), self._session.now())

    def _remove_attempts(self, before: int) -> int:
        ids = list(self._session.run(_OLD_ATTEMPTS, {"before": before}).scalars())
        if not ids:
            return 0
        with self._session.transaction():
            return int(self._session.run(delete(attempt_log).where(attempt_log.c.id.in_(sorted(ids)))).rowcount)
