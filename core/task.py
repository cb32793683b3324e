"""A task: one message on its way through a batch, from a delivery or from a parked row whose turn has come."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from seriatim.core.decision import Arrival, Reason
from seriatim.core.digest import digest
from seriatim.core.envelope import Malformed, open_delivery
from seriatim.core.errors import InvalidMessage
from seriatim.core.handler import Handler
from seriatim.core.message import Delivery, Message
from seriatim.core.store.port import MICROSECOND, ParkedMessage
from seriatim.core.topic import Topic


@dataclass(slots=True)
class Task:
    """What is known of one message before it is judged.

    `message`, `event` and `handler` are set unless `arrival.problem` says what keeps it from being run; `error` says so
    in words. `row` is set where it comes from parking. Times are microseconds.
    """

    partition: str
    arrival: Arrival
    delivery: Delivery
    received_at: int
    produced_at: int
    message: Message | None = None
    event: Any = None
    handler: Handler | None = None
    error: str = ""
    row: ParkedMessage | None = None
    handler_s: float = 0.0  #: how long its calls took
    deadly: bool = False  #: it is refused because it ended its process too often

    @property
    def biz_key(self) -> str:
        """The biz_key, of a task that has one."""
        if self.arrival.biz_key is None:
            raise AssertionError("a task without a biz_key was taken for one with")
        return self.arrival.biz_key

    @property
    def sharding_key(self) -> str:
        """The sharding key, of a task that has one."""
        if self.arrival.sharding_key is None:
            raise AssertionError("a task without a sharding key was taken for one with")
        return self.arrival.sharding_key

    def refuse(self, problem: Reason, error: str) -> None:
        """Keep it from being run: it fails for this reason instead."""
        self.handler = None
        self.arrival = replace(self.arrival, problem=problem)
        self.error = error


def of_delivery(topic: Topic, delivery: Delivery) -> Task:
    """The task of a delivery."""
    opened = open_delivery(delivery, topic.default_biz_key)
    received_at = int(delivery.received_at * MICROSECOND)
    if isinstance(opened, Malformed):
        arrival = Arrival(opened.sharding_key, opened.biz_key, opened.type, digest(delivery.body), Reason.MALFORMED)
        return Task(delivery.partition, arrival, delivery, received_at, received_at, error=opened.reason)
    produced_at = int(opened.produced_at * MICROSECOND)
    task = Task(delivery.partition, _arrival(opened, None), delivery, received_at, produced_at, message=opened)
    _resolve(topic, task, opened)
    return task


def of_row(topic: Topic, row: ParkedMessage) -> Task:
    """The task of a parked row."""
    delivery = Delivery(
        topic=topic.name,
        partition=row.partition,
        raw=row.headers,
        body=row.body,
        received_at=row.received_at / MICROSECOND,
        redelivered=True,
    )
    task = of_delivery(topic, delivery)
    task.row, task.received_at, task.produced_at = row, row.received_at, row.produced_at
    return task


def _resolve(topic: Topic, task: Task, message: Message) -> None:
    """Find the handler and decode the body, or say why that can't be done."""
    handler = topic.handler(message.type)
    if handler is None:
        ignored = message.type in topic.ignore
        task.arrival = _arrival(message, Reason.UNHANDLED, ignored=ignored)
        task.error = f"no handler for type {message.type!r}; this process handles {topic.listed_types()}"
        return
    try:
        topic.check_body(message.body)
        task.event = topic.codec.decode(message.body)
    except InvalidMessage as error:
        task.arrival = _arrival(message, Reason.MALFORMED)
        task.error = str(error)
    else:
        task.handler = handler


def _arrival(message: Message, problem: Reason | None, *, ignored: bool = False) -> Arrival:
    return Arrival(message.sharding_key, message.biz_key, message.type, digest(message.body), problem, ignored=ignored)
