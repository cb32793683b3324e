"""How long to wait before trying again."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential, jittered and capped; safe at any attempt.

    The n-th wait lies between half of, and all of, ``base_s * factor ** (n - 1)``, never below `base_s` and never
    above `cap_s`. The exponent is capped before the power is taken, so attempt 10**6 costs no more than attempt 1.
    """

    base_s: float = 1.0
    cap_s: float = 300.0
    factor: float = 2.0
    random: random.Random = field(default_factory=random.Random, repr=False, compare=False)

    def delay(self, attempt: int) -> float:
        """Seconds to wait after `attempt` calls (1 or more; less counts as 1)."""
        shortest = min(self.base_s, self.cap_s)
        wait = shortest
        for _ in range(min(max(attempt, 1) - 1, 64)):
            if wait >= self.cap_s:
                break
            wait = min(wait * self.factor, self.cap_s)
        return max(shortest, wait * (0.5 + 0.5 * self.random.random()))
