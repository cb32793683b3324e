"""The store on MariaDB: field cases FC-S, FC-K, FC-T, owners that die or stand still, a server that goes and comes."""

import json
import os
import signal
import sys
import threading
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from pymysql.constants import CLIENT
from sqlalchemy import bindparam, column, create_engine, make_url, select, table, text
from sqlalchemy.pool import NullPool
from support.mariadb import ENTER, Database, MariadbRig, made_database
from support.programs import Program, seriatim, write_program
from support.rig import PATIENCE_S, wait_until
from support.services import OwnService

from seriatim import App, Settings, StateMachine
from seriatim.contract.store import StoreContract
from seriatim.core.decision import KeyStanding, Outcome, Place, Reason, Status
from seriatim.core.errors import (
    CommitUnknown,
    ConfigurationError,
    Contention,
    DuplicateKey,
    SchemaMismatch,
    StoreError,
    StoreUnavailable,
)
from seriatim.core.message import Position
from seriatim.core.store import open_store, schema
from seriatim.core.store.port import Fenced, FenceStep, Finish, NewRecord, ParkedMessage, Scope

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from examples.orders import tables  # noqa: E402 - after the path
from examples.orders.app import orders  # noqa: E402
from examples.orders.check import check_all  # noqa: E402
from examples.orders.traffic import plan  # noqa: E402

SCOPE = Scope("shop", "orders")
TTL = 2_000_000


@pytest.fixture
def database():
    with made_database() as made:
        yield made


@pytest.fixture
def own_store(database):
    """An initialised store in a database of the test's own, whose tables it may harm."""
    with closing(open_store(database.url, lease_s=3.0)) as opened:
        opened.init()
        yield opened


@pytest.fixture(scope="module")
def shared():
    """A database with the tables of a store, shared by the tests that only use them."""
    with made_database() as made, closing(open_store(made.url)) as opened:
        opened.init()
        yield made


@pytest.fixture
def store(shared):
    """A store with nothing in it but the partitions of a topic."""
    for name in set(schema.metadata.tables) - {"schema_version"}:
        shared.sql(f"DELETE FROM {name}")
    with closing(open_store(shared.url, lease_s=3.0)) as opened:
        opened.declare(SCOPE, ["0", "1", "10", "2"])
        yield opened


@pytest.fixture
def session(store):
    with closing(store.session()) as opened:
        yield opened


@pytest.fixture
def other(store):
    with closing(store.session()) as opened:
        yield opened


@pytest.fixture
def rig(tmp_path, database):
    return MariadbRig(tmp_path, database)


def enter(ctx, note=""):
    message = ctx.message
    ctx.tx.execute(ENTER, {"key": message.sharding_key, "biz_key": message.biz_key, "type": message.type, "note": note})


def row_of(biz_key, partition="0", **values):
    return NewRecord(
        **{
            "biz_key": biz_key,
            "type": "step",
            "sharding_key": biz_key,
            "partition": partition,
            "seq": None,
            "digest": b"d" * 32,
            "body": None,
            "produced_at": 1,
            "received_at": 1,
        }
        | values
    )


def parked(biz_key, **values):
    return ParkedMessage(
        **{
            "partition": "0",
            "sharding_key": "k",
            "biz_key": biz_key,
            "place": Place.QUEUE,
            "reason": Reason.FAILED,
            "type": "step",
            "seq": None,
            "headers": {"naïve": "日本"},
            "body": b"\x00\xff",
            "digest": b"d" * 32,
            "produced_at": 1,
            "received_at": 1,
        }
        | values
    )


def claimed_step(session, partition="0", **values):
    claimed = session.leases.claim(SCOPE, partition, "me", TTL)
    assert claimed is not None
    row = claimed.row
    return FenceStep(
        **{"partition": partition, "owner": row.owner, "epoch": row.epoch, "effect": row.effect, "advance": 3} | values
    )


@contextmanager
def thread(work):
    """Some work on a thread of its own, ended with the block; what it raised is raised here."""
    failures = []

    def run():
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised where the block ends
            failures.append(error)

    running = threading.Thread(target=run)
    running.start()
    yield
    running.join(PATIENCE_S)
    assert not running.is_alive(), "the other thread didn't end"
    if failures:
        raise failures[0]


class TestMariadbStore(StoreContract):
    """The contract of every store."""

    @pytest.fixture
    def store_url(self, database):
        return database.url


# -- the tables


def test_the_tables_compare_exactly_in_a_database_that_does_not(own_store, database):
    collations = database.sql(
        "SELECT DISTINCT collation_name FROM information_schema.columns WHERE table_schema = %s"
        " AND data_type = 'varchar'",
        database.name,
    )
    assert collations == (("utf8mb4_nopad_bin",),)
    own_store.check()
    assert own_store.init() is False


def test_several_processes_may_make_the_tables_and_declare_a_topic_at_once(database):
    made, mutex = [], threading.Lock()

    def begin():
        with closing(open_store(database.url)) as opened:
            fresh = opened.init()
            opened.declare(SCOPE, ["0", "1", "2"])
            with mutex:
                made.append(fresh)

    with thread(begin), thread(begin), thread(begin), thread(begin):
        pass
    assert sorted(made) == [False, False, False, True]


def test_an_init_that_was_interrupted_is_finished_by_the_next(own_store, database):
    database.sql("DELETE FROM schema_version")
    database.sql("DROP TABLE parked_key")
    assert own_store.init() is True
    own_store.check()


@pytest.mark.parametrize(
    ("harm", "named"),
    [
        ("DROP TABLE parked_key", "parked_key"),
        ("ALTER TABLE idempotent_record DROP COLUMN illegal", r"idempotent_record\.illegal is missing"),
        (
            "ALTER TABLE parked_key MODIFY sharding_key VARCHAR(255) COLLATE utf8mb4_bin NOT NULL",
            r"parked_key\.sharding_key compares by utf8mb4_bin, and must by utf8mb4_nopad_bin",
        ),
        ("ALTER TABLE parked_message MODIFY error TEXT CHARACTER SET latin1", r"parked_message\.error .* utf8mb4"),
        ("ALTER TABLE partition_owner ENGINE = Aria", "partition_owner is of engine Aria"),
        ("UPDATE schema_version SET version = 99", "version 99"),
    ],
)
def test_tables_that_are_not_this_programs_are_named(own_store, database, harm, named):
    database.sql(harm)
    with pytest.raises(SchemaMismatch, match=named) as refused:
        own_store.check()
    assert "seriatim" in str(refused.value)


@pytest.mark.parametrize("rights", ["SELECT", "SELECT, INSERT, UPDATE"])
def test_a_user_without_rights_is_told_which_to_ask_for(own_store, database, rights):
    user = f"u{time.monotonic_ns() % 10**12}"
    database.sql(f"CREATE USER {user}@'%%' IDENTIFIED BY '{user}'")
    try:
        database.sql(f"GRANT {rights} ON {database.name}.* TO {user}@'%%'")
        url = make_url(database.url).set(username=user, password=user).render_as_string(hide_password=False)
        with closing(open_store(url)) as poor, pytest.raises(ConfigurationError, match="GRANT SELECT, INSERT"):
            poor.check()
    finally:
        database.sql(f"DROP USER {user}@'%%'")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"password": "wrong"}, "check user and password"),
        ({"database": "no_such_database"}, "CREATE DATABASE first"),
    ],
)
def test_wrong_credentials_and_an_absent_database_are_named(database, change, named):
    url = make_url(database.url).set(**change).render_as_string(hide_password=False)
    with closing(open_store(url)) as opened:
        for verb in (opened.init, opened.check):
            with pytest.raises(ConfigurationError, match=named) as refused:
                verb()
            assert "wrong@" not in str(refused.value)


def test_a_server_that_is_away_is_the_stores_fault(database):
    url = make_url(database.url).set(port=1).render_as_string(hide_password=False)
    with closing(open_store(url)) as opened, pytest.raises(StoreUnavailable):
        opened.check()


@pytest.mark.parametrize(
    ("asked", "answered", "named"),
    [
        ("_SERVER", "SELECT '10.5.29-MariaDB', 0, 'ROW'", "10.6 or newer"),
        ("_SERVER", "SELECT '8.0.11', 0, 'ROW'", "8.0.17 or newer"),
        ("_SERVER", "SELECT '10.11.6-MariaDB', 1, 'STATEMENT'", "binlog_format"),
        ("_CLUSTER", "SELECT 'wsrep_cluster_size', '3'", "one_writer=true"),
    ],
)
def test_a_server_that_will_not_do_is_refused(store, monkeypatch, asked, answered, named):
    monkeypatch.setattr(f"seriatim.core.store.mysql_store.{asked}", text(answered))
    with pytest.raises(ConfigurationError, match=named):
        store.check()


def test_a_cluster_with_one_writer_is_accepted_when_the_url_says_so(store, shared, monkeypatch):
    monkeypatch.setattr("seriatim.core.store.mysql_store._CLUSTER", text("SELECT 'wsrep_cluster_size', '3'"))
    with closing(open_store(shared.url + "?one_writer=true")) as promised:
        promised.check()


# -- leases


def test_a_row_in_a_transaction_is_neither_claimed_nor_renewed_nor_lost(session, other):
    step = claimed_step(session)
    with session.transaction():
        assert session.leases.fence(SCOPE, [step], TTL) == {}
        began = time.monotonic()
        assert other.leases.claim(SCOPE, "0", "you", TTL) is None
        assert other.leases.renew(SCOPE, [("0", step.owner, step.epoch)], TTL) == set()
        assert time.monotonic() - began < 0.5
        assert other.leases.claim(SCOPE, "0", "you", TTL, wait=True) is None  # waited in vain, and says no more
    assert other.leases.renew(SCOPE, [("0", step.owner, step.epoch), ("1", "nobody", 1)], TTL) == {"1"}


def test_a_claim_that_waited_is_not_born_expired(session, other):
    step = claimed_step(session)
    claimed = []
    with session.transaction():
        session.leases.fence(SCOPE, [step], 1)
        waiting = thread(lambda: claimed.append(other.leases.claim(SCOPE, "0", "you", TTL, wait=True)))
        waiting.__enter__()
        time.sleep(0.4)  # it waits for the row meanwhile
    waiting.__exit__(None, None, None)
    assert claimed[0].row.lease_until > session.now() + TTL // 2
    assert not claimed[0].released


def test_members_who_beat_at_once_never_meet(store):
    scope = Scope("busy", "orders")

    def beat(name):
        with closing(store.session()) as own:
            for number in range(60):
                own.leases.beat(scope, f"{name}-{number % 3}", 1)  # each is dead at once, and swept away by others

    with thread(lambda: beat("a")), thread(lambda: beat("b")), thread(lambda: beat("c")), thread(lambda: beat("d")):
        pass


def test_fences_over_the_same_partitions_never_deadlock(store, session):
    # in the order of the bytes of their ids, whoever fences; '10' comes before '2'
    claims = {one: session.leases.claim(SCOPE, one, "me", 60 * TTL).row for one in ("1", "2", "10")}

    def fence(partitions):
        with closing(store.session()) as own:
            for _ in range(50):
                seen = {row.partition: row.effect for row in own.leases.owners(SCOPE)}
                steps = [
                    FenceStep(one, claims[one].owner, claims[one].epoch, seen[one], advance=1) for one in partitions
                ]
                with own.transaction():
                    own.leases.fence(SCOPE, steps, TTL)

    with (
        thread(lambda: fence(["2", "10", "1"])),
        thread(lambda: fence(["1", "2", "10"])),
        thread(lambda: fence(["10"])),
    ):
        pass


def test_a_lease_of_300_ms_is_taken_over_between_300_and_450_ms(session, other):
    # field case FC-T3, by the server's clock
    for trial in range(12):
        held = session.leases.claim(SCOPE, "0", f"a{trial}", 300_000)
        began = held.row.lease_until - 300_000
        while (taken := other.leases.claim(SCOPE, "0", f"b{trial}", 300_000)) is None:
            assert other.now() < began + 2_000_000
        claimed_at = taken.row.lease_until - 300_000
        assert 300_000 <= claimed_at - began <= 450_000
        assert session.leases.release(SCOPE, "0", taken.row.owner, taken.row.epoch)


# -- statements


def test_a_record_that_another_session_made_meanwhile_is_found(session, other):
    # field case FC-S1: a read that misses, another's commit, a duplicate key: then the stored response is found
    with pytest.raises(DuplicateKey), session.transaction():  # noqa: PT012 - a transaction is its statements
        assert session.records.look_up(SCOPE, ["b1"]) == {}
        with other.transaction():
            other.records.claim(SCOPE, [row_of("b1")], other.now())
            other.records.finish(
                SCOPE, [Finish("b1", Status.SUCCESS, Outcome.APPLIED, response=b"the answer")], other.now()
            )
        assert session.records.look_up(SCOPE, ["b1"])["b1"].status is Status.SUCCESS  # no old snapshot either
        session.records.claim(SCOPE, [row_of("b1")], session.now())
    assert session.records.response(SCOPE, "b1") == b"the answer"


def test_writing_what_is_there_already_counts_as_found(session):
    # field case FC-S5: without FOUND_ROWS the server would say that no row was touched
    standing = KeyStanding(depth=1, due_at=5)
    for _ in range(2):
        with session.transaction():
            session.parking.write_keys(SCOPE, {"k": ("0", standing)}, 7)
    assert session.parking.keys(SCOPE, ["k"]) == {"k": standing}

    step = claimed_step(session)
    for effect in (0, 3):
        again = FenceStep("0", step.owner, step.epoch, effect, 3, read_through=1)
        with session.transaction():
            assert session.leases.fence(SCOPE, [again], TTL) == {}
    with session.transaction():
        assert session.leases.fence(SCOPE, [again], TTL) == {"0": Fenced.MOVED}


def test_a_state_that_is_reached_twice_is_judged_right(rig):
    # field case FC-S5: a second step to the same state
    app = rig.app()
    orders = app.topic("orders", partitions=1)
    status = StateMachine(
        "orders", "order_no", "status", after={"OPEN": (), "RUNNING": ("OPEN", "RUNNING")}, version="version"
    )

    @orders.on("open", moves=status.to("OPEN", insert=lambda event: {}))
    def opened(event, ctx):
        enter(ctx)

    @orders.on("run", moves=status.to("RUNNING"))
    def run(event, ctx):
        enter(ctx)

    kinds = ["open", "run", "run", "run"]
    rig.send_all(
        orders,
        [
            orders.message(key="o1", type=kind, biz_key=f"b{seq}", seq=seq, body={})
            for seq, kind in enumerate(kinds, start=1)
        ],
    )
    rig.run_until(app, lambda: len(rig.ledger()) >= len(kinds) or rig.parked(), "the effects")
    assert rig.ledger() == ["b1", "b2", "b3", "b4"]


def test_a_url_cannot_turn_the_count_of_found_rows_off(store):
    with store.read() as connection:
        driver = connection.connection.driver_connection
        assert driver.client_flag & CLIENT.FOUND_ROWS
        assert not driver.client_flag & CLIENT.MULTI_STATEMENTS


def test_keys_that_a_lax_collation_would_merge_stay_apart(session):
    # field case FC-K1
    keys = ["Order-A", "order-a", "e", "é", "e\u0301", "😀", "😁", "ß", "ss", "k", "k ", "K", "0", "00"]
    with session.transaction():
        session.records.claim(SCOPE, [row_of(key) for key in keys], 1)
        session.parking.write_keys(SCOPE, {key: ("0", KeyStanding(depth=1, due_at=9)) for key in keys}, 1)
        session.parking.insert(SCOPE, [parked(key) for key in keys], 1)
    assert set(session.records.look_up(SCOPE, keys)) == set(keys)
    assert set(session.parking.keys(SCOPE, keys)) == set(keys)
    assert set(session.parking.waiting(SCOPE, keys)) == set(keys)


def test_each_of_two_keys_that_differ_by_case_or_accent_has_its_own_effect(rig):
    # field case FC-K1, end to end
    app = rig.app()
    orders = app.topic("orders", partitions=4)

    @orders.on("step")
    def step(event, ctx):
        enter(ctx)

    keys = ["Order-A", "order-a", "e", "é", "😀", "😁", "ß", "ss"]
    sent = sorted(rig.send(orders, key, biz_key=key) for key in keys)
    rig.run_until(app, lambda: len(rig.ledger()) >= len(sent), "the effects")
    assert sorted(rig.ledger()) == sent


def test_the_longest_keys_fit_every_index(session):
    # field case FC-K3: as the broker's contract allows them, each character four bytes
    longest = "😀" * 255
    with session.transaction():
        session.records.claim(SCOPE, [row_of(longest)], 1)
        session.parking.write_keys(SCOPE, {longest: ("0", KeyStanding(depth=1))}, 1)
        session.parking.insert(SCOPE, [parked(longest, sharding_key=longest, conflict=True)], 1)
    assert set(session.records.look_up(SCOPE, [longest])) == {longest}
    with pytest.raises(StoreError, match="too long"), session.transaction():
        session.records.claim(SCOPE, [row_of("😀" * 256)], 1)


def test_what_is_due_now_is_picked_now(session):
    # field case FC-T1: no fraction is rounded into the future
    for due in (1_796_000_000_999_999, 1_796_000_000_000_001):
        with session.transaction():
            session.parking.write_keys(SCOPE, {"k": ("0", KeyStanding(depth=1, due_at=due))}, 1)
        assert session.parking.keys(SCOPE, ["k"])["k"].due_at == due
        assert session.parking.due_keys(SCOPE, "0", due, 10) == ["k"]
        assert session.parking.due_keys(SCOPE, "0", due - 1, 10) == []


def test_bodies_and_texts_come_back_as_they_were(session):
    message = parked("b", body=bytes(range(256)) * 40, error="n’est-ce pas 日本 😀", detail="x" * 30_000)
    with session.transaction():
        session.parking.insert(SCOPE, [message], 1)
    [back] = session.parking.rows(SCOPE, "k", Place.QUEUE, 10)
    assert (back.body, back.error, back.headers) == (message.body, message.error, message.headers)


def test_a_body_of_several_megabytes_fits_and_one_over_the_packet_is_refused_alive(session):
    with session.transaction():
        session.parking.insert(SCOPE, [parked("b", body=b"\x00'" * (2 * 1024 * 1024))], 1)
    with pytest.raises(StoreError, match="max_allowed_packet") as refused, session.transaction():
        session.parking.insert(SCOPE, [parked("c", body=b"x" * (17 * 1024 * 1024))], 1)
    assert not isinstance(refused.value, StoreUnavailable)
    assert [row.biz_key for row in session.parking.rows(SCOPE, "k", Place.QUEUE, 10)] == ["b"]


def test_a_locking_read_does_not_wait_for_a_foreign_row(store, session, other, shared):
    # review N6: left to itself, the server looks at the whole of a small table, and waits for every locked row in it
    shared.sql("CREATE TABLE business (code VARCHAR(32) PRIMARY KEY, status VARCHAR(16)) ENGINE = InnoDB")
    shared.sql("INSERT INTO business VALUES " + ", ".join(f"('c{number:03}', 'NEW')" for number in range(100)))
    query = (
        select(column("code"))
        .select_from(table("business"))
        .where(column("code").in_(bindparam("keys", expanding=True)))
    )
    with other.transaction():
        other.run(text("UPDATE business SET status = 'HELD' WHERE code = 'c099'"))
        began = time.monotonic()
        with session.transaction():
            found = session.run(session.locking(query), {"keys": [f"c{number:03}" for number in range(90)]})
            assert len(found.all()) == 90
        assert time.monotonic() - began < 0.5


def test_a_reader_sees_one_snapshot(store, session):
    count_rows = text("SELECT COUNT(*) FROM idempotent_record")
    with store.read() as reader:
        assert reader.execute(count_rows).scalar() == 0
        with session.transaction():
            session.records.claim(SCOPE, [row_of("b")], 1)
        assert reader.execute(count_rows).scalar() == 0
    with store.read() as reader:
        assert reader.execute(count_rows).scalar() == 1


# -- owners that are slow, stand still or die


def test_a_slow_transaction_lives_and_a_silent_process_is_ended(shared, store, other):
    with closing(open_store(shared.url, lease_s=1.0)) as short, closing(short.session()) as slow:
        step = claimed_step(slow)
        with slow.transaction():
            assert slow.leases.fence(SCOPE, [step], TTL) == {}
            time.sleep(3.2)  # three leases without a word to the shared
            slow.leases.prolong(SCOPE, ["0"], TTL, since=0)

        short.dialect.alive.stop()  # as if the process were stopped: nobody pings
        began = time.monotonic()
        with pytest.raises(StoreUnavailable), slow.transaction():  # noqa: PT012
            slow.leases.hold_row(SCOPE, "0")
            wait_until(lambda: _is_free(other, "0"), "the server's end of the transaction")
            slow.leases.hold_row(SCOPE, "0")
        assert time.monotonic() - began < 3.0
        with slow.transaction():  # on a new connection
            slow.leases.hold_row(SCOPE, "0")


def _is_free(session, partition):
    where = (schema.partition_owner.c.topic == SCOPE.topic) & (schema.partition_owner.c.partition_id == partition)
    query = select(schema.partition_owner.c.epoch).where(where, schema.partition_owner.c.consumer_group == SCOPE.group)
    with session.transaction():
        return session.run(query.with_for_update(skip_locked=True)).first() is not None


def connection_id(session):
    return session.run(text("SELECT CONNECTION_ID()")).scalar_one()


def test_connections_share_what_tls_is_made_with(session, other):
    """The driver would read every authority of the system for each: 70 ms of work."""
    first, second = (one.connection.connection.driver_connection for one in (session, other))
    assert first.ctx is second.ctx


def test_no_tls_means_none(shared):
    with closing(open_store(f"{shared.url}?ssl=false")) as store, store.read() as connection:
        assert not connection.connection.driver_connection.ssl


@pytest.mark.parametrize("folds", [True, False])
def test_many_updates_in_one_statement_do_what_they_do_one_by_one(store, session, monkeypatch, folds):
    """The finish of a batch and the fence of many partitions, with everything that may vary between their rows."""
    if not folds:
        monkeypatch.setattr(store.dialect, "fold", lambda *_: None)
    keys = ["k", "k ", "K", "é", "e", "😀", "🎉"]
    finishes = [
        Finish(key, Status.SUCCESS, Outcome.APPLIED, response=b"\xff%s" * n, attempts=n, effect=n, state_after=key)
        for n, key in enumerate(keys[:4])
    ] + [
        Finish(keys[4], Status.FAILED, Outcome.PARKED, body=b"'%(x)s", keep_crashes=True),
        Finish(keys[5], Status.FAILED, Outcome.REJECTED, first="parked", illegal=True),
        Finish(keys[6], Status.SUCCESS, Outcome.STALE, state_before="it's"),
    ]
    with session.transaction():
        session.records.claim(SCOPE, [row_of(key) for key in keys], 1)
        session.records.mark_crash(SCOPE, row_of("e"), 2)
        session.records.mark_crash(SCOPE, row_of("é"), 2)
        session.records.finish(SCOPE, finishes, 5)
    query = text(
        "SELECT biz_key, status, outcome, first_outcome, illegal, request_body, response_body, attempts, effect,"
        " crash_attempts, state_before, state_after, update_time, settled_at FROM idempotent_record ORDER BY biz_key"
    )
    found = {row[0]: tuple(row)[1:] for row in session.run(query)}
    assert found == {
        "k": (2, "applied", "applied", 0, None, b"", 0, 0, 0, None, "k", 5, 5),
        "k ": (2, "applied", "applied", 0, None, b"\xff%s", 1, 1, 0, None, "k ", 5, 5),
        "K": (2, "applied", "applied", 0, None, b"\xff%s" * 2, 2, 2, 0, None, "K", 5, 5),
        "é": (2, "applied", "applied", 0, None, b"\xff%s" * 3, 3, 3, 0, None, "é", 5, 5),
        "e": (3, "parked", "parked", 0, b"'%(x)s", None, 0, None, 1, None, None, 5, None),
        "😀": (3, "rejected", "parked", 1, None, None, 0, None, 0, None, None, 5, 5),
        "🎉": (2, "stale", "stale", 0, None, None, 0, None, 0, "it's", None, 5, 5),
    }
    with pytest.raises(StoreError, match="6 of 7"), session.transaction():
        session.records.finish(SCOPE, [*finishes[:6], replace(finishes[6], biz_key="nobody's")], 5)
    claims = [session.leases.claim(SCOPE, partition, "m", TTL).row for partition in ("0", "1", "10", "2")]
    steps = [
        FenceStep(one.partition, one.owner, one.epoch, one.effect, 3, Position(f"{n}", "d") if n else None, n or None)
        for n, one in enumerate(claims)
    ]
    with session.transaction():
        assert session.leases.fence(SCOPE, steps, TTL) == {}
    after = {row.partition: row for row in session.leases.owners(SCOPE)}
    assert {name: (row.effect, row.position, row.read_through) for name, row in after.items()} == {
        "0": (3, None, 0),
        "1": (3, Position("1", "d"), 1),
        "10": (3, Position("2", "d"), 2),
        "2": (3, Position("3", "d"), 3),
    }
    with session.transaction():
        broken = session.leases.fence(SCOPE, [*steps[:3], replace(steps[3], effect=3)], TTL)
    assert set(broken.values()) == {Fenced.MOVED}


def test_a_connection_that_is_killed_is_the_stores_fault_and_is_replaced(session, shared):
    with pytest.raises(StoreUnavailable), session.transaction():  # noqa: PT012
        session.records.claim(SCOPE, [row_of("b")], 1)
        shared.sql(f"KILL {connection_id(session)}")
        session.records.look_up(SCOPE, ["b"])
    with session.transaction():
        assert session.records.look_up(SCOPE, ["b"]) == {}
    shared.sql(f"KILL {connection_id(session)}")
    with suppress(StoreUnavailable):  # the first to find out
        session.now()
    assert session.now() > 0


def test_a_commit_on_a_killed_connection_is_unknown_and_the_counter_tells(session, shared):
    step = claimed_step(session)
    with pytest.raises(CommitUnknown), session.transaction():  # noqa: PT012
        session.leases.fence(SCOPE, [step], TTL)
        shared.sql(f"KILL {connection_id(session)}")
    with session.transaction():
        assert session.leases.hold_row(SCOPE, "0").effect == step.effect + 1


def test_a_lock_timeout_is_contention_and_leaves_nothing_half_done(session, other):
    with other.transaction():
        other.leases.hold_row(SCOPE, "1")
        with pytest.raises(Contention), session.transaction():  # noqa: PT012
            session.records.claim(SCOPE, [row_of("b")], 1)
            session.leases.hold_row(SCOPE, "1")
    assert session.records.look_up(SCOPE, ["b"]) == {}


@pytest.mark.slow
def test_many_lanes_over_neighbouring_keys_never_deadlock_and_never_mix_up_answers(rig):
    # field cases FC-S3, FC-S7: one in ten is a duplicate; any deadlock would be told as contention
    app = rig.app(lanes=12, lease_s=10.0)
    orders = app.topic("orders", partitions=24)
    status = StateMachine("orders", key="order_no", column="status", after={"NEW": (), "PAID": ("NEW",)})

    @orders.on("new", moves=status.to("NEW", insert=lambda event: {}))
    def new(event, ctx):
        enter(ctx)
        return {"of": ctx.message.biz_key}

    @orders.on("paid", moves=status.to("PAID"))
    def paid(event, ctx):
        enter(ctx)
        return {"of": ctx.message.biz_key}

    once = [
        orders.message(key=f"o{number:06}", type=kind, biz_key=f"o{number:06}:{kind}", body={})
        for number in range(2500)
        for kind in ("new", "paid")
    ]
    rig.send_all(orders, [message for index, message in enumerate(once) for _ in range(2 if index % 10 == 0 else 1)])
    with rig.working(app) as witness:
        wait_until(lambda: rig.rows("SELECT COUNT(*) FROM ledger")[0][0] >= len(once), "the effects", patience_s=90)
    assert witness.seen("contention") == []
    assert witness.seen("lane paused") == []
    assert sorted(rig.ledger()) == sorted(message.biz_key for message in once)
    answers = rig.rows("SELECT biz_key, response_body FROM idempotent_record WHERE status = 2")
    assert len(answers) == len(once)
    assert all(json.loads(answer) == {"of": biz_key} for biz_key, answer in answers)


# -- processes that die or stand still, a server that goes and comes


SLOW_SHOP = """
orders = app.topic("orders", partitions=4)
ENTER = text("INSERT INTO ledger (`key`, biz_key, type, note) VALUES (:key, :biz_key, :type, :note)")

@orders.on("step")
def step(event, ctx):
    m = ctx.message
    ctx.tx.execute(ENTER, {"key": m.sharding_key, "biz_key": m.biz_key, "type": m.type, "note": str(os.getpid())})
    if once("stuck"):
        mark("in-hand", os.getpid())
        time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_owner_that_ends_or_stands_still_inside_its_transaction_is_replaced(rig, number):
    # the server rolls back what it had done; a stopped one wakes up and has nothing left
    lease_s = 2
    write_program(rig.folder, SLOW_SHOP)
    orders = App("sender").topic("orders", partitions=4)
    named = {"SERIATIM_STORE": rig.store, "SERIATIM_LEASE_S": str(lease_s)}
    with Program(rig.folder, "run", "shop:app", **named) as first:
        wait_until(lambda: rig.owners() == 1, "the first process's partitions")
        sent = sorted(rig.send(orders, f"k{index}", biz_key=f"b{index}") for index in range(12))
        wait_until((rig.folder / "in-hand").exists, "the handler")
        first.signal(number)
        began = time.monotonic()
        with Program(rig.folder, "run", "shop:app", **named) as second:
            wait_until(lambda: len(rig.ledger()) >= len(sent), "the take-over")
            took_s = time.monotonic() - began
            if number == signal.SIGSTOP:
                first.signal(signal.SIGCONT)
                wait_until(lambda: rig.owners() == 2, "the stopped one to join again")
            second.signal(signal.SIGTERM)
            first.signal(signal.SIGTERM)
            assert second.wait().code == 0
    assert sorted(rig.ledger()) == sent
    # twice the lease, and what a busy machine takes to start a process and claim partition by partition; without the
    # server's own time-out it would be hours
    assert took_s < 2 * lease_s + 26, f"the take-over took {took_s:.1f} s"


@pytest.fixture
def own_server(tmp_path):
    """A MariaDB of the test's own, that it may kill."""
    with OwnService(tmp_path, "mariadb").running() as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_consumption_pauses_while_the_server_is_away_and_goes_on(tmp_path, own_server, number):
    url = f"mysql+pymysql://seriatim:seriatim@127.0.0.1:{own_server.port}/seriatim"
    database = Database("mid_run", url)
    database.make()
    rig = MariadbRig(tmp_path, database)
    app = rig.app(lanes=2)
    orders = app.topic("orders", partitions=8)

    @orders.on("step")
    def step(event, ctx):
        enter(ctx)

    sent = [orders.message(key=f"k{index % 50}", type="step", biz_key=f"b{index}", body={}) for index in range(3000)]
    with rig.working(app) as witness:
        rig.send_all(orders, sent[:1500])
        wait_until(lambda: len(rig.ledger()) >= 300, "some effects")
        os.kill(own_server.pid, number)
        rig.send_all(orders, sent[1500:])
        wait_until(lambda: witness.seen("lane paused"), "the pause")
        own_server.start()
        wait_until(lambda: len(rig.ledger()) >= len(sent), "everything", patience_s=60)
    ledger = rig.ledger()
    assert sorted(ledger) == sorted(message.biz_key for message in sent)
    for key in range(50):
        of_key = [int(biz_key[1:]) for biz_key in ledger if int(biz_key[1:]) % 50 == key]
        assert of_key == sorted(of_key)
    assert rig.parked() == []


@pytest.mark.slow
def test_the_orders_example_runs_by_another_store_url(tmp_path, database):
    # only the URL changes: duplicates, early ones, failing payments, and it all adds up
    traffic = plan(150, 5)
    tables.create(database.url, traffic.stock.items())
    named = {
        "SERIATIM_STORE": database.url,
        "SERIATIM_BROKER": f"embedded:{tmp_path}/broker.db",
        "PYTHONPATH": str(ROOT),
        "SERIATIM_LOG_LEVEL": "WARNING",
    }
    made = seriatim(tmp_path, "init", **named)
    assert made.code == 0, made
    sender = App("sender", settings=Settings(broker=named["SERIATIM_BROKER"], store=database.url))
    sender.topics[orders.name] = orders
    with sender.producer() as producer:
        producer.send(*(replace(message, produced_at=time.time()) for message in traffic.messages))
    ran = [Program(tmp_path, "run", "examples.orders.app:app", "--until-idle", "6", **named) for _ in range(2)]
    ended = [program.wait(90) for program in ran]
    assert [one.code for one in ended] == [0, 0], ended
    with closing(create_engine(database.url, poolclass=NullPool).connect()) as connection:
        found = check_all(connection, traffic.ends)
    assert [check.wrong for check in found] == [[], [], [], []]
