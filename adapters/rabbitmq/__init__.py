"""RabbitMQ, by pika: quorum and classic queues, and streams.

===================  ==========================================================================================
topic                a direct exchange ``seriatim.<topic>``, and a stream of that name that lists its partitions
partition            a routing key; for each group a queue ``<group>.<topic>.<partition>`` bound by it, or one
                     stream ``<topic>.<partition>`` for all
message              persistent, published `mandatory`; its keys are headers ``seriatim-…``
send                 confirmed by the server; per key one unconfirmed message at a time
position             streams: offset and digest of the last handled message; queues have none
settle               queues: one acknowledgement of everything up to there; streams: credit only
hand-over            queues: a bare Channel.Close gives back in order what wasn't settled, and the next owner
                     subscribes when the queue has no consumer; streams: nothing to do
wake-up              the server pushes, up to `prefetch` unsettled messages a partition
trimming             streams only: by age and size, as declared
===================  ==========================================================================================

One idea per file. `settings` (the URL), `names`, `wire` (a message as AMQP has it), `troubles` (errors); `control`
(a connection for asking), `manifest`, `topology`; `link` (the connection and its thread), `line` (a channel kept
open), `channels` (how one is left); `producer`, `sending`; `consumer`, `inbox`, `tray`, `queue_reader`,
`stream_reader`, `ending` (has everything been read?).

Nothing is ever rejected, requeued or cancelled, and pika's own `close` never meets a consumer: each puts messages
behind later ones (measured; `channels` and `queue_reader` say how).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from pika.adapters.blocking_connection import BlockingConnection

from seriatim.adapters.rabbitmq import manifest, names, topology, troubles
from seriatim.adapters.rabbitmq.consumer import RabbitConsumer
from seriatim.adapters.rabbitmq.control import control
from seriatim.adapters.rabbitmq.producer import RabbitProducer
from seriatim.adapters.rabbitmq.settings import read_url
from seriatim.adapters.rabbitmq.wire import MAX_BODY
from seriatim.core.backoff import Backoff
from seriatim.core.broker import Capabilities, Consumer, Producer
from seriatim.core.errors import BrokerError, ConfigurationError

__all__ = ["RabbitBroker"]

Answer = TypeVar("Answer")

_ATTEMPTS = 8  # RabbitMQ 3.10 answers 541 or 506 for a stream that others are just making, 404 while it starts
_AGAIN = Backoff(base_s=0.1, cap_s=2.0)


class RabbitBroker:
    """The server that `url` names; `seriatim.adapters.rabbitmq.settings` says how it is written.

    Raises:
        ConfigurationError: the URL can't be read. The server is first asked when it is used.
    """

    def __init__(self, url: str) -> None:
        self._settings = read_url(url)

    @property
    def capabilities(self) -> Capabilities:
        """A log where the queues are streams. It may refuse one message and take the next."""
        return Capabilities(
            positions=self._settings.queue_type == "stream",
            partial_refusal=True,
            max_body=MAX_BODY,
            silence_s=self._settings.silence_s,
        )

    def declare(self, topic: str, partitions: Sequence[str], group: str | None = None) -> None:
        """Make the topic, and the queues of `group`, where they are missing.

        Without a group, a topic of queues has none yet: what is sent before the first group is declared can't be
        routed, and is refused. A topic of streams needs no group.

        Raises:
            ConfigurationError: what is there was made with other settings; wrong credentials or vhost; a name too long.
            BrokerError: the server is away or refuses.
        """
        if not partitions:
            raise ConfigurationError(f"topic {topic!r} is declared without partitions: give at least one")
        names.check_topic(self._settings.prefix, topic)
        self._ask(lambda connection: topology.declare(connection, self._settings, topic, partitions, group))

    def partitions(self, topic: str) -> tuple[str, ...]:
        """The partitions of `topic` in the order of their declaration; empty where there is no such topic."""
        return self._ask(lambda connection: manifest.read(connection, self._settings, topic).partitions)

    def delete(self, topic: str, groups: Sequence[str] = ()) -> None:
        """Remove a topic with all its messages, and these groups' queues. Consumers are told that they lost them."""
        self._ask(lambda connection: topology.delete(connection, self._settings, topic, groups))

    def consumer(self, topic: str, group: str) -> Consumer:
        """A consumer with a connection of its own, closed by the caller."""
        return RabbitConsumer(self._settings, topic, partial(names.queue, group, topic))

    def producer(self) -> Producer:
        """A producer with a connection of its own, closed by the caller."""
        return RabbitProducer(self._settings)

    def dead_letters(self, topic: str, source: str) -> Consumer:  # noqa: ARG002 - the queue says it all
        """A consumer of the queue `source`, where a dead-letter exchange of the server's puts what it gives up."""
        return RabbitConsumer(replace(self._settings, queue_type="classic"), topic, str)

    def close(self) -> None:
        """Nothing is kept open between calls. Idempotent."""

    def _ask(self, what: Callable[[BlockingConnection], Answer]) -> Answer:
        """Do it on a connection of its own; again, if the server stumbled over what is soon over."""
        for attempt in range(1, _ATTEMPTS):
            try:
                with control(self._settings) as connection:
                    return what(connection)
            except BrokerError as error:
                if not troubles.passes(error):
                    raise
                time.sleep(_AGAIN.delay(attempt))
        with control(self._settings) as connection:
            return what(connection)
