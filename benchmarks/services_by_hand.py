"""The loop that one would write by hand on RabbitMQ and MariaDB: a thread for each queue, pika and PyMySQL.

Each thread has a BlockingConnection on its queue and a connection to the database, and gives each message a transaction
of its own: record, guarded move, conditional UPDATE of the stock, line of the ledger, COMMIT; then it acknowledges. No
lease, no second process, no retry, no parking, no early messages, no conflicts, no reconnect: what goes wrong ends it.

``python -m benchmarks.services_by_hand READY OUT``, with broker and store in the environment: makes the file READY once
it consumes, and after SIGTERM writes to OUT how long after their receipt (here: after their callback began), and after
their production, messages were committed.
"""

from __future__ import annotations

import hashlib
import json
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pika
import pymysql
from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import Basic, BasicProperties
from pymysql.cursors import Cursor
from sqlalchemy import make_url

from benchmarks.delays import Timed
from examples.orders.app import app, orders
from seriatim.core.store.port import MICROSECOND

PREFETCH = 250  # Seriatim's default, too
HEARTBEAT_S = 4

RECORD = (
    "INSERT IGNORE INTO idempotent_record (consumer_group, topic, biz_key, message_type, sharding_key, partition_id,"
    " status, outcome, request_digest, response_body, produced_at, received_at, create_time, update_time, settled_at)"
    " VALUES (%s,%s,%s,%s,%s,%s,2,'applied',%s,%s,%s,%s,%s,%s,"
    " TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))"
)
MOVE = "UPDATE orders SET status = 'PAID', paid_at = NOW() WHERE order_no = %s AND status = 'CREATED'"
TAKE = "UPDATE stock SET qty = qty - %s WHERE sku = %s AND qty >= %s"
NOTE = "INSERT INTO order_ledger (biz_key, order_no, event, sku, moved) VALUES (%s,%s,%s,%s,%s)"


@dataclass(slots=True)
class Group:
    """All the threads."""

    broker: str
    store: str
    ready: Path
    timed: Timed = field(default_factory=Timed)
    stopping: threading.Event = field(default_factory=threading.Event)
    barrier: threading.Barrier = field(init=False)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(len(orders.partitions), action=self.ready.touch)

    def run(self) -> None:
        """Consume every queue until `stopping` is set or one of the threads fails."""
        with ThreadPoolExecutor(len(orders.partitions)) as pool:
            for done in [pool.submit(self._consume, partition) for partition in orders.partitions]:
                done.result()

    def _consume(self, partition: str) -> None:
        parameters = pika.URLParameters(self.broker)
        parameters.heartbeat = HEARTBEAT_S
        try:
            with closing(pika.BlockingConnection(parameters)) as connection, closing(self._connect()) as store:
                channel = connection.channel()
                channel.basic_qos(prefetch_count=PREFETCH)
                loop = Loop(partition, store, self.timed)
                channel.basic_consume(f"{app.group}.{orders.name}.{partition}", loop.on_message)
                self.barrier.wait(60)
                while not self.stopping.is_set():
                    connection.process_data_events(time_limit=0.2)
        finally:
            self.stopping.set()
            self.barrier.abort()

    def _connect(self) -> pymysql.Connection[Cursor]:
        url = make_url(self.store)
        return pymysql.connect(
            host=url.host, port=url.port or 3306, user=url.username, password=url.password or "", database=url.database
        )


@dataclass(slots=True)
class Loop:
    """One queue."""

    partition: str
    store: pymysql.Connection[Cursor]
    timed: Timed

    def on_message(
        self, channel: BlockingChannel, method: Basic.Deliver, properties: BasicProperties, body: bytes
    ) -> None:
        """One message: an effect, a commit, an acknowledgement."""
        received = time.time()
        headers: dict[str, Any] = properties.headers or {}
        produced = float(headers["seriatim-produced-at"])
        with self.store.cursor() as cursor:
            self._pay(cursor, headers, body, int(produced * MICROSECOND), int(received * MICROSECOND))
        self.store.commit()
        now = time.time()
        channel.basic_ack(method.delivery_tag)
        self.timed.produced.append((now - produced) * 1000)
        self.timed.received.append((now - received) * 1000)

    def _pay(self, cursor: Cursor, headers: dict[str, Any], body: bytes, produced: int, received: int) -> None:
        key, kind, event = headers["seriatim-key"], headers["seriatim-type"], json.loads(body)
        sku, qty = event["sku"], event["qty"]
        biz_key = f"{key}:{kind}"
        response = json.dumps({"order_no": key, "taken": qty}).encode()
        digest = hashlib.sha256(body).digest()
        scope = (app.group, orders.name, biz_key, kind, key, self.partition)
        if not cursor.execute(RECORD, (*scope, digest, response, produced, *(received,) * 3)):
            return  # a duplicate
        if not (cursor.execute(MOVE, (key,)) and cursor.execute(TAKE, (qty, sku, qty))):
            raise SystemExit(f"{key}: the loop by hand has no answer to this")
        cursor.execute(NOTE, (biz_key, key, kind, sku, -qty))


def main(ready: Path, out: Path) -> None:
    """Consume until SIGTERM."""
    group = Group(app.settings.broker.partition("?")[0], app.settings.store, ready)
    signal.signal(signal.SIGTERM, lambda *_: group.stopping.set())
    group.run()
    group.timed.write(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
