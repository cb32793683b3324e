"""Locks in Redis: the contract, then what is its own: lost answers, outages, eviction, TLS."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time

import pytest
import redis
from support.services import OwnService, service_url
from support.tcp import Proxy, black_hole, dead_port

from seriatim.contract.lock import LockContract
from seriatim.contract.lock_child import Place
from seriatim.core.beside import check_eviction, incarnation_of
from seriatim.core.errors import ConfigurationError, StoreUnavailable
from seriatim.core.locking import LockLost, LocksUnavailable, open_locks
from seriatim.core.locking.names import stored
from seriatim.core.store import open_store


def key_of(store, name):
    return f"seriatim:lock:{json.dumps([incarnation_of(store), stored(name)])}"


class TestLocksInRedis(LockContract):
    @pytest.fixture
    def place(self, tmp_path):
        return Place(service_url("redis"), f"sqlite:///{tmp_path}/store.db")

    def lose(self, place, names):
        with redis.Redis.from_url(place.url) as client, contextlib.closing(open_store(place.store_url)) as store:
            client.delete(*(key_of(store, name) for name in names))


@pytest.fixture
def store(tmp_path):
    with contextlib.closing(open_store(f"sqlite:///{tmp_path}/store.db")) as store:
        store.init()
        yield store


@pytest.fixture
def client():
    with redis.Redis.from_url(service_url("redis")) as client:
        yield client


@pytest.fixture
def own(tmp_path):
    """A Redis of the test's own, that it may stop, empty and configure."""
    with OwnService(tmp_path, "redis").running() as server:
        yield server


@pytest.fixture
def admin(own):
    with redis.Redis(port=own.port) as admin:
        yield admin


@pytest.fixture
def opened(store):
    with contextlib.ExitStack() as stack:
        yield lambda url, **options: stack.enter_context(contextlib.closing(open_locks(url, store, **options)))


def await_(condition, what, patience_s=10.0):
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.02)


# -- what is stored


def test_a_lock_never_lacks_an_end_and_is_gone_when_given_back(opened, store, client):
    # field case FC-L1; FC-L7: whatever a URL makes of answers
    for option in ("", "?decode_responses=true"):
        held = opened(f"{service_url('redis')}{option}", ttl_s=20.0).acquire(["a"], 0)
        assert 10_000 < client.pttl(key_of(store, "a")) <= 20_000
        held.check()
        held.release()
        assert not client.exists(key_of(store, "a"))


def test_two_stores_that_share_a_server_don_t_wait_for_each_other(opened, tmp_path):
    mine = opened(service_url("redis")).acquire(["a"], 0)
    with contextlib.closing(open_store(f"sqlite:///{tmp_path}/other.db")) as other:
        other.init()
        with contextlib.closing(open_locks(service_url("redis"), other)) as locks:
            assert locks.acquire(["a"], 0) is not None
    mine.check()


# -- answers that are lost


@pytest.mark.parametrize("cut", [True, False], ids=["cut", "silent"])
def test_a_lock_whose_answer_was_lost_is_found_to_be_ours(opened, store, client, cut):
    with Proxy(int(service_url("redis").rsplit(":", 1)[1].split("/")[0])) as proxy:
        locks = opened(f"redis://127.0.0.1:{proxy.port}/0", answer_s=0.3)
        locks.acquire(["warm"], 0)  # the connection stands
        proxy.cut, proxy.lose_answers = cut, 1
        held = locks.acquire(["a", "b"], 0)
        assert proxy.lose_answers == 0, "an answer was lost"
        assert held is not None
        held.check()
        held.release()
        assert not client.exists(key_of(store, "a"), key_of(store, "b"))


def test_what_was_taken_while_no_answer_came_is_given_back_behind(opened, store, client):
    with Proxy(int(service_url("redis").rsplit(":", 1)[1].split("/")[0])) as proxy:
        locks = opened(f"redis://127.0.0.1:{proxy.port}/0", answer_s=0.2, ttl_s=3.0)
        locks.acquire(["warm"], 0)
        proxy.lose_answers = 2
        with pytest.raises(LocksUnavailable):
            locks.acquire(["a"], 0)
        await_(lambda: not client.exists(key_of(store, "a")), "given back", patience_s=2.0)


# -- a server that is away


def test_a_server_that_is_away_is_named_without_its_password(opened):
    port = dead_port()
    locks = opened(f"redis://joe:secret@127.0.0.1:{port}/0")
    with pytest.raises(StoreUnavailable, match=rf"joe:\*\*\*@127.0.0.1:{port}/0") as caught:
        locks.acquire(["a"], 5.0)
    assert "secret" not in str(caught.value)


def test_a_server_that_never_answers_is_waited_for_a_little(opened):
    with black_hole() as port:
        locks = opened(f"redis://127.0.0.1:{port}/0", answer_s=0.2)
        began = time.monotonic()
        with pytest.raises(LocksUnavailable):
            locks.acquire(["a"], 0)
        assert time.monotonic() - began < 1.0
        began = time.monotonic()
        locks.close()
        assert time.monotonic() - began < 1.5


def test_flushall_is_noticed_before_the_commit_and_renews_nothing(own, admin, opened, store):
    locks = opened(f"redis://127.0.0.1:{own.port}/0", ttl_s=0.9)
    held, kept = locks.acquire(["a"], 0), locks.acquire(["b"], 0)
    admin.flushall()
    with pytest.raises(LockLost):
        held.check()
    await_(lambda: "b" not in str(admin.keys()), "the watchdog to see it")
    time.sleep(0.5)  # a watchdog that set instead of extending would have by now
    assert admin.keys() == []
    with pytest.raises(LockLost):
        kept.check()
    held.release()
    assert locks.acquire(["a", "b"], 0) is not None


@pytest.mark.slow
def test_after_an_outage_the_next_lock_is_renewed_as_ever(own, admin, opened, store, caplog):
    # field case FC-L5
    caplog.set_level(logging.WARNING, "seriatim")
    ttl_s = 0.9
    locks = opened(f"redis://127.0.0.1:{own.port}/0", ttl_s=ttl_s, answer_s=0.3)
    before = locks.acquire(["a"], 0)
    own.say("stop")
    time.sleep(2 * ttl_s)
    with pytest.raises(LockLost, match="can't be known"):
        before.check()
    with pytest.raises(LocksUnavailable):
        locks.acquire(["a"], 0)
    began = time.monotonic()
    before.release()
    assert time.monotonic() - began < 1.0
    own.start()
    after = locks.acquire(["a"], 5.0)
    end = time.monotonic() + 3 * ttl_s
    while time.monotonic() < end:
        assert admin.pttl(key_of(store, "a")) > 0
        time.sleep(0.02)
    after.check()
    assert "lock not renewed" in caplog.text


@pytest.mark.slow
def test_a_server_that_stands_still_past_the_ttl_makes_no_two_owners(own, opened):
    ttl_s = 0.9
    url = f"redis://127.0.0.1:{own.port}/0"
    locks, others = opened(url, ttl_s=ttl_s, answer_s=0.3), opened(url, ttl_s=ttl_s, answer_s=0.3)
    held = locks.acquire(["a"], 0)
    pid = int(own.pidfile.read_text().split()[0])
    os.kill(pid, signal.SIGSTOP)
    time.sleep(2 * ttl_s)
    os.kill(pid, signal.SIGCONT)
    other = others.acquire(["a"], 2.0)
    if other is not None:
        other.check()
        with pytest.raises(LockLost):
            held.check()
    else:
        held.check()


def test_what_couldn_t_be_given_back_is_given_back_later(own, admin, opened, store):
    locks = opened(f"redis://127.0.0.1:{own.port}/0", ttl_s=6.0, answer_s=0.2)
    held = locks.acquire(["a"], 0)
    pid = int(own.pidfile.read_text().split()[0])
    os.kill(pid, signal.SIGSTOP)
    held.release()
    os.kill(pid, signal.SIGCONT)
    await_(lambda: not admin.exists(key_of(store, "a")), "given back", patience_s=3.0)


# -- eviction


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "volatile-lru", "allkeys-random"])
def test_a_policy_that_removes_keys_is_told_with_the_remedy(own, admin, policy):
    # field case FC-L9
    admin.config_set("maxmemory-policy", policy)
    told = check_eviction(f"redis://127.0.0.1:{own.port}/0", "lock")
    assert policy in told
    assert "had by two" in told
    assert "noeviction" in told
    assert "looked up again" in check_eviction(f"redis://127.0.0.1:{own.port}/0")


def test_a_server_that_removes_nothing_is_fine(own):
    assert check_eviction(f"redis://127.0.0.1:{own.port}/0") is None


def test_where_the_policy_can_t_be_asked_for_that_is_said(own, admin):
    admin.execute_command("ACL", "SETUSER", "joe", "on", ">secret", "~*", "+@all", "-config")
    told = check_eviction(f"redis://joe:secret@127.0.0.1:{own.port}/0", "lock")
    assert "can't be known" in told
    assert "noeviction" in told
    assert "secret" not in told
    assert "can't be known" in check_eviction(f"redis://127.0.0.1:{dead_port()}/0")


# -- TLS


@pytest.fixture
def tls(tmp_path):
    """A Redis that speaks TLS, and the certificate of its authority."""
    key, certificate, port = tmp_path / "key.pem", tmp_path / "cert.pem", dead_port()
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run(
        [*request, "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )
    options = {"port": 0, "tls-port": port, "tls-cert-file": certificate, "tls-key-file": key, "dir": tmp_path}
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    server = subprocess.Popen(
        ["redis-server", "--bind", "127.0.0.1", "--save", "", "--tls-auth-clients", "no", *words],
        stdout=subprocess.DEVNULL,
    )
    with redis.Redis(port=port, ssl=True, ssl_ca_certs=str(certificate)) as client:

        def answers():
            with contextlib.suppress(redis.RedisError):
                return client.ping()
            return False

        await_(answers, "TLS")
    yield port, certificate
    server.terminate()
    server.wait(10)


def test_tls_checks_the_server_against_the_authority_that_the_url_names(tls, opened):
    port, certificate = tls
    held = opened(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}").acquire(["a"], 0)
    held.check()
    with pytest.raises(LocksUnavailable, match=r"(?i)certificate"):
        opened(f"rediss://127.0.0.1:{port}/0").acquire(["b"], 0)
    assert check_eviction(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}") is None


# -- what is said of a URL


@pytest.mark.parametrize("url", ["memcached://here", "here", "", "mysql://joe:secret@there/db"])
def test_a_keeper_that_doesn_t_exist_is_refused(store, url):
    with pytest.raises(ConfigurationError, match="database") as caught:
        open_locks(url, store)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["redis://:secret@h:port/0", "redis://joe:secret@h/0?colour=red"])
def test_a_url_that_can_t_be_read_is_refused_without_its_secret(store, url):
    with pytest.raises(ConfigurationError, match="can't be read") as caught:
        open_locks(url, store)
    assert "secret" not in str(caught.value)


WITHOUT = """
import sys
sys.modules["redis"] = None
from seriatim.core.errors import ConfigurationError
from seriatim.core.store import open_store
from seriatim.core.beside import check_eviction
from seriatim.core.filtering import open_filter
from seriatim.core.locking import open_locks
store = open_store("sqlite:///none.db")
open_locks("database", store).close()
url = "redis://127.0.0.1/0"
for part in (lambda: open_locks(url, store), lambda: open_filter(url, store), lambda: check_eviction(url)):
    try:
        part()
    except ConfigurationError as error:
        print(error)
"""


def test_without_the_client_each_part_says_what_to_install(tmp_path):
    said = subprocess.run([sys.executable, "-c", WITHOUT], cwd=tmp_path, capture_output=True, text=True, check=True)
    lines = said.stdout.splitlines()
    assert len(lines) == 3
    assert all("pip install 'seriatim[redis]'" in line for line in lines)
