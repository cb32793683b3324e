"""The pure decisions against the promises: whatever happens, in whatever order, over tables that are dicts.

The lane of this machine is the plainest one that there can be: `View` judges and says what to write, `Tables` writes
it as the store would. What the real lane, the real store and crashes add is in test_hypothesis_store.py.
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from seriatim.core import view as view_module
from seriatim.core.decision import (
    FREE,
    Action,
    Disposal,
    Failed,
    KeyStanding,
    Outcome,
    Place,
    Reason,
    Record,
    Status,
    Waiting,
)
from seriatim.core.envelope import KEY
from seriatim.core.store.port import MICROSECOND, Finish, ParkedMessage, Writes
from seriatim.core.task import of_delivery, of_row
from seriatim.core.topic import Topic
from seriatim.core.view import Success, TooEarly, View

from .promises import Effect, Picture, RecordRow, Sent, broken, response_to, unended
from .stream import HOMES, MESSAGES, TOPIC, Stream, bounds, hunting, released, skipped

RARELY = st.sampled_from([False, False, False, True])


@dataclass
class Stored:
    """A record as it is stored."""

    known: Record
    first: str | None = None
    response: bytes | None = None
    effect: int | None = None


@dataclass
class Tables:
    """The store's tables, and what a transaction does to them."""

    records: dict[str, Stored] = field(default_factory=dict)
    rows: dict[int, ParkedMessage] = field(default_factory=dict)
    keys: dict[str, KeyStanding] = field(default_factory=dict)
    ledger: list[Effect] = field(default_factory=list)
    handled: dict[str, int] = field(default_factory=lambda: {"0": 0, "1": 0})
    ids: int = 0

    def copy(self) -> Tables:
        records = {name: replace(one) for name, one in self.records.items()}
        return Tables(records, dict(self.rows), dict(self.keys), list(self.ledger), dict(self.handled), self.ids)

    def placed(self, key: str, place: Place) -> list[ParkedMessage]:
        return [row for _, row in sorted(self.rows.items()) if row.sharding_key == key and row.place is place]

    def waiting(self) -> dict[str, Waiting]:
        return {row.biz_key: Waiting(row.type, row.digest) for row in self.rows.values() if row.waits}

    def write(self, writes: Writes) -> None:
        for row_id in writes.unparks:
            del self.rows[row_id]
        for row in writes.moves:
            self.rows[row.id] = row
        for row in writes.parks:
            self.ids += 1
            self.rows[self.ids] = replace(row, id=self.ids)
        self._check_unique()
        for key, (_, standing) in writes.keys.items():
            self._write_key(key, standing)
        for biz_key in writes.unclaims:
            del self.records[biz_key]
        for finish in writes.finishes.values():
            self._finish(finish)

    def _write_key(self, key: str, standing: KeyStanding) -> None:
        """As the store does: a held head has no due time, nor has what is aside of a blocked key."""
        due_at = None if standing.held else standing.due_at
        aside_due_at = None if standing.blocked else standing.aside_due_at
        self.keys[key] = replace(standing, due_at=due_at, aside_due_at=aside_due_at)
        if standing.idle:
            del self.keys[key]

    def _finish(self, finish: Finish) -> None:
        stored = self.records[finish.biz_key]
        stored.known = replace(stored.known, status=finish.status, outcome=finish.outcome)
        stored.first = stored.first or finish.first or finish.outcome.value
        stored.response, stored.effect = finish.response, finish.effect

    def _check_unique(self) -> None:
        waiting = [row.biz_key for row in self.rows.values() if row.waits]
        conflicts = [(row.biz_key, row.digest) for row in self.rows.values() if row.conflict]
        assert len(waiting) == len(set(waiting)), f"the store would refuse: {waiting} wait"
        assert len(conflicts) == len(set(conflicts)), "the store would refuse: the same conflict twice"


MAX_FOLLOWERS = 100  # more than a machine ever sends


class ViewMachine(Stream):
    """One lane without a crash-proof thing about it but that its transactions are whole."""

    def set_up(self):
        self.tables = Tables()
        self.held: dict[str, int] = {}
        self.topic = Topic(TOPIC, ("0", "1"), policy=self.policy)
        self.topic.on("*")(lambda _event, _context: None)

    # -- what a lane does

    @rule(messages=MESSAGES | st.just([]), partition=st.sampled_from("001"), count=st.integers(1, 9), dies=RARELY)
    def take_what_arrived(self, messages, partition, count, dies):
        self.send_all(messages)
        if any(standing.stops_partition for standing in self._of(partition).values()):
            return
        start = self.tables.handled[partition]
        places = range(start, min(start + count, len(self.sent[partition])))
        tasks = [of_delivery(self.topic, self.delivery(partition, index)) for index in places]
        with self._transaction(partition, tasks, dies=dies) as done:
            done.tables.handled[partition] = start + done.run()

    @rule(key=st.sampled_from("aabc"), dies=RARELY)
    def drain_what_is_due(self, key, dies):
        standing = self.tables.keys.get(key, FREE)
        if standing.due_at is None or standing.due_at > self.now:
            return
        rows = self.tables.placed(key, Place.QUEUE)
        tasks = [of_row(self.topic, row) for row in (rows[:3] if rows[0].reason is Reason.BEHIND else rows[:1])]
        with self._transaction(HOMES[key], tasks, dies=dies) as done:
            done.run(drain=True)

    @rule(key=st.sampled_from("aab"), cut=st.sampled_from([1, 9]), dies=RARELY)
    def try_what_is_aside(self, key, cut, dies):
        standing = self.tables.keys.get(key, FREE)
        if standing.blocked or standing.aside_due_at is None or standing.aside_due_at > self.now:
            return
        rows = self.tables.placed(key, Place.ASIDE)
        tasks = [of_row(self.topic, row) for row in rows if row.reason is Reason.EARLY or self._is_due(row)]
        rest = [row.next_attempt_at for row in rows if row.reason is not Reason.EARLY and not self._is_due(row)]
        with self._transaction(HOMES[key], tasks, dies=dies) as done:
            done.view.keys[key] = replace(standing, aside_due_at=min(rest, default=None))
            if done.run(aside=True, cut=cut) < len(tasks):
                done.view.defer_aside(tasks[0])
            if not tasks:
                done.view.writes.keys[key] = (HOMES[key], done.view.keys[key])

    def _is_due(self, row: ParkedMessage) -> bool:
        return (row.next_attempt_at or 0) <= self.now

    # -- what an operator does

    @precondition(lambda self: any(row.place is Place.QUEUE for row in self.tables.rows.values()))
    @rule(data=st.data(), again=st.booleans())
    def skip_a_head(self, data, again):
        """A head is skipped, while a duplicate of it may be on its way."""
        keys = {row.sharding_key for row in self.tables.rows.values() if row.place is Place.QUEUE}
        key = data.draw(st.sampled_from(sorted(keys)))
        head = self.tables.placed(key, Place.QUEUE)[0]
        known = Record(Status.FAILED, Outcome.REJECTED, head.type, head.digest)
        stored = self.tables.records.setdefault(head.biz_key, Stored(known))
        if stored.known.status is not Status.SUCCESS:
            stored.known = replace(stored.known, status=Status.FAILED, outcome=Outcome.REJECTED)
        moved = replace(head, place=Place.CLOSED, reason=Reason.DEAD)
        standing = skipped(self.tables.keys[key], self.now)
        self.tables.write(Writes(moves=[moved], keys={key: (HOMES[key], standing)}))
        if again:
            self._send(next(one for one in self.sent[HOMES[key]] if one.biz_key == head.biz_key))

    @rule(key=st.sampled_from("ab"))
    def hold(self, key):
        if self.held:
            return
        standing = replace(self.tables.keys.get(key, FREE), held=True)
        self.tables.write(Writes(keys={key: (HOMES[key], standing)}))
        self.held[key] = sum(effect.key == key for effect in self.tables.ledger)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        key = data.draw(st.sampled_from(sorted(self.held)))
        head = self.tables.placed(key, Place.QUEUE)[:1]
        dead = bool(head) and head[0].reason is Reason.DEAD
        standing = released(self.tables.keys[key], self.now, dead=dead)
        self.tables.write(Writes(keys={key: (HOMES[key], standing)}))
        del self.held[key]

    # -- what must hold

    @invariant()
    def promises_hold(self):
        if hasattr(self, "tables"):
            assert broken(self._picture()) == []

    def _picture(self) -> Picture:
        tables = self.tables
        records = {
            name: RecordRow(one.known.status, one.known.outcome, one.first, one.response, one.effect)
            for name, one in tables.records.items()
        }
        rows = [row for _, row in sorted(tables.rows.items())]
        return Picture(self.policy, self.sent, tables.handled, records, rows, tables.keys, tables.ledger, self.held)

    def teardown(self):
        """Whatever happened: once causes are mended and holds released, everything but the dead comes to an end."""
        if not hasattr(self, "tables"):
            return
        self.mend_causes()
        while self.promised:
            self._send(self.promised.pop(0))
        for key in sorted(self.held):
            standing, head = self.tables.keys[key], self.tables.placed(key, Place.QUEUE)[:1]
            dead = bool(head) and head[0].reason is Reason.DEAD
            self.tables.write(Writes(keys={key: (HOMES[key], released(standing, self.now, dead=dead))}))
        self.held.clear()
        for _ in range(100):
            self.now += 30 * MICROSECOND
            for partition, key in itertools.product("01", "abc"):
                self._settle_down(partition, key)
            if not unended(self._picture()):
                break
        self.promises_hold()
        assert unended(self._picture()) == []

    def _settle_down(self, partition: str, key: str) -> None:
        ViewMachine.take_what_arrived(self, [], partition, 9, dies=False)
        ViewMachine.drain_what_is_due(self, key, dies=False)
        ViewMachine.try_what_is_aside(self, key, 99, dies=False)

    # -- a transaction

    def _of(self, partition: str) -> dict[str, KeyStanding]:
        return {key: standing for key, standing in self.tables.keys.items() if HOMES[key] == partition}

    @contextmanager
    def _transaction(self, partition, tasks, *, dies):
        run = Run(self, self.tables.copy(), tasks, partition)
        yield run
        run.tables.write(run.view.writes)
        if not dies:
            self.tables = run.tables


@dataclass
class Run:
    """One transaction of the machine's lane."""

    machine: ViewMachine
    tables: Tables
    tasks: list
    partition: str
    effects: int = 0

    def __post_init__(self):
        machine, tables = self.machine, self.tables
        names = {task.biz_key for task in self.tasks}
        self.view = View(
            policy=machine.policy,
            now=machine.now,
            records={name: tables.records[name].known for name in names if name in tables.records},
            waiting={name: one for name, one in tables.waiting().items() if name in names},
            keys={key: one for key, one in tables.keys.items() if key in {task.sharding_key for task in self.tasks}},
            read_through={self.partition: machine.now} if self._is_read() else {},
        )
        for name in names:
            kept = [row.digest for row in tables.rows.values() if row.conflict and row.biz_key == name]
            self.view.conflicts[name] = kept

    def _is_read(self) -> bool:
        return self.tables.handled[self.partition] == len(self.machine.sent[self.partition])

    followers = 0  # that ran because their predecessor did

    def run(self, *, drain=False, aside=False, cut=99) -> int:
        """Handle the tasks in order; how many were."""
        view = self.view
        for task in self.tasks:
            if view.judge(task) in (Action.RUN, Action.PARK) and task.biz_key not in view.records:
                known = Record(Status.PROCESSING, None, task.arrival.type, task.arrival.digest)
                self.tables.records.setdefault(task.biz_key, Stored(known))
                view.claimed.add(task.biz_key)
        handled = len(self.tasks)
        for index, task in enumerate(self.tasks):
            if index >= cut:
                handled = index
                break
            if self._was_handled(task):
                continue
            self._handle(task)
            if self._stops(task, drain=drain, aside=aside):
                handled = index + 1
                break
        settled = {task.biz_key for task in self.tasks[:handled]}
        for task in self.tasks[handled:]:
            if task.biz_key not in settled:
                view.unclaim(task)
        return handled

    def _was_handled(self, task) -> bool:
        touched = {*self.view.writes.unparks, *(row.id for row in self.view.writes.moves)}
        return task.row is not None and task.row.id in touched

    def _stops(self, task, *, drain, aside) -> bool:
        standing = self.view.standing(task.sharding_key)
        if standing.stops_partition or (aside and standing.blocked):
            return True
        return drain and task.row.id not in self.view.writes.unparks

    def _handle(self, task) -> None:
        view = self.view
        action = view.judge(task)
        other = {
            Action.DUPLICATE: view.duplicate,
            Action.CONFLICT: view.conflict,
            Action.PARKED: view.already_parked,
            Action.BEHIND: view.behind,
            Action.STAND: view.stands,
        }
        if action in other:
            other[action](task)
        else:
            self._call(task)

    def _call(self, task) -> None:
        """What the handler of a message does is its mood; it needs its predecessor's effect."""
        view, mood = self.view, self.machine.moods[task.biz_key]
        needs = task.message.headers.get("needs")
        if needs is not None and needs not in {effect.biz_key for effect in self.tables.ledger}:
            awaited = needs in self.tables.waiting() or needs in view.waiting
            view.early(task, TooEarly((needs,)), awaited=awaited)
        elif mood == "ok":
            self.effects += 1
            key, body = task.delivery.raw[KEY], task.delivery.body
            self.tables.ledger.append(Effect(task.biz_key, key, self.partition, body))
            answer = response_to(Sent(task.biz_key, key, body))
            view.succeeded(task, Success(response=answer), self.effects, 1)
            self._follow(task)
        else:
            after_s = 2.0 if mood == "retry" else None
            view.failed(task, Failed(Reason.FAILED, mood, after_s=after_s, final=mood == "reject"))

    def _follow(self, task) -> None:
        """A success lets those run that waited for it."""
        key, reached, tried = task.sharding_key, frozenset({task.biz_key}), set()
        while self.view.standing(key).aside and not self.view.standing(key).blocked:
            follower = self.view.recall(key, reached, tried) or self._row_that_wants(key, reached)
            if follower is None:
                return
            tried.add(follower.biz_key)
            self.followers += 1
            assert self.followers <= MAX_FOLLOWERS, "the same ones follow for ever"
            self._call(follower)

    def _row_that_wants(self, key, reached):
        for row in self.tables.placed(key, Place.ASIDE):
            task = of_row(self.machine.topic, row)
            if not self._was_handled(task) and row.reason is Reason.EARLY and reached & set(row.wants):
                self.view.records.setdefault(row.biz_key, self.tables.records[row.biz_key].known)
                return task
        return None


TestViewMachine = ViewMachine.TestCase
TestViewMachine.settings = bounds(examples=150, steps=40)


# -- the machine is worth something: it finds what is planted


def key_before_record(arrival, record, waiting, key):
    """A blocked key is judged before the record (N7)."""
    return Action.BEHIND if key.blocked else ORIGINAL_JUDGE(arrival, record, waiting, key)


def waiting_unseen(arrival, record, _waiting, key):
    """A waiting row of the same biz_key is overlooked."""
    return ORIGINAL_JUDGE(arrival, record, None, key)


def conflicts_unseen(arrival, record, waiting, key):
    """Another body is called a duplicate."""
    action = ORIGINAL_JUDGE(arrival, record, waiting, key)
    return Action.DUPLICATE if action is Action.CONFLICT else action


def head_keeps_due(self, _now):
    """The next head isn't made due."""
    return replace(self, depth=self.depth - 1, attempts=0, due_at=None, stops_partition=False)


def key_freed_early(self, _now):
    """A key is freed although followers wait."""
    return replace(self, depth=0, due_at=None, attempts=0, stops_partition=False)


def early_in_queue(self, task, early, *, awaited=False):
    """An early message goes to the queue of its key."""
    del awaited
    disposal = Disposal(Place.QUEUE, Reason.EARLY, Outcome.EARLY, 1, 1.0)
    self._dispose(task, disposal, Failed(Reason.EARLY, early.error), wants=early.wants)


def stays_parked(self, task):
    """What had its turn stays parked."""
    del self, task


ORIGINAL_JUDGE = view_module.judge

PLANTED = [
    (view_module, "judge", key_before_record),
    (view_module, "judge", waiting_unseen),
    (view_module, "judge", conflicts_unseen),
    (KeyStanding, "head_left", head_keeps_due),
    (KeyStanding, "head_left", key_freed_early),
    (View, "early", early_in_queue),
    (View, "_leave", stays_parked),
    (View, "unclaim", stays_parked),
]


@pytest.mark.slow
@pytest.mark.parametrize(("owner", "name", "bug"), PLANTED, ids=lambda value: getattr(value, "__name__", None))
def test_a_planted_bug_is_found(monkeypatch, owner, name, bug):
    monkeypatch.setattr(owner, name, bug)
    with pytest.raises((AssertionError, KeyError, IndexError, AttributeError)):
        run_state_machine_as_test(ViewMachine, settings=hunting(examples=300, steps=30))
