"""Finding out that a partition has nothing more: a quiet moment, then questions with nothing arriving between.

The server answers in order: what a queue had sent before it answered the first question has arrived before the answer
to the second. So when both say that nothing is ready, and nothing arrived from before the first question until the
second answer, everything that the queue held has been handed in. A stream can't be asked what it holds: there the
answer shows only that the connection is alive, and the quiet is longer.
"""

from __future__ import annotations

from typing import Any

from pika.frame import Method

from seriatim.adapters.rabbitmq.inbox import Inbox
from seriatim.adapters.rabbitmq.line import Line
from seriatim.adapters.rabbitmq.tray import Tray

_AGAIN_S = 0.25


class EndWatch:
    """Watches one partition; asked to look whenever its tray may have become empty."""

    def __init__(self, line: Line, inbox: Inbox, tray: Tray, queue: str, *, quiet_s: float, counts: bool) -> None:
        self._line = line
        self._inbox = inbox
        self._tray = tray
        self._queue = queue
        self._quiet_s = quiet_s
        self._counts = counts  # the server knows how many are ready
        self._questions = 2 if counts else 1
        self.arrivals = 0  #: how many so far
        self._looking = False

    def arrived(self) -> None:
        """Something has arrived."""
        self.arrivals += 1

    def reset(self) -> None:
        """The channel is another one."""
        self._looking = False

    def look(self) -> None:
        """See whether the end has been reached, soon."""
        if not self._looking and self._line.channel is not None and self._inbox.is_idle(self._tray):
            self._looking = True
            seen = self.arrivals
            self._line.later(self._quiet_s, lambda: self._ask(seen, self._questions))

    def _ask(self, seen: int, left: int) -> None:
        if not self._is_quiet(seen):
            return
        if left == 0:
            self._looking = False
            self._inbox.at_end(self._tray)
            return
        self._line.ask(self._queue, lambda answer: self._answered(seen, left, answer))

    def _answered(self, seen: int, left: int, answer: Method[Any]) -> None:
        if answer.method.message_count == 0 or not self._counts:
            self._ask(seen, left - 1)
        elif self._is_quiet(seen):  # something is on its way, or held back
            self._looking = False
            self._line.later(_AGAIN_S, self.look)

    def _is_quiet(self, seen: int) -> bool:
        quiet = self.arrivals == seen
        if not quiet:
            self._looking = False
            self.look()  # if it isn't settled yet, its settling will
        return quiet
