"""How many messages a batch takes: as many as the handler's time and the contention allow."""

from __future__ import annotations

from dataclasses import dataclass

_SMOOTHING = 0.2
_GROWTH = 2
FEWEST = 25  #: messages that a batch may hold though they take longer than they should
PATIENCE = 3.0


@dataclass(slots=True)
class BatchSize:
    """A lane's batch size for one topic.

    It shrinks by half on contention and grows slowly on success, up to `most`; and it is kept to what the handlers get
    through in `batch_s` seconds, so that no batch holds its rows for long.
    """

    most: int
    batch_s: float
    _allowed: float = 0.0
    _per_message_s: float = 0.0

    def __post_init__(self) -> None:
        self._allowed = float(self.most)

    @property
    def limit(self) -> int:
        """Messages that the next batch may hold; at least one."""
        return max(1, int(min(self.most, self._allowed, self._by_time())))

    def _by_time(self) -> float:
        """What handlers get through in `batch_s`; a little more where that is very few, but never `PATIENCE` times it.

        A handler's time goes by the clock. On a busy machine it is mostly waiting, and to answer that with ever smaller
        batches makes each message dearer, and the machine busier.
        """
        if not self._per_message_s:
            return self.most
        fits = self.batch_s / self._per_message_s
        return max(fits, min(FEWEST, PATIENCE * fits))

    def succeeded(self, runs: int, handler_s: float) -> None:
        """A batch was committed, whose handlers took so long."""
        self._allowed = min(float(self.most), self._allowed + _GROWTH)
        if runs:
            self._per_message_s += _SMOOTHING * (handler_s / runs - self._per_message_s)

    def contended(self) -> None:
        """A batch met a deadlock or a lock time-out."""
        self._allowed = max(1.0, min(self._allowed, self.limit) / 2)
