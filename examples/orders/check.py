"""Does it add up? The shop's own tables, compared with each other and with what was sent.

Nothing here reads Seriatim's tables: were they wrong, these sums wouldn't come out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, select

from examples.orders.app import status
from examples.orders.tables import ledger, orders, stock

SOLD = ("PAID", "SHIPPED", "COMPLETED")
SHOWN = 5  #: findings that a result lists


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold: what was found, in a sentence, and every finding against it."""

    sentence: str
    wrong: Sequence[str]

    @property
    def holds(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.wrong

    @property
    def shown(self) -> Sequence[str]:
        """The first findings against it."""
        more = len(self.wrong) - SHOWN
        return [*self.wrong[:SHOWN], *([f"… and {more:,} more"] if more > 0 else [])]


def check_all(connection: Connection, ends: Mapping[str, str]) -> list[Check]:
    """Every check; `ends` gives the state in which each order must have ended."""
    return [check_stock(connection), check_orders(connection), check_effects(connection), check_ends(connection, ends)]


def check_stock(connection: Connection) -> Check:
    """What is left is what there was, less what the orders say was sold."""
    sold: Counter[str] = Counter()
    for row in connection.execute(select(orders.c.sku, orders.c.qty).where(orders.c.status.in_(SOLD))):
        sold[row.sku] += row.qty
    shelves = connection.execute(select(stock.c.sku, stock.c.initial, stock.c.qty)).all()
    wrong = [
        f"{row.sku}: {row.initial:,} − {sold[row.sku]:,} sold = {row.initial - sold[row.sku]:,}, "
        f"but the stock table says {row.qty:,}"
        for row in shelves
        if row.initial - sold[row.sku] != row.qty
    ]
    initial, left = sum(row.initial for row in shelves), sum(row.qty for row in shelves)
    sentence = (
        f"stock: {initial:,} units − {initial - left:,} sold = {left:,} left, for each of {len(shelves)} articles"
    )
    return Check(sentence, wrong)


def check_orders(connection: Connection) -> Check:
    """Every sold order took its units once, every refunded one gave them back once, and no other touched the stock."""
    changes: defaultdict[str, list[int]] = defaultdict(list)
    for row in connection.execute(select(ledger.c.order_no, ledger.c.moved).where(ledger.c.moved != 0)):
        changes[row.order_no].append(row.moved)
    wrong = []
    sold = 0
    for number, state, qty in connection.execute(select(orders.c.order_no, orders.c.status, orders.c.qty)):
        sold += state in SOLD
        expected = _expected_changes(state, qty)
        found = changes.pop(number, [])
        if found != expected:
            wrong.append(f"{number} is {state}: its stock changes are {found}, and should be {expected}")
    wrong += [f"{number} took stock and is no order" for number in changes]
    return Check(f"orders: each of {sold:,} sold orders took its units exactly once", wrong)


def _expected_changes(state: str, qty: int) -> list[int]:
    if state in SOLD:
        return [-qty]
    return [-qty, qty] if state == "REFUNDED" else []


def check_effects(connection: Connection) -> Check:
    """No message took effect twice, and each order went through its states in their order."""
    lives: defaultdict[str, list[str]] = defaultdict(list)
    for row in connection.execute(select(ledger.c.order_no, ledger.c.event).order_by(ledger.c.id)):
        lives[row.order_no].append(row.event.removeprefix("order.").upper())
    wrong = []
    for number, states in lives.items():
        wrong += [
            f"{number}: {state} took effect {times} times" for state, times in Counter(states).items() if times > 1
        ]
        for before, state in zip([None, *states], states, strict=False):
            legal = status.predecessors(state) if state in status.after else ()
            if before not in (legal or (None,)):
                wrong.append(f"{number}: {state} came after {before or 'nothing'}")
    effects = sum(len(states) for states in lives.values())
    return Check(f"effects: {effects:,} messages took effect, none twice, none out of order", wrong)


def check_ends(connection: Connection, ends: Mapping[str, str]) -> Check:
    """Every order is in the state that its messages should have brought it to: nothing was lost."""
    found = {row.order_no: row.status for row in connection.execute(select(orders.c.order_no, orders.c.status))}
    wrong = [
        f"{number} is {found.get(number, 'missing')}, and should be {state}"
        for number, state in ends.items()
        if found.get(number) != state
    ]
    wrong += [f"{number} was never ordered" for number in found.keys() - ends.keys()]
    return Check(f"nothing lost: all {len(ends):,} orders ended as their messages say", wrong)
