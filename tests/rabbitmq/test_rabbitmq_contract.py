"""RabbitMQ: the contract, on quorum queues, classic queues and streams."""

import contextlib
import time
from urllib.parse import quote

import pytest
from support.services import service_url

from seriatim.contract.broker import LogContract, Scene, ServerContract, names, numbered
from seriatim.contract.reading import Reader
from seriatim.core.broker import NoticeKind

from .rabbit import OwnRabbit, manage

GROUPS = ("warehouse", "another")


@pytest.fixture(scope="module")
def own_server(tmp_path_factory):
    """A server that may be restarted."""
    server = OwnRabbit(tmp_path_factory.mktemp("rabbit"))
    server.start()
    yield server
    server.stop()


class RabbitContract(ServerContract):
    queue_type = ""
    idle_wakeup_s = 0.1
    patience_s = 20.0

    @pytest.fixture
    def broker_url(self, request):
        self.server = None
        if "restart" in request.node.name:
            self.server = request.getfixturevalue("own_server")
        url = self.server.url if self.server else service_url("rabbitmq")
        return f"{url}?queue_type={self.queue_type}{self.options_of(request.node.name)}"

    def options_of(self, test):
        return ""

    @pytest.fixture
    def scene(self, broker):
        with contextlib.closing(Scene(broker, self.partitions, self.patience_s)) as scene:
            yield scene
        for topic in (scene.topic, f"{scene.topic}-shared"):
            broker.delete(topic, GROUPS)

    def restart(self, scene):
        self.server.stop()
        self.server.start()


class TestQuorumQueues(RabbitContract):
    queue_type = "quorum"


class TestClassicQueues(RabbitContract):
    queue_type = "classic"


class TestStreams(RabbitContract, LogContract):
    queue_type = "stream"

    def options_of(self, test):
        """Where it is about trimming, a segment for each message: the smallest unit."""
        return "&segment_bytes=200" if "trimmed" in test or "gap" in test else ""

    def recreate(self, scene):
        scene.broker.delete(scene.topic)
        scene.broker.declare(scene.topic, scene.partitions)

    def trim(self, scene, partition, keep):
        """Allow the stream less and less, until only `keep` are left."""
        name = f"{scene.topic}.{partition}"
        for size in range(6_000, 0, -100):
            policy = {"pattern": f"^{name}$", "apply-to": "queues", "definition": {"max-length-bytes": size}}
            manage(service_url("rabbitmq"), "PUT", f"policies/%2F/{quote(name)}", policy)
            if self.kept(scene, partition) <= keep:
                break
        assert self.kept(scene, partition) == keep
        manage(service_url("rabbitmq"), "DELETE", f"policies/%2F/{quote(name)}")

    def kept(self, scene, partition):
        """How many messages the stream holds."""
        time.sleep(0.1)  # a policy is applied behind the answer
        reader = Reader(scene.broker.consumer(scene.topic, "trimmer"), self.patience_s)
        with contextlib.closing(reader.consumer):
            reader.consumer.start(partition, None)
            found = [reader.take(1)[0]]
            while (delivery := reader.poll(100, 0.2)) is not None:
                found += delivery.deliveries
                reader.settle()
            return len(found)

    def test_a_log_that_is_trimmed_up_to_the_position_has_no_gap(self, log):
        """Here it can't be told from one with a gap, for offsets have holes: it stops, and an operator decides."""
        log.send(*numbered(1, 9))
        taken = log.reader(log.first).take(5)
        self.trim(log, log.first, keep=4)
        reader = log.reader(log.first, after=taken[-1].position)
        assert "offset" in reader.notice(NoticeKind.TRIMMED).detail
        reader.consumer.start(log.first, None)
        assert names(reader.take(4)) == numbered(6, 9)
