"""What the demo shows while it runs: how far the consumers are, as `seriatim status` and the records say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select

from seriatim.compensation.blocked import Standing, standing
from seriatim.core.decision import Outcome
from seriatim.core.store import SqlStore
from seriatim.core.store.schema import idempotent_record

MICROSECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How things stand. `outcomes` counts the settled messages by what became of them."""

    outcomes: Mapping[str, int]
    standing: Standing

    @property
    def applied(self) -> int:
        """Messages that took effect."""
        return self.outcomes.get(Outcome.APPLIED.value, 0)

    @property
    def late(self) -> int:
        """Messages whose order had moved on."""
        return sum(self.outcomes.get(one.value, 0) for one in (Outcome.STALE, Outcome.ALREADY))

    @property
    def dead(self) -> int:
        """Messages that were given up."""
        return self.outcomes.get(Outcome.REJECTED.value, 0)

    @property
    def behind(self) -> int:
        """Messages that wait behind one that failed."""
        return self.standing.totals.waiting - self.standing.totals.blocked_keys

    @property
    def duplicates(self) -> int:
        """Deliveries that were stopped."""
        return sum(line.duplicates for line in self.standing.partitions)

    @property
    def owners(self) -> Mapping[str, int | None]:
        """The process that consumes each partition; None where none does."""
        now = self.standing.now
        return {line.partition: line.pid if line.lease_until > now else None for line in self.standing.partitions}

    @property
    def stamp(self) -> Sequence[object]:
        """Changes as long as anything moves."""
        return [self.outcomes, self.standing.totals, *(line.position for line in self.standing.partitions)]

    def accounted(self, distinct: int) -> bool:
        """Whether each of so many messages is settled, given up, or waits behind one that was, and nothing is due."""
        totals = self.standing.totals
        pending = totals.blocked_keys - totals.dead_heads + totals.aside
        return not pending and self.applied + self.late + self.dead + self.behind == distinct


def snapshot(store: SqlStore) -> Snapshot:
    """How things stand now."""
    outcome = idempotent_record.c.outcome
    with store.read() as connection:
        counted = connection.execute(select(outcome, func.count()).group_by(outcome)).all()
    return Snapshot({str(name): count for name, count in counted}, standing(store))


def seconds_since(moment: int, now: int) -> float:
    """Seconds between two of the store's times."""
    return (now - moment) / MICROSECOND
