"""`seriatim trace`: a key's whole story, in the order of time."""

import json

import pytest
from sqlalchemy import text
from support.programs import here

from seriatim import StateMachine
from seriatim.compensation.story import newest
from seriatim.compensation.verbs.holding import last_seen
from seriatim.core.store.schema import attempt_log, idempotent_record, operator_action, parked_message

from .test_operator_verbs import SCOPE, blocked, do, edited, ids, shop


def trace(rig, *arguments):
    return here(rig.folder, "trace", *arguments)


def story(rig, key, *arguments):
    told = trace(rig, key, "--json", *arguments)
    assert told.code == 0, told
    [one] = json.loads(told.out)["stories"]
    return one


def what(events, biz_key=None):
    return [event["what"] for event in events if biz_key in (None, event["biz_key"])]


def test_the_whole_story_of_a_key_that_failed_was_mended_and_came_back(rig):
    app, orders, _, sent = blocked(rig, "always")
    rig.write("UPDATE parked_key SET next_attempt_at = 1")
    rig.run(app)
    do(rig, "hold", "a", "ann")
    do(rig, "release", "a", "bob")
    rig.run(app)
    do(rig, "edit", ids(rig)[sent[0]], "cleo", edited())
    rig.run(app)
    del orders

    told = story(rig, "a")
    assert (told["group"], told["topic"], told["key"], told["partitions"]) == ("shop", "orders", "a", ["0"])
    times = [event["at"] for event in told["events"]]
    assert times == sorted(times)
    assert what(told["events"], sent[0]) == [
        "produced",
        "received",
        "attempt failed",
        "attempt failed",
        "attempt failed",
        "operator",
        "operator",
        "outcome",
    ]
    failures = [event["details"] for event in told["events"] if event["what"] == "attempt failed"]
    assert [one["attempts"] for one in failures] == [1, 2, 3]
    assert {(one["error_type"], one["error"], one["then"]) for one in failures} == {
        ("ConnectionError", "always away", "parked")
    }
    verbs = [(e["details"]["who"], e["details"]["verb"]) for e in told["events"] if e["what"] == "operator"]
    assert verbs == [("ann", "hold"), ("bob", "release"), ("cleo", "edit"), ("cleo", "retry")]
    last = [event for event in told["events"] if event["biz_key"] == sent[0]][-1]["details"]
    assert (last["outcome"], last["first_outcome"], last["edited"], last["redelivered"]) == (
        "applied",
        "parked",
        True,
        True,
    )
    outcomes = [event["biz_key"] for event in told["events"] if event["what"] == "outcome"]
    assert outcomes == sent, "those behind came after it"
    assert told["standing"] is None

    printed = trace(rig, "a").out
    for words in (
        "attempt 2: ConnectionError: always away; parked, next",
        "cleo: retry",
        "held False, depth 3",
        "applied at attempt 1 (redelivered); at first parked; its body was edited by an operator",
        "now: free, nothing is parked",
    ):
        assert words in printed, printed
    lines = printed.splitlines()
    order = [next(n for n, line in enumerate(lines) if word in line) for word in ("produced", "received", "attempt 1")]
    assert order == sorted(order)


def test_a_blocked_key_s_story_says_how_it_stands(rig):
    _, _, _, sent = blocked(rig)
    told = story(rig, "a")
    assert what(told["events"], sent[1]) == ["produced", "received", "parked"]
    assert (told["standing"]["depth"], told["standing"]["head"]) == (3, ids(rig)[sent[0]])
    assert f"now: blocked behind #{ids(rig)[sent[0]]}" in trace(rig, "a").out
    do(rig, "hold", "a", "ann")
    assert "now: held by an operator" in trace(rig, "a").out


def test_a_dead_head_and_a_conflict_and_an_early_one_are_told(rig):
    app, orders, _ = shop(rig)
    dead = rig.send(orders, "a", how="dead")
    early = rig.send(orders, "b", how="early")
    rig.run(app)
    rig.send(orders, "a", biz_key=dead, how="dead", n=9)
    rig.run(app)
    told = story(rig, "a")
    assert "dead" in [event["details"].get("then") for event in told["events"]]
    assert "conflict" in [event["details"].get("reason") for event in told["events"]]
    assert [e["details"]["outcome"] for e in told["events"] if e["what"] == "outcome"] == ["rejected"]
    printed = trace(rig, "a").out
    assert "the head is dead" in printed
    assert "no such order; dead" in printed
    assert what(story(rig, "b")["events"], early) == ["produced", "received", "early", "parked"]
    assert "waits for never" in trace(rig, "b").out
    assert "now: 1 aside" in trace(rig, "b").out


def test_transitions_are_told_with_the_states_before_and_after(rig):
    app = rig.app()
    orders = app.topic("orders", partitions=1)
    machine = StateMachine("orders", key="order_no", column="status", after={"NEW": (), "PAID": ("NEW",)})
    for kind, state in (("new", "NEW"), ("paid", "PAID")):
        orders.on(kind, moves=machine.to(state))(new if state == "NEW" else lambda event, ctx: None)
    rig.send(orders, "o1", "new")
    rig.send(orders, "o1", "paid")
    rig.send(orders, "o1", "paid")
    rig.run(app)
    outcomes = [event["details"] for event in story(rig, "o1")["events"] if event["what"] == "outcome"]
    assert [(one["outcome"], one.get("moved")) for one in outcomes] == [
        ("applied", [None, "NEW"]),
        ("applied", ["NEW", "PAID"]),
        ("already", ["PAID", None]),
    ]
    printed = trace(rig, "o1").out
    assert "NEW → PAID" in printed
    assert "(no row) → NEW" in printed


def new(event, ctx):
    insert = text("INSERT INTO orders (order_no, status) VALUES (:key, 'NEW')")
    ctx.tx.execute(insert, {"key": ctx.message.sharding_key})


def test_duplicates_are_told_as_far_as_they_are_known(rig):
    app, orders, _ = shop(rig)
    one = rig.send(orders, "a")
    rig.run(app)
    rig.send(orders, "a", biz_key=one)
    rig.run(app)
    assert story(rig, "a")["duplicates"] == 1
    assert "duplicates stopped in its partition, of whatever key: 1" in trace(rig, "a").out


def test_a_message_is_found_by_its_biz_key_too(rig):
    _, _, _, sent = blocked(rig)
    assert story(rig, sent[0])["key"] == "a"
    assert story(rig, sent[1])["key"] == "a", "one behind has no record"


def test_a_key_of_several_groups_has_several_stories_unless_one_is_named(rig):
    for group in ("shop", "billing"):
        app = rig.app(group)
        orders = app.topic("orders", partitions=1)
        orders.on("step")(lambda event, ctx: None)
        if group == "shop":
            rig.send(orders, "a")
        rig.run(app)
    assert len(json.loads(trace(rig, "a", "--json").out)["stories"]) == 2
    assert story(rig, "a", "--group", "billing")["group"] == "billing"


def test_an_unknown_key_is_said_to_be_unknown_with_those_near_it(rig):
    app, orders, _ = shop(rig)
    for key in ("order-17", "order-18", "else"):
        rig.send(orders, key)
    rig.run(app)
    told = trace(rig, "order-19")
    assert told.code == 2
    assert "nothing is known of key 'order-19' in shop/orders" in told.err
    assert "order-17, order-18" in told.err
    assert "else" not in told.err
    assert trace(rig, "a", "--topic", "nothing").code == 2


def test_the_newest_of_a_long_story_are_told_and_read_through_indexes(rig):
    app, orders, _ = shop(rig)
    sent = rig.send_many(orders, ["a"] * 40)
    rig.run(app)
    told = story(rig, "a", "--limit", "10")
    assert len(told["events"]) == 10
    assert told["more"]
    assert [event["biz_key"] for event in told["events"]] == sent[-10:]
    assert what(told["events"]) == ["outcome"] * 10
    assert "older events were left out" in trace(rig, "a", "--limit", "10").out
    assert not story(rig, "a", "--limit", "1000")["more"]
    tables = (attempt_log, idempotent_record, operator_action, parked_message)
    for query in (last_seen(SCOPE, "k"), *(newest(table, SCOPE, "k", 10) for table in tables)):
        steps = [row[3] for row in plan(rig, query) if "SEARCH" in row[3] or "SCAN" in row[3]]
        assert all(
            "sharding_key=?" in step
            or "biz_key=?" in step
            or "SCAN found" in step
            or "SCAN newest" in step
            or "SCAN anon" in step
            for step in steps
        ), steps


def plan(rig, query):
    return rig.rows(f"EXPLAIN QUERY PLAN {query.compile(compile_kwargs={'literal_binds': True})}")


def test_what_a_message_says_does_nothing_to_the_terminal(rig):
    app = rig.app()
    orders = app.topic("orders", partitions=1)

    @orders.on("step")
    def step(event, ctx):
        raise ValueError("\x1b]0;owned\x07 [bold]x[/]\u202e")

    rig.send(orders, "a\x1b[2J", biz_key="b\x9b31m")
    rig.run(app)
    printed = trace(rig, "a\x1b[2J").out
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(printed)
    assert "[bold]x[/]" in printed


@pytest.mark.parametrize("limit", ["0", "x"])
def test_a_limit_that_is_none_is_refused(rig, limit):
    assert trace(rig, "a", "--limit", limit).code == 2
