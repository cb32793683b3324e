"""How many messages a batch takes: as many as the handler's time and the contention allow."""

from __future__ import annotations

from dataclasses import dataclass

_SMOOTHING = 0.2
_GROWTH = 2


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
        by_time = self.batch_s / self._per_message_s if self._per_message_s else self.most
        return max(1, int(min(self.most, self._allowed, by_time)))

    def succeeded(self, runs: int, handler_s: float) -> None:
        """A batch was committed, whose handlers took so long."""
        self._allowed = min(float(self.most), self._allowed + _GROWTH)
        if runs:
            self._per_message_s += _SMOOTHING * (handler_s / runs - self._per_message_s)

    def contended(self) -> None:
        """A batch met a deadlock or a lock time-out."""
        self._allowed = max(1.0, min(self._allowed, self.limit) / 2)
