"""Payments, some of whose accounts fail: for their first attempts, or for ever.

Which ones is in their names, so that every process agrees: `sick` accounts fail at one payment until its sixth attempt,
`lost` ones fail at one payment for ever and are given up. Every other account is well.
"""

from typing import Any

from sqlalchemy import text

from seriatim import App, Backoff, Context, Policy

PARTITIONS = 16
FAILS_AT = 3  #: the payment at which a sick or a lost account fails
HEALS_AFTER = 5  #: attempts

app = App("bank")
payments = app.topic(
    "payments",
    partitions=PARTITIONS,
    policy=Policy(tries_at_once=1, max_attempts=9, max_crashes=50, backoff=Backoff(base_s=0.2, cap_s=2.0)),
)

_ENTER = text("INSERT INTO payment_ledger (account, number) VALUES (:account, :number)")


@payments.on("payment")
def pay(event: dict[str, Any], ctx: Context) -> None:
    """Write the payment down."""
    account, number = ctx.message.sharding_key, event["number"]
    ctx.tx.execute(_ENTER, {"account": account, "number": number})
    if number == FAILS_AT and account.startswith("lost"):
        raise ConnectionError(f"the bank of {account} is gone")
    if number == FAILS_AT and account.startswith("sick") and ctx.attempt <= HEALS_AFTER:
        raise ConnectionError(f"the bank of {account} is away")
