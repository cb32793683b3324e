"""Receiving: a look at the file every few milliseconds, and a fair turn for every partition."""

from __future__ import annotations

import sqlite3
import threading
import time

from seriatim.adapters.embedded import tables
from seriatim.adapters.embedded.cursor import Cursor
from seriatim.adapters.embedded.log import Log
from seriatim.adapters.embedded.tables import Span
from seriatim.core.broker import Batch, Notice, NoticeKind
from seriatim.core.message import Position

_LOOK_EVERY_S = 0.008  # well below the 20 ms that are promised; costs about 1% of a core


class EmbeddedConsumer:
    """Hands out the partitions of one topic that it was told to start. Owns `log`."""

    def __init__(self, log: Log, topic: str) -> None:
        self._log = log
        self._topic = topic
        self._cursors: dict[str, Cursor] = {}  # in the order of their turns
        self._spans: dict[str, Span] = {}  # what the file holds, as of `_stamp`
        self._stamp = (0, 0)
        self._idle = False  # nothing to hand out as of `_stamp`
        self._woken = threading.Event()

    def start(self, partition: str, position: Position | None) -> None:
        """Begin after `position`; of a partition that was started before, begin anew."""
        self._cursors[partition] = Cursor(self._topic, partition, position)
        self._idle = False

    def poll(self, timeout_s: float, limit: int) -> Batch | Notice | None:
        """The next batch of at most `limit` messages, a notice, or None after `timeout_s` or a `wake`.

        A partition that the topic doesn't have (any more) is `LOST`.

        Raises:
            BrokerError: the file can't be read just now; a later call goes on where this one stood.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            found = self._look(limit) if self._cursors else None
            if found is not None or self._is_over(deadline):
                return found

    def settle(self, batch: Batch, upto: int) -> None:
        """Keep what follows the first `upto`, to be handed out again first. Nothing is written."""
        if not 0 <= upto <= len(batch.deliveries):
            raise ValueError(f"settled {upto} of a batch of {len(batch.deliveries)}")
        cursor = self._cursors.get(batch.partition)
        if cursor is not None:
            cursor.settle(batch, upto)
            self._idle = False

    def stop(self, partition: str) -> None:
        """Forget the partition: a log has nothing to give back."""
        self._cursors.pop(partition, None)

    def wake(self) -> None:
        """Make a waiting `poll`, or the next one, return. Thread-safe."""
        self._woken.set()

    def close(self) -> None:
        """Stop every partition and let go of the file. Idempotent."""
        self._cursors.clear()
        self._log.close()

    def _is_over(self, deadline: float) -> bool:
        """Wait a moment, unless the time is over or somebody woke us."""
        left_s = deadline - time.monotonic()
        if left_s <= 0 or self._woken.is_set():
            self._woken.clear()
            return True
        self._woken.wait(min(left_s, _LOOK_EVERY_S))
        return False

    def _look(self, limit: int) -> Batch | Notice | None:
        with self._log.reading() as connection:
            stamp = self._log.stamp(connection)
            if stamp != self._stamp:
                self._see_changes(connection, stamp)
            elif self._idle:
                return None
            found = self._next(connection, limit)
            self._idle = found is None
            return found

    def _see_changes(self, connection: sqlite3.Connection, stamp: tuple[int, int]) -> None:
        self._spans = tables.spans(connection, self._topic)
        if stamp[0] != self._stamp[0]:  # another connection, perhaps to another file
            for cursor in self._cursors.values():
                cursor.doubt()
        self._stamp = stamp

    def _next(self, connection: sqlite3.Connection, limit: int) -> Batch | Notice | None:
        for partition in list(self._cursors):
            cursor = self._cursors.pop(partition)  # to the back of the line
            span = self._spans.get(partition)
            if span is None:
                return Notice(partition, NoticeKind.LOST, self._lost(partition))
            self._cursors[partition] = cursor
            found = cursor.take(connection, span, limit)
            if found is not None:
                return found
        return None

    def _lost(self, partition: str) -> str:
        declared = ", ".join(self._spans) or "none"
        return f"topic {self._topic!r} has no partition {partition!r} in {self._log.path}, only {declared}"
