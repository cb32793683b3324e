"""Making a topic: its exchange, a group's queues or the streams, and their bindings.

Why each argument stands there (docs/adapters.md says the same to users):

=========================================  ============================================================================
durable, quorum or classic or stream       a restart loses nothing
x-single-active-consumer                   keeps out a newcomer that subscribes after it lost its lease
x-delivery-limit -1 (RabbitMQ 4, quorum)   4.x drops a message after 20 deliveries, and its followers would overtake it;
                                           3.x knows no limit unless told, and takes -1 for one
no TTL, no length limit, no dead letters   a message that expires or is dropped is overtaken
x-max-age, x-max-length-bytes (streams)    a stream is trimmed by these alone
=========================================  ============================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

from seriatim.adapters.rabbitmq import manifest, names
from seriatim.adapters.rabbitmq.control import doing, version
from seriatim.adapters.rabbitmq.settings import Retention, Settings
from seriatim.core.errors import ConfigurationError

_FIRST_WITH_A_LIMIT = (4,)


def declare(
    connection: BlockingConnection, settings: Settings, topic: str, partitions: Sequence[str], group: str | None
) -> None:
    """Make what is missing of a topic, and of a group's part in it.

    Raises:
        ConfigurationError: what is there has other settings, or the user has no right to it.
        BrokerError: the server refuses otherwise.
    """
    exchange = names.exchange(settings.prefix, topic)
    known = manifest.read(connection, settings, topic)
    _check_kind(settings, topic, known)
    channel = connection.channel()
    with doing(f"declaring exchange {exchange!r}"):
        channel.exchange_declare(exchange, "direct", durable=True)
    streams = settings.queue_type == "stream"
    for partition in partitions:
        if streams:
            queue = names.stream(topic, partition)
        elif group is not None:
            queue = names.queue(group, topic, partition)
        else:
            continue
        _make(channel, queue, arguments(settings, version(connection)))
        with doing(f"binding {queue!r} to exchange {exchange!r}"):
            channel.queue_bind(queue, exchange, names.routing_key(partition))
    if not set(partitions) <= set(known.partitions):
        everything = tuple(dict.fromkeys([*known.partitions, *partitions]))
        manifest.write(connection, settings, topic, manifest.Manifest(everything, streams))


def delete(connection: BlockingConnection, settings: Settings, topic: str, groups: Sequence[str]) -> None:
    """Remove a topic with all its messages, and the queues of these groups."""
    known = manifest.read(connection, settings, topic)
    exchange = names.exchange(settings.prefix, topic)
    with doing(f"deleting topic {topic!r}"):
        channel = connection.channel()
        channel.queue_delete(exchange)
        channel.exchange_delete(exchange)
        for partition in known.partitions:
            if known.streams:
                channel.queue_delete(names.stream(topic, partition))
            else:
                for group in groups:
                    channel.queue_delete(names.queue(group, topic, partition))


def arguments(settings: Settings, server: tuple[int, ...]) -> dict[str, Any]:
    """The arguments that a queue or stream is declared with, on a server of this version."""
    if settings.queue_type == "stream":
        return {"x-queue-type": "stream", **_retention(settings.retention)}
    found: dict[str, Any] = {"x-queue-type": settings.queue_type, "x-single-active-consumer": True}
    if settings.queue_type == "quorum" and server >= _FIRST_WITH_A_LIMIT:
        found["x-delivery-limit"] = -1
    return found


def _check_kind(settings: Settings, topic: str, known: manifest.Manifest) -> None:
    """Both at once would be two logs of one topic, each read by some."""
    if known.partitions and known.streams != (settings.queue_type == "stream"):
        there = "streams" if known.streams else "queues"
        raise ConfigurationError(
            f"topic {topic!r} consists of {there}, and the broker's URL says queue_type={settings.queue_type}: give "
            "the queue_type= that it was declared with, or the topic another name"
        )


def _retention(retention: Retention) -> dict[str, Any]:
    wanted = {
        "x-max-age": retention.max_age,
        "x-max-length-bytes": retention.max_length_bytes,
        "x-stream-max-segment-size-bytes": retention.segment_bytes,
    }
    return {name: value for name, value in wanted.items() if value is not None}


def _make(channel: BlockingChannel, queue: str, wanted: dict[str, Any]) -> None:
    with doing(f"declaring {wanted['x-queue-type']} {queue!r}"):
        channel.queue_declare(queue, durable=True, arguments=wanted)
