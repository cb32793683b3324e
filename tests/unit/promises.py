"""The promises P1 to P8 as one check over a picture of the tables; shared by the two state machines.

The picture is taken between transactions. What was sent, and how far each partition was handled, is known from outside
the tables; the ledger is the handlers' own, so that effects are seen without trusting a record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from seriatim.core.decision import SET_ASIDE, KeyStanding, OnDead, OnFailure, Outcome, Place, Policy, Reason, Status
from seriatim.core.store.port import ParkedMessage


@dataclass(frozen=True)
class Sent:
    """One message as it was sent; a duplicate is sent as an equal one."""

    biz_key: str
    key: str
    body: bytes
    needs: str | None = None  # the biz_key of its predecessor


@dataclass(frozen=True)
class Effect:
    """A row of the handlers' ledger."""

    biz_key: str
    key: str
    partition: str
    body: bytes
    epoch: int = 0


@dataclass(frozen=True)
class RecordRow:
    """What the promises ask of a record."""

    status: Status
    outcome: Outcome | None
    first: str | None = None
    response: bytes | None = None
    effect: int | None = None
    crash_attempts: int = 0


@dataclass
class Picture:
    """The tables between two transactions, and what is known from outside."""

    policy: Policy
    sent: dict[str, list[Sent]]  #: by partition, in order
    handled: dict[str, int]  #: by partition: how many of them the position, or the acknowledgement, lies behind
    records: dict[str, RecordRow] = field(default_factory=dict)
    rows: list[ParkedMessage] = field(default_factory=list)
    keys: dict[str, KeyStanding] = field(default_factory=dict)
    ledger: list[Effect] = field(default_factory=list)
    held: dict[str, int] = field(default_factory=dict)  #: by held key: how many effects it had when it was held

    def queue(self, key: str) -> list[ParkedMessage]:
        return [row for row in self.rows if row.sharding_key == key and row.place is Place.QUEUE]

    def aside(self, key: str) -> list[ParkedMessage]:
        return [row for row in self.rows if row.sharding_key == key and row.place is Place.ASIDE]

    def is_final(self, biz_key: str) -> bool:
        record = self.records.get(biz_key)
        return record is not None and (record.status is Status.SUCCESS or record.outcome is Outcome.REJECTED)


def response_to(message: Sent) -> bytes:
    """What a handler answers: something that tells one body from another."""
    return b'{"did":"%s"}' % message.body.hex().encode()


def broken(picture: Picture) -> list[str]:
    """Every promise that the picture breaks, in words."""
    checks = (_one_effect, _in_order, _held, _nothing_lost, _answers, _early, _counters, _records_and_rows)
    return [breach for check in checks for breach in check(picture)]


def unended(picture: Picture) -> list[str]:
    """What doesn't come to an end though every cause is mended and time goes by; the dead wait for a person.

    What is early isn't given up while what it needs is parked itself, or while its partition isn't read through.
    """
    homes = {message.key: partition for partition, messages in picture.sent.items() for message in messages}
    stopped = {homes[key] for key, standing in picture.keys.items() if standing.stops_partition}
    waiting = {row.biz_key for row in picture.rows if row.waits}
    found = []
    for key in picture.keys:
        head = picture.queue(key)[:1]
        if head and head[0].reason is not Reason.DEAD:
            found.append(f"the head of {key} is never tried: {head[0]}")
        if not head and homes[key] not in stopped:
            found += [f"never ends: {row}" for row in picture.aside(key) if not waiting & set(row.wants)]
    for partition, messages in picture.sent.items():
        if partition not in stopped and picture.handled.get(partition, 0) < len(messages):
            found.append(f"partition {partition} isn't read to its end")
    return found


def _one_effect(picture: Picture) -> Iterator[str]:
    """P2, and that an effect and its record are one."""
    for biz_key, count in Counter(effect.biz_key for effect in picture.ledger).items():
        if count > 1:
            yield f"P2: {biz_key} has {count} effects"
    applied = {biz_key for biz_key, record in picture.records.items() if record.outcome is Outcome.APPLIED}
    effects = {effect.biz_key for effect in picture.ledger}
    for biz_key in effects - applied:
        yield f"P2: {biz_key} has an effect and no record that says so: {picture.records.get(biz_key)}"
    for biz_key in applied - effects:
        yield f"P2: the record of {biz_key} says applied, and there is no effect"
    for partition in picture.sent:
        epochs = [effect.epoch for effect in picture.ledger if effect.partition == partition]
        if epochs != sorted(epochs):
            yield f"P6: a stale owner wrote to partition {partition}: epochs {epochs}"


def _in_order(picture: Picture) -> Iterator[str]:
    """P1 and P5: whatever was sent before has its effect before, but for what was early, set aside or given up."""
    at = {effect.biz_key: number for number, effect in enumerate(picture.ledger)}
    homes: dict[str, set[tuple[str, str]]] = {}
    for partition, messages in picture.sent.items():
        for message in messages:
            homes.setdefault(message.biz_key, set()).add((partition, message.key))
    for messages in picture.sent.values():
        before: dict[str, list[str]] = {}
        for message in messages:
            earlier = before.setdefault(message.key, [])
            if message.biz_key in earlier or len(homes[message.biz_key]) > 1:
                continue  # a duplicate; or a biz_key with two keys: its producer gave up its order
            for biz_key in earlier:
                if message.biz_key in at and not _may_be_passed(picture, biz_key):
                    if biz_key not in at:
                        yield f"P1: {message.biz_key} has its effect, and {biz_key} before it waits"
                    elif at[biz_key] > at[message.biz_key]:
                        yield f"P1: {message.biz_key} had its effect before {biz_key}"
            earlier.append(message.biz_key)


def _held(picture: Picture) -> Iterator[str]:
    """A held key has no effects."""
    counts = Counter(effect.key for effect in picture.ledger)
    for key, count in picture.held.items():
        if counts[key] > count:
            yield f"HOLD: {key} is held, and had {counts[key] - count} effects since"


def _may_be_passed(picture: Picture, biz_key: str) -> bool:
    record = picture.records.get(biz_key)
    if record is None:
        return False
    return record.outcome is Outcome.REJECTED or record.first in ("early", SET_ASIDE)


def _nothing_lost(picture: Picture) -> Iterator[str]:
    """P3: what was handled has an answer, or waits, or is kept as a conflict."""
    waiting = {row.biz_key for row in picture.rows if row.waits}
    kept = {(row.biz_key, row.body) for row in picture.rows}
    bodies = {effect.biz_key: effect.body for effect in picture.ledger}
    for partition, messages in picture.sent.items():
        firsts: dict[str, bytes] = {}
        for message in messages[: picture.handled.get(partition, 0)]:
            if not picture.is_final(message.biz_key) and message.biz_key not in waiting:
                yield f"P3: {message.biz_key} was handled and is lost"
            first = bodies.get(message.biz_key, firsts.setdefault(message.biz_key, message.body))
            if message.body != first and (message.biz_key, message.body) not in kept:
                yield f"P8: another body of {message.biz_key} was handled and isn't kept"


def _answers(picture: Picture) -> Iterator[str]:
    """P8: what is stored for a duplicate is what the one run answered."""
    for effect in picture.ledger:
        record = picture.records.get(effect.biz_key)
        if record is not None and record.response != response_to(Sent(effect.biz_key, effect.key, effect.body)):
            yield f"P8: the stored answer of {effect.biz_key} is {record.response!r}"


def _early(picture: Picture) -> Iterator[str]:
    """P7: nothing has its effect before what it needs."""
    needs = {message.biz_key: message.needs for messages in picture.sent.values() for message in messages}
    seen: set[str] = set()
    for effect in picture.ledger:
        wanted = needs.get(effect.biz_key)
        if wanted is not None and wanted not in seen:
            yield f"P7: {effect.biz_key} had its effect before {wanted}"
        seen.add(effect.biz_key)


def _counters(picture: Picture) -> Iterator[str]:
    """A key's row says what is parked under it, and something will try it again."""
    parked = {row.sharding_key for row in picture.rows if row.waits}
    for key in sorted((parked | set(picture.keys)) - {None}):
        standing, queue, aside = picture.keys.get(key), picture.queue(key), picture.aside(key)
        if standing is None:
            yield f"the key row of {key} is gone, and {len(queue) + len(aside)} messages wait under it"
            continue
        if (standing.depth, standing.aside) != (len(queue), len(aside)):
            yield f"{key} counts {standing.depth}+{standing.aside}, and has {len(queue)}+{len(aside)}"
        if standing.idle:
            yield f"the key row of {key} says nothing, and is there"
        if standing.held != (key in picture.held):
            yield f"{key} should be {'held' if key in picture.held else 'free'}"
        if standing.stops_partition and (not queue or picture.policy.on_failure is not OnFailure.BLOCK):
            yield f"{key} stops its partition for nothing"
        yield from _due(key, standing, queue)


def _due(key: str, standing: KeyStanding, queue: list[ParkedMessage]) -> Iterator[str]:
    dead = bool(queue) and queue[0].reason is Reason.DEAD
    if queue and not standing.held and not dead and standing.due_at is None:
        yield f"P4: nothing will ever try the head of {key} ({queue[0].biz_key}, {queue[0].reason.value})"
    if dead and standing.due_at is not None:
        yield f"P5: {key} is due, and its head is dead"
    if not queue and standing.due_at is not None:
        yield f"{key} is due, and nothing is in its queue"
    if standing.aside and not standing.blocked and standing.aside_due_at is None:
        yield f"P7: nothing will ever try what is aside of {key}"


def _records_and_rows(picture: Picture) -> Iterator[str]:
    """Records and parked rows agree."""
    waiting: dict[str, ParkedMessage] = {}
    for row in picture.rows:
        if row.waits and row.biz_key is not None:
            if row.biz_key in waiting:
                yield f"{row.biz_key} waits twice"
            waiting[row.biz_key] = row
            record = picture.records.get(row.biz_key)
            yield from _row_and_record(picture, row, record)
    for biz_key, record in picture.records.items():
        if record.status is Status.PROCESSING and not record.crash_attempts:
            yield f"{biz_key} is left in processing"
        if record.status is Status.FAILED and record.outcome is not Outcome.REJECTED and biz_key not in waiting:
            yield f"P3: the record of {biz_key} says {record.outcome}, and no row waits for it"


def _row_and_record(picture: Picture, row: ParkedMessage, record: RecordRow | None) -> Iterator[str]:
    final = record is not None and picture.is_final(row.biz_key)
    if final and row.reason is not Reason.DEAD:
        yield f"P8: {row.biz_key} has its answer, and waits as {row.reason.value}"
    if row.place is Place.QUEUE and row.reason in _never_blocking(picture.policy):
        yield f"P4: {row.biz_key} blocks its key as {row.reason.value}, against the topic's policy"
    if row.place is Place.QUEUE and row.reason is Reason.EARLY:
        yield f"P7: {row.biz_key} is early, and in the queue of its key"
    if row.reason is Reason.FAILED and (record is None or record.status is not Status.FAILED):
        yield f"{row.biz_key} waits as failed, and its record is {record}"


def _never_blocking(policy: Policy) -> set[Reason]:
    """What keeps no key waiting, by a topic's policy."""
    if policy.on_failure is OnFailure.SET_ASIDE:
        return {Reason.FAILED, Reason.DEAD}
    return {Reason.DEAD} if policy.on_dead is OnDead.SKIP else set()
