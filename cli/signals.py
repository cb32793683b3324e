"""SIGTERM and SIGINT, for every command that works until it is told to end."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Protocol

AT_ONCE = 130  #: exit status after a second SIGTERM or SIGINT


class Stoppable(Protocol):
    """Something that finishes what is in hand when it is told to stop."""

    @property
    def stopping(self) -> bool:
        """Whether it was told to."""
        ...

    def stop(self) -> None:
        """Finish what is in hand, and end. Safe in a signal handler."""
        ...


def obey_signals(work: Stoppable) -> None:
    """The first signal stops `work`, a second one ends the process at once: what was in hand comes back."""

    def on_signal(number: int, _: FrameType | None) -> None:
        del number
        if work.stopping:
            os._exit(AT_ONCE)
        work.stop()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
