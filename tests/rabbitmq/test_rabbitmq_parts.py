"""RabbitMQ: the parts that need no server: URLs, names, what travels, and the order of what is being sent."""

import contextlib
from types import SimpleNamespace

import pytest
from pika.heartbeat import HeartbeatChecker

from seriatim.adapters.rabbitmq import RabbitBroker, names, topology, wire
from seriatim.adapters.rabbitmq.ending import EndWatch
from seriatim.adapters.rabbitmq.inbox import Inbox
from seriatim.adapters.rabbitmq.sending import Call, Item, Sending
from seriatim.adapters.rabbitmq.settings import read_url
from seriatim.adapters.rabbitmq.tray import Tray
from seriatim.core.errors import BrokerError, ConfigurationError, InvalidMessage
from seriatim.core.message import Delivery, Message, Position


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("amqp://u:s3cr3t@h/?queue_type=mirrored", "quorum, classic, stream"),
        ("amqp://u:s3cr3t@h/?prefetch=0", "from 1"),
        ("amqp://u:s3cr3t@h/?prefetch=many", "'prefetch' can't be 'many'"),
        ("amqp://u:s3cr3t@h/?colour=red", "unknown option 'colour'"),
        ("amqp://u:s3cr3t@h/?prefetch=1&prefetch=2", "twice"),
        ("amqp://u:s3cr3t@h/?max_age=week", "like 7D"),
        ("amqp://u:s3cr3t@h/?ca_file=x", "write amqps"),
        ("amqps://u:s3cr3t@h/?ca_file=/no/such/file", "No such file"),
        ("amqps://u:s3cr3t@h/?key_file=x", "without cert_file"),
        ("amqp://u:s3cr3t@h:port/", "port"),
        ("amqp://u:s3cr3t@h/#x", "%23"),
    ],
)
def test_a_url_that_cant_be_read_is_named_without_its_secret(url, told):
    with pytest.raises(ConfigurationError, match=told) as caught:
        read_url(url)
    assert "s3cr3t" not in str(caught.value)


def test_a_url_says_where_and_how():
    settings = read_url("amqps://me:p%40ss@h/%2Fshop?queue_type=stream&heartbeat=7&max_age=7D&verify_hostname=no")
    assert (settings.server, settings.user, settings.queue_type) == ("h:5671", "me", "stream")
    parameters = settings.parameters
    assert (parameters.virtual_host, parameters.heartbeat, parameters.credentials.password) == ("/shop", 7, "p@ss")
    assert not parameters.ssl_options.context.check_hostname
    assert topology.arguments(settings, (3, 13))["x-max-age"] == "7D"


def test_only_a_server_that_has_a_delivery_limit_is_told_that_there_is_none():
    """4.x drops a message after 20 deliveries; 3.x would take -1 for a limit."""
    settings = read_url("amqp://h")
    assert topology.arguments(settings, (4, 0, 1))["x-delivery-limit"] == -1
    assert "x-delivery-limit" not in topology.arguments(settings, (3, 10, 8))


def test_no_two_groups_share_a_queue_because_of_a_dot():
    assert names.queue("a.b", "c", "0") != names.queue("a", "b.c", "0")
    assert names.queue("a%2Eb", "c", "0") != names.queue("a.b", "c", "0")
    assert names.queue("a", "b.c", "0") == "a.b.c.0"


def test_a_topic_of_the_suites_own_name_and_a_name_too_long_are_refused():
    with pytest.raises(ConfigurationError, match="prefix="):
        names.check_topic("seriatim", "seriatim.orders")
    with pytest.raises(ConfigurationError, match="255 bytes"):
        names.queue("g" * 100, "t" * 128, "p" * 100)


def test_what_rabbitmq_cant_take_is_the_messages_fault():
    with pytest.raises(InvalidMessage, match="giant"):
        wire.to_wire(Message("t", "k", "giant", "t", bytes(wire.MAX_BODY + 1)))
    with pytest.raises(InvalidMessage, match="headers"):
        wire.to_wire(Message("t", "k", "b", "t", b"", headers={"h": "x" * 120_000}))
    with pytest.raises(InvalidMessage, match="255 bytes"):
        wire.to_wire(Message("t", "k", "b", "t", b"", headers={"h" * 300: "x"}))


class Wire:
    """What `Sending` has put on the wire."""

    def __init__(self):
        self.sent = []
        self.sending = Sending(self.publish)

    def publish(self, item):
        self.sent.append(item.message.biz_key)
        return len(self.sent)

    def call(self, *biz_keys):
        call = Call(len(biz_keys))
        items = []
        for biz_key in biz_keys:
            message = Message("t", biz_key[0], biz_key, "t", b"")
            properties, body = wire.to_wire(message)
            items.append(Item(call, message, "x", "0", properties, body))
        self.sending.add(items)
        return call, items


def test_a_key_has_one_message_on_its_way_and_other_keys_flow():
    on_wire = Wire()
    call, _ = on_wire.call("a1", "a2", "b1", "a3", "b2")
    assert on_wire.sent == ["a1", "b1"]
    on_wire.sending.confirmed(2, multiple=True, accepted=True)
    assert on_wire.sent == ["a1", "b1", "a2", "b2"]
    on_wire.sending.confirmed(4, multiple=True, accepted=True)
    on_wire.sending.confirmed(5, multiple=False, accepted=True)
    assert on_wire.sent[4:] == ["a3"]
    assert call.done.is_set()
    assert call.error is None


def test_what_follows_a_refused_message_isnt_sent_whoever_wanted_it():
    """m1 nacked and m2 taken would put m1 behind m2 when it is sent again (F46)."""
    on_wire = Wire()
    mine, items = on_wire.call("a1", "a2", "b1")
    other, theirs = on_wire.call("a3")
    on_wire.sending.confirmed(1, multiple=False, accepted=False)
    on_wire.sending.confirmed(2, multiple=False, accepted=True)
    assert on_wire.sent == ["a1", "b1"]
    assert [item.confirmed for item in items] == [False, False, True]
    assert mine.done.is_set()
    assert other.done.is_set()
    assert not theirs[0].sent
    assert "a1" in str(other.error)
    on_wire.call("a4")
    assert on_wire.sent[-1] == "a4"


def test_a_returned_message_isnt_sent_whatever_the_confirmation_says():
    on_wire = Wire()
    call, items = on_wire.call("a1", "a2")
    on_wire.sending.returned(items[0].properties, "0", lambda message: BrokerError(f"no route for {message.biz_key}"))
    on_wire.sending.confirmed(1, multiple=False, accepted=True)
    assert on_wire.sent == ["a1"]
    assert "no route for a1" in str(call.error)


def test_a_lost_channel_leaves_everything_unconfirmed():
    on_wire = Wire()
    call, items = on_wire.call("a1", "a2", "b1")
    on_wire.sending.confirmed(2, multiple=False, accepted=True)
    on_wire.sending.lost(BrokerError("gone"))
    assert call.done.is_set()
    assert [item.confirmed for item in items] == [False, False, True]
    on_wire.sending.confirmed(1, multiple=True, accepted=True)  # late: of a channel that is gone
    assert not items[0].confirmed


class Asked:
    """A line whose server gives these counts of ready messages, one after another."""

    def __init__(self, *counts):
        self.channel = object()
        self.counts = list(counts)
        self.between = lambda: None

    def later(self, _delay_s, call):
        if self.counts:
            call()

    def ask(self, _queue, then):
        if self.counts:
            count = self.counts.pop(0)
            self.between()
            then(SimpleNamespace(method=SimpleNamespace(message_count=count)))


def watched(line, *, counts=True):
    """Whether the end is found by a watch on an empty tray."""
    inbox, tray = Inbox(), Tray("0", None)
    inbox.add(tray)
    watch = EndWatch(line, inbox, tray, "q", quiet_s=0.0, counts=counts)
    line.watch = watch
    watch.look()
    return tray.at_end


def test_a_queue_is_at_its_end_when_two_answers_in_a_row_say_so():
    assert watched(Asked(0, 0))
    assert watched(Asked(1, 0, 0))
    assert not watched(Asked(0))
    assert not watched(Asked(0, 1))


def test_a_queue_is_not_at_its_end_when_something_arrived_between_the_answers():
    line = Asked(0, 0)
    line.between = lambda: line.watch.arrived() or None
    assert not watched(line)


def test_a_stream_that_answers_is_at_its_end_whatever_it_counts():
    assert watched(Asked(9), counts=False)


def test_what_was_given_back_is_topped_up_by_what_has_arrived_since():
    tray = Tray("0", None)
    deliveries = [Delivery("t", "0", {}, b"", 0.0, Position(str(number), "")) for number in range(4)]
    tray.put(deliveries[0])
    first = tray.take(3)
    for delivery in deliveries[1:]:
        tray.put(delivery)
    assert tray.take(3) is None
    tray.settle(first, 0)
    assert tray.take(3).deliveries == tuple(deliveries[:3])
    assert tray.forget_arrived() == deliveries[2].position


def test_a_lost_link_may_look_quiet_for_two_of_pikas_looks():
    """pika looks every heartbeat + 5 s whether anything came since its last look."""
    checker = HeartbeatChecker.__new__(HeartbeatChecker)
    for heartbeat in (1, 4, 60):
        with contextlib.suppress(AttributeError):  # without a connection it gets no further than its times
            checker.__init__(None, heartbeat)
        silence_s = read_url(f"amqp://h?heartbeat={heartbeat}").silence_s
        assert 2 * checker._check_interval < silence_s < 2 * checker._check_interval + 2  # noqa: SLF001 - seen from inside: no public way
    assert RabbitBroker("amqp://h?heartbeat=7").capabilities.silence_s == read_url("amqp://h?heartbeat=7").silence_s


def test_partitions_take_turns():
    inbox = Inbox()
    for partition in ("0", "1", "2"):
        tray = Tray(partition, None)
        inbox.add(tray)
        for number in range(4):
            inbox.put(tray, Delivery("t", partition, {}, str(number).encode(), 0.0))
    taken = []
    for _ in range(6):
        batch = inbox.poll(0, 2)
        taken.append(batch.partition)
        inbox.settle(batch, len(batch.deliveries))
    assert taken == ["0", "1", "2", "0", "1", "2"]
