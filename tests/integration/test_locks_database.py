"""Locks in the store, on SQLite and on MariaDB: the contract, then what is their own."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import update
from support.mariadb import made_database

from seriatim.contract.lock import LockContract
from seriatim.contract.lock_child import Place
from seriatim.core.errors import Contention
from seriatim.core.locking import LockLost, open_locks
from seriatim.core.locking.database import DatabaseKeeper, purge
from seriatim.core.locking.names import stored
from seriatim.core.store import open_store
from seriatim.core.store.schema import named_lock


def forget(store_url, names):
    with contextlib.closing(open_store(store_url)) as store, contextlib.closing(store.session()) as session:
        for name in names:
            with session.transaction():
                session.run(update(named_lock).where(named_lock.c.name == stored(name)).values(token=None))


class DatabaseContract(LockContract):
    def lose(self, place, names):
        forget(place.store_url, names)


class TestLocksInSqlite(DatabaseContract):
    @pytest.fixture
    def place(self, tmp_path):
        return Place("database", f"sqlite:///{tmp_path}/store.db")


class TestLocksInMariadb(DatabaseContract):
    @pytest.fixture
    def place(self):
        with made_database() as database:
            yield Place("database", database.url)


@pytest.fixture
def sqlite(tmp_path):
    with contextlib.closing(open_store(f"sqlite:///{tmp_path}/store.db", lock_timeout_s=5.0)) as store:
        store.init()
        yield store


@pytest.fixture(scope="module")
def shared():
    with made_database() as database, contextlib.closing(open_store(database.url)) as store:
        store.init()
        yield database


@pytest.fixture
def mariadb(shared):
    shared.sql("DELETE FROM named_lock")
    with contextlib.closing(open_store(shared.url)) as store:
        yield store


@pytest.fixture(params=["sqlite", "mariadb"])
def store(request):
    return request.getfixturevalue(request.param)


def locks_of(store, ttl_s=30.0):
    return contextlib.closing(open_locks("database", store, ttl_s=ttl_s))


def fences(store):
    with store.read() as connection:
        return {row.name: row.fence for row in connection.execute(named_lock.select())}


def test_a_deleted_row_is_noticed(store):
    with locks_of(store) as locks, contextlib.closing(store.session()) as session:
        held = locks.acquire(["a"], 0)
        with session.transaction():
            session.run(named_lock.delete())
        with pytest.raises(LockLost), session.transaction():
            held.check(session)


def test_who_waits_only_reads(sqlite):
    """On SQLite a turn to write would be taken from the lanes."""
    with locks_of(sqlite) as locks, contextlib.closing(sqlite.session()) as session:
        locks.acquire(["b"], 0)
        with session.transaction():  # nobody else can write now
            began = time.monotonic()
            assert locks.acquire(["b", "c"], 0.3) is None or pytest.fail("it was had by two")
            assert time.monotonic() - began < 2.0


def test_a_lane_that_waits_holds_up_no_lane_that_writes(sqlite):
    # N13 on one writer: taken before the transaction, whoever holds it can go on and give it back
    with locks_of(sqlite) as locks, ThreadPoolExecutor(1) as pool:
        held = locks.acquire(["a"], 0)
        waiting = pool.submit(locks.acquire, ["a"], 10.0)
        with contextlib.closing(sqlite.session()) as session:
            for _ in range(20):
                with session.transaction():
                    held.check(session)
        held.release()
        assert waiting.result(10.0) is not None


def test_a_check_in_the_transaction_keeps_others_out_until_its_commit(mariadb, monkeypatch):
    # the commit comes as late as it likes, and nothing is renewed meanwhile: its row is ours
    monkeypatch.setattr(DatabaseKeeper, "extend", lambda *_: True)
    with locks_of(mariadb, ttl_s=0.6) as locks, locks_of(mariadb) as others, ThreadPoolExecutor(1) as pool:
        held = locks.acquire(["a"], 0)
        with contextlib.closing(mariadb.session()) as session, session.transaction():
            held.check(session)
            taking = pool.submit(others.acquire, ["a"], 10.0)
            time.sleep(1.5)  # more than twice the TTL
            assert not taking.done()
        held.release()
        assert taking.result(10.0) is not None


def test_a_check_without_a_transaction_leaves_time_for_the_commit(store):
    # ended by its time, but nobody has taken it yet: then nobody shall for another TTL
    with contextlib.closing(DatabaseKeeper(store, 0.5)) as keeper:
        assert keeper.take(["a", "b"], "mine")
        time.sleep(0.6)
        assert keeper.holds(["a", "b"], "mine", None)
        assert keeper.take(["b"], "another's") is None
        time.sleep(0.6)
        assert keeper.take(["b"], "another's")
        assert not keeper.holds(["a", "b"], "mine", None)


def test_neighbouring_names_never_deadlock_whether_new_or_not(mariadb, monkeypatch):
    # field case FC-S7: no gap locks; a deadlock would be told as contention
    met = []
    use = DatabaseKeeper._use  # noqa: SLF001 - what every step goes through

    def watched(self, action):
        try:
            return use(self, action)
        except Contention as error:
            met.append(error)
            raise

    monkeypatch.setattr(DatabaseKeeper, "_use", watched)
    with locks_of(mariadb) as locks:

        def many(lane):
            for turn in range(40):
                names = [f"n{turn // 2:03}-{(lane + step) % 24:02}" for step in range(0, 24, 8)]
                held = locks.acquire(names, 20.0)
                held.check()
                held.release()

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(many, range(8)))
    assert met == []


def test_a_connection_that_was_killed_is_replaced(mariadb, shared):
    with locks_of(mariadb) as locks:
        held = locks.acquire(["a"], 0)
        mine = shared.sql("SELECT id FROM information_schema.processlist WHERE db = %s", shared.name)
        with contextlib.closing(shared.connect()) as own, own.cursor() as cursor:
            for (connection,) in mine:
                with contextlib.suppress(Exception):
                    cursor.execute(f"KILL {connection}")
        held.check()
        held.release()
        assert locks.acquire(["a"], 0) is not None


def test_a_purged_name_s_fence_goes_on_rising(store):
    with locks_of(store) as locks:
        first = locks.acquire(["a"], 0)
        kept = locks.acquire(["b"], 0)
        first.release()
        assert purge(store, older_s=3600) == 0
        assert purge(store, older_s=0) == 1
        assert set(fences(store)) == {"b"}
        second = locks.acquire(["a"], 0)
        assert second.fence["a"] > first.fence["a"]
        kept.check()


def test_many_lanes_share_a_keeper(store):
    """Sessions are for one thread at a time: what is idle is used again, and never by two."""
    with locks_of(store) as locks:
        together = threading.Barrier(4)

        def lane(number):
            together.wait(10)
            for _ in range(10):
                held = locks.acquire([f"acct:{number}"], 10.0)
                held.check()
                held.release()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lane, range(4)))
        assert len(fences(store)) == 4
