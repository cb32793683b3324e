"""Following what a consumer on RabbitMQ is given, and what it says, through trouble."""

import contextlib
import time

from seriatim.contract.broker import GROUP, Scene, names
from seriatim.core.broker import Batch, NoticeKind
from seriatim.core.brokers import open_broker
from seriatim.core.errors import BrokerError

PATIENCE_S = 60.0


@contextlib.contextmanager
def scene_at(server, queue_type, options=""):
    """A topic of one partition on `server`, deleted after."""
    with contextlib.closing(open_broker(f"{server}?queue_type={queue_type}{options}")) as broker:
        with contextlib.closing(Scene(broker, ("0",), patience_s=30.0)) as scene:
            scene.queue_type = queue_type
            yield scene
        broker.delete(scene.topic, (GROUP,))


@contextlib.contextmanager
def consuming(scene, after=None):
    with contextlib.closing(scene.broker.consumer(scene.topic, GROUP)) as consumer:
        consumer.start(scene.first, after)
        yield consumer


def until(condition, what):
    """What `condition` gives once that is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} didn't come"
        time.sleep(0.01)
    return found


def follow(consumer, last):
    """What comes until `last`, settled as it comes; what is lost is lost; trouble is waited out. And the notices."""
    taken, notices, troubles = [], [], []
    deadline = time.monotonic() + PATIENCE_S
    while taken[-1:] != [last]:
        assert time.monotonic() < deadline, f"{last} didn't come: {taken}, {notices}, {troubles[-3:]}"
        try:
            found = consumer.poll(0.2, 100)
        except BrokerError as error:
            troubles.append(str(error))
            time.sleep(0.05)  # as a lane does
            continue
        if isinstance(found, Batch):
            taken += names(found.deliveries)
            consumer.settle(found, len(found.deliveries))
        elif found is not None:
            notices.append(found)
    return taken, [notice for notice in notices if notice.kind is not NoticeKind.READ_THROUGH]


def first_batch(consumer, limit):
    """The next batch; notices before it are passed over."""

    def polled():
        found = consumer.poll(0.2, limit)
        return found if isinstance(found, Batch) else None

    return until(polled, "a batch")


def notice_of(consumer, kind):
    """The next notice of a kind; what is handed out before it is given back."""

    def polled():
        found = consumer.poll(0.2, 1)
        if isinstance(found, Batch):
            consumer.settle(found, 0)
            return None
        return found if found is not None and found.kind is kind else None

    return until(polled, f"the notice {kind}")


def trouble_of(consumer):
    """What the first poll that fails says; what is handed out before it is given back. No secret is in it."""

    def polled():
        try:
            found = consumer.poll(0.1, 1)
        except BrokerError as error:
            return str(error)
        if isinstance(found, Batch):
            consumer.settle(found, 0)
        return None

    told = until(polled, "trouble")
    assert "guest:guest" not in told
    assert "s3cr3t" not in told
    return told


def send_again(scene, name):
    """Send until it is confirmed."""

    def sent():
        try:
            scene.send(name)
        except BrokerError:
            return False
        return True

    until(sent, f"the confirmation of {name}")
