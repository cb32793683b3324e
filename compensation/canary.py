"""Bringing a class of failures back with care: one key first, then twice as many each time, until it fails again.

The messages are retried by the lanes that own their partitions; this only makes them due, and watches. A failure of the
same class that returns for a key that was retried, its head or one of those behind it, stops everything that wasn't
retried yet.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, func, select

from seriatim.compensation import verbs
from seriatim.compensation.selecting import Filter, Target, one_of_each_key, select_targets
from seriatim.core.decision import Place, Reason
from seriatim.core.errors import ConfigurationError
from seriatim.core.store import SqlStore
from seriatim.core.store.schema import attempt_log as attempts
from seriatim.core.store.schema import parked_message as rows
from seriatim.core.store.schema import partition_owner as owners

FACTOR = 2  #: how many times as many keys the next wave has
MAX_WAVE = 512  #: keys of a wave at most
POLL_S = 0.1
FIRST_LOOK_S = 3.0  #: how long a consumer is waited for before anything was retried
SETTLE_S = 0.3  #: how long followers of a wave are watched before the next one
_CHUNK = 500


@dataclass(slots=True)
class Wave:
    """So many keys at once. `left` are keys that wait for a later wave."""

    number: int
    targets: Sequence[Target]
    left: int
    settled: list[Target] = field(default_factory=list)
    early: list[Target] = field(default_factory=list)
    failed: list[Target] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    returned: str | None = None  #: how the failure came back
    pending: list[Target] = field(default_factory=list)  #: neither settled nor failed when watching ended
    timed_out: bool = False

    @property
    def stops(self) -> bool:
        """Whether nothing more must be retried."""
        nothing_good = bool(self.failed) and not self.settled and not self.early
        return self.returned is not None or self.timed_out or nothing_good


@dataclass(slots=True)
class Canary:
    """The keys of a failure class, wave by wave. `timeout_s` is how long a wave may take."""

    store: SqlStore
    wanted: Filter
    who: str
    timeout_s: float = 300.0
    max_wave: int = MAX_WAVE
    _retried: dict[tuple[str, str, str | None], Target] = field(default_factory=dict)
    _seen: int = 0  # the last row of attempt_log that was looked at

    def targets(self) -> list[Target]:
        """One message of each key of the class, those that failed first coming first; held keys are left out.

        Raises:
            ConfigurationError: a group or a topic that the store doesn't know.
        """
        return one_of_each_key(select_targets(self.store, self.wanted, "canary"))

    def run(self, targets: Sequence[Target]) -> Iterator[Wave]:
        """Retry wave by wave; each is told when it has come to its end. The last one may say that it `stops`.

        Raises:
            ConfigurationError: nobody consumes a partition of the wave. StoreError: the store went away.
        """
        left, size, number = list(targets), 1, 0
        with self.store.read() as connection:
            self._seen = int(connection.execute(select(func.coalesce(func.max(attempts.c.id), 0))).scalar_one())
        while left:
            number += 1
            chosen, left = left[:size], left[size:]
            wave = self._wave(Wave(number, chosen, len(left)))
            yield wave
            if wave.stops:
                return
            size = min(size * FACTOR, self.max_wave)

    def _wave(self, wave: Wave) -> Wave:
        self._await_consumers(wave)
        waiting: dict[int, Target] = {}
        by_id = {target.id: target for target in wave.targets}
        for done in verbs.carry_out(self.store, "retry", wave.targets, self.who):
            target = by_id[done.parked_id or 0]
            if done.changed:
                waiting[target.id] = target
                self._retried[target.group, target.topic, target.key] = target
            else:
                wave.unchanged.append(done.text)
        self._watch(wave, waiting)
        return wave

    def _await_consumers(self, wave: Wave) -> None:
        """Wait for a consumer of each partition: a while in the middle, where one may be handed over, and not long."""
        patience_s = FIRST_LOOK_S if wave.number == 1 else max(FIRST_LOOK_S, self.timeout_s)
        deadline = time.monotonic() + patience_s
        while True:
            with self.store.read() as connection:
                now = int(connection.execute(select(self.store.dialect.now())).scalar_one())
                idle = unconsumed(connection, wave.targets, now)
            if not idle:
                return
            if time.monotonic() >= deadline:
                raise ConfigurationError(
                    f"nobody consumes {', '.join(idle)}, so nothing would be tried: start `seriatim run MODULE:APP`, "
                    "see who consumes what with `seriatim status`, and begin again"
                )
            time.sleep(POLL_S)

    def _watch(self, wave: Wave, waiting: dict[int, Target]) -> None:
        """Look until every message of the wave has settled or failed, and a moment longer for those behind them."""
        deadline = time.monotonic() + self.timeout_s
        quiet_until: float | None = None
        while True:
            with self.store.read() as connection:
                self._sort(connection, wave, waiting)
                wave.returned = wave.returned or self._returned(connection)
            now = time.monotonic()
            if not waiting and quiet_until is None:
                quiet_until = now + SETTLE_S
            wave.timed_out = bool(waiting) and wave.returned is None and now >= deadline
            if wave.returned is not None or wave.timed_out or (quiet_until is not None and now >= quiet_until):
                wave.pending = list(waiting.values())
                return
            time.sleep(POLL_S)

    @staticmethod
    def _sort(connection: Connection, wave: Wave, waiting: dict[int, Target]) -> None:
        """Take from `waiting` what has come to an end."""
        standing: dict[int, tuple[int, str, str]] = {}
        ids = sorted(waiting)
        for start in range(0, len(ids), _CHUNK):
            query = select(rows.c.id, rows.c.attempts, rows.c.place, rows.c.reason).where(
                rows.c.id.in_(ids[start : start + _CHUNK])
            )
            standing |= {row[0]: (row[1], row[2], row[3]) for row in connection.execute(query)}
        for row_id in ids:
            tried, place, reason = standing.get(row_id, (0, "", ""))
            if row_id not in standing:
                wave.settled.append(waiting.pop(row_id))
            elif place == Place.ASIDE.value and reason == Reason.EARLY.value:
                wave.early.append(waiting.pop(row_id))
            elif tried or place == Place.CLOSED.value or reason == Reason.DEAD.value:
                wave.failed.append(waiting.pop(row_id))

    def _returned(self, connection: Connection) -> str | None:
        """How the failure came back for a key that was retried, if it did."""
        query = select(attempts).where(attempts.c.id > self._seen).order_by(attempts.c.id)
        for row in connection.execute(query):
            self._seen = row.id
            if (row.consumer_group, row.topic, row.sharding_key) in self._retried and self._same(connection, row):
                return f"{row.biz_key or row.sharding_key}: {row.error_type or row.reason}: {row.error or ''}"
        return None

    def _same(self, connection: Connection, failure: Row[Any]) -> bool:
        """Whether a failure is of the class."""
        wanted = self.wanted
        if failure.reason == Reason.EARLY.value or wanted.error_type not in (None, failure.error_type):
            return False
        if wanted.error is not None and wanted.error.casefold() not in (failure.error or "").casefold():
            return False
        return wanted.type is None or failure.biz_key is None or wanted.type == _type_of(connection, failure)


def _type_of(connection: Connection, failure: Row[Any]) -> str | None:
    query = (
        select(rows.c.message_type)
        .where(
            rows.c.consumer_group == failure.consumer_group,
            rows.c.topic == failure.topic,
            rows.c.biz_key == failure.biz_key,
            rows.c.conflict_digest.is_(None),
        )
        .limit(1)
    )
    found: str | None = connection.execute(query).scalar()
    return found


def unconsumed(connection: Connection, targets: Sequence[Target], now: int) -> list[str]:
    """The partitions of these messages that nobody consumes at `now` (microseconds)."""
    idle: list[str] = []
    for group, topic in sorted({(target.group, target.topic) for target in targets}):
        query = select(owners.c.partition_id).where(
            owners.c.consumer_group == group,
            owners.c.topic == topic,
            owners.c.owner.is_not(None),
            owners.c.lease_until > now,
        )
        consumed = set(connection.execute(query).scalars())
        wanted = {target.partition for target in targets if (target.group, target.topic) == (group, topic)}
        idle += [f"{group}/{topic}/{name}" for name in sorted(wanted - consumed, key=lambda name: (len(name), name))]
    return idle
