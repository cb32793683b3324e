"""The tables of the file, and the only SQL.

A message's id is its partition's number × 2⁴⁰ + its offset: the rows of a partition lie together and in order
with no second index. Offsets have no gaps, so a hole in what was read is damage. Numbers are never given
twice, so a topic that was deleted and declared again shares nothing with what it was.
"""

from __future__ import annotations

import hashlib
import sqlite3
import uuid
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

from seriatim.core.errors import BrokerError

APPLICATION_ID = 0x53455249  #: marks the file as ours ("SERI")
VERSION = 1  #: of these tables

_WIDTH = 1 << 40  # offsets in a partition
_MAX_READ = 16 << 20  # bytes of bodies that one read takes, if it is more than one message

_SCHEMA = (
    """CREATE TABLE topic (
        name TEXT PRIMARY KEY,
        log  TEXT NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE partition (
        number       INTEGER PRIMARY KEY AUTOINCREMENT,
        topic        TEXT NOT NULL,
        name         TEXT NOT NULL,
        start_offset INTEGER NOT NULL DEFAULT 0,
        next_offset  INTEGER NOT NULL DEFAULT 0,
        UNIQUE (topic, name)
    )""",
    """CREATE TABLE message (
        id          INTEGER PRIMARY KEY,
        appended_at REAL NOT NULL,
        headers     TEXT NOT NULL,
        body        BLOB NOT NULL
    )""",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {VERSION}",
)


@dataclass(frozen=True, slots=True)
class Span:
    """What the file holds of a partition: the offsets from `start` to before `end`, the next to be given."""

    log: str
    number: int
    start: int
    end: int

    def id_of(self, offset: int) -> int:
        return self.number * _WIDTH + offset


class Stored(NamedTuple):
    """A message as it lies in the file; `headers` is JSON, `appended_at` seconds since the epoch."""

    offset: int
    appended_at: float
    headers: str
    body: bytes

    def digest(self) -> str:
        """Tells this message from any other."""
        seen = hashlib.blake2b(f"{self.appended_at!r}\n{self.headers}\n".encode(), digest_size=16)
        seen.update(self.body)
        return seen.hexdigest()


def create(connection: sqlite3.Connection) -> None:
    """Make the tables in an empty file."""
    for statement in _SCHEMA:
        connection.execute(statement)


def is_empty(connection: sqlite3.Connection) -> bool:
    """Whether the file has no tables at all."""
    return connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None


def number_of(connection: sqlite3.Connection, pragma: str) -> int:
    """The value of a PRAGMA that is a number."""
    return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])


def spans(connection: sqlite3.Connection, topic: str) -> dict[str, Span]:
    """The partitions of `topic` by name, in the order of their declaration."""
    rows = connection.execute(
        "SELECT p.name, t.log, p.number, p.start_offset, p.next_offset"
        " FROM topic t JOIN partition p ON p.topic = t.name WHERE t.name = ? ORDER BY p.number",
        (topic,),
    )
    return {name: Span(*span) for name, *span in rows}


def all_spans(connection: sqlite3.Connection) -> list[Span]:
    """The partitions of every topic that hold a message."""
    rows = connection.execute(
        "SELECT t.log, p.number, p.start_offset, p.next_offset"
        " FROM partition p JOIN topic t ON t.name = p.topic WHERE p.start_offset < p.next_offset ORDER BY p.number"
    )
    return [Span(*row) for row in rows]


def declare(connection: sqlite3.Connection, topic: str, partitions: Iterable[str]) -> None:
    """Add what is missing of a topic."""
    connection.execute("INSERT OR IGNORE INTO topic VALUES (?, ?)", (topic, uuid.uuid4().hex))
    connection.executemany(
        "INSERT OR IGNORE INTO partition (topic, name) VALUES (?, ?)", [(topic, name) for name in partitions]
    )


def delete(connection: sqlite3.Connection, topic: str) -> None:
    """Remove a topic with all its messages."""
    for span in spans(connection, topic).values():
        connection.execute(
            "DELETE FROM message WHERE id >= ? AND id < ?", (span.id_of(span.start), span.id_of(span.end))
        )
    connection.execute("DELETE FROM partition WHERE topic = ?", (topic,))
    connection.execute("DELETE FROM topic WHERE name = ?", (topic,))


def append(connection: sqlite3.Connection, span: Span, contents: Sequence[tuple[str, bytes]], now: float) -> None:
    """Add messages, each (headers, body), at the end of a partition."""
    first = span.id_of(span.end)
    connection.executemany(
        "INSERT INTO message VALUES (?, ?, ?, ?)",
        [(first + index, now, headers, body) for index, (headers, body) in enumerate(contents)],
    )
    connection.execute("UPDATE partition SET next_offset = ? WHERE number = ?", (span.end + len(contents), span.number))


def read(connection: sqlite3.Connection, span: Span, first: int, limit: int) -> list[Stored]:
    """The messages from offset `first` on: at most `limit`, and no more than a batch's worth of bytes.

    Raises:
        BrokerError: a message that should be there isn't.
    """
    rows = connection.execute(
        "SELECT id, appended_at, headers, body FROM message WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
        (span.id_of(first), span.id_of(span.end), limit),
    )
    found: list[Stored] = []
    room = _MAX_READ
    with closing(rows):
        for number, appended_at, headers, body in rows:
            if number != span.id_of(first + len(found)):
                break
            found.append(Stored(first + len(found), appended_at, headers, body))
            room -= len(body)
            if room <= 0:
                break
    if not found:
        raise BrokerError(f"the log has lost message {first} of {span.start} to {span.end - 1}: restore it")
    return found


def first_younger(connection: sqlite3.Connection, span: Span, before: int, cutoff: float) -> int:
    """The first offset below `before` whose message arrived at `cutoff` or later; else `before`."""
    row = connection.execute(
        "SELECT id FROM message WHERE id >= ? AND id < ? AND appended_at >= ? ORDER BY id LIMIT 1",
        (span.id_of(span.start), span.id_of(before), cutoff),
    ).fetchone()
    return before if row is None else int(row[0]) - span.id_of(0)


def drop_before(connection: sqlite3.Connection, span: Span, offset: int) -> None:
    """Remove the messages of a partition before `offset`."""
    connection.execute("DELETE FROM message WHERE id >= ? AND id < ?", (span.id_of(span.start), span.id_of(offset)))
    connection.execute("UPDATE partition SET start_offset = ? WHERE number = ?", (offset, span.number))
