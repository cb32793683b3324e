"""Lanes at work, through the public API: policies, parking and draining, sharing, hand-over, the operator's verbs."""

import json
import threading
from contextlib import ExitStack

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from support.programs import here
from support.rig import LATER, QUICK, enter, wait_until

from seriatim import Backoff, ConfigurationError, Early, Policy, Reject, Retry
from seriatim.compensation import verbs
from seriatim.core.message import Message
from seriatim.core.store.port import Scope

SCOPE = Scope("shop", "orders")


def failing(app, *, policy=QUICK, error=None, partitions=1, **options):
    """A topic whose messages with `bad` in their body fail until `mended` is set."""
    topic = app.topic("orders", partitions=partitions, policy=policy, **options)
    mended = threading.Event()

    @topic.on("step")
    def step(event, ctx):
        enter(ctx)
        if event.get("bad") and not mended.is_set():
            raise (error or ConnectionError("away"))
        return {"did": ctx.message.biz_key}

    return topic, mended


def parked_id(rig, biz_key):
    return rig.rows("SELECT max(id) FROM parked_message WHERE biz_key = ?", biz_key)[0][0]


def send_five(rig, orders):
    """ok a · bad a · a · b · a"""
    return [rig.send(orders, key, bad=bad) for key, bad in [("a", 0), ("a", 1), ("a", 0), ("b", 0), ("a", 0)]]


# policies


def test_park_lets_the_key_wait_and_every_other_key_go_on(rig):
    app = rig.app()
    orders, mended = failing(app, policy=LATER)
    one, bad, three, other, five = send_five(rig, orders)
    rig.run(app)
    assert rig.ledger() == [one, other]
    assert [(row[0], row[1], row[2]) for row in rig.parked()] == [
        (bad, "queue", "failed"),
        (three, "queue", "behind"),
        (five, "queue", "behind"),
    ]
    assert rig.record(three) is None, "a message that is behind has no record yet"

    mended.set()
    with rig.opened() as store:
        verbs.retry(store, SCOPE, parked_id(rig, bad), "me")
    rig.run(app)
    assert rig.ledger("a") == [one, bad, three, five]
    assert rig.rows("SELECT count(*) FROM parked_key") == [(0,)]


def test_block_stops_the_whole_partition_until_the_message_succeeds(rig):
    app = rig.app()
    orders, mended = failing(app, policy=QUICK, on_failure="block", max_attempts=10**6)
    sent = send_five(rig, orders)
    with rig.working(app) as witness:
        wait_until(lambda: len(witness.outcomes(sent[1])) > 3, "some tries")
        assert rig.ledger() == sent[:1]
        mended.set()
        wait_until(lambda: len(rig.ledger()) == 5, "the rest")
    assert rig.ledger() == sent


def test_block_stops_its_own_partition_alone(rig):
    app = rig.app()
    orders, _ = failing(app, policy=LATER, on_failure="block", partitions=2)
    keys = {orders.routing.route(key, orders.partitions): key for key in "abcdefgh"}
    bad, after, other = (
        rig.send(orders, keys["0"], bad=1),
        rig.send(orders, keys["0"]),
        rig.send(orders, keys["1"]),
    )
    rig.run(app)
    assert rig.ledger() == [other]
    assert [row[0] for row in rig.parked()] == [bad]
    assert rig.record(after) is None


def test_set_aside_lets_only_the_message_leave(rig):
    app = rig.app()
    orders, mended = failing(app, policy=QUICK, on_failure="set_aside", max_attempts=10**6)
    one, bad, three, other, five = send_five(rig, orders)
    with rig.working(app):
        wait_until(lambda: len(rig.ledger()) == 4, "the others")
        assert rig.ledger() == [one, three, other, five]
        mended.set()
        wait_until(lambda: len(rig.ledger()) == 5, "the one aside")
    assert rig.ledger("a") == [one, three, five, bad]
    assert rig.parked() == []


@pytest.mark.parametrize("on_failure", ["park", "block", "set_aside"])
@pytest.mark.parametrize("on_dead", ["block_key", "skip"])
def test_a_rejected_message_is_called_once_and_its_key_follows_on_dead(rig, on_failure, on_dead):
    app = rig.app()
    orders, _ = failing(app, error=Reject("no such order"), on_failure=on_failure, on_dead=on_dead)
    one, bad, three, other, five = send_five(rig, orders)
    rig.run(app)

    goes_on = on_dead == "skip" or on_failure == "set_aside"
    stops = on_failure == "block" and not goes_on
    expected = [one] if stops else [one, three, other, five] if goes_on else [one, other]
    assert rig.ledger() == expected
    assert rig.record(bad) == (3, "rejected", b"no such order", 1)
    assert rig.witness.outcomes(bad)[0] == "rejected"


def test_retry_after_is_heeded_and_the_key_waits(rig):
    app = rig.app()
    orders = app.topic("orders", partitions=1, policy=QUICK)

    @orders.on("step")
    def step(event, ctx):
        if event.get("bad") and ctx.attempt == 1:
            raise Retry("the shop opens later", after=0.7)
        enter(ctx)

    first, second = rig.send(orders, "a", bad=1), rig.send(orders, "a")
    with rig.working(app) as witness:
        wait_until(lambda: len(rig.ledger()) == 2, "both")
    assert rig.ledger() == [first, second]
    assert [one.wait_s for one in witness.verdicts if one.wait_s is not None] == [0.7]
    [(parked, settled)] = rig.rows("SELECT create_time, settled_at FROM idempotent_record WHERE biz_key = ?", first)
    assert settled - parked >= 700_000


def test_early_by_the_handler_blocks_nobody_and_is_called_again_when_its_time_has_come(rig):
    app = rig.app()
    orders = app.topic("orders", partitions=1, policy=QUICK)
    here_now = threading.Event()

    @orders.on("step")
    def step(event, ctx):
        if event.get("bad") and not here_now.is_set():
            raise Early("not yet")
        enter(ctx)

    early, later = rig.send(orders, "a", bad=1), rig.send(orders, "a")
    with rig.working(app):
        wait_until(lambda: rig.ledger() == [later], "the later one")
        here_now.set()
        wait_until(lambda: len(rig.ledger()) == 2, "the early one")
    assert rig.ledger() == [later, early]


def test_a_hundred_messages_aside_keep_none_behind_them_from_its_turn(rig):
    """They wait for what never comes, and the one whose time has come is the newest of them."""
    app = rig.app()
    orders = app.topic("orders", partitions=1, policy=Policy(backoff=Backoff(base_s=0.3, cap_s=0.3)))
    here_now = threading.Event()

    @orders.on("step")
    def step(event, ctx):
        if not (event.get("last") and here_now.is_set()):
            raise Early("not yet", waiting_for="its predecessor")
        enter(ctx)

    rig.send_many(orders, ["a"] * 110)
    last = rig.send(orders, "a", last=1)
    with rig.working(app):
        wait_until(lambda: len(rig.parked()) == 111, "all of them aside")
        here_now.set()
        wait_until(lambda: rig.ledger() == [last], "the last one")


@pytest.mark.parametrize("others", [0, 120])
def test_an_early_message_runs_right_after_its_predecessor_however_many_wait_for_others(rig, others):
    """What was waited for is looked for by name, and its names are no patterns."""
    app = rig.app()
    orders = app.topic("orders", partitions=1, policy=LATER)
    done = set()

    @orders.on("step")
    def step(event, ctx):
        if event.get("wants", "nothing") not in done | {"nothing"}:
            raise Early("not yet", waiting_for=event["wants"])
        done.add(ctx.message.biz_key)
        enter(ctx)

    for number in range(others):
        rig.send(orders, "a", wants=f"f%_{number}")
    rig.send(orders, "a", biz_key="second", wants="fi/r'st%")
    rig.run(app)
    rig.send(orders, "a", biz_key="fi/r'st%")
    rig.run(app)
    assert rig.ledger() == ["fi/r'st%", "second"]


def test_an_early_message_that_ran_in_its_predecessor_s_batch_leaves_no_failure(rig):
    app = rig.app()
    orders = app.topic("orders", partitions=1, policy=LATER)
    done = set()

    @orders.on("step")
    def step(event, ctx):
        if event.get("wants", "nothing") not in done | {"nothing"}:
            raise Early("not yet", waiting_for=event["wants"])
        done.add(ctx.message.biz_key)
        enter(ctx)

    rig.send_all(
        orders,
        [
            orders.message(key="a", type="step", biz_key="second", body={"wants": "first"}),
            orders.message(key="a", type="step", biz_key="first", body={}),
        ],
    )
    rig.run(app)
    assert rig.ledger() == ["first", "second"]
    assert rig.rows("SELECT count(*) FROM attempt_log") == [(0,)]


# duplicates and conflicts


def test_a_duplicate_leaves_the_stored_response_byte_for_byte_in_every_way_it_can_come(rig):
    app = rig.app()
    orders, _ = failing(app)
    biz_key = rig.send(orders, "a")
    twin = orders.message(key="a", type="step", biz_key="twin", body={})
    rig.send_all(orders, [twin, twin])
    rig.run(app)
    first = rig.record(biz_key)
    for _ in range(3):
        rig.send(orders, "a", biz_key=biz_key)
    rig.send(orders, "b", biz_key=biz_key)
    rig.run(app)

    assert first[2] == json.dumps({"did": biz_key}, separators=(",", ":")).encode()
    assert rig.record(biz_key) == first
    assert rig.witness.outcomes(biz_key) == ["duplicate"] * 4
    assert sorted(rig.ledger()) == sorted([biz_key, "twin"])
    assert rig.rows("SELECT sum(duplicates) FROM partition_owner") == [(5,)]


def test_another_body_or_type_is_a_conflict_kept_once_for_each(rig):
    app = rig.app()
    orders, _ = failing(app)
    orders.on("other")(lambda event, ctx: enter(ctx))
    biz_key = rig.send(orders, "a", n=1)
    for n in (2, 2, 3, 2):
        rig.send(orders, "a", biz_key=biz_key, n=n)
    rig.run(app)
    rig.send(orders, "a", biz_key=biz_key, n=3)
    rig.send(orders, "a", "other", biz_key=biz_key, n=1)
    rig.run(app)

    assert rig.ledger() == [biz_key]
    assert [json.loads(row[4])["n"] for row in rig.parked("conflict")] == [2, 3, 1]
    assert {row[1] for row in rig.parked("conflict")} == {"closed"}
    assert rig.witness.outcomes(biz_key) == ["conflict", "conflict"]


@pytest.mark.parametrize("standing", ["parked", "behind", "rejected", "early"])
def test_a_conflict_with_a_message_that_hasn_t_run_is_told_from_its_copy(rig, standing):
    app = rig.app()
    orders = app.topic("orders", partitions=1, policy=LATER, on_dead="skip")

    @orders.on("step")
    def step(event, ctx):
        if event.get("how") == "rejected":
            raise Reject("no")
        if event.get("how") == "early":
            raise Early("not yet", waiting_for="x")
        if event.get("how"):
            raise ConnectionError("away")
        enter(ctx)

    if standing == "behind":
        rig.send(orders, "a", biz_key="head", how="parked")
        rig.send(orders, "a", biz_key="b", n=1)
    else:
        rig.send(orders, "a", biz_key="b", how=standing, n=1)
    rig.run(app)
    copy = {"n": 1} if standing == "behind" else {"how": standing, "n": 1}
    rig.send(orders, "a", biz_key="b", **copy)
    rig.send(orders, "a", biz_key="b", **copy | {"n": 2})
    rig.run(app)

    told = {"rejected": "duplicate"}.get(standing, "parked")
    assert rig.witness.outcomes("b") == [told, "conflict"]
    assert len(rig.parked("conflict")) == 1
    assert rig.ledger() == []


# topics, types, lanes


def test_a_star_takes_every_type_without_a_handler_of_its_own(rig):
    app = rig.app()
    orders, _ = failing(app)
    orders.on("*")(lambda event, ctx: enter(ctx, "any"))
    for kind in ("step", "news", "*"):
        rig.send(orders, "a", kind)
    rig.run(app)
    assert rig.rows("SELECT type, note FROM ledger ORDER BY id") == [("step", ""), ("news", "any"), ("*", "any")]


def test_a_type_that_the_topic_ignores_leaves_nothing_behind_and_blocks_nothing(rig):
    app = rig.app()
    orders, _ = failing(app, ignore=["noise"])
    rig.send(orders, "a", "noise")
    biz_key = rig.send(orders, "a")
    rig.run(app)
    assert rig.ledger() == [biz_key]
    assert rig.parked() == []
    assert rig.rows("SELECT biz_key FROM idempotent_record") == [(biz_key,)]


def test_several_lanes_keep_the_order_of_every_key_while_a_second_worker_comes_and_goes(rig):
    # field case FC-O3: handlers of one key never overlap, each message has one effect, nothing is reordered
    spans, mutex = {}, threading.Lock()

    def app_of():
        app = rig.app(lanes=2, batch_size=5)
        topic = app.topic("orders", partitions=6, policy=QUICK)

        @topic.on("step")
        def step(event, ctx):
            key = ctx.message.sharding_key
            with mutex:
                spans.setdefault(key, []).append("(")
            threading.Event().wait(0.002)
            enter(ctx)
            with mutex:
                spans[key].append(")")

        return app, topic

    (first, orders), (second, _) = app_of(), app_of()
    keys = [f"k{number}" for number in range(15)]
    sent = rig.send_many(orders, keys * 20)
    with rig.working(first) as one:
        wait_until(rig.ledger, "the first effects")
        with rig.working(second) as other:
            wait_until(lambda: rig.owners() == 2, "two owners")
            sent += rig.send_many(orders, keys * 20)
            wait_until(lambda: len(rig.ledger()) >= len(sent) * 0.7, "most effects")
        sent += rig.send_many(orders, keys * 2)
        wait_until(lambda: len(rig.ledger()) == len(sent), "every effect", 30)

    assert other.seen("partition claimed")
    assert other.verdicts, "the second one did nothing"
    assert one.verdicts
    for key in keys:
        assert rig.ledger(key) == [biz_key for biz_key in sent if biz_key.startswith(f"{key}/")]
        assert "".join(spans[key]) == "()" * (len(spans[key]) // 2)


def test_a_failure_in_a_shared_transaction_harms_no_other_partition(rig):
    app = rig.app()
    orders, _ = failing(app, policy=LATER, partitions=8)
    sent = [orders.message(key=f"k{n}", type="step", biz_key=f"{n}", body={"bad": n % 9 == 4}) for n in range(90)]
    rig.send_all(orders, sent)
    rig.run(app)
    good = {message.biz_key for message in sent if not json.loads(message.body)["bad"]}
    assert set(rig.ledger()) == good
    assert len(rig.ledger()) == len(good)
    assert {row[0] for row in rig.parked()} == {message.biz_key for message in sent} - good


def test_four_workers_share_what_there_is_and_give_it_back(rig):
    apps = [rig.app() for _ in range(4)]
    topics = [failing(app, partitions=8)[0] for app in apps]
    rig.declare(topics[0])
    with ExitStack() as stack:
        for app in apps:
            stack.enter_context(rig.working(app))
        shares = "SELECT count(*) FROM partition_owner WHERE owner IS NOT NULL GROUP BY member"
        wait_until(lambda: sorted(rig.rows(shares)) == [(2,)] * 4, "fair shares", 30)
    assert rig.owners() == 0


# operators


def blocked(rig, **options):
    app = rig.app()
    orders, mended = failing(app, policy=LATER, **options)
    sent = [rig.send(orders, "a", bad=bad) for bad in (1, 0, 0)]
    rig.run(app)
    return app, orders, mended, sent


def test_skip_gives_the_head_up_for_good_and_lets_those_behind_run(rig):
    app, orders, mended, (bad, two, three) = blocked(rig)
    with rig.opened() as store:
        done = verbs.skip(store, SCOPE, parked_id(rig, bad), "ann")
    assert done.changed
    mended.set()
    rig.send(orders, "a", biz_key=bad, bad=1)
    rig.run(app)

    assert rig.ledger() == [two, three]
    assert rig.record(bad)[:3] == (3, "rejected", b"skipped by an operator")
    assert rig.witness.outcomes(bad) == ["duplicate"]


def test_a_verb_that_was_shown_another_head_changes_nothing(rig):
    app, _, _, (bad, two, _) = blocked(rig)
    head, behind = parked_id(rig, bad), parked_id(rig, two)
    before = rig.rows("SELECT * FROM parked_message"), rig.rows("SELECT * FROM parked_key")
    with rig.opened() as store:
        done = verbs.skip(store, SCOPE, behind, "ann")
        assert not done.changed
        assert f"#{head}" in done.text
        assert not verbs.retry(store, SCOPE, behind, "ann").changed
        with pytest.raises(ConfigurationError, match="#4711"):
            verbs.skip(store, SCOPE, 4711, "ann")
        with pytest.raises(ConfigurationError, match=f"#{head}"):
            verbs.skip(store, Scope("other", "orders"), head, "ann")
    assert (rig.rows("SELECT * FROM parked_message"), rig.rows("SELECT * FROM parked_key")) == before
    assert rig.rows("SELECT * FROM operator_action") == []
    rig.run(app)
    assert rig.ledger() == []


def test_every_change_by_an_operator_is_audited(rig):
    _, _, _, (bad, *_) = blocked(rig)
    head = parked_id(rig, bad)
    with rig.opened() as store:
        verbs.retry(store, SCOPE, head, "ann")
        verbs.skip(store, SCOPE, head, "bob")
        verbs.skip(store, SCOPE, head, "bob")
    rows = rig.rows("SELECT who, verb, sharding_key, biz_key, parked_id, before FROM operator_action ORDER BY id")
    assert [row[:5] for row in rows] == [("ann", "retry", "a", bad, head), ("bob", "skip", "a", bad, head)]
    assert all(json.loads(row[5])["reason"] == "failed" for row in rows)


def test_a_running_lane_hears_of_a_verb_at_once(rig):
    app = rig.app()
    orders, mended = failing(app, policy=LATER)
    with rig.working(app):
        bad, behind = rig.send(orders, "a", bad=1), rig.send(orders, "a")
        wait_until(lambda: len(rig.parked()) == 2, "the blocked key")
        mended.set()
        with rig.opened() as store:
            assert verbs.retry(store, SCOPE, parked_id(rig, bad), "ann").changed
        wait_until(lambda: len(rig.ledger()) == 2, "the drain", 3)
    assert rig.ledger() == [bad, behind]


@pytest.mark.parametrize("on_dead", ["block_key", "skip"])
def test_retry_reopens_a_dead_message_and_keeps_the_order_of_its_key(rig, on_dead):
    app = rig.app()
    orders, mended = failing(app, error=Reject("no"), on_dead=on_dead)
    bad, two = rig.send(orders, "a", bad=1), rig.send(orders, "a")
    rig.run(app)
    mended.set()
    with rig.opened() as store:
        assert verbs.retry(store, SCOPE, parked_id(rig, bad), "ann").changed
    rig.run(app)
    assert rig.ledger() == ([bad, two] if on_dead == "block_key" else [two, bad])
    assert rig.record(bad)[:2] == (2, "applied")
    assert rig.parked() == []


def test_status_says_what_is_blocked_since_when_behind_what_why_and_what_comes_next(rig):
    _, _, _, (bad, _, _) = blocked(rig)
    told = here(rig.folder, "status")
    assert told.code == 0, told
    for part in ("shop/orders/0 a", bad, "failed: away", "1 keys blocked with 3 messages waiting", "tried in"):
        assert part in told.out, told
    machine = json.loads(here(rig.folder, "status", "--json").out)
    [key] = machine["blocked"]
    assert (key["sharding_key"], key["depth"], key["biz_key"], key["attempts"]) == ("a", 3, bad, 1)
    assert key["next_attempt_at"] > machine["now"]


def test_status_says_that_a_dead_head_needs_a_person(rig):
    app = rig.app()
    orders, _ = failing(app, error=Reject("no [bold]such[/] order\n\x1b[31m"))
    rig.send(orders, "a[red]", bad=1)
    rig.run(app)
    told = here(rig.folder, "status")
    assert "dead" in told.out
    assert "a[red]" in told.out
    assert "no [bold]such[/] order" in told.out
    assert "\x1b" not in told.out


# what a handler may do


def test_a_handler_that_tries_to_end_the_transaction_fails_and_nothing_of_it_is_kept(rig):
    app = rig.app()
    orders = app.topic("orders", partitions=1, policy=LATER)
    tries = {
        "commit": lambda ctx: ctx.tx.execute(text("COMMIT")),
        "rollback": lambda ctx: ctx.cursor.execute("ROLLBACK"),
        "commit in a comment": lambda ctx: ctx.cursor.execute("/* x */ -- y\n  commit"),
        "session": lambda ctx: ctx.session.commit(),
        "drop": lambda ctx: ctx.tx.execute(text("DROP TABLE ledger")),
        "savepoint": lambda ctx: ctx.cursor.execute("RELEASE seriatim_claimed"),
    }

    @orders.on("step")
    def step(event, ctx):
        enter(ctx)
        if ctx.message.sharding_key in tries:
            tries[ctx.message.sharding_key](ctx)

    for key in [*tries, "good"]:
        rig.send(orders, key, biz_key=key)
    rig.run(app)

    assert rig.ledger() == ["good"]
    assert {row[0] for row in rig.parked("failed")} == set(tries)


def test_a_swallowed_error_of_the_database_is_the_message_s_failure(rig):
    app = rig.app()
    orders = app.topic("orders", partitions=1, policy=LATER)

    @orders.on("step")
    def step(event, ctx):
        enter(ctx)
        if event.get("bad"):
            try:
                ctx.tx.execute(text("INSERT INTO nowhere VALUES (1)"))
            except DBAPIError:
                return

    bad, good = rig.send(orders, "a", bad=1), rig.send(orders, "b")
    rig.run(app)
    assert rig.ledger() == [good]
    assert rig.record(bad)[:2] == (3, "parked")
    assert "nowhere" in rig.parked()[0][3]


def test_a_producer_takes_messages_made_by_hand_too(rig):
    app = rig.app()
    orders, _ = failing(app)
    rig.send_all(orders, [Message("orders", "a", "a:1", "step", b"{}", headers={"trace": "ü"}, seq=3, state="NEW")])
    rig.run(app)
    [verdict] = rig.witness.verdicts
    message = verdict.task.message
    assert (message.headers, message.seq, message.state) == ({"trace": "ü"}, 3, "NEW")


def test_a_worker_in_the_middle_of_slow_work_isnt_idle(rig):
    app = rig.app(batch_size=1)
    orders = app.topic("orders", partitions=1)

    @orders.on("step")
    def step(event, ctx):
        threading.Event().wait(0.5)
        enter(ctx)

    sent = rig.send_many(orders, "abc")
    rig.run(app, until_idle_s=0.2)
    assert rig.ledger() == sent


def test_failing_over_and_over_isnt_activity_and_an_idle_worker_ends(rig):
    app = rig.app()
    orders, _ = failing(app, policy=Policy(max_attempts=10**6, backoff=Backoff(base_s=0.05, cap_s=0.05)))
    rig.send(orders, "a", bad=1)
    rig.run(app, until_idle_s=0.4)
    assert len(rig.parked()) == 1
