"""The ordered producer: routed by key, and never past a message that is in doubt."""

import threading

import pytest

from seriatim import App, BrokerError, InvalidMessage, KeyInDoubt, Message, OrderedProducer, SendFailed


class Broker:
    """Confirms what it is told to; remembers what it was sent."""

    def __init__(self):
        self.sent, self.refuses, self.away = [], set(), False

    def producer(self):
        return self

    def send(self, routed):
        if self.away:
            raise BrokerError("away")
        confirmed = [(partition, one) for partition, one in routed if one.biz_key not in self.refuses]
        self.sent += confirmed
        if len(confirmed) < len(routed):
            raise SendFailed("not all", [one for _, one in routed if one.biz_key in self.refuses])

    def close(self):
        self.sent.append("closed")


@pytest.fixture
def broker():
    return Broker()


@pytest.fixture
def orders():
    return App("shop").topic("orders", partitions=4)


@pytest.fixture
def producer(broker, orders):
    return OrderedProducer(broker, {"orders": orders})


def message(key, number, topic="orders"):
    return Message(topic, key, f"{key}/{number}", "step", b"{}")


def sent(broker):
    return [one.biz_key for _, one in broker.sent]


def test_each_message_goes_to_the_partition_of_its_key(broker, orders, producer):
    producer.send(*[message(f"k{n}", 0) for n in range(20)])
    assert [partition for partition, _ in broker.sent] == [
        orders.routing.route(f"k{n}", orders.partitions) for n in range(20)
    ]


def test_after_a_failed_send_its_key_is_in_doubt_and_others_are_not(broker, producer):
    broker.refuses = {"a/1"}
    with pytest.raises(SendFailed) as caught:
        producer.send(message("a", 1), message("b", 1))
    assert [one.biz_key for one in caught.value.unconfirmed] == ["a/1"]
    with pytest.raises(KeyInDoubt, match=r"(?s)'a'.*a/1.*resend.*abandon"):
        producer.send(message("b", 2), message("a", 2))
    producer.send(message("b", 3))
    assert sent(broker) == ["b/1", "b/3"], "nothing of a refused call is sent"


def test_what_is_in_doubt_is_sent_again_in_order_before_anything_later(broker, producer):
    broker.refuses = {"a/1", "a/2"}
    with pytest.raises(SendFailed):
        producer.send(message("a", 1), message("a", 2))
    broker.refuses = set()
    assert producer.resend() == 2
    producer.send(message("a", 3))
    assert sent(broker) == ["a/1", "a/2", "a/3"]
    assert producer.in_doubt == ()


def test_a_key_given_up_by_name_may_go_on_and_tells_what_was_given_up(broker, producer):
    broker.refuses = {"a/1"}
    with pytest.raises(SendFailed):
        producer.send(message("a", 1))
    assert [one.biz_key for one in producer.abandon("orders", "a")] == ["a/1"]
    assert producer.abandon("orders", "a") == ()
    producer.send(message("a", 2))
    assert sent(broker) == ["a/2"]


def test_a_resend_that_fails_again_keeps_only_what_is_still_unconfirmed(broker, producer):
    broker.refuses = {"a/1", "b/1"}
    with pytest.raises(SendFailed):
        producer.send(message("a", 1), message("b", 1))
    broker.refuses = {"b/1"}
    with pytest.raises(SendFailed):
        producer.resend()
    assert [one.biz_key for one in producer.in_doubt] == ["b/1"]
    producer.send(message("a", 2))
    assert sent(broker) == ["a/1", "a/2"]


def test_a_broker_that_is_away_sent_nothing_so_nothing_is_in_doubt(broker, producer):
    broker.away = True
    with pytest.raises(BrokerError):
        producer.send(message("a", 1))
    assert producer.in_doubt == ()
    broker.away = False
    producer.send(message("a", 1))
    assert sent(broker) == ["a/1"]


def test_a_resend_to_a_broker_that_is_away_keeps_everything_in_doubt(broker, producer):
    broker.refuses = {"a/1"}
    with pytest.raises(SendFailed):
        producer.send(message("a", 1))
    broker.away = True
    with pytest.raises(BrokerError):
        producer.resend()
    assert [one.biz_key for one in producer.in_doubt] == ["a/1"]


def test_keys_of_two_topics_are_two_keys(broker):
    app = App("shop")
    topics = {name: app.topic(name, partitions=1) for name in ("orders", "returns")}
    producer = OrderedProducer(broker, topics)
    broker.refuses = {"a/1"}
    with pytest.raises(SendFailed):
        producer.send(message("a", 1))
    producer.send(message("a", 2, "returns"))
    assert sent(broker) == ["a/2"]


def test_an_undeclared_topic_or_a_body_too_long_is_refused_before_anything_is_sent(broker, producer):
    with pytest.raises(InvalidMessage, match=r"returns.*orders"):
        producer.send(message("a", 1), message("a", 1, "returns"))
    with pytest.raises(InvalidMessage, match="max_body"):
        producer.send(message("a", 1), Message("orders", "a", "b", "step", b"x" * 5_000_000))
    assert broker.sent == []


def test_sending_nothing_is_no_error(broker, producer):
    producer.send()
    assert producer.resend() == 0
    assert broker.sent == []


def test_threads_that_send_each_their_own_keys_never_lose_or_reorder_one(rig):
    app = rig.app()
    orders = app.topic("orders", partitions=3)
    seen = []
    orders.on("step")(lambda event, ctx: seen.append((ctx.message.sharding_key, event["n"])))
    with app.producer() as producer:

        def send(key):
            for n in range(25):
                producer.send(orders.message(key=key, type="step", biz_key=f"{key}/{n}", body={"n": n}))

        threads = [threading.Thread(target=send, args=(f"k{n}",)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    rig.run(app)
    assert len(seen) == 150
    for key in {key for key, _ in seen}:
        assert [n for of, n in seen if of == key] == list(range(25))


def test_one_thread_s_failure_doesn_t_forget_another_thread_s(broker, producer):
    """Both send messages of one key at the same moment, and neither is confirmed: both are in doubt."""
    both = threading.Barrier(2)
    refuse = broker.send

    def send(routed):
        both.wait(10)
        refuse(routed)

    broker.send, broker.refuses = send, {"a/1", "a/2"}

    def fail(number):
        with pytest.raises(SendFailed):
            producer.send(message("a", number))

    threads = [threading.Thread(target=fail, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {one.biz_key for one in producer.in_doubt} == {"a/1", "a/2"}
