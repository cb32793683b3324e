"""What an operator may do to a parked message. Each verb is one transaction under the partition's row.

A verb names the parked row that it was shown, is judged again under the lock, and changes nothing if the row stands
elsewhere by now. Every change raises the partition's stamp, so that its lane reads again what it remembers, and is
written to `operator_action` with what was before and after.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

from sqlalchemy import insert, select

from seriatim.core.decision import KeyStanding, Outcome, Place, Reason, Status
from seriatim.core.errors import ConfigurationError
from seriatim.core.store.parking import parked_message
from seriatim.core.store.port import Finish, NewRecord, ParkedMessage, Scope, Session, Store, Writes
from seriatim.core.store.schema import operator_action
from seriatim.core.store.schema import parked_message as rows


@dataclass(frozen=True, slots=True)
class Done:
    """What a verb did: whether it changed anything, and in words."""

    changed: bool
    text: str


@dataclass(slots=True)
class _Case:
    """A parked row, judged under its partition's lock."""

    session: Session
    scope: Scope
    row: ParkedMessage
    key: KeyStanding
    head: int | None
    now: int


def skip(store: Store, scope: Scope, parked_id: int, who: str) -> Done:
    """Give the head of a key up, so that those behind it run. Its biz_key is final: a duplicate of it never runs.

    A head that is applied already only leaves parking; its record stays.

    Raises:
        ConfigurationError: no such row. StoreError: the store is away.
    """
    return _verb(store, scope, parked_id, who=who, act=_skip)


def retry(store: Store, scope: Scope, parked_id: int, who: str) -> Done:
    """Try a parked message again, now; a dead or skipped one is reopened and goes back to its old place in its key.

    Raises:
        ConfigurationError: no such row. StoreError: the store is away.
    """
    return _verb(store, scope, parked_id, who=who, act=_retry)


def _verb(store: Store, scope: Scope, parked_id: int, *, who: str, act: Callable[[_Case], tuple[Writes, Done]]) -> Done:
    session = store.session()
    try:
        partition = _row(session, scope, parked_id).partition
        with session.transaction():
            session.leases.hold_row(scope, partition)
            case = _case(session, scope, _row(session, scope, parked_id))
            writes, done = act(case)
            if done.changed:
                session.write(scope, writes, case.now)
                _audit(case, act.__name__.lstrip("_"), who, writes)
        return done
    finally:
        session.close()


def _row(session: Session, scope: Scope, parked_id: int) -> ParkedMessage:
    query = select(rows).where(
        rows.c.id == parked_id, rows.c.consumer_group == scope.group, rows.c.topic == scope.topic
    )
    row = session.run(query).first()
    if row is None:
        raise ConfigurationError(
            f"group {scope.group!r}, topic {scope.topic!r}: there is no parked message #{parked_id}; it may have run"
        )
    return parked_message(row)


def _case(session: Session, scope: Scope, row: ParkedMessage) -> _Case:
    if row.sharding_key is None:
        return _Case(session, scope, row, KeyStanding(), None, session.now())
    key = session.parking.keys(scope, [row.sharding_key]).get(row.sharding_key, KeyStanding())
    queue = session.parking.rows(scope, row.sharding_key, Place.QUEUE, 1)
    return _Case(session, scope, row, key, queue[0].id if queue else None, session.now())


def _skip(case: _Case) -> tuple[Writes, Done]:
    row, writes = case.row, Writes()
    if row.place is Place.CLOSED or row.sharding_key is None:
        return writes, Done(changed=False, text=f"#{row.id} is closed already")
    if row.place is Place.QUEUE and case.head != row.id:
        return writes, Done(changed=False, text=f"#{row.id} isn't the head of {row.sharding_key!r}: #{case.head} is")
    if _reject(case, writes):
        writes.moves.append(replace(row, place=Place.CLOSED, next_attempt_at=None))
    else:
        writes.unparks.append(row.id)
    key = case.key.head_left(case.now) if row.place is Place.QUEUE else case.key.aside_left()
    writes.keys[row.sharding_key] = (row.partition, key)
    return writes, Done(changed=True, text=f"#{row.id} ({row.biz_key}) skipped; {key.depth} behind it run now")


def _reject(case: _Case, writes: Writes) -> bool:
    """Write a final record for the row's biz_key, even where there was none; False where it is applied already."""
    row = case.row
    if row.biz_key is None:
        return True
    record = case.session.records.look_up(case.scope, [row.biz_key]).get(row.biz_key)
    if record is not None and record.status is Status.SUCCESS:
        return False
    if record is None:
        case.session.records.claim(case.scope, [_new_record(row)], case.now)
    writes.finishes[row.biz_key] = Finish(
        row.biz_key, Status.FAILED, Outcome.REJECTED, response=b"skipped by an operator", attempts=row.attempts
    )
    return True


def _new_record(row: ParkedMessage) -> NewRecord:
    return NewRecord(
        biz_key=row.biz_key or "",
        type=row.type,
        sharding_key=row.sharding_key,
        partition=row.partition,
        seq=row.seq,
        digest=row.digest,
        body=None,
        produced_at=row.produced_at,
        received_at=row.received_at,
    )


def _retry(case: _Case) -> tuple[Writes, Done]:
    row, writes = case.row, Writes()
    if row.sharding_key is None or row.reason is Reason.CONFLICT:
        return writes, Done(
            changed=False, text=f"#{row.id} can't be tried: it is kept as evidence ({row.reason.value})"
        )
    if row.place is Place.ASIDE:
        writes.moves.append(replace(row, next_attempt_at=case.now))
        writes.keys[row.sharding_key] = (row.partition, replace(case.key, aside_due_at=case.now))
        return writes, Done(changed=True, text=f"#{row.id} ({row.biz_key}) is tried now")
    reopened = row.place is Place.CLOSED or row.reason is Reason.DEAD
    key = case.key.with_behind() if row.place is Place.CLOSED else case.key
    heads = case.head is None or row.id <= case.head
    if heads:
        key = replace(key, attempts=0, due_at=case.now)
    record = case.session.records.look_up(case.scope, [row.biz_key or ""]).get(row.biz_key or "")
    if row.biz_key is not None and record is not None and record.status is not Status.SUCCESS:
        writes.finishes[row.biz_key] = Finish(row.biz_key, Status.FAILED, Outcome.PARKED)  # clears its crash marks, too
    if reopened:
        writes.moves.append(replace(row, place=Place.QUEUE, reason=Reason.FAILED, attempts=0, next_attempt_at=None))
    elif not heads:
        return Writes(), Done(changed=False, text=f"#{row.id} waits behind #{case.head}, which must go first")
    writes.keys[row.sharding_key] = (row.partition, key)
    when = "is tried now" if heads else f"is back in its place behind #{case.head}"
    return writes, Done(changed=True, text=f"#{row.id} ({row.biz_key}) {when}")


def _audit(case: _Case, verb: str, who: str, writes: Writes) -> None:
    row = case.row
    after = next(iter(writes.moves), None)
    case.session.run(
        insert(operator_action).values(
            at=case.now,
            who=who,
            verb=verb,
            consumer_group=case.scope.group,
            topic=case.scope.topic,
            sharding_key=row.sharding_key,
            biz_key=row.biz_key,
            parked_id=row.id,
            before=_told(row),
            after=None if after is None else _told(after),
        )
    )


def _told(row: ParkedMessage) -> str:
    return json.dumps({"place": row.place.value, "reason": row.reason.value, "attempts": row.attempts})
