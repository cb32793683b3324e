"""What the outside is told: one event per message, and what happens to partitions, lanes and the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from seriatim.core.store.port import Scope
from seriatim.core.view import Verdict


class Observer(Protocol):
    """Told of what was committed and of what happened. Must be quick, thread-safe, and never raise."""

    def committed(self, scope: Scope, verdicts: Sequence[Verdict], duration_s: float) -> None:
        """These tasks were settled by one transaction, which took so long."""
        ...

    def event(self, level: int, name: str, **fields: Any) -> None:
        """Something happened that isn't a message's affair; `level` is one of `logging`'s."""
        ...
