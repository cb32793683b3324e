"""The idempotency records, in SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Row, Update, bindparam, case, delete, func, insert, select, update

from seriatim.core.decision import Outcome, Record, Status
from seriatim.core.errors import StoreError
from seriatim.core.store.port import Finish, NewRecord, Scope
from seriatim.core.store.schema import idempotent_record as records

_MINE = (records.c.consumer_group == bindparam("at_group")) & (records.c.topic == bindparam("at_topic"))
_ONE = _MINE & (records.c.biz_key == bindparam("at_biz_key"))
_MANY = _MINE & records.c.biz_key.in_(bindparam("biz_keys", expanding=True))

_LOOK_UP = select(
    records.c.biz_key,
    records.c.status,
    records.c.outcome,
    records.c.message_type,
    records.c.request_digest,
    records.c.first_digest,
    records.c.crash_attempts,
).where(_MANY)
_CLAIM = insert(records)
_FINISH = (
    update(records)
    .where(_ONE)
    .values(
        status=bindparam("new_status"),
        outcome=bindparam("new_outcome"),
        first_outcome=func.coalesce(records.c.first_outcome, bindparam("new_first")),
        illegal=bindparam("new_illegal"),
        state_before=bindparam("new_state_before"),
        state_after=bindparam("new_state_after"),
        request_body=func.coalesce(records.c.request_body, bindparam("new_body")),
        response_body=bindparam("new_response"),
        attempts=bindparam("new_attempts"),
        effect=bindparam("new_effect"),
        crash_attempts=case((bindparam("keep_crashes"), records.c.crash_attempts), else_=0),
        update_time=bindparam("now"),
        settled_at=case((bindparam("settled"), bindparam("now")), else_=None),
    )
)


class SqlRecords:
    """The record statements of one session."""

    def __init__(self, run: Callable[..., Any], run_each: Callable[[Update, Sequence[Mapping[str, Any]]], int]) -> None:
        self._run = run
        self._run_each = run_each

    def look_up(self, scope: Scope, biz_keys: Sequence[str]) -> dict[str, Record]:
        """The records of these biz_keys."""
        if not biz_keys:
            return {}
        rows = self._run(_LOOK_UP, {"at_group": scope.group, "at_topic": scope.topic, "biz_keys": list(biz_keys)})
        return {row.biz_key: _record(row) for row in rows}

    def claim(self, scope: Scope, new: Sequence[NewRecord], now: int) -> None:
        """Insert records of status 1, in the order of their keys."""
        if new:
            ordered = sorted(new, key=lambda record: record.biz_key.encode())
            self._run(_CLAIM, [_new_row(scope, record, now) for record in ordered])

    def mark_crash(self, scope: Scope, record: NewRecord, now: int) -> int:
        """Count one run of a message that may kill its process."""
        at = _at(scope, record.biz_key)
        raised = self._run(
            update(records).where(_ONE).values(crash_attempts=records.c.crash_attempts + 1, update_time=now), at
        )
        if not raised.rowcount:
            self._run(_CLAIM, [_new_row(scope, record, now) | {"crash_attempts": 1}])
        return int(self._run(select(records.c.crash_attempts).where(_ONE), at).scalar_one())

    def unmark_crash(self, scope: Scope, biz_key: str) -> None:
        """Take back what `mark_crash` counted."""
        at = _at(scope, biz_key)
        only_a_mark = _ONE & (records.c.status == int(Status.PROCESSING)) & (records.c.crash_attempts == 1)
        if not self._run(delete(records).where(only_a_mark), at).rowcount:
            counted = _ONE & (records.c.crash_attempts > 0)
            self._run(update(records).where(counted).values(crash_attempts=records.c.crash_attempts - 1), at)

    def attempts(self, scope: Scope, biz_key: str) -> int:
        """The attempts stored for a record."""
        return int(self._run(select(records.c.attempts).where(_ONE), _at(scope, biz_key)).scalar() or 0)

    def response(self, scope: Scope, biz_key: str) -> bytes | None:
        """The stored response."""
        value = self._run(select(records.c.response_body).where(_ONE), _at(scope, biz_key)).scalar()
        return None if value is None else bytes(value)

    def finish(self, scope: Scope, finishes: Sequence[Finish], now: int) -> None:
        """Write how claimed records ended."""
        if not finishes:
            return
        ordered = sorted(finishes, key=lambda finish: finish.biz_key.encode())
        touched = self._run_each(_FINISH, [_finish_params(scope, finish, now) for finish in ordered])
        if touched != len(ordered):
            raise StoreError(
                f"{touched} of {len(ordered)} claimed records were there at the finish: the transaction isn't the one "
                "that began; a handler must not end it"
            )

    def unclaim(self, scope: Scope, biz_keys: Sequence[str]) -> None:
        """Take back claims of messages that didn't get their turn."""
        if biz_keys:
            self._run(delete(records).where(_ONE), [_at(scope, biz_key) for biz_key in sorted(biz_keys)])


def _at(scope: Scope, biz_key: str) -> dict[str, Any]:
    return {"at_group": scope.group, "at_topic": scope.topic, "at_biz_key": biz_key}


def _record(row: Row[Any]) -> Record:
    return Record(
        status=Status(row.status),
        outcome=None if row.outcome is None else Outcome(row.outcome),
        type=row.message_type,
        digest=bytes(row.request_digest),
        first_digest=None if row.first_digest is None else bytes(row.first_digest),
        crash_attempts=row.crash_attempts,
    )


def _new_row(scope: Scope, record: NewRecord, now: int) -> dict[str, Any]:
    return {
        "consumer_group": scope.group,
        "topic": scope.topic,
        "biz_key": record.biz_key,
        "message_type": record.type,
        "sharding_key": record.sharding_key,
        "partition_id": record.partition,
        "seq": record.seq,
        "status": int(Status.PROCESSING),
        "request_digest": record.digest,
        "request_body": record.body,
        "produced_at": record.produced_at,
        "received_at": record.received_at,
        "create_time": now,
        "update_time": now,
    }


def _finish_params(scope: Scope, finish: Finish, now: int) -> dict[str, Any]:
    return {
        **_at(scope, finish.biz_key),
        "new_status": int(finish.status),
        "new_outcome": finish.outcome.value,
        "new_first": finish.first or finish.outcome.value,
        "new_illegal": finish.illegal,
        "new_state_before": finish.state_before,
        "new_state_after": finish.state_after,
        "new_body": finish.body,
        "new_response": finish.response,
        "new_attempts": finish.attempts,
        "new_effect": finish.effect,
        "keep_crashes": finish.keep_crashes,
        "settled": finish.status is Status.SUCCESS or finish.outcome is Outcome.REJECTED,
        "now": now,
    }
