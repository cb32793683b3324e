"""A warehouse that keeps orders and their stock: what an application with Seriatim looks like.

    seriatim init
    seriatim run examples.orders.app:app

Each handler is called once for each message that may take effect, in the order of the order's messages. What it does
through `ctx.tx` is committed together with Seriatim's record of the message, or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, text

from seriatim import App, Backoff, Context, Policy, Reject, StateMachine

app = App("warehouse")

orders = app.topic(
    "orders",
    partitions=16,
    policy=Policy(max_attempts=6, early_deadline_s=600, backoff=Backoff(base_s=0.5, cap_s=60)),
)

#: Each state, and the states it may follow. A message that asks for any other move is early, late, or done already.
status = StateMachine(
    "orders",
    key="order_no",
    column="status",
    after={
        "CREATED": (),
        "PAID": ("CREATED",),
        "SHIPPED": ("PAID",),
        "COMPLETED": ("SHIPPED",),
        "CLOSED": ("CREATED",),
        "REFUNDED": ("PAID", "SHIPPED"),
    },
)

TAKE = text("UPDATE stock SET qty = qty - :qty WHERE sku = :sku AND qty >= :qty")
GIVE_BACK = text("UPDATE stock SET qty = qty + :qty WHERE sku = :sku")
NOTE = text(
    "INSERT INTO order_ledger (biz_key, order_no, event, sku, moved) VALUES (:biz_key, :order_no, :event, :sku, :moved)"
)

Event = Mapping[str, Any]  # the body of a message, as the JSON codec reads it


class OutOfStock(Reject):
    """No later try would find more: the message is given up at once, and a person decides."""


class ProviderDown(Exception):
    """The payment provider doesn't answer: the message is tried again later, and its order waits. No other does."""


def new_order(event: Event) -> dict[str, Any]:
    """The columns of a new order, besides its key and status."""
    return {"sku": event["sku"], "qty": event["qty"]}


@orders.on("order.created", moves=status.to("CREATED", insert=new_order, set={"created_at": func.now()}))
def created(event: Event, ctx: Context) -> None:
    note(ctx, event)


@orders.on("order.paid", moves=status.to("PAID", set={"paid_at": func.now()}))
def paid(event: Event, ctx: Context) -> dict[str, Any]:
    confirm_payment(event, ctx.attempt)
    if not ctx.tx.execute(TAKE, {"sku": event["sku"], "qty": event["qty"]}).rowcount:
        raise OutOfStock(f"fewer than {event['qty']} of {event['sku']} are left")
    note(ctx, event, moved=-event["qty"])
    return {"order_no": ctx.message.sharding_key, "taken": event["qty"]}  # kept: a duplicate gets the same answer


@orders.on("order.shipped", moves=status.to("SHIPPED", set={"shipped_at": func.now()}))
def shipped(event: Event, ctx: Context) -> None:
    note(ctx, event)


@orders.on("order.completed", moves=status.to("COMPLETED", set={"completed_at": func.now()}))
def completed(event: Event, ctx: Context) -> None:
    note(ctx, event)


@orders.on("order.closed", moves=status.to("CLOSED", set={"closed_at": func.now()}))
def closed(event: Event, ctx: Context) -> None:
    note(ctx, event)  # closed before it was paid: nothing was taken


@orders.on("order.refunded", moves=status.to("REFUNDED", set={"refunded_at": func.now()}))
def refunded(event: Event, ctx: Context) -> None:
    ctx.tx.execute(GIVE_BACK, {"sku": event["sku"], "qty": event["qty"]})
    note(ctx, event, moved=event["qty"])


def note(ctx: Context, event: Event, moved: int = 0) -> None:
    """Enter in the ledger what happened to the order."""
    message = ctx.message
    line = {"biz_key": message.biz_key, "order_no": message.sharding_key, "event": message.type}
    ctx.tx.execute(NOTE, {**line, "sku": event["sku"], "moved": moved})


def confirm_payment(event: Event, attempt: int) -> None:
    """Stands for a call to a payment provider. `fail_until` and `fail_forever` in the event say how it goes.

    Raises:
        ProviderDown: there is no answer.
    """
    if event.get("fail_forever") or attempt <= event.get("fail_until", 0):
        raise ProviderDown("the payment provider does not answer for this order")
