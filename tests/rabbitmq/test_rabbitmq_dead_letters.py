"""What a policy of the server's gives up is parked, flagged, and waits for a person (design ch. 4; FC-D)."""

import contextlib
import time

import pytest
from support.rig import Witness, enter, on_a_thread, wait_until
from support.services import service_url

from seriatim import App, Policy, Settings
from seriatim.adapters.rabbitmq.wire import to_wire
from seriatim.compensation.daemon import make_engine
from seriatim.core.brokers import open_broker
from seriatim.core.store import open_store

from .rabbit import plain_connection


@pytest.fixture
def letters():
    """A queue that somebody's dead-letter exchange fills."""
    name = f"dead-letters-{time.monotonic_ns()}"
    with contextlib.closing(plain_connection(service_url("rabbitmq"))) as connection:
        channel = connection.channel()
        channel.queue_declare(name, durable=True)
        yield name
        channel.queue_delete(name)


def test_what_the_server_gave_up_is_parked_once_and_leaves_the_queue(rig, letters):
    url = f"{service_url('rabbitmq')}?queue_type=quorum"
    app = App("shop", settings=Settings(broker=url, store=rig.store))
    orders = app.topic(f"orders-{letters}", partitions=2, policy=Policy(), dead_letters=letters)
    orders.on("step")(lambda event, ctx: enter(ctx))
    app.declare()
    try:
        give_up(letters, orders.message(key="a", type="step", biz_key="a/0", body={}))
        witness = Witness()
        with contextlib.closing(open_store(rig.store)) as store, contextlib.closing(open_broker(url)) as broker:
            engine = make_engine(store, app.settings, witness, app, broker=broker)
            with on_a_thread(engine.run, engine.stop):
                wait_until(lambda: rig.parked("dead"), "the dead letter")
        assert [row[0] for row in rig.parked()] == ["a/0"]
        assert "order broken" in rig.parked()[0][3]
        assert [one["source"] for one in witness.seen("dead letters parked")] == [letters]
        wait_until(lambda: waiting_in(letters) == 0, "the queue to be empty")
    finally:
        with contextlib.closing(open_broker(url)) as broker:
            broker.delete(orders.name, ("shop",))


def give_up(letters, message):
    """What a dead-letter exchange does: the message, with its headers, in another queue."""
    properties, body = to_wire(message)
    with contextlib.closing(plain_connection(service_url("rabbitmq"))) as connection:
        connection.channel().basic_publish("", letters, body, properties)


def waiting_in(name):
    with contextlib.closing(plain_connection(service_url("rabbitmq"))) as connection:
        return connection.channel().queue_declare(name, passive=True).method.message_count
