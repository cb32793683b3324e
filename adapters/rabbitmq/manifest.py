"""What a topic consists of, kept on the server, for AMQP can't list what there is.

The last message of the stream ``<prefix>.<topic>`` says it: JSON, ``{"partitions": ["0", "1", …], "streams": false}``.
It is written after everything that it names was made, so a topic that has one is complete. Reading a stream takes
nothing away, so any number of processes may read it at once.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import pika
from pika.adapters.blocking_connection import BlockingConnection

from seriatim.adapters.rabbitmq import names
from seriatim.adapters.rabbitmq.control import doing, first_of_stream
from seriatim.adapters.rabbitmq.settings import Settings
from seriatim.core.errors import ConfigurationError

_SILENCE_S = 3.0  # made, and nothing in it: its maker died in between


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a topic consists of; no partitions where there is no such topic."""

    partitions: tuple[str, ...] = ()
    streams: bool = False  #: they are streams; else every group has queues of its own


def read(connection: BlockingConnection, settings: Settings, topic: str) -> Manifest:
    """What `topic` consists of.

    Raises:
        ConfigurationError: what lies there is no manifest.
    """
    stream = names.exchange(settings.prefix, topic)
    with doing(f"reading what topic {topic!r} consists of"):
        body = first_of_stream(connection, stream, "last", _SILENCE_S)
    if body is None:
        return Manifest()
    try:
        found = json.loads(body)
        return Manifest(tuple(str(partition) for partition in found["partitions"]), bool(found["streams"]))
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(
            f"the last message of stream {stream!r} isn't what Seriatim writes there: delete that stream, and declare "
            "the topic again"
        ) from error


def write(connection: BlockingConnection, settings: Settings, topic: str, manifest: Manifest) -> None:
    """Say from now on what `topic` consists of."""
    stream = names.exchange(settings.prefix, topic)
    with doing(f"writing what topic {topic!r} consists of"):
        channel = connection.channel()
        channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
        channel.confirm_delivery()
        channel.basic_publish(
            "",
            stream,
            json.dumps(asdict(manifest)).encode(),
            pika.BasicProperties(delivery_mode=2, content_type="application/json"),
            mandatory=True,
        )
        channel.close()
