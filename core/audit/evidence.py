"""What the database says: the rows that an audit reads, as values. Reads only, on one snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, Table, column, func, inspect, select, table

from seriatim.core.decision import Place, Reason
from seriatim.core.errors import ConfigurationError
from seriatim.core.store.port import Scope
from seriatim.core.store.schema import idempotent_record, operator_action, parked_message, partition_owner

CHUNK = 2000  #: rows that are fetched at once


class Entry(NamedTuple):
    """A record."""

    biz_key: str
    type: str | None
    sharding_key: str | None
    partition: str
    seq: int | None
    status: int
    outcome: str | None
    first_outcome: str | None
    illegal: bool
    effect: int | None
    digest: bytes
    first_digest: bytes | None
    produced_at: int
    received_at: int
    settled_at: int | None


@dataclass(frozen=True, slots=True)
class ParkedRow:
    """A row of the parking table."""

    id: int
    partition: str
    sharding_key: str | None
    biz_key: str | None
    seq: int | None
    place: str
    reason: str
    digest: bytes

    @property
    def waits(self) -> bool:
        """Whether it waits for its turn, or for a person, and isn't only kept as evidence."""
        return self.place != Place.CLOSED.value

    @property
    def blocks(self) -> bool:
        """Whether its key waits for it."""
        return self.place == Place.QUEUE.value

    @property
    def dead(self) -> bool:
        """Whether it was given up."""
        return self.reason == Reason.DEAD.value


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """What a partition's row says: the highest effect number given out, the duplicates, and whether it has an owner."""

    effect: int
    duplicates: int
    owned: bool


@dataclass(frozen=True, slots=True)
class Ledger:
    """A business table that holds the biz_key of each effect."""

    table: str
    column: str

    @classmethod
    def parse(cls, text: str) -> list[Ledger]:
        """``TABLE:COLUMN[,TABLE:COLUMN…]``. Raises `ConfigurationError` for anything else."""
        ledgers = []
        for part in text.split(","):
            name, _, biz_key = part.strip().partition(":")
            if not name or not biz_key:
                raise ConfigurationError(f"--ledger {text!r}: write TABLE:COLUMN, the column being that of the biz_key")
            ledgers.append(cls(name, biz_key))
        return ledgers


def groups(connection: Connection, topic: str) -> list[str]:
    """The consumer groups that the store knows of a topic."""
    owners = partition_owner.c
    query = select(owners.consumer_group).where(owners.topic == topic).distinct().order_by(owners.consumer_group)
    return list(connection.execute(query).scalars())


def topics(connection: Connection) -> list[str]:
    """The topics that the store knows."""
    return list(
        connection.execute(select(partition_owner.c.topic).distinct().order_by(partition_owner.c.topic)).scalars()
    )


def entries(connection: Connection, scope: Scope) -> Iterator[Entry]:
    """The records, those of a sharding key together, in the order of their effects."""
    found = idempotent_record.c
    query = (
        select(
            found.biz_key,
            found.message_type,
            found.sharding_key,
            found.partition_id,
            found.seq,
            found.status,
            found.outcome,
            found.first_outcome,
            found.illegal,
            found.effect,
            found.request_digest,
            found.first_digest,
            found.produced_at,
            found.received_at,
            found.settled_at,
        )
        .where(_of(idempotent_record, scope))
        .order_by(found.sharding_key, found.effect)
        .execution_options(yield_per=CHUNK)
    )
    for row in connection.execute(query):
        yield Entry._make(row)


def parked_rows(connection: Connection, scope: Scope) -> list[ParkedRow]:
    """The parking table without bodies, in its order."""
    found = parked_message.c
    query = (
        select(
            found.id,
            found.partition_id,
            found.sharding_key,
            found.biz_key,
            found.seq,
            found.place,
            found.reason,
            found.digest,
        )
        .where(_of(parked_message, scope))
        .order_by(found.id)
    )
    return [ParkedRow(*row) for row in connection.execute(query)]


def partitions(connection: Connection, scope: Scope) -> dict[str, PartitionRow]:
    """The partitions of a group."""
    found = partition_owner.c
    query = select(found.partition_id, found.effect, found.duplicates, found.owner).where(_of(partition_owner, scope))
    return {row[0]: PartitionRow(row[1], row[2], row[3] is not None) for row in connection.execute(query)}


def repeated_effects(connection: Connection, scope: Scope) -> list[tuple[str, int]]:
    """Effect numbers that several records of a partition have: (partition, number)."""
    found = idempotent_record.c
    query = (
        select(found.partition_id, found.effect)
        .where(_of(idempotent_record, scope) & found.effect.is_not(None))
        .group_by(found.partition_id, found.effect)
        .having(func.count() > 1)
        .order_by(found.partition_id, found.effect)
    )
    return [(row[0], row[1]) for row in connection.execute(query)]


def acted_on(connection: Connection, scope: Scope) -> frozenset[str]:
    """The biz_keys that an operator did something about."""
    found = operator_action.c
    query = select(found.biz_key).where(_of(operator_action, scope) & found.biz_key.is_not(None)).distinct()
    return frozenset(connection.execute(query).scalars())


def effects_in(connection: Connection, ledger: Ledger) -> Iterator[str]:
    """The biz_keys in a business table, each as often as it is there.

    Raises:
        ConfigurationError: there is no such table, or it has no such column.
    """
    schema, _, name = ledger.table.rpartition(".")
    inspector = inspect(connection)
    if not inspector.has_table(name, schema=schema or None):
        raise ConfigurationError(
            f"--ledger {ledger.table}:{ledger.column}: the store has no table {ledger.table!r}; it has "
            f"{', '.join(sorted(inspector.get_table_names(schema=schema or None)))}"
        )
    names = [str(one["name"]) for one in inspector.get_columns(name, schema=schema or None)]
    if ledger.column not in names:
        raise ConfigurationError(
            f"--ledger {ledger.table}:{ledger.column}: {ledger.table!r} has no column {ledger.column!r}; it has "
            f"{', '.join(names)}"
        )
    rows = table(name, column(ledger.column), schema=schema or None)
    for value in connection.execute(select(rows).execution_options(yield_per=CHUNK)).scalars():
        yield str(value)


def _of(rows: Table, scope: Scope) -> ColumnElement[bool]:
    return (rows.c.consumer_group == scope.group) & (rows.c.topic == scope.topic)
