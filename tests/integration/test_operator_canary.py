"""`seriatim parked canary`: one key first, then twice as many each time, stopping when the failure returns."""

import json
from dataclasses import replace

import pytest
from support.programs import here
from support.rig import LATER, enter, wait_until

from seriatim import Early
from seriatim.compensation import canary
from seriatim.compensation.canary import Canary
from seriatim.compensation.selecting import Filter

from .test_operator_verbs import actions, do, ids

AWAY = ("--error", "bank away", "--timeout", "20s")


class Bank:
    """What the handler depends on: away for the keys in `away`, and otherwise wrong for those in `wrong`."""

    def __init__(self, rig, *, policy=LATER, partitions=2, **options):
        self.away, self.wrong, self.early = set(), set(), set()
        self.app = rig.app()
        self.orders = self.app.topic("orders", partitions=partitions, policy=policy, **options)
        self.orders.on("step")(self.handle)
        self.orders.on("other")(self.handle)
        self.all_away = True

    def handle(self, event, ctx):
        message = ctx.message
        if message.sharding_key in self.early and not self.all_away:
            raise Early("not yet", waiting_for="never")
        if message.sharding_key in self.wrong and not self.all_away:
            raise KeyError("another mistake")
        if self.all_away or message.sharding_key in self.away or message.biz_key in self.away:
            raise TimeoutError("Bank away")
        enter(ctx)


def blocked_bank(rig, count=9, **options):
    bank = Bank(rig, **options)
    rig.send_many(bank.orders, [f"k{number}" for number in range(count)])
    rig.run(bank.app)
    assert len(rig.parked("failed")) == count
    bank.all_away = False
    return bank


def run(rig, *arguments):
    return here(rig.folder, "parked", "canary", *arguments)


def retried(rig):
    return [row[2] for row in actions(rig) if row[1] == "retry"]


def test_a_failure_that_is_mended_comes_back_one_key_first_then_twice_as_many(rig):
    bank = blocked_bank(rig)
    with rig.working(bank.app):
        told = run(rig, *AWAY)
    assert told.code == 0, told
    lines = told.out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["9 keys", "wave 1", "wave 2", "wave 3", "wave 4", "done"]
    assert "#1" in lines[1]
    assert [line.split(" key")[0] for line in lines[1:5]] == ["wave 1: 1", "wave 2: 2", "wave 3: 4", "wave 4: 2"]
    assert len(rig.ledger()) == 9
    assert rig.parked() == []


def test_a_failure_that_returns_stops_everything_after_one_key(rig):
    bank = blocked_bank(rig)
    bank.all_away = True
    standing = rig.rows("SELECT sharding_key, attempts, next_attempt_at FROM parked_key")
    with rig.working(bank.app):
        told = run(rig, *AWAY)
    assert told.code == 1, told
    assert "stopped: the failure is back" in told.out
    assert "TimeoutError: Bank away" in told.out
    assert "8 keys left as they were" in told.out
    assert len(retried(rig)) == 1
    after = rig.rows("SELECT sharding_key, attempts, next_attempt_at FROM parked_key")
    assert len(set(standing) & set(after)) == 8


def test_it_stops_in_the_middle_of_the_ramp_where_the_failure_returns(rig):
    bank = blocked_bank(rig, count=20)
    [(fifth,)] = rig.rows("SELECT sharding_key FROM parked_message ORDER BY id LIMIT 1 OFFSET 4")
    bank.away.add(fifth)
    with rig.working(bank.app):
        told = run(rig, *AWAY)
    assert told.code == 1
    assert len(retried(rig)) == 1 + 2 + 4
    assert "13 keys left as they were" in told.out
    assert fifth in told.out


def test_a_follower_that_fails_alike_stops_it_too(rig):
    bank = Bank(rig, partitions=1)
    rig.send_many(bank.orders, ["k0", "k1", "k2"])
    follower = rig.send(bank.orders, "k0")
    rig.run(bank.app)
    bank.all_away, bank.away = False, {follower}
    with rig.working(bank.app):
        told = run(rig, *AWAY)
    assert told.code == 1, told
    assert f"stopped: the failure is back: {follower}" in told.out
    assert retried(rig) == ["k0"]


def test_another_failure_is_told_and_stops_it_only_where_nothing_comes_back(rig):
    bank = blocked_bank(rig, count=4)
    second = rig.rows("SELECT sharding_key FROM parked_message ORDER BY id LIMIT 1 OFFSET 1")[0][0]
    bank.wrong.add(second)
    with rig.working(bank.app):
        told = run(rig, *AWAY)
    assert told.code == 0, told
    assert "1 settled, 1 failed" in told.out
    assert "3 of 4 keys came back" in told.out

    with rig.working(bank.app):
        told = run(rig, "--error-type", "KeyError", "--timeout", "20s")
    assert told.code == 1
    assert "the failure is back" in told.out


def test_where_every_key_fails_in_another_way_it_stops(rig):
    bank = blocked_bank(rig, count=4)
    bank.wrong.update(f"k{n}" for n in range(4))
    with rig.working(bank.app):
        told = run(rig, *AWAY)
    assert told.code == 1
    assert "with another error: `seriatim parked show" in told.out
    assert len(retried(rig)) == 1


def test_a_failure_of_other_keys_is_nobody_s_here(rig):
    """A key that wasn't retried fails in the same way while the canary is at work."""
    bank = blocked_bank(rig, count=3)
    bank.away.add("stranger")
    with rig.working(bank.app), rig.opened() as store:
        run_ = Canary(store, Filter(error="bank"), "ann", 20.0)
        waves = []
        for wave in run_.run(run_.targets()):
            waves.append(wave)
            if wave.number == 1:
                rig.send(bank.orders, "stranger")
                wait_until(lambda: rig.parked("failed")[-1][0].startswith("stranger"), "the stranger's failure")
    assert [len(wave.settled) for wave in waves] == [1, 2]
    assert not waves[-1].stops
    assert sorted(retried(rig)) == ["k0", "k1", "k2"]


def test_of_a_type_only_that_type_s_failures_count(rig):
    bank = Bank(rig, partitions=1)
    rig.send_many(bank.orders, ["a", "b"])
    other = rig.send(bank.orders, "a", "other")
    rig.send(bank.orders, "c", "other")
    rig.run(bank.app)
    bank.all_away, bank.away = False, {other}
    with rig.working(bank.app):
        told = run(rig, "--type", "step", "--timeout", "20s")
    assert told.code == 0, told
    assert retried(rig) == ["a", "b"]
    assert rig.parked("failed")[0][0] == other


@pytest.mark.parametrize(("on_dead", "on_failure"), [("skip", "park"), ("block_key", "park"), ("skip", "set_aside")])
def test_dead_messages_are_brought_back_too(rig, on_dead, on_failure):
    bank = Bank(rig, policy=replace(LATER, max_attempts=1, on_dead=on_dead, on_failure=on_failure))
    rig.send_many(bank.orders, ["a", "b", "c"])
    rig.run(bank.app)
    assert len(rig.parked("dead")) == 3
    bank.all_away = False
    with rig.working(bank.app):
        assert run(rig, *AWAY).code == 0
    assert len(rig.ledger()) == 3


def test_an_early_one_is_no_failure(rig):
    bank = blocked_bank(rig, count=3)
    bank.early.add("k0")
    with rig.working(bank.app):
        told = run(rig, *AWAY)
    assert told.code == 0, told
    assert "1 wait for a predecessor" in told.out


def test_held_keys_are_left_out(rig):
    bank = blocked_bank(rig, count=3)
    do(rig, "hold", "k0", "ann")
    with rig.working(bank.app):
        told = run(rig, *AWAY)
    assert told.code == 0
    assert "2 keys" in told.out
    assert "k0" not in retried(rig)


def test_where_nobody_consumes_nothing_is_retried_and_it_says_how_to_look(rig, monkeypatch):
    monkeypatch.setattr(canary, "FIRST_LOOK_S", 0.2)
    blocked_bank(rig)
    told = run(rig, *AWAY)
    assert told.code == 2
    assert "nobody consumes shop/orders/" in told.err
    assert "seriatim status" in told.err
    assert retried(rig) == []


def test_a_wave_that_doesn_t_come_to_an_end_in_time_stops_it(rig, monkeypatch):
    blocked_bank(rig, count=3)
    monkeypatch.setattr(canary, "unconsumed", lambda *_: [])
    told = run(rig, "--error", "bank", "--timeout", "0.4s")
    assert told.code == 1
    assert "time was up" in told.out
    assert f"#{min(ids(rig).values())}" in told.out
    assert "2 keys left as they were" in told.out


def test_a_dry_run_and_an_empty_class_touch_nothing(rig):
    blocked_bank(rig, count=3)
    told = run(rig, *AWAY, "--dry-run")
    assert told.code == 0
    assert "would begin with shop/orders k0 #1, of 3 keys" in told.out
    told = run(rig, "--error", "something else")
    assert (told.code, told.out) == (0, "nothing matches: no key waits for such a failure\n")
    assert retried(rig) == []


def test_json_is_one_object_and_progress_goes_elsewhere(rig):
    bank = blocked_bank(rig, count=3)
    with rig.working(bank.app):
        told = run(rig, *AWAY, "--json")
    answer = json.loads(told.out)
    assert "wave 2" in told.err
    assert (answer["keys"], answer["stopped"]) == (3, False)
    assert [(wave["number"], len(wave["settled"]), wave["left"], wave["stops"]) for wave in answer["waves"]] == [
        (1, 1, 2, False),
        (2, 2, 0, False),
    ]


def test_waves_grow_no_further_than_they_may(rig):
    bank = blocked_bank(rig, count=9)
    with rig.working(bank.app), rig.opened() as store:
        run_ = Canary(store, Filter(error="bank"), "ann", 20.0, max_wave=3)
        assert [len(wave.targets) for wave in run_.run(run_.targets())] == [1, 2, 3, 3]
