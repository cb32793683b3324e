"""A circuit breaker: what failed isn't asked again for a while, and then by one caller at a time.

Closed: everything passes. The `failures`-th failure in a row opens it. Open: nothing passes for `rest_s`. Then half
open: one call passes as a probe; its success closes the breaker, its failure opens it for twice as long, up to `cap_s`.
A probe that never reports back counts as failed after a rest.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable


class State(enum.Enum):
    """What becomes of a call."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half open"


class Breaker:
    """Thread-safe; does no input or output. `clock` gives seconds.

    Every call that `passes` must end in `succeeded` or `failed`.
    """

    def __init__(
        self,
        *,
        failures: int = 1,
        rest_s: float = 1.0,
        cap_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = max(1, failures)
        self._shortest = rest_s
        self._cap_s = max(rest_s, cap_s)
        self._clock = clock
        self._mutex = threading.Lock()
        self._failures = 0
        self._rest_s = rest_s
        self._until: float | None = None  # when it was opened: until when nothing passes
        self._probing = False

    @property
    def state(self) -> State:
        """Its state now."""
        if self._until is None:
            return State.CLOSED
        return State.HALF_OPEN if self._probing else State.OPEN

    def passes(self) -> bool:
        """Whether a call may be made now."""
        if self._until is None:
            return True
        with self._mutex:
            now = self._clock()
            if self._until is None:
                return True
            if now < self._until:
                return False
            self._probing = True
            self._until = now + self._rest_s  # the others go on resting; a lost probe isn't waited for longer
            return True

    def succeeded(self) -> bool:
        """A call went well. Whether that closed the breaker."""
        if self._until is None and not self._failures:
            return False
        with self._mutex:
            closed = self._probing
            if self._until is None or self._probing:
                self._until, self._failures, self._rest_s, self._probing = None, 0, self._shortest, False
            return closed

    def failed(self) -> bool:
        """A call failed. Whether that opened the breaker, which was closed."""
        with self._mutex:
            if self._until is not None:  # a probe; or one that passed before it opened, which tells nothing new
                if self._probing:
                    self._rest_s = min(self._rest_s * 2, self._cap_s)
                    self._until, self._probing = self._clock() + self._rest_s, False
                return False
            self._failures += 1
            if self._failures < self._limit:
                return False
            self._until = self._clock() + self._rest_s
            return True
