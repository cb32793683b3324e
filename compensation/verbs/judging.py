"""What a verb means for a parked message: pure decisions over a `Case`."""

from __future__ import annotations

from dataclasses import replace

from seriatim.compensation.verbs.case import Case, Plan, refused, without
from seriatim.core.decision import KeyStanding, Outcome, Place, Reason
from seriatim.core.store.port import ParkedMessage

SKIPPED = b"skipped by an operator"
DISCARDED = b"discarded by an operator"


def retry(case: Case) -> Plan:
    """Try it again now, in its old place."""
    row = case.row
    if (why := _never_runs(case)) is not None:
        return refused(why)
    if row.place is Place.CLOSED and case.twin is not None:
        return refused(f"{named(row)} can't come back: #{case.twin} waits under the same biz_key")
    if row.place is Place.QUEUE and not case.is_head and row.reason is not Reason.DEAD:
        return refused(f"{named(row)} waits behind #{case.head}, which must go first")
    if row.place is Place.ASIDE:
        return _retry_aside(case)
    return _retry_in_queue(case)


def _never_runs(case: Case) -> str | None:
    """Why it can't be tried at all, if so."""
    row = case.row
    if row.sharding_key is None or row.reason is Reason.CONFLICT:
        return f"{named(row)} can't be tried: it is kept as evidence ({row.reason.value})"
    if case.applied and row.place is Place.CLOSED:
        return f"{named(row)} is applied already: there is nothing to be tried"
    return None


def _retry_aside(case: Case) -> Plan:
    again = replace(case.row, attempts=0, next_attempt_at=case.now)
    plan = Plan(f"{named(case.row)} is tried {_when(case.key, 'its key is free')}", after=again)
    plan.stands(case, replace(case.key, aside_due_at=case.now))
    _reopen(case, plan)
    return plan


def _retry_in_queue(case: Case) -> Plan:
    row = case.row
    first = case.head is None or row.id <= case.head
    key = case.key.with_behind() if row.place is Place.CLOSED else case.key
    if first:
        key = replace(key, attempts=0, due_at=case.now)
    reopened = row.place is Place.CLOSED or row.reason is Reason.DEAD
    again = replace(row, place=Place.QUEUE, attempts=0, next_attempt_at=None)
    if reopened:
        again = replace(again, reason=Reason.FAILED)
    when = f"is tried {_when(key)}" if first else f"is back in its place behind #{case.head}"
    known = " is applied already, and" if case.applied else ""
    plan = Plan(f"{named(row)}{known} {when}", after=again)
    plan.stands(case, key)
    _reopen(case, plan)
    return plan


def _reopen(case: Case, plan: Plan) -> None:
    """Its record may be finished by a run again; that clears its crash marks, too."""
    if case.record is not None and not case.applied:
        early = case.record.outcome is Outcome.EARLY
        plan.finishes(case, Outcome.EARLY if early else Outcome.PARKED)


def skip(case: Case) -> Plan:
    """Give the head, or one aside, up: what waits behind it runs."""
    row = case.row
    if row.place is Place.CLOSED or row.sharding_key is None:
        return refused(f"{named(row)} is closed already")
    if row.place is Place.QUEUE and not case.is_head:
        return refused(f"{named(row)} isn't the head of {row.sharding_key!r}: #{case.head} is")
    after = None if case.applied else replace(row, place=Place.CLOSED, next_attempt_at=None)
    plan = Plan(f"{named(row)} skipped{_what_follows(case)}", after=after)
    plan.stands(case, without(case))
    if case.applied:
        plan.text = f"{named(row)} is applied already, and only leaves parking{_what_follows(case)}"
        plan.writes.unparks.append(row.id)
    else:
        _give_up(case, plan, SKIPPED)
    return plan


def discard(case: Case) -> Plan:
    """Remove it; where it still waits, give it up for good first."""
    row = case.row
    plan = Plan(f"{named(row)} removed")
    plan.writes.unparks.append(row.id)
    if row.place is Place.CLOSED:
        return plan
    plan.stands(case, without(case))
    plan.text = f"{named(row)} removed; its record stays applied{_what_follows(case)}"
    if not case.applied:
        plan.text = f"{named(row)} given up and removed{_what_follows(case)}"
        _give_up(case, plan, DISCARDED)
    return plan


def _give_up(case: Case, plan: Plan, answer: bytes) -> None:
    """A final record, even where there was none; one that is final already keeps the answer that it gives."""
    if not case.rejected:
        plan.finishes(case, Outcome.REJECTED, answer, case.key.attempts if case.is_head else case.row.attempts)


def edit(case: Case, body: bytes) -> Plan:
    """Give it another body, and leave it where it is."""
    row = case.row
    if row.sharding_key is None or row.reason is Reason.CONFLICT:
        return refused(f"{named(row)} can't be edited: it is kept as evidence ({row.reason.value})")
    if case.applied:
        return refused(f"{named(row)} is applied already: another body would change nothing")
    plan = Plan(f"{named(row)} has its new body ({len(body):,} bytes)", after=row, body=body)
    if case.record is None:
        plan.finishes(case, Outcome.PARKED)  # it must know the digest first received, and isn't run out of its turn
    return plan


def named(row: ParkedMessage) -> str:
    """The row in a few words."""
    return f"#{row.id}" if row.biz_key is None else f"#{row.id} ({row.biz_key})"


def _when(key: KeyStanding, free: str = "") -> str:
    """When it is tried; `free` says what must be where it waits for its key."""
    if key.held:
        return "once its key is released"
    return f"once {free}" if free and key.blocked else "now"


def _what_follows(case: Case) -> str:
    """What becomes of those behind a head that leaves."""
    if not case.is_head or case.key.depth <= 1:
        return ""
    when = "once their key is released" if case.key.held else "now"
    behind = case.key.depth - 1
    return f"; {behind:,} behind it {'is' if behind == 1 else 'are'} due {when}"
