"""Verbs about messages at work: the case read under the partition's row, the plan written, the deed audited."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import bindparam, func, insert, select, update

from seriatim.compensation.selecting import Target
from seriatim.compensation.verbs.case import Case, Done, Plan
from seriatim.core.decision import KeyStanding, Place
from seriatim.core.digest import digest
from seriatim.core.errors import ConfigurationError
from seriatim.core.store.parking import parked_message
from seriatim.core.store.port import NewRecord, ParkedMessage, Session, Writes
from seriatim.core.store.schema import idempotent_record as records
from seriatim.core.store.schema import operator_action
from seriatim.core.store.schema import parked_message as rows
from seriatim.core.store.schema import partition_owner as owners

AUDITED_BODY = 1 << 20  #: bytes of a body that an edit keeps in `operator_action`

_ROW = select(rows).where(rows.c.id == bindparam("at_id"))
_WAITING = select(rows.c.id).where(
    rows.c.consumer_group == bindparam("at_group"),
    rows.c.topic == bindparam("at_topic"),
    rows.c.waiting == bindparam("at_biz_key"),
)
_HEAD = select(func.min(rows.c.id)).where(
    rows.c.consumer_group == bindparam("at_group"),
    rows.c.topic == bindparam("at_topic"),
    rows.c.sharding_key == bindparam("at_key"),
    rows.c.place == Place.QUEUE.value,
)


@dataclass(frozen=True, slots=True)
class MessageVerb:
    """A verb about one parked message at a time, and the one that follows it in the same transaction, if any."""

    name: str
    act: Callable[[Case], Plan]
    who: str
    then: MessageVerb | None = None

    def __call__(self, session: Session, target: Target, *, write: bool) -> Done:
        """Judge the target, and write what that means; inside a transaction that holds its partition's row."""
        case = read_case(session, target)
        if case is None:
            return _done(target, f"#{target.id} is gone: it has run, or was removed", changed=False)
        plan = self.act(case)
        if plan.changed and write:
            _carry(session, case, plan, self)
        done = _done(target, plan.text, changed=plan.changed)
        if self.then is None or not plan.changed:
            return done
        return replace(done, text=f"{plan.text}; {self.then(session, target, write=write).text}")


def check_body(body: bytes) -> None:
    """Raise `ConfigurationError` unless a body is JSON."""
    try:
        json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"the new body isn't JSON ({error}); mend it, or take it as it is with --raw (nothing was changed)"
        ) from error


def _done(target: Target, text: str, *, changed: bool) -> Done:
    return Done(
        changed=changed,
        text=text,
        group=target.group,
        topic=target.topic,
        partition=target.partition,
        key=target.key,
        parked_id=target.id,
        biz_key=target.biz_key,
    )


def read_case(session: Session, target: Target) -> Case | None:
    """How the target stands; None where it is gone."""
    found = session.run(_ROW, {"at_id": target.id}).first()
    if found is None:
        return None
    row, scope = parked_message(found), target.scope
    at = {"at_group": scope.group, "at_topic": scope.topic}
    key, head, record, twin = KeyStanding(), None, None, None
    if row.sharding_key is not None:
        key = session.parking.keys(scope, [row.sharding_key]).get(row.sharding_key, KeyStanding())
        head = session.run(_HEAD, at | {"at_key": row.sharding_key}).scalar()
    if row.biz_key is not None:
        record = session.records.look_up(scope, [row.biz_key]).get(row.biz_key)
        waiting = session.run(_WAITING, at | {"at_biz_key": row.biz_key}).scalar()
        twin = None if waiting == row.id else waiting
    return Case(scope, row, key, head, record, twin, session.now())


def _carry(session: Session, case: Case, plan: Plan, verb: MessageVerb) -> None:
    """Write a plan, in the lock order: parked rows, then records."""
    if plan.body is not None:
        _write_body(session, case, plan.body)
    if plan.after is not None and plan.after != case.row:
        session.write(case.scope, Writes(moves=[plan.after]), case.now)
    if plan.claims:
        session.records.claim(case.scope, [_new_record(case.row)], case.now)
    if plan.body is not None and case.row.biz_key is not None:
        _write_digests(session, case, plan.body)
    session.write(case.scope, plan.writes, case.now)
    session.run(insert(operator_action), _audited(case, plan, verb))


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


def _write_body(session: Session, case: Case, body: bytes) -> None:
    """The row's new body, counted in what its partition has parked."""
    row, scope = case.row, case.scope
    session.run(update(rows).where(rows.c.id == row.id).values(body=body, digest=digest(body)))
    session.run(
        update(owners)
        .where(
            owners.c.consumer_group == scope.group,
            owners.c.topic == scope.topic,
            owners.c.partition_id == row.partition,
        )
        .values(parked_bytes=owners.c.parked_bytes + len(body) - len(row.body))
    )


def _write_digests(session: Session, case: Case, body: bytes) -> None:
    """The record keeps the digest first received beside that of the body that will run: a copy may match either."""
    first, now = func.coalesce(records.c.first_digest, records.c.request_digest), digest(body)
    session.run(
        update(records)
        .where(
            records.c.consumer_group == case.scope.group,
            records.c.topic == case.scope.topic,
            records.c.biz_key == case.row.biz_key,
        )
        .ordered_values((records.c.first_digest, first), (records.c.request_digest, now))  # MySQL goes left to right
    )


def _audited(case: Case, plan: Plan, verb: MessageVerb) -> dict[str, Any]:
    row = case.row
    after = None if plan.after is None else _told(plan.after, plan.body)
    return {
        "at": case.now,
        "who": verb.who,
        "verb": verb.name,
        "consumer_group": case.scope.group,
        "topic": case.scope.topic,
        "sharding_key": row.sharding_key,
        "biz_key": row.biz_key,
        "parked_id": row.id,
        "before": json.dumps(_told(row, None if plan.body is None else row.body)),
        "after": None if after is None else json.dumps(after),
    }


def _told(row: ParkedMessage, body: bytes | None) -> dict[str, Any]:
    told: dict[str, Any] = {"place": row.place.value, "reason": row.reason.value, "attempts": row.attempts}
    if body is None:
        return told
    return told | {"digest": digest(body).hex(), "bytes": len(body)} | _kept(body)


def _kept(body: bytes) -> dict[str, str]:
    """The body itself, as far as a table of text takes it."""
    if len(body) > AUDITED_BODY:
        return {}
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}
