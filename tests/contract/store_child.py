"""A process of its own that works on a store on command, to be killed or frozen at a known moment."""

from __future__ import annotations

import subprocess
import sys
from multiprocessing import Pipe
from typing import cast

from seriatim.contract.child import Child
from seriatim.core.store.port import Claimed, Fenced, FenceStep, Scope


class StoreChild(Child):
    """The parent's side of a process with one session on the store at `url`. Every answer is awaited `patience_s`."""

    def __init__(self, url: str, patience_s: float) -> None:
        ours, theirs = Pipe()
        self._pipe = ours
        self._patience_s = patience_s
        program = [sys.executable, "-m", "seriatim.contract.store_actor", str(theirs.fileno()), url]
        self._process = subprocess.Popen(program, pass_fds=[theirs.fileno()])
        theirs.close()

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
