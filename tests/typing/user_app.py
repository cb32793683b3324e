"""Type-checked only, never run: a user's file, against the checkout and against the installed wheel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, text

from seriatim import (
    App,
    Backoff,
    BytesCodec,
    Context,
    Early,
    InvalidMessage,
    KeyInDoubt,
    Message,
    OrderedProducer,
    Policy,
    Reject,
    Retry,
    Routing,
    SendFailed,
    Settings,
    StateMachine,
    Topic,
)

settings = Settings(broker="embedded:log.db", store="sqlite:///shop.db", lanes=1)
app = App("warehouse", settings=settings)
orders: Topic = app.topic(
    "orders",
    partitions=16,
    routing=Routing("modulo", hash="java"),
    policy=Policy(max_attempts=5, backoff=Backoff(base_s=0.5, cap_s=60)),
    on_dead="skip",
)
raw = app.topic("raw", partitions=("a", "b"), codec=BytesCodec(), ignore=["noise"])
status = StateMachine(
    "orders", key="order_no", column="status", after={"CREATED": (), "PAID": ("CREATED",), "SHIPPED": ("PAID",)}
)


@dataclass
class Receipt:
    units: int


@orders.on("order.created", moves=status.to("CREATED", insert=lambda event: {"amount": event["amount"]}))
def created(event: Mapping[str, Any], ctx: Context) -> dict[str, bool]:
    return {"accepted": bool(event) and ctx.state_before is None}


@orders.on("order.paid", moves=status.to("PAID", set={"paid_at": func.now()}))
def paid(event: Mapping[str, Any], ctx: Context) -> Receipt:
    if event["n"] < 1:
        raise Reject("nothing ordered")
    done = ctx.tx.execute(text("UPDATE stock SET qty = qty - :n WHERE sku = :sku"), dict(event))
    if done.rowcount == 0:
        raise Retry("no such article yet", after=30)
    return Receipt(event["n"])


@raw.on("*")
def anything(body: bytes, ctx: Context) -> None:
    if ctx.message.seq is None:
        raise Early("comes later", waiting_for="first")
    with ctx.tx.savepoint(), ctx.cursor as cursor:
        cursor.execute("INSERT INTO blobs VALUES (?)", (body,))
    ctx.session.flush()


def send(producer: OrderedProducer) -> tuple[Message, ...]:
    message = orders.message(key=42, type="order.paid", body={"n": 1}, state="CREATED", seq=2)
    try:
        producer.send(message)
    except SendFailed as error:
        return error.unconfirmed
    except (KeyInDoubt, InvalidMessage):
        producer.resend()
        return producer.abandon("orders", "42")
    return ()


def main() -> None:
    with app.producer() as producer:
        send(producer)
