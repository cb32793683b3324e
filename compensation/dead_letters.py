"""Draining a broker's own dead-letter queue: what it gave up is parked, for a person to decide.

Seriatim never lets a broker give a message up. But a policy of the server's, or a consumer of somebody else's, may; and
by the time that it is found, later messages of its key may have run. So such a message isn't run: it is parked as dead
with the error `ORDER_BROKEN`, and its key follows the topic's `on_dead`. An operator retries or skips it.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from seriatim.core.broker import Batch, Consumer
from seriatim.core.decision import Action, Failed, Reason
from seriatim.core.execution import new_record
from seriatim.core.message import Delivery
from seriatim.core.observer import Observer
from seriatim.core.store.port import Scope, Session
from seriatim.core.task import Task, of_delivery
from seriatim.core.topic import Topic
from seriatim.core.view import View

SLICE = 100  #: messages that one step takes
POLL_S = 0.1
ORDER_BROKEN = "order broken"


@dataclass(slots=True)
class DeadLetters:
    """Parks what the dead-letter queue `source` of one topic holds. Owns its session and its consumer."""

    session: Session
    scope: Scope
    topic: Topic
    source: str
    consumer: Consumer
    observer: Observer
    _started: bool = False

    def step(self) -> bool:
        """Park what has arrived, and settle it after the commit; whether there was anything.

        Raises:
            StoreUnavailable, Contention, BrokerError: what wasn't parked comes again; try again later.
        """
        if not self._started:
            self.consumer.start(self.source, None)
            self._started = True
        batch = self.consumer.poll(POLL_S, SLICE)
        if not isinstance(batch, Batch):
            return False
        try:
            self._park(batch.deliveries)
        except BaseException:
            self.consumer.settle(batch, 0)
            raise
        self.consumer.settle(batch, len(batch.deliveries))
        return True

    def close(self) -> None:
        """Let go of the queue and of the store."""
        self.consumer.close()
        self.session.close()

    def _park(self, deliveries: Sequence[Delivery]) -> None:
        by_partition: dict[str, list[Task]] = defaultdict(list)
        for delivery in deliveries:
            task = of_delivery(self.topic, delivery)
            partition = self._home(task)
            task.partition, task.delivery = partition, replace(delivery, partition=partition)
            by_partition[partition].append(task)
        for partition, tasks in by_partition.items():
            self._park_in(partition, tasks)
            self.observer.event(
                logging.ERROR,
                "dead letters parked",
                group=self.scope.group,
                topic=self.scope.topic,
                partition=partition,
                source=self.source,
                messages=len(tasks),
            )

    def _home(self, task: Task) -> str:
        """The partition of a message's key; the first one for a message without."""
        key = task.arrival.sharding_key
        partitions = self.topic.partitions
        return partitions[0] if key is None else self.topic.routing.route(key, partitions)

    def _park_in(self, partition: str, tasks: Sequence[Task]) -> None:
        session, scope = self.session, self.scope
        with session.transaction():
            session.leases.hold_row(scope, partition)
            view = View(policy=self.topic.policy, now=session.now(), keep_body=self.topic.keep_body)
            biz_keys = sorted({task.arrival.biz_key for task in tasks if task.arrival.biz_key is not None})
            view.records = session.records.look_up(scope, biz_keys)
            view.waiting = session.parking.waiting(scope, biz_keys)
            view.keys = session.parking.keys(scope, {task.arrival.sharding_key or "" for task in tasks})
            for task in tasks:
                self._judge(view, task)
            session.write(scope, view.writes, view.now)

    def _judge(self, view: View, task: Task) -> None:
        action = view.judge(task)
        if action is Action.DUPLICATE:
            view.duplicate(task)
        elif action is Action.PARKED:
            view.already_parked(task)
        elif action is Action.CONFLICT:
            if task.biz_key not in view.conflicts:
                view.conflicts[task.biz_key] = self.session.parking.conflicts(self.scope, task.biz_key)
            view.conflict(task)
        elif action is Action.STRAY:
            view.stray(task)
        else:
            if task.arrival.biz_key is not None and task.biz_key not in view.records:
                self.session.records.claim(self.scope, [new_record(self.topic, task)], view.now)
            view.order_broken(task, self._why())

    def _why(self) -> Failed:
        error = f"{ORDER_BROKEN}: it came out of {self.source!r}, where the broker puts what it gives up"
        return Failed(Reason.DEAD, error, error_type="OrderBroken", final=True, calls=0)
