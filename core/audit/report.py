"""What an audit found."""

from __future__ import annotations

import enum
import math
from array import array
from dataclasses import dataclass, field
from typing import Any

SHOWN = 10  #: violations of a kind that are told in full


class Violation(str, enum.Enum):
    """What must not be. Each breaks a promise."""

    LOST = "lost"  #: P3: sent (by the manifest) or received, and neither settled nor waiting
    ORDER = "order_violations"  #: P1, P5: applied after, or before, a message of its key that it mustn't pass
    DOUBLE = "double_effects"  #: P2: two effects of one message
    LOST_EFFECT = "lost_effects"  #: P2: recorded as applied, and the business table doesn't have it
    UNRECORDED_EFFECT = "unrecorded_effects"  #: P2: the business table has it, and no record says so
    ALTERED = "altered"  #: P8: recorded under its biz_key with another body, type or key than was sent
    MISPLACED = "misplaced"  #: R2: one key in two partitions, or not in the one it was sent to
    UNFENCED = "unfenced"  #: P6: an effect number that its partition never gave out, or gave out once
    UNEXPLAINED = "unexplained"  #: P1: skipped, with nothing that says why
    UNFINISHED = "unfinished"  #: P3: begun, and nobody is at it


@dataclass(slots=True)
class Findings:
    """Violations: how many of each kind, and the first few in full."""

    counts: dict[Violation, int] = field(default_factory=lambda: dict.fromkeys(Violation, 0))
    details: dict[Violation, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, kind: Violation, **detail: Any) -> None:
        """One more violation."""
        self.counts[kind] += 1
        shown = self.details.setdefault(kind, [])
        if len(shown) < SHOWN:
            shown.append({name: value for name, value in detail.items() if value is not None})

    @property
    def total(self) -> int:
        """How many violations there are."""
        return sum(self.counts.values())


@dataclass(slots=True)
class Durations:
    """How long something took, many times; kept as microseconds."""

    values: array[int] = field(default_factory=lambda: array("q"))

    def add(self, microseconds: int) -> None:
        """Add one."""
        self.values.append(microseconds)

    def percentiles_ms(self, *shares: float) -> list[float | None]:
        """The values (nearest rank) in milliseconds; None where there is nothing."""
        ordered = sorted(self.values)
        if not ordered:
            return [None for _ in shares]
        return [ordered[max(0, math.ceil(share * len(ordered)) - 1)] / 1000 for share in shares]


@dataclass(slots=True)
class Report:
    """What became of the messages of one group and topic.

    `messages` counts the distinct ones that the store knows; `sent` and `copies` are of the manifest. `applied`,
    `already`, `stale` and `rejected` are how records ended; `illegal` are those of the stale ones whose states no
    path joins. `early` counts what was first judged early, whatever came of it; `duplicates`, deliveries that were
    stopped. `parked`, `aside`, `dead`, `conflicts` and `unreadable` are what is in the parking table now. `in_hand` has
    been begun by an owner who still has the partition. `maybe_unread` are those of `lost` after which nothing of their
    partition was handled: they may just not have been read yet. `beyond_manifest` is what only the store knows.
    """

    group: str
    topic: str
    messages: int = 0
    applied: int = 0
    already: int = 0
    stale: int = 0
    illegal: int = 0
    rejected: int = 0
    duplicates: int = 0
    early: int = 0
    parked: int = 0
    aside: int = 0
    dead: int = 0
    conflicts: int = 0
    unreadable: int = 0
    in_hand: int = 0
    sent: int | None = None
    copies: int | None = None
    ignored: int = 0
    maybe_unread: int = 0
    beyond_manifest: int = 0
    findings: Findings = field(default_factory=Findings)
    received_to_committed: Durations = field(default_factory=Durations)
    produced_to_committed: Durations = field(default_factory=Durations)

    @property
    def clean(self) -> bool:
        """Whether nothing was found that mustn't be."""
        return not self.findings.total

    def as_json(self) -> dict[str, Any]:
        """One object: the counts, each kind of violation, the times, and the first violations of each kind in full."""
        skipped = ("findings", "received_to_committed", "produced_to_committed")
        counts = {name: getattr(self, name) for name in self.__slots__ if name not in skipped}
        p50, p99 = self.received_to_committed.percentiles_ms(0.5, 0.99)
        p50_produced, p99_produced = self.produced_to_committed.percentiles_ms(0.5, 0.99)
        return {
            **counts,
            **{kind.value: count for kind, count in self.findings.counts.items()},
            "p50_ms": p50,
            "p99_ms": p99,
            "p50_produced_ms": p50_produced,
            "p99_produced_ms": p99_produced,
            "clean": self.clean,
            "violations": {kind.value: details for kind, details in self.findings.details.items()},
        }
