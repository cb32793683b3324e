"""Field cases of idempotency (FC-I), exact keys (FC-K) and follow-up messages (FC-X3): one effect, whatever happens."""

import dataclasses
import datetime as dt
import decimal
import enum
import json
import math
import threading
import unicodedata
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rig import QUICK, Rig, enter, wait_until

from seriatim import BrokerError, Reject, Retry
from seriatim.adapters.embedded.consumer import EmbeddedConsumer
from seriatim.core.errors import DuplicateKey
from seriatim.core.store import open_store
from seriatim.core.store.port import NewRecord, Scope


def orders_of(app, partitions=1, **options):
    topic = app.topic("orders", partitions=partitions, policy=QUICK, **options)

    @topic.on("step")
    def step(event, ctx):
        enter(ctx)
        return {"did": ctx.message.biz_key}

    return topic


# FC-I1: marked as seen before the work was done


class Impatient(BaseException):
    """Not even an Exception."""


ERRORS = [ValueError, Impatient, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, RecursionError]


def test_a_message_that_failed_after_its_claim_takes_effect_when_it_runs_again(rig):
    # field case FC-I1: whatever was raised, before the effect or after it
    app = rig.app()
    orders = app.topic("orders", partitions=1, policy=QUICK)

    @orders.on("step")
    def step(event, ctx):
        if event["after"]:
            enter(ctx)
        if ctx.attempt <= 3:
            raise ERRORS[event["error"]]
        if not event["after"]:
            enter(ctx)

    sent = {
        rig.send(orders, f"{error}-{after}", error=error, after=after)
        for error in range(len(ERRORS))
        for after in (False, True)
    }
    rig.run_until(app, lambda: len(rig.ledger()) >= len(sent) and not rig.parked(), "the effects")

    assert sorted(rig.ledger()) == sorted(sent)
    assert {rig.record(biz_key)[:2] for biz_key in sent} == {(2, "applied")}


def test_a_claim_that_the_store_took_back_is_no_mark(rig):
    # field case FC-I1: the store fails at the very last statement of the transaction, after claim and effect
    rig.write("CREATE TABLE switch AS SELECT 1 AS broken")
    rig.write(
        "CREATE TRIGGER breaks BEFORE UPDATE OF status ON idempotent_record WHEN (SELECT broken FROM switch) "
        "BEGIN SELECT RAISE(ABORT, 'disk I/O error'); END"
    )
    app = rig.app()
    orders = orders_of(app)
    biz_key = rig.send(orders, "a")

    with rig.working(app) as witness:
        wait_until(lambda: witness.seen("lane paused"), "the lane's pause")
        assert rig.ledger() == []
        assert rig.record(biz_key) is None
        rig.write("UPDATE switch SET broken = 0")
        wait_until(rig.ledger, "the effect")

    assert rig.ledger() == [biz_key]
    assert rig.record(biz_key) == (2, "applied", json.dumps({"did": biz_key}, separators=(",", ":")).encode(), 1)


# FC-I3: a lease's times are of one unit


def test_a_lease_holds_until_its_end_and_not_beyond(rig):
    # field case FC-I3: of 2 s: alive at 1.8 s, taken over at 2.3 s, by the database's clock
    now = [1_000_000_000]
    store = open_store(rig.store, clock=lambda: now[0])
    scope = Scope("shop", "orders")
    store.declare(scope, ["0"])
    session = store.session()
    try:
        assert session.leases.claim(scope, "0", "me", 2_000_000) is not None
        now[0] += 1_800_000
        assert session.leases.claim(scope, "0", "you", 2_000_000) is None
        now[0] += 500_000
        taken = session.leases.claim(scope, "0", "you", 2_000_000)
        assert taken is not None
        assert not taken.released
    finally:
        session.close()
        store.close()


# FC-I5: slow, and alive


def test_a_handler_of_five_leases_runs_once_and_keeps_its_partition(rig):
    # field case FC-I5
    runs = []

    def slow_app():
        app = rig.app(lease_s=0.4)
        topic = app.topic("orders", partitions=2, policy=QUICK)

        @topic.on("step")
        def step(event, ctx):
            runs.append(ctx.message.biz_key)
            threading.Event().wait(event.get("s", 0))
            enter(ctx)

        return app, topic

    (first, orders), (second, _) = slow_app(), slow_app()
    with rig.working(first) as one, rig.working(second) as other:
        wait_until(lambda: rig.owners() == 2, "two owners")
        slow = rig.send(orders, "a", s=2.0)
        wait_until(lambda: runs, "the slow handler")
        later = [rig.send(orders, key) for key in "ab"]
        wait_until(lambda: len(rig.ledger()) == 3, "the effects")

    assert sorted(runs) == sorted([slow, *later])
    assert rig.ledger("a") == [slow, later[0]]
    lost = [event for witness in (one, other) for event in witness.seen("partition lost")]
    assert lost == []


# FC-I7: two copies at once


def test_copies_of_one_message_in_every_partition_at_once_run_once(rig):
    # field case FC-I7: 8 copies under keys of 8 partitions, 2 workers of 2 lanes
    runs = []

    def app_of():
        app = rig.app(lanes=2)
        topic = app.topic("orders", partitions=8, policy=QUICK)

        @topic.on("step")
        def step(event, ctx):
            runs.append(ctx.message.sharding_key)
            enter(ctx)
            return {"by": "the first"}

        return app, topic

    (first, orders), (second, _) = app_of(), app_of()
    rig.declare(orders)
    with rig.working(first), rig.working(second):
        wait_until(lambda: rig.owners() == 2, "two owners")
        keys = [f"k{number}" for number in range(30)]
        rig.send_all(orders, [orders.message(key=key, type="step", biz_key="pay-1", body={}) for key in keys])
        wait_until(lambda: rig.rows("SELECT sum(duplicates) FROM partition_owner") == [(29,)], "the duplicates")

    assert rig.ledger() == ["pay-1"]
    assert len(runs) == 1
    assert rig.record("pay-1")[:3] == (2, "applied", b'{"by":"the first"}')


def test_the_store_stops_two_copies_that_both_saw_no_record(rig):
    # field case FC-I7: the unique key is the last word, whatever a look-up saw
    scope = Scope("shop", "orders")
    record = NewRecord("pay-1", "step", "a", "0", None, b"\0" * 32, None, 0, 0)
    with rig.opened() as store:
        session = store.session()
        try:
            with session.transaction():
                session.records.claim(scope, [record], 0)
            with pytest.raises(DuplicateKey), session.transaction():
                session.records.claim(scope, [record], 0)
        finally:
            session.close()


# FC-I9: what a record belongs to


def test_each_group_and_each_topic_has_records_of_its_own(rig):
    # field case FC-I9
    ran = []

    def app_of(group):
        app = rig.app(group)
        topics = []
        for name in ("orders", "returns"):
            topic = app.topic(name, partitions=1, policy=QUICK)

            @topic.on("step")
            def step(event, ctx, group=group):
                ran.append((group, ctx.message.topic, ctx.message.biz_key))

            topics.append(topic)
        return app, topics

    apps = [app_of("shop"), app_of("ledger")]
    for topic in apps[0][1]:
        rig.send(topic, "a", biz_key="b-1")
    for app, _ in apps:
        rig.run(app)
        rig.run(app)

    assert sorted(ran) == sorted(
        (group, topic, "b-1") for group in ("shop", "ledger") for topic in ("orders", "returns")
    )


# FC-I11: the record follows the handler, not the delivery


def test_a_handled_message_whose_settling_fails_stays_handled_and_its_copy_gets_the_stored_response(rig, monkeypatch):
    # field case FC-I11
    app = rig.app()
    orders = orders_of(app)
    settle, failures = EmbeddedConsumer.settle, []

    def failing(self, batch, upto):
        if not failures:
            failures.append(upto)
            raise BrokerError("the link is down")
        return settle(self, batch, upto)

    monkeypatch.setattr(EmbeddedConsumer, "settle", failing)
    biz_key = rig.send(orders, "a")
    try:
        rig.run(app)
    finally:
        before = rig.record(biz_key)
    rig.send(orders, "a", biz_key=biz_key)
    rig.run(app)

    assert failures
    assert before[:2] == (2, "applied")
    assert rig.record(biz_key) == before
    assert rig.ledger() == [biz_key]
    assert "duplicate" in rig.witness.outcomes(biz_key)


def test_a_copy_is_told_what_the_handler_said_not_how_the_delivery_ended(rig):
    # field case FC-I11
    app = rig.app()
    orders = app.topic("orders", partitions=1, policy=QUICK, on_dead="skip")
    runs = []

    @orders.on("step")
    def step(event, ctx):
        runs.append(ctx.message.biz_key)
        if ctx.message.sharding_key == "rejected":
            raise Reject("no such order")
        if ctx.message.sharding_key == "parked":
            raise Retry("later", after=3600)
        return {"ok": True}

    keys = ("applied", "rejected", "parked")
    for key in keys * 2:
        rig.send(orders, key, biz_key=key)
    rig.run(app)
    before = [rig.record(key) for key in keys]
    for key in keys:
        rig.send(orders, key, biz_key=key)
    runs.clear()
    rig.run(app)

    assert [record[:3] for record in before] == [
        (2, "applied", b'{"ok":true}'),
        (3, "rejected", b"no such order"),
        (3, "parked", None),
    ]
    assert [rig.record(key) for key in keys] == before
    assert [rig.witness.outcomes(key) for key in keys] == [["duplicate"], ["duplicate"], ["parked"]]
    assert runs == []


# FC-K1: keys compare exactly

LOOKALIKES = [
    ("Order-A", "order-a"),
    ("e", "é"),
    ("caf\u00e9", "cafe\u0301"),
    ("😀", "😁"),
    ("ß", "ss"),
    ("K", "\u212a"),
    ("a", "a "),
    ("a", "a\u200b"),
    ("i", "\u0131"),
    ("\uff21", "A"),
    ("01", "1"),
    ("1", "1.0"),
    ("1e1", "10"),
    ("x'--", 'x"--'),
    ("a%", "ab"),
    ("a_", "ab"),
]


def test_keys_that_only_look_alike_are_two_keys_and_two_records(rig):
    # field case FC-K1: the first of each pair blocks its key; the other is neither blocked nor a duplicate
    app = rig.app()
    blocked = dict.fromkeys(one for one, _ in LOOKALIKES)
    free = dict.fromkeys(other for _, other in LOOKALIKES if other not in blocked)
    orders = app.topic("orders", partitions=1, policy=QUICK)

    @orders.on("step")
    def step(event, ctx):
        if ctx.message.sharding_key in blocked:
            raise Retry("later", after=3600)
        enter(ctx)

    keys = [*blocked, *free]
    rig.send_all(orders, [orders.message(key=key, type="step", biz_key=key, body={}) for key in keys])
    rig.run(app)

    assert {key: rig.record(key)[:2] for key in blocked} == dict.fromkeys(blocked, (3, "parked"))
    assert rig.ledger() == list(free), "one was taken for a duplicate, or for a key that is blocked"


def lookalikes(text):
    variants = {text, text.upper(), text.lower(), text.casefold(), text + " ", text.swapcase()}
    variants |= {unicodedata.normalize(form, text) for form in ("NFC", "NFD", "NFKC", "NFKD")}
    return {one for one in variants if one.strip() and len(one) <= 200}


@settings(max_examples=12)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=20))
def test_of_any_text_every_lookalike_is_a_record_of_its_own(tmp_path_factory, text):
    # field case FC-K1
    variants = sorted(lookalikes(text))
    if not variants:
        return
    rig = Rig(tmp_path_factory.mktemp("keys"))
    app = rig.app()
    orders = orders_of(app)
    messages = [orders.message(key=one, type="step", biz_key=one, body={}) for one in variants]
    rig.send_all(orders, messages + messages)
    with rig.working(app) as witness:
        wait_until(lambda: len(witness.verdicts) == 2 * len(messages), "every verdict")

    assert sorted(rig.ledger()) == variants


# FC-K5: what is the same payload


def nested(order):
    inner = {name: {"depth": 3, name: [1, {"x": None, "y": "ü"}]} for name in order}
    return dict.fromkeys(order, inner)


def test_a_copy_with_its_names_in_another_order_is_a_duplicate_not_a_conflict(rig):
    # field case FC-K5
    app = rig.app()
    orders = orders_of(app)
    first, second = (json.dumps(nested(order)).encode() for order in (("a", "b", "c"), ("c", "a", "b")))
    assert first != second
    for body in (first, second, json.dumps(json.loads(first), indent=2).encode()):
        rig.append(orders, body, key="a", biz_key="b-1", kind="step")
    rig.run(app)

    assert rig.witness.outcomes("b-1") == ["applied", "duplicate", "duplicate"]


def test_a_copy_that_says_something_else_is_a_conflict(rig):
    # field case FC-K5, the other side
    others = [b'{"n":2}', b'{"n":"1"}', b'{"n":true}', b'{"n":1,"m":null}', b'{"N":1}', b'{"n":[1]}', b"[1]", b"", b"{"]
    app = rig.app()
    orders = orders_of(app)
    for number, other in enumerate(others):
        for body in (b'{"n":1}', other):
            rig.append(orders, body, key=f"k{number}", biz_key=f"b{number}", kind="step")
    rig.run(app)

    assert [rig.witness.outcomes(f"b{number}") for number in range(len(others))] == [["applied", "conflict"]] * len(
        others
    )
    assert [row[4] for row in rig.parked("conflict")] == others


# FC-K7: the effect is done, and its result can't be written


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Receipt:
    total: decimal.Decimal


class Opaque:
    """Nothing that JSON knows."""


SAYABLE = [
    (decimal.Decimal("1.10"), b'"1.10"'),
    (dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.timezone.utc), b'"2026-01-02T03:04:05.000006+00:00"'),
    (dt.date(2026, 1, 2), b'"2026-01-02"'),
    (b"\x00\xff", b'"AP8="'),
    ({3, 1, 2}, b"[1,2,3]"),
    (uuid.UUID(int=1), b'"00000000-0000-0000-0000-000000000001"'),
    (Colour.RED, b'"red"'),
    (Receipt(decimal.Decimal(5)), b'{"total":"5"}'),
    ("ü€😀", '"ü€😀"'.encode()),
    (0, b"0"),
    (False, b"false"),
    ("", b'""'),
    ({}, b"{}"),
    (None, None),
]


def test_a_result_with_one_obvious_text_is_stored_and_its_effect_done_once(rig):
    # field case FC-K7
    app = rig.app()
    orders = app.topic("orders", partitions=1, policy=QUICK)

    @orders.on("step")
    def step(event, ctx):
        enter(ctx)
        return SAYABLE[event["case"]][0]

    sent = [rig.send(orders, f"k{case}", case=case) for case in range(len(SAYABLE))]
    for case, biz_key in enumerate(sent):
        rig.send(orders, f"k{case}", biz_key=biz_key, case=case)
    rig.run(app)

    assert [rig.record(biz_key) for biz_key in sent] == [(2, "applied", stored, 1) for _, stored in SAYABLE]
    assert rig.ledger() == sent
    assert [rig.witness.outcomes(biz_key) for biz_key in sent] == [["applied", "duplicate"]] * len(sent)


def circular():
    value = []
    value.append(value)
    return value


class Hostile:
    """Even looking at it fails."""

    def __getattr__(self, name):
        raise RuntimeError(name)


UNSAYABLE = {
    "nan": math.nan,
    "inf": math.inf,
    "object": Opaque(),
    "tuple as a name": {("a", "b"): 1},
    "mixed set": {1, "a"},
    "circular": circular(),
    "half a character": "\ud800",
    "too long": "x" * 70_000,
    "function": lambda: None,
    "generator": (one for one in ()),
    "class": Opaque,
    "decimal not a number": {"n": float("-inf")},
    "hostile": Hostile(),
}


def test_a_result_that_cannot_be_stored_is_its_handler_s_failure_and_leaves_no_effect(rig):
    # field case FC-K7: nothing is committed, so nothing is done twice; the reason is told, other keys go on
    app = rig.app()
    orders = app.topic("orders", partitions=1, policy=QUICK, max_attempts=3)

    @orders.on("step")
    def step(event, ctx):
        enter(ctx)
        return UNSAYABLE.get(ctx.message.sharding_key)

    bad = [rig.send(orders, key, biz_key=key) for key in UNSAYABLE]
    good = rig.send(orders, "good")
    rig.run_until(app, lambda: len(rig.parked("dead")) == len(bad), "their end")

    assert rig.ledger() == [good]
    assert {rig.record(biz_key)[:2] for biz_key in bad} == {(3, "rejected")}
    assert {place for _, place, _, _, _ in rig.parked()} == {"queue"}
    assert all(error for _, _, _, error, _ in rig.parked())


# FC-X3: follow-up messages


def test_a_handler_that_published_and_then_failed_publishes_the_same_again_and_one_effect_comes_of_it(rig):
    # field case FC-X3
    app = rig.app()
    orders = app.topic("orders", partitions=1, policy=QUICK)
    parcels = app.topic("parcels", partitions=1, policy=QUICK)
    sent = []

    with app.producer() as producer:

        @orders.on("paid", once=True)
        def paid(event, ctx):
            enter(ctx)
            follow = parcels.message(key=ctx.message.sharding_key, type="ship", body={"for": ctx.message.biz_key})
            producer.send(follow)
            sent.append(follow.biz_key)
            if ctx.attempt < 3:
                raise ConnectionError("after it was published")

        @parcels.on("ship", once=True)
        def ship(event, ctx):
            enter(ctx)

        rig.send(orders, "o1", "paid", biz_key="o1:paid")
        rig.run_until(app, lambda: len(rig.ledger()) == 2 and not rig.parked(), "both effects")
        rig.run(app)

    assert sent == ["o1:ship"] * 3
    assert sorted(rig.ledger()) == ["o1:paid", "o1:ship"]


# what a process leaves behind


def test_tables_of_the_shop_and_records_are_one_transaction(rig):
    # field case FC-I1: seen from another connection, effect and record appear together or not at all
    app = rig.app()
    orders = app.topic("orders", partitions=1, policy=QUICK)
    seen = []

    @orders.on("step")
    def step(event, ctx):
        enter(ctx)
        seen.append((rig.ledger(), rig.record(ctx.message.biz_key)))

    biz_key = rig.send(orders, "a")
    rig.run(app)

    assert seen[0] == ([], None)
    assert (rig.ledger(), rig.record(biz_key)[:2]) == ([biz_key], (2, "applied"))
