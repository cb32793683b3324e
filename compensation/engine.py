"""The engine of compensation: the chores that no lane does, each at its own pace.

Bringing parked messages back needs no engine: a parked key says when its head is due, and the lane that owns its
partition runs it then. What is left are the chores here, and any number of engines may do them side by side:

- `direct`: run what is due without its lane (only where the app's handlers are at hand and it is asked for);
- `purge`: remove what is older than the retention;
- `watch`: say which heads are overdue, and why nobody runs them;
- `dead letters`: park what a broker gave up by itself.

A chore that meets a store that is away is tried again with back-off, for as long as it takes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from seriatim.core.backoff import Backoff
from seriatim.core.errors import PASSING, BrokerError
from seriatim.core.observer import Observer

_TROUBLE = Backoff(base_s=0.1, cap_s=5.0)


@dataclass(slots=True)
class Chore:
    """Something to be done again and again. `step` does some of it and says whether there is more right now."""

    name: str
    every_s: float
    step: Callable[[], bool]
    close: Callable[[], None] = lambda: None
    _due: float = field(default=float("-inf"))
    _troubles: int = 0

    def wait_s(self) -> float:
        """How long until it is due."""
        return self._due - time.monotonic()

    def run(self, observer: Observer) -> None:
        """Do a step, and say when the next one is due."""
        try:
            more = self.step()
        except (*PASSING, BrokerError) as error:
            self._troubles += 1
            wait_s = _TROUBLE.delay(self._troubles)
            observer.event(logging.WARNING, "chore put off", chore=self.name, error=str(error), wait_s=round(wait_s, 3))
            self._due = time.monotonic() + wait_s
        else:
            self._troubles = 0
            self._due = time.monotonic() + (0.0 if more else self.every_s)


class Engine:
    """Does chores on the thread that calls `run`, until `stop` is called."""

    def __init__(self, chores: Sequence[Chore], observer: Observer) -> None:
        self._chores = list(chores)
        self._observer = observer
        self._stop_wanted = False

    def run(self) -> None:
        """Work until `stop`; the step in hand is finished.

        Raises:
            SeriatimError: something that waiting can't mend.
        """
        try:
            while not self._stop_wanted:
                self._run_due()
                time.sleep(min(0.1, max(0.0, min((chore.wait_s() for chore in self._chores), default=0.1))))
        finally:
            for chore in self._chores:
                chore.close()

    def _run_due(self) -> None:
        for chore in sorted(self._chores, key=Chore.wait_s):
            if self._stop_wanted:
                return
            if chore.wait_s() <= 0:
                chore.run(self._observer)

    def stop(self) -> None:
        """Finish the step in hand and end `run`. Thread-safe, and safe in a signal handler."""
        self._stop_wanted = True  # a plain attribute: a signal handler may interrupt whoever holds a lock

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stop_wanted
