"""The shop that is measured: unpaid orders, and the messages that pay them.

A message here is the dearest of the example, `order.paid`: its record, the order's guarded move, the conditional UPDATE
of the stock and a line of the ledger. The orders are there already, so that nothing but consuming is measured.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, func, insert, select
from sqlalchemy.pool import NullPool

from examples.orders import tables
from examples.orders.app import app, orders
from examples.orders.check import check_orders, check_stock
from seriatim import Message
from seriatim.core.store.schema import group_member, idempotent_record, partition_owner

QTY = 2
TICK_S = 0.01  #: how often the paced producer sends


@dataclass(frozen=True, slots=True)
class Shop:
    """Unpaid orders in the store at `url`, the messages that pay them, and a scratch folder."""

    folder: Path
    url: str
    stream: Sequence[Message]

    def send(self) -> None:
        """The whole backlog in one go: it is there at once."""
        with app.producer() as producer:
            producer.send(*self.stream)

    def send_at_rate(self, rate: int) -> None:
        """Send at a steady rate, a hundred times a second."""
        began, sent = time.monotonic(), 0
        with app.producer() as producer:
            while sent < len(self.stream):
                due = min(len(self.stream), int((time.monotonic() - began) * rate) + 1)
                fresh = [
                    orders.message(key=one.sharding_key, type=one.type, body=json.loads(one.body))
                    for one in self.stream[sent:due]
                ]
                producer.send(*fresh)
                sent = due
                time.sleep(TICK_S)

    def read(self, query: Any) -> Sequence[Any]:
        """Rows of the store."""
        engine = create_engine(self.url, poolclass=NullPool)
        with engine.connect() as connection:
            rows = connection.execute(query).all()
        engine.dispose()
        return rows

    def settled(self) -> tuple[int, int]:
        """How many messages are settled, and when the last one was."""
        row = self.read(select(func.count(), func.max(idempotent_record.c.settled_at)))[0]
        return int(row[0]), int(row[1] or 0)

    def owners(self) -> set[int]:
        """The processes that hold partitions, once every partition is held."""
        owner, member = partition_owner.c, group_member.c
        query = select(owner.owner, member.pid).select_from(
            partition_owner.outerjoin(group_member, owner.member == member.member)
        )
        rows = self.read(query)
        held = all(holder is not None and pid is not None for holder, pid in rows)
        return {pid for _, pid in rows} if held else set()

    def check(self) -> None:
        """Fast and wrong counts for nothing."""
        engine = create_engine(self.url, poolclass=NullPool)
        with engine.connect() as connection:
            wrong = [*check_stock(connection).wrong, *check_orders(connection).wrong]
            paid = connection.execute(select(func.count()).where(tables.orders.c.status == "PAID")).scalar_one()
        engine.dispose()
        if wrong or paid != len(self.stream):
            raise SystemExit(f"the run is wrong: {paid} of {len(self.stream)} paid; {wrong[:3]}")


def open_shop(folder: Path, url: str, messages: int, skus: int) -> Shop:
    """Make the business tables, and put `messages` unpaid orders and `skus` articles into them."""
    tables.create(url, [(f"sku-{index:05}", QTY * messages) for index in range(skus)])
    stream = [
        orders.message(key=f"o{index:07}", type="order.paid", body={"sku": f"sku-{index % skus:05}", "qty": QTY})
        for index in range(messages)
    ]
    rows = [
        {"order_no": message.sharding_key, "status": "CREATED", "sku": json.loads(message.body)["sku"], "qty": QTY}
        for message in stream
    ]
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(insert(tables.orders).values(created_at=func.now()), rows)
    engine.dispose()
    return Shop(folder, url, stream)
