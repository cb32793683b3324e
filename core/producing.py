"""The producer's side: each message to the partition of its key, confirmed, and never past one that is in doubt."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence

from seriatim.core.broker import Broker
from seriatim.core.errors import InvalidMessage, KeyInDoubt, SendFailed
from seriatim.core.message import Message
from seriatim.core.topic import Topic

Key = tuple[str, str]


class OrderedProducer:
    """Routes messages by their sharding key and sends them in order. Thread-safe.

    A key whose send was never confirmed is in doubt: sending later messages of it could overtake the earlier one, so
    they are refused until it is sent again (`resend`) or given up by name (`abandon`).
    """

    def __init__(self, broker: Broker, topics: Mapping[str, Topic]) -> None:
        self._producer = broker.producer()
        self._topics = topics
        self._unconfirmed: dict[Key, list[Message]] = {}
        self._mutex = threading.Lock()

    def send(self, *messages: Message) -> None:
        """Send messages; returns once the broker has confirmed every one of them, durably.

        Raises:
            InvalidMessage: a message is of a topic that isn't declared, or its body is too long; nothing was sent.
            KeyInDoubt: an earlier message of one of the keys was never confirmed; nothing was sent.
            SendFailed: some weren't confirmed; their keys are in doubt now.
        """
        routed = self._route(messages)
        self._refuse_doubtful(messages)
        self._send(routed)

    def resend(self) -> int:
        """Send everything unconfirmed again, in order; how many there were. Their biz_keys make copies harmless.

        Raises:
            SendFailed: some are still not confirmed.
        """
        with self._mutex:
            messages = [message for waiting in self._unconfirmed.values() for message in waiting]
        self._send(self._route(messages))
        return len(messages)

    def abandon(self, topic: str, key: str) -> tuple[Message, ...]:
        """Give up what is unconfirmed of a key; returns it. Later messages of the key may be sent again."""
        with self._mutex:
            return tuple(self._unconfirmed.pop((topic, key), ()))

    @property
    def in_doubt(self) -> tuple[Message, ...]:
        """What was sent and never confirmed."""
        with self._mutex:
            return tuple(message for waiting in self._unconfirmed.values() for message in waiting)

    def close(self) -> None:
        """Let go of the broker."""
        self._producer.close()

    def _route(self, messages: Iterable[Message]) -> list[tuple[str, Message]]:
        return [(self._partition(message), message) for message in messages]

    def _partition(self, message: Message) -> str:
        topic = self._topics.get(message.topic)
        if topic is None:
            raise InvalidMessage(
                f"biz_key {message.biz_key!r} is of topic {message.topic!r}, which this app doesn't declare; it has "
                f"{', '.join(sorted(self._topics)) or 'none'}"
            )
        topic.check_body(message.body)
        return topic.routing.route(message.sharding_key, topic.partitions)

    def _refuse_doubtful(self, messages: Iterable[Message]) -> None:
        with self._mutex:
            for message in messages:
                waiting = self._unconfirmed.get(_key(message))
                if waiting:
                    raise KeyInDoubt(
                        f"key {message.sharding_key!r} of topic {message.topic!r}: {waiting[0].biz_key!r} was sent and "
                        "never confirmed; resend() it, or abandon() the key, before sending more of it"
                    )

    def _send(self, routed: Sequence[tuple[str, Message]]) -> None:
        try:
            self._producer.send(routed)
        except SendFailed as error:
            self._remember(routed, error.unconfirmed)
            raise
        self._remember(routed, ())

    def _remember(self, sent: Sequence[tuple[str, Message]], unconfirmed: Iterable[Message]) -> None:
        """What was sent isn't in doubt any more, except what is unconfirmed; another thread's messages stay."""
        with self._mutex:
            for key in {_key(message) for _, message in sent}:
                these = {message.biz_key for _, message in sent if _key(message) == key}
                waiting = [message for message in self._unconfirmed.pop(key, []) if message.biz_key not in these]
                if waiting:
                    self._unconfirmed[key] = waiting
            for message in unconfirmed:
                self._unconfirmed.setdefault(_key(message), []).append(message)


def _key(message: Message) -> Key:
    return message.topic, message.sharding_key
