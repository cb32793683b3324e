"""Health that tells the truth: of a worker that starts, stands by, works, loses its store or broker, and stops."""

import os
import sqlite3
import threading
import time
from contextlib import closing, contextmanager

import pytest
from sqlalchemy import event as events
from support.rig import LATER, enter, wait_until

from seriatim import Backoff, Policy
from seriatim.core.errors import BrokerError, CommitUnknown, Contention, FenceLost, StoreUnavailable
from seriatim.core.store import open_store
from seriatim.core.topic_lane import TopicLane

from .test_metrics import Watched, quiet, watchable, watched  # noqa: F401 - a fixture

READY = {"status": "ready", "keeper": "ready", "lanes": {"lane-0": "ready"}}


def steps(app, partitions=1):
    topic = app.topic("orders", partitions=partitions, policy=LATER)
    go = threading.Event()

    @topic.on("step")
    def step(event, ctx):
        enter(ctx)
        if event.get("slow"):
            go.wait(30)

    return topic, go


def is_ready(one: Watched) -> bool:
    return one.health()[0] == 200


def stays(one: Watched, status: int, page: str = "live", for_s: float = 0.5) -> None:
    end = time.monotonic() + for_s
    while time.monotonic() < end:
        assert one.health(page)[0] == status
        time.sleep(0.02)


def test_a_worker_is_ready_once_it_has_its_share_and_not_before(rig, monkeypatch):
    app = watchable(rig)
    steps(app)
    go = threading.Event()
    take = TopicLane.take

    def slowly(self, holding):
        go.wait(30)
        take(self, holding)

    monkeypatch.setattr(TopicLane, "take", slowly)
    with watched(app) as one:
        wait_until(lambda: one.value("partitions_held", group="shop", topic="orders") == 1, "the claim")
        stays(one, 503, "ready")
        assert one.health()[1]["status"] == "gathering its share"
        assert one.health("live")[0] == 200
        assert one.value("ready") == 0
        go.set()
        wait_until(lambda: is_ready(one), "readiness")
        assert one.health() == (200, READY)
        assert one.health("live") == (200, {**READY, "status": "live"})
        assert one.value("ready") == 1


def test_a_worker_that_stands_by_is_ready_and_takes_over(rig):
    first, second = watchable(rig), watchable(rig)
    steps(first)
    steps(second)
    with watched(second) as waits:
        with watched(first) as has:
            wait_until(lambda: is_ready(has) and is_ready(waits), "readiness of both")
            held = [one.value("partitions_held", group="shop", topic="orders") for one in (has, waits)]
            assert sorted(held) == [0, 1]
        wait_until(lambda: waits.value("partitions_held", group="shop", topic="orders") == 1, "the take-over")
        assert is_ready(waits)


def test_a_worker_that_stops_is_not_ready_and_lives_until_what_is_in_hand_is_done(rig):
    app = watchable(rig)
    orders, go = steps(app)
    with watched(app) as one:
        rig.send(orders, "a", slow=1)
        wait_until(lambda: one.value("lane_round_seconds", lane="lane-0") > 0.2, "the handler")
        one.worker.stop()
        code, page = one.health()
        assert (code, page["status"]) == (503, "stopping")
        stays(one, 200)
        go.set()
        wait_until(lambda: one.health()[1]["keeper"] == "stopped", "the end of the threads")
        assert one.health("live") == (200, {"status": "live", "keeper": "stopped", "lanes": {"lane-0": "stopped"}})


# slow, stuck, dead


@pytest.fixture
def hasty(monkeypatch):
    """Patience of three quarters of a second, which is longer than any wait for a lock."""
    monkeypatch.setattr("seriatim.core.worker.patience_s", lambda _: 0.75)
    with hurried(monkeypatch):
        yield


def test_a_handler_may_take_as_long_as_it_needs(rig, hasty):
    app = watchable(rig)
    orders, go = steps(app)
    with watched(app) as one:
        wait_until(lambda: is_ready(one), "readiness")
        rig.send(orders, "a", slow=1)
        wait_until(lambda: one.value("lane_round_seconds", lane="lane-0") > 2, "a handler that takes its time")
        code, page = one.health("live")
        assert page["lanes"] == {"lane-0": "ready"}
        assert code == 200
        go.set()
        wait_until(rig.ledger, "its effect")


def test_a_slow_handler_that_fails_is_not_held_against_what_comes_after_it_in_the_round(rig, hasty, monkeypatch):
    app = watchable(rig)
    orders = app.topic("orders", partitions=1, policy=Policy(tries_at_once=1, backoff=Backoff(base_s=0.01, cap_s=0.01)))
    gather, calls = TopicLane._gather, []  # noqa: SLF001 - seen from inside: no public way

    @orders.on("step")
    def step(event, ctx):
        calls.append(1)
        if len(calls) > 1:  # a head that is due: slow, and in vain
            time.sleep(1.5)
        raise ConnectionError("away")

    def slowly(self, timeout_s):
        time.sleep(0.4)  # within patience
        return gather(self, timeout_s)

    monkeypatch.setattr(TopicLane, "_gather", slowly)
    rig.send(orders, "a")
    with watched(app) as one:
        wait_until(lambda: len(calls) > 1, "the slow run")
        stays(one, 200, for_s=3.0)


def test_a_lane_that_hangs_outside_any_handler_is_stuck_until_it_goes_on(rig, hasty, monkeypatch):
    app = watchable(rig)
    steps(app)
    go = threading.Event()
    gather = TopicLane._gather  # noqa: SLF001 - seen from inside: no public way

    def hang(self, timeout_s):
        go.wait(30)
        return gather(self, 0.01)

    with watched(app) as one:
        wait_until(lambda: is_ready(one), "readiness")
        monkeypatch.setattr(TopicLane, "_gather", hang)
        wait_until(lambda: one.health("live")[0] == 503, "the word that it hangs")
        assert one.health("live")[1] == {"status": "dead", "keeper": "ready", "lanes": {"lane-0": "stuck"}}
        assert one.health()[0] == 503
        go.set()
        wait_until(lambda: one.health("live")[0] == 200 and is_ready(one), "its going on")


@pytest.mark.parametrize("who", ["lane", "keeper"])
def test_a_thread_that_dies_ends_liveness_for_as_long_as_the_process_is_still_there(rig, monkeypatch, who):
    app = watchable(rig)
    steps(app)
    end = threading.Event()
    with pytest.raises(RuntimeError, match="a bug"), watched(app) as one:  # noqa: PT012 - it is raised when the block ends
        wait_until(lambda: is_ready(one), "readiness")
        monkeypatch.setattr(one.worker.__class__, "_shut_down", lambda self, keeper: end.wait(30))

        def die(self, *_):
            raise RuntimeError("a bug")

        owner, name = (TopicLane, "work") if who == "lane" else (one.worker.__class__, "_keep_topic")
        monkeypatch.setattr(owner, name, die)
        try:
            wait_until(lambda: one.health("live")[0] == 503, "the word of its death")
            page = one.health("live")[1]
            assert {"lane": page["lanes"]["lane-0"], "keeper": page["keeper"]}[who] == "dead"
            assert one.health()[0] == 503
        finally:
            monkeypatch.undo()
            one.worker._stopping.set()  # noqa: SLF001 - the one that is left
            for lane in one.worker._lanes:  # noqa: SLF001 - seen from inside: no public way
                lane.stop()
            end.set()


# the store and the broker


@contextmanager
def hurried(monkeypatch):
    """Stores of the app that wait for a lock a third of a second."""

    def opened(url, **options):
        store = open_store(url, lock_timeout_s=0.3, **options)
        events.listen(store._engine, "connect", lambda one, _: one.execute("PRAGMA busy_timeout = 300").close())  # noqa: SLF001 - set up where no public way leads
        return store

    monkeypatch.setattr("seriatim.core.app.open_store", opened)
    yield


def test_a_store_that_cannot_be_written_ends_readiness_not_liveness_and_it_comes_back(rig, monkeypatch):
    with hurried(monkeypatch):
        app = watchable(rig, lease_s=0.9)
        orders, _ = steps(app)
        with watched(app) as one:
            wait_until(lambda: is_ready(one), "readiness")
            with closing(sqlite3.connect(rig.folder / "shop.db", isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                rig.send(orders, "a")
                wait_until(lambda: not is_ready(one), "the word of it")
                wait_until(lambda: one.health()[1]["lanes"]["lane-0"] == "store away", "the lane's word")
                wait_until(lambda: one.health()[1]["keeper"] == "store away", "the keeper's word")
                assert one.health()[1]["status"] == "not ready"
                stays(one, 503, "ready", 1.5)
                stays(one, 200)
                assert one.value("lane_pauses_total", cause="store") >= 1
                assert one.value("lane_paused_seconds_total", cause="store") > 0
                assert one.value("keeper_pauses_total") >= 1
                other.execute("ROLLBACK")
            wait_until(lambda: is_ready(one), "readiness again")
            wait_until(rig.ledger, "the message")
            assert one.health() == (200, READY)


def test_readiness_does_not_flicker_while_the_store_is_away_for_a_lane_alone(rig, monkeypatch):
    app = watchable(rig, lease_s=30)
    steps(app)
    with watched(app) as one:
        wait_until(lambda: is_ready(one), "readiness")

        def away(self):
            raise StoreUnavailable("away")

        with monkeypatch.context() as patch:
            patch.setattr(TopicLane, "_read_stamps", seldom(away))
            wait_until(lambda: not is_ready(one), "the word of it")
            stays(one, 503, "ready", 2.0)
        wait_until(lambda: is_ready(one), "readiness again")


def seldom(act):
    """`act`, not more often than a lane reads its stamps."""
    last = [0.0]

    def acted(self):
        if time.monotonic() - last[0] >= 0.1:
            last[0] = time.monotonic()
            act(self)

    return acted


def test_a_broker_that_is_away_ends_readiness_not_liveness_and_it_comes_back(rig):
    app = watchable(rig)
    orders, _ = steps(app)
    log = rig.folder / "log.db"
    with watched(app) as one:
        wait_until(lambda: is_ready(one), "readiness")
        os.rename(log, rig.folder / "elsewhere")  # noqa: PTH104 - the log is a text
        wait_until(lambda: one.health()[1]["lanes"]["lane-0"] == "broker away", "the word of it")
        assert one.health()[0] == 503
        assert one.health()[1]["keeper"] == "ready"
        stays(one, 200)
        os.rename(rig.folder / "elsewhere", log)  # noqa: PTH104 - the log is a text
        wait_until(lambda: is_ready(one), "readiness again")
        rig.send(orders, "a")
        wait_until(rig.ledger, "the message")


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (StoreUnavailable("away"), "store"),
        (CommitUnknown("no answer"), "store"),
        (BrokerError("away"), "broker"),
        (Contention("a deadlock"), "contention"),
        (FenceLost("another's"), "fence"),
    ],
)
def test_a_lane_says_whose_trouble_made_it_pause(rig, monkeypatch, error, cause):
    app = watchable(rig)
    steps(app)
    with watched(app) as one:
        wait_until(lambda: is_ready(one), "readiness")
        with monkeypatch.context() as patch:

            def fail(self, timeout_s):
                raise error

            patch.setattr(TopicLane, "work", fail)
            wait_until(lambda: one.value("lane_pauses_total", cause=cause) > 0, "the pause")
            assert is_ready(one) is (cause in {"contention", "fence"})
        wait_until(lambda: is_ready(one), "readiness again")
