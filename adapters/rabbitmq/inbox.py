"""Between the connection's thread, which fills it, and the lane, which polls it."""

from __future__ import annotations

import threading
import time
from collections import deque

from seriatim.adapters.rabbitmq.tray import Tray
from seriatim.core.broker import Batch, Notice, NoticeKind
from seriatim.core.errors import BrokerError
from seriatim.core.message import Delivery, Position


class Inbox:
    """The trays of a consumer, its notices and its trouble. Thread-safe.

    What concerns a tray that was taken out is ignored: it may come late.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._trays: dict[str, Tray] = {}  # in the order of their turns
        self._notices: deque[Notice] = deque()
        self._trouble: Exception | None = None
        self._woken = False

    # -- the lane's side

    def add(self, tray: Tray) -> None:
        """Begin with a partition."""
        with self._changed:
            self._trays[tray.partition] = tray

    def remove(self, partition: str) -> None:
        """Forget a partition."""
        with self._changed:
            self._trays.pop(partition, None)
            self._notices = deque(notice for notice in self._notices if notice.partition != partition)

    def poll(self, timeout_s: float, limit: int) -> Batch | Notice | None:
        """A notice, the next batch, or None after `timeout_s` or a `wake`.

        Raises:
            BrokerError: the server is away, and there is nothing to hand out.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                found = self._find(limit)
                if found is not None:
                    return found
                if self._trouble is not None:
                    raise BrokerError(str(self._trouble)) from self._trouble
                left_s = deadline - time.monotonic()
                if left_s <= 0 or self._woken:
                    self._woken = False
                    return None
                self._changed.wait(left_s)

    def settle(self, batch: Batch, upto: int) -> Delivery | None:
        """Take back what follows the first `upto`; the last settled, if any was."""
        with self._changed:
            tray = self._trays.get(batch.partition)
            return None if tray is None else tray.settle(batch, upto)

    def wake(self) -> None:
        """Make a waiting `poll`, or the next one, return."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def _find(self, limit: int) -> Batch | Notice | None:
        if self._notices:
            return self._notices.popleft()
        for partition, tray in self._trays.items():
            batch = tray.take(limit)
            if batch is not None:
                self._trays[partition] = self._trays.pop(partition)  # to the back of the line
                return batch
        for partition, tray in self._trays.items():
            if tray.tell_end():
                return Notice(partition, NoticeKind.READ_THROUGH)
        return None

    # -- the connection's side

    def put(self, tray: Tray, delivery: Delivery) -> None:
        """Hand in what has arrived."""
        with self._changed:
            tray.put(delivery)
            self._changed.notify()

    def is_idle(self, tray: Tray) -> bool:
        """Whether nothing of it waits for the lane, or is in its hands."""
        with self._changed:
            return tray.idle

    def at_end(self, tray: Tray) -> None:
        """The server has nothing more of it."""
        with self._changed:
            if tray.idle:
                tray.at_end = True
                self._changed.notify()

    def void(self, tray: Tray, why: str, *, always: bool = False) -> Position | None:
        """Everything of it that isn't settled is void; the lane is told if it has any in hand, or `always`."""
        with self._changed:
            if tray.in_hand or always:
                self._tell(tray, NoticeKind.LOST, why)
            return tray.void()

    def forget_arrived(self, tray: Tray) -> Position | None:
        """What wasn't handed out yet will arrive again; the position after which that begins."""
        with self._changed:
            return tray.forget_arrived()

    def rewound(self, tray: Tray, why: str) -> None:
        """The log is another one: it begins at the beginning."""
        with self._changed:
            tray.restart()
            self._tell(tray, NoticeKind.REWOUND, why)

    def trimmed(self, tray: Tray, why: str) -> None:
        """The log begins after the position."""
        with self._changed:
            self._tell(tray, NoticeKind.TRIMMED, why)

    def away(self, error: Exception) -> None:
        """The server is away."""
        with self._changed:
            self._trouble = error
            for tray in self._trays.values():
                tray.doubt()
            self._changed.notify()

    def back(self) -> None:
        """The server answers again."""
        with self._changed:
            self._trouble = None

    def _tell(self, tray: Tray, kind: NoticeKind, detail: str) -> None:
        if self._trays.get(tray.partition) is tray:
            self._notices.append(Notice(tray.partition, kind, detail))
            self._changed.notify()
