"""Real lanes on the real SQLite store against the promises P1 to P8, whatever happens and whenever.

Two or three processes, each a session of its own with a lane, take and lose partitions, die between any two statements
and around their commits, meet a failing store, and are overtaken by operators. The ledger that the handlers write says
what had an effect. Invariants are read from the tables after every step; at the end, everything but the dead must
have come to an end.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test
from sqlalchemy import event, insert, select, text, update

from seriatim.compensation import verbs
from seriatim.core import execution as execution_module
from seriatim.core import transactor as transactor_module
from seriatim.core import view as view_module
from seriatim.core.decision import FREE, Action, KeyStanding, Outcome, Place, Reason, Status
from seriatim.core.errors import SeriatimError, StoreError, StoreUnavailable
from seriatim.core.handler import Early, Reject, Retry
from seriatim.core.store import SqlStore, open_store
from seriatim.core.store.leases import SqlLeases
from seriatim.core.store.parking import SqlParking, parked_message
from seriatim.core.store.port import MICROSECOND, Outlook, Scope, Writes
from seriatim.core.store.records import SqlRecords
from seriatim.core.store.schema import idempotent_record
from seriatim.core.store.schema import parked_message as parked_message_table
from seriatim.core.store.sql import SqlSession
from seriatim.core.topic import Topic
from seriatim.core.topic_lane import TopicLane
from seriatim.core.transactor import Transactor

from ..unit.promises import Effect, Picture, RecordRow, broken, unended
from ..unit.stream import HOMES, MESSAGES, TOPIC, Stream, bounds, focused, hunting, released, skipped
from .lanes import TTL, Daemon, Died, Faults, Log, Process

SCOPE = Scope("warehouse", TOPIC)
LEDGER = "CREATE TABLE ledger (n INTEGER PRIMARY KEY AUTOINCREMENT, biz_key, sharding_key, home, body, epoch)"
PROCESSES = st.sampled_from(["owner", "owner", "owner", 0, 1, 2])


def accidents(faults):
    """What may go wrong, and at which statement or commit."""
    at_a_statement = st.tuples(st.sampled_from(faults.statements), st.integers(0, 30))
    return at_a_statement | st.tuples(st.sampled_from(faults.commits), st.integers(0, 1))


def _hurry(connection, _):
    connection.execute("PRAGMA synchronous = OFF").close()  # no power fails here


def _template() -> Path:
    """A store that is made once, and copied for each story."""
    folder = Path(tempfile.mkdtemp(prefix="seriatim-template-"))
    store = open_store(f"sqlite:///{folder}/store.db", clock=lambda: 1)
    store.init()
    store.declare(SCOPE, ["0", "1"])
    store.close()
    with sqlite3.connect(folder / "store.db") as connection:
        connection.execute(LEDGER)
    connection.close()
    return folder


@pytest.fixture(scope="module", autouse=True)
def template():
    StoreMachine.template = _template()
    yield
    shutil.rmtree(StoreMachine.template)


class StoreMachine(Stream):
    """Processes, an operator and what happens to them."""

    template: Path
    faults = Faults

    def __init__(self):
        super().__init__()
        self.held: dict[str, int] = {}
        self.processes: list[Process] = []
        self.stamps: dict[str, int] = {}

    @initialize(positions=st.booleans(), size=st.sampled_from([1, 3, 9]))
    def start(self, positions, size):
        self.log = Log(self.delivery, lambda partition: len(self.sent[partition]), positions=positions)
        self.size = size

    def set_up(self):
        self.make_database()
        self.topic = Topic(TOPIC, ("0", "1"), policy=self.policy)
        self.topic.on("*")(self._handle)
        self.operator = self.open_store()

    # -- the database

    def make_database(self):
        """A store with the topic declared and the ledger, both empty; `reader` reads it as it is."""
        self.folder = Path(tempfile.mkdtemp(prefix="seriatim-story-"))
        shutil.copy(self.template / "store.db", self.folder / "store.db")
        self.reader = sqlite3.connect(self.folder / "store.db", isolation_level=None)

    def open_store(self) -> SqlStore:
        """As a process of its own opens it; its time is `now`."""
        store = open_store(f"sqlite:///{self.folder}/store.db", clock=lambda: self.now, lock_timeout_s=5.0)
        event.listen(store._engine, "connect", _hurry)  # noqa: SLF001 - set up where no public way leads
        return store

    def drop_database(self):
        self.reader.close()
        shutil.rmtree(self.folder)

    # -- handlers

    def _handle(self, _event, context):
        """The handler of every message: it writes, and then does what its mood is."""
        message = context.message
        needs = message.headers.get("needs")
        if needs is not None:
            there = text("SELECT 1 FROM ledger WHERE biz_key = :needs")
            if context.tx.execute(there, {"needs": needs}).first() is None:
                raise Early(waiting_for=needs)
        values = {
            "biz_key": message.biz_key,
            "sharding_key": message.sharding_key,
            "home": context.partition,
            "body": message.body,
            "epoch": self.acting.epoch(context.partition),
        }
        names = ", ".join(values)
        context.tx.execute(text(f"INSERT INTO ledger ({names}) VALUES (:{', :'.join(values)})"), values)
        mood = self.moods[message.biz_key]
        if mood == "retry":
            raise Retry(after=2.0)
        if mood == "reject":
            raise Reject("not this one")
        if mood == "fail":
            raise ValueError("it fails")
        return {"did": message.body.hex()}

    # -- processes

    def _process(self, number: int | str) -> Process:
        """The process of that number, or the one that owns something."""
        if number == "owner":
            owners = [index for index, process in enumerate(self.processes) if process.lane.holdings]
            number = owners[0] if owners else 0
        while len(self.processes) <= number:
            self.processes.append(self._start_process())
        self.acting = self.processes[number]
        return self.acting

    def _start_process(self) -> Process:
        store = self.open_store()
        return Process(store, self.faults(store), SCOPE, self.topic, self.log, size=self.size)

    def _start_daemon(self) -> Daemon:
        store = self.open_store()
        return Daemon(store, self.faults(store), SCOPE, self.topic)

    @rule(number=PROCESSES, partition=st.sampled_from("01"))
    def give(self, number, partition):
        self._process(number).lane.give(partition)

    @rule(number=PROCESSES, messages=MESSAGES)
    def freeze_until_its_leases_are_over(self, number, messages):
        """It is stopped between two transactions; others take its partitions, and then it goes on."""
        self.send_all(messages)
        process = self._process(number)
        process.claim_what_is_free()
        self.now += TTL + 1
        other = self._process((self.processes.index(process) + 1) % 3)
        other.claim_what_is_free()
        other.work(read_stamps=True)
        self.acting = process
        process.work(read_stamps=False)

    @rule(number=PROCESSES, read_stamps=st.booleans(), rounds=st.integers(1, 3))
    def work(self, number, read_stamps, rounds):
        process = self._process(number)
        process.claim_what_is_free()
        process.renew()
        self._work(process, rounds=rounds, read_stamps=read_stamps)

    def _work(self, process, *, rounds, read_stamps=True):
        for _ in range(rounds):
            process.work(read_stamps=read_stamps)

    @rule(number=PROCESSES, read_stamps=st.booleans())
    def work_without_looking(self, number, read_stamps):
        """A lane whose keeper is slow: nothing is claimed, nothing renewed."""
        self._process(number).work(read_stamps=read_stamps)

    @rule(
        number=PROCESSES,
        accident=accidents(Faults),
        messages=MESSAGES,
    )
    def work_until_an_accident(self, number, accident, messages):
        """It dies, or its store fails it, at any statement; or around a commit, never learning which way it went."""
        self.send_all(messages)
        self._work_with(number, *accident)

    @rule(
        number=PROCESSES,
        key=st.sampled_from("aab"),
        after=st.integers(0, 10),
        verb=st.sampled_from(["skip", "hold"]),
        messages=MESSAGES,
    )
    def work_while_an_operator_acts(self, number, key, after, verb, messages):
        """The verb comes between two of its transactions, or between a read and the transaction that builds on it."""
        self.send_all(messages)
        process = self._process(number)
        process.claim_what_is_free()
        process.faults.interrupt(lambda: self._try_verb(verb, key), after)
        process.work(read_stamps=False)
        process.faults.over()

    def _try_verb(self, verb, key):
        if verb == "hold":
            self._hold(key)
        elif key in self._parked_keys("depth > 0"):
            self._skip(key)

    def _work_with(self, number, what, after):
        process = self._process(number)
        process.claim_what_is_free()
        process.faults.arm(what, after)
        try:
            process.work(read_stamps=True)
        except (Died, StoreError) as error:
            if process.faults.dead:
                process.bury()
                self.processes[self.processes.index(process)] = self._start_process()
            elif not isinstance(error, StoreUnavailable):  # at that the lane pauses, and works again later
                raise
        process.faults.over()

    # -- a daemon

    @rule(
        after=st.integers(0, 40),
        what=st.sampled_from(["", "", *Faults.statements, *Faults.commits]),
        hours=st.sampled_from([0, 1]),
        beside=st.booleans(),
    )
    def a_daemon_runs_what_is_due(self, after, what, hours, beside):
        """It may die at any statement, or lose its store; a lane that knows nothing of it goes on after it."""
        self.now += hours * 3600 * MICROSECOND
        daemon = self._start_daemon()
        self.acting = daemon
        if what:
            daemon.faults.arm(what, after % 2 if what in self.faults.commits else after)
        try:
            daemon.runner.run()
        except (Died, StoreError) as error:
            if not daemon.faults.dead and not isinstance(error, StoreUnavailable):
                raise
        daemon.bury()
        if beside and self.processes:
            self._process("owner").work(read_stamps=False)

    @rule(number=PROCESSES, after=st.integers(0, 12), hours=st.sampled_from([0, 1]), lane_first=st.booleans())
    def a_daemon_and_a_lane_meet(self, number, after, hours, lane_first):
        """One acts between two transactions of the other's, or between its read and the transaction built on it."""
        self.now += hours * 3600 * MICROSECOND
        process = self._process(number)
        process.claim_what_is_free()
        daemon = self._start_daemon()
        acts = {process: lambda: process.work(read_stamps=False), daemon: daemon.runner.run}
        first, second = (process, daemon) if lane_first else (daemon, process)

        def meet():
            self.acting = second
            acts[second]()
            self.acting = first

        first.faults.interrupt(meet, after)
        self.acting = first
        acts[first]()
        first.faults.over()
        daemon.bury()

    # -- an operator

    @rule(data=st.data(), at_once=st.booleans())
    def retry_a_head(self, data, at_once):
        """A dead head is reopened, or one that waits is tried now."""
        keys = self._parked_keys("depth > 0 AND NOT held")
        if not keys:
            return
        query = "SELECT min(id) FROM parked_message WHERE sharding_key = ? AND place = 'queue'"
        (head,) = self.reader.execute(query, [data.draw(st.sampled_from(keys))]).fetchone()
        assert verbs.retry(self.operator, SCOPE, head, "an operator").changed
        if at_once:
            self._process("owner").work(read_stamps=False)

    def _parked_keys(self, condition: str) -> list[str]:
        query = f"SELECT DISTINCT sharding_key FROM parked_key WHERE {condition} ORDER BY 1"
        return [key for (key,) in self.reader.execute(query)]

    @rule(data=st.data(), again=st.booleans(), at_once=st.booleans())
    def skip_a_head(self, data, again, at_once):
        """A head is skipped, while a duplicate of it may be on its way."""
        keys = self._parked_keys("depth > 0")
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        biz_key = self._skip(key)
        if again:
            self._send(next(one for one in self.sent[HOMES[key]] if one.biz_key == biz_key))
        if at_once:
            self._process("owner").work(read_stamps=False)

    def _skip(self, key):
        """As a verb does: one transaction that holds the partition's row, and never touches an applied record."""
        session = self.operator.session()
        try:
            with session.transaction():
                session.leases.hold_row(SCOPE, HOMES[key])
                standing = session.parking.keys(SCOPE, [key])[key]
                (head,) = session.parking.rows(SCOPE, key, Place.QUEUE, 1)
                self._reject(session, head)
                moved = replace(head, place=Place.CLOSED, reason=Reason.DEAD)
                keys = {key: (HOMES[key], skipped(standing, self.now))}
                session.write(SCOPE, Writes(moves=[moved], keys=keys), self.now)
                return head.biz_key
        finally:
            session.close()

    def _reject(self, session, head):
        record = session.records.look_up(SCOPE, [head.biz_key]).get(head.biz_key)
        table = idempotent_record
        if record is None:
            session.run(insert(table).values(
                consumer_group=SCOPE.group, topic=SCOPE.topic, biz_key=head.biz_key, message_type=head.type,
                sharding_key=head.sharding_key, partition_id=head.partition, status=int(Status.FAILED),
                outcome="rejected", first_outcome="rejected", request_digest=head.digest, produced_at=0,
                received_at=0, create_time=self.now, update_time=self.now, settled_at=self.now,
            ))  # fmt: skip
        elif record.status is not Status.SUCCESS:
            one = (table.c.consumer_group == SCOPE.group) & (table.c.biz_key == head.biz_key)
            session.run(update(table).where(one).values(status=int(Status.FAILED), outcome="rejected"))

    @rule(key=st.sampled_from("ab"), at_once=st.booleans())
    def hold(self, key, at_once):
        """A key is held, and more comes for it."""
        self._hold(key)
        if at_once:
            self._process("owner").work(read_stamps=False)

    def _hold(self, key):
        if self.held:
            return
        self._send(self._new(key, "ok"))
        self._stand(key, lambda standing, _dead: replace(standing, held=True))
        self.held[key] = self.reader.execute("SELECT count(*) FROM ledger WHERE sharding_key = ?", [key]).fetchone()[0]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        self._release(data.draw(st.sampled_from(sorted(self.held))))

    def _release(self, key):
        self._stand(key, lambda standing, dead: released(standing, self.now, dead=dead))
        del self.held[key]

    def _stand(self, key, change):
        session = self.operator.session()
        try:
            with session.transaction():
                session.leases.hold_row(SCOPE, HOMES[key])
                standing = session.parking.keys(SCOPE, [key]).get(key, FREE)
                heads = session.parking.rows(SCOPE, key, Place.QUEUE, 1)
                dead = bool(heads) and heads[0].reason is Reason.DEAD
                session.write(SCOPE, Writes(keys={key: (HOMES[key], change(standing, dead))}), self.now)
        finally:
            session.close()

    # -- what must hold

    @invariant()
    def promises_hold(self):
        if not hasattr(self, "operator") or not hasattr(self, "log"):
            return
        assert broken(self._picture()) == []
        for partition, effect in self.reader.execute("SELECT partition_id, effect FROM partition_owner"):
            assert effect >= self.stamps.get(partition, 0), "a stamp went backwards"
            self.stamps[partition] = effect
        numbers = "SELECT partition_id, effect FROM idempotent_record WHERE effect IS NOT NULL"
        used = self.reader.execute(numbers).fetchall()
        assert len(used) == len(set(used)), "an effect number was given twice"
        assert all(effect <= self.stamps[partition] for partition, effect in used), "an effect beyond its stamp"

    def _picture(self) -> Picture:
        handled = dict(self.log.acknowledged)
        if self.log.positions:
            positions = self.reader.execute("SELECT partition_id, position FROM partition_owner")
            handled = {partition: 0 if offset is None else int(offset) + 1 for partition, offset in positions}
        with self.operator.read() as connection:
            rows = [parked_message(row) for row in connection.execute(select(parked_message_table).order_by("id"))]
        ledger = self.reader.execute("SELECT biz_key, sharding_key, home, body, epoch FROM ledger ORDER BY n")
        return Picture(
            policy=self.policy,
            sent=self.sent,
            handled=handled,
            records=self._records(),
            rows=rows,
            keys=self._standings(),
            ledger=[Effect(*row) for row in ledger],
            held=self.held,
        )

    def _records(self) -> dict[str, RecordRow]:
        columns = "biz_key, status, outcome, first_outcome, response_body, effect, crash_attempts"
        return {
            biz_key: RecordRow(Status(status), outcome and Outcome(outcome), first, response, effect, crashes)
            for biz_key, status, outcome, first, response, effect, crashes in self.reader.execute(
                f"SELECT {columns} FROM idempotent_record"
            )
        }

    def _standings(self) -> dict[str, KeyStanding]:
        columns = "sharding_key, depth, aside, attempts, next_attempt_at, aside_attempt_at, held, stops_partition"
        return {
            key: KeyStanding(depth, aside, attempts, due, aside_due, bool(held), bool(stops))
            for key, depth, aside, attempts, due, aside_due, held, stops in self.reader.execute(
                f"SELECT {columns} FROM parked_key"
            )
        }

    # -- the end

    def teardown(self):
        try:
            if hasattr(self, "operator") and hasattr(self, "log"):
                self._come_to_an_end()
        finally:
            for process in self.processes:
                process.bury()
            if hasattr(self, "operator"):
                self.operator.close()
                self.drop_database()

    def _come_to_an_end(self):
        """Once causes are mended and holds released, one process finishes everything but what the dead block."""
        self.mend_causes()
        while self.promised:
            self._send(self.promised.pop(0))
        for key in sorted(self.held):
            self._release(key)
        self.now += 2 * TTL
        last = self._start_process()
        self.processes.append(last)
        self.acting = last
        assert last.claim_what_is_free() == 2, "a lease that is over could not be claimed"
        for _ in range(30):
            self.now += 30 * MICROSECOND
            last.renew()
            while last.work(read_stamps=True):
                pass
            if not unended(self._picture()):
                break
        self.promises_hold()
        assert unended(self._picture()) == []


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = bounds(examples=40, steps=30)


# -- the machine is worth something: it finds what is planted


def fence_open(self, scope, steps, ttl):
    """Transactions don't begin with a fence that holds: whoever comes may write."""
    del ttl
    for step in steps:
        self.hold_row(scope, step.partition, step.advance)
        if step.position is not None:
            self.set_position(scope, step.partition, step.position)
    return {}


def fence_without_stamp(self, scope, steps, ttl):
    """The fence compares owner and epoch, and not the stamp: what an operator changed goes unseen."""
    seen = {row.partition: row.effect for row in self.owners(scope)}
    return ORIGINAL_FENCE(self, scope, [replace(step, effect=seen[step.partition]) for step in steps], ttl)


def record_after(self, scope, writes, now):
    """The record is finished in a transaction of its own, after the commit of the effect."""
    finishes = dict(writes.finishes)
    writes.finishes.clear()
    ORIGINAL_WRITE(self, scope, writes, now)
    LATER.setdefault(id(self), []).append((scope, list(finishes.values()), now))


@contextmanager
def commit_then_records(self):
    """With `record_after`: what was put off is written."""
    with ORIGINAL_TRANSACTION(self):
        yield
    for scope, finishes, now in LATER.pop(id(self), []):
        with ORIGINAL_TRANSACTION(self):
            self.records.finish(scope, finishes, now)


def failed_effects_stay(self, name):
    """A failed message's writes aren't undone."""
    del self, name


def commit_believed(self, parts, error):
    """An unknown COMMIT is taken for one that happened."""
    del error
    for part in parts:
        batch = self._in_hand.pop(part.holding.partition, None)
        if batch is not None:
            self.consumer.settle(batch, len(batch.deliveries))
        part.holding.reread(
            next(row for row in self.session.leases.owners(self.scope) if row.partition == part.holding.partition),
            self.session.parking.outlook(self.scope, part.holding.partition),
        )


def settled_first(self, parts, **options):
    """The batch is acknowledged, and its position committed, before its effects."""
    with self.session.transaction():
        for part in parts:
            if part.positioned:
                self.hold(part.holding)
                self.session.leases.set_position(self.scope, part.holding.partition, part.tasks[-1].delivery.position)
    for part in parts:
        if part.positioned:
            part.holding.committed(1, None)
    return ORIGINAL_EXECUTE(self, parts, **options)


def rows_stay(self, ids):
    """What had its turn isn't taken out of parking."""
    del self, ids


def claims_stay(self, scope, biz_keys):
    """What didn't get its turn keeps its claim."""
    del self, scope, biz_keys


def key_before_record(arrival, record, waiting, key):
    """A blocked key is judged before the record (N7)."""
    return Action.BEHIND if key.blocked else ORIGINAL_JUDGE(arrival, record, waiting, key)


def waiting_unseen(arrival, record, _waiting, key):
    """A waiting row of the same biz_key is overlooked."""
    return ORIGINAL_JUDGE(arrival, record, None, key)


def head_keeps_due(self, _now):
    """The next head isn't made due."""
    return replace(self, depth=self.depth - 1, attempts=0, due_at=None, stops_partition=False)


def visit_unchecked(session, scope, holding, advance):
    """A visitor holds the row, and doesn't ask whether what it read is still true."""
    session.leases.hold_row(scope, holding.partition, advance)


def outlook_forgotten(self, _scope, _partition):
    """The lane remembers that nothing is parked."""
    del self
    return Outlook()


ORIGINAL_FENCE = SqlLeases.fence
ORIGINAL_WRITE = SqlSession.write
ORIGINAL_TRANSACTION = SqlSession.transaction
ORIGINAL_EXECUTE = Transactor.execute
ORIGINAL_JUDGE = view_module.judge
LATER: dict = {}

PLANTED = {
    "fence_open": ([(SqlLeases, "fence", fence_open)], "send work freeze_until_its_leases_are_over"),
    "fence_without_stamp": ([(SqlLeases, "fence", fence_without_stamp)], "send work hold release"),
    "record_after": (
        [(SqlSession, "write", record_after), (SqlSession, "transaction", commit_then_records)],
        "send work work_until_an_accident",
    ),
    "failed_effects_stay": ([(SqlSession, "rollback_to", failed_effects_stay)], "send work"),
    "commit_believed": ([(TopicLane, "_recover", commit_believed)], "send work work_until_an_accident"),
    "settled_first": ([(Transactor, "execute", settled_first)], "send work work_until_an_accident"),
    "rows_stay": ([(SqlParking, "remove", rows_stay)], "send work causes_are_mended"),
    "claims_stay": ([(SqlRecords, "unclaim", claims_stay)], "send work"),
    "key_before_record": ([(view_module, "judge", key_before_record)], "send work send_again"),
    "waiting_unseen": ([(view_module, "judge", waiting_unseen)], "send work send_again"),
    "head_keeps_due": ([(KeyStanding, "head_left", head_keeps_due)], "send_in_a_bad_hour work skip_a_head"),
    "visit_unchecked": (
        [(execution_module, "visit", visit_unchecked), (transactor_module, "visit", visit_unchecked)],
        "send_in_a_bad_hour work causes_are_mended a_daemon_and_a_lane_meet",
    ),
    "outlook_forgotten": ([(SqlParking, "outlook", outlook_forgotten)], "send work"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("patches", "rules"), PLANTED.values(), ids=PLANTED)
def test_a_planted_bug_is_found(monkeypatch, patches, rules):
    for owner, name, bug in patches:
        monkeypatch.setattr(owner, name, bug)
    machine = focused(StoreMachine, *rules.split())
    with pytest.raises((AssertionError, SeriatimError, LookupError)):
        run_state_machine_as_test(machine, settings=hunting(examples=300, steps=25))
