"""What the shop sends in the demo: whole lives of orders, with the mistakes that real senders and networks make.

Pure and seeded: `plan` says in advance what will be sent, in which order, and how each order must end.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from examples.orders.app import orders
from seriatim import Message

LIVES: Sequence[tuple[float, Sequence[str]]] = (
    (0.80, ("created", "paid", "shipped", "completed")),
    (0.10, ("created", "closed")),
    (0.05, ("created", "paid", "refunded")),
    (0.05, ("created", "paid", "shipped", "refunded")),
)
SOON = 100  #: a soon duplicate follows within so many messages
UNITS = 3  #: an order takes at most so many


@dataclass(frozen=True, slots=True)
class Traffic:
    """What will be sent, and what must come of it.

    `ends` gives each order's last state, `early` the biz_keys of the messages that overtake the one before them.
    """

    messages: Sequence[Message]
    ends: dict[str, str]
    stock: dict[str, int]
    duplicates: int
    early: Collection[str]
    late: int
    failing: int
    hopeless: Sequence[str]

    @property
    def distinct(self) -> int:
        """How many different messages there are."""
        return len(self.messages) - self.duplicates


@dataclass(slots=True)
class _Order:
    number: str
    sku: str
    qty: int
    steps: list[str]
    overtakes: bool = False  #: the last message is sent before the one that it follows
    trouble: dict[str, object] = field(default_factory=dict)


def plan(count: int, seed: int, *, skus: int = 40) -> Traffic:
    """The traffic of `count` orders."""
    dice = random.Random(seed)
    made = [_order(index, dice, skus) for index in range(1, count + 1)]
    chosen = _Chosen(made, dice)
    failing = chosen.some(("created", "paid", "shipped", "completed"), max(4, count // 150))
    hopeless = failing[:2]
    for order in failing:
        order.trouble = {"fail_until": dice.randint(2, 4)}
    for order in hopeless:
        order.trouble = {"fail_forever": True}
    late = chosen.some(("created", "paid", "shipped", "completed"), max(2, count // 200))
    ends = {order.number: order.steps[-1].upper() for order in made} | {order.number: "CREATED" for order in hopeless}
    for order in late:
        order.steps.insert(2, "closed")  # a customer closes what was paid a moment ago
    early = _overtake(chosen, count)
    once = _interleave(made, dice)
    sent = _duplicate(once, dice, len(once) // 9)
    return Traffic(
        messages=sent,
        ends=ends,
        stock={_sku(index): count * UNITS for index in range(skus)},
        duplicates=len(sent) - len(once),
        early=early,
        late=len(late),
        failing=len(failing) - len(hopeless),
        hopeless=[order.number for order in hopeless],
    )


@dataclass(slots=True)
class _Chosen:
    """Draws orders for one kind of trouble each, none twice."""

    made: Sequence[_Order]
    dice: random.Random
    taken: set[str] = field(default_factory=set)

    def some(self, life: Sequence[str], count: int) -> list[_Order]:
        """Some orders of this life that have no trouble yet, from the first three quarters of the traffic."""
        free = [
            order
            for order in self.made[: max(1, len(self.made) * 3 // 4)]
            if tuple(order.steps) == tuple(life) and order.number not in self.taken
        ]
        found = self.dice.sample(free, min(count, len(free)))
        self.taken.update(order.number for order in found)
        return found


def _order(index: int, dice: random.Random, skus: int) -> _Order:
    life = dice.choices([steps for _, steps in LIVES], [share for share, _ in LIVES])[0]
    return _Order(f"o{index:05}", _sku(dice.randrange(skus)), dice.randint(1, UNITS), list(life))


def _sku(index: int) -> str:
    return f"sku-{index:03}"


def _overtake(chosen: _Chosen, count: int) -> set[str]:
    """Let some messages be sent before the one that they follow; their biz_keys."""
    for life in (("created", "closed"), ("created", "paid", "shipped", "completed")):
        for order in chosen.some(life, max(2, count // 300)):
            order.overtakes = True
    return {f"{order.number}:order.{order.steps[-1]}" for order in chosen.made if order.overtakes}


def _interleave(made: Sequence[_Order], dice: random.Random) -> list[Message]:
    """Every order's messages in their order, among those of the others."""
    timed: list[tuple[float, Message]] = []
    for index, order in enumerate(made):
        messages = [_message(order, step, seq) for seq, step in enumerate(order.steps, 1)]
        if order.overtakes:
            messages[-2:] = reversed(messages[-2:])
        at = float(index)
        for message in messages:
            timed.append((at, message))
            at += dice.uniform(1, 60)
    return _in_time(timed)


def _message(order: _Order, step: str, seq: int) -> Message:
    body: dict[str, object] = {"sku": order.sku, "qty": order.qty}
    if step == "paid":
        body |= order.trouble
    return orders.message(key=order.number, type=f"order.{step}", body=body, seq=seq)


def _duplicate(once: Sequence[Message], dice: random.Random, count: int) -> list[Message]:
    """The same messages, `count` of them sent a second time: half of those soon after, half much later."""
    timed = [(float(index), message) for index, message in enumerate(once)]
    for turn, index in enumerate(dice.sample(range(len(once)), min(count, len(once)))):
        late = turn % 2 == 1 and index + SOON < len(once)
        again = dice.uniform(index + SOON, len(once)) if late else index + dice.uniform(0.5, SOON)
        timed.append((again, once[index]))
    return _in_time(timed)


def _in_time(timed: Sequence[tuple[float, Message]]) -> list[Message]:
    return [message for _, message in sorted(timed, key=lambda one: one[0])]
