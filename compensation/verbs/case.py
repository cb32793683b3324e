"""A parked message as a verb finds it under its partition's row, and what the verb means to do about it: values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from seriatim.core.decision import KeyStanding, Outcome, Place, Record, Status
from seriatim.core.store.port import Finish, ParkedMessage, Scope, Writes


@dataclass(frozen=True, slots=True)
class Done:
    """What a verb did, or would do: whether anything changed, and in words. `parked_id` is None for a key's verb."""

    changed: bool
    text: str
    group: str = ""
    topic: str = ""
    partition: str = ""
    key: str | None = None
    parked_id: int | None = None
    biz_key: str | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """What is judged. `head` is the id of the first in the key's queue, `twin` that of another row of its biz_key."""

    scope: Scope
    row: ParkedMessage
    key: KeyStanding
    head: int | None
    record: Record | None
    twin: int | None
    now: int

    @property
    def is_head(self) -> bool:
        """Whether the key waits for this row."""
        return self.row.place is Place.QUEUE and self.row.id == self.head

    @property
    def applied(self) -> bool:
        """Whether its biz_key has had its effect: nothing may change that."""
        return self.record is not None and self.record.status is Status.SUCCESS

    @property
    def rejected(self) -> bool:
        """Whether its biz_key was given up for good."""
        return self.record is not None and self.record.outcome is Outcome.REJECTED


@dataclass(slots=True)
class Plan:
    """What a verb means to do. `after` is how the row stands then: None where it goes, or where nothing is `changed`.

    `claims`: its biz_key has no record and gets one, so that there is something to be final. `body` is a new body.
    """

    text: str
    changed: bool = True
    after: ParkedMessage | None = None
    claims: bool = False
    body: bytes | None = None
    writes: Writes = field(default_factory=Writes)

    def stands(self, case: Case, key: KeyStanding) -> None:
        """How the row's key stands then."""
        if case.row.sharding_key is not None:
            self.writes.keys[case.row.sharding_key] = (case.row.partition, key)

    def finishes(self, case: Case, outcome: Outcome, response: bytes | None = None, attempts: int = 0) -> None:
        """How the record of the row's biz_key stands then: failed, and whether for good."""
        biz_key = case.row.biz_key
        if biz_key is not None:
            self.claims = case.record is None
            self.writes.finishes[biz_key] = Finish(
                biz_key, Status.FAILED, outcome, response=response, attempts=attempts
            )


def refused(text: str) -> Plan:
    """A plan that changes nothing, and says why."""
    return Plan(text, changed=False)


def without(case: Case) -> KeyStanding:
    """How the key stands once the row has left its place."""
    if case.row.place is Place.CLOSED:
        return case.key
    if case.row.place is Place.ASIDE:
        return case.key.aside_left()
    if case.is_head:
        return case.key.head_left(case.now)
    return replace(case.key, depth=case.key.depth - 1)
