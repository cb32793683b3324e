"""The state machine of an entity: checked when it is built, and judged for every pair of states."""

from __future__ import annotations

import itertools

import pytest

from seriatim.core.errors import ConfigurationError
from seriatim.core.state_machine import Current, Move, StateMachine

ORDERS = {
    "CREATED": (),
    "PAID": ("CREATED",),
    "SHIPPED": ("PAID",),
    "COMPLETED": ("SHIPPED",),
    "CLOSED": ("CREATED",),
    "REFUNDED": ("PAID", "SHIPPED"),
}
NAMES = ("A", "B", "C")


def machine(after, version=None):
    return StateMachine("orders", key="order_no", column="status", after=after, version=version)


def subsets(names):
    return [subset for size in range(len(names) + 1) for subset in itertools.combinations(names, size)]


def graphs():
    """Every graph over three states, legal or not: 512 of them."""
    for choice in itertools.product(subsets(NAMES), repeat=len(NAMES)):
        yield dict(zip(NAMES, choice, strict=True))


def paths(after):
    """Which state reaches which, by the plainest closure."""
    reach = {(before, state) for state in after for before in after[state]}
    while True:
        more = {(a, d) for a, b in reach for c, d in reach if b == c} - reach
        if not more:
            return reach
        reach |= more


def legal():
    for after in graphs():
        reach = paths(after)
        if any(not before for before in after.values()) and not any((name, name) in reach for name in NAMES):
            yield after, reach


def test_a_graph_is_checked_when_it_is_built():
    for after in graphs():
        reach = paths(after)
        begins = any(not before for before in after.values())
        cyclic = any((name, name) in reach for name in NAMES)
        if begins and not cyclic:
            machine(after)
        else:
            with pytest.raises(ConfigurationError, match="cycle" if begins else "without predecessors"):
                machine(after)


def test_a_cyclic_graph_needs_a_version():
    for after in graphs():
        if any(not before for before in after.values()):
            machine(after, version="seq")


def test_every_pair_of_states_of_every_graph_has_one_meaning():
    seen = set()
    for after, reach in legal():
        built = machine(after)
        for state, target in itertools.product(NAMES, repeat=2):
            move = built.judge(Current(state), target)
            seen.add(move)
            assert (move is Move.APPLY) is (state in after[target])
            assert (move is Move.ALREADY) is (state == target)
            assert (move is Move.STALE) is ((target, state) in reach)
            assert (move is Move.EARLY) is ((state, target) in reach and state not in after[target])
            assert (move is Move.ILLEGAL) is (
                state != target and (state, target) not in reach and (target, state) not in reach
            )
    assert seen == set(Move) - {Move.UNKNOWN}


def test_an_absent_row_is_early_unless_the_state_begins():
    for after, _ in legal():
        for target in NAMES:
            assert machine(after).judge(Current(None, present=False), target) is (
                Move.EARLY if after[target] else Move.APPLY
            )


def test_a_state_that_the_graph_doesnt_know_is_never_stale():
    for after, _ in legal():
        for target, version in itertools.product(NAMES, (None, "seq")):
            assert machine(after, version).judge(Current("X", 9), target, 1) is Move.UNKNOWN


@pytest.mark.parametrize(
    ("state", "target", "move"),
    [
        (None, "CREATED", Move.APPLY),
        (None, "PAID", Move.EARLY),
        ("CREATED", "PAID", Move.APPLY),
        ("CREATED", "SHIPPED", Move.EARLY),
        ("PAID", "PAID", Move.ALREADY),
        ("SHIPPED", "PAID", Move.STALE),
        ("CLOSED", "PAID", Move.ILLEGAL),
        ("CLOSED", "SHIPPED", Move.ILLEGAL),
        ("REFUNDED", "COMPLETED", Move.ILLEGAL),
        ("REFUNDED", "PAID", Move.STALE),
        ("LOST", "PAID", Move.UNKNOWN),
    ],
)
def test_an_order_moves_as_people_expect(state, target, move):
    assert machine(ORDERS).judge(Current(state, present=state is not None), target) is move


# -- with a version, for graphs with a cycle

DOOR = {"NEW": (), "OPEN": ("NEW", "SHUT"), "SHUT": ("OPEN",)}


def test_a_version_tells_early_from_stale_on_a_cycle():
    door = machine(DOOR, version="seq")
    for state, target, version, seq in itertools.product(DOOR, DOOR, (None, 1, 2, 3), (1, 2, 3, 4)):
        move = door.judge(Current(state, version), target, seq)
        last = version or 0
        if seq < last:
            assert move is Move.STALE
        elif seq == last:
            assert move is (Move.ALREADY if state == target else Move.STALE)
        else:
            assert move is (Move.APPLY if state in DOOR[target] else Move.EARLY)


def test_a_message_without_seq_cant_be_judged_by_version():
    assert machine(DOOR, version="seq").judge(Current("OPEN", 3), "SHUT", None) is Move.UNKNOWN


# -- wiring


def test_a_predecessor_must_be_a_state():
    with pytest.raises(ConfigurationError, match="'PAYED', which isn't a state"):
        machine({"CREATED": (), "SHIPPED": ("PAYED",)})


def test_predecessors_are_a_tuple_not_a_text():
    with pytest.raises(ConfigurationError, match="must be a tuple"):
        machine({"A": (), "B": "A"})


def test_a_target_must_be_a_state():
    with pytest.raises(ConfigurationError, match="'PAYED' isn't a state; it has CREATED"):
        machine(ORDERS).to("PAYED")


def test_only_a_state_that_begins_can_insert_its_row():
    machine(ORDERS).to("CREATED", insert=lambda event: {"total": event["total"]})
    with pytest.raises(ConfigurationError, match="has predecessors, so its row exists"):
        machine(ORDERS).to("PAID", insert=lambda _: {})


def test_the_graph_can_be_drawn():
    assert machine({"CREATED": (), "PAID": ("CREATED",), "REFUNDED": ("CREATED", "PAID")}).mermaid() == (
        "stateDiagram-v2\n    [*] --> CREATED\n    CREATED --> PAID\n    CREATED --> REFUNDED\n    PAID --> REFUNDED"
    )
