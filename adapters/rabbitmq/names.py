"""What everything is called on the server.

====================  ==============================================================================
``<prefix>.<topic>``             a direct exchange, its routing keys are the partitions
``<prefix>.<topic>``             a stream: what the topic consists of (`manifest`)
``<group>.<topic>.<partition>``  a quorum or classic queue
``<topic>.<partition>``          a stream, which every group reads
====================  ==============================================================================

A topic may have dots in its name. In a group's and a partition's, dots are written ``%2E``, or group ``a.b`` of topic
``c`` would share its queues with group ``a`` of topic ``b.c``.
"""

from __future__ import annotations

from seriatim.core.errors import ConfigurationError

_LONGEST = 255  # bytes of a name, in AMQP


def check_topic(prefix: str, topic: str) -> None:
    """Refuse a topic whose streams could be taken for the suite's own.

    Raises:
        ConfigurationError: its name begins with the prefix.
    """
    if topic == prefix or topic.startswith(f"{prefix}."):
        raise ConfigurationError(
            f"topic {topic!r}: names that begin with {prefix!r} are Seriatim's own on the server; "
            "rename the topic, or give another prefix= in the broker's URL"
        )


def exchange(prefix: str, topic: str) -> str:
    """The exchange of a topic, and the stream of its manifest."""
    return _checked(f"{prefix}.{topic}")


def queue(group: str, topic: str, partition: str) -> str:
    """A group's queue of a partition."""
    return _checked(f"{_plain(group)}.{topic}.{_plain(partition)}")


def stream(topic: str, partition: str) -> str:
    """The stream of a partition."""
    return _checked(f"{topic}.{_plain(partition)}")


def routing_key(partition: str) -> str:
    """The routing key of a partition: its id."""
    return _checked(partition)


def _plain(name: str) -> str:
    return name.replace("%", "%25").replace(".", "%2E")


def _checked(name: str) -> str:
    if len(name.encode()) > _LONGEST:
        raise ConfigurationError(
            f"the name {name[:60]!r}… has more than {_LONGEST} bytes, RabbitMQ's limit: shorten it"
        )
    return name
