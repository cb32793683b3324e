"""What has arrived of one partition and waits for the lane; deliveries go out, and come back by a partial settle."""

from __future__ import annotations

from collections import deque
from itertools import islice

from seriatim.core.broker import Batch
from seriatim.core.message import Delivery, Position


class Tray:
    """The deliveries of one partition, in order. `Inbox` guards it with its lock."""

    def __init__(self, partition: str, after: Position | None) -> None:
        self.partition = partition
        self.at_end = False  # the server has nothing more
        self._told = False  # … and the lane knows
        self._arrived: deque[Delivery] = deque()
        self._rest: tuple[Delivery, ...] = ()  # handed out, and given back by a partial settle
        self._out: Batch | None = None  # in the lane's hands
        self._handed = after  # the position of the newest that was handed out
        self._settled = after

    @property
    def idle(self) -> bool:
        """Whether nothing is in it, nor in the lane's hands."""
        return not (self._arrived or self._rest or self._out)

    @property
    def in_hand(self) -> bool:
        """Whether anything was handed out and isn't settled."""
        return bool(self._out or self._rest)

    def put(self, delivery: Delivery) -> None:
        """Add what arrives."""
        self._arrived.append(delivery)
        self.at_end = self._told = False

    def take(self, limit: int) -> Batch | None:
        """The next batch, unless the one before is still out: what was given back first, then what has arrived."""
        if self._out is not None or not (self._rest or self._arrived):
            return None
        fresh = tuple(islice(self._arrived, max(0, limit - len(self._rest))))
        for _ in fresh:
            self._arrived.popleft()
        if fresh:
            self._handed = fresh[-1].position
            self._rest += fresh
        self._out = Batch(self.partition, self._rest[:limit])
        self._rest = self._rest[limit:]
        return self._out

    def settle(self, batch: Batch, upto: int) -> Delivery | None:
        """Take back what follows the first `upto`; the last settled. A batch that isn't out (any more) is ignored."""
        if batch is not self._out:
            return None
        self._out = None
        self._rest = batch.deliveries[upto:] + self._rest
        if upto == 0:
            return None
        self._settled = batch.deliveries[upto - 1].position
        return batch.deliveries[upto - 1]

    def tell_end(self) -> bool:
        """Whether the end has been reached and the lane isn't told yet; it is told now."""
        if not self.at_end or self._told:
            return False
        self._told = True
        return True

    def forget_arrived(self) -> Position | None:
        """Drop what wasn't handed out yet; the position after which that begins."""
        self._arrived.clear()
        self.doubt()
        return self._handed

    def doubt(self) -> None:
        """Whether the end was reached isn't known any more."""
        self.at_end = self._told = False

    def void(self) -> Position | None:
        """Drop everything; the position after which that begins."""
        self._rest, self._out = (), None
        self._handed = self._settled
        return self.forget_arrived()

    def restart(self) -> None:
        """Begin at the beginning of another log; what is in the lane's hands stays there."""
        self._handed = self._settled = None
        self.forget_arrived()
