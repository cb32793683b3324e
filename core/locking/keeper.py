"""What a keeper of locks must be able to do: four steps, each safe to repeat with the same token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from seriatim.core.store.port import Session


class Keeper(Protocol):
    """A server that stores tokens under names for the TTL it was opened with. Thread-safe.

    A token is random, and of one taking: whoever finds it knows that the lock is his, whatever was answered before. So
    after an error any step may be done again. Names come in order. Trouble raises `StoreUnavailable` or `Contention`.
    """

    def take(self, names: Sequence[str], token: str) -> Mapping[str, int | None] | None:
        """Take the names in order until one is another's: a fence number for each, or None where not all are ours yet.

        Those before the first that is another's may stay taken, and are kept by being taken again.
        """
        ...

    def extend(self, names: Sequence[str], token: str) -> bool:
        """Give those that are ours a whole TTL again; whether all of them are."""
        ...

    def holds(self, names: Sequence[str], token: str, session: Session | None) -> bool:
        """Whether all are ours and stay so: until `session`'s transaction ends, or for most of a TTL."""
        ...

    def free(self, names: Sequence[str], token: str) -> int:
        """Give back those that are ours; how many were."""
        ...

    def close(self) -> None:
        """Let go of every connection. Idempotent."""
        ...

    def describe(self) -> str:
        """The keeper in words fit for a log."""
        ...
