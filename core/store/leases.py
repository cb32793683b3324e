"""Leases, members and the fence, in SQL."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    Row,
    Update,
    bindparam,
    case,
    delete,
    insert,
    select,
    update,
)

from seriatim.core.errors import Contention
from seriatim.core.message import Position
from seriatim.core.store.dialect import Dialect
from seriatim.core.store.port import Claimed, Fenced, FenceStep, OwnerRow, Scope
from seriatim.core.store.schema import group_member as members
from seriatim.core.store.schema import partition_owner as owners

Run = Callable[..., Any]
RunEach = Callable[[Update, Sequence[Mapping[str, Any]]], int]

_COLUMNS = (
    owners.c.partition_id,
    owners.c.member,
    owners.c.owner,
    owners.c.epoch,
    owners.c.lease_until,
    owners.c.effect,
    owners.c.position,
    owners.c.log_identity,
    owners.c.read_through,
    owners.c.paused,
    owners.c.parked_rows,
    owners.c.parked_bytes,
    owners.c.full,
)


def _of(scope: Scope) -> ColumnElement[bool]:
    return (owners.c.consumer_group == scope.group) & (owners.c.topic == scope.topic)


_THE_ROW = (
    (owners.c.consumer_group == bindparam("at_group"))
    & (owners.c.topic == bindparam("at_topic"))
    & (owners.c.partition_id == bindparam("at_partition"))
)
_FRESH = {"full": False, "trouble": None}  # what an owner says of itself, and its successor not yet
_OWNERS = select(*_COLUMNS).where(
    (owners.c.consumer_group == bindparam("at_group")) & (owners.c.topic == bindparam("at_topic"))
)
_OURS = _THE_ROW & (owners.c.owner == bindparam("by_owner")) & (owners.c.epoch == bindparam("by_epoch"))


class SqlLeases:
    """The lease statements of one session."""

    def __init__(
        self, run: Run, run_each: RunEach, transaction: Callable[[], AbstractContextManager[None]], dialect: Dialect
    ) -> None:
        self._run = run
        self._run_each = run_each
        self._transaction = transaction
        self._dialect = dialect
        self._now = dialect.now()
        read_through: BindParameter[int] = bindparam("new_read_through", type_=BigInteger())
        self._fence = (
            update(owners)
            .where(_OURS & (owners.c.effect == bindparam("seen_effect")))
            .values(
                effect=owners.c.effect + bindparam("advance"),
                position=case(
                    (bindparam("new_position").is_(None), owners.c.position), else_=bindparam("new_position")
                ),
                log_identity=case(
                    (bindparam("new_identity").is_(None), owners.c.log_identity), else_=bindparam("new_identity")
                ),
                read_through=case((read_through > owners.c.read_through, read_through), else_=owners.c.read_through),
                lease_until=self._now + bindparam("ttl"),
            )
        )
        self._renew = update(owners).where(_THE_ROW).values(lease_until=self._now + bindparam("ttl"))
        self._idle_row = dialect.lock(select(owners.c.owner, owners.c.epoch).where(_THE_ROW), wait=False)
        self._release = update(owners).where(_OURS).values(owner=None, member=None, lease_until=0, **_FRESH)

    def beat(self, scope: Scope, member: str, ttl: int) -> list[str]:
        """Renew this process's membership; the living members."""
        mine = _member(scope, member)
        with self._transaction():
            found = self._run(update(members).where(mine).values(lease_until=self._now + ttl)).rowcount
            if not found:
                self._run(
                    insert(members).values(
                        consumer_group=scope.group,
                        topic=scope.topic,
                        member=member,
                        host=socket.gethostname(),
                        pid=os.getpid(),
                        lease_until=self._now + ttl,
                    )
                )
            everyone = (members.c.consumer_group == scope.group) & (members.c.topic == scope.topic)
            long_dead = members.c.lease_until < self._now - 10 * ttl
            for dead in sorted(self._run(select(members.c.member).where(everyone & long_dead)).scalars()):
                self._run(delete(members).where(_member(scope, dead) & long_dead))  # by key: others hold their own rows
            alive = self._run(select(members.c.member).where(everyone & (members.c.lease_until >= self._now)))
            return sorted(alive.scalars())

    def leave(self, scope: Scope, member: str) -> None:
        """End this process's membership."""
        with self._transaction():
            self._run(delete(members).where(_member(scope, member)))

    def owners(self, scope: Scope) -> list[OwnerRow]:
        """Every row of the topic."""
        rows = self._run(_OWNERS, {"at_group": scope.group, "at_topic": scope.topic})
        return sorted((_owner_row(row) for row in rows), key=lambda row: row.partition.encode())

    def claim(self, scope: Scope, partition: str, member: str, ttl: int, *, wait: bool = False) -> Claimed | None:
        """Take a lease that is free or over: lock the row first, then set the lease in a second statement."""
        at = _of(scope) & (owners.c.partition_id == partition)
        query = self._dialect.lock(select(*_COLUMNS, self._now.label("now")).where(at), wait=wait)
        with suppress(Contention), self._transaction():  # waited in vain: it is in a transaction still
            row = self._run(query).first()
            if row is None or (row.owner is not None and row.lease_until > row.now):
                return None
            token = secrets.token_hex(16)
            self._run(
                update(owners)
                .where(at)
                .values(member=member, owner=token, epoch=owners.c.epoch + 1, lease_until=self._now + ttl, **_FRESH)
            )
            claimed = self._run(select(*_COLUMNS).where(at)).one()
            return Claimed(_owner_row(claimed), released=row.owner is None)
        return None

    def renew(self, scope: Scope, claims: Sequence[tuple[str, str, int]], ttl: int) -> set[str]:
        """Renew leases; the partitions that are lost. A row in a transaction is left to it."""
        lost: set[str] = set()
        with self._transaction():
            for partition, owner, epoch in claims:
                at = _at(scope, partition)
                idle = self._run(self._idle_row, at).first()
                row = idle or self._run(select(owners.c.owner, owners.c.epoch).where(_THE_ROW), at).first()
                if row is None or row.owner != owner or row.epoch != epoch:
                    lost.add(partition)
                elif idle is not None:
                    self._run(self._renew, at | {"ttl": ttl})
        return lost

    def release(self, scope: Scope, partition: str, owner: str, epoch: int) -> bool:
        """Let a lease go."""
        with self._transaction():
            done = self._run(self._release, _at(scope, partition) | {"by_owner": owner, "by_epoch": epoch})
            return bool(done.rowcount)

    def pause(self, scope: Scope, partition: str, owner: str, why: str | None) -> None:
        """Say why nothing of a partition is consumed."""
        ours = _of(scope) & (owners.c.partition_id == partition) & (owners.c.owner == owner)
        with self._transaction():
            self._run(update(owners).where(ours).values(paused=why))

    def set_trouble(self, scope: Scope, partition: str, owner: str, trouble: str | None) -> None:
        """Say what keeps the owner from reading a partition at the broker; None says that nothing does any more."""
        ours = _of(scope) & (owners.c.partition_id == partition) & (owners.c.owner == owner)
        with self._transaction():
            self._run(update(owners).where(ours).values(trouble=trouble))

    def unpause(self, scope: Scope, partition: str) -> None:
        """A paused partition may be consumed again."""
        self._run(update(owners).where(_THE_ROW).values(paused=None), _at(scope, partition))

    def fence(self, scope: Scope, steps: Sequence[FenceStep], ttl: int) -> dict[str, Fenced]:
        """Hold these partitions, in the order of the bytes of their ids."""
        ordered = sorted(steps, key=lambda step: step.partition.encode())
        held = self._run_each(self._fence, [_fence_params(scope, step, ttl) for step in ordered])
        if held == len(ordered):
            return {}
        rows = {row.partition: row for row in self.owners(scope)}
        return {step.partition: _why_not(step, rows.get(step.partition)) for step in ordered}

    def prolong(self, scope: Scope, partitions: Sequence[str], ttl: int, since: int) -> None:
        """The leases of a transaction that took long begin anew."""
        if not self._dialect.single_writer:
            rows = [_at(scope, partition) | {"ttl": ttl} for partition in sorted(partitions, key=str.encode)]
            self._run(self._renew, rows)
            return
        longer = self._now - since
        for table in (owners, members):
            in_force = table.c.lease_until > since
            self._run(update(table).where(in_force).values(lease_until=table.c.lease_until + longer))

    def hold_row(self, scope: Scope, partition: str, changes: int = 1) -> OwnerRow:
        """Lock the row and raise its stamp."""
        self._run(update(owners).where(_THE_ROW).values(effect=owners.c.effect + changes), _at(scope, partition))
        return _owner_row(self._run(select(*_COLUMNS).where(_THE_ROW), _at(scope, partition)).one())

    def begin_visit(self, scope: Scope, partition: str, visitor: str, ttl: int) -> OwnerRow | None:
        """Be the one visitor of a partition, whoever owns it."""
        alone = _of(scope) & (owners.c.partition_id == partition) & (owners.c.visit_until < self._now)
        with self._transaction():
            begun = self._run(update(owners).where(alone).values(visitor=visitor, visit_until=self._now + ttl))
            if not begun.rowcount:
                return None
            return _owner_row(self._run(select(*_COLUMNS).where(_THE_ROW), _at(scope, partition)).one())

    def end_visit(self, scope: Scope, partition: str, visitor: str) -> None:
        """Let the next visitor come."""
        ours = _of(scope) & (owners.c.partition_id == partition) & (owners.c.visitor == visitor)
        with self._transaction():
            self._run(update(owners).where(ours).values(visitor=None, visit_until=0))

    def count_duplicates(self, scope: Scope, partition: str, count: int) -> None:
        """Inside a fenced transaction: count deliveries that were stopped as duplicates."""
        self._run(update(owners).where(_THE_ROW).values(duplicates=owners.c.duplicates + count), _at(scope, partition))

    def count_parked(self, scope: Scope, partition: str, count: int, size: int) -> None:
        """Inside a transaction that holds the row: so many more rows are parked, and bytes of their bodies."""
        self._run(
            update(owners)
            .where(_THE_ROW)
            .values(parked_rows=owners.c.parked_rows + count, parked_bytes=owners.c.parked_bytes + size),
            _at(scope, partition),
        )

    def set_full(self, scope: Scope, partitions: Sequence[str], *, full: bool) -> None:
        """Say that the owner of these partitions waits for room in the parking, or doesn't any more."""
        if partitions:
            with self._transaction():
                rows = [_at(scope, partition) for partition in sorted(partitions, key=str.encode)]
                self._run(update(owners).where(_THE_ROW).values(full=full), rows)

    def set_position(self, scope: Scope, partition: str, position: Position | None) -> None:
        """Inside a fenced transaction: correct the position where less was handled than the fence said."""
        self._run(
            update(owners)
            .where(_THE_ROW)
            .values(
                position=position.offset if position else None, log_identity=position.identity if position else None
            ),
            _at(scope, partition),
        )


def _member(scope: Scope, member: str) -> ColumnElement[bool]:
    return (members.c.consumer_group == scope.group) & (members.c.topic == scope.topic) & (members.c.member == member)


def _at(scope: Scope, partition: str) -> dict[str, Any]:
    return {"at_group": scope.group, "at_topic": scope.topic, "at_partition": partition}


def _fence_params(scope: Scope, step: FenceStep, ttl: int) -> dict[str, Any]:
    position = step.position
    return {
        **_at(scope, step.partition),
        "by_owner": step.owner,
        "by_epoch": step.epoch,
        "seen_effect": step.effect,
        "advance": step.advance,
        "new_position": position.offset if position else None,
        "new_identity": position.identity if position else None,
        "new_read_through": step.read_through,
        "ttl": ttl,
    }


def _why_not(step: FenceStep, row: OwnerRow | None) -> Fenced:
    """Why a fence that touched too few rows didn't hold a partition.

    Which rows it touched can't be told from the counters: somebody else may have raised one by just as much. So every
    partition that is still ours counts as moved; reading it again does no harm.
    """
    ours = row is not None and row.owner == step.owner and row.epoch == step.epoch
    return Fenced.MOVED if ours else Fenced.LOST


def _owner_row(row: Row[Any]) -> OwnerRow:
    position = None if row.position is None else Position(row.position, row.log_identity or "")
    return OwnerRow(
        partition=row.partition_id,
        member=row.member,
        owner=row.owner,
        epoch=row.epoch,
        lease_until=row.lease_until,
        effect=row.effect,
        position=position,
        read_through=row.read_through,
        paused=row.paused,
        parked_rows=row.parked_rows,
        parked_bytes=row.parked_bytes,
        full=bool(row.full),
    )
