"""`lock=` and the front filter in lanes: R11, R12, P9; N13."""

import threading
import time
from contextlib import ExitStack, closing

import pytest
import redis
from support.mariadb import ENTER, MariadbRig, made_database
from support.rig import LATER, QUICK, wait_until
from support.services import service_url

from seriatim import ConfigurationError
from seriatim.core.errors import StoreUnavailable
from seriatim.core.locking import open_locks
from seriatim.core.store import open_store
from seriatim.core.store.records import SqlRecords
from seriatim.core.store.sql import SqlSession


@pytest.fixture
def rig(tmp_path):
    with made_database() as made:
        yield MariadbRig(tmp_path, made)


def note(ctx):
    message = ctx.message
    ctx.tx.execute(ENTER, {"key": message.sharding_key, "biz_key": message.biz_key, "type": message.type, "note": ""})


def clear():
    with closing(redis.Redis.from_url(service_url("redis"))) as client:
        client.flushall()


@pytest.fixture(params=["database", "redis"])
def lock_url(request):
    if request.param == "database":
        return "database"
    clear()
    return service_url("redis")


# locks


class Overlaps:
    """How many handlers work on an account at the same moment, at most."""

    def __init__(self):
        self.now, self.most, self.calls = {}, 0, 0
        self.mutex = threading.Lock()

    def __call__(self, account):
        with self.mutex:
            self.now[account] = self.now.get(account, 0) + 1
            self.most = max(self.most, self.now[account])
            self.calls += 1
        time.sleep(0.01)
        with self.mutex:
            self.now[account] -= 1


@pytest.mark.parametrize("locked", [True, False])
def test_no_two_handlers_work_on_one_account_whatever_their_topic_and_group(rig, lock_url, locked):
    """Without lock= they do: so the test can fail."""
    overlaps = Overlaps()
    apps = []
    for group in ("shop", "bank"):
        app = rig.app(group, lock=lock_url, lock_wait_s=5.0)
        orders = app.topic(f"{group}-orders", partitions=2, policy=QUICK)

        @orders.on("step", lock=(lambda event: event["account"]) if locked else None)
        def step(event, ctx):
            note(ctx)
            overlaps(event["account"])

        apps.append((app, orders))
    with ExitStack() as working:
        for app, _ in apps:
            working.enter_context(rig.working(app))
        for number in range(20):
            for app, orders in apps:
                rig.send(orders, f"{app.group}{number}", account=f"a{number % 2}")
        wait_until(lambda: len(rig.ledger()) == 40, "all of them")
    assert len(set(rig.ledger())) == 40
    assert (overlaps.most == 1) is locked, overlaps.most


def test_a_lock_that_was_lost_forbids_the_commit_and_the_message_runs_again(rig, lock_url):
    app = rig.app(lock=lock_url)
    orders = app.topic("orders", partitions=1, policy=LATER)
    calls = []

    @orders.on("step", lock=lambda event: "account")
    def step(event, ctx):
        note(ctx)
        calls.append(ctx.message.biz_key)
        if len(calls) == 1:
            if lock_url == "database":
                rig.write("UPDATE named_lock SET token = 'somebody else'")
            else:
                clear()
            time.sleep(0.05)

    sent = rig.send(orders, "a")
    with rig.working(app) as witness:
        wait_until(lambda: len(calls) >= 1, "the first call")
        if lock_url == "database":
            wait_until(lambda: witness.seen("contention"), "the refusal")
            rig.write("DELETE FROM named_lock")
        wait_until(lambda: rig.ledger() == [sent], "its effect")
    assert len(calls) >= 2
    assert rig.ledger() == [sent]


def test_a_batch_whose_lock_another_has_waits_and_its_neighbours_go_on(rig, lock_url):
    app = rig.app(lock=lock_url, lock_wait_s=0.1)
    orders = app.topic("orders", partitions=2, policy=LATER)

    @orders.on("step", lock=lambda event: [event["account"]])
    def step(event, ctx):
        note(ctx)

    with closing(open_store(rig.store)) as store, closing(open_locks(lock_url, store)) as locks:
        held = locks.acquire(["taken"], 1.0)
        first, second = (next(k for k in "abcdef" if orders.routing.route(k, ["0", "1"]) == at) for at in "01")
        waiting = rig.send(orders, first, account="taken")
        other = rig.send(orders, second, account="free")
        with rig.working(app) as witness:
            wait_until(lambda: rig.ledger() == [other], "the other account")
            wait_until(lambda: witness.seen("contention"), "the wait")
            assert rig.ledger() == [other]
            held.release()
            wait_until(lambda: rig.ledger() == [other, waiting], "the message that waited")


def test_a_message_whose_lock_can_t_be_told_is_parked_and_the_others_go_on(rig):
    app = rig.app()
    orders = app.topic("orders", partitions=1, policy=LATER)

    @orders.on("step", lock=lambda event: event["account"])
    def step(event, ctx):
        note(ctx)

    bad = [rig.send(orders, "a"), rig.send(orders, "b", account=7)]
    good = rig.send(orders, "c", account="c")
    rig.run(app)
    assert rig.ledger() == [good]
    assert [row[0] for row in rig.parked()] == bad
    assert all("lock= of type 'step' found no names" in row[3] for row in rig.parked())


def test_locks_that_don_t_exist_are_refused_at_the_start(rig):
    app = rig.app(lock="zookeeper://here")
    orders = app.topic("orders", partitions=1)
    orders.on("step", lock=lambda event: "a")(lambda event, ctx: None)
    with pytest.raises(ConfigurationError, match="there are `database` and redis"), app.worker(rig.witness):
        raise AssertionError("it began")


# the front filter


@pytest.fixture
def looked_up(monkeypatch):
    """The biz_keys that the store is asked for."""
    asked = []
    look_up = SqlRecords.look_up
    monkeypatch.setattr(
        SqlRecords, "look_up", lambda self, scope, keys: asked.extend(keys) or look_up(self, scope, keys)
    )
    return asked


def filtered(rig, url):
    app = rig.app(filter=url)
    orders = app.topic("orders", partitions=1, policy=LATER)

    @orders.on("step")
    def step(event, ctx):
        note(ctx)
        if event.get("bad"):
            raise ConnectionError("away")

    return app, orders


def test_a_duplicate_is_known_without_asking_the_store_and_losing_the_filter_costs_no_correctness(rig, looked_up):
    clear()
    app, orders = filtered(rig, service_url("redis"))
    sent = [rig.send(orders, key, biz_key=f"{key}/1") for key in "abc"]
    rig.run(app)
    looked_up.clear()
    for key in "abc":
        rig.send(orders, key, biz_key=f"{key}/1")
    witness = rig.run(app)
    assert looked_up == []
    assert [fields["count"] for fields in witness.seen("filter hits")] == [3]
    assert [witness.outcomes(biz_key) for biz_key in sent] == [["duplicate"]] * 3
    clear()
    for key in "abc":
        rig.send(orders, key, biz_key=f"{key}/1")
    witness = rig.run(app)
    assert sorted(looked_up) == sent
    assert [witness.outcomes(biz_key) for biz_key in sent] == [["duplicate"]] * 3
    assert rig.ledger() == sent


def test_another_body_is_a_conflict_and_what_failed_isn_t_remembered(rig):
    clear()
    app, orders = filtered(rig, service_url("redis"))
    done, failed = rig.send(orders, "a", biz_key="a/1"), rig.send(orders, "b", biz_key="b/1", bad=1)
    rig.run(app)
    rig.send(orders, "a", biz_key="a/1", other=1)
    rig.send(orders, "b", biz_key="b/1", bad=1)
    witness = rig.run(app)
    assert witness.outcomes(done) == ["conflict"]
    assert witness.outcomes(failed) == ["parked"]
    assert rig.ledger() == [done]


def test_nothing_is_remembered_before_the_commit(rig, monkeypatch):
    """The transaction fails after its handlers ran: its messages run again."""
    clear()
    app, orders = filtered(rig, service_url("redis"))
    sent = rig.send(orders, "a")
    write, remembered = SqlSession.write, []

    def fail_once(self, scope, writes, now):
        if writes.finishes and not remembered:
            with closing(redis.Redis.from_url(service_url("redis"))) as client:
                remembered.append(client.dbsize())
            raise StoreUnavailable("away")
        return write(self, scope, writes, now)

    monkeypatch.setattr(SqlSession, "write", fail_once)
    rig.run(app, until_idle_s=1.0)
    assert remembered == [0]
    assert rig.ledger() == [sent]


def test_a_filter_that_is_away_changes_nothing(rig):
    app, orders = filtered(rig, "redis://127.0.0.1:1/0")
    sent = [rig.send(orders, key) for key in "abc"]
    rig.run(app)
    assert rig.ledger() == sent
