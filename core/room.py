"""Room for what is parked: when a group's partitions of a topic must wait, and when they may go on. Pure.

What is counted is everything in `parked_message`, whatever its place, since all of it takes room on the disk. The
counts are kept in `partition_owner` by the transactions that park and unpark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seriatim.core.decision import Policy
from seriatim.core.store.port import OwnerRow

ROOM = 0.9  #: the share of its cap to which the parking must empty before messages are taken again


@dataclass(slots=True)
class Room:
    """How much is parked, and whether that is too much."""

    full: bool = False
    rows: int = 0
    bytes: int = 0

    def changed(self, owners: Sequence[OwnerRow], policy: Policy) -> bool:
        """Count anew; whether that ended or began a wait."""
        self.rows = sum(row.parked_rows for row in owners)
        self.bytes = sum(row.parked_bytes for row in owners)
        share = max(self.rows / policy.max_parked, self.bytes / policy.max_parked_bytes)
        before, self.full = self.full, share >= (ROOM if self.full else 1.0)
        return self.full is not before

    def counted(self) -> dict[str, int]:
        """The counts, for a log line."""
        return {"rows": self.rows, "bytes": self.bytes}
