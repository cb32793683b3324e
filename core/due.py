"""What has come due in a lane's partitions: heads of parked keys with those behind them, and what waits aside.

Run between ordinary batches, also while those are paused. Rows are read before the fence: a change by anybody else
since the stamp was last seen makes the fence refuse, so what was read is true inside the transaction.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import takewhile

from seriatim.core.decision import Place, Reason
from seriatim.core.holding import Holding
from seriatim.core.passing import Part
from seriatim.core.store.port import ParkedMessage, Writes
from seriatim.core.task import of_row
from seriatim.core.transactor import Transactor

DUE_KEYS = 20  #: due keys that one round runs for a partition, before it takes ordinary batches again
SLICE = 50  #: followers that one transaction of a drain runs
ASIDE = 100  #: messages aside of one key that one transaction tries


@dataclass(slots=True)
class DueWork:
    """Runs what is due of one topic in one lane."""

    transactor: Transactor

    def run(self, holding: Holding, now: int, until: float = math.inf) -> bool:
        """Run what is due of a partition at `now` (microseconds), within bounds; whether there was anything.

        What hasn't begun at `until`, on this process's own clock, is left for another round; but one key of each kind
        is run in any case.

        Raises:
            PartitionsLost, StampMoved, StoreUnavailable, Contention, CommitUnknown, TransactionBroken: see `Execution`.
        """
        outlook, scope, parking = holding.outlook, self.transactor.scope, self.transactor.session.parking
        heads = aside = []  # type: list[str]
        if outlook.due_at is not None and outlook.due_at <= now:
            heads = parking.due_keys(scope, holding.partition, now, DUE_KEYS)
        for key in _begun(heads, until):
            self._drain(holding, key)
        if outlook.aside_due_at is not None and outlook.aside_due_at <= now:
            aside = parking.aside_due_keys(scope, holding.partition, now, DUE_KEYS)
        for key in _begun(aside, until):
            self._try_aside(holding, key, now)
        return bool(heads or aside)

    def _drain(self, holding: Holding, key: str) -> None:
        """One slice of a key's queue: the head alone, or some followers once it has gone."""
        transactor = self.transactor
        rows = transactor.session.parking.rows(transactor.scope, key, Place.QUEUE, SLICE)
        if not rows:
            self._mend(holding, key)
            return
        alone = rows[0].reason is not Reason.BEHIND or holding.careful or transactor.one_by_one > 0
        tasks = tuple(of_row(transactor.topic, row) for row in (rows[:1] if alone else rows))
        with transactor.counted_if_deadly(holding, tasks[0]) if alone else nullcontext():
            transactor.refuse(tasks[0])
            transactor.execute([Part(holding, tasks)], savepoints=True, drain=True)

    def _try_aside(self, holding: Holding, key: str, now: int) -> None:
        """Try those aside of a key: every early one, and those set aside whose own time has come."""
        transactor = self.transactor
        most = 1 if transactor.one_by_one else ASIDE
        rows = transactor.session.parking.soonest(transactor.scope, key, most + 1)
        if not rows:
            self._mend(holding, key)
            return
        chosen = [row for row in rows[:most] if row.reason is Reason.EARLY or (row.next_attempt_at or 0) <= now]
        chosen = self._together(holding, sorted(chosen, key=lambda row: row.id))
        rest = [row.next_attempt_at or now for row in rows if row not in chosen]
        if not chosen:
            self._mend(holding, key, aside_due_at=min(rest, default=None))
            return
        tasks = tuple(of_row(transactor.topic, row) for row in chosen)
        part = Part(holding, tasks, aside=True, aside_rest=min(rest, default=None))
        with transactor.counted_if_deadly(holding, tasks[0]) if len(tasks) == 1 else nullcontext():
            transactor.refuse(tasks[0])
            transactor.execute([part], savepoints=True)

    def _together(self, holding: Holding, chosen: list[ParkedMessage]) -> list[ParkedMessage]:
        """Those of `chosen` that may share a transaction: one that may kill its process has one of its own."""
        if holding.careful:
            return chosen[:1]
        biz_keys = [row.biz_key for row in chosen if row.biz_key is not None]
        records = self.transactor.session.records.look_up(self.transactor.scope, biz_keys)
        deadly = {biz_key for biz_key, record in records.items() if record.crash_attempts}
        safe = list(takewhile(lambda row: row.biz_key not in deadly, chosen))
        return safe or chosen[:1]

    def _mend(self, holding: Holding, key: str, aside_due_at: int | None = None) -> None:
        """A key says that it has something due and has nothing: count its rows and let the key say so."""
        session, scope = self.transactor.session, self.transactor.scope
        with session.transaction():
            self.transactor.hold(holding)
            standing = session.parking.keys(scope, [key]).get(key)
            if standing is not None:
                queue = session.parking.count(scope, key, Place.QUEUE)
                aside = session.parking.count(scope, key, Place.ASIDE)
                due_at = standing.due_at if queue else None
                mended = replace(standing, depth=queue, aside=aside, due_at=due_at, aside_due_at=aside_due_at)
                session.write(scope, Writes(keys={key: (holding.partition, mended)}), session.now())
            outlook = session.parking.outlook(scope, holding.partition)
        holding.committed(1, outlook)
        self.transactor.tell(logging.INFO, "parked key looked over", key=key)


def _begun(keys: list[str], until: float) -> Iterator[str]:
    """The first of these, and the others as long as there is time to begin with them."""
    for index, key in enumerate(keys):
        if index and time.monotonic() >= until:
            return
        yield key
