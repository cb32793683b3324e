"""P10: parking has a cap per key, which alarms, and a total one, at which partitions pause, say so, and still drain."""

import pytest
from support.rig import LATER, wait_until

from seriatim import Backoff, Policy

from .test_lanes import failing


def policy(**caps):
    return Policy(tries_at_once=1, max_attempts=10_000, backoff=Backoff(base_s=0.05, cap_s=0.1), **caps)


def test_a_key_with_too_many_messages_alarms_once_and_loses_none(rig):
    app = rig.app()
    orders, _ = failing(app, policy=Policy(tries_at_once=1, backoff=LATER.backoff, max_behind=3))
    rig.send(orders, "a", bad=1)
    rig.send_many(orders, ["a"] * 9)
    witness = rig.run(app)
    assert [(one["key"], one["cap"]) for one in witness.seen("key over its cap")] == [("a", 3)]
    assert len(rig.parked()) == 10


@pytest.mark.parametrize("cap", [{"max_parked": 6}, {"max_parked_bytes": 60}])
def test_a_full_parking_pauses_every_partition_says_so_and_still_drains(rig, cap):
    app = rig.app()
    orders, mended = failing(app, policy=policy(**cap), partitions=2)
    for number in range(6):
        rig.send(orders, f"k{number}", bad=1, on=number)
    with rig.working(app) as witness:
        wait_until(lambda: witness.seen("parking full"), "the pause")
        wait_until(lambda: rig.rows("SELECT sum(full) FROM partition_owner") == [(2,)], "the note of it")
        waiting = rig.send(orders, "healthy")
        tried = sum(attempts for (attempts,) in rig.rows("SELECT attempts FROM parked_key"))
        wait_until(
            lambda: sum(attempts for (attempts,) in rig.rows("SELECT attempts FROM parked_key")) > tried + 12,
            "heads that run while the partitions are paused",
        )
        assert rig.ledger() == []
        mended.set()
        wait_until(lambda: waiting in rig.ledger(), "the healthy message")
        wait_until(lambda: len(rig.ledger()) == 7, "those that were parked")
        assert witness.seen("parking has room again")
        wait_until(lambda: rig.rows("SELECT sum(full) FROM partition_owner") == [(0,)], "the note gone")
    assert rig.rows("SELECT sum(parked_rows), sum(parked_bytes) FROM partition_owner") == [(0, 0)]


def test_what_is_parked_is_counted_until_it_is_gone(rig):
    app = rig.app()
    orders, mended = failing(app, policy=LATER, partitions=2)
    for number in range(12):
        rig.send(orders, f"k{number % 6}", bad=number < 6, on="x" * number)
    rig.run(app)
    counted = rig.rows("SELECT partition_id, count(*), sum(length(body)) FROM parked_message GROUP BY partition_id")
    assert len(counted) == 2
    kept = "SELECT partition_id, parked_rows, parked_bytes FROM partition_owner WHERE parked_rows > 0"
    assert sorted(rig.rows(kept)) == sorted(counted)
    mended.set()
    rig.write("UPDATE parked_key SET next_attempt_at = 1")
    rig.run(app)
    assert len(rig.ledger()) == 12
    assert rig.rows("SELECT parked_rows, parked_bytes FROM partition_owner") == [(0, 0), (0, 0)]
