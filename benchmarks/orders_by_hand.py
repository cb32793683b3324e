"""The loop that one would write by hand for the orders example: the least that gives each message one effect.

One process, one connection to the embedded log and one to the store: a transaction for each batch of 100 messages, in
which each message inserts its record, moves its order, takes its stock and writes its line. No lease, no second
process, no parking, no retry, no early messages, no conflicts: what goes wrong ends it.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from examples.orders.app import app, orders


@dataclass(slots=True)
class ByHand:
    """Consumes a log to its end. `done` counts messages."""

    log: Path
    store: Path
    batch: int = 100
    done: int = 0
    _after: dict[int, int] = field(default_factory=dict)

    def run(self) -> None:
        """Read every partition to its end, in turn, `batch` messages a transaction."""
        with (
            closing(sqlite3.connect(self.log, isolation_level=None)) as log,
            closing(sqlite3.connect(self.store, isolation_level=None)) as store,
        ):
            store.execute("PRAGMA synchronous = FULL")
            parts = log.execute("SELECT number, name FROM partition WHERE topic = ?", (orders.name,)).fetchall()
            while sum(self._batch(log, store, number, name) for number, name in parts):
                pass

    def _batch(self, log: sqlite3.Connection, store: sqlite3.Connection, number: int, name: str) -> int:
        first = self._after.get(number, number << 40)
        rows = log.execute(
            "SELECT id, headers, body FROM message WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
            (first, (number + 1) << 40, self.batch),
        ).fetchall()
        if not rows:
            return 0
        store.execute("BEGIN IMMEDIATE")
        for _, headers, body in rows:
            self._pay(store, name, json.loads(headers), body)
        self._after[number] = rows[-1][0] + 1
        store.execute(
            "UPDATE partition_owner SET position = ? WHERE consumer_group = ? AND topic = ? AND partition_id = ?",
            (str(rows[-1][0]), app.group, orders.name, name),
        )
        store.execute("COMMIT")
        self.done += len(rows)
        return len(rows)

    def _pay(self, store: sqlite3.Connection, partition: str, headers: dict[str, str], body: bytes) -> None:
        key, event_, now = headers["seriatim-key"], json.loads(body), time.time_ns() // 1000
        kind, sku, qty = headers["seriatim-type"], event_["sku"], event_["qty"]
        biz_key = f"{key}:{kind}"
        response = json.dumps({"order_no": key, "taken": qty}).encode()
        fresh = store.execute(
            "INSERT INTO idempotent_record (consumer_group, topic, biz_key, message_type, sharding_key, partition_id,"
            " status, outcome, request_digest, response_body, produced_at, received_at, create_time, update_time,"
            " settled_at) VALUES (?,?,?,?,?,?,2,'applied',?,?,?,?,?,?,?) ON CONFLICT DO NOTHING",
            (app.group, orders.name, biz_key, kind, key, partition, hashlib.sha256(body).digest(), response)
            + (now,) * 5,
        ).rowcount
        if not fresh:
            return  # a duplicate
        moved = store.execute(
            "UPDATE orders SET status = 'PAID', paid_at = CURRENT_TIMESTAMP WHERE order_no = ? AND status = 'CREATED'",
            (key,),
        ).rowcount
        taken = (
            moved
            and store.execute("UPDATE stock SET qty = qty - ? WHERE sku = ? AND qty >= ?", (qty, sku, qty)).rowcount
        )
        if not taken:
            raise SystemExit(f"{key}: the loop by hand has no answer to this")
        store.execute(
            "INSERT INTO order_ledger (biz_key, order_no, event, sku, moved) VALUES (?,?,?,?,?)",
            (biz_key, key, kind, sku, -qty),
        )
