"""A partition that can't be read at the broker: seen in `status` and health, declared again, recovered from."""

import contextlib
import threading

from support.rig import Witness, enter, on_a_thread, wait_until

from seriatim import BrokerError
from seriatim.adapters.embedded import EmbeddedBroker
from seriatim.compensation.blocked import standing
from seriatim.core import topic_lane
from seriatim.core.health import Condition
from seriatim.core.store import open_store


def lines(rig):
    with contextlib.closing(open_store(rig.store)) as store:
        return [line.trouble for line in standing(store).partitions]


def shop(rig):
    app = rig.app()
    orders = app.topic("orders", partitions=1)
    orders.on("step")(lambda event, ctx: enter(ctx))
    return app, orders


def delete(app, topic):
    with contextlib.closing(app.open_broker()) as broker:
        broker.delete(topic.name)


def test_a_topic_that_was_deleted_is_named_and_declared_again_and_work_goes_on(rig, monkeypatch):
    monkeypatch.setattr(topic_lane, "DECLARE_S", 0.2)
    app, orders = shop(rig)
    rig.send(orders, "a", biz_key="a/0")
    with rig.working(app) as witness:
        wait_until(lambda: rig.ledger() == ["a/0"], "the first")
        delete(app, orders)
        wait_until(lambda: witness.seen("partition lost"), "the notice")
        wait_until(lambda: lines(rig) == [None], "the end of the trouble")
        rig.send(orders, "a", biz_key="a/1")
        wait_until(lambda: rig.ledger() == ["a/0", "a/1"], "the next")


def test_what_can_t_be_read_is_in_status_and_not_ready_until_it_can(rig, monkeypatch):
    monkeypatch.setattr(topic_lane, "DECLARE_S", 0.2)
    refused = threading.Event()
    declare = EmbeddedBroker.declare

    def declare_or_refuse(broker, *what):
        if refused.is_set():
            raise BrokerError("not now")
        declare(broker, *what)

    monkeypatch.setattr(EmbeddedBroker, "declare", declare_or_refuse)
    app, orders = shop(rig)
    rig.send(orders, "a", biz_key="a/0")
    with app.worker(Witness()) as worker, on_a_thread(worker.run, worker.stop):
        wait_until(lambda: rig.ledger() == ["a/0"], "the first")
        wait_until(lambda: worker.health().ready, "readiness")
        refused.set()
        delete(app, orders)
        wait_until(lambda: any(lines(rig)), "the trouble in status")
        wait_until(lambda: worker.health().lanes[0].condition is Condition.PARTITION_AWAY, "the health")
        assert not worker.health().ready
        assert worker.health().live
        refused.clear()
        wait_until(lambda: lines(rig) == [None], "its end in status")
        wait_until(lambda: worker.health().ready, "readiness again")
