"""A process of its own that works on a store on command, to be killed or frozen at a known moment."""

from __future__ import annotations

from typing import cast

from seriatim.contract.remote import Remote
from seriatim.core.store.port import Claimed, Fenced, FenceStep, Scope


class StoreChild(Remote):
    """The parent's side of a process with one session on the store at `url`. Every answer is awaited `patience_s`."""

    def __init__(self, url: str, patience_s: float) -> None:
        super().__init__("seriatim.contract.store_actor", url, patience_s=patience_s)

    @property
    def pid(self) -> int:
        return self._process.pid

    def claim(self, scope: Scope, partition: str, ttl: int) -> Claimed | None:
        return cast("Claimed | None", self.ask("claim", scope, partition, ttl))

    def fence(self, scope: Scope, step: FenceStep, ttl: int) -> dict[str, Fenced]:
        """One transaction of a fence and nothing else."""
        return cast("dict[str, Fenced]", self.ask("fence", scope, step, ttl))

    def begin(self, scope: Scope, step: FenceStep, ttl: int, biz_key: str) -> None:
        """Begin a transaction, fence, claim a record, and stay inside."""
        self.ask("begin", scope, step, ttl, biz_key)

    def tell_race(self, scope: Scope, partition: str, biz_keys: list[str], threads: int) -> None:
        """Begin: every thread tries to be the one that runs each of `biz_keys`; the answer is how many it ran."""
        self.tell("race", scope, partition, biz_keys, threads)

    def tell_spin(self, scope: Scope, partition: str, seconds: float) -> None:
        """Begin: short transactions, one after another, for so long; the answer is (how many, the longest wait)."""
        self.tell("spin", scope, partition, seconds)
