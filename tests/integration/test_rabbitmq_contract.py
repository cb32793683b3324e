"""RabbitMQ: the contract on quorum queues, classic queues and streams."""

import base64
import contextlib
import json
import time
import urllib.request
from urllib.parse import quote, urlsplit

import pytest
from support.services import service_url

from seriatim.contract.broker import BrokerContract, Scene, names, numbered
from seriatim.contract.reading import Reader
from seriatim.core.broker import NoticeKind
from seriatim.core.brokers import open_broker

GROUPS = ("warehouse", "another")


class RabbitContract(BrokerContract):
    queue_type = ""
    options = ""
    idle_wakeup_s = 0.1

    @pytest.fixture
    def broker_url(self):
        return f"{service_url('rabbitmq')}?queue_type={self.queue_type}{self.options}"

    @pytest.fixture
    def scene(self, broker):
        with contextlib.closing(Scene(broker, self.partitions, self.patience_s)) as scene:
            yield scene
        for topic in (scene.topic, f"{scene.topic}-shared"):
            broker.delete(topic, GROUPS)


class TestQuorumQueues(RabbitContract):
    queue_type = "quorum"


class TestClassicQueues(RabbitContract):
    queue_type = "classic"


class TestStreams(RabbitContract):
    queue_type = "stream"
    options = "&segment_bytes=200"  # a segment for each message: the smallest unit of trimming

    def recreate(self, scene):
        scene.broker.delete(scene.topic)
        scene.broker.declare(scene.topic, scene.partitions)

    def trim(self, scene, partition, keep):
        """Allow the stream less and less, until only `keep` are left."""
        name = f"{scene.topic}.{partition}"
        for size in range(6_000, 0, -100):
            policy = {"pattern": f"^{name}$", "apply-to": "queues", "definition": {"max-length-bytes": size}}
            manage("PUT", f"policies/%2F/{quote(name)}", policy)
            if len(self.kept(scene, partition)) <= keep:
                break
        assert len(self.kept(scene, partition)) == keep
        manage("DELETE", f"policies/%2F/{quote(name)}")

    def kept(self, scene, partition):
        time.sleep(0.1)
        reader = Reader(scene.broker.consumer(scene.topic, "trimmer"), self.patience_s)
        with contextlib.closing(reader.consumer):
            reader.consumer.start(partition, None)
            found = list(reader.batch().deliveries)
            reader.settle()
            with contextlib.suppress(AssertionError):
                while True:
                    reader.notice(NoticeKind.READ_THROUGH)
                    return found
            return found

    def test_a_log_that_is_trimmed_up_to_the_position_has_no_gap(self, log):
        """Here it can't be told from one with a gap, for offsets have holes: it stops, and an operator decides."""
        log.send(*numbered(1, 9))
        taken = log.reader(log.first).take(5)
        self.trim(log, log.first, keep=4)
        reader = log.reader(log.first, after=taken[-1].position)
        assert "offset" in reader.notice(NoticeKind.TRIMMED).detail
        reader.consumer.start(log.first, None)
        assert names(reader.take(4)) == numbered(6, 9)


def manage(method, path, body=None):
    """One request to the management API, whose port follows that of AMQP."""
    url = urlsplit(service_url("rabbitmq"))
    request = urllib.request.Request(
        f"http://{url.hostname}:{url.port + 1}/api/{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "content-type": "application/json",
            "authorization": "Basic " + base64.b64encode(f"{url.username}:{url.password}".encode()).decode(),
        },
    )
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
        return answer.read()


def test_the_url_opens_this_adapter():
    """By its entry points, with TLS and without."""
    for scheme in ("amqp", "amqps"):
        assert type(open_broker(f"{scheme}://localhost")).__name__ == "RabbitBroker"
