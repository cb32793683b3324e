"""RabbitMQ queues: order through every way of handing a partition over (design ch. 4; N1, F38, F39; FC-O1)."""

import collections
import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from pika import spec
from pika.connection import Connection
from support.services import service_url

from seriatim.adapters.rabbitmq import names as on_server
from seriatim.adapters.rabbitmq.queue_reader import QueueReader
from seriatim.contract.broker import GROUP, Scene, names, numbered
from seriatim.contract.child import Child
from seriatim.contract.remote import ChildFailed
from seriatim.core.brokers import open_broker

from .rabbit import plain_connection

pytestmark = pytest.mark.parametrize("queue_type", ["quorum", "classic"])
WINDOW = 10


@pytest.fixture
def url(queue_type):
    return f"{service_url('rabbitmq')}?queue_type={queue_type}&prefetch={WINDOW}&heartbeat=2"


@pytest.fixture
def scene(url):
    with contextlib.closing(open_broker(url)) as broker:
        with contextlib.closing(Scene(broker, ("0",), patience_s=20.0)) as scene:
            yield scene
        broker.delete(scene.topic, (GROUP,))


def consumers(scene):
    """How many the server counts on the queue."""
    with contextlib.closing(plain_connection(service_url("rabbitmq"))) as connection:
        queue = on_server.queue(GROUP, scene.topic, scene.first)
        return connection.channel().queue_declare(queue, passive=True).method.consumer_count


def await_consumers(scene, count):
    deadline = time.monotonic() + 20
    while (there := consumers(scene)) != count:
        assert time.monotonic() < deadline, f"{there} consumers, not {count}"
        time.sleep(0.02)


@pytest.mark.parametrize("way", ["stop", "close", "cut socket"])
def test_leaving_right_after_an_acknowledgement_with_the_window_full_keeps_order(scene, way):
    """N1: pika's close() gave the next owner 6–10, 16–40, 11–15 on a quorum queue."""
    for _ in range(3):
        scene.send(*numbered(1, 40))
        old = scene.reader()
        while len(old.batch(limit=WINDOW).deliveries) < WINDOW:
            old.settle(0)
        old.settle(5)
        if way == "cut socket":
            old.consumer._link.cut()  # noqa: SLF001 - as a network does
            old.consumer._link.ask(lambda done: done(), 5)  # noqa: SLF001 - seen from inside: no public way
        elif way == "stop":
            old.consumer.stop(scene.first)
        old.consumer.close()
        new = scene.reader()
        begins = int(names(new.take(1))[0][1:])
        assert begins == 6 or (begins == 1 and way == "cut socket")  # the acknowledgement was cut off with it
        assert names(new.take(40 - begins)) == numbered(begins + 1, 40)
        new.consumer.close()


def test_the_settled_prefix_reaches_the_server_before_the_close(scene):
    """Nothing that was settled comes to the next owner again."""
    scene.send(*numbered(1, 10))
    old = scene.reader()
    assert names(old.take(10)) == numbered(1, 10)
    old.consumer.stop(scene.first)
    scene.send("m11")
    assert names(scene.reader().take(1)) == ["m11"]


def test_a_new_owner_waits_until_the_old_one_has_gone(scene):
    """A newcomer is given nothing, though it has asked, until the queue has no consumer."""
    scene.send(*numbered(1, 20))
    old = scene.reader()
    assert names(old.batch(limit=1).deliveries) == ["m1"]
    new = scene.reader()
    for _ in range(40):
        new.quiet(0.02)
        assert consumers(scene) == 1
    old.consumer.stop(scene.first)
    assert names(new.take(20)) == numbered(1, 20)


def test_ones_own_reconnect_waits_too(scene):
    """After a cut link the queue is subscribed when it is free, and everything unsettled comes again in order."""
    scene.send(*numbered(1, 30))
    reader = scene.reader()
    reader.take(3, limit=3)
    reader.batch(limit=2)
    reader.consumer._link.cut()  # noqa: SLF001 - a fault is planted where no public way leads
    again = follow(reader, last="m30")
    assert again == numbered(int(again[0][1:]), 30)
    assert int(again[0][1:]) <= 4


def follow(reader, last):
    """What comes after a break until `last`: whatever was out is void."""
    reader._out.clear()  # noqa: SLF001 - the reader can't know
    taken = []
    deadline = time.monotonic() + 30
    while taken[-1:] != [last]:
        assert time.monotonic() < deadline, f"only {taken} came"
        with contextlib.suppress(Exception):
            found = reader.consumer.poll(0.2, 100)
            if hasattr(found, "deliveries"):
                taken += names(found.deliveries)
                reader.consumer.settle(found, len(found.deliveries))
    return taken


def test_a_newcomer_that_lost_its_lease_before_it_subscribed_takes_nothing(scene, monkeypatch):
    """F38: it saw a free queue, stood still, and subscribes beside the rightful owner: 1–10, 21–30, 11–20 was seen."""
    scene.send(*numbered(1, 40))
    saw_it_free, may_go_on = threading.Event(), threading.Event()
    subscribe = QueueReader._subscribe  # noqa: SLF001 - seen from inside: no public way

    def late(reader):
        saw_it_free.set()
        may_go_on.wait(20)
        subscribe(reader)

    monkeypatch.setattr(QueueReader, "_subscribe", late)
    stale = scene.reader()
    assert saw_it_free.wait(20)
    monkeypatch.setattr(QueueReader, "_subscribe", subscribe)
    owner = scene.reader()
    first = names(owner.take(WINDOW, limit=WINDOW))
    may_go_on.set()
    stale.quiet(0.5)
    await_consumers(scene, 1)  # it saw that it stood by, and left
    stale.consumer.close()
    assert first + names(owner.take(40 - WINDOW)) == numbered(1, 40)


@pytest.mark.parametrize("way", ["kill", "freeze"])
def test_an_owner_that_dies_or_stands_still_with_the_window_full_is_replaced_in_order(scene, url, way):
    """SIGKILL at once, SIGSTOP when the server misses its heartbeats; waking up late it changes nothing."""
    scene.send(*numbered(1, 40))
    with Child(url, 60.0) as old:
        old.start(scene.topic, GROUP, scene.first, None)
        taken = old.take(4)
        while len(taken) < 4:
            old.settle(0)
            taken = old.take(4)
        old.settle(2)
        getattr(old, way)()
        new = scene.reader(patience_s=60.0)
        got = [names(new.take(1))[0]]
        assert got[0] in {"m1", "m3"}  # its acknowledgement may have been on the way
        got += names(new.take(30 - int(got[0][1:])))
        if way == "freeze":
            old.thaw()
            with contextlib.suppress(ChildFailed):
                old.settle(2)
        got += names(new.take(40 - int(got[-1][1:])))
        assert got == numbered(int(got[0][1:]), 40)


def test_a_failing_message_never_goes_back_through_the_broker(scene):
    """FC-O1: settled with nothing, it comes first again, and its followers behind it: 1, 1, 2, 3, 4, 5."""
    scene.send(*numbered(1, 5))
    reader = scene.reader()
    log = names(reader.batch(limit=1).deliveries)
    reader.settle(0)
    for _ in range(5):
        log += names(reader.take(1, limit=1))
    assert log == ["m1", *numbered(1, 5)]


def test_only_the_connections_thread_touches_it(scene, monkeypatch):
    """FC-P1: eight threads send 5,000 messages, another one reads and settles: each connection has one writer."""
    writers = collections.defaultdict(set)
    original = Connection._send_method  # noqa: SLF001 - seen from inside: no public way

    def watched(connection, *arguments, **named):
        writers[connection].add(threading.current_thread().name)
        return original(connection, *arguments, **named)

    def work(key):
        for first in range(0, 625, 25):
            scene.send(*[f"{key}-{number}" for number in range(first, first + 25)], key=key)

    monkeypatch.setattr(Connection, "_send_method", watched)
    reader = scene.reader()
    with ThreadPoolExecutor(8) as threads:
        done = [threads.submit(work, key) for key in "abcdefgh"]
        taken = reader.take(5_000)
        for one in done:
            one.result()
    reader.consumer.stop(scene.first)
    for key in "abcdefgh":
        assert [name for name in names(taken) if name[0] == key] == [f"{key}-{number}" for number in range(625)]
    assert all(len(threads) == 1 for threads in writers.values()), writers
    assert {"rabbitmq-producer", f"rabbitmq-{scene.topic}"} <= set.union(*writers.values())


@pytest.fixture(autouse=True)
def nothing_goes_back_by_the_way_that_reorders(monkeypatch):
    """FC-O1, N1: in none of these stories is anything rejected, requeued or cancelled."""
    written = []
    original = Connection._send_method  # noqa: SLF001 - seen from inside: no public way

    def watched(connection, channel, method, content=None):
        written.append(type(method))
        return original(connection, channel, method, content)

    monkeypatch.setattr(Connection, "_send_method", watched)
    yield
    assert not {spec.Basic.Reject, spec.Basic.Nack, spec.Basic.Cancel, spec.Basic.Recover} & set(written)
