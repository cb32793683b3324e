"""Field cases of failing messages (FC-D, FC-C, FC-O7, FC-R5): nothing is lost, overtaken, or tried for ever."""

import io
import itertools
import json
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rig import LATER, QUICK, Rig, enter, wait_until

from seriatim import Backoff, Early, Policy, Reject, Retry
from seriatim.compensation import verbs
from seriatim.core.log import LogObserver, configure_logging
from seriatim.core.store.port import Scope

SCOPE = Scope("shop", "orders")


def ids_of(rig):
    return {row[0]: row[1] for row in rig.rows("SELECT biz_key, id FROM parked_message ORDER BY id DESC")}


# FC-D1, FC-D3: how often a message is tried


def test_a_message_that_always_fails_follows_the_back_off_and_other_keys_never_wait(rig):
    # field case FC-D1
    app = rig.app()
    policy = Policy(max_attempts=4, tries_at_once=1, backoff=Backoff(base_s=0.3, cap_s=0.6))
    orders = app.topic("orders", partitions=1, policy=policy)
    calls = []

    @orders.on("step")
    def step(event, ctx):
        if ctx.message.sharding_key == "bad":
            calls.append(time.monotonic())
            raise ConnectionError("away")
        enter(ctx)

    rig.send(orders, "bad")
    others = rig.send_many(orders, [f"k{number % 10}" for number in range(300)])
    spent = time.process_time()
    began = time.monotonic()
    with rig.working(app):
        wait_until(lambda: len(rig.ledger()) == len(others), "the others")
        others_took = time.monotonic() - began
        wait_until(lambda: rig.parked("dead"), "the end of the failing one")
    spent = time.process_time() - spent

    gaps = [later - earlier for earlier, later in itertools.pairwise(calls)]
    assert len(calls) == 4
    assert all(gap >= 0.28 for gap in gaps), gaps
    assert others_took < calls[-1] - began
    assert spent < 0.8 * (time.monotonic() - began), "it spins"


@pytest.mark.parametrize("on_failure", ["park", "block", "set_aside"])
@pytest.mark.parametrize("tries_at_once", [1, 2, 5])
def test_three_attempts_are_three_calls_and_then_dead(rig, on_failure, tries_at_once):
    # field case FC-D3
    app = rig.app()
    policy = Policy(max_attempts=3, tries_at_once=tries_at_once, backoff=Backoff(base_s=0.01, cap_s=0.02))
    orders = app.topic("orders", partitions=1, policy=policy, on_failure=on_failure)
    attempts = []

    @orders.on("step")
    def step(event, ctx):
        enter(ctx)
        attempts.append(ctx.attempt)
        raise ValueError("no")

    biz_key = rig.send(orders, "a")
    rig.run_until(app, lambda: rig.parked("dead"), "its end")
    rig.run(app)

    assert attempts == [1, 2, 3]
    assert rig.record(biz_key)[::3] == (3, 3)
    assert rig.record(biz_key)[1] == "rejected"
    assert rig.ledger() == []


# FC-D7: what can't be read

DEEP = b'{"a":' * 50 + b"1" + b"}" * 50
UNREADABLE = {
    "broken UTF-8": b'{"a":"\xff\xfe"}',
    "empty": b"",
    "null": b"null",
    "list": b"[1,2]",
    "text": b'"text"',
    "number": b"7",
    "50 deep": DEEP,
    "100,000 deep": b"[" * 100_000,
    "100,000 deep objects": b'{"a":' * 100_000,
    "cut short": b'{"a":1',
    "two values": b"{}{}",
    "NaN": b'{"a":NaN}',
    "infinite": b'{"a":-Infinity}',
    "a number of 10,000 digits": b'{"a":' + b"9" * 10_000 + b"}",
    "binary": bytes(range(256)),
    "NUL": b"\x00",
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "not JSON": b"<a/>",
}


def test_what_cannot_be_read_is_kept_with_its_bytes_and_the_next_message_is_handled(rig):
    # field case FC-D7
    app = rig.app()
    orders = app.topic("orders", partitions=1, policy=LATER)
    called = []

    @orders.on("step")
    def step(event, ctx):
        called.append((ctx.message.biz_key, event))
        enter(ctx)

    readable_utf_16 = "UTF-16"
    for name, body in UNREADABLE.items():
        rig.append(orders, body, key=name, biz_key=name, kind="step")
    rig.append(orders, b'{"a":1}', key="good", biz_key="good", kind="step")
    rig.append(orders, b'{"a":1}', key="list", biz_key="behind the list", kind="step")
    rig.run(app)

    ran = {biz_key for biz_key, _ in called}
    assert ran - {readable_utf_16} == {"good"}
    kept = {row[0]: row for row in rig.parked("malformed")}
    assert set(kept) == set(UNREADABLE) - ran
    assert all(row[4] == UNREADABLE[name] for name, row in kept.items())
    assert all(row[1] == "queue" for row in kept.values())
    assert all("body" in row[3] for row in kept.values()), [row[3] for row in kept.values()]
    assert [row[0] for row in rig.parked("behind")] == ["behind the list"]


LONG = "x" * 300
NAMELESS = {
    "no key": {"biz_key": "b", "kind": "step"},
    "blank key": {"key": "  ", "biz_key": "b", "kind": "step"},
    "long key": {"key": LONG, "biz_key": "b", "kind": "step"},
    "NUL in the key": {"key": "a\x00b", "biz_key": "b", "kind": "step"},
    "half a character": {"key": "\ud800", "biz_key": "b", "kind": "step"},
}
HALF_NAMED = {
    "no biz_key": {"key": "a", "kind": "step"},
    "blank biz_key": {"key": "a", "biz_key": " ", "kind": "step"},
    "long biz_key": {"key": "a", "biz_key": LONG, "kind": "step"},
    "no type": {"key": "a", "biz_key": "b"},
    "long type": {"key": "a", "biz_key": "b", "kind": LONG},
}


@pytest.mark.parametrize("how", NAMELESS)
def test_a_message_without_a_readable_key_is_kept_alone(rig, how):
    # field case FC-D7
    app = rig.app()
    orders = app.topic("orders", partitions=1, policy=LATER)
    orders.on("step")(lambda event, ctx: enter(ctx))
    rig.append(orders, b"{}", **NAMELESS[how])
    rig.append(orders, b"{}", key="good", biz_key="good", kind="step")
    rig.run(app)

    assert rig.ledger() == ["good"]
    [(_, place, reason, error, body)] = rig.parked()
    assert (place, reason, body) == ("closed", "malformed", b"{}")
    assert "sharding key" in error


@pytest.mark.parametrize("how", HALF_NAMED)
def test_a_message_whose_key_can_be_read_holds_that_key_up(rig, how):
    # field case FC-D7: what comes after it must not overtake it
    app = rig.app()
    orders = app.topic("orders", partitions=1, policy=LATER)
    orders.on("step")(lambda event, ctx: enter(ctx))
    rig.append(orders, b"{}", **HALF_NAMED[how])
    rig.append(orders, b"{}", key="a", biz_key="next", kind="step")
    rig.append(orders, b"{}", key="good", biz_key="good", kind="step")
    rig.run(app)

    assert rig.ledger() == ["good"]
    assert [row[2] for row in rig.parked()] == ["malformed", "behind"]
    assert any(word in rig.parked()[0][3] for word in ("biz_key", "type"))


TEXTS = st.text(st.characters(exclude_categories=[]), max_size=12)
RAW = st.dictionaries(
    st.sampled_from(
        ["key", "biz-key", "type", "produced-at", "state", "seq", "reply-to", "correlation-id", "x", ""]
    ).map(lambda name: f"seriatim-{name}" if name else name),
    TEXTS
    | st.sampled_from(["a", "step", "1", "-1", "1e400", "nan", "inf", "1e18", "9" * 19, "9" * 400, "1.5", "0x1", LONG])
    | st.floats().map(repr)
    | st.integers().map(str),
)


@settings(max_examples=15)
@given(st.lists(st.tuples(RAW, st.binary(max_size=20) | st.just(b"{}")), min_size=1, max_size=30))
def test_no_delivery_whatsoever_stops_its_partition(tmp_path_factory, deliveries):
    # field case FC-D7, the kind: each ends as an effect, parked, or a duplicate; what follows is handled
    rig = Rig(tmp_path_factory.mktemp("hostile"))
    app = rig.app()
    orders = app.topic("orders", partitions=1, policy=LATER)
    orders.on("step")(lambda event, ctx: enter(ctx))
    for raw, body in deliveries:
        rig.append(orders, body, raw=raw)
    rig.append(orders, b"{}", key="the last", biz_key="the last", kind="step")
    with rig.working(app) as witness:
        wait_until(lambda: witness.arrivals() == len(deliveries) + 1, "every verdict")

    assert "the last" in rig.ledger()


# FC-O7, FC-C3, FC-C5, FC-C12: how a key comes back


def test_a_handler_that_failed_for_a_long_while_recovers_without_a_restart(rig):
    # field case FC-O7
    app = rig.app()
    orders = app.topic("orders", partitions=1, policy=Policy(max_attempts=10**6, backoff=Backoff(0.01, 0.03)))
    away = [True]

    @orders.on("step")
    def step(event, ctx):
        if away[0] and ctx.message.sharding_key == "a":
            raise ConnectionError("away")
        enter(ctx)

    with rig.working(app) as witness:
        sent = rig.send_many(orders, ["a"] * 60)
        wait_until(lambda: len(witness.outcomes(sent[0])) > 5, "some tries")
        rig.send(orders, "b")
        wait_until(lambda: rig.ledger("b"), "the other key")
        assert rig.ledger("a") == []
        away[0] = False
        wait_until(lambda: len(rig.ledger("a")) == len(sent), "the recovery")

    assert rig.ledger("a") == sent
    assert rig.parked() == []


class NoText(Exception):
    def __str__(self):
        raise RuntimeError("not even that")


class NoEnd(Exception):
    def __init__(self):
        super().__init__("x" * 10_000_000)


def loop():
    error = ValueError("a")
    error.__cause__ = error
    raise error


def endless():
    return endless()


def raising(error):
    def run():
        raise error

    return run


ODD = {
    "no text": raising(NoText()),
    "half a character": raising(ValueError("\ud800")),
    "NUL": raising(ValueError("a\x00b")),
    "ten megabytes": raising(NoEnd()),
    "its own cause": loop,
    "a group": raising(OSError(OSError(OSError()))),
    "exit": lambda: sys.exit(0),
    "stop": raising(StopIteration()),
    "recursion": endless,
    "rejected with half a character": raising(Reject("\ud800")),
    "rejected with nothing": raising(Reject()),
    "rejected with bytes": raising(Reject(b"\xff")),
    "retry now": lambda: raise_(Retry(after=0)),
    "retry in the past": lambda: raise_(Retry(after=-5)),
    "retry never": lambda: raise_(Retry(after=float("inf"))),
    "retry at no time": lambda: raise_(Retry(after=float("nan"))),
    "retry in ages": lambda: raise_(Retry(after=1e300)),
    "retry in a while": lambda: raise_(Retry(after=1e15)),
    "retry in words": lambda: raise_(Retry(after="soon")),
    "early for an object": lambda: raise_(Early(waiting_for=(object(),))),
    "early for bytes": lambda: raise_(Early(waiting_for=(b"\xff",))),
    "early for half a character": lambda: raise_(Early(waiting_for="\ud800")),
    "early for a number": lambda: raise_(Early(waiting_for=5)),
    "early for ever so much": lambda: raise_(Early(waiting_for=tuple(str(n) for n in range(5000)))),
}


def raise_(error):
    raise error


@pytest.mark.parametrize("at", ["once", "for ever"])
def test_whatever_a_handler_raises_harms_its_own_message_alone(rig, at):
    # field case FC-O7: every odd end maps to retry or to a final answer, never to a stall
    app = rig.app()
    orders = app.topic("orders", partitions=1, policy=QUICK, max_attempts=3)

    @orders.on("step")
    def step(event, ctx):
        enter(ctx)
        if ctx.message.sharding_key in ODD and (at == "for ever" or ctx.attempt == 1):
            ODD[ctx.message.sharding_key]()

    def ended(name, biz_key):
        record = rig.record(biz_key)
        waits = name in {"retry never", "retry in ages", "retry in a while"} or name.startswith("early")
        return record is not None and (waits or record[1] != "parked")

    bad = {name: rig.send(orders, name) for name in ODD}
    good = rig.send(orders, "good")
    rig.run_until(app, lambda: all(ended(name, biz_key) for name, biz_key in bad.items()), "every end")

    assert good in rig.ledger()
    for name, biz_key in bad.items():
        status, outcome, *_ = rig.record(biz_key)
        assert (status, outcome) in {(2, "applied"), (3, "parked"), (3, "rejected"), (3, "early")}, name
        assert (biz_key in rig.ledger()) == (status == 2), name


def test_later_messages_of_a_failing_key_wait_and_keep_their_order_and_other_keys_never_do(rig):
    # field case FC-C3
    app = rig.app()
    orders = app.topic("orders", partitions=1, policy=Policy(max_attempts=10**6, backoff=Backoff(0.02, 0.05)))
    away = [True]

    @orders.on("step")
    def step(event, ctx):
        if away[0] and event.get("first"):
            raise ConnectionError("away")
        enter(ctx)

    with rig.working(app) as witness:
        first = rig.send(orders, "a", first=True)
        wait_until(lambda: rig.parked("failed"), "the failure")
        rest = [rig.send(orders, "a") for _ in range(2)]
        other = rig.send(orders, "b")
        wait_until(lambda: other in rig.ledger(), "the other key")
        wait_until(lambda: len(rig.parked("behind")) == 2, "the ones behind")
        assert rig.ledger() == [other]
        away[0] = False
        wait_until(lambda: len(rig.ledger("a")) == 3, "the key")

    assert rig.ledger("a") == [first, *rest]
    assert witness.outcomes(rest[0]) == ["parked", "applied"]


def test_parked_messages_come_back_in_their_order_whatever_was_written_to_their_rows_since(rig):
    # field case FC-C5
    app = rig.app()
    orders = app.topic("orders", partitions=1, policy=QUICK, on_dead="block_key")

    @orders.on("step")
    def step(event, ctx):
        if event.get("bad"):
            raise Reject("no")
        enter(ctx)

    keys = ("a", "b")
    heads = {key: rig.send(orders, key, bad=True) for key in keys}
    behind = {key: rig.send_many(orders, [key] * 120) for key in keys}
    rig.run_until(app, lambda: len(rig.parked()) == 242, "the parked ones")
    assert rig.ledger() == []
    ids = [row[0] for row in rig.rows("SELECT id FROM parked_message ORDER BY id")]
    assert len(ids) == 242
    rig.write("UPDATE parked_message SET parked_at = -id, received_at = -id")
    with rig.opened() as store:
        for key in keys:
            verbs.skip(store, SCOPE, ids_of(rig)[heads[key]], "me")
    rig.run_until(app, lambda: len(rig.ledger()) == 240, "the rest")

    assert {key: rig.ledger(key) for key in keys} == behind


def test_after_many_failures_the_next_try_is_within_the_cap_and_an_operator_s_retry_is_at_once_and_in_order(rig):
    # field case FC-C12
    app = rig.app()
    policy = Policy(max_attempts=100, tries_at_once=1, backoff=Backoff(base_s=0.001, cap_s=0.01))
    orders = app.topic("orders", partitions=1, policy=policy)
    away = [True]

    @orders.on("step")
    def step(event, ctx):
        if away[0]:
            raise Retry("slept for hours", after=7200) if ctx.attempt > 12 else ConnectionError("away")
        enter(ctx)

    sent = [rig.send(orders, "a") for _ in range(3)]
    with rig.working(app) as witness:
        wait_until(lambda: len(witness.outcomes(sent[0])) == 13, "13 failures")
        waits = [one.wait_s for one in witness.verdicts if one.wait_s is not None][:12]
        assert max(waits) <= 0.01
        away[0] = False
        with rig.opened() as store:
            refused = verbs.retry(store, SCOPE, ids_of(rig)[sent[1]], "me")
            done = verbs.retry(store, SCOPE, ids_of(rig)[sent[0]], "me")
        wait_until(lambda: len(rig.ledger()) == 3, "the key", 5)

    assert not refused.changed
    assert done.changed
    assert rig.ledger() == sent


# FC-R5: one key in two topics


def test_one_pool_serves_the_same_keys_in_two_topics_in_the_order_of_each(rig):
    # field case FC-R5
    app = rig.app(lanes=2)
    topics = [app.topic(name, partitions=2, policy=QUICK) for name in ("orders", "returns")]
    for topic in topics:

        @topic.on("step")
        def step(event, ctx):
            enter(ctx, ctx.message.topic)

    keys = [f"k{number}" for number in range(6)]
    sent = {(topic.name, key): [f"{key}/{n}" for n in range(50)] for topic in topics for key in keys}
    for topic in topics:
        rig.send_all(
            topic,
            [topic.message(key=key, type="step", biz_key=f"{key}/{n}", body={}) for n in range(50) for key in keys],
        )
    rig.run(app, until_idle_s=0.4)

    rows = rig.rows("SELECT note, key, biz_key FROM ledger ORDER BY id")
    assert len(rows) == 600
    for (topic, key), biz_keys in sent.items():
        assert [row[2] for row in rows if row[:2] == (topic, key)] == biz_keys


def test_a_parked_key_of_one_topic_doesn_t_hold_up_the_other_topic(rig):
    # field case FC-R5, the kind
    app = rig.app()
    orders, returns = (app.topic(name, partitions=1, policy=QUICK) for name in ("orders", "returns"))

    @orders.on("step")
    def fails(event, ctx):
        raise Reject("no")

    @returns.on("step")
    def works(event, ctx):
        enter(ctx)

    rig.send(orders, "a", biz_key="b")
    rig.send(returns, "a", biz_key="b")
    rig.send(returns, "a", biz_key="c")
    rig.run(app)

    assert rig.ledger() == ["b", "c"]


def test_a_response_too_strange_for_a_log_line_doesn_t_matter(rig):
    # field case FC-O7, the kind: what is written for people may not fail either
    app = rig.app()
    orders = app.topic("orders", partitions=1, policy=LATER)

    @orders.on("step")
    def step(event, ctx):
        if ctx.message.sharding_key == "b":
            raise Reject("\ud800\n\x1b[31m")

    raw = {"seriatim-state": "\ud800", "seriatim-produced-at": "1"}
    rig.append(orders, b"{}", key="a\n\u2028b", biz_key="b1", kind="step", raw=raw)
    rig.append(orders, b"{}", key="b", biz_key="b2", kind="step")
    told = {}
    for form in ("json", "human"):
        stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict")
        configure_logging(form, "INFO", stream)
        with app.worker(LogObserver()) as worker:
            worker.run(0.2)
        stream.flush()
        told[form] = [line for line in stream.buffer.getvalue().decode().split("\n") if "biz_key" in line]
    assert [json.loads(line)["biz_key"] for line in told["json"]] == ["b1", "b2"]
