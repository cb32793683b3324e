"""What producers, operators and the clock do to a topic, as rules that both state machines share."""

from __future__ import annotations

import inspect
import os
import random
from dataclasses import replace

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RULE_MARKER, RuleBasedStateMachine, initialize, precondition, rule

from seriatim.core.backoff import Backoff
from seriatim.core.decision import KeyStanding, OnDead, OnFailure, Policy
from seriatim.core.digest import digest
from seriatim.core.envelope import seal
from seriatim.core.message import Delivery, Message, Position
from seriatim.core.store.port import MICROSECOND

from .promises import Sent

TOPIC = "orders"
HOMES = {"a": "0", "b": "0", "c": "1"}  #: the partition of each sharding key
LONG = os.environ.get("SERIATIM_HYPOTHESIS") == "long"

MOODS = ("ok", "ok", "fail", "fail", "retry", "reject")
MESSAGES = st.lists(st.tuples(st.sampled_from("aaabc"), st.sampled_from(MOODS)), min_size=1, max_size=5)
POLICIES = [
    Policy(
        on_failure,
        on_dead,
        max_attempts=3,
        tries_at_once=tries,
        early_deadline_s=20.0,
        backoff=Backoff(1.0, 4.0, random=random.Random(1)),
    )
    for on_failure in OnFailure
    for on_dead in OnDead
    for tries in (1, 2)
]


def bounds(examples: int, steps: int) -> settings:
    """How long a machine runs: ten times as long, and longer stories, where SERIATIM_HYPOTHESIS=long asks for it."""
    return settings(
        max_examples=examples * 20 if LONG else examples,
        stateful_step_count=steps * 2 if LONG else steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def hunting(examples: int, steps: int) -> settings:
    """The same stories each time, told until one breaks a promise, and not made shorter: for planted bugs."""
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )


def focused(machine: type[Stream], *rules: str) -> type[Stream]:
    """The machine with these rules alone, so that a hunt is short. Preconditions and promises stay."""
    others = {name for name, _ in inspect.getmembers(machine, lambda one: hasattr(one, RULE_MARKER))} - set(rules)
    return type(f"Focused{machine.__name__}", (machine,), dict.fromkeys(others))


class Stream(RuleBasedStateMachine):
    """A topic of two partitions and three keys, and what happens around it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000 * MICROSECOND
        self.sent: dict[str, list[Sent]] = {"0": [], "1": []}
        self.moods: dict[str, str] = {}
        self.promised: list[Sent] = []
        self.numbers = 0

    @initialize(policy=st.sampled_from(POLICIES))
    def begin(self, policy):
        self.policy = policy
        self.set_up()

    def set_up(self) -> None:
        """Called once the policy is known."""

    # -- producers

    @rule(messages=MESSAGES)
    def send(self, messages):
        self.send_all(messages)

    def send_all(self, messages: list[tuple[str, str]]) -> None:
        """Send messages of these keys, whose handlers will be in these moods."""
        for key, mood in messages:
            self._send(self._new(key, mood))

    @rule(key=st.sampled_from("ab"), bad=st.integers(1, 3), good=st.integers(1, 2))
    def send_in_a_bad_hour(self, key, bad, good):
        """Some that fail, and some of the same key behind them that wouldn't."""
        self.send_all([(key, "fail")] * bad + [(key, "ok")] * good)

    @rule(key=st.sampled_from("ab"), other=st.sampled_from("abc"), mood=st.sampled_from(MOODS))
    def send_early(self, key, other, mood):
        """A message overtakes the one that it needs, which may be of another key."""
        predecessor = self._new(other, mood)
        self.promised.append(predecessor)
        self._send(replace(self._new(key, "ok"), needs=predecessor.biz_key))

    @rule(mood=st.sampled_from(MOODS))
    def send_early_chain(self, mood):
        """Three in the wrong order, each needing the one that comes after it."""
        first, second, third = self._new("a", "ok"), self._new("a", mood), self._new("a", "ok")
        self.promised.append(first)
        self._send(replace(third, needs=second.biz_key))
        self._send(replace(second, needs=first.biz_key))

    @precondition(lambda self: self.promised)
    @rule()
    def keep_promise(self):
        self._send(self.promised.pop(0))

    @precondition(lambda self: any(self.sent.values()))
    @rule(data=st.data())
    def send_again(self, data):
        """A duplicate, soon or late."""
        partition = data.draw(st.sampled_from(sorted(name for name, log in self.sent.items() if log)))
        log = self.sent[partition]
        log.append(data.draw(st.sampled_from(log[-5:]) | st.sampled_from(log)))

    @precondition(lambda self: any(self.sent.values()))
    @rule(data=st.data(), other=st.integers(1, 2))
    def send_conflict(self, data, other):
        """Another body under a biz_key that was sent before."""
        partition = data.draw(st.sampled_from(sorted(name for name, log in self.sent.items() if log)))
        message = data.draw(st.sampled_from(self.sent[partition]))
        self.sent[partition].append(replace(message, body=b"conflict %d" % other))

    def _new(self, key: str, mood: str) -> Sent:
        self.numbers += 1
        biz_key = f"{key}{self.numbers}"
        self.moods[biz_key] = mood
        return Sent(biz_key, key, b'{"n":%d}' % self.numbers)

    def _send(self, message: Sent) -> None:
        self.sent[HOMES[message.key]].append(message)

    # -- the world

    @rule(seconds=st.sampled_from([1, 1, 5, 11, 30]))
    def time_passes(self, seconds):
        self.now += seconds * MICROSECOND

    @rule()
    def causes_are_mended(self):
        self.mend_causes()

    def mend_causes(self) -> None:
        """From now on every handler succeeds."""
        self.moods = dict.fromkeys(self.moods, "ok")

    # -- helpers

    def delivery(self, partition: str, index: int) -> Delivery:
        """The message at a place of a partition's log, as a broker hands it out."""
        sent = self.sent[partition][index]
        message = Message(
            TOPIC,
            sent.key,
            sent.biz_key,
            "step",
            sent.body,
            headers={} if sent.needs is None else {"needs": sent.needs},
            produced_at=1.0,
        )
        return Delivery(
            topic=TOPIC,
            partition=partition,
            raw=seal(message),
            body=sent.body,
            received_at=self.now / MICROSECOND,
            position=Position(str(index), digest(sent.body).hex()),
        )


def skipped(standing: KeyStanding, now: int) -> KeyStanding:
    """What an operator's skip makes of a key: the next head is due at once."""
    return standing.head_left(now)


def released(standing: KeyStanding, now: int, *, dead: bool) -> KeyStanding:
    """What an operator's release makes of a key: what it holds is due at once, but for a dead head."""
    return replace(
        standing,
        held=False,
        due_at=now if standing.depth and not dead else None,
        aside_due_at=now if standing.aside else None,
    )
