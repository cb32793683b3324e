"""The daemon: running what is due without its lane, purging, watching, and living through a store that goes away."""

import signal
import threading
import time
from collections import Counter
from contextlib import ExitStack, closing, contextmanager

import pytest
from support.mariadb import ENTER, MariadbRig, made_database
from support.programs import Program, here, seriatim, write_program
from support.rig import LATER, Rig, Witness, on_a_thread, wait_until

from seriatim import Backoff, ConfigurationError, Early, Policy
from seriatim.compensation import daemon, purging, verbs
from seriatim.compensation import engine as engine_module
from seriatim.compensation.dead_letters import DeadLetters
from seriatim.compensation.direct import Direct
from seriatim.compensation.engine import Chore, Engine
from seriatim.compensation.watching import Watch
from seriatim.core.broker import Batch
from seriatim.core.envelope import seal
from seriatim.core.errors import StoreUnavailable
from seriatim.core.message import Delivery
from seriatim.core.store import open_store
from seriatim.core.store.port import Scope
from seriatim.core.store.records import SqlRecords

ONE_BY_ONE = Policy(tries_at_once=1, max_attempts=1_000, backoff=Backoff(base_s=0.02, cap_s=0.05))


@pytest.fixture(params=["sqlite", "mariadb"])
def rig(request, tmp_path):
    if request.param == "sqlite":
        yield Rig(tmp_path)
        return
    with made_database() as made:
        yield MariadbRig(tmp_path, made)


def note(ctx, what=""):
    """A line in the shop's own ledger, on either database."""
    message = ctx.message
    ctx.tx.execute(ENTER, {"key": message.sharding_key, "biz_key": message.biz_key, "type": message.type, "note": what})


@contextmanager
def daemons(rig, app, count=1):
    """Engines that run what is due directly, each with a connection of its own, for as long as the block lasts."""
    witnesses = [Witness() for _ in range(count)]
    with closing(open_store(rig.store)) as store, ExitStack() as working:
        for witness in witnesses:
            engine = daemon.make_engine(store, app.settings, witness, app, direct=True)
            working.enter_context(on_a_thread(engine.run, engine.stop))
        yield witnesses


def flaky(app, policy=ONE_BY_ONE, partitions=4):
    """A topic whose messages with `bad` fail until `mended`; the calls of each, with their attempts."""
    orders = app.topic("orders", partitions=partitions, policy=policy)
    mended, calls = threading.Event(), Counter()

    @orders.on("step")
    def step(event, ctx):
        calls[ctx.message.biz_key, ctx.attempt] += 1
        if event.get("bad") and not mended.is_set():
            raise ConnectionError("away")
        note(ctx)

    return orders, mended, calls


# running without a lane


def test_five_daemons_together_run_two_hundred_due_keys_once_for_each_attempt(rig):
    app = rig.app()
    orders, mended, calls = flaky(app, policy=LATER)
    keys = [f"k{number}" for number in range(200)]
    rig.send_all(
        orders,
        [
            orders.message(key=key, type="step", biz_key=f"{key}/{number}", body={"bad": number == 0})
            for number in range(2)
            for key in keys
        ],
    )
    rig.run(app, until_idle_s=0.5)
    assert len(rig.parked()) == 400
    rig.write("UPDATE parked_key SET next_attempt_at = 1")
    with daemons(rig, app, 5) as witnesses:
        wait_until(lambda: sum(len(one.verdicts) for one in witnesses) == 200, "an attempt of each head")
        mended.set()
        rig.write("UPDATE parked_key SET next_attempt_at = 1")
        wait_until(lambda: len(rig.ledger()) == 400, "all of them")
    assert set(calls.values()) == {1}, "an attempt was run twice"
    for key in keys:
        assert rig.ledger(key) == [f"{key}/0", f"{key}/1"]
    assert sum(bool(witness.verdicts) for witness in witnesses) > 1, "one did everything"
    assert rig.rows("SELECT count(*) FROM parked_key") == [(0,)]


def test_a_daemon_beside_a_lane_runs_nothing_twice_and_keeps_the_order(rig):
    app = rig.app()
    orders, mended, _ = flaky(app, partitions=2)
    with rig.working(app) as lane, daemons(rig, app, 2):
        for number in range(120):
            rig.send(orders, f"k{number % 12}", bad=number < 12)
        wait_until(lambda: lane.arrivals() == 120, "all to arrive")
        mended.set()
        wait_until(lambda: len(rig.ledger()) == 120, "all of them")
    assert len(set(rig.ledger())) == 120
    for key in range(12):
        numbers = [int(biz_key.split("/")[1]) for biz_key in rig.ledger(f"k{key}")]
        assert numbers == sorted(numbers)


def test_early_messages_are_tried_by_a_daemon_too(rig):
    app = rig.app()
    orders = app.topic("orders", partitions=1, policy=ONE_BY_ONE)
    here_now = threading.Event()

    @orders.on("step")
    def step(event, ctx):
        if not here_now.is_set():
            raise Early("not yet")
        note(ctx)

    early = rig.send(orders, "a")
    rig.run(app)
    here_now.set()
    with daemons(rig, app):
        wait_until(lambda: rig.ledger() == [early], "the early one")


def test_what_isnt_due_held_or_paused_is_left_alone(rig):
    app = rig.app()
    orders, mended, _ = flaky(app, policy=LATER, partitions=2)
    rig.send(orders, "a", bad=1)
    rig.send(orders, "b", bad=1)
    rig.run(app)
    mended.set()
    with closing(open_store(rig.store)) as store, closing(store.session()) as session:
        runner = Direct(session, "shop", [orders], Witness())
        assert not runner.run(), "nothing is due"
        rig.write("UPDATE parked_key SET next_attempt_at = 1")
        rig.write("UPDATE partition_owner SET paused = 'somebody looks'")
        assert not runner.run(), "a person looks at it"
        rig.write("UPDATE partition_owner SET paused = NULL")
        assert runner.run()
    assert len(rig.ledger()) == 2


def test_a_visit_leaves_the_lease_of_a_dead_owner_alone(rig):
    """Or a slow handler of the daemon's would keep the partition from its next owner."""
    app = rig.app()
    orders, mended, _ = flaky(app, policy=LATER, partitions=1)
    rig.send(orders, "a", bad=1)
    rig.run(app)
    mended.set()
    rig.write("UPDATE parked_key SET next_attempt_at = 1")
    rig.write("UPDATE partition_owner SET owner = 'dead', epoch = epoch + 1, lease_until = 5")
    with closing(open_store(rig.store)) as store, closing(store.session()) as session:
        assert Direct(session, "shop", [orders], Witness()).run()
    assert rig.rows("SELECT owner, lease_until FROM partition_owner") == [("dead", 5)]
    assert len(rig.ledger()) == 1


KILLER = """
orders = app.topic("orders", partitions=1, policy=Policy(tries_at_once=1, max_crashes=2, backoff=Backoff(3600, 3600)))

@orders.on("step")
def step(event, ctx):
    mark("called", ctx.message.biz_key)
    if event.get("first") and once("failed"):
        raise ConnectionError("away")
    if event.get("first"):
        os.kill(os.getpid(), signal.SIGKILL)
    enter(ctx)
"""


def test_a_head_that_kills_its_process_is_given_up_and_the_daemon_lives(tmp_path):
    rig = Rig(tmp_path)
    write_program(tmp_path, KILLER)
    app = rig.app()
    orders = app.topic("orders", partitions=1)
    rig.send(orders, "a", first=1)
    assert seriatim(tmp_path, "run", "shop:app", "--until-idle", "0.01").code == 0
    codes = []
    rig.write("UPDATE parked_key SET next_attempt_at = 1")
    for _ in range(5):
        with Program(tmp_path, "compensate", "shop:app", "--direct") as program:
            wait_until(
                lambda p=program: not p.running or "ended its process" in str(rig.parked()), "its end, or the head's"
            )
            if program.running:
                program.signal(signal.SIGTERM)
            codes.append(program.wait().code)
        if codes[-1] == 0:
            break
    assert codes[-1] == 0, codes
    assert 1 <= codes.count(-signal.SIGKILL) <= 3
    assert "ended its process" in rig.parked()[0][3]


# purging


def aged(rig, app, orders, days=60):
    """Everything in the store is so many days old."""
    for table, column in [
        ("idempotent_record", "settled_at"),
        ("parked_message", "parked_at"),
        ("attempt_log", "at"),
    ]:
        rig.write(f"UPDATE {table} SET {column} = {column} - {days * 86_400_000_000}")


def purge(rig, retention_s=30 * 86_400.0):
    with closing(open_store(rig.store)) as store, closing(store.session()) as session:
        steps = 0
        while purging.Purge(session, retention_s).step():
            steps += 1
        return steps


def test_old_records_go_in_slices_and_young_ones_and_those_of_parked_keys_stay(rig):
    app = rig.app()
    orders, _, _ = flaky(app, policy=LATER)
    rig.send_many(orders, [f"old{number}" for number in range(450)])
    kept = rig.send(orders, "stuck")
    rig.send(orders, "stuck", bad=1)
    rig.run(app)
    aged(rig, app, orders)
    young = rig.send_many(orders, ["young"] * 3)
    rig.run(app)
    assert purge(rig) >= 3
    left = {biz_key for (biz_key,) in rig.rows("SELECT biz_key FROM idempotent_record WHERE status = 2")}
    assert left == {kept, *young}
    assert len(rig.parked()) == 1


def test_evidence_goes_with_its_counts_and_what_waits_never_does(rig):
    app = rig.app()
    orders, _, _ = flaky(app, policy=LATER)
    bad = rig.send(orders, "a", bad=1)
    behind = rig.send(orders, "b", bad=1)
    rig.run(app)
    [(parked_id,)] = rig.rows("SELECT id FROM parked_message WHERE biz_key = ?", bad)
    with closing(open_store(rig.store)) as store:
        verbs.skip(store, Scope("shop", "orders"), parked_id, "me")
    aged(rig, app, orders)
    purge(rig)
    assert [row[0] for row in rig.parked()] == [behind]
    assert rig.rows("SELECT sum(parked_rows) FROM partition_owner") == [(1,)]
    assert rig.rows("SELECT count(*) FROM attempt_log") == [(0,)]
    assert rig.record(bad) is None


def test_a_record_that_was_reopened_meanwhile_stays(rig, monkeypatch):
    app = rig.app()
    orders, _, _ = flaky(app)
    done = rig.send(orders, "a")
    rig.run(app)
    aged(rig, app, orders)
    with closing(open_store(rig.store)) as store, closing(store.session()) as session:
        old = purging._OLD_RECORDS  # noqa: SLF001 - between this read …
        found = session.run(old, {"before": session.now()}).all()
        assert [row.biz_key for row in found] == [done]
        rig.write("UPDATE idempotent_record SET settled_at = NULL")
        run = session.run
        monkeypatch.setattr(session, "run", lambda query, *a: _All(found) if query is old else run(query, *a))
        purging.Purge(session, 1.0)._remove_records(session.now())  # noqa: SLF001 - … and this delete
    assert rig.record(done) is not None


class _All(list):
    def all(self):
        return self


def test_a_retention_shorter_than_a_copy_may_take_is_refused_with_the_arithmetic(tmp_path):
    rig = Rig(tmp_path)
    told = here(rig.folder, "compensate", "--retention", "3600")
    assert told.code == 2
    assert "604,800 s (how late" in told.err
    assert "max_attempts" in told.err
    assert "= 608," in told.err


def test_the_horizon_adds_up():
    policy = Policy(max_attempts=4, backoff=Backoff(base_s=10, cap_s=30), early_deadline_s=5)
    needed = purging.horizon(100, [policy, Policy(max_attempts=1, early_deadline_s=1)])
    assert (needed.retries_s, needed.early_s, needed.total_s) == (10 + 20 + 30, 5, 165)
    purging.check_retention(165, needed)
    with pytest.raises(ConfigurationError, match="= 165 s"):
        purging.check_retention(164, needed)
    endless = Policy(max_attempts=10**6, backoff=Backoff(base_s=1, cap_s=60))
    assert purging.horizon(0, [endless]).retries_s == pytest.approx(10**6 * 60, rel=0.001)


# watching, and staying alive


def test_a_partition_that_nobody_consumes_is_told_of_with_the_remedy(rig):
    app = rig.app()
    orders, _, _ = flaky(app, policy=LATER, partitions=1)
    rig.send(orders, "a", bad=1)
    rig.run(app)
    witness = Witness()
    with closing(open_store(rig.store)) as store:
        watch = Watch(store, witness)
        watch.look()
        assert witness.events == [], "it isn't due yet"
        rig.write("UPDATE parked_key SET next_attempt_at = next_attempt_at - 7200000000")
        watch.look()
    [told] = witness.seen("heads overdue")
    assert told["partition"] == "0"
    assert 3500 < told["overdue_s"] < 3700
    assert "start `seriatim run`" in told["why"]


def test_a_chore_whose_store_is_away_is_tried_again_and_the_others_go_on():
    witness, done, away = Witness(), Counter(), iter(range(3))

    def first():
        done["first"] += 1
        if next(away, None) is not None:
            raise StoreUnavailable("away")
        return False

    def second():
        done["second"] += 1
        if done["second"] >= 5 and done["first"] >= 4:
            engine.stop()
        return False

    closed = []
    engine = Engine([Chore("first", 0.01, first, lambda: closed.append(1)), Chore("second", 0.01, second)], witness)
    engine.run()
    assert [one["chore"] for one in witness.seen("chore put off")] == ["first"] * 3
    assert closed == [1]


# field case FC-D5
def test_a_daemon_lives_through_1100_failed_connects(monkeypatch):
    monkeypatch.setattr(engine_module, "_TROUBLE", Backoff(base_s=0.0001, cap_s=0.0002))
    tries = Counter()

    def step():
        tries["connects"] += 1
        if tries["connects"] <= 1100:
            raise StoreUnavailable("away")
        engine.stop()
        return False

    witness = Witness()
    engine = Engine([Chore("all of it", 0.01, step)], witness)
    engine.run()
    assert len(witness.seen("chore put off")) == 1100


def test_sigterm_finishes_the_head_in_hand(tmp_path):
    rig = Rig(tmp_path)
    write_program(
        tmp_path,
        """
orders = app.topic("orders", partitions=1, policy=Policy(tries_at_once=1, backoff=Backoff(3600, 3600)))

@orders.on("step")
def step(event, ctx):
    if once("failed"):
        raise ConnectionError("away")
    mark("in hand")
    time.sleep(1)
    enter(ctx)
""",
    )
    orders = rig.app().topic("orders", partitions=1)
    sent = rig.send(orders, "a")
    seriatim(tmp_path, "run", "shop:app", "--until-idle", "0.01")
    rig.write("UPDATE parked_key SET next_attempt_at = 1")
    with Program(tmp_path, "compensate", "shop:app", "--direct") as program:
        wait_until((tmp_path / "in hand").exists, "the head in hand")
        program.signal(signal.SIGTERM)
        ended = program.wait()
    assert ended.code == 0, ended
    assert rig.ledger() == [sent]


def test_direct_without_an_app_is_refused(tmp_path):
    told = here(Rig(tmp_path).folder, "compensate", "--direct")
    assert (told.code, "name the app" in told.err) == (2, True)


# a broker's own dead-letter queue


class Letters:
    """A dead-letter queue with these in it; settled ones don't come again."""

    def __init__(self, *deliveries):
        self.left, self.closed = list(deliveries), False

    def start(self, partition, position):
        assert (partition, position) == ("dlq", None)

    def poll(self, timeout_s, limit):
        return Batch("dlq", tuple(self.left[:limit])) if self.left else None

    def settle(self, batch, upto):
        del self.left[:upto]

    def close(self):
        self.closed = True


def letter(message):
    return Delivery("orders", "dlq", seal(message), message.body, time.time())


def drained(rig, orders, *messages):
    queue = Letters(*(letter(one) for one in messages))
    witness = Witness()
    with closing(open_store(rig.store)) as store:
        letters = DeadLetters(store.session(), Scope("shop", "orders"), orders, "dlq", queue, witness)
        while letters.step():
            pass
        letters.close()
    assert queue.closed
    assert not queue.left
    return witness


@pytest.mark.parametrize("on_dead", ["block_key", "skip"])
def test_a_dead_letter_is_parked_as_dead_and_its_key_follows_on_dead(rig, on_dead):
    app = rig.app()
    orders, _, _ = flaky(app, policy=Policy(on_dead=on_dead, backoff=LATER.backoff))
    rig.send(orders, "a", biz_key="a/0")
    rig.run(app)
    witness = drained(rig, orders, orders.message(key="a", type="step", biz_key="a/1", body={}))
    [told] = witness.seen("dead letters parked")
    assert (told["source"], told["messages"]) == ("dlq", 1)
    [row] = rig.parked()
    assert row[:3] == ("a/1", "queue" if on_dead == "block_key" else "closed", "dead")
    assert "order broken" in row[3]
    rig.send(orders, "a", biz_key="a/2")
    rig.run(app)
    assert rig.ledger() == (["a/0"] if on_dead == "block_key" else ["a/0", "a/2"])
    [(parked_id,)] = rig.rows("SELECT id FROM parked_message WHERE biz_key = 'a/1'")
    with closing(open_store(rig.store)) as store:
        assert verbs.retry(store, Scope("shop", "orders"), parked_id, "me").changed
    rig.run(app)
    assert rig.ledger() == (["a/0", "a/1", "a/2"] if on_dead == "block_key" else ["a/0", "a/2", "a/1"])


def test_a_dead_letter_of_a_blocked_key_stands_behind_what_waits_and_nothing_passes_it(rig):
    app = rig.app()
    orders, mended, _ = flaky(app, policy=LATER)
    rig.send(orders, "a", biz_key="a/0", bad=1)
    rig.run(app)
    drained(rig, orders, orders.message(key="a", type="step", biz_key="a/1", body={}))
    rig.send(orders, "a", biz_key="a/2")
    rig.run(app)
    assert [row[0] for row in rig.parked()] == ["a/0", "a/1", "a/2"]
    mended.set()
    rig.write("UPDATE parked_key SET next_attempt_at = 1")
    rig.run(app)
    assert rig.ledger() == ["a/0"]
    assert rig.rows("SELECT depth, next_attempt_at FROM parked_key") == [(2, None)]


def test_dead_letters_that_ran_wait_already_differ_or_have_no_key_are_told_apart(rig):
    app = rig.app()
    orders, _, _ = flaky(app, policy=LATER)
    done = orders.message(key="a", type="step", biz_key="a/0", body={})
    waits = orders.message(key="b", type="step", biz_key="b/0", body={"bad": 1})
    rig.send_all(orders, [done, waits])
    rig.run(app)
    other = orders.message(key="a", type="step", biz_key="a/0", body={"other": 1})
    drained(rig, orders, done, waits, other, other)
    assert [(row[0], row[2]) for row in rig.parked()] == [("b/0", "failed"), ("a/0", "conflict")]
    with closing(open_store(rig.store)) as store:
        queue = Letters(Delivery("orders", "dlq", {}, b"?", time.time()))
        letters = DeadLetters(store.session(), Scope("shop", "orders"), orders, "dlq", queue, Witness())
        assert letters.step()
        letters.close()
    assert rig.parked("malformed")[0][1] == "closed"


def test_a_dead_letter_that_couldn_t_be_parked_comes_again(rig, monkeypatch):
    app = rig.app()
    orders, _, _ = flaky(app)
    rig.send(orders, "b")
    rig.run(app)
    queue = Letters(letter(orders.message(key="a", type="step", biz_key="a/1", body={})))
    with closing(open_store(rig.store)) as store:
        letters = DeadLetters(store.session(), Scope("shop", "orders"), orders, "dlq", queue, Witness())
        with monkeypatch.context() as broken:
            broken.setattr(letters.session, "write", lambda *_: _raise(StoreUnavailable("away")))
            with pytest.raises(StoreUnavailable):
                letters.step()
        assert len(queue.left) == 1
        assert letters.step()
        letters.close()
    assert [row[0] for row in rig.parked()] == ["a/1"]


def _raise(error):
    raise error


# inside `seriatim run`


def test_run_purges_too_when_it_is_asked_to(tmp_path):
    rig = Rig(tmp_path)
    write_program(
        tmp_path,
        """
orders = app.topic("orders", partitions=1, policy=Policy(max_attempts=1, early_deadline_s=0.1))

@orders.on("step")
def step(event, ctx):
    enter(ctx)
""",
    )
    orders = rig.app().topic("orders", partitions=1)
    rig.send_many(orders, "abc")
    ended = seriatim(
        *(tmp_path, "run", "shop:app", "--compensate", "--until-idle", "2"),
        SERIATIM_RETENTION_S="0.5",
        SERIATIM_REDELIVERY_S="0.1",
    )
    assert ended.code == 0, ended
    assert len(rig.ledger()) == 3
    again = seriatim(
        *(tmp_path, "run", "shop:app", "--compensate", "--until-idle", "1"),
        SERIATIM_RETENTION_S="0.5",
        SERIATIM_REDELIVERY_S="0.1",
    )
    assert again.code == 0, again
    assert rig.rows("SELECT count(*) FROM idempotent_record") == [(0,)]


def test_run_refuses_a_retention_that_is_too_short(tmp_path):
    rig = Rig(tmp_path)
    write_program(tmp_path, 'app.topic("orders", partitions=1).on("step")(lambda event, ctx: None)')
    told = here(rig.folder, "run", "shop:app", "--compensate", SERIATIM_RETENTION_S="60")
    assert (told.code, "keep records for" in told.err) == (2, True), told


@pytest.mark.parametrize("bad", [True, False])
def test_a_visit_that_came_too_late_leaves_no_crash_mark(rig, monkeypatch, bad):
    """Nothing was run: or three daemons that were overtaken would have a message taken for a killer."""
    app = rig.app()
    orders, _, calls = flaky(app, policy=LATER, partitions=1)
    rig.send(orders, "a", biz_key="a/0", bad=1)
    rig.send(orders, "a", biz_key="a/1")
    rig.run(app)
    head = "a/0" if bad else "a/1"
    if not bad:  # its follower is the head, and has no record yet
        rig.write("DELETE FROM parked_message WHERE biz_key = 'a/0'")
        rig.write("UPDATE parked_key SET depth = 1")
    rig.write("UPDATE parked_key SET next_attempt_at = 1")
    before = rig.record(head)
    calls.clear()
    mark = SqlRecords.mark_crash

    def overtaken(self, scope, record, now):
        marked = mark(self, scope, record, now)
        monkeypatch.setattr(SqlRecords, "mark_crash", mark)
        overtake.append(record.biz_key)
        return marked

    overtake = []
    monkeypatch.setattr(SqlRecords, "mark_crash", overtaken)
    with closing(open_store(rig.store)) as store, closing(store.session()) as session:
        runner = Direct(session, "shop", [orders], Witness())
        transactor = runner._transactors[0]  # noqa: SLF001 - between its mark and its run
        execute = type(transactor).execute

        def late(self, parts, **options):
            rig.write("UPDATE partition_owner SET effect = effect + 1")
            return execute(self, parts, **options)

        monkeypatch.setattr(type(transactor), "execute", late)
        assert runner.run()
    assert overtake == [head]
    assert not calls
    assert rig.record(head) == before
    assert rig.rows("SELECT sum(crash_attempts) FROM idempotent_record WHERE biz_key = ?", head) in ([(0,)], [(None,)])
