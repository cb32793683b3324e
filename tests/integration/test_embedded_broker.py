"""The embedded broker: the contract, then what is its own."""

import pytest

from seriatim.contract.broker import BrokerContract
from seriatim.core.brokers import open_broker


class TestEmbeddedBroker(BrokerContract):
    idle_wakeup_s = 0.02

    @pytest.fixture
    def broker_url(self, tmp_path):
        self.url = f"embedded://{tmp_path}/log.db"
        return self.url

    def recreate(self, scene):
        scene.broker.delete(scene.topic)
        scene.broker.declare(scene.topic, scene.partitions)

    def trim(self, scene, partition, keep):
        open_broker(f"{self.url}?retention_messages={keep}").trim()
