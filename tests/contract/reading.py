"""Reading a consumer in a test: every wait bounded, every batch checked for what all batches promise."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from seriatim.core.broker import Batch, Consumer, Notice, NoticeKind
from seriatim.core.message import Delivery

Found = TypeVar("Found", Batch, Notice)


class Reader:
    """A consumer, the batches that it handed out and that aren't settled yet, and its notices so far."""

    def __init__(self, consumer: Consumer, patience_s: float) -> None:
        self.consumer = consumer
        self.notices: list[Notice] = []
        self._patience_s = patience_s
        self._out: dict[str, Batch] = {}

    def poll(self, limit: int, timeout_s: float) -> Batch | Notice | None:
        """One poll, with what holds of each checked.

        Raises:
            AssertionError: an empty batch, one that is too long, or of a partition whose last isn't settled.
        """
        found = self.consumer.poll(timeout_s, limit)
        if isinstance(found, Notice):
            self.notices.append(found)
        if isinstance(found, Batch):
            self._check(found, limit)
            self._out[found.partition] = found
        return found

    def batch(self, limit: int = 100) -> Batch:
        """The next batch, of whichever partition.

        Raises:
            AssertionError: none came in time.
        """
        return self._await(limit, lambda found: found if isinstance(found, Batch) else None, "a batch")

    def notice(self, kind: NoticeKind) -> Notice:
        """The next notice of a kind. No batch may come before it.

        Raises:
            AssertionError: a batch came, or nothing in time.
        """

        def wanted(found: Batch | Notice) -> Notice | None:
            assert isinstance(found, Notice), f"{found} came before the notice {kind}"
            return found if found.kind is kind else None

        return self._await(1, wanted, f"the notice {kind}")

    def settle(self, upto: int | None = None, partition: str | None = None) -> None:
        """Settle the first `upto` (None: all) of the batch that is out, of `partition` where there are several."""
        if partition is None:
            (partition,) = self._out
        batch = self._out.pop(partition)
        self.consumer.settle(batch, len(batch.deliveries) if upto is None else upto)

    def take(self, count: int, limit: int = 100) -> list[Delivery]:
        """The next `count` messages, settled as they come."""
        taken: list[Delivery] = []
        while len(taken) < count:
            batch = self.batch(min(limit, count - len(taken)))
            taken.extend(batch.deliveries)
            self.settle(partition=batch.partition)
        return taken

    def quiet(self, seconds: float = 0.3) -> None:
        """See that nothing is handed out for a while.

        Raises:
            AssertionError: a batch came.
        """
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            found = self.poll(100, left)
            assert not isinstance(found, Batch), f"handed out, and shouldn't be: {found}"

    def _check(self, batch: Batch, limit: int) -> None:
        assert batch.deliveries, "an empty batch"
        assert len(batch.deliveries) <= limit, f"{len(batch.deliveries)} in a batch of at most {limit}"
        assert batch.partition not in self._out, f"partition {batch.partition} again, with its last batch unsettled"
        strange = {delivery.partition for delivery in batch.deliveries} - {batch.partition}
        assert not strange, f"a batch of partition {batch.partition} has deliveries of {strange}"

    def _await(self, limit: int, wanted: Callable[[Batch | Notice], Found | None], name: str) -> Found:
        deadline = time.monotonic() + self._patience_s
        while (left := deadline - time.monotonic()) > 0:
            found = self.poll(limit, left)
            result = None if found is None else wanted(found)
            if result is not None:
                return result
        raise AssertionError(f"{name} didn't come within {self._patience_s:g} s; notices were {self.notices}")
