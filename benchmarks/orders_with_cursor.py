"""The example's dearest handler, with its own statements through `ctx.cursor`.

It is to the example what the loop by hand is: the same SQL, given to the driver as it is. What differs between the two
in `scripts/bench --on-services` is what SQLAlchemy costs for two statements.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import func

from benchmarks.services_by_hand import NOTE, TAKE
from examples.orders.app import OutOfStock, status
from examples.orders.app import app as example
from examples.orders.app import orders as example_orders
from seriatim import App, Context

app = App(example.group)
orders = app.topic(example_orders.name, partitions=len(example_orders.partitions), policy=example_orders.policy)


@orders.on("order.paid", moves=status.to("PAID", set={"paid_at": func.now()}))
def paid(event: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """As in the example."""
    message, sku, qty = ctx.message, event["sku"], event["qty"]
    if not ctx.cursor.execute(TAKE, (qty, sku, qty)).rowcount:
        raise OutOfStock(f"fewer than {qty} of {sku} are left")
    ctx.cursor.execute(NOTE, (message.biz_key, message.sharding_key, message.type, sku, -qty))
    return {"order_no": message.sharding_key, "taken": qty}
