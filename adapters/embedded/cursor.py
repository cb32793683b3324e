"""Where a consumer stands in one partition, and whether the log still agrees."""

from __future__ import annotations

import json
import sqlite3
import time

from seriatim.adapters.embedded import tables
from seriatim.adapters.embedded.tables import Span, Stored
from seriatim.core.broker import Batch, Notice, NoticeKind
from seriatim.core.message import Delivery, Position


class Cursor:
    """Hands out one partition in order, a batch at a time, each only after the one before was settled.

    `after` is the last message that was handed out, or the group's position at the start. It is looked for in
    the log before anything is handed out, and again whenever the log may be another one.
    """

    def __init__(self, topic: str, partition: str, after: Position | None) -> None:
        self._topic = topic
        self._partition = partition
        self._after = after
        self._log: str | None = None  # the identity of the log that `after` was found in; None: look for it
        self._next = 0  # the offset to read next
        self._rest: tuple[Delivery, ...] = ()  # handed out, and given back by a partial settle
        self._out: Batch | None = None  # in the lane's hands
        self._trimmed = False  # nothing more until a new start
        self._told = False  # that the end was reached

    def doubt(self) -> None:
        """Look for the position again before going on."""
        self._log = None

    def settle(self, batch: Batch, upto: int) -> None:
        """Take back what follows the first `upto`. A batch that isn't out (any more) is ignored."""
        if batch is self._out:
            self._out = None
            self._rest = batch.deliveries[upto:] + self._rest

    def take(self, connection: sqlite3.Connection, span: Span, limit: int) -> Batch | Notice | None:
        """What comes next in the partition that `span` describes; None if nothing does now."""
        if self._out is not None or self._trimmed:
            return None
        notice = None if self._log == span.log else self._find(connection, span)
        if notice is not None:
            return notice
        if self._rest or self._next != span.end:
            return self._trimmed_notice(span) or self._hand_out(connection, span, limit)
        if self._told:
            return None
        self._told = True
        return self._notice(NoticeKind.READ_THROUGH)

    def _find(self, connection: sqlite3.Connection, span: Span) -> Notice | None:
        """Stand behind the message of `after`; where the log isn't that one, at the earliest kept."""
        difference = None if self._after is None else _difference(connection, span, self._after)
        self._log = span.log
        if self._after is None or difference is not None:
            self._after, self._next, self._rest, self._told = None, span.start, (), False
        elif not self._rest:
            self._next = int(self._after.offset) + 1
        return None if difference is None else self._notice(NoticeKind.REWOUND, difference)

    def _trimmed_notice(self, span: Span) -> Notice | None:
        if self._rest or self._next >= span.start:
            return None
        self._trimmed = True
        gap = f"{self._next} to {span.start - 1}" if self._next < span.start - 1 else f"{self._next}"
        return self._notice(
            NoticeKind.TRIMMED,
            f"the log begins at offset {span.start}: {gap} were removed before they were read",
        )

    def _hand_out(self, connection: sqlite3.Connection, span: Span, limit: int) -> Batch:
        if not self._rest:
            stored = tables.read(connection, span, self._next, limit)
            self._rest = tuple(self._delivery(span, message) for message in stored)
            self._next += len(stored)
            self._after = self._rest[-1].position
        self._told = False
        self._out = Batch(self._partition, self._rest[:limit])
        self._rest = self._rest[limit:]
        return self._out

    def _delivery(self, span: Span, stored: Stored) -> Delivery:
        return Delivery(
            topic=self._topic,
            partition=self._partition,
            raw=json.loads(stored.headers),
            body=stored.body,
            received_at=time.time(),
            position=_position(span, stored),
            appended_at=stored.appended_at,
        )

    def _notice(self, kind: NoticeKind, detail: str = "") -> Notice:
        return Notice(self._partition, kind, detail)


def _position(span: Span, stored: Stored) -> Position:
    return Position(str(stored.offset), f"{span.log}:{stored.digest()}")


def _difference(connection: sqlite3.Connection, span: Span, position: Position) -> str | None:
    """Why the log isn't the one that `position` was taken in; None if it is, or is trimmed beyond telling."""
    if not position.offset.isdecimal():
        return f"the position {position.offset!r} is none of an embedded log"
    offset = int(position.offset)
    if position.identity.partition(":")[0] != span.log:
        return "the log was replaced by another: going on from its beginning"
    if offset >= span.end:
        return f"the log was cut: it ends before offset {span.end}, the position is {offset}"
    if offset >= span.start and _position(span, tables.read(connection, span, offset, 1)[0]) != position:
        return f"the log was cut and written anew: at offset {offset} is another message than was handled"
    return None
