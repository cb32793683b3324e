"""What a topic consists of, kept on the server, for AMQP can't list what there is.

The last message of the stream ``<prefix>.<topic>`` says it: JSON, ``{"partitions": ["0", "1", …]}``. It is written
after everything that it names was made, so a topic that has one is complete. Reading a stream takes nothing away, so
any number of processes may read it at once.
"""

from __future__ import annotations

import json

import pika
from pika.adapters.blocking_connection import BlockingConnection

from seriatim.adapters.rabbitmq import names
from seriatim.adapters.rabbitmq.control import doing, first_of_stream
from seriatim.adapters.rabbitmq.settings import Settings
from seriatim.core.errors import ConfigurationError

_SILENCE_S = 3.0  # made, and nothing in it: its maker died in between


def read(connection: BlockingConnection, settings: Settings, topic: str) -> tuple[str, ...]:
    """The partitions of `topic`; empty where there is no such topic.

    Raises:
        ConfigurationError: what lies there is no manifest.
    """
    stream = names.exchange(settings.prefix, topic)
    with doing(f"reading what topic {topic!r} consists of"):
        body = first_of_stream(connection, stream, "last", _SILENCE_S)
    if body is None:
        return ()
    try:
        return tuple(str(partition) for partition in json.loads(body)["partitions"])
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(
            f"the last message of stream {stream!r} isn't what Seriatim writes there: delete that stream, and declare "
            "the topic again"
        ) from error


def write(connection: BlockingConnection, settings: Settings, topic: str, partitions: tuple[str, ...]) -> None:
    """Say from now on that `topic` consists of `partitions`."""
    stream = names.exchange(settings.prefix, topic)
    with doing(f"writing what topic {topic!r} consists of"):
        channel = connection.channel()
        channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
        channel.confirm_delivery()
        channel.basic_publish(
            "",
            stream,
            json.dumps({"partitions": partitions}).encode(),
            pika.BasicProperties(delivery_mode=2, content_type="application/json"),
            mandatory=True,
        )
        channel.close()
