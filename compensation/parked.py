"""Parked messages for a person to look at: one line each, or one of them whole. Plain reads, which stop no writer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.orm import aliased

from seriatim.compensation.selecting import MEANT, Filter, check_scope, matching
from seriatim.core.decision import Place, Reason
from seriatim.core.errors import ConfigurationError
from seriatim.core.store import SqlStore
from seriatim.core.store.schema import parked_key as keys
from seriatim.core.store.schema import parked_message as rows


@dataclass(frozen=True, slots=True)
class ParkedLine:
    """A parked message without its body. Times in microseconds; `head` is the id of the first of its key's queue.

    `attempts` and `next_attempt_at` are as its key says where it is the head.
    """

    id: int
    group: str
    topic: str
    partition: str
    key: str | None
    biz_key: str | None
    type: str | None
    place: str
    reason: str
    seq: int | None
    attempts: int
    next_attempt_at: int | None
    wants: tuple[str, ...]
    error_type: str | None
    error: str | None
    produced_at: int
    received_at: int
    parked_at: int
    size: int
    head: int | None
    held: bool

    @property
    def is_head(self) -> bool:
        """Whether its key waits for it."""
        return self.id == self.head

    @property
    def dead(self) -> bool:
        """Whether it was given up and waits for a person."""
        return self.reason == Reason.DEAD.value


@dataclass(frozen=True, slots=True)
class ParkedWhole:
    """A parked message with all that is known of it."""

    line: ParkedLine
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    detail: str | None = field(repr=False)


_first = aliased(rows, name="first")
_HEAD = (
    select(func.min(_first.c.id))
    .where(
        _first.c.consumer_group == rows.c.consumer_group,
        _first.c.topic == rows.c.topic,
        _first.c.sharding_key == rows.c.sharding_key,
        _first.c.place == Place.QUEUE.value,
    )
    .scalar_subquery()
)
_COLUMNS = (
    rows.c.id,
    rows.c.consumer_group,
    rows.c.topic,
    rows.c.partition_id,
    rows.c.sharding_key,
    rows.c.biz_key,
    rows.c.message_type,
    rows.c.place,
    rows.c.reason,
    rows.c.seq,
    rows.c.attempts,
    rows.c.next_attempt_at,
    rows.c.wants,
    rows.c.error_type,
    rows.c.error,
    rows.c.produced_at,
    rows.c.received_at,
    rows.c.parked_at,
    func.length(rows.c.body).label("size"),
    _HEAD.label("head"),
    keys.c.attempts.label("key_attempts"),
    keys.c.next_attempt_at.label("key_due_at"),
    keys.c.held,
)
_FROM = rows.outerjoin(
    keys,
    (keys.c.consumer_group == rows.c.consumer_group)
    & (keys.c.topic == rows.c.topic)
    & (keys.c.sharding_key == rows.c.sharding_key),
)


def list_parked(
    store: SqlStore, wanted: Filter, *, limit: int, meant: ColumnElement[bool] = MEANT["list"]
) -> tuple[int, list[ParkedLine]]:
    """The store's time, and the messages that match, the longest parked first.

    Raises:
        ConfigurationError: a group or a topic that the store doesn't know. StoreError: the store can't be read.
    """
    with store.read() as connection:
        check_scope(connection, wanted.group, wanted.topic)
        now = int(connection.execute(select(store.dialect.now())).scalar_one())
        found = connection.execute(listing(wanted, now, limit, meant)).all()
    return now, [_line(row) for row in found]


def listing(wanted: Filter, now: int, limit: int, meant: ColumnElement[bool]) -> Select[Any]:
    """The query of a list: first which rows, by their ids alone; then those few with all that is said of them."""
    found = select(rows.c.id).where(meant, *matching(wanted, now)).order_by(rows.c.id).limit(limit).subquery("found")
    return select(*_COLUMNS).select_from(_FROM.join(found, found.c.id == rows.c.id)).order_by(rows.c.id)


def show_parked(store: SqlStore, parked_id: int) -> tuple[int, ParkedWhole]:
    """The store's time, and one message whole.

    Raises:
        ConfigurationError: there is no such message. StoreError: the store can't be read.
    """
    query = (
        select(*_COLUMNS, rows.c.headers, rows.c.body, rows.c.detail).select_from(_FROM).where(rows.c.id == parked_id)
    )
    with store.read() as connection:
        now = int(connection.execute(select(store.dialect.now())).scalar_one())
        row = connection.execute(query).first()
    if row is None:
        raise ConfigurationError(
            f"there is no parked message #{parked_id}: it has run, or was removed; "
            "`seriatim parked list` shows what there is, `seriatim trace KEY` what became of a key"
        )
    return now, ParkedWhole(_line(row), json.loads(row.headers), bytes(row.body), row.detail)


def _line(row: Any) -> ParkedLine:
    values = row._mapping  # noqa: SLF001 - SQLAlchemy's own name for a row by names
    head = values["id"] == values["head"]
    return ParkedLine(
        id=values["id"],
        group=values["consumer_group"],
        topic=values["topic"],
        partition=values["partition_id"],
        key=values["sharding_key"],
        biz_key=values["biz_key"],
        type=values["message_type"],
        place=values["place"],
        reason=values["reason"],
        seq=values["seq"],
        attempts=values["key_attempts"] if head else values["attempts"],
        next_attempt_at=values["key_due_at"] if head else values["next_attempt_at"],
        wants=tuple(json.loads(values["wants"])) if values["wants"] else (),
        error_type=values["error_type"],
        error=values["error"],
        produced_at=values["produced_at"],
        received_at=values["received_at"],
        parked_at=values["parked_at"],
        size=values["size"],
        head=values["head"],
        held=bool(values["held"]),
    )
