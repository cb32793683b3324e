"""The contract of an adapter, as stories. An adapter is done when it passes.

Derive a class, say where the broker is, and run it with pytest::

    class TestMyBroker(BrokerContract):
        idle_wakeup_s = 0.1

        @pytest.fixture
        def broker_url(self):
            return "mybroker://localhost"

Every test declares a topic with a name of its own. A broker that is a log derives from `LogContract`, one that is a
server from `ServerContract`, one that is both from both. What only the broker's operator can do (delete a topic, trim a
log, restart the server) stands in hooks at the end of those classes.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NoReturn

import pytest

from seriatim.contract.child import Child
from seriatim.contract.reading import Reader
from seriatim.contract.remote import ChildFailed
from seriatim.core.broker import Broker, Notice, NoticeKind, Producer
from seriatim.core.brokers import open_broker
from seriatim.core.envelope import BIZ_KEY, KEY, open_delivery
from seriatim.core.errors import BrokerError, SeriatimError
from seriatim.core.message import Delivery, Message, Position

GROUP = "warehouse"

EVERY_FIELD = Message(
    topic="replaced",
    sharding_key="order 1 – Straße",
    biz_key="订单:1\n",
    type="order.paid",
    body=b'{"n": 1}',
    headers={"trace-id": "4bf92f", "note": "naïve 🙂 \t\"'\\", "empty": ""},
    produced_at=1_700_000_000.123456,
    state="PAID",
    seq=2**62,
    reply_to="answers",
    correlation_id="c-1",
)
SHAPES = {
    "every field": EVERY_FIELD,
    "no header of its own": replace(EVERY_FIELD, headers={}),
    "only what is required": Message("replaced", "k", "b", "t", b"x", produced_at=1.5),
    "an empty body": replace(EVERY_FIELD, body=b""),
    "zero bytes": replace(EVERY_FIELD, body=b"\x00a\x00\xff\xfe\x00"),
    "a body of 1 MiB": replace(EVERY_FIELD, body=bytes(range(256)) * 4096),
}


class Scene:
    """A topic of a test's own on the broker: sending to it, and reading it."""

    def __init__(self, broker: Broker, partitions: Sequence[str], patience_s: float) -> None:
        self.broker = broker
        self.topic = f"contract-{uuid.uuid4().hex[:12]}"
        self.partitions = tuple(partitions)
        self.patience_s = patience_s
        self._open = contextlib.ExitStack()
        self._producer: Producer | None = None
        broker.declare(self.topic, partitions, GROUP)

    @property
    def first(self) -> str:
        return self.partitions[0]

    @property
    def producer(self) -> Producer:
        if self._producer is None:
            self._producer = self._open.enter_context(contextlib.closing(self.broker.producer()))
        return self._producer

    def message(self, name: str, key: str = "k") -> Message:
        """A message whose biz_key is `name`."""
        body = f"body of {name}".encode()
        return Message(self.topic, key, name, "order.paid", body, headers={}, produced_at=1.0)

    def send(self, *names: str, partition: str | None = None, key: str = "k") -> None:
        """One send of messages with these biz_keys, to the first partition if not told otherwise."""
        self.producer.send([(partition or self.first, self.message(name, key)) for name in names])

    def reader(
        self,
        *partitions: str,
        after: Position | None = None,
        group: str = GROUP,
        patience_s: float | None = None,
    ) -> Reader:
        """A new consumer that has started these partitions (none: all), closed at the end of the test."""
        consumer = self._open.enter_context(contextlib.closing(self.broker.consumer(self.topic, group)))
        for partition in partitions or self.partitions:
            consumer.start(partition, after)
        return Reader(consumer, patience_s or self.patience_s)

    def close(self) -> None:
        self._open.close()


def names(deliveries: Sequence[Delivery]) -> list[str]:
    """The biz_keys of deliveries."""
    return [delivery.raw[BIZ_KEY] for delivery in deliveries]


def numbered(first: int, last: int) -> list[str]:
    return [f"m{number}" for number in range(first, last + 1)]


def refuse_default(key: str, kind: str) -> None:
    """No message of the suite leaves its biz_key to be guessed."""


class BrokerContract:
    """The behaviours. Override `broker_url`, and what is too quick or too small for your broker."""

    partitions: Sequence[str] = ("0", "1", "2", "3")  #: names of partitions that `declare` can make
    patience_s: float = 10.0  #: how long anything may take that should happen at once
    take_over_s: float = 60.0  #: how long a new owner may have to wait for a killed or frozen one
    idle_wakeup_s: float = 0.5  #: how soon an idle `poll` must hand out what another process has sent

    @pytest.fixture
    def broker_url(self) -> str:
        """Where the broker under test is; child processes open it as well."""
        raise NotImplementedError("override the fixture broker_url")

    @pytest.fixture
    def broker(self, broker_url: str) -> Iterator[Broker]:
        with contextlib.closing(open_broker(broker_url)) as broker:
            yield broker

    @pytest.fixture
    def scene(self, broker: Broker) -> Iterator[Scene]:
        with contextlib.closing(Scene(broker, self.partitions, self.patience_s)) as scene:
            yield scene

    # What travels

    @pytest.mark.parametrize("shape", SHAPES)
    def test_every_field_of_a_message_comes_through(self, scene: Scene, shape: str) -> None:
        """A message is on arrival what it was when it was sent."""
        message = replace(SHAPES[shape], topic=scene.topic)
        scene.producer.send([(scene.first, message)])
        (delivery,) = scene.reader(scene.first).take(1)
        assert open_delivery(delivery, refuse_default) == message

    def test_a_delivery_says_where_and_when(self, scene: Scene) -> None:
        """Topic, partition and time of arrival; a position exactly where the broker is a log."""
        scene.send("m1", partition=self.partitions[1])
        (delivery,) = scene.reader().take(1)
        assert (delivery.topic, delivery.partition) == (scene.topic, self.partitions[1])
        assert abs(delivery.received_at - time.time()) < self.patience_s
        assert (delivery.position is not None) == scene.broker.capabilities.positions

    def test_sending_nothing_is_no_error(self, scene: Scene) -> None:
        """An empty send returns."""
        scene.producer.send([])

    # Order

    def test_a_partition_comes_in_the_order_of_sending(self, scene: Scene) -> None:
        """Over several sends, and batches that fit none of them."""
        for first in range(1, 300, 50):
            scene.send(*numbered(first, first + 49))
        assert names(scene.reader(scene.first).take(300, limit=7)) == numbered(1, 300)

    def test_every_key_comes_in_the_order_of_sending(self, scene: Scene) -> None:
        """Keys that are mixed within partitions and sends stay in order, each for itself."""
        keys = {f"key{number}": self.partitions[number % len(self.partitions)] for number in range(10)}
        for number in range(1, 21):
            scene.producer.send([(place, scene.message(f"{key}-{number}", key)) for key, place in keys.items()])
        taken = scene.reader().take(200, limit=9)
        for key, place in keys.items():
            mine = [delivery for delivery in taken if delivery.raw[KEY] == key]
            assert names(mine) == [f"{key}-{number}" for number in range(1, 21)]
            assert {delivery.partition for delivery in mine} == {place}

    def test_threads_may_share_a_producer(self, scene: Scene) -> None:
        """Each thread's key stays in order, and nothing is lost between them."""

        def work(key: str) -> None:
            for number in range(1, 41):
                scene.send(f"{key}-{number}", key=key)

        keys = [f"key{number}" for number in range(4)]
        with ThreadPoolExecutor(len(keys)) as threads:
            list(threads.map(work, keys))
        taken = scene.reader(scene.first).take(160)
        for key in keys:
            mine = [delivery for delivery in taken if delivery.raw[KEY] == key]
            assert names(mine) == [f"{key}-{number}" for number in range(1, 41)]

    # Batches and settling

    def test_a_partition_is_not_handed_out_again_until_settled(self, scene: Scene) -> None:
        """Its later messages wait for the batch that is out; those of other partitions don't."""
        scene.send(*numbered(1, 4))
        reader = scene.reader()
        assert names(reader.batch(limit=2).deliveries) == ["m1", "m2"]
        reader.quiet()
        scene.send("other", partition=self.partitions[1])
        assert names(reader.batch().deliveries) == ["other"]
        reader.settle(partition=self.partitions[0])
        assert names(reader.batch().deliveries) == ["m3", "m4"]

    def test_what_a_partial_settle_leaves_comes_first_again(self, scene: Scene) -> None:
        """The rest, in order, then what follows."""
        scene.send(*numbered(1, 6))
        reader = scene.reader(scene.first)
        self.take_in_pieces(reader, count=4)
        reader.settle(1)
        assert names(reader.take(5)) == numbered(2, 6)

    def test_a_settle_of_nothing_gives_everything_again(self, scene: Scene) -> None:
        """As often as it is done."""
        scene.send(*numbered(1, 3))
        reader = scene.reader(scene.first)
        for _ in range(3):
            reader.batch(limit=1)
            reader.settle(0)
        assert names(reader.take(3)) == numbered(1, 3)

    def test_the_rest_may_be_longer_than_the_next_limit(self, scene: Scene) -> None:
        """A smaller limit after a partial settle cuts the rest, and keeps its order."""
        scene.send(*numbered(1, 8))
        reader = scene.reader(scene.first)
        self.take_in_pieces(reader, count=6)
        reader.settle(1)
        reader.batch(limit=2)
        reader.settle(1)
        assert names(reader.take(6, limit=2)) == numbered(3, 8)

    def test_a_full_partition_does_not_starve_the_others(self, scene: Scene) -> None:
        """Partitions take turns: each is handed out before the full one is through."""
        scene.send(*numbered(1, 400))
        for partition in self.partitions[1:]:
            scene.send("lonely", partition=partition)
        reader, seen = scene.reader(), set[str]()
        for _ in range(400 // 5 - 1):
            batch = reader.batch(limit=5)
            reader.settle(partition=batch.partition)
            seen.add(batch.partition)
            if seen == set(self.partitions):
                return
            time.sleep(0.02)  # what is on its way may arrive
        raise AssertionError(f"only {sorted(seen)} had a turn")

    # The end of a partition

    def test_an_empty_partition_is_read_through_at_the_start(self, scene: Scene) -> None:
        """The notice comes once."""
        reader = scene.reader(scene.first)
        assert reader.notice(NoticeKind.READ_THROUGH).partition == scene.first
        reader.quiet()
        assert len(reader.notices) == 1

    def test_read_through_comes_when_all_is_settled_and_each_time(self, scene: Scene) -> None:
        """Not while the last batch is out; and again after further messages."""
        reader = scene.reader(scene.first)
        for name in ("m1", "m2"):
            reader.notice(NoticeKind.READ_THROUGH)
            scene.send(name)
            assert names(reader.batch().deliveries) == [name]
            before = len(reader.notices)
            reader.quiet()
            assert len(reader.notices) == before, "read through, with a batch out"
            reader.settle()
        reader.notice(NoticeKind.READ_THROUGH)

    # Waiting

    def test_poll_gives_none_when_its_time_is_over(self, scene: Scene) -> None:
        """It waits for its time-out, and no longer."""
        reader = scene.reader(scene.first)
        reader.notice(NoticeKind.READ_THROUGH)
        before = time.monotonic()
        assert reader.poll(10, timeout_s=0.2) is None
        assert 0.1 < time.monotonic() - before < self.patience_s
        assert reader.poll(10, timeout_s=0) is None

    def test_wake_ends_a_waiting_poll(self, scene: Scene) -> None:
        """From another thread, long before the time-out."""
        reader = scene.reader(scene.first)
        reader.notice(NoticeKind.READ_THROUGH)
        done = threading.Event()

        def wake() -> None:
            while not done.wait(0.01):
                reader.consumer.wake()

        thread = threading.Thread(target=wake)
        thread.start()
        before = time.monotonic()
        try:
            assert reader.poll(10, timeout_s=2 * self.patience_s) is None
        finally:
            done.set()
            thread.join()
        assert time.monotonic() - before < self.patience_s

    def test_an_idle_consumer_notices_a_message_of_another_process_soon(self, scene: Scene, broker_url: str) -> None:
        """Four of five messages are handed out within `idle_wakeup_s` of the return of their send."""
        reader = scene.reader(scene.first)
        reader.notice(NoticeKind.READ_THROUGH)
        delays = []
        with Child(broker_url, self.patience_s) as sender:
            for name in numbered(1, 20):
                sender.tell("send", [(scene.first, scene.message(name))])
                batch = reader.batch()
                handed_out = time.time()
                delays.append(handed_out - sender.answer())
                assert names(batch.deliveries) == [name]
                reader.settle()
                reader.notice(NoticeKind.READ_THROUGH)
        assert sorted(delays)[15] < self.idle_wakeup_s, f"delays in seconds: {sorted(delays)}"

    # Hand-over

    @pytest.mark.parametrize("way", ["stop", "close"])
    def test_the_next_owner_goes_on_after_what_was_settled(self, scene: Scene, way: str) -> None:
        """In order, with nothing lost and nothing twice, though more had been handed out."""
        scene.send(*numbered(1, 10))
        old = scene.reader(scene.first)
        taken = self.take_in_pieces(old, count=6)
        old.settle(4)
        if way == "stop":
            old.consumer.stop(scene.first)
        else:
            old.consumer.close()
        new = scene.reader(scene.first, after=taken[3].position)
        assert names(new.take(6)) == numbered(5, 10)

    def test_settling_a_batch_of_a_stopped_partition_does_nothing(self, scene: Scene) -> None:
        """Its messages belong to the next owner."""
        scene.send(*numbered(1, 3))
        old = scene.reader(scene.first)
        old.batch(limit=3)
        old.consumer.stop(scene.first)
        old.settle()
        assert names(scene.reader(scene.first).take(3)) == numbered(1, 3)

    def test_a_late_settle_does_not_touch_the_batch_of_a_new_start(self, scene: Scene) -> None:
        """Stopped and started again, the partition's old batch is void, and its new one stays out."""
        scene.send(*numbered(1, 4))
        reader = scene.reader(scene.first)
        void = reader.batch(limit=2)
        reader.consumer.stop(scene.first)
        reader.consumer.start(scene.first, None)
        again = Reader(reader.consumer, self.patience_s)
        assert names(self.take_in_pieces(again, count=2)) == ["m1", "m2"]
        again.consumer.settle(void, 2)
        again.quiet()
        again.settle(1)
        assert names(again.take(3)) == numbered(2, 4)

    def test_a_partition_that_was_stopped_can_be_started_again(self, scene: Scene) -> None:
        """By the same consumer, after the message it settled last; stopping others is ignored."""
        scene.send(*numbered(1, 4))
        reader = scene.reader(scene.first)
        (first,) = reader.take(1)
        reader.consumer.stop(scene.first)
        reader.consumer.stop("never started")
        reader.quiet()
        reader.consumer.start(scene.first, first.position)
        assert names(reader.take(3)) == numbered(2, 4)

    def test_the_next_owner_goes_on_when_the_last_was_killed(self, scene: Scene, broker_url: str) -> None:
        """SIGKILL with a batch half settled: what wasn't settled comes to the next owner, in order.

        A queue may give settled messages again: a settle may have been on its way.
        """
        scene.send(*numbered(1, 8))
        with Child(broker_url, self.take_over_s) as old:
            settled = self.settle_half(old, scene)
            old.kill()
            new = scene.reader(scene.first, after=settled, patience_s=self.take_over_s)
            self.see_takes_over(new, scene.broker, first=3, last=8)

    def test_a_frozen_owner_that_comes_back_takes_nothing_away(self, scene: Scene, broker_url: str) -> None:
        """SIGSTOP, hand-over, SIGCONT: its late settle costs the new owner no message and no order."""
        scene.send(*numbered(1, 8))
        with Child(broker_url, self.take_over_s) as old:
            settled = self.settle_half(old, scene)
            old.freeze()
            new = scene.reader(scene.first, after=settled, patience_s=self.take_over_s)
            self.see_takes_over(new, scene.broker, first=3, last=8)
            old.thaw()
            with contextlib.suppress(ChildFailed):
                old.settle(2)
            scene.send("m9", "m10")
            assert names(new.take(2)) == ["m9", "m10"]

    def take_in_pieces(self, reader: Reader, count: int) -> tuple[Delivery, ...]:
        """A batch of exactly `count`; asked for again while the broker has brought only a part."""
        while len(batch := reader.batch(limit=count).deliveries) < count:
            reader.settle(0)
        return batch

    def settle_half(self, old: Child, scene: Scene) -> Position | None:
        """Let a child take four messages and settle two; the position after these."""
        old.start(scene.topic, GROUP, scene.first, None)
        taken = old.take(4)
        while len(taken) < 4:
            old.settle(0)
            taken = old.take(4)
        old.settle(2)
        return taken[1].position

    def see_takes_over(self, new: Reader, broker: Broker, first: int, last: int) -> None:
        """See that `new` gets first … last in order, after nothing but, on a queue, earlier ones again."""
        taken = names(new.take(1))
        while taken[-1] != f"m{last}":
            taken += names(new.take(1))
        begins = int(taken[0][1:])
        assert taken == numbered(begins, last)
        assert begins == first or (begins < first and not broker.capabilities.positions)

    # Groups and topics

    def test_groups_do_not_disturb_each_other(self, scene: Scene) -> None:
        """Each gets everything, whatever the other has settled."""
        scene.broker.declare(scene.topic, self.partitions, "another")
        scene.send(*numbered(1, 5))
        assert names(scene.reader(scene.first).take(5)) == numbered(1, 5)
        assert names(scene.reader(scene.first, group="another").take(5)) == numbered(1, 5)

    def test_topics_do_not_disturb_each_other(self, scene: Scene, broker: Broker) -> None:
        """The same keys in partitions of the same names, in another topic."""
        with contextlib.closing(Scene(broker, self.partitions, self.patience_s)) as other:
            scene.send("m1", "m2")
            other.send("n1")
            mine, theirs = scene.reader(), other.reader()
            assert names(mine.take(2)) == ["m1", "m2"]
            assert names(theirs.take(1)) == ["n1"]
            mine.quiet()
            theirs.quiet()

    # Sending

    def test_what_was_sent_outlives_its_producer(self, scene: Scene, broker_url: str) -> None:
        """SIGKILL right after send has returned: the messages are there."""
        with Child(broker_url, self.patience_s) as sender:
            sender.send_and_die([(scene.first, scene.message(name)) for name in numbered(1, 50)])
        assert names(scene.reader(scene.first).take(50)) == numbered(1, 50)

    def test_a_missing_partition_is_named_and_nothing_is_sent(self, scene: Scene) -> None:
        """An unroutable message is an error, never dropped; its companions aren't sent either."""
        with pytest.raises(BrokerError, match="no-such-partition"):
            scene.producer.send([(scene.first, scene.message("m1")), ("no-such-partition", scene.message("m2"))])
        scene.send("m3")
        assert names(scene.reader(scene.first).take(1)) == ["m3"]

    def test_a_missing_topic_is_named(self, scene: Scene) -> None:
        """Nobody makes a topic by sending to it."""
        stray = replace(scene.message("m1"), topic="no-such-topic")
        with pytest.raises(BrokerError, match="no-such-topic"):
            scene.producer.send([(scene.first, stray)])
        assert scene.broker.partitions("no-such-topic") == ()

    def test_a_body_too_large_is_named_and_nothing_is_sent(self, scene: Scene) -> None:
        """The error says which message it is."""
        limit = scene.broker.capabilities.max_body
        if limit is None or limit > 1 << 28:
            return  # it names no limit, or one that no test machine has the memory for
        giant = replace(scene.message("giant"), body=bytes(limit + 1))
        with pytest.raises(SeriatimError, match="giant"):
            scene.producer.send([(scene.first, scene.message("m1")), (scene.first, giant)])
        scene.send("m2")
        assert names(scene.reader(scene.first).take(1)) == ["m2"]

    # Declaring and closing

    def test_a_declaration_can_be_repeated_and_extended(self, scene: Scene) -> None:
        """What is there stays as it is, its messages too; an unknown topic has no partitions."""
        scene.send("m1")
        scene.broker.declare(scene.topic, self.partitions, GROUP)
        assert sorted(scene.broker.partitions(scene.topic)) == sorted(self.partitions)
        assert names(scene.reader(scene.first).take(1)) == ["m1"]
        assert scene.broker.partitions(f"{scene.topic}-not") == ()

    def test_processes_may_declare_the_same_at_once(self, scene: Scene, broker_url: str) -> None:
        """Every one succeeds, and the topic is one."""
        topic = f"{scene.topic}-shared"
        with contextlib.ExitStack() as stack:
            children = [stack.enter_context(Child(broker_url, self.patience_s)) for _ in range(3)]
            for child in children:
                child.tell("declare", topic, list(self.partitions), GROUP)
            for child in children:
                child.answer()
        assert sorted(scene.broker.partitions(topic)) == sorted(self.partitions)

    def test_closing_twice_is_harmless(self, broker_url: str, scene: Scene) -> None:
        """Consumer, producer and broker, used or not."""
        broker = open_broker(broker_url)
        unused, used = broker.consumer(scene.topic, GROUP), broker.consumer(scene.topic, GROUP)
        used.start(scene.first, None)
        used.poll(0.05, 1)
        producers = broker.producer(), broker.producer()
        producers[1].send([(scene.first, scene.message("m1"))])
        for thing in (unused, used, *producers, broker):
            thing.close()
            thing.close()

    def _override(self, hook: str) -> NoReturn:
        raise NotImplementedError(f"a log is to be tested with its operator's verbs: override {hook}")


class LogContract(BrokerContract):
    """The contract of a broker that is a log: it has positions, and can be trimmed, cut and replaced."""

    @pytest.fixture
    def log(self, scene: Scene) -> Scene:
        """A scene on a broker that is a log."""
        assert scene.broker.capabilities.positions, "derive from BrokerContract: this broker is no log"
        return scene

    def test_reading_goes_on_after_any_position(self, log: Scene) -> None:
        """Each delivery's position is a place to begin after, as often as one likes."""
        log.send(*numbered(1, 5))
        taken = log.reader(log.first).take(5)
        for number, delivery in enumerate(taken[:-1], start=1):
            assert names(log.reader(log.first, after=delivery.position).take(5 - number)) == numbered(number + 1, 5)

    def test_a_position_at_the_end_waits_for_what_comes(self, log: Scene) -> None:
        """It is read through at once, and nothing comes twice."""
        log.send("m1")
        (last,) = log.reader(log.first).take(1)
        reader = log.reader(log.first, after=last.position)
        reader.notice(NoticeKind.READ_THROUGH)
        log.send("m2")
        assert names(reader.take(1)) == ["m2"]

    @pytest.mark.parametrize("count", [1, 9], ids=["shorter than the position", "longer than the position"])
    def test_a_log_that_was_made_anew_is_noticed(self, log: Scene, count: int) -> None:
        """REWOUND, then everything of the new log from its beginning, whether or not it has the position's offset."""
        log.send(*numbered(1, 5))
        taken = log.reader(log.first).take(5)
        self.recreate(log)
        log.send(*[f"new{number}" for number in range(count)])
        reader = log.reader(log.first, after=taken[-1].position)
        assert reader.notice(NoticeKind.REWOUND).detail
        assert names(reader.take(count)) == [f"new{number}" for number in range(count)]

    def test_a_log_that_is_made_anew_under_a_consumer_is_noticed(self, log: Scene) -> None:
        """REWOUND or LOST, never silence."""
        log.send(*numbered(1, 5))
        reader = log.reader(log.first)
        reader.take(5)
        reader.notice(NoticeKind.READ_THROUGH)
        self.recreate(log)
        log.send("new")
        kinds = (NoticeKind.REWOUND, NoticeKind.LOST)
        self.wait_for_notice(reader, kinds)
        if reader.notices[-1].kind is NoticeKind.REWOUND:
            assert names(reader.take(1)) == ["new"]

    def test_a_gap_stops_the_partition_until_it_is_accepted(self, log: Scene) -> None:
        """TRIMMED says what is missing; a start without a position then begins at the earliest kept."""
        log.send(*numbered(1, 9))
        taken = log.reader(log.first).take(2)
        self.trim(log, log.first, keep=4)
        reader = log.reader(log.first, after=taken[-1].position)
        assert reader.notice(NoticeKind.TRIMMED).detail
        reader.quiet()
        reader.consumer.start(log.first, None)
        assert names(reader.take(4)) == numbered(6, 9)

    def test_a_log_that_is_trimmed_up_to_the_position_has_no_gap(self, log: Scene) -> None:
        """Nothing that wasn't handled is missing, so reading goes on."""
        log.send(*numbered(1, 9))
        taken = log.reader(log.first).take(5)
        self.trim(log, log.first, keep=4)
        reader = log.reader(log.first, after=taken[-1].position)
        assert names(reader.take(4)) == numbered(6, 9)
        assert all(notice.kind is NoticeKind.READ_THROUGH for notice in reader.notices)

    def wait_for_notice(self, reader: Reader, kinds: Sequence[NoticeKind]) -> Notice:
        """The next notice of one of these kinds, before any batch."""
        deadline = time.monotonic() + self.patience_s
        while time.monotonic() < deadline:
            found = reader.poll(100, 0.1)
            assert found is None or isinstance(found, Notice), f"handed out without a notice: {found}"
            if found is not None and found.kind in kinds:
                return found
        raise AssertionError(f"none of {kinds} came")

    # Hooks: what only the broker's operator can do

    def recreate(self, scene: Scene) -> None:  # noqa: ARG002
        """Delete the scene's topic and declare it again, empty."""
        self._override("recreate")

    def trim(self, scene: Scene, partition: str, keep: int) -> None:  # noqa: ARG002
        """Let the log forget all but the newest `keep` messages of a partition."""
        self._override("trim")


class ServerContract(BrokerContract):
    """The contract of a broker that is a server: what it has confirmed outlives its restart."""

    def test_a_restart_of_the_broker_loses_nothing(self, scene: Scene) -> None:
        """What was sent before is there after, and the same consumer goes on."""
        scene.send(*numbered(1, 5))
        reader = scene.reader(scene.first)
        reader.take(2)
        self.restart(scene)
        deadline = time.monotonic() + self.take_over_s
        taken: list[str] = []
        while taken[-1:] != ["m5"] and time.monotonic() < deadline:
            with contextlib.suppress(BrokerError):
                taken += names(reader.take(1))
        assert taken == numbered(int(taken[0][1:]), 5)
        assert int(taken[0][1:]) <= 3

    def restart(self, scene: Scene) -> None:  # noqa: ARG002
        """Restart the broker's server, and return when it answers again."""
        self._override("restart")
