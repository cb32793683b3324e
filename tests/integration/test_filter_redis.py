"""The front filter in Redis: what it knows, what it forgets, and what its trouble costs."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import secrets
import signal
import time

import pytest
import redis
from sqlalchemy import update
from support.services import OwnService, service_url
from support.tcp import Proxy, black_hole, dead_port, full_backlog

from seriatim.core.decision import Outcome
from seriatim.core.errors import ConfigurationError
from seriatim.core.filtering import Breaker, FilterEntry, open_filter
from seriatim.core.store import open_store
from seriatim.core.store.schema import schema_version

GROUP, TOPIC = "warehouse", "orders"
PAID = FilterEntry(b"\x01" * 32, "order.paid", Outcome.APPLIED)
SHIPPED = FilterEntry(b"\x02" * 32, None, Outcome.STALE)
TRIP_S = 0.050  #: what a call may cost that finds Redis away
SLACK_S = 0.020  #: of a busy machine


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def store(tmp_path):
    with contextlib.closing(open_store(f"sqlite:///{tmp_path}/store.db")) as store:
        store.init()
        yield store


@pytest.fixture
def opened(store):
    with contextlib.ExitStack() as stack:
        yield lambda url=None, of=store, **options: stack.enter_context(
            contextlib.closing(open_filter(url or service_url("redis"), of, **options))
        )


@pytest.fixture
def patient(opened):
    """A filter that a busy machine doesn't trip."""
    return opened(read_s=5.0)


@pytest.fixture
def client():
    with redis.Redis.from_url(service_url("redis")) as client:
        yield client


@pytest.fixture
def own(tmp_path):
    """A Redis of the test's own, that it may stop and empty."""
    with OwnService(tmp_path, "redis").running() as server:
        yield server


@pytest.fixture
def admin(own):
    with redis.Redis(port=own.port) as admin:
        yield admin


def reincarnate(store, name):
    with contextlib.closing(store.session()) as session, session.transaction():
        session.run(update(schema_version).values(incarnation=name))


def timed(action):
    began = time.perf_counter()
    result = action()
    return time.perf_counter() - began, result


# -- what it knows


def test_what_was_remembered_is_known_and_nothing_else(patient):
    patient.remember(GROUP, TOPIC, {"b1": PAID, "b2": SHIPPED})
    assert patient.known(GROUP, TOPIC, ["b0", "b1", "b2", "b1 ", "B1"]) == {"b1": PAID, "b2": SHIPPED}
    assert patient.known(GROUP, TOPIC, []) == {}


def test_another_group_topic_or_process_is_told_apart(patient, opened):
    patient.remember(GROUP, TOPIC, {"b1": PAID})
    assert patient.known("other", TOPIC, ["b1"]) == {}
    assert patient.known(GROUP, "other", ["b1"]) == {}
    for group, topic in ((f'{GROUP}", "{TOPIC}', ""), ("", f'{GROUP}", "{TOPIC}'), (f"{GROUP}:{TOPIC}", "")):
        assert patient.known(group, topic, ["b1"]) == {}
    assert opened(read_s=5.0).known(GROUP, TOPIC, ["b1"]) == {"b1": PAID}


@pytest.mark.parametrize("biz_key", ["🙂" * 255, "a\n\t'\"\\;--", "\x00", "\ud800", "", "x" * 100_000])
def test_any_text_is_a_biz_key(patient, biz_key):
    patient.remember(GROUP, TOPIC, {biz_key: PAID})
    assert patient.known(GROUP, TOPIC, [biz_key, "b"]) == {biz_key: PAID}


def test_what_an_operator_may_reopen_is_never_remembered(patient):
    outcomes = set(Outcome) - {Outcome.APPLIED, Outcome.ALREADY, Outcome.STALE}
    patient.remember(GROUP, TOPIC, {outcome.value: FilterEntry(b"d" * 32, "t", outcome) for outcome in outcomes})
    assert patient.known(GROUP, TOPIC, [outcome.value for outcome in outcomes]) == {}


def test_what_is_forgotten_is_unknown(patient):
    patient.remember(GROUP, TOPIC, {"b1": PAID, "b2": PAID})
    assert patient.forget(GROUP, TOPIC, ["b1", "never"]) is True
    assert patient.forget(GROUP, TOPIC, []) is True
    assert patient.known(GROUP, TOPIC, ["b1", "b2"]) == {"b2": PAID}


def test_an_entry_ends_with_its_ttl(opened):
    short = opened(ttl_s=0.2, read_s=5.0)
    short.remember(GROUP, TOPIC, {"b1": PAID})
    end = time.monotonic() + 5
    while short.known(GROUP, TOPIC, ["b1"]):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_entries_live_a_day_unless_told_otherwise(patient, client):
    before = set(client.scan_iter("seriatim:filter:*"))
    patient.remember(GROUP, TOPIC, {"b1": PAID})
    (key,) = set(client.scan_iter("seriatim:filter:*")) - before
    assert 86_000_000 < client.pttl(key) <= 86_400_000


def test_a_batch_is_one_round_trip(patient, monkeypatch):
    sent = []
    send = redis.Connection.send_packed_command

    def watched(self, *arguments, **options):
        sent.append(arguments)
        return send(self, *arguments, **options)

    patient.known(GROUP, TOPIC, ["warm"])
    monkeypatch.setattr(redis.Connection, "send_packed_command", watched)
    biz_keys = [f"b{number}" for number in range(100)]
    patient.remember(GROUP, TOPIC, dict.fromkeys(biz_keys, PAID))
    assert len(sent) == 1
    assert len(patient.known(GROUP, TOPIC, biz_keys)) == 100
    assert len(sent) == 2
    patient.forget(GROUP, TOPIC, biz_keys)
    assert len(sent) == 3


@pytest.mark.parametrize("value", [b"", b"\xff\x00", b"applied", b'{"v": 9}'])
@pytest.mark.parametrize("option", ["", "?decode_responses=true"])
def test_what_doesn_t_parse_is_unknown(patient, opened, client, value, option):
    before = set(client.scan_iter("seriatim:filter:*"))
    patient.remember(GROUP, TOPIC, {"b1": PAID})
    (key,) = set(client.scan_iter("seriatim:filter:*")) - before
    one = opened(f"{service_url('redis')}{option}", read_s=5.0)
    assert one.known(GROUP, TOPIC, ["b1"]) == {"b1": PAID}
    client.set(key, value)
    assert one.known(GROUP, TOPIC, ["b1"]) == {}
    client.delete(key)
    client.rpush(key, "a list")
    assert one.known(GROUP, TOPIC, ["b1"]) == {}
    client.delete(key)


# -- a cache is never the truth


class Consumer:
    """Deliveries judged by the filter and then by records, as a lane would: one effect for each biz_key."""

    def __init__(self, front):
        self.front = front
        self.records = {}
        self.effects = []
        self.spared = 0  #: look-ups among the records

    def deliver(self, biz_key, digest):
        entry = self.front.known(GROUP, TOPIC, [biz_key]).get(biz_key)
        if entry is not None and entry.digest == digest:
            self.spared += 1
            return "duplicate"
        if biz_key in self.records:
            return "duplicate" if self.records[biz_key] == digest else "conflict"
        self.effects.append(biz_key)
        self.records[biz_key] = digest
        self.front.remember(GROUP, TOPIC, {biz_key: FilterEntry(digest, "t", Outcome.APPLIED)})
        return "applied"


def snapshot(admin):
    return {key: admin.get(key) for key in admin.scan_iter()}


def roll_back(admin, entries):
    admin.flushall()
    for key, value in entries.items():
        admin.set(key, value)


@pytest.mark.parametrize("seed", range(5))
def test_losing_or_rolling_back_what_it_knows_costs_no_effect_and_doubles_none(own, admin, store, opened, seed):
    # P9
    dice = random.Random(seed)
    consumer = Consumer(opened(f"redis://127.0.0.1:{own.port}/0", read_s=5.0))
    delivered, saved = set(), {}
    for _ in range(1000):
        match dice.randrange(80):
            case 0:
                admin.flushall()
            case 1:
                saved = snapshot(admin)
            case 2:
                roll_back(admin, saved)
            case 3:
                for key in admin.scan_iter():
                    if dice.random() < 0.5:
                        admin.set(key, b"garbage") if dice.random() < 0.5 else admin.delete(key)
            case _:
                number = dice.randrange(60)
                first = f"b{number}" not in delivered
                outcome = consumer.deliver(f"b{number}", bytes([number]) * 32)
                assert outcome == ("applied" if first else "duplicate")
                delivered.add(f"b{number}")
                assert consumer.deliver(f"b{number}", b"\xff" * 32) == "conflict"
    assert sorted(consumer.effects) == sorted(delivered)
    assert consumer.spared > 20, "it was asked, and knew"


def test_what_an_older_store_s_incarnation_remembered_is_nobody_s(opened, store):
    # P9: the tables were made anew, or restored, and know nothing of it
    opened(read_s=5.0).remember(GROUP, TOPIC, {"b1": PAID})
    reincarnate(store, secrets.token_hex(16))
    consumer = Consumer(opened(read_s=5.0))
    assert consumer.deliver("b1", PAID.digest) == "applied"
    assert consumer.deliver("b1", PAID.digest) == "duplicate"


def test_a_store_that_can_t_be_read_is_asked_again_later(tmp_path, opened):
    with contextlib.closing(open_store(f"sqlite:///{tmp_path}/later.db")) as later:
        front = opened(of=later, read_s=5.0)
        front.remember(GROUP, TOPIC, {"b1": PAID})
        assert front.known(GROUP, TOPIC, ["b1"]) == {}
        assert front.forget(GROUP, TOPIC, ["b1"]) is False
        later.init()
        front.remember(GROUP, TOPIC, {"b1": PAID})
        assert front.known(GROUP, TOPIC, ["b1"]) == {"b1": PAID}


def test_closed_it_knows_nothing(opened):
    front = opened(read_s=5.0)
    front.remember(GROUP, TOPIC, {"b1": PAID})
    front.close()
    front.close()
    assert front.known(GROUP, TOPIC, ["b1"]) == {}


# -- a server that is away


@pytest.fixture(params=["dead", "black hole", "full backlog"])
def away(request):
    if request.param == "dead":
        yield dead_port()
        return
    with black_hole() if request.param == "black hole" else full_backlog() as port:
        yield port


def test_a_server_that_is_away_costs_little_once_and_then_nothing(away, opened, caplog):
    # field case FC-L11
    caplog.set_level(logging.DEBUG, "seriatim")
    clock = Clock()
    front = opened(f"redis://joe:secret@127.0.0.1:{away}/0", breaker=Breaker(clock=clock))
    front.forget(GROUP, TOPIC, [])  # nothing is asked
    costs = []
    for _ in range(3):  # at the trip, and at each probe after it
        took_s, known = timed(lambda: front.known(GROUP, TOPIC, ["b1"]))
        assert known == {}
        costs.append(took_s)
        open_s, _ = timed(lambda: [front.known(GROUP, TOPIC, ["b1"]) for _ in range(1000)])
        assert open_s / 1000 < 0.001
        open_s, _ = timed(lambda: [front.remember(GROUP, TOPIC, {"b1": PAID}) for _ in range(1000)])
        assert open_s / 1000 < 0.001
        clock.now += 60.0
    assert max(costs) < TRIP_S + SLACK_S, f"{[round(cost * 1000) for cost in costs]} ms"
    told = [record for record in caplog.records if record.name == "seriatim"]
    assert [record.getMessage() for record in told] == ["filter away"]
    assert "secret" not in str(told[0].fields)
    assert told[0].levelno == logging.WARNING


def test_a_server_that_goes_and_comes_is_used_again_and_both_are_told_once(own, opened, caplog):
    # field case FC-L11
    clock = Clock()
    front = opened(f"redis://127.0.0.1:{own.port}/0", read_s=0.2, breaker=Breaker(clock=clock))
    front.remember(GROUP, TOPIC, {"b1": PAID})
    pid = int(own.pidfile.read_text().split()[0])
    os.kill(pid, signal.SIGSTOP)
    took_s, known = timed(lambda: front.known(GROUP, TOPIC, ["b1"]))
    assert known == {}
    assert took_s < 0.2 + TRIP_S
    assert timed(lambda: front.known(GROUP, TOPIC, ["b1"]))[0] < 0.01
    os.kill(pid, signal.SIGCONT)
    assert front.known(GROUP, TOPIC, ["b1"]) == {}, "it rests"
    clock.now += 1.0
    assert front.known(GROUP, TOPIC, ["b1"]) == {"b1": PAID}
    assert front.known(GROUP, TOPIC, ["b1"]) == {"b1": PAID}
    assert [record.getMessage() for record in caplog.records] == ["filter away", "filter back"]


def test_a_server_that_is_slow_is_as_good_as_away(opened):
    with Proxy(int(service_url("redis").rsplit(":", 1)[1].split("/")[0])) as proxy:
        breaker = Breaker(clock=Clock())
        front = opened(f"redis://127.0.0.1:{proxy.port}/0", connect_s=0.02, read_s=0.08, breaker=breaker)
        proxy.delay_s = 0.06  # for each of several answers
        front.known(GROUP, TOPIC, ["b1"])
        assert not breaker.passes()


def test_a_server_that_is_full_is_as_good_as_away(own, admin, opened):
    front = opened(f"redis://127.0.0.1:{own.port}/0", read_s=5.0)
    front.remember(GROUP, TOPIC, {"b1": PAID})
    admin.config_set("maxmemory", 1)
    front.remember(GROUP, TOPIC, {"b2": PAID})
    assert front.known(GROUP, TOPIC, ["b1"]) == {}


def test_an_operator_is_told_when_it_can_t_be_forgotten(opened):
    assert opened(f"redis://127.0.0.1:{dead_port()}/0").forget(GROUP, TOPIC, ["b1"]) is False


def test_an_operator_s_word_is_passed_on_while_the_breaker_rests(opened):
    front = opened(read_s=5.0, breaker=Breaker(clock=Clock()))
    front.remember(GROUP, TOPIC, {"b1": PAID})
    front._breaker.failed()  # noqa: SLF001 - a fault is planted where no public way leads
    assert front.forget(GROUP, TOPIC, ["b1"]) is True
    assert opened(read_s=5.0).known(GROUP, TOPIC, ["b1"]) == {}


# -- what is said of a URL


@pytest.mark.parametrize("url", ["http://joe:secret@here", "redis://joe:secret@h/0?colour=red", "", "redis://h:x/0"])
def test_a_url_that_can_t_be_used_is_refused_without_its_secret(store, url):
    with pytest.raises(ConfigurationError, match="redis://") as caught:
        open_filter(url, store)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("option", ["ttl_s", "connect_s", "read_s"])
def test_a_time_that_redis_can_t_keep_is_refused(store, option):
    with pytest.raises(ConfigurationError, match=option):
        open_filter(service_url("redis"), store, **{option: 0})
