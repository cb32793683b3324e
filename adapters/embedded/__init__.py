"""The embedded broker: a durable log in one SQLite file, for any number of processes of one host. No server.

It is also the example to copy when you write an adapter. What the common words are here:

=================  ==================================================================================
topic              a row of `topic`, with the random identity of its log
partition          a row of `partition`: its number in the file, its first and its next offset
message            a row of `message`; its id is made of the partition's number and the offset
send               one transaction behind the file lock; durable (``synchronous=FULL``) when it returns
position           the offset of the last handled message; identity ``<log>:<digest of that message>``
settle             forgetting, in memory: the group's position is kept by its store
hand-over          nothing to do: a log has nothing in flight
wake-up            a look at ``PRAGMA data_version`` every 8 ms
trimming           `retention_s` and `retention_messages`, in small slices, by those who send
=================  ==================================================================================

One idea per file: `settings` (the URL), `log` (the file, its connections, its errors), `tables` (the only
SQL), `producer`, `consumer`, `cursor` (where a consumer stands in one partition), `retention`.

A connection of SQLite can't cross a fork: a child opens a broker of its own, and only if its parent had none
open on that file when it forked. The file must be on a local disk (WAL and `flock` are no good over a
network).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from seriatim.adapters.embedded import retention, tables
from seriatim.adapters.embedded.consumer import EmbeddedConsumer
from seriatim.adapters.embedded.log import Log, NoLog
from seriatim.adapters.embedded.producer import MAX_BODY, EmbeddedProducer
from seriatim.adapters.embedded.settings import read_url
from seriatim.core.broker import Capabilities, Consumer, Producer
from seriatim.core.errors import ConfigurationError

__all__ = ["EmbeddedBroker"]


class EmbeddedBroker:
    """The log in the file that `url` names; `seriatim.adapters.embedded.settings` says how it is written.

    Raises:
        ConfigurationError: the URL can't be read. The file itself is first touched when it is used.
    """

    def __init__(self, url: str) -> None:
        self._settings = read_url(url)

    @property
    def capabilities(self) -> Capabilities:
        """A log whose send is all or nothing."""
        return Capabilities(positions=True, partial_refusal=False, max_body=MAX_BODY)

    def declare(
        self,
        topic: str,
        partitions: Sequence[str],
        group: str | None = None,  # noqa: ARG002 - a log is read alike by every group
    ) -> None:
        """Make the file, the topic and its partitions where they are missing. Groups leave no trace in a log.

        Raises:
            ConfigurationError: the file can't be a log (its folder is missing, it is another program's).
            BrokerError: the file can't be opened, locked or written.
        """
        if not partitions:
            raise ConfigurationError(f"topic {topic!r} is declared without partitions: give at least one")
        if set(partitions) <= set(self.partitions(topic)):
            return
        with Log(self._settings) as log:
            log.create()
            with log.writing() as connection:
                tables.declare(connection, topic, partitions)

    def partitions(self, topic: str) -> tuple[str, ...]:
        """The partitions of `topic` in the order of their declaration; empty where there is no such topic."""
        with Log(self._settings) as log:
            try:
                with log.reading() as connection:
                    return tuple(tables.spans(connection, topic))
            except NoLog:
                return ()

    def delete(self, topic: str) -> None:
        """Remove a topic and all its messages. Consumers are told that they lost its partitions."""
        with Log(self._settings) as log, log.writing() as connection:
            tables.delete(connection, topic)

    def trim(self) -> int:
        """Remove all that is past its retention, in slices; how many messages that were."""
        removed = 0
        with Log(self._settings) as log:
            while True:
                with log.writing() as connection:
                    slice_ = retention.trim(connection, self._settings.retention, time.time(), retention.SLICE)
                removed += slice_
                if slice_ < retention.SLICE:
                    return removed

    def consumer(self, topic: str, group: str) -> Consumer:  # noqa: ARG002 - as above
        """A consumer, owned and closed by the caller."""
        return EmbeddedConsumer(Log(self._settings), topic)

    def producer(self) -> Producer:
        """A producer, owned and closed by the caller."""
        return EmbeddedProducer(Log(self._settings), self._settings.retention)

    def dead_letters(self, topic: str, source: str) -> Consumer:
        """There are none: nothing leaves this log but by its retention.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(f"topic {topic!r}: an embedded log gives nothing up; drop dead_letters={source!r}")

    def close(self) -> None:
        """Nothing is kept open between calls. Idempotent."""
