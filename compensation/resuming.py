"""Letting a paused partition go on: after a person has looked at why it stopped."""

from __future__ import annotations

import json

from sqlalchemy import insert, select

from seriatim.core.errors import ConfigurationError
from seriatim.core.message import Position
from seriatim.core.store.port import Scope, Session, Store
from seriatim.core.store.schema import operator_action
from seriatim.core.store.schema import partition_owner as owners


def resume(store: Store, scope: Scope, partition: str, who: str, *, accept_gap: bool = False) -> str:
    """Let a paused partition be consumed again; what it was paused for is written to `operator_action`.

    `accept_gap`: begin at the earliest message that the broker still keeps. Where messages between the stored position
    and that one were trimmed away, they are lost to this group: that is what is accepted.

    Raises:
        ConfigurationError: there is no such partition, or it isn't paused.
    """
    session = store.session()
    try:
        with session.transaction():
            why = _paused(session, scope, partition)
            row = session.leases.hold_row(scope, partition)
            if accept_gap:
                session.leases.set_position(scope, partition, None)
            session.leases.unpause(scope, partition)
            session.run(
                insert(operator_action).values(
                    at=session.now(),
                    who=who,
                    verb="accept gap" if accept_gap else "resume",
                    consumer_group=scope.group,
                    topic=scope.topic,
                    before=json.dumps({"partition": partition, "paused": why, "position": _offset(row.position)}),
                    after=json.dumps({"position": None if accept_gap else _offset(row.position)}),
                )
            )
        return why
    finally:
        session.close()


def _paused(session: Session, scope: Scope, partition: str) -> str:
    query = select(owners.c.paused).where(
        owners.c.consumer_group == scope.group, owners.c.topic == scope.topic, owners.c.partition_id == partition
    )
    row = session.run(query).first()
    if row is None:
        raise ConfigurationError(f"group {scope.group!r}, topic {scope.topic!r}: there is no partition {partition!r}")
    if row.paused is None:
        raise ConfigurationError(f"group {scope.group!r}, topic {scope.topic!r}: partition {partition!r} isn't paused")
    return str(row.paused)


def _offset(position: Position | None) -> str | None:
    return None if position is None else position.offset
