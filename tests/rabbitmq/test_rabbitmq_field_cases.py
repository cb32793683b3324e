"""RabbitMQ under a whole application: field cases of order, settling and failing (FC-O, FC-P, FC-D)."""

import contextlib
import itertools
import json
import time
import uuid

import pika
import pytest
from support.rig import LATER, QUICK, Rig, enter, wait_until
from support.services import service_url

from seriatim import Backoff, Policy
from seriatim.adapters.rabbitmq import names as on_server
from seriatim.adapters.rabbitmq.link import Link
from seriatim.core.brokers import open_broker

from .rabbit import plain_connection

GROUP = "shop"


class RabbitRig(Rig):
    """A shop whose broker is the shared server; its topics are deleted after."""

    def __init__(self, folder, options):
        super().__init__(folder)
        self.broker = f"{service_url('rabbitmq')}?{options}"
        self.topics = []

    def topic(self, app, partitions=1, **options):
        """A topic of this test's own, declared with the group's queues: before that nothing can be sent."""
        topic = app.topic(f"orders-{uuid.uuid4().hex[:8]}", partitions=partitions, **options)
        with contextlib.closing(open_broker(self.broker)) as broker:
            broker.declare(topic.name, topic.partitions, GROUP)
        self.topics.append(topic.name)
        return topic

    def append(self, topic, body, *, partition="0", headers):
        """Publish as somebody does who knows nothing of Seriatim."""
        with contextlib.closing(plain_connection(service_url("rabbitmq"))) as theirs:
            exchange = on_server.exchange("seriatim", topic.name)
            theirs.channel().basic_publish(exchange, partition, body, pika.BasicProperties(headers=headers))

    def close(self):
        with contextlib.closing(open_broker(self.broker)) as broker:
            for topic in self.topics:
                broker.delete(topic, (GROUP,))


@pytest.fixture
def make_rig(tmp_path):
    with contextlib.ExitStack() as stack:

        def make(options):
            return stack.enter_context(contextlib.closing(RabbitRig(tmp_path, options)))

        yield make


EVERY_TYPE = pytest.mark.parametrize("queue_type", ["quorum", "classic", "stream"])


@pytest.mark.parametrize("queue_type", ["quorum", "classic"])
@pytest.mark.parametrize("prefetch", [1, 5])
def test_a_message_that_fails_once_is_tried_again_before_its_followers(make_rig, queue_type, prefetch):
    """FC-O1: the handlers' log is 1, 1, 2, 3, 4, 5; 2 never starts before 1 has succeeded."""
    rig = make_rig(f"queue_type={queue_type}&prefetch={prefetch}")
    app = rig.app(GROUP)
    orders = rig.topic(app, policy=QUICK)
    calls = []

    @orders.on("step")
    def step(event, ctx):
        calls.append(event["n"])
        if calls == [1]:
            raise ConnectionError("once")
        enter(ctx)

    for number in range(1, 6):
        rig.send(orders, "k", n=number)
    rig.run_until(app, lambda: len(rig.ledger()) == 5, "all five")

    assert calls == [1, 1, 2, 3, 4, 5]


@EVERY_TYPE
def test_a_second_worker_in_mid_stream_never_works_on_a_key_beside_the_first(make_rig, queue_type):
    """FC-O3: start and end of one key's handlers never overlap, and each effect is there once, in order."""
    rig = make_rig(f"queue_type={queue_type}&heartbeat=2&prefetch=5")
    spans, apps = [], [rig.app(GROUP), rig.app(GROUP)]
    topic = rig.topic(apps[0], partitions=2, policy=QUICK)
    apps[1].topics[topic.name] = topic

    @topic.on("step")
    def step(event, ctx):
        began = time.monotonic()
        time.sleep(0.02)  # a slow handler
        enter(ctx)
        spans.append((ctx.message.sharding_key, began, time.monotonic()))

    sent = rig.send_many(topic, [f"k{number % 4}" for number in range(120)])
    with rig.working(apps[0]):
        wait_until(lambda: len(spans) > 20, "the middle")
        with rig.working(apps[1]):
            wait_until(lambda: rig.owners() == 2, "a share for the second")
            wait_until(lambda: len(rig.ledger()) >= 90, "a part by both")
        wait_until(lambda: len(rig.ledger()) >= 120, "the rest")

    for key in ("k0", "k1", "k2", "k3"):
        assert rig.ledger(key) == [biz_key for biz_key in sent if biz_key.startswith(f"{key}/")]
        mine = sorted(span[1:] for span in spans if span[0] == key)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(mine))


@EVERY_TYPE
def test_a_handler_that_recovers_after_a_long_while_goes_on_without_a_restart(make_rig, queue_type):
    """FC-O7: it fails until its own dependency is back; whatever it returned or raised meanwhile stalls nothing."""
    rig = make_rig(f"queue_type={queue_type}")
    app = rig.app(GROUP)
    orders = rig.topic(app, policy=Policy(max_attempts=1_000, backoff=Backoff(base_s=0.01, cap_s=0.05)))
    state = {"away": True, "calls": 0}

    @orders.on("step")
    def step(event, ctx):
        state["calls"] += 1
        if state["away"]:
            raise TimeoutError("its dependency is away")
        enter(ctx)
        return [None, "ok", 7][event["n"] % 3]

    sent = [rig.send(orders, "k", n=number) for number in range(6)]
    with rig.working(app):
        wait_until(lambda: state["calls"] > 20, "many failures")
        state["away"] = False
        wait_until(lambda: len(rig.ledger()) == 6, "all of them")

    assert rig.ledger() == sent


@pytest.mark.parametrize("queue_type", ["quorum", "classic"])
def test_a_link_that_is_cut_in_a_handler_costs_no_effect_and_the_copy_is_a_duplicate(make_rig, monkeypatch, queue_type):
    """FC-P3: the late acknowledgement is dropped, and the copy is answered from the record."""
    links = []
    start = Link.start
    monkeypatch.setattr(Link, "start", lambda link: (links.append(link), start(link)))
    rig = make_rig(f"queue_type={queue_type}")
    app = rig.app(GROUP)
    orders = rig.topic(app, policy=LATER)
    calls = []

    @orders.on("step")
    def step(event, ctx):
        enter(ctx)
        calls.append(ctx.message.biz_key)
        if len(calls) == 1:
            for link in links:
                link.cut()
                link.ask(lambda done: done(), 5)

    sent = [rig.send(orders, "k"), rig.send(orders, "k")]
    with rig.working(app) as witness:
        wait_until(lambda: "duplicate" in witness.outcomes(sent[0]) and len(rig.ledger()) == 2, "the copy")

    assert witness.outcomes(sent[0]) == ["applied", "duplicate"]
    assert calls == rig.ledger() == sent


@EVERY_TYPE
def test_a_message_that_always_fails_follows_the_back_off_and_is_dead_after_its_attempts(make_rig, queue_type):
    """FC-D1, FC-D3: three attempts are three calls with pauses, nothing spins, and other keys go on meanwhile."""
    rig = make_rig(f"queue_type={queue_type}")
    app = rig.app(GROUP)
    policy = Policy(max_attempts=3, tries_at_once=1, backoff=Backoff(base_s=0.4, cap_s=0.8))
    orders = rig.topic(app, policy=policy)
    calls, others_at = [], []

    @orders.on("step")
    def step(event, ctx):
        if ctx.message.sharding_key == "bad":
            calls.append(time.monotonic())
            raise ConnectionError("away")
        enter(ctx)
        others_at.append(time.monotonic())

    rig.send(orders, "bad")
    rig.send_many(orders, [f"k{number % 10}" for number in range(100)])
    began, spent = time.monotonic(), time.process_time()
    rig.run_until(app, lambda: rig.parked("dead") and len(others_at) == 100, "the end")
    spent = time.process_time() - spent

    assert len(calls) == 3
    assert all(later - earlier >= 0.38 for earlier, later in itertools.pairwise(calls))
    assert others_at[-1] < calls[-1]
    assert spent < 0.8 * (time.monotonic() - began), "it spins"


UNREADABLE = {"broken": b'{"a":"\xff\xfe"}', "empty": b"", "null": b"null", "list": b"[1,2]", "deep": b"[" * 100_000}


@EVERY_TYPE
def test_what_cannot_be_read_is_parked_with_its_bytes_and_the_next_message_is_handled(make_rig, queue_type):
    """FC-D7: by a foreign producer in plain pika; a message without any header, too."""
    rig = make_rig(f"queue_type={queue_type}")
    app = rig.app(GROUP)
    orders = rig.topic(app, policy=LATER)

    @orders.on("step")
    def step(event, ctx):
        enter(ctx)

    for name, body in UNREADABLE.items():
        rig.append(orders, body, headers={"seriatim-key": name, "seriatim-biz-key": name, "seriatim-type": "step"})
    rig.append(orders, b'{"a":1}', headers=None)
    good = {"seriatim-key": "good", "seriatim-biz-key": "good", "seriatim-type": "step"}
    rig.append(orders, json.dumps({"a": 1}).encode(), headers=good)
    rig.run_until(app, lambda: rig.ledger() == ["good"], "the good one")

    kept = {row[0]: row[4] for row in rig.parked("malformed")}
    assert {name: kept[name] for name in UNREADABLE} == UNREADABLE
    assert b'{"a":1}' in kept.values()
