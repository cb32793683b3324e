"""A partition that a lane holds, and what it remembers of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from seriatim.core.backoff import Backoff
from seriatim.core.message import Position
from seriatim.core.store.port import Claimed, Outlook, OwnerRow

_REST = Backoff(base_s=0.02, cap_s=0.5)


@dataclass(slots=True)
class Holding:
    """A claimed partition.

    `effect` is the stamp as last seen; `outlook` what is remembered of its parked keys while the stamp matches.
    `careful`: its last owner never let go, so its next batch runs message by message, each counted before it runs.
    `read_through` (microseconds) is the time up to which it is known to be read. `touched_at` is when a fence or a
    renewal last held the lease, on this process's own clock.
    """

    partition: str
    owner: str
    epoch: int
    effect: int
    position: Position | None
    careful: bool
    read_through: int | None = None
    outlook: Outlook = field(default_factory=lambda: Outlook(any_keys=True))
    lost: bool = False
    paused: str | None = None  #: why no ordinary batch of it is run
    trouble: str | None = None  #: what keeps it from being read at the broker
    halted: bool = False  #: nothing of it is run until a person has looked
    touched_at: float = field(default_factory=time.monotonic)
    rests_until: float = 0.0  #: nothing of it is run before, on this process's own clock: others go first
    due_turn: float = 0.0  #: when its due messages last had their turn, on this process's own clock
    _rests: int = 0

    @classmethod
    def of(cls, claimed: Claimed) -> Holding:
        """What a claim gave."""
        row = claimed.row
        if row.owner is None:
            raise AssertionError("a claim without an owner")
        return cls(
            partition=row.partition,
            owner=row.owner,
            epoch=row.epoch,
            effect=row.effect,
            position=row.position,
            careful=not claimed.released,
            read_through=row.read_through,
            paused=row.paused,
        )

    @classmethod
    def visited(cls, row: OwnerRow, outlook: Outlook) -> Holding:
        """A partition that is held for a moment, whoever owns it. Whatever runs is counted before it runs."""
        return cls(
            partition=row.partition,
            owner="",
            epoch=row.epoch,
            effect=row.effect,
            position=row.position,
            careful=True,
            read_through=row.read_through,
            outlook=outlook,
            paused=row.paused,
        )

    @property
    def rests(self) -> bool:
        """Whether it has met contention and lets others go first."""
        return self.rests_until > time.monotonic()

    def rest(self) -> None:
        """It has met contention: a pause that grows until something of it is committed."""
        self._rests += 1
        self.rests_until = time.monotonic() + _REST.delay(self._rests)

    def committed(self, advance: int, outlook: Outlook | None) -> None:
        """A transaction of ours went through."""
        self.effect += advance
        self.touched_at = time.monotonic()
        self._rests = 0
        if outlook is not None:
            self.outlook = outlook

    def read_up_to(self, time_us: int) -> None:
        """The partition is known to be read up to a time, in microseconds."""
        self.read_through = max(self.read_through or 0, time_us)

    def reread(self, row: OwnerRow, outlook: Outlook) -> None:
        """Someone else changed the partition, or we don't know what we did: this is how it stands."""
        self.effect = row.effect
        self.position = row.position
        self.outlook = outlook
        self.paused = row.paused
