"""Sending: published with `mandatory`, confirmed by the server, keys side by side."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from pika.channel import Channel
from pika.frame import Method
from pika.spec import Basic, BasicProperties

from seriatim.adapters.rabbitmq import manifest, names, troubles, wire
from seriatim.adapters.rabbitmq.control import control
from seriatim.adapters.rabbitmq.line import Line
from seriatim.adapters.rabbitmq.link import CLOSE_S, Connection, Error, Link
from seriatim.adapters.rabbitmq.sending import Call, Item, Sending
from seriatim.adapters.rabbitmq.settings import Settings
from seriatim.core.errors import BrokerError, SendFailed
from seriatim.core.message import Message

_AWAY_S = 1.0  # how long a send waits for a connection that was lost
_BLOCKED_S = 10.0  # … and for a server that blocks publishers (a resource alarm)


class RabbitProducer:
    """Sends to partitions. Thread-safe."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._known: dict[str, frozenset[str]] = {}  # partitions by topic
        self._asking = threading.Lock()
        self._changed = threading.Condition()
        self._away: Exception | None = None
        self._ready = False
        self._blocked = False
        self._link = Link(settings, self, "rabbitmq-producer")
        self._line = Line(self._link, self)  # from here on, the connection thread's
        self._sending = Sending(self._publish)
        self._tag = 0

    def send(self, messages: Sequence[tuple[str, Message]]) -> None:
        """Send each (partition, message); return once the server has confirmed every one.

        Messages of one key go out one after another, each when the one before was confirmed.

        Raises:
            SendFailed: not all were confirmed.
            BrokerError: nothing was sent: the server is away or blocks, or a partition doesn't exist.
            InvalidMessage: one is larger than RabbitMQ takes; nothing was sent.
        """
        call = Call(len(messages))
        items = [self._item(call, partition, message) for partition, message in messages]
        if not items:
            return
        for partition, message in messages:
            self._check_there(message.topic, partition)
        self._link.start()
        self._wait_until_ready()
        self._link.post(lambda: self._begin(items))
        if not call.done.wait(self._settings.confirm_timeout_s):
            self._link.ask(lambda done: self._give_up(call, done), CLOSE_S)
            call.error = call.error or BrokerError(
                f"RabbitMQ at {self._settings.server} gave no confirmation in {self._settings.confirm_timeout_s:g} s"
            )
        self._conclude(call, items)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._link.close()

    def _conclude(self, call: Call, items: Sequence[Item]) -> None:
        unconfirmed = [item.message for item in items if not item.confirmed]
        if not unconfirmed:
            return
        if not any(item.sent for item in items):
            raise BrokerError(f"nothing was sent: {call.error}") from call.error
        keys = ", ".join(repr(message.biz_key) for message in unconfirmed[:3])
        more = f" and {len(unconfirmed) - 3} more" if len(unconfirmed) > 3 else ""  # noqa: PLR2004 - as many as named
        raise SendFailed(f"not confirmed: {keys}{more}: {call.error}", unconfirmed) from call.error

    def _item(self, call: Call, partition: str, message: Message) -> Item:
        properties, body = wire.to_wire(message)
        exchange = names.exchange(self._settings.prefix, message.topic)
        return Item(call, message, exchange, names.routing_key(partition), properties, body)

    def _check_there(self, topic: str, partition: str) -> None:
        if partition in self._known.get(topic, ()):
            return
        with self._asking, control(self._settings) as connection:  # one at a time is enough
            there = manifest.read(connection, self._settings, topic).partitions
        if not there:
            raise BrokerError(f"there is no topic {topic!r} (for partition {partition!r}): declare it first")
        if partition not in there:
            raise BrokerError(f"topic {topic!r} has no partition {partition!r}: declared are {', '.join(there)}")
        self._known[topic] = frozenset(there)

    def _wait_until_ready(self) -> None:
        began = time.monotonic()
        parameters = self._settings.parameters
        with self._changed:
            while not self._ready or self._blocked:
                limit_s = (
                    _BLOCKED_S if self._blocked else _AWAY_S if self._away else parameters.stack_timeout or _AWAY_S
                )
                left_s = began + limit_s - time.monotonic()
                if left_s <= 0:
                    raise BrokerError(f"nothing was sent: {self._trouble()}") from self._away
                self._changed.wait(left_s)
                self._link.check_usable()

    def _trouble(self) -> str:
        if self._blocked:
            return (
                f"RabbitMQ at {self._settings.server} blocks publishers (a memory or disk alarm): "
                "rabbitmq-diagnostics alarms tells which; free what it names"
            )
        return str(self._away or f"no answer from RabbitMQ at {self._settings.server}")

    # -- on the connection's thread

    def connected(self, connection: Connection) -> None:
        """Open a channel, and hear of alarms."""
        connection.add_on_connection_blocked_callback(lambda _connection, _frame: self._set(blocked=True))
        connection.add_on_connection_unblocked_callback(lambda _connection, _frame: self._set(blocked=False))
        self._line.connected(connection)

    def disconnected(self, error: Error) -> None:
        """Those who want to send are to know."""
        self._set(ready=False, blocked=False, away=error)

    def opened(self, channel: Channel) -> None:
        """Ask for confirmations."""
        self._tag = 0
        channel.add_on_return_callback(self._returned)
        channel.confirm_delivery(self._confirmed, callback=lambda _answer: self._confirming())

    def closed(self, error: BaseException) -> None:
        """What is on its way is in doubt."""
        self._known.clear()  # perhaps the topic is gone
        why = troubles.of_channel(error, "sending")
        self._set(ready=False, away=why)
        self._sending.lost(why)

    def _confirming(self) -> None:
        self._line.works()
        self._set(ready=True)

    def _set(self, *, ready: bool | None = None, blocked: bool | None = None, away: Exception | None = None) -> None:
        with self._changed:
            self._ready = self._ready if ready is None else ready
            self._blocked = self._blocked if blocked is None else blocked
            self._away = None if self._ready else away or self._away
            self._changed.notify_all()

    def _begin(self, items: list[Item]) -> None:
        if self._ready:
            self._sending.add(items)
        else:
            for item in items:
                item.fail(self._away or BrokerError("the connection was lost"))

    def _give_up(self, call: Call, done: Callable[[], None]) -> None:
        """Drop what wasn't sent of a call. What was sent would hold up its keys: a fresh channel knows nothing of it.

        (Seen on RabbitMQ 3.10: published while a quorum queue recovers from a crash, a message is never answered.)
        """
        if self._sending.give_up(call):
            self._line.reopen(f"no confirmation within {self._settings.confirm_timeout_s:g} s")
        done()

    def _publish(self, item: Item) -> int:
        channel = self._line.channel
        if channel is not None:
            self._tag += 1
            channel.basic_publish(item.exchange, item.routing_key, item.body, item.properties, mandatory=True)
        return self._tag

    def _confirmed(self, answer: Method[Any]) -> None:
        method = answer.method
        self._sending.confirmed(method.delivery_tag, multiple=method.multiple, accepted=isinstance(method, Basic.Ack))

    def _returned(self, _channel: Channel, method: Basic.Return, properties: BasicProperties, _body: bytes) -> None:
        self._sending.returned(properties, method.routing_key or "", _unroutable)


def _unroutable(message: Message) -> Exception:
    return BrokerError(
        f"biz_key {message.biz_key!r} can't be routed: no group's queue is bound to its partition of topic "
        f"{message.topic!r} yet: start a consumer (seriatim run) once before sending, or declare its group"
    )
