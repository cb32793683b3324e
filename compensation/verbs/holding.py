"""Verbs about keys: hold and release, for keys with something parked and for those with nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Select, insert, select

from seriatim.compensation.selecting import Target, check_scope, of_scope, scopes
from seriatim.compensation.verbs.case import Done
from seriatim.core.decision import KeyStanding, Place, Reason
from seriatim.core.errors import ConfigurationError
from seriatim.core.store import SqlStore
from seriatim.core.store.port import Scope, Session, Writes
from seriatim.core.store.schema import idempotent_record as records
from seriatim.core.store.schema import operator_action as actions
from seriatim.core.store.schema import parked_key as keys
from seriatim.core.store.schema import partition_owner as owners


@dataclass(frozen=True, slots=True)
class KeyTarget:
    """A sharding key, and where it is."""

    group: str
    topic: str
    partition: str
    key: str

    @property
    def scope(self) -> Scope:
        """Its group and topic."""
        return Scope(self.group, self.topic)


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """How a key stands afterwards; None where nothing changes."""

    text: str
    after: KeyStanding | None


def hold_plan(target: KeyTarget, key: KeyStanding, now: int, *, dead_head: bool) -> KeyPlan:
    """Keep the key from running."""
    del now, dead_head
    if key.held:
        return KeyPlan(f"key {target.key!r} is held already", None)
    waiting = f"{key.depth:,} waiting, and later messages go" if key.depth else "later messages go"
    return KeyPlan(f"key {target.key!r} is held: {waiting} behind", replace(key, held=True))


def release_plan(target: KeyTarget, key: KeyStanding, now: int, *, dead_head: bool) -> KeyPlan:
    """Let the key go on."""
    if not key.held:
        return KeyPlan(f"key {target.key!r} isn't held", None)
    due_at = now if key.depth and not dead_head else None
    after = replace(key, held=False, due_at=due_at, aside_due_at=now if key.aside else None)
    if dead_head:
        what = "its head is dead, and waits for a person"
    else:
        what = f"{key.depth:,} waiting are due now" if key.depth else "nothing waits"
    return KeyPlan(f"key {target.key!r} is released: {what}", after)


@dataclass(frozen=True, slots=True)
class KeyVerb:
    """A verb about one key at a time."""

    name: str
    act: Callable[..., KeyPlan]
    who: str

    def __call__(self, session: Session, target: KeyTarget, *, write: bool) -> Done:
        """Judge the key, and write what that means; inside a transaction that holds its partition's row."""
        key = session.parking.keys(target.scope, [target.key]).get(target.key, KeyStanding())
        head = session.parking.rows(target.scope, target.key, Place.QUEUE, 1)
        now = session.now()
        plan = self.act(target, key, now, dead_head=bool(head) and head[0].reason is Reason.DEAD)
        if plan.after is not None and write:
            session.write(target.scope, Writes(keys={target.key: (target.partition, plan.after)}), now)
            self._audit(session, target, key, plan.after, now)
        changed = plan.after is not None
        return Done(changed, plan.text, target.group, target.topic, target.partition, target.key)

    def _audit(self, session: Session, target: KeyTarget, before: KeyStanding, after: KeyStanding, now: int) -> None:
        session.run(
            insert(actions).values(
                at=now,
                who=self.who,
                verb=self.name,
                consumer_group=target.group,
                topic=target.topic,
                sharding_key=target.key,
                before=_told(before),
                after=_told(after),
            )
        )


def _told(key: KeyStanding) -> str:
    return json.dumps({"held": key.held, "depth": key.depth, "aside": key.aside, "attempts": key.attempts})


def keys_of(targets: Sequence[Target]) -> list[KeyTarget]:
    """The keys of parked messages, each once."""
    found = {
        (one.group, one.topic, one.key): KeyTarget(one.group, one.topic, one.partition, one.key)
        for one in targets
        if one.key is not None
    }
    return list(found.values())


def held_keys(store: SqlStore, group: str | None, topic: str | None) -> list[KeyTarget]:
    """Every key that is held."""
    with store.read() as connection:
        check_scope(connection, group, topic)
        query = (
            select(keys.c.consumer_group, keys.c.topic, keys.c.partition_id, keys.c.sharding_key)
            .where(keys.c.held, *of_scope(keys, group, topic))
            .order_by(keys.c.since)
        )
        return [KeyTarget(*row) for row in connection.execute(query)]


def find_key(store: SqlStore, scope: Scope, key: str, partition: str | None) -> KeyTarget:
    """Where a key is: by what is parked of it, by its records, or as `partition` says.

    Raises:
        ConfigurationError: the store has never seen it, and `partition` isn't given or isn't one of the topic.
    """
    with store.read() as connection:
        check_scope(connection, scope.group, scope.topic)
        found = _partition(connection, scope, key)
        names = _partitions(connection, scope)
    if partition is not None and partition not in names:
        raise ConfigurationError(f"topic {scope.topic!r} has no partition {partition!r}; it has: {', '.join(names)}")
    if found is not None and partition not in (None, found):
        raise ConfigurationError(f"key {key!r} is in partition {found!r}, not in {partition!r}")
    place = found or partition
    if place is None:
        raise ConfigurationError(
            f"group {scope.group!r} has never seen key {key!r} of topic {scope.topic!r}: is it written right? "
            "If so, say which partition it will come to with --partition (`seriatim route` shows it)"
        )
    return KeyTarget(scope.group, scope.topic, place, key)


def _partition(connection: Connection, scope: Scope, key: str) -> str | None:
    of_key = (keys.c.consumer_group == scope.group) & (keys.c.topic == scope.topic) & (keys.c.sharding_key == key)
    parked: str | None = connection.execute(select(keys.c.partition_id).where(of_key)).scalar()
    return parked or connection.execute(last_seen(scope, key)).scalar()


def last_seen(scope: Scope, key: str) -> Select[Any]:
    """The partition of a key's newest record: found in the index alone, and read by its primary key."""
    in_scope = (records.c.consumer_group == scope.group) & (records.c.topic == scope.topic)
    newest = (
        select(records.c.biz_key)
        .where(in_scope, records.c.sharding_key == key)
        .order_by(records.c.received_at.desc())
        .limit(1)
        .subquery()
    )
    return select(records.c.partition_id).join(newest, newest.c.biz_key == records.c.biz_key).where(in_scope)


def _partitions(connection: Connection, scope: Scope) -> list[str]:
    query = select(owners.c.partition_id).where(owners.c.consumer_group == scope.group, owners.c.topic == scope.topic)
    return sorted(connection.execute(query).scalars(), key=lambda name: (len(name), name))


def scope_of_key(store: SqlStore, key: str, group: str | None, topic: str | None) -> Scope:
    """The one group and topic that a key can be meant in.

    Raises:
        ConfigurationError: there are several, or none.
    """
    with store.read() as connection:
        known = scopes(connection, group, topic)
        seen = [one for one in known if _partition(connection, one, key) is not None]
    found = seen or known
    if len(found) == 1:
        return found[0]
    listed = ", ".join(f"{one.group}/{one.topic}" for one in found) or "none"
    raise ConfigurationError(f"key {key!r}: say which group and topic with --group and --topic; there are: {listed}")
