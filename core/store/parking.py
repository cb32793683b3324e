"""Parked messages and keys, in SQL."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Row,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    true,
    union,
    update,
)

from seriatim.core.decision import KeyStanding, Place, Reason, Waiting
from seriatim.core.message import ANY
from seriatim.core.store.port import Outlook, ParkedMessage, Scope
from seriatim.core.store.schema import attempt_log
from seriatim.core.store.schema import parked_key as keys
from seriatim.core.store.schema import parked_message as rows

MAX_ERROR = 4_000  #: characters of an error text that are kept
MAX_WANTING = 100  #: rows that wait for one name and are read at once
MAX_LOGGED = 50  #: failures of one message that are written to `attempt_log`
MAX_LOGGED_ERROR = 500  #: characters of an error text that are kept there
MAX_DETAIL = 20_000  #: characters of a traceback that are kept

_KEY = (keys.c.consumer_group == bindparam("at_group")) & (keys.c.topic == bindparam("at_topic"))
_ONE_KEY = _KEY & (keys.c.sharding_key == bindparam("at_key"))
_ROW = (rows.c.consumer_group == bindparam("at_group")) & (rows.c.topic == bindparam("at_topic"))
_ONE_ROW = rows.c.id == bindparam("at_id")
_ROW_VALUES = (
    "place",
    "reason",
    "waiting",
    "wants",
    "attempts",
    "next_attempt_at",
    "error_type",
    "error",
    "detail",
    "conflict_digest",
)

_STANDING = select(
    keys.c.sharding_key,
    keys.c.depth,
    keys.c.aside,
    keys.c.attempts,
    keys.c.next_attempt_at,
    keys.c.aside_attempt_at,
    keys.c.held,
    keys.c.stops_partition,
).where(_KEY & keys.c.sharding_key.in_(bindparam("keys", expanding=True)))
_WAITING = select(rows.c.waiting, rows.c.message_type, rows.c.digest).where(
    _ROW & rows.c.waiting.in_(bindparam("biz_keys", expanding=True))
)
_ROWS = (
    select(rows)
    .where(_ROW & (rows.c.sharding_key == bindparam("at_key")) & (rows.c.place == bindparam("at_place")))
    .order_by(rows.c.id)
    .limit(bindparam("limit"))
)
_ASIDE = _ROW & (rows.c.sharding_key == bindparam("at_key")) & (rows.c.place == Place.ASIDE.value)
_SOONEST = select(rows).where(_ASIDE).order_by(rows.c.next_attempt_at, rows.c.id).limit(bindparam("limit"))
_PARTITION = _KEY & (keys.c.partition_id == bindparam("at_partition"))
_DUE = _PARTITION & keys.c.next_attempt_at.is_not(None)
_ASIDE_DUE = _PARTITION & keys.c.aside_attempt_at.is_not(None)
_OUTLOOK = select(
    exists().where(_PARTITION).label("any_keys"),
    select(func.min(keys.c.next_attempt_at)).where(_DUE).scalar_subquery().label("due_at"),
    select(func.min(keys.c.aside_attempt_at)).where(_ASIDE_DUE).scalar_subquery().label("aside_due_at"),
    exists().where(_PARTITION & keys.c.stops_partition).label("stopped"),
)
_UPDATE_KEY = (
    update(keys)
    .where(_ONE_KEY)
    .values(
        depth=bindparam("new_depth"),
        aside=bindparam("new_aside"),
        attempts=bindparam("new_attempts"),
        next_attempt_at=bindparam("new_due_at"),
        aside_attempt_at=bindparam("new_aside_due_at"),
        stops_partition=bindparam("new_stops"),
        held=bindparam("new_held"),
        since=case(((keys.c.depth == 0) & (bindparam("new_depth") > 0), bindparam("now")), else_=keys.c.since),
    )
)
_MOVE_ROW = update(rows).where(_ONE_ROW).values({name: bindparam(f"new_{name}") for name in _ROW_VALUES})


class SqlParking:
    """The parking statements of one session."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run

    def keys(self, scope: Scope, sharding_keys: Iterable[str]) -> dict[str, KeyStanding]:
        """How these keys stand."""
        wanted = sorted(set(sharding_keys))
        if not wanted:
            return {}
        return {row.sharding_key: _standing(row) for row in self._run(_STANDING, _of(scope) | {"keys": wanted})}

    def waiting(self, scope: Scope, biz_keys: Sequence[str]) -> dict[str, Waiting]:
        """Rows that wait their turn under these biz_keys."""
        if not biz_keys:
            return {}
        found = self._run(_WAITING, _of(scope) | {"biz_keys": list(biz_keys)})
        return {row.waiting: Waiting(row.message_type, bytes(row.digest)) for row in found}

    def outlook(self, scope: Scope, partition: str) -> Outlook:
        """What there is to remember of a partition."""
        row = self._run(_OUTLOOK, _of(scope) | {"at_partition": partition}).one()
        return Outlook(bool(row.any_keys), row.due_at, row.aside_due_at, bool(row.stopped))

    def due_partitions(self, scope: Scope, now: int) -> list[str]:
        """Partitions with a head, or something aside, that is due."""
        due = (keys.c.next_attempt_at <= now, keys.c.aside_attempt_at <= now)
        both = union(*(select(keys.c.partition_id).where(_KEY & one) for one in due))
        return sorted(self._run(both, _of(scope)).scalars())

    def due_keys(self, scope: Scope, partition: str, now: int, limit: int) -> list[str]:
        """Keys whose head is due."""
        return self._due(scope, partition, keys.c.next_attempt_at, now, limit)

    def aside_due_keys(self, scope: Scope, partition: str, now: int, limit: int) -> list[str]:
        """Unblocked keys with something aside that is due."""
        return self._due(scope, partition, keys.c.aside_attempt_at, now, limit)

    def _due(self, scope: Scope, partition: str, column: ColumnElement[int], now: int, limit: int) -> list[str]:
        query = select(keys.c.sharding_key).where(_PARTITION & (column <= now)).order_by(column).limit(limit)
        return list(self._run(query, _of(scope) | {"at_partition": partition}).scalars())

    def rows(self, scope: Scope, sharding_key: str, place: Place, limit: int) -> list[ParkedMessage]:
        """The first rows of a key in a place, in order."""
        at = _of(scope) | {"at_key": sharding_key, "at_place": place.value, "limit": limit}
        return [parked_message(row) for row in self._run(_ROWS, at)]

    def soonest(self, scope: Scope, sharding_key: str, limit: int) -> list[ParkedMessage]:
        """The rows aside of a key that are due first."""
        at = _of(scope) | {"at_key": sharding_key, "limit": limit}
        return [parked_message(row) for row in self._run(_SOONEST, at)]

    def wanting(self, scope: Scope, sharding_key: str, names: Iterable[str]) -> list[ParkedMessage]:
        """The rows aside of a key that wait for one of these, in order."""
        named = or_(*(rows.c.wants.contains(json.dumps(name), autoescape=True) for name in sorted(names)))
        query = select(rows).where(_ASIDE & named).order_by(rows.c.id).limit(MAX_WANTING)
        return [parked_message(row) for row in self._run(query, _of(scope) | {"at_key": sharding_key})]

    def has_aside(self, scope: Scope, sharding_key: str, types: Iterable[str], but: int) -> bool:
        """Whether a row of one of these types is aside of a key, besides the one of id `but`."""
        kinds = sorted(types)
        of_kind = true() if ANY in kinds else rows.c.message_type.in_(kinds)
        query = select(rows.c.id).where(_ASIDE & of_kind & (rows.c.id != but)).limit(1)
        return self._run(query, _of(scope) | {"at_key": sharding_key}).first() is not None

    def aside_due_at(self, scope: Scope, sharding_key: str) -> int | None:
        """When the next row aside of a key is due."""
        query = select(func.min(rows.c.next_attempt_at)).where(
            _ROW & (rows.c.sharding_key == bindparam("at_key")) & (rows.c.place == Place.ASIDE.value)
        )
        due: int | None = self._run(query, _of(scope) | {"at_key": sharding_key}).scalar()
        return due

    def count(self, scope: Scope, sharding_key: str, place: Place) -> int:
        """How many rows a key has in a place."""
        query = select(func.count()).where(
            _ROW & (rows.c.sharding_key == bindparam("at_key")) & (rows.c.place == place.value)
        )
        return int(self._run(query, _of(scope) | {"at_key": sharding_key}).scalar_one())

    def conflicts(self, scope: Scope, biz_key: str) -> list[bytes]:
        """The digests of the conflicts kept for a biz_key."""
        query = select(rows.c.conflict_digest).where(
            _ROW & (rows.c.biz_key == bindparam("at_biz_key")) & rows.c.conflict_digest.is_not(None)
        )
        return [bytes(value) for value in self._run(query, _of(scope) | {"at_biz_key": biz_key}).scalars()]

    def insert(self, scope: Scope, messages: Sequence[ParkedMessage], now: int) -> None:
        """Park messages, in this order."""
        if messages:
            self._run(insert(rows), [_row_values(scope, message, now) for message in messages])

    def move(self, messages: Sequence[ParkedMessage]) -> None:
        """Write what changed of parked messages: place, reason, attempts and the like."""
        for message in sorted(messages, key=lambda one: one.id):
            self._run(_MOVE_ROW, {"at_id": message.id} | _changes(message))

    def log(self, scope: Scope, failures: Sequence[ParkedMessage], now: int) -> None:
        """Remember what the first failures of each message said: a later one replaces it in the row itself."""
        first = [_logged(scope, one, now) for one in failures if one.attempts <= MAX_LOGGED]
        if first:
            self._run(insert(attempt_log), first)

    def sizes(self, ids: Sequence[int]) -> dict[str, tuple[int, int]]:
        """By partition: how many of these rows there are, and the bytes of their bodies."""
        if not ids:
            return {}
        query = (
            select(rows.c.partition_id, func.count(), func.sum(func.length(rows.c.body)))
            .where(rows.c.id.in_(sorted(ids)))
            .group_by(rows.c.partition_id)
        )
        return {partition: (count, int(size)) for partition, count, size in self._run(query)}

    def remove(self, ids: Sequence[int]) -> None:
        """Take messages out of parking."""
        if ids:
            self._run(delete(rows).where(_ONE_ROW), [{"at_id": row_id} for row_id in sorted(ids)])

    def write_keys(self, scope: Scope, standings: Mapping[str, tuple[str, KeyStanding]], now: int) -> None:
        """Write how keys stand; the row of an idle one goes."""
        for key in sorted(standings, key=str.encode):
            partition, standing = standings[key]
            at = _of(scope) | {"at_key": key}
            if standing.idle:
                self._run(delete(keys).where(_ONE_KEY), at)
            elif not self._run(_UPDATE_KEY, at | _key_changes(standing) | {"now": now}).rowcount:
                self._run(insert(keys), _new_key(scope, key, partition, standing, now))


def _of(scope: Scope) -> dict[str, Any]:
    return {"at_group": scope.group, "at_topic": scope.topic}


def _standing(row: Row[Any]) -> KeyStanding:
    return KeyStanding(
        depth=row.depth,
        aside=row.aside,
        attempts=row.attempts,
        due_at=row.next_attempt_at,
        aside_due_at=row.aside_attempt_at,
        held=bool(row.held),
        stops_partition=bool(row.stops_partition),
    )


def _due_times(standing: KeyStanding) -> tuple[int | None, int | None]:
    """What is due when: a held key's head isn't, and what is aside isn't while its key is blocked."""
    return (None if standing.held else standing.due_at), (None if standing.blocked else standing.aside_due_at)


def _key_changes(standing: KeyStanding) -> dict[str, Any]:
    due_at, aside_due_at = _due_times(standing)
    return {
        "new_depth": standing.depth,
        "new_aside": standing.aside,
        "new_attempts": standing.attempts,
        "new_due_at": due_at,
        "new_aside_due_at": aside_due_at,
        "new_held": standing.held,
        "new_stops": standing.stops_partition,
    }


def _new_key(scope: Scope, key: str, partition: str, standing: KeyStanding, now: int) -> dict[str, Any]:
    due_at, aside_due_at = _due_times(standing)
    return {
        "consumer_group": scope.group,
        "topic": scope.topic,
        "sharding_key": key,
        "partition_id": partition,
        "depth": standing.depth,
        "aside": standing.aside,
        "attempts": standing.attempts,
        "next_attempt_at": due_at,
        "aside_attempt_at": aside_due_at,
        "held": standing.held,
        "stops_partition": standing.stops_partition,
        "since": now,
    }


def _logged(scope: Scope, message: ParkedMessage, now: int) -> dict[str, Any]:
    return {
        "consumer_group": scope.group,
        "topic": scope.topic,
        "sharding_key": message.sharding_key,
        "biz_key": message.biz_key,
        "at": now,
        "attempts": message.attempts,
        "place": message.place.value,
        "reason": message.reason.value,
        "next_attempt_at": message.next_attempt_at,
        "error_type": _cut(message.error_type, 200),
        "error": _cut(message.error, MAX_LOGGED_ERROR),
    }


def _cut(text: str | None, limit: int) -> str | None:
    if text is None:
        return None
    text = text.replace("\x00", "�").encode("utf-8", "replace").decode()
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _varying(message: ParkedMessage) -> dict[str, Any]:
    return {
        "place": message.place.value,
        "reason": message.reason.value,
        "waiting": message.biz_key if message.waits else None,
        "wants": json.dumps(message.wants) if message.wants else None,
        "attempts": message.attempts,
        "next_attempt_at": message.next_attempt_at,
        "error_type": _cut(message.error_type, 200),
        "error": _cut(message.error, MAX_ERROR),
        "detail": _cut(message.detail, MAX_DETAIL),
        "conflict_digest": message.digest if message.conflict else None,
    }


def _changes(message: ParkedMessage) -> dict[str, Any]:
    return {f"new_{name}": value for name, value in _varying(message).items()}


def _row_values(scope: Scope, message: ParkedMessage, now: int) -> dict[str, Any]:
    return {
        "consumer_group": scope.group,
        "topic": scope.topic,
        "partition_id": message.partition,
        "sharding_key": message.sharding_key,
        "biz_key": message.biz_key,
        "message_type": message.type,
        "seq": message.seq,
        "headers": json.dumps(dict(message.headers)),
        "body": message.body,
        "digest": message.digest,
        "produced_at": message.produced_at,
        "received_at": message.received_at,
        "parked_at": now,
        **_varying(message),
    }


def parked_message(row: Row[Any]) -> ParkedMessage:
    """The value of a row of `parked_message`."""
    return ParkedMessage(
        id=row.id,
        partition=row.partition_id,
        sharding_key=row.sharding_key,
        biz_key=row.biz_key,
        place=Place(row.place),
        reason=Reason(row.reason),
        type=row.message_type,
        seq=row.seq,
        headers=json.loads(row.headers),
        body=bytes(row.body),
        digest=bytes(row.digest),
        wants=tuple(json.loads(row.wants)) if row.wants else (),
        conflict=row.conflict_digest is not None,
        attempts=row.attempts,
        next_attempt_at=row.next_attempt_at,
        error_type=row.error_type,
        error=row.error,
        detail=row.detail,
        produced_at=row.produced_at,
        received_at=row.received_at,
        parked_at=row.parked_at,
    )
