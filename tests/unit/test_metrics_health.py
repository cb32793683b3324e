"""Health from a thread's pulse: what hangs is stuck, what works is let work, trouble is said until it is over."""

import math
import threading
from unittest import mock

import pytest

from seriatim.core import health as health_module
from seriatim.core.errors import BrokerError, CommitUnknown, Contention, StoreUnavailable
from seriatim.core.health import Condition, Health, Pulse, ThreadHealth, look_at, patience_s

PATIENCE = 120.0


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves by hand."""
    clock = mock.Mock(return_value=1000.0)
    monkeypatch.setattr(health_module.time, "monotonic", clock)
    return clock


def troubled(pulse, error):
    with pytest.raises(type(error)), pulse.round():
        raise error


def test_a_thread_is_starting_until_its_first_round_is_done(clock):
    pulse = Pulse()
    assert pulse.condition(1000.0, PATIENCE) is Condition.STARTING
    with pulse.round():
        assert pulse.condition(1000.0, PATIENCE) is Condition.STARTING
    assert pulse.condition(1000.0, PATIENCE) is Condition.READY


def test_a_round_that_takes_too_long_is_stuck_and_one_at_work_never_is(clock):
    pulse = Pulse()
    with pulse.round():
        assert pulse.condition(1000.0 + PATIENCE, PATIENCE) is Condition.STARTING
        assert pulse.condition(1001.0 + PATIENCE, PATIENCE) is Condition.STUCK
        assert pulse.condition(9999.0, PATIENCE, at_work=9999.0) is Condition.STARTING, "a handler took its time"
        assert pulse.condition(9999.0, PATIENCE, at_work=9999.0 - PATIENCE - 1) is Condition.STUCK
    assert pulse.condition(9999.0, PATIENCE) is Condition.READY, "between rounds nothing hangs"


@pytest.mark.parametrize(
    ("error", "condition"),
    [
        (StoreUnavailable("away"), Condition.STORE_AWAY),
        (CommitUnknown("no answer"), Condition.STORE_AWAY),
        (BrokerError("away"), Condition.BROKER_AWAY),
        (Contention("a deadlock"), Condition.STARTING),
    ],
)
def test_trouble_of_the_store_and_of_the_broker_is_remembered_and_contention_is_none(clock, error, condition):
    pulse = Pulse()
    troubled(pulse, error)
    assert pulse.condition(1000.0, PATIENCE) is condition
    assert pulse.since is None


def test_trouble_is_over_with_the_first_round_that_goes_well_and_not_before(clock):
    pulse = Pulse()
    troubled(pulse, StoreUnavailable("away"))
    with pulse.round():
        assert pulse.condition(1000.0, PATIENCE) is Condition.STORE_AWAY
    assert pulse.condition(1000.0, PATIENCE) is Condition.READY
    troubled(pulse, BrokerError("away"))
    troubled(pulse, Contention("a deadlock"))
    assert pulse.condition(1500.0, PATIENCE) is Condition.BROKER_AWAY, "nothing has gone well since"


def test_a_thread_is_looked_at_before_it_begins_while_it_runs_and_after_its_end():
    pulse, go = Pulse(), threading.Event()
    thread = threading.Thread(target=go.wait)

    def look(*, may_end=False):
        return look_at("t", thread, pulse, PATIENCE, may_end=may_end).condition

    assert look_at("t", None, pulse, PATIENCE, may_end=False).condition is Condition.STARTING
    assert look() is Condition.STARTING
    thread.start()
    with pulse.round():
        pass
    assert look() is Condition.READY
    go.set()
    thread.join()
    assert look() is Condition.DEAD
    assert look(may_end=True) is Condition.STOPPED


def health(keeper=Condition.READY, lanes=(Condition.READY,), *, has_share=True, stopping=False):
    threads = tuple(ThreadHealth(f"lane-{number}", one) for number, one in enumerate(lanes))
    return Health(ThreadHealth("keeper", keeper), threads, has_share, stopping)


@pytest.mark.parametrize("condition", list(Condition))
@pytest.mark.parametrize("whose", ["keeper", "lane"])
def test_live_is_lost_by_a_thread_that_is_dead_or_stuck_alone_and_ready_by_any_that_is_not_ready(condition, whose):
    one = health(keeper=condition) if whose == "keeper" else health(lanes=(Condition.READY, condition))
    assert one.live is (condition not in {Condition.DEAD, Condition.STUCK})
    assert one.ready is (condition is Condition.READY)


def test_ready_waits_for_the_share_and_ends_with_the_stop_and_live_does_neither():
    assert not health(has_share=False).ready
    assert not health(stopping=True).ready
    assert health(has_share=False).live
    assert health(stopping=True).live
    assert health().ready


def test_patience_is_ten_leases_and_longer_than_any_time_out_of_a_driver():
    assert patience_s(0.3) == 120
    assert patience_s(60) == 600
    assert not math.isinf(patience_s(3600))
