"""RabbitMQ: what goes wrong is noticed, named with its remedy, and recovered from (FC-P3, P7, P9)."""

import contextlib
import re
import time
from dataclasses import replace
from decimal import Decimal

import pika
import pytest
from pika.channel import Channel
from support.services import service_url

from seriatim.adapters.rabbitmq import line
from seriatim.adapters.rabbitmq import names as on_server
from seriatim.adapters.rabbitmq.settings import Settings
from seriatim.contract.broker import GROUP, Scene, numbered
from seriatim.core.broker import NoticeKind
from seriatim.core.brokers import open_broker
from seriatim.core.errors import BrokerError, ConfigurationError, SendFailed
from seriatim.core.message import Position

from .rabbit import plain_connection
from .watching import consuming, first_batch, follow, notice_of, scene_at, trouble_of, until

QUEUES = ("quorum", "classic")
EVERY_TYPE = (*QUEUES, "stream")


@pytest.fixture(params=EVERY_TYPE)
def scene(request):
    with scene_at(service_url("rabbitmq"), request.param) as scene:
        yield scene


@pytest.fixture(params=QUEUES)
def queue_scene(request):
    with scene_at(service_url("rabbitmq"), request.param) as scene:
        yield scene


@pytest.fixture
def stream_scene():
    with scene_at(service_url("rabbitmq"), "stream") as scene:
        yield scene


def queue_of(scene):
    """What the scene's partition is called on the server."""
    if scene.queue_type == "stream":
        return on_server.stream(scene.topic, "0")
    return on_server.queue(GROUP, scene.topic, "0")


# The connection


def test_a_late_acknowledgement_of_a_dead_channel_is_dropped(queue_scene):
    """FC-P3: the link is cut during the handler; the new channel stays open, and what was in hand comes again."""
    queue_scene.send(*numbered(1, 5))
    with consuming(queue_scene) as consumer:
        batch = first_batch(consumer, 1)
        handle = batch.deliveries[0].handle
        consumer._link.cut()  # noqa: SLF001 - as a network does
        fresh = until(lambda: handle[1].is_closed and handle[0].line.channel, "another channel")
        consumer.settle(batch, 1)
        consumer._link.post(lambda: handle[0].settle(handle[1], 1_000))  # noqa: SLF001 - one that was on its way
        taken, notices = follow(consumer, "m5")
        assert taken == numbered(1, 5)
        assert [notice.kind for notice in notices] == [NoticeKind.LOST]
        assert fresh.is_open
        assert handle[0].line.channel is fresh


def test_a_stream_goes_on_where_it_stood_when_the_link_was_cut(stream_scene):
    """Its batch in hand stays valid, and nothing comes twice."""
    scene = stream_scene
    scene.send(*numbered(1, 50))
    with consuming(scene) as consumer:
        batch = first_batch(consumer, 10)
        count = len(batch.deliveries)
        reader, old, _ = batch.deliveries[0].handle
        consumer._link.cut()  # noqa: SLF001 - a fault is planted where no public way leads
        until(lambda: reader.line.channel not in {None, old}, "another channel")
        consumer.settle(batch, count - 1)
        taken, notices = follow(consumer, "m50")
        assert taken == numbered(count, 50)
        assert notices == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("guest:guest", "guest:s3cr3t"), "refused the credentials of user 'guest'"),
        (("/%2F", "/no-such-vhost"), "no vhost 'no-such-vhost'"),
    ],
)
def test_credentials_and_vhost_that_are_refused_are_named(change, told):
    """With the remedy, and no secret."""
    with contextlib.closing(open_broker(service_url("rabbitmq").replace(*change))) as broker:
        with pytest.raises(ConfigurationError, match=told) as caught:
            broker.declare("t", ("0",), GROUP)
        assert "s3cr3t" not in f"{caught.value!r} {caught.value.__cause__!r}"
        with contextlib.closing(broker.consumer("t", GROUP)) as consumer:
            consumer.start("0", None)
            assert told in trouble_of(consumer)


def test_a_server_that_is_not_there_is_named():
    """By its address."""
    with contextlib.closing(open_broker("amqp://localhost:1")) as broker:
        with pytest.raises(BrokerError, match="localhost:1 is away"):
            broker.partitions("t")
        with contextlib.closing(broker.consumer("t", GROUP)) as consumer:
            consumer.start("0", None)
            assert "localhost:1 is away" in trouble_of(consumer)


def test_a_handler_of_ten_heartbeats_keeps_its_partition():
    """The connection's thread does nothing but keep it alive."""
    with scene_at(service_url("rabbitmq"), "quorum", "&heartbeat=1") as scene, consuming(scene) as consumer:
        scene.send(*numbered(1, 3))
        batch = first_batch(consumer, 1)
        channel = batch.deliveries[0].handle[1]
        time.sleep(10)  # the handler
        consumer.settle(batch, 1)
        assert follow(consumer, "m3") == (numbered(1 + 1, 3), [])
        assert channel.is_open


def test_a_question_that_the_server_never_answers_is_told_and_asked_again(monkeypatch, scene):
    """It took the question, and looks like a quiet partition: LOST, and another channel."""
    scene.send("m1")
    monkeypatch.setattr(line, "ANSWER_S", 0.2)
    subscribe = Channel.basic_consume
    monkeypatch.setattr(Channel, "basic_consume", lambda *_, **__: None)
    with consuming(scene) as consumer:
        assert "no answer" in notice_of(consumer, NoticeKind.LOST).detail
        monkeypatch.setattr(Channel, "basic_consume", subscribe)
        assert follow(consumer, "m1")[0] == ["m1"]


def test_a_server_that_opens_or_closes_no_channel_loses_the_connection(monkeypatch, queue_scene):
    """Both are asked without end otherwise."""
    queue_scene.send("m1", "m2")
    monkeypatch.setattr(line, "ANSWER_S", 0.2)
    monkeypatch.setattr(line, "CLOSE_S", 0.2)
    opened = Channel._on_openok  # noqa: SLF001 - seen from inside: no public way
    closed = Channel._on_closeok  # noqa: SLF001 - seen from inside: no public way
    with consuming(queue_scene) as consumer:
        reader, channel, _ = first_batch(consumer, 1).deliveries[0].handle
        first = channel.connection
        monkeypatch.setattr(Channel, "_on_closeok", lambda *_: None)
        consumer._link.post(lambda: reader.line.reopen("for a test"))  # noqa: SLF001 - a fault is planted where no public way leads
        until(lambda: first.is_closed, "the end of the connection")
        monkeypatch.setattr(Channel, "_on_closeok", closed)
        fresh = until(lambda: reader.line.channel, "another channel")
        second = fresh.connection
        monkeypatch.setattr(Channel, "_on_openok", lambda *_: None)
        consumer._link.post(lambda: reader.line.reopen("for a test"))  # noqa: SLF001 - a fault is planted where no public way leads
        until(lambda: second.is_closed, "the end of the connection")
        monkeypatch.setattr(Channel, "_on_openok", opened)
        assert follow(consumer, "m2")[0][-2:] == ["m1", "m2"]


# The queue


def test_a_stranger_that_consumes_from_the_queue_is_told(monkeypatch, queue_scene):
    """Nothing is read beside it, and that isn't a healthy idle: LOST says what to look for; then it goes on."""
    monkeypatch.setattr(Settings, "hand_over_s", 0.3)
    queue_scene.send("m1")
    theirs = plain_connection(service_url("rabbitmq"))
    channel = theirs.channel()
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume(queue_of(queue_scene), lambda *_: None)
    with consuming(queue_scene) as consumer:
        assert "list_consumers" in notice_of(consumer, NoticeKind.LOST).detail
        theirs.close()
        assert follow(consumer, "m1")[0] == ["m1"]


def test_a_deleted_queue_is_noticed_and_resumed_when_it_is_declared_again(scene):
    """FC-P7: LOST names it and the remedy, within seconds; never a healthy idle."""
    scene.send("m1")
    with consuming(scene) as consumer:
        assert follow(consumer, "m1")[0] == ["m1"]
        notice_of(consumer, NoticeKind.READ_THROUGH)  # from here on nothing is asked any more
        with contextlib.closing(plain_connection(service_url("rabbitmq"))) as connection:
            connection.channel().queue_delete(queue_of(scene))
        began = time.monotonic()
        while "declare the topic again" not in (detail := notice_of(consumer, NoticeKind.LOST).detail):
            pass
        assert queue_of(scene) in detail
        assert time.monotonic() - began < 10
        scene.broker.declare(scene.topic, ("0",), GROUP)
        scene.send("m2")
        assert follow(consumer, "m2")[0] == ["m2"]


@pytest.mark.parametrize(
    "there",
    [
        {"x-queue-type": "classic"},
        {"x-queue-type": "quorum", "x-single-active-consumer": True, "x-message-ttl": 1000},
        {"x-queue-type": "quorum"},
    ],
    ids=["another type", "messages expire", "no single active consumer"],
)
def test_a_queue_with_other_settings_is_named(there):
    """With what differs, and the remedy; nothing of it is touched."""
    server = service_url("rabbitmq")
    queue = on_server.queue(GROUP, "stranger", "0")
    with contextlib.closing(plain_connection(server)) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True, arguments=there)
        try:
            with contextlib.closing(open_broker(f"{server}?queue_type=quorum")) as broker:
                with pytest.raises(ConfigurationError, match=r"warehouse\.stranger\.0.*(inequivalent).*delete it"):
                    broker.declare("stranger", ("0",), GROUP)
                assert broker.partitions("stranger") == ()
        finally:
            channel.queue_delete(queue)
            channel.exchange_delete(on_server.exchange("seriatim", "stranger"))


@pytest.mark.parametrize("queue_type", ["quorum", "stream"])
def test_an_exchange_of_another_type_is_named(queue_type):
    server = service_url("rabbitmq")
    exchange = on_server.exchange("seriatim", "strange-exchange")
    with contextlib.closing(plain_connection(server)) as connection:
        channel = connection.channel()
        channel.exchange_declare(exchange, "topic", durable=True)
        try:
            with (
                contextlib.closing(open_broker(f"{server}?queue_type={queue_type}")) as broker,
                pytest.raises(ConfigurationError, match=r"seriatim\.strange-exchange.*'topic'"),
            ):
                broker.declare("strange-exchange", ("0",), GROUP)
        finally:
            channel.exchange_delete(exchange)


@pytest.mark.parametrize(("declared", "given"), [("quorum", "stream"), ("stream", "classic")])
def test_a_topic_of_the_other_kind_is_named(declared, given):
    """Queues and streams at once would be two logs of one topic."""
    server = service_url("rabbitmq")
    with (
        scene_at(server, declared) as scene,
        contextlib.closing(open_broker(f"{server}?queue_type={given}")) as broker,
        pytest.raises(ConfigurationError, match=f"{scene.topic}.*queue_type={given}.*declared with"),
    ):
        broker.declare(scene.topic, ("0", "1"), GROUP)


def test_a_stream_of_another_retention_is_named():
    server = service_url("rabbitmq")
    with (
        scene_at(server, "stream") as scene,
        contextlib.closing(open_broker(f"{server}?queue_type=stream&max_age=7D")) as broker,
        pytest.raises(ConfigurationError, match=r"x-max-age.*retention"),
    ):
        broker.declare(scene.topic, ("0",), GROUP)


def test_partitions_that_were_not_declared_before_are_added_and_no_others_go(scene):
    """What the server holds is what all declarations said: whether they differ is for core to judge."""
    scene.broker.declare(scene.topic, ("0", "1"), GROUP)
    scene.broker.declare(scene.topic, ("1",), GROUP)
    assert scene.broker.partitions(scene.topic) == ("0", "1")
    scene.send("m1", partition="1")


# A stream that isn't the one that was read: four ways, told apart


def recreate(scene):
    scene.broker.delete(scene.topic, (GROUP,))
    scene.broker.declare(scene.topic, ("0",), GROUP)


@pytest.mark.parametrize(
    ("sent_again", "told"),
    [
        ((), "empty"),
        (("m1", "m2"), "was cut or made anew.*near its end is 1"),
        (("n1", "n2", "n3", "n4", "n5"), "another message than was handled.*written anew"),
    ],
    ids=["empty", "cut", "made anew"],
)
def test_a_stream_that_was_emptied_cut_or_made_anew_is_told_and_read_from_its_beginning(stream_scene, sent_again, told):
    scene = stream_scene
    scene.send(*numbered(1, 5))
    position = scene.reader().take(5)[-1].position
    recreate(scene)
    if sent_again:
        scene.send(*sent_again)
    with consuming(scene, after=position) as consumer:
        assert re.search(told, notice_of(consumer, NoticeKind.REWOUND).detail)
        scene.send("last")
        assert follow(consumer, "last") == ([*sent_again, "last"], [])


def test_a_position_that_is_none_of_a_stream_is_told_and_read_from_its_beginning(stream_scene):
    """The topic was of another broker before."""
    stream_scene.send("m1")
    with consuming(stream_scene, after=Position("broker-a:7", "x")) as consumer:
        assert "none of a stream" in notice_of(consumer, NoticeKind.REWOUND).detail
        assert follow(consumer, "m1")[0] == ["m1"]


# Sending


@pytest.mark.parametrize("queue_type", QUEUES)
def test_what_no_queue_takes_is_an_error_for_that_very_message(queue_type):
    """FC-P9: before any group was declared; the error names the message and the remedy."""
    with contextlib.closing(open_broker(f"{service_url('rabbitmq')}?queue_type={queue_type}")) as broker:
        with contextlib.closing(Scene(broker, ("0",), 20.0)) as made:
            topic = f"{made.topic}-nobody"
            broker.declare(topic, ("0",))
            message = replace(made.message("m1"), topic=topic)
            with pytest.raises(SendFailed, match=r"'m1'.*seriatim run") as caught:
                made.producer.send([("0", message), ("0", replace(made.message("m2"), topic=topic))])
            assert [one.biz_key for one in caught.value.unconfirmed] == ["m1", "m2"]
            broker.declare(topic, ("0",), GROUP)
            made.producer.send([("0", one) for one in caught.value.unconfirmed])
            with contextlib.closing(broker.consumer(topic, GROUP)) as consumer:
                consumer.start("0", None)
                assert follow(consumer, "m2")[0] == ["m1", "m2"]
        broker.delete(topic, (GROUP,))
        broker.delete(made.topic, (GROUP,))


def test_a_topic_that_was_deleted_under_a_producer_is_an_error(scene):
    """The exchange is gone: the channel closes, the message is unconfirmed, and the next send names the topic."""
    scene.send("m1")
    scene.broker.delete(scene.topic, (GROUP,))
    with pytest.raises(SendFailed, match="m2"):
        scene.send("m2")
    with pytest.raises(BrokerError, match=scene.topic):
        scene.send("m3")


def test_a_server_that_stands_still_costs_a_send_its_timeout(monkeypatch, queue_scene):
    """No confirmation: SendFailed carries the messages in order, and the producer can be used again."""
    producer = queue_scene.producer
    queue_scene.send("m1")
    monkeypatch.setattr(producer, "_settings", replace(producer._settings, confirm_timeout_s=0.3))  # noqa: SLF001 - a fault is planted where no public way leads
    confirmed = producer._sending.confirmed  # noqa: SLF001 - seen from inside: no public way
    monkeypatch.setattr(producer._sending, "confirmed", lambda *_, **__: None)  # noqa: SLF001 - a fault is planted where no public way leads
    with pytest.raises(SendFailed, match="no confirmation within") as caught:
        queue_scene.send("m2", "m3")
    assert [one.biz_key for one in caught.value.unconfirmed] == ["m2", "m3"]
    monkeypatch.setattr(producer._sending, "confirmed", confirmed)  # noqa: SLF001 - a fault is planted where no public way leads
    queue_scene.send("m2", "m3", "other")  # it isn't held up
    with consuming(queue_scene) as consumer:
        assert follow(consumer, "other")[0] == ["m1", "m2", "m2", "m3", "other"]


# Foreign producers


def test_a_foreign_producer_in_plain_pika_is_understood(queue_scene):
    """Its keys are where the URL says, its odd header values become text."""
    url = f"{service_url('rabbitmq')}?queue_type=quorum&key_header=order&biz_key_from=message_id"
    with contextlib.closing(plain_connection(service_url("rabbitmq"))) as theirs:
        theirs.channel().basic_publish(
            on_server.exchange("seriatim", queue_scene.topic),
            "0",
            b"{}",
            pika.BasicProperties(
                headers={"order": 7, "flags": [1, True, {"a": None}], "raw": b"\xff", "x-delivery-count": 3},
                type="order.paid",
                message_id="flow-1",
                timestamp=1_700_000_000,
                correlation_id="c",
            ),
        )
    with (
        contextlib.closing(open_broker(url)) as broker,
        contextlib.closing(broker.consumer(queue_scene.topic, GROUP)) as consumer,
    ):
        consumer.start("0", None)
        (delivery,) = first_batch(consumer, 1).deliveries
    assert delivery.raw == {
        "order": "7",
        "flags": '[1, true, {"a": null}]',
        "raw": "\\xff",
        "seriatim-key": "7",
        "seriatim-type": "order.paid",
        "seriatim-biz-key": "flow-1",
        "seriatim-produced-at": "1700000000",
        "seriatim-correlation-id": "c",
    }


def test_whatever_a_foreign_producer_sends_is_handed_out_with_its_bytes(scene):
    """FC-D7: no headers, no body, odd properties: judging it is core's business, and what follows it comes."""
    odd = [
        (b"", pika.BasicProperties()),
        (b"\xff\x00", pika.BasicProperties(headers={"seriatim-key": b"\xff", "number": -(2**40)})),
        (b"x", pika.BasicProperties(headers={"x-stream-offset": 7}, content_encoding="gzip", priority=9)),
    ]
    if scene.queue_type != "stream":  # 3.10 ends the connection of who sends such a thing to a stream
        table = {"seriatim-key": ["a", {"b": b"c"}], "decimal": Decimal("1.5"), "none": None}
        theirs_alone = {"x-stream-offset": "not one", "x-delivery-count": "many"}
        odd += [(b"y", pika.BasicProperties(headers=table)), (b"z", pika.BasicProperties(headers=theirs_alone))]
    with contextlib.closing(plain_connection(service_url("rabbitmq"))) as theirs:
        channel = theirs.channel()
        for body, properties in odd:
            channel.basic_publish(on_server.exchange("seriatim", scene.topic), "0", body, properties)
    scene.send("m1")
    taken = scene.reader().take(len(odd) + 1)
    assert [delivery.body for delivery in taken] == [*(body for body, _ in odd), b"body of m1"]
    assert len({delivery.position for delivery in taken}) == (len(taken) if scene.queue_type == "stream" else 1)
    assert all(type(value) is str for delivery in taken for value in delivery.raw.values())
