"""What a front filter is: a memory of records that are final, and that may forget any of them at any time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from seriatim.core.decision import Outcome

#: What may be remembered: records of status 2, which no verb ever reopens. A rejected one can be tried again.
FINAL = frozenset({Outcome.APPLIED, Outcome.ALREADY, Outcome.STALE})


@dataclass(frozen=True, slots=True)
class FilterEntry:
    """A record that is final: enough to tell a duplicate from a conflict. The stored answer stays in the store."""

    digest: bytes  #: of the body that took effect, 32 bytes
    type: str | None
    outcome: Outcome


class Filter(Protocol):
    """A memory beside the store. Thread-safe. Nothing it does raises: trouble is forgetting."""

    def known(self, group: str, topic: str, biz_keys: Sequence[str]) -> dict[str, FilterEntry]:
        """Those of `biz_keys` that are surely final, in one round trip; of all others it knows nothing.

        An entry with the delivery's digest and type is a duplicate of it; with another, ask the store (a conflict).
        """
        ...

    def remember(self, group: str, topic: str, entries: Mapping[str, FilterEntry]) -> None:
        """Remember these. To be called **after** their commit is known, never before. One round trip.

        What isn't of status 2 (`FINAL`) isn't kept.
        """
        ...

    def forget(self, group: str, topic: str, biz_keys: Sequence[str]) -> bool:
        """Forget these, whose records an operator reopens or deletes; to be called after that commit.

        False when it can't be known whether they are forgotten: they are at the end of the TTL. The breaker is asked
        past: an operator may wait.
        """
        ...

    def close(self) -> None:
        """Let go of every connection. Idempotent; after it nothing is known."""
        ...

    def describe(self) -> str:
        """The filter in words fit for a log: no secret in it."""
        ...
