"""An incident to practise on: payments that need a bank, which is down while the file `bank-is-down` is there.

`python shop.py` makes the shop's table and sends the payments; docs/operations.md walks through the rest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text

from seriatim import App, Backoff, Policy
from seriatim.core.settings import load_settings

DOWN = Path("bank-is-down")  #: in the folder where the consumers were started
SLOW = Policy(max_attempts=4, tries_at_once=1, backoff=Backoff(base_s=600, cap_s=3600))  # time to look at it
PAYMENTS = 12
UNREADABLE = {7: "12,50", 9: "a lot"}  #: amounts from another country's till, and from nobody knows where
REFUNDED = ("o-3", "o-7", "o-9")
TABLE = "CREATE TABLE IF NOT EXISTS paid (order_no VARCHAR(64) PRIMARY KEY, cents INTEGER, refunded INTEGER DEFAULT 0)"

app = App("shop")
payments = app.topic("payments", partitions=4, policy=SLOW)


@payments.on("payment.taken", once=True)
def taken(event: dict[str, Any], ctx: Any) -> None:
    """Take the money, and write it down."""
    cents = round(float(event["amount"]) * 100)
    if DOWN.exists():
        raise TimeoutError("bank.example: no answer within 2 s")
    ctx.tx.execute(
        text("INSERT INTO paid (order_no, cents) VALUES (:order_no, :cents)"),
        {"order_no": ctx.message.sharding_key, "cents": cents},
    )


@payments.on("payment.refunded", once=True)
def refunded(_event: dict[str, Any], ctx: Any) -> None:
    """Give the money back: it must have been taken first."""
    ctx.tx.execute(
        text("UPDATE paid SET refunded = 1 WHERE order_no = :order_no"), {"order_no": ctx.message.sharding_key}
    )


def send() -> None:
    """Twelve payments, two of which nobody can read, and three refunds."""
    engine = create_engine(load_settings().store)
    with engine.begin() as connection:
        connection.execute(text(TABLE))
    engine.dispose()
    messages = [
        payments.message(
            key=f"o-{number}", type="payment.taken", body={"amount": UNREADABLE.get(number, f"{number}.50")}
        )
        for number in range(1, PAYMENTS + 1)
    ]
    messages += [payments.message(key=key, type="payment.refunded", body={}) for key in REFUNDED]
    with app.producer() as producer:
        producer.send(*messages)


if __name__ == "__main__":
    send()
