"""Several observers behind one: the log, and the metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from seriatim.core.log import LOGGER
from seriatim.core.observer import Observer
from seriatim.core.store.port import Scope
from seriatim.core.view import Verdict


class Observers:
    """Tells each of several observers. One that fails is said so once, and harms neither the lane nor the others."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers
        self._failed: set[int] = set()

    def committed(self, scope: Scope, verdicts: Sequence[Verdict], duration_s: float) -> None:
        """Tell them of a transaction."""
        for observer in self._observers:
            self._tell(observer, lambda one: one.committed(scope, verdicts, duration_s))

    def event(self, level: int, name: str, **fields: Any) -> None:
        """Tell them of an event."""
        for observer in self._observers:
            self._tell(observer, lambda one: one.event(level, name, **fields))

    def _tell(self, observer: Observer, say: Callable[[Observer], None]) -> None:
        try:
            say(observer)
        except Exception as error:  # noqa: BLE001 - whatever it is, messages go on
            if id(observer) not in self._failed:
                self._failed.add(id(observer))
                fields = {"observer": type(observer).__name__, "error": repr(error)}
                LOGGER.log(logging.ERROR, "observer failed", extra={"fields": fields})
