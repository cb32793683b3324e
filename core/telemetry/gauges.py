"""What is read when somebody looks: this process's own state, and what is parked in the store."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Connection, Row, Select, case, func, select
from sqlalchemy.exc import SQLAlchemyError

from seriatim.core.decision import Policy
from seriatim.core.errors import SeriatimError
from seriatim.core.store import SqlStore
from seriatim.core.store.port import MICROSECOND
from seriatim.core.store.schema import parked_key as keys
from seriatim.core.store.schema import partition_owner as owners
from seriatim.core.telemetry.catalogue import PLACES, PROCESS_GAUGES, STORE_GAUGES, STORE_READABLE
from seriatim.core.telemetry.metrics import Reading
from seriatim.core.worker import Worker

EVERY_S = 5.0  #: how often the store is read at most
SHARE = 20  #: … and not before so many times the last reading's own time is over
WAIT_S = 1.0  #: how long a scrape waits for a reading
HUNG_S = 15.0  #: a reading that takes longer counts as one that failed

_READY, _HELD, _ROUND = PROCESS_GAUGES
_STORE = {metric.name.removeprefix("seriatim_"): metric for metric in STORE_GAUGES}


def process_gauges(worker: Worker) -> Iterator[Reading]:
    """How this process is."""
    health = worker.health()
    yield _READY, (), float(health.ready)
    for topic, held in worker.held().items():
        yield _HELD, (worker.group, topic), held
    for lane in health.lanes:
        yield _ROUND, (lane.name,), lane.round_s


class StoreGauges:
    """What is parked, read from the store on a thread of its own while somebody looks, and kept for a while.

    A scrape never waits longer than `WAIT_S`. While the store can't be read there are no gauges of it, save the one
    that says so.
    """

    def __init__(self, store: SqlStore, group: str, policies: Mapping[str, Policy]) -> None:
        self._store = store
        self._group = group
        self._policies = policies
        self._mutex = threading.Lock()
        self._readings: list[Reading] | None = None
        self._failed = False
        self._next_at = 0.0
        self._began_at = 0.0
        self._done = threading.Event()
        self._done.set()

    def read(self) -> Iterator[Reading]:
        """The gauges, at most a few seconds old."""
        with self._mutex:
            now = time.monotonic()
            if self._done.is_set() and now >= self._next_at:
                self._done.clear()
                self._began_at = now
                threading.Thread(target=self._look, name="store-gauges", daemon=True).start()
        self._done.wait(WAIT_S)
        hangs = not self._done.is_set() and time.monotonic() - self._began_at > HUNG_S
        readings = self._readings
        readable = readings is not None and not self._failed and not hangs
        yield STORE_READABLE, (), float(readable)
        if readable and readings is not None:
            yield from readings

    def _look(self) -> None:
        try:
            self._readings = list(self._gauges())
            self._failed = False
        except (SeriatimError, SQLAlchemyError):
            self._failed = True
        finally:
            now = time.monotonic()
            self._next_at = now + max(EVERY_S, SHARE * (now - self._began_at))
            self._done.set()

    def _gauges(self) -> Iterator[Reading]:
        with self._store.read() as connection:
            now = int(connection.execute(select(self._store.dialect.now())).scalar_one())
            parked = _by_topic(connection, _parked(self._group, list(self._policies)))
            shares = _by_topic(connection, _partitions(self._group, list(self._policies), now))
        for topic, policy in self._policies.items():
            yield from self._of_topic(
                topic, policy, _numbers(parked.get(topic), 6), _numbers(shares.get(topic), 5), now
            )

    def _of_topic(
        self, topic: str, policy: Policy, parked: list[int | None], shares: list[int | None], now: int
    ) -> Iterator[Reading]:
        blocked, queue, aside, dead = (value or 0 for value in parked[:4])
        since, due_at = parked[4:]
        rows, size, paused, full, unowned = (value or 0 for value in shares)
        labels = (self._group, topic)
        for place, count in zip(PLACES, (queue, aside, max(0, rows - queue - aside)), strict=True):
            yield _STORE["parked_messages"], (*labels, place), count
        values = {
            "parked_keys": blocked,
            "dead_heads": dead,
            "oldest_blocked_key_seconds": _age_s(since, now),
            "overdue_seconds": _age_s(due_at, now),
            "parked_rows": rows,
            "parked_rows_cap": policy.max_parked,
            "parked_bytes": size,
            "parked_bytes_cap": policy.max_parked_bytes,
            "partitions_paused": paused,
            "partitions_full": full,
            "partitions_unowned": unowned,
        }
        for name, value in values.items():
            yield _STORE[name], labels, value


def _by_topic(connection: Connection, query: Select[Any]) -> dict[str, Row[Any]]:
    return {row[0]: row for row in connection.execute(query)}


def _parked(group: str, topics: list[str]) -> Select[Any]:
    queued = keys.c.depth > 0
    blocked = queued | keys.c.held
    return (
        select(
            keys.c.topic,
            func.sum(case((blocked, 1), else_=0)),
            func.sum(keys.c.depth),
            func.sum(keys.c.aside),
            func.sum(case((queued & keys.c.next_attempt_at.is_(None) & ~keys.c.held, 1), else_=0)),
            func.min(case((blocked, keys.c.since))),
            func.min(case((queued & ~keys.c.held, keys.c.next_attempt_at))),
        )
        .where(keys.c.consumer_group == group, keys.c.topic.in_(topics))
        .group_by(keys.c.topic)
    )


def _partitions(group: str, topics: list[str], now: int) -> Select[Any]:
    unowned = owners.c.owner.is_(None) | (owners.c.lease_until <= now)
    return (
        select(
            owners.c.topic,
            func.sum(owners.c.parked_rows),
            func.sum(owners.c.parked_bytes),
            func.sum(case((owners.c.paused.is_not(None), 1), else_=0)),
            func.sum(case((owners.c.full, 1), else_=0)),
            func.sum(case((unowned, 1), else_=0)),
        )
        .where(owners.c.consumer_group == group, owners.c.topic.in_(topics))
        .group_by(owners.c.topic)
    )


def _numbers(row: Row[Any] | None, count: int) -> list[int | None]:
    """The numbers of a row after its topic; a sum is a decimal on some servers."""
    values: list[Any] = [None] * count if row is None else list(row)[1:]
    return [None if value is None else int(value) for value in values]


def _age_s(since: int | None, now: int) -> float:
    return 0.0 if since is None else max(0.0, (now - since) / MICROSECOND)
