"""Trimming: removing what is past its retention, in bounded slices. SQLite uses the freed pages again."""

from __future__ import annotations

import sqlite3
import time

from seriatim.adapters.embedded import tables
from seriatim.adapters.embedded.settings import Retention

SLICE = 1_000  #: messages that one transaction removes at most, beside twice what it adds
_EVERY_S = 1.0  # how often a producer looks, unless the last look left something


def trim(connection: sqlite3.Connection, retention: Retention, now: float, limit: int) -> int:
    """Remove at most `limit` of the messages past their retention; how many that were."""
    if retention == Retention():
        return 0
    removed = 0
    for span in tables.all_spans(connection):
        before = min(span.end, span.start + limit - removed)
        keep_from = _first_to_keep(connection, span, retention, now, before)
        if keep_from > span.start:
            tables.drop_before(connection, span, keep_from)
            removed += keep_from - span.start
    return removed


def _first_to_keep(
    connection: sqlite3.Connection, span: tables.Span, retention: Retention, now: float, before: int
) -> int:
    """The first offset within retention; `before` if that lies further on."""
    keep_from = span.start
    if retention.messages is not None:
        keep_from = max(keep_from, span.end - retention.messages)
    if retention.seconds is not None and keep_from < before:
        keep_from = max(keep_from, tables.first_younger(connection, span, before, now - retention.seconds))
    return min(keep_from, before)


class Trimmer:
    """Trims now and then, inside the transactions of a producer."""

    def __init__(self, retention: Retention) -> None:
        self._retention = retention
        self._due = 0.0  # by the monotonic clock

    def trim(self, connection: sqlite3.Connection, now: float, added: int) -> None:
        """Remove a slice if it is time; one large enough to keep up with `added` messages per transaction."""
        moment = time.monotonic()
        if moment < self._due:
            return
        limit = SLICE + 2 * added
        if trim(connection, self._retention, now, limit) < limit:
            self._due = moment + _EVERY_S
