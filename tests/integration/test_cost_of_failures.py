"""What a failing message costs the others: a pass of their batch, and never their turn."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from statistics import median

from sqlalchemy import Engine, event
from support.rig import LATER, enter

from seriatim import Backoff, Policy
from seriatim.core import execution

MESSAGES = 30


class Calls:
    """The handler's calls, in order, and the savepoints that lanes set for single messages meanwhile."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.savepoints = 0

    @contextmanager
    def seeing_savepoints(self) -> Iterator[None]:
        event.listen(Engine, "before_cursor_execute", self._see)
        try:
            yield
        finally:
            event.remove(Engine, "before_cursor_execute", self._see)

    def _see(self, _connection, _cursor, statement, *_):
        self.savepoints += statement == "SAVEPOINT seriatim_message"


def shop(rig, calls, policy, *, slow_s=0.0, **settings):
    """An app whose messages with `bad` in their body fail, after `slow_s` seconds."""
    app = rig.app(**settings)
    orders = app.topic("orders", partitions=1, policy=policy)

    @orders.on("step")
    def step(body, ctx):
        calls.made.append(ctx.message.biz_key)
        enter(ctx)
        if body.get("bad"):
            time.sleep(slow_s)
            raise ConnectionError("away")

    return app, orders


def send(rig, orders, bad):
    """A message of each of many keys, of which these fail; all in one call, so that they share a batch."""
    messages = [
        orders.message(key=f"k{n}", type="step", biz_key=f"k{n}", body={"bad": n in bad}) for n in range(MESSAGES)
    ]
    rig.send_all(orders, messages)
    return [message.biz_key for message in messages]


def test_one_failing_message_costs_its_batch_one_more_pass_and_no_savepoint(rig):
    calls = Calls()
    app, orders = shop(rig, calls, LATER)
    sent = send(rig, orders, bad={10})
    with calls.seeing_savepoints():
        rig.run(app)
    assert Counter(calls.made) == Counter(sent[:10] * 2 + sent[10:])
    assert calls.savepoints == 0
    assert rig.ledger() == [biz_key for biz_key in sent if biz_key != "k10"]


def test_a_failing_message_that_is_tried_again_at_once_has_a_savepoint_and_the_others_none(rig):
    calls = Calls()
    app, orders = shop(rig, calls, Policy(tries_at_once=3, backoff=LATER.backoff))
    sent = send(rig, orders, bad={10})
    with calls.seeing_savepoints():
        rig.run(app)
    assert Counter(calls.made) == Counter(sent[:10] * 2 + sent[10:] + ["k10"] * 2)
    assert calls.savepoints == 2
    assert rig.ledger() == [biz_key for biz_key in sent if biz_key != "k10"]


def test_when_several_messages_of_a_batch_fail_each_is_called_once_and_everybody_has_a_savepoint(rig):
    bad = {5, 10, 15}
    calls = Calls()
    app, orders = shop(rig, calls, LATER)
    sent = send(rig, orders, bad)
    with calls.seeing_savepoints():
        rig.run(app)
    called = Counter(calls.made)
    assert all(called[f"k{n}"] == 1 for n in bad)
    assert max(called.values()) == execution.OPTIMISTIC_PASSES + 1
    assert calls.savepoints == MESSAGES - 2, "those that were known to have failed aren't called again"
    assert rig.ledger() == [biz_key for n, biz_key in enumerate(sent) if n not in bad]


def test_what_is_due_over_and_over_leaves_every_other_round_to_what_arrives(rig):
    """Twenty slow keys are due again as soon as they have failed: they take turns with the messages that are well."""
    bad = set(range(20))
    calls = Calls()
    policy = Policy(tries_at_once=1, max_attempts=10_000, backoff=Backoff(base_s=0.001, cap_s=0.002))
    app, orders = shop(rig, calls, policy, slow_s=0.02, batch_size=1, batch_ms=50)
    well = set(send(rig, orders, bad)[len(bad) :])
    rig.run_until(app, lambda: set(rig.ledger()) == well, "every message that is well")
    turns = [index for index, biz_key in enumerate(calls.made) if biz_key in well]
    between = [later - earlier - 1 for earlier, later in pairwise(turns)]
    assert median(between) < len(bad) / 2, f"calls of failing messages between two that are well: {between}"
