"""The SQLite store: the contract, then what is its own."""

from __future__ import annotations

import contextlib
import sqlite3
import threading

import pytest
from sqlalchemy import text

from seriatim.contract.store import LONG, ORDERS, SHORT, StoreContract, step
from seriatim.contract.store_child import StoreChild
from seriatim.core.errors import ConfigurationError, StoreError, StoreUnavailable
from seriatim.core.faults import Fault
from seriatim.core.store import open_store


class TestSqliteStore(StoreContract):
    @pytest.fixture
    def store_url(self, tmp_path):
        return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def url(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    with contextlib.closing(open_store(url)) as store:
        store.init()
        store.declare(ORDERS, ["0"])
    return url


@pytest.fixture
def open_url():
    with contextlib.ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(contextlib.closing(open_store(*arguments, **options)))


@pytest.fixture
def child(url):
    with StoreChild(url, patience_s=20.0) as child:
        yield child


def fault_of(session, action):
    with pytest.raises(StoreUnavailable) as caught:
        action()
    return session.classify(caught.value.__cause__)


# -- the turn to write


def test_a_process_stopped_inside_its_transaction_is_named(url, open_url, child):
    claimed = child.claim(ORDERS, "0", LONG)
    child.begin(ORDERS, step(claimed.row), LONG, "b")
    child.freeze()
    with contextlib.closing(open_url(url, lock_timeout_s=0.2).session()) as session:
        with pytest.raises(StoreUnavailable, match=f"busy.*{child.pid}"):
            session.leases.claim(ORDERS, "0", "me", LONG)
        assert session.leases.owners(ORDERS)[0].owner == claimed.row.owner, "reading goes on"
    child.thaw()


def test_a_process_killed_inside_its_transaction_gives_its_turn_back(url, open_url, child):
    claimed = child.claim(ORDERS, "0", SHORT)
    child.begin(ORDERS, step(claimed.row), SHORT, "b")
    child.kill()
    with contextlib.closing(open_url(url, lock_timeout_s=5.0).session()) as session, session.transaction():
        assert session.leases.hold_row(ORDERS, "0").effect == 1


def test_a_session_that_waited_in_vain_works_again(url, open_url):
    store = open_url(url, lock_timeout_s=0.05)
    with contextlib.closing(store.session()) as one, contextlib.closing(store.session()) as two:
        with one.transaction(), pytest.raises(StoreUnavailable), two.transaction():
            pass
        with two.transaction():
            two.leases.hold_row(ORDERS, "0")


def test_someone_who_writes_beside_the_lock_is_waited_for_and_is_the_stores_fault(url, open_url, tmp_path, monkeypatch):
    """Another program on the same file: its lock is SQLite's own."""
    stranger = sqlite3.connect(tmp_path / "store.db", isolation_level=None, check_same_thread=False)
    stranger.execute("BEGIN IMMEDIATE")
    done = threading.Timer(0.3, lambda: stranger.execute("COMMIT"))
    done.start()
    with contextlib.closing(open_url(url).session()) as session, session.transaction():
        session.leases.hold_row(ORDERS, "0")
    done.join()
    stranger.close()


# -- files


def test_the_store_needs_a_file(open_url):
    for url in ("sqlite://", "sqlite:///:memory:"):
        with pytest.raises(ConfigurationError, match="needs a file"):
            open_url(url)


def test_a_missing_folder_is_named(open_url, tmp_path):
    with pytest.raises(ConfigurationError, match=f"{tmp_path}/nowhere doesn't exist"):
        open_url(f"sqlite:///{tmp_path}/nowhere/store.db")


def test_a_file_that_is_no_database_is_the_stores_fault(open_url, tmp_path):
    (tmp_path / "store.db").write_bytes(b"this is a letter, not a database" * 100)
    store = open_url(f"sqlite:///{tmp_path}/store.db")
    for refuses in (store.init, store.check):
        with pytest.raises(StoreUnavailable, match="not a database"):
            refuses()


def test_a_store_opened_for_reading_alone_is_the_stores_fault(url, open_url):
    """As after a file system was remounted read-only."""
    with contextlib.closing(open_url(url).session()) as session:
        session.connection.exec_driver_sql("PRAGMA query_only = ON")
        session.connection.rollback()
        assert fault_of(session, lambda: session.leases.claim(ORDERS, "0", "me", LONG)) is Fault.STORE
        assert session.leases.owners(ORDERS)[0].owner is None, "reading goes on"


def test_a_full_disk_is_the_stores_fault_and_nothing_is_kept(url, open_url):
    """P10: and when there is room again, the session goes on."""
    with contextlib.closing(open_url(url).session()) as session:
        session.connection.exec_driver_sql("PRAGMA max_page_count = 40")
        session.connection.rollback()
        with session.transaction():
            session.run(text("CREATE TABLE ballast (bytes BLOB)"))

        def fill():
            with session.transaction():
                session.leases.hold_row(ORDERS, "0")
                for _ in range(200):
                    session.run(text("INSERT INTO ballast VALUES (zeroblob(4000))"))

        assert fault_of(session, fill) is Fault.STORE
        assert session.leases.owners(ORDERS)[0].effect == 0
        session.connection.exec_driver_sql("PRAGMA max_page_count = 100000")
        session.connection.rollback()
        fill()
        assert session.leases.owners(ORDERS)[0].effect == 1


def test_commits_are_durable_and_readers_wait_for_nobody(url, open_url):
    with contextlib.closing(open_url(url).session()) as session:
        connection = session.connection
        pragmas = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")]
        connection.rollback()
    assert pragmas == ["wal", 2]


def test_a_reader_keeps_its_picture_while_others_write(url, open_url):
    store = open_url(url)
    with contextlib.closing(store.session()) as session, store.read() as reader:
        effects = text("SELECT effect FROM partition_owner")
        assert reader.execute(effects).scalar() == 0
        with session.transaction():
            session.leases.hold_row(ORDERS, "0")
        assert reader.execute(effects).scalar() == 0


def test_a_clock_can_stand_in_for_the_hosts(url, open_url):
    with contextlib.closing(open_url(url, clock=lambda: 1_234_567_890_123_456).session()) as session:
        assert session.now() == 1_234_567_890_123_456
        claimed = session.leases.claim(ORDERS, "0", "me", 1_000_000)
        assert claimed.row.lease_until == 1_234_567_891_123_456


def test_an_error_names_the_store_and_keeps_the_drivers_own(url, open_url):
    with contextlib.closing(open_url(url).session()) as session:
        with pytest.raises(StoreError, match=r"store sqlite:///.*no such table: nowhere") as caught:
            session.run(text("SELECT * FROM nowhere"))
        assert isinstance(caught.value.__cause__.orig, sqlite3.OperationalError)
