"""A process of its own that takes locks on command, to be killed or frozen at a known moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seriatim.contract.remote import Remote


@dataclass(frozen=True, slots=True)
class Place:
    """Where locks are kept: what `open_locks` takes."""

    url: str
    store_url: str


class LockChild(Remote):
    """The parent's side of a process with locks that live `ttl_s`. Every answer is awaited `patience_s`."""

    def __init__(self, place: Place, ttl_s: float, patience_s: float) -> None:
        super().__init__("seriatim.contract.lock_actor", place.url, place.store_url, str(ttl_s), patience_s=patience_s)

    def acquire(self, names: Sequence[str], wait_s: float) -> bool:
        """Take them and hold them; whether they were had."""
        return bool(self.ask("acquire", names, wait_s))

    def still_holds(self) -> bool:
        """Whether what was taken last passes its check."""
        return bool(self.ask("still_holds"))

    def release(self) -> None:
        self.ask("release")

    def tell_compete(self, names: Sequence[str], threads: int, seconds: float, folder: str) -> None:
        """Begin: each thread takes all of `names`, is alone for a moment, and gives them back, again and again.

        The answer is (how often they were had, how often somebody else was met inside).
        """
        self.tell("compete", names, threads, seconds, folder)
