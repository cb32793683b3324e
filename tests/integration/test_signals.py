"""Processes that end: asked to, made to, or by a message that kills them. Nothing lost, nothing doubled."""

import itertools
import signal
from collections import Counter

import pytest
from support.programs import KILLED, Program, write_program
from support.rig import wait_until

from seriatim.compensation import verbs
from seriatim.core.store.port import Scope

STEADY = """
orders = app.topic("orders", partitions=2, policy=Policy(backoff=Backoff(base_s=0.01, cap_s=0.05)))

@orders.on("step")
def step(event, ctx):
    mark("runs", ctx.message.biz_key)
    if event.get("s") and once("slow"):
        enter(ctx)
        mark("begun")
        time.sleep(event["s"])
        mark("woke")
    else:
        enter(ctx)
"""


@pytest.fixture
def orders(rig):
    return rig.app().topic("orders", partitions=2)


def begun(rig):
    return (rig.folder / "begun").exists()


def drain(rig):
    """Run what is left to its end, in a process of its own."""
    with Program(rig.folder, "run", "shop:app", "--until-idle", "0.6") as program:
        ended = program.wait()
    assert ended.code == 0, ended
    return ended


# SIGTERM and SIGINT


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_mid_handler_finishes_the_batch_and_exits_0(rig, orders, number):
    # field case FC-X1
    write_program(rig.folder, STEADY)
    slow = rig.send(orders, "a", s=1.5)
    with Program(rig.folder, "run", "shop:app") as program:
        wait_until(lambda: begun(rig), "the slow handler")
        rig.send(orders, "a")
        program.signal(number)
        ended = program.wait()

    assert ended.code == 0, ended
    assert (rig.folder / "woke").exists()
    assert rig.ledger()[:1] == [slow]
    assert rig.record(slow)[:2] == (2, "applied")
    assert rig.rows("SELECT count(*) FROM partition_owner WHERE owner IS NOT NULL") == [(0,)], "a lease was kept"
    assert "Traceback" not in ended.err
    drained = drain(rig)
    assert "careful" not in drained.err
    assert Counter(rig.ledger()) == Counter(dict.fromkeys(rig.ledger(), 1))
    assert len(rig.ledger()) == 2


def test_a_second_signal_leaves_at_once_and_nothing_is_lost_or_doubled(rig, orders):
    # field case FC-X1
    write_program(rig.folder, STEADY)
    slow, later = rig.send(orders, "a", s=30), rig.send(orders, "a")
    with Program(rig.folder, "run", "shop:app") as program:
        wait_until(lambda: begun(rig), "the slow handler")
        program.signal(signal.SIGTERM)
        wait_until(lambda: not program.running or program.signal(signal.SIGTERM), "its end", 10)
        ended = program.wait(10)

    assert ended.code == 130, ended
    assert not (rig.folder / "woke").exists()
    assert rig.ledger() == []
    drain(rig)
    assert rig.ledger() == [slow, later]


def test_a_signal_to_an_idle_worker_ends_it_whenever_it_comes(rig, orders):
    # field case FC-X1: also at the very moment when the main thread looks at its own flag
    write_program(rig.folder, STEADY)
    rig.declare(orders)
    for delay in (0.0, 0.03, 0.05, 0.07):
        with Program(rig.folder, "run", "shop:app") as program:
            wait_until(lambda: rig.owners() == 1, "its partitions")
            wait_until(_after(delay), "the delay")
            program.signal(signal.SIGTERM)
            ended = program.wait(15)
        assert ended.code == 0, ended
        assert rig.owners() == 0


def _after(seconds):
    moments = itertools.count()
    return lambda: next(moments) * 0.01 >= seconds


def test_sigterm_to_two_workers_ends_both(rig, orders):
    # field case FC-X1
    write_program(rig.folder, STEADY)
    slow = rig.send(orders, "a", s=1)
    with Program(rig.folder, "run", "shop:app", "--workers", "2") as program:
        wait_until(lambda: begun(rig), "the slow handler")
        program.signal(signal.SIGTERM)
        ended = program.wait()

    assert ended.code == 0, ended
    assert rig.ledger() == [slow]
    assert rig.owners() == 0


# SIGKILL


@pytest.mark.parametrize("moment", ["in the transaction", "between transactions"])
def test_a_killed_worker_s_partition_is_taken_over_with_care_after_its_lease(rig, orders, moment):
    # field cases FC-C8, FC-O9 and FC-I1: no hand work, nothing lost, in order, nothing doubled
    write_program(rig.folder, STEADY)
    slow = 30 if moment == "in the transaction" else 0
    first = rig.send(orders, "a", s=slow)
    with Program(rig.folder, "run", "shop:app") as program:
        wait_until(lambda: begun(rig) or rig.ledger(), "the first handler")
        program.signal(signal.SIGKILL)
        assert program.wait().code == KILLED
    later = [rig.send(orders, "a") for _ in range(3)]
    rig.send(orders, "a", biz_key=first, s=slow)

    ended = drain(rig)

    assert "careful take-over" in ended.err
    assert rig.ledger() == [first, *later]
    assert rig.rows("SELECT status, count(*) FROM idempotent_record GROUP BY status") == [(2, 4)]
    assert rig.parked() == []


def test_two_workers_take_a_killed_third_s_partitions_and_go_on(rig):
    # field case FC-O9
    orders = rig.app().topic("orders", partitions=4)
    write_program(rig.folder, STEADY.replace("partitions=2", "partitions=4"))
    rig.declare(orders)
    with Program(rig.folder, "run", "shop:app") as doomed, Program(rig.folder, "run", "shop:app") as steady:
        wait_until(lambda: rig.owners() == 2, "two owners")
        keys = [f"k{number}" for number in range(12)]
        sent = rig.send_many(orders, keys * 10)
        wait_until(lambda: len(rig.ledger()) > 10, "some effects")
        doomed.signal(signal.SIGKILL)
        sent += rig.send_many(orders, keys * 10)
        wait_until(lambda: len(rig.ledger()) == len(sent), "every effect")
        assert steady.running

    for key in keys:
        assert rig.ledger(key) == [biz_key for biz_key in sent if biz_key.startswith(f"{key}/")]


# a message that kills its process

KILLER = """
orders = app.topic(
    "orders", partitions=2, on_failure=ON_FAILURE,
    policy=Policy(max_crashes=1, max_attempts=2, tries_at_once=1, backoff=Backoff(base_s=0.01, cap_s=0.02)),
)

@orders.on("step")
def step(event, ctx):
    if event.get("kills"):
        mark("kills")
        if event["kills"] == "later" and once("first"):
            raise ConnectionError("the first time it only fails")
        if event["kills"] == "by signal":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(9)
    enter(ctx)
"""


def restarted(rig, *options, most):
    """A supervisor: restart it until it ends well; how often it was started."""
    for start in range(1, most + 1):
        with Program(rig.folder, "run", "shop:app", "--until-idle", "0.6", *options, SERIATIM_LEASE_S="0.4") as program:
            ended = program.wait()
        if ended.code == 0:
            return start
    raise AssertionError(f"it was killed {most} times; parked are {rig.parked()}")


@pytest.mark.parametrize(
    ("how", "on_failure"),
    [("at once", "park"), ("by signal", "set_aside"), ("later", "set_aside")],
)
def test_a_message_that_kills_its_process_is_given_up_after_the_limit_and_the_others_go_on(
    rig, orders, how, on_failure
):
    write_program(rig.folder, KILLER.replace("ON_FAILURE", repr(on_failure)))
    before = rig.send(orders, "a")
    killer = rig.send(orders, "a", kills=how)
    behind, others = rig.send(orders, "a"), rig.send_many(orders, [f"k{number}" for number in range(20)])

    starts = restarted(rig, most=9)

    kills = (rig.folder / "kills").read_text().count("\n")
    assert starts - 1 <= kills <= 5
    assert set(others) <= set(rig.ledger())
    assert before in rig.ledger()
    assert killer not in rig.ledger()
    assert rig.record(killer)[0] == 3
    [(_, _, _, error, _)] = [row for row in rig.parked() if row[0] == killer]
    assert "ended its process" in error
    assert (behind in rig.ledger()) == (on_failure == "set_aside")
    assert len(rig.ledger()) == len(set(rig.ledger()))


def test_a_worker_that_dies_ends_the_others_with_a_status_that_says_so(rig, orders):
    # what started `--workers 2` is told, so that it can start it again; nothing is lost
    write_program(rig.folder, KILLER.replace("ON_FAILURE", "'park'"))
    rig.send(orders, "a", kills="at once")
    others = rig.send_many(orders, [f"k{number}" for number in range(20)])
    with Program(rig.folder, "run", "shop:app", "--workers", "2", "--until-idle", "3") as program:
        ended = program.wait()
    assert ended.code != 0
    assert "Traceback" not in ended.err

    restarted(rig, "--workers", "2", most=9)

    assert sorted(rig.ledger()) == sorted(others)
    assert len(rig.parked()) == 1


def test_a_key_whose_head_kills_the_process_is_tried_again_by_an_operator_s_retry(rig, orders):
    # once mended, `retry` gives it a fresh count: what killed before doesn't speak against it
    write_program(rig.folder, KILLER.replace("ON_FAILURE", "'park'"))
    killer, behind = rig.send(orders, "a", kills="at once"), rig.send(orders, "a")
    restarted(rig, most=9)
    write_program(rig.folder, STEADY)
    [(parked_id,)] = rig.rows("SELECT id FROM parked_message WHERE biz_key = ?", killer)
    with rig.opened() as store:
        assert verbs.retry(store, Scope("shop", "orders"), parked_id, "me").changed
    drain(rig)

    assert rig.ledger() == [killer, behind]
    assert rig.parked() == []
