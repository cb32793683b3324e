"""Loan applications: every event of a case is written down once, in the order in which the bank recorded them.

The events come from many desks, and now and then one overtakes its predecessor. `loan_case` says how far each case is;
an event that is ahead of it says `Early` and waits, without blocking anybody, until its predecessor has come.
"""

from typing import Any

from sqlalchemy import text

from seriatim import App, Context, Early

PARTITIONS = 16

app = App("loans")
loans = app.topic("loans", partitions=PARTITIONS)

_LAST = text("SELECT last_seq FROM loan_case WHERE case_id = :case_id")
_OPEN = text("INSERT INTO loan_case (case_id, last_seq) VALUES (:case_id, :seq)")
_ADVANCE = text("UPDATE loan_case SET last_seq = :seq WHERE case_id = :case_id")
_NOTE = text("INSERT INTO loan_ledger (case_id, seq, activity, biz_key) VALUES (:case_id, :seq, :activity, :biz_key)")


@loans.on("*")
def record(event: dict[str, Any], ctx: Context) -> None:
    """Write the event down, after its predecessor."""
    case_id, seq = event["case"], int(event["seq"])
    last = ctx.tx.execute(_LAST, {"case_id": case_id}).scalar()
    expected = 0 if last is None else last + 1
    if seq > expected:
        raise Early(f"event {expected} of case {case_id} hasn't come", waiting_for=f"{case_id}:{seq - 1}")
    here = {"case_id": case_id, "seq": seq}
    ctx.tx.execute(_OPEN if last is None else _ADVANCE, here)
    ctx.tx.execute(_NOTE, {**here, "activity": event["activity"], "biz_key": ctx.message.biz_key})
