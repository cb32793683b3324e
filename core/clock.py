"""The database's time, without asking for it each time."""

from __future__ import annotations

import time
from collections.abc import Callable

from seriatim.core.store.port import MICROSECOND


class StoreClock:
    """The database's time in microseconds, asked once in `max_age_s` at most, and carried on by this process's clock.

    Good enough to tell what is due, when something was done, and how far a partition is read; leases are judged by the
    database itself.
    """

    def __init__(self, ask: Callable[[], int], max_age_s: float = 1.0) -> None:
        self._ask = ask
        self._max_age_s = max_age_s
        self._asked_at = float("-inf")
        self._told = 0

    def now(self) -> int:
        """The database's time."""
        passed = time.monotonic() - self._asked_at
        if passed >= self._max_age_s:
            self._told, self._asked_at, passed = self._ask(), time.monotonic(), 0.0
        return self._told + int(passed * MICROSECOND)
