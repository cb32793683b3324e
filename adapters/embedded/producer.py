"""Sending: one transaction per call, behind the file lock."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Sequence

from seriatim.adapters.embedded import tables
from seriatim.adapters.embedded.log import CommitInDoubt, Log
from seriatim.adapters.embedded.retention import Trimmer
from seriatim.adapters.embedded.settings import Retention
from seriatim.core.envelope import seal
from seriatim.core.errors import BrokerError, InvalidMessage, SendFailed
from seriatim.core.message import Message

MAX_BODY = 64 << 20  #: bytes; a reader holds a message in memory

_Contents = dict[tuple[str, str], list[tuple[str, bytes]]]  # (topic, partition) → (headers, body) of each


class EmbeddedProducer:
    """Appends to partitions. Thread-safe: one send at a time. Owns `log`."""

    def __init__(self, log: Log, retention: Retention) -> None:
        self._log = log
        self._trimmer = Trimmer(retention)
        self._mutex = threading.Lock()

    def send(self, messages: Sequence[tuple[str, Message]]) -> None:
        """Append each (partition, message), all or none, in the order given; durable on return.

        Raises:
            SendFailed: SQLite didn't say whether they were kept.
            BrokerError: nothing was sent.
            InvalidMessage: a body is larger than `MAX_BODY`; nothing was sent.
        """
        contents = _contents(messages)
        if not contents:
            return
        self._log.check_usable()  # in a forked child the mutex may be taken for ever
        with self._mutex:
            try:
                with self._log.writing() as connection:
                    now = time.time()
                    _append(connection, contents, now)
                    self._trimmer.trim(connection, now, len(messages))
            except CommitInDoubt as error:
                raise SendFailed(str(error), [message for _, message in messages]) from error

    def close(self) -> None:
        """Let go of the file, after a send that is under way. Idempotent."""
        with self._mutex:
            self._log.close()


def _contents(messages: Sequence[tuple[str, Message]]) -> _Contents:
    contents: _Contents = {}
    for partition, message in messages:
        if len(message.body) > MAX_BODY:
            raise InvalidMessage(
                f"the body of biz_key {message.biz_key!r} has {len(message.body)} bytes; an embedded log "
                f"takes {MAX_BODY}: keep it elsewhere and send where it is"
            )
        place = contents.setdefault((message.topic, partition), [])
        place.append((json.dumps(seal(message)), message.body))
    return contents


def _append(connection: sqlite3.Connection, contents: _Contents, now: float) -> None:
    known = {topic: tables.spans(connection, topic) for topic in {topic for topic, _ in contents}}
    for (topic, partition), place in contents.items():
        span = known[topic].get(partition)
        if span is None:
            raise BrokerError(_missing(topic, partition, list(known[topic])))
        tables.append(connection, span, place, now)


def _missing(topic: str, partition: str, declared: Sequence[str]) -> str:
    if not declared:
        return f"the embedded log has no topic {topic!r} (for partition {partition!r}): declare it first"
    return f"topic {topic!r} has no partition {partition!r}: declared are {', '.join(declared)}"
