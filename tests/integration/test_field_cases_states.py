"""Field cases of the state machine (FC-M) and of time (FC-T1): late, early and illegal events; due is due."""

import itertools
import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rig import LATER, QUICK, Rig, enter, wait_until

from seriatim import Backoff, Early, Policy, StateMachine
from seriatim.core.decision import KeyStanding
from seriatim.core.store import open_store
from seriatim.core.store.port import Scope, Writes

AFTER = {
    "CREATED": (),
    "PAID": ("CREATED",),
    "SHIPPED": ("PAID",),
    "COMPLETED": ("SHIPPED",),
    "CLOSED": ("CREATED",),
    "REFUNDED": ("PAID", "SHIPPED"),
}
PATH = ["CREATED", "PAID", "SHIPPED", "COMPLETED"]


def orders_of(app, partitions=1, policy=LATER):
    machine = StateMachine("orders", key="order_no", column="status", after=AFTER)
    topic = app.topic("orders", partitions=partitions, policy=policy)
    for state, before in AFTER.items():
        insert = None if before else lambda event: {}

        @topic.on(state, moves=machine.to(state, insert=insert))
        def move(event, ctx):
            enter(ctx)

    return topic


def send_states(rig, topic, order, *states):
    return [rig.send(topic, order, state, biz_key=f"{order}:{state}") for state in states]


# FC-M1: late events


def test_a_late_event_leaves_a_finished_state_as_it_is_and_is_noted_as_stale(rig):
    # field case FC-M1
    app = rig.app()
    orders = orders_of(app)
    rig.write("INSERT INTO orders VALUES ('o1', 'SHIPPED', NULL)")
    [late, done] = send_states(rig, orders, "o1", "PAID", "SHIPPED")
    rig.run(app)

    assert rig.status_of("o1") == "SHIPPED"
    assert rig.record(late)[:2] == (2, "stale")
    assert rig.record(done)[:2] == (2, "already")
    assert rig.ledger() == [], "a handler ran for an event that moved nothing"
    assert rig.parked() == []


def test_of_every_pair_of_states_the_event_is_judged_by_the_graph(rig):
    # field case FC-M1, the kind: all pairs
    app = rig.app()
    orders = orders_of(app)
    reaches = {state: ahead(state) for state in AFTER}
    for current, wanted in itertools.product(AFTER, AFTER):
        rig.write("INSERT INTO orders VALUES (?, ?, NULL)", f"{current}>{wanted}", current)
        send_states(rig, orders, f"{current}>{wanted}", wanted)
    rig.run(app)

    for current, wanted in itertools.product(AFTER, AFTER):
        order = f"{current}>{wanted}"
        outcome = rig.record(f"{order}:{wanted}")[1]
        if current == wanted:
            expected = "already"
        elif current in AFTER[wanted]:
            expected = "applied"
        elif wanted in reaches[current]:
            expected = "early"
        else:
            expected = "stale"
        assert outcome == expected, order
        assert rig.status_of(order) == (wanted if expected == "applied" else current), order


def ahead(state):
    found, todo = set(), [state]
    while todo:
        here = todo.pop()
        for following, before in AFTER.items():
            if here in before and following not in found:
                found.add(following)
                todo.append(following)
    return found


@pytest.mark.parametrize("strange", ["LOST", "", "paid", "PAID "])
def test_a_state_that_the_graph_does_not_know_parks_the_message_and_is_named(rig, strange):
    # field case FC-M1, the kind: never taken for stale
    app = rig.app()
    orders = orders_of(app)
    rig.write("INSERT INTO orders VALUES ('o1', ?, NULL)", strange)
    [biz_key] = send_states(rig, orders, "o1", "SHIPPED")
    rig.run(app)

    assert rig.record(biz_key)[0] == 3
    [(_, place, _, error, _)] = rig.parked()
    assert place == "queue"
    assert repr(strange) in error
    assert rig.status_of("o1") == strange


def test_a_row_without_a_state_is_no_absent_row(rig):
    # field case FC-M1, the kind: NULL is a state that the graph doesn't know
    app = rig.app()
    orders = orders_of(app)
    rig.write("INSERT INTO orders VALUES ('o1', NULL, NULL), ('o2', NULL, NULL)")
    keys = [*send_states(rig, orders, "o1", "PAID"), *send_states(rig, orders, "o2", "CREATED")]
    rig.run(app)

    assert [rig.record(biz_key)[1] for biz_key in keys] == ["parked", "parked"]
    assert all("None" in error or "NULL" in error for _, _, _, error, _ in rig.parked())


# FC-M3: early events


def test_an_early_event_waits_and_is_applied_after_its_predecessor(rig):
    # field case FC-M3
    app = rig.app()
    orders = orders_of(app)
    [paid] = send_states(rig, orders, "o1", "PAID")
    rig.run(app)
    assert rig.record(paid)[:2] == (3, "early")
    assert rig.parked()[0][1:3] == ("aside", "early")

    [created] = send_states(rig, orders, "o1", "CREATED")
    rig.run(app)

    assert rig.ledger() == [created, paid]
    assert rig.status_of("o1") == "PAID"
    assert rig.parked() == []


def test_an_early_event_blocks_nobody_not_even_its_own_key(rig):
    # field case FC-M3
    app = rig.app()
    orders = orders_of(app)
    rig.write("INSERT INTO orders VALUES ('o1', 'CREATED', NULL)")
    send_states(rig, orders, "o1", "COMPLETED", "PAID")
    send_states(rig, orders, "o2", "CREATED")
    rig.run(app)

    assert rig.ledger() == ["o1:PAID", "o2:CREATED"]


SHORT = Policy(early_deadline_s=0.3, backoff=Backoff(base_s=0.05, cap_s=0.1))


@pytest.mark.parametrize("goes_on", [True, False], ids=["others go on", "nothing more arrives"])
def test_an_early_event_is_dead_after_its_deadline_and_even_then_blocks_nobody(rig, goes_on):
    # field case FC-M3
    app = rig.app()
    orders = orders_of(app, policy=SHORT)
    [paid] = send_states(rig, orders, "o1", "PAID")
    numbers = itertools.count()

    def dead():
        if goes_on:
            send_states(rig, orders, f"x{next(numbers)}", "CREATED")
        return rig.parked("dead")

    with rig.working(app):
        wait_until(dead, "the early one's end", 8)

    assert rig.record(paid)[:2] == (3, "rejected")
    assert rig.parked()[0][1] == "closed"
    [created] = send_states(rig, orders, "o1", "CREATED")
    rig.run(app)
    assert created in rig.ledger()


def test_a_handler_s_own_early_waits_for_the_message_it_names(rig):
    # field case FC-M3
    app = rig.app()
    orders = app.topic("orders", partitions=1, policy=Policy(backoff=Backoff(base_s=3600, cap_s=3600)))
    arrived = set()

    @orders.on("step")
    def step(event, ctx):
        needs = event.get("needs")
        if needs and needs not in arrived:
            raise Early(f"{needs} hasn't come", waiting_for=needs)
        arrived.add(ctx.message.biz_key)
        enter(ctx)

    rig.send(orders, "a", biz_key="third", needs="second")
    rig.send(orders, "a", biz_key="second", needs="first")
    rig.run(app)
    assert rig.ledger() == []
    rig.send(orders, "a", biz_key="first")
    rig.run(app)

    assert rig.ledger() == ["first", "second", "third"]
    assert rig.parked() == []


@settings(max_examples=8)
@given(st.randoms(use_true_random=False), st.booleans())
def test_events_in_any_order_end_in_the_last_state_with_each_effect_once(tmp_path_factory, shuffler, together):
    # field cases FC-M3 and FC-M6: each order's events shuffled, at once or one run apart
    rig = Rig(tmp_path_factory.mktemp("early"))
    app = rig.app()
    orders = orders_of(app, partitions=2)
    names = [f"o{number}" for number in range(6)]
    events = [(name, state) for name in names for state in PATH]
    shuffler.shuffle(events)
    messages = [orders.message(key=name, type=state, biz_key=f"{name}:{state}", body={}) for name, state in events]
    half = len(messages) // 2
    for part in [messages] if together else [messages[:half], messages[half:]]:
        rig.send_all(orders, part)
        with rig.working(app) as witness:
            wait_until(lambda arrived=witness.arrivals, part=part: arrived() >= len(part), "every verdict")

    assert [rig.status_of(name) for name in names] == ["COMPLETED"] * len(names)
    for name in names:
        assert rig.ledger(name) == [f"{name}:{state}" for state in PATH]
    assert rig.parked() == []


def test_many_early_events_under_load_are_all_applied(rig):
    # field case FC-M6: 500 shuffled events of 125 orders, several lanes, a second worker coming in
    app, other = rig.app(lanes=2), rig.app(lanes=2)
    orders, _ = orders_of(app, partitions=4), orders_of(other, partitions=4)
    names = [f"o{number}" for number in range(125)]
    events = [(name, state) for name in names for state in PATH]
    random.Random(6).shuffle(events)
    rig.send_all(
        orders,
        [orders.message(key=name, type=state, biz_key=f"{name}:{state}", body={}) for name, state in events],
    )
    with rig.working(app):
        wait_until(rig.ledger, "the first effect")
        with rig.working(other):
            wait_until(
                lambda: rig.rows("SELECT count(*) FROM orders WHERE status = 'COMPLETED'") == [(len(names),)],
                "every order's end",
                40,
            )

    assert rig.parked() == []
    assert len(rig.ledger()) == len(events)
    for name in names:
        assert rig.ledger(name) == [f"{name}:{state}" for state in PATH]


def test_an_early_event_behind_a_failing_one_waits_for_it(rig):
    # field cases FC-M3 and FC-C3 together: its predecessor is there, but parked
    app = rig.app()
    machine = StateMachine("orders", key="order_no", column="status", after=AFTER)
    orders = app.topic("orders", partitions=1, policy=QUICK)
    mended = threading.Event()

    @orders.on("CREATED", moves=machine.to("CREATED", insert=lambda event: {}))
    def created(event, ctx):
        if not mended.is_set():
            raise ConnectionError("the warehouse is away")
        enter(ctx)

    @orders.on("PAID", moves=machine.to("PAID"))
    def paid(event, ctx):
        enter(ctx)

    send_states(rig, orders, "o1", "CREATED", "PAID")
    with rig.working(app):
        wait_until(lambda: len(rig.parked()) == 2, "both parked")
        assert [row[2] for row in rig.parked()] == ["failed", "behind"]
        mended.set()
        wait_until(lambda: not rig.parked(), "both done")

    assert rig.ledger() == ["o1:CREATED", "o1:PAID"]


# FC-T1: due now is not in the future


@pytest.mark.parametrize("fraction", [0, 1, 499_999, 500_000, 999_999])
def test_what_is_due_at_any_fraction_of_a_second_is_picked_at_that_microsecond(rig, fraction):
    # field case FC-T1
    now = [1_700_000_000_000_000 + fraction]
    store = open_store(rig.store, clock=lambda: now[0])
    scope, due = Scope("shop", "orders"), now[0]
    store.declare(scope, ["0"])
    session = store.session()
    try:
        with session.transaction():
            key = KeyStanding(depth=1, attempts=1, due_at=due)
            session.write(scope, Writes(keys={"a": ("0", key)}), session.now())
        assert session.parking.outlook(scope, "0").due_at == due
        assert session.parking.keys(scope, ["a"])["a"].due_at == due
        assert session.parking.due_keys(scope, "0", session.now(), 10) == ["a"]
        assert session.parking.due_keys(scope, "0", due - 1, 10) == []
        now[0] -= 1
        assert session.now() == due - 1
    finally:
        session.close()
        store.close()
