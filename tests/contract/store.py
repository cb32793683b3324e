"""The contract of a store, as stories. A store is done when it passes.

Derive a class, say where an empty database is, and run it with pytest::

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store_url(self, tmp_path):
            return f"mystore://{tmp_path}/store"

The database is the test's own, and may hold nothing but what the test makes. Leases are short and run out by the
database's own clock, which is waited for. What must happen in other processes opens the store by the same URL.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text, update

from seriatim.contract.store_child import StoreChild
from seriatim.core.decision import KeyStanding, Outcome, Place, Reason, Status, Waiting
from seriatim.core.errors import ConfigurationError, SchemaMismatch, StoreError
from seriatim.core.faults import Fault
from seriatim.core.message import MAX_KEY, Position
from seriatim.core.store import open_store
from seriatim.core.store.port import (
    MICROSECOND,
    Claimed,
    Fenced,
    FenceStep,
    Finish,
    NewRecord,
    OwnerRow,
    ParkedMessage,
    Scope,
    Session,
    Store,
    Writes,
)
from seriatim.core.store.schema import idempotent_record, parked_key, parked_message, schema_version

ORDERS = Scope("warehouse", "orders")
SHORT = 300_000  #: a lease that runs out while a test waits
LONG = 60 * MICROSECOND
D1, D2 = b"\x00" * 31 + b"1", b"\xff" * 32

#: Pairs that a careless collation takes for one.
LOOK_ALIKES = [
    ("Order-A", "order-a"),
    ("cafe", "café"),
    ("caf\u00e9", "cafe\u0301"),
    ("🙂", "🙃"),
    ("Strasse", "Straße"),
    ("k", "k "),
    ("k", " k"),
    ("1", "\uff11"),
    ("i", "İ"),
    ("a_", "a%"),
]
ODD_KEYS = ["🙂" * MAX_KEY, "订" * MAX_KEY, "a\n\t'\"\\;--", "%_", "\u200b", "x" * MAX_KEY]


def record(biz_key: str, **changes: Any) -> NewRecord:
    whole = NewRecord(biz_key, "order.paid", "k", "0", 7, D1, None, 1_700_000_000_123_456, 1_700_000_000_654_321)
    return replace(whole, **changes)


def parked(biz_key: str | None, key: str | None = "k", **changes: Any) -> ParkedMessage:
    whole = ParkedMessage(
        partition="0",
        sharding_key=key,
        biz_key=biz_key,
        place=Place.QUEUE,
        reason=Reason.BEHIND,
        type="order.paid",
        seq=None,
        headers={},
        body=b"{}",
        digest=D1,
        produced_at=1,
        received_at=2,
    )
    return replace(whole, **changes)


class StoreContract:
    """Stories that hold for every store."""

    patience_s = 20.0  #: how long anything is waited for
    fair_s = 2.0  #: how long processes compete for their turns
    fair_share = 0.25  #: of an even share, what every one of them must get

    # -- what a store supplies

    @pytest.fixture
    def store_url(self) -> str:
        """The URL of an empty database."""
        raise NotImplementedError

    def open_store(self, url: str) -> Store:
        """Open the store at a URL."""
        return open_store(url)

    # -- the scene

    @pytest.fixture
    def empty_store(self, store_url: str) -> Iterator[Store]:
        with contextlib.closing(self.open_store(store_url)) as store:
            yield store

    @pytest.fixture
    def store(self, empty_store: Store) -> Store:
        empty_store.init()
        empty_store.declare(ORDERS, ["0", "1", "2"])
        return empty_store

    @pytest.fixture
    def open_session(self, store: Store) -> Iterator[Callable[[], Session]]:
        with contextlib.ExitStack() as stack:
            yield lambda: stack.enter_context(contextlib.closing(store.session()))

    @pytest.fixture
    def session(self, open_session: Callable[[], Session]) -> Session:
        return open_session()

    @pytest.fixture
    def open_child(self, store: Store, store_url: str) -> Iterator[Callable[[], StoreChild]]:
        assert store.partitions(ORDERS.topic), "a child finds what it works on"
        with contextlib.ExitStack() as stack:

            def open_child() -> StoreChild:
                child = StoreChild(store_url, self.patience_s)
                stack.callback(child.kill)
                return child

            yield open_child

    def await_claim(self, session: Session, partition: str = "0", ttl: int = LONG) -> Claimed:
        """Claim a partition as soon as its lease is over."""
        deadline = time.monotonic() + self.patience_s
        while time.monotonic() < deadline:
            claimed = session.leases.claim(ORDERS, partition, "next", ttl)
            if claimed is not None:
                return claimed
            time.sleep(0.01)
        raise AssertionError(f"the lease of {partition} never ran out")

    # -- tables

    def test_tables_are_made_once(self, empty_store: Store) -> None:
        assert empty_store.init() is True
        assert empty_store.init() is False
        empty_store.check()

    def test_many_may_make_the_tables_at_once(self, empty_store: Store, store_url: str) -> None:
        made: list[bool | BaseException] = []

        def make() -> None:
            with contextlib.closing(self.open_store(store_url)) as store:
                try:
                    made.append(store.init())
                except StoreError as error:
                    made.append(error)

        run_together([make] * 4, self.patience_s)
        assert not [error for error in made if isinstance(error, BaseException)]
        empty_store.check()

    def test_a_store_without_tables_says_what_to_do(self, empty_store: Store) -> None:
        with pytest.raises(SchemaMismatch, match="seriatim init"):
            empty_store.check()

    def test_a_missing_table_is_named(self, store: Store, session: Session) -> None:
        with session.transaction():
            parked_key.drop(session.connection)
        with pytest.raises(SchemaMismatch, match="parked_key"):
            store.check()

    @pytest.mark.parametrize("version", [0, 99])
    def test_tables_of_another_version_are_refused(self, store: Store, session: Session, version: int) -> None:
        with session.transaction():
            session.run(update(schema_version).values(version=version))
        for refuses in (store.check, store.init):
            with pytest.raises(SchemaMismatch, match=f"version {version}"):
                refuses()

    def test_looking_at_a_store_waits_for_no_writer(self, store: Store, session: Session) -> None:
        with session.transaction():
            session.leases.hold_row(ORDERS, "0")
            began = time.monotonic()
            store.check()
            assert store.init() is False
            assert store.partitions("orders") == ("0", "1", "2")
            with store.read() as connection:
                connection.execute(text("SELECT count(*) FROM partition_owner")).scalar()
            assert time.monotonic() - began < 2

    # -- declarations

    def test_partitions_are_told_in_their_order(self, store: Store) -> None:
        store.declare(Scope("warehouse", "events"), ["10", "9", "broker-a:3"])
        assert store.partitions("events") == ("10", "9", "broker-a:3")
        assert store.partitions("unheard of") == ()

    def test_the_same_declaration_changes_nothing(self, store: Store, session: Session) -> None:
        with session.transaction():
            session.leases.hold_row(ORDERS, "0", 5)
        store.declare(ORDERS, ["0", "1", "2"])
        assert [row.effect for row in session.leases.owners(ORDERS)] == [5, 0, 0]

    @pytest.mark.parametrize("other", [["0", "1"], ["0", "1", "2", "3"], ["2", "1", "0"], ["0", "1", "x"]])
    def test_another_list_of_partitions_is_refused(self, store: Store, other: list[str]) -> None:
        with pytest.raises(ConfigurationError, match=r"'orders'.*store knows"):
            store.declare(Scope("another group", "orders"), other)
        assert store.partitions("orders") == ("0", "1", "2")

    def test_groups_and_topics_are_apart(self, store: Store, session: Session) -> None:
        """FC-I9: one biz_key, one sharding key and one partition id mean four things in two groups and two topics."""
        scopes = [Scope(group, topic) for group in ("warehouse", "billing") for topic in ("orders", "returns")]
        for scope in scopes:
            store.declare(scope, ["0", "1", "2"])
        for number, scope in enumerate(scopes):
            claimed = session.leases.claim(scope, "0", scope.group, LONG)
            assert claimed is not None
            with session.transaction():
                assert not session.leases.fence(scope, [step(claimed.row, position=Position(str(number), "i"))], LONG)
                session.records.claim(scope, [record("b", digest=bytes([number]) * 32)], 1)
                writes = Writes(
                    parks=[parked("w", digest=bytes([number]) * 32), parked("c", conflict=True, place=Place.CLOSED)],
                    keys={"k": ("0", KeyStanding(depth=number + 1, due_at=number))},
                )
                session.write(scope, writes, 1)
        for number, scope in enumerate(scopes):
            assert session.records.look_up(scope, ["b"])["b"].digest == bytes([number]) * 32
            assert session.parking.waiting(scope, ["w"]) == {"w": Waiting("order.paid", bytes([number]) * 32)}
            assert session.parking.keys(scope, ["k"])["k"].depth == number + 1
            assert session.parking.conflicts(scope, "c") == [D1]
            assert len(session.parking.rows(scope, "k", Place.QUEUE, 9)) == 1
            assert session.leases.owners(scope)[0].position == Position(str(number), "i")

    # -- members

    def test_members_that_beat_are_alive(self, open_session: Callable[[], Session]) -> None:
        one, two = open_session(), open_session()
        assert one.leases.beat(ORDERS, "b", LONG) == ["b"]
        assert two.leases.beat(ORDERS, "a", LONG) == ["a", "b"]
        assert one.leases.beat(Scope("billing", "orders"), "c", LONG) == ["c"]
        two.leases.leave(ORDERS, "a")
        assert one.leases.beat(ORDERS, "b", LONG) == ["b"]

    def test_a_silent_member_is_dead_when_its_time_is_over(self, session: Session) -> None:
        session.leases.beat(ORDERS, "silent", SHORT)
        wait_until(lambda: session.leases.beat(ORDERS, "alive", LONG) == ["alive"], self.patience_s)

    # -- claims

    def test_a_claim_gives_a_token_an_epoch_and_a_lease(self, session: Session) -> None:
        before = session.now()
        claimed = session.leases.claim(ORDERS, "0", "one", LONG)
        assert claimed is not None
        assert (claimed.row.member, claimed.row.epoch, claimed.row.effect) == ("one", 1, 0)
        assert claimed.row.owner
        assert before + LONG <= claimed.row.lease_until <= session.now() + LONG
        assert session.leases.owners(ORDERS)[0] == claimed.row

    def test_a_living_lease_cant_be_claimed_by_anybody(self, open_session: Callable[[], Session]) -> None:
        one, two = open_session(), open_session()
        assert one.leases.claim(ORDERS, "0", "one", LONG)
        for wait in (False, True):
            assert two.leases.claim(ORDERS, "0", "two", LONG, wait=wait) is None
            assert one.leases.claim(ORDERS, "0", "one", LONG, wait=wait) is None
        assert two.leases.claim(ORDERS, "1", "two", LONG)

    def test_an_unknown_partition_cant_be_claimed(self, session: Session) -> None:
        assert session.leases.claim(ORDERS, "unheard of", "one", LONG) is None

    def test_a_released_lease_is_free_and_known_as_released(self, session: Session) -> None:
        first = session.leases.claim(ORDERS, "0", "one", LONG)
        assert first is not None
        assert session.leases.release(ORDERS, "0", owner_of(first.row), first.row.epoch)
        second = session.leases.claim(ORDERS, "0", "two", LONG)
        assert second is not None
        assert second.released
        assert second.row.epoch == first.row.epoch + 1
        assert second.row.owner != first.row.owner

    def test_a_lease_that_ran_out_is_free_and_known_as_never_released(self, session: Session) -> None:
        assert session.leases.claim(ORDERS, "0", "one", SHORT)
        assert not self.await_claim(session).released

    def test_a_lease_begins_when_it_is_got_and_not_when_it_was_asked_for(
        self, open_session: Callable[[], Session]
    ) -> None:
        """A claim that waited for the row isn't born expired (F22)."""
        holder, waiter = open_session(), open_session()
        got: list[Claimed | None] = []
        thread = threading.Thread(target=lambda: got.append(waiter.leases.claim(ORDERS, "0", "w", SHORT, wait=True)))
        with holder.transaction():
            holder.leases.hold_row(ORDERS, "0")
            thread.start()
            thread.join(2 * SHORT / MICROSECOND)
            assert thread.is_alive(), "it should wait for the row"
        thread.join(self.patience_s)
        assert got[0] is not None
        assert got[0].row.lease_until > holder.now()

    def test_only_one_of_many_gets_a_free_lease(self, open_session: Callable[[], Session]) -> None:
        sessions = [open_session() for _ in range(6)]
        got: list[Claimed | None] = []

        def claim(one: Session) -> None:
            got.append(one.leases.claim(ORDERS, "0", "m", LONG, wait=True))

        run_together([partial(claim, one) for one in sessions], self.patience_s)
        assert len([claimed for claimed in got if claimed is not None]) == 1

    # -- renewal and release

    def test_a_renewed_lease_lasts(self, open_session: Callable[[], Session]) -> None:
        one, two = open_session(), open_session()
        lease = 10 * SHORT  # a busy machine may pause between two renewals
        claimed = one.leases.claim(ORDERS, "0", "one", lease)
        assert claimed is not None
        end = time.monotonic() + 1.3 * lease / MICROSECOND
        while time.monotonic() < end:
            assert one.leases.renew(ORDERS, [("0", owner_of(claimed.row), claimed.row.epoch)], lease) == set()
            assert two.leases.claim(ORDERS, "0", "two", LONG) is None

    def test_a_renewal_tells_what_is_lost(self, session: Session) -> None:
        one = session.leases.claim(ORDERS, "0", "one", SHORT)
        two = session.leases.claim(ORDERS, "1", "one", LONG)
        assert one is not None
        assert two is not None
        self.await_claim(session, "0")
        claims = [("0", owner_of(one.row), one.row.epoch), ("1", owner_of(two.row), two.row.epoch)]
        assert session.leases.renew(ORDERS, claims, LONG) == {"0"}

    def test_a_renewal_changes_nothing_but_the_lease(self, session: Session) -> None:
        claimed = session.leases.claim(ORDERS, "0", "one", SHORT)
        assert claimed is not None
        session.leases.renew(ORDERS, [("0", owner_of(claimed.row), claimed.row.epoch)], LONG)
        after = session.leases.owners(ORDERS)[0]
        assert after.lease_until > claimed.row.lease_until
        assert replace(after, lease_until=0) == replace(claimed.row, lease_until=0)

    def test_a_lease_that_is_anothers_cant_be_released(self, session: Session) -> None:
        first = session.leases.claim(ORDERS, "0", "one", SHORT)
        assert first is not None
        second = self.await_claim(session)
        assert not session.leases.release(ORDERS, "0", owner_of(first.row), first.row.epoch)
        assert not session.leases.release(ORDERS, "0", owner_of(second.row), first.row.epoch)
        assert session.leases.owners(ORDERS)[0] == second.row

    def test_a_pause_says_why_until_it_is_over(self, session: Session) -> None:
        claimed = session.leases.claim(ORDERS, "0", "one", LONG)
        assert claimed is not None
        session.leases.pause(ORDERS, "0", "somebody else", "no")
        assert session.leases.owners(ORDERS)[0].paused is None
        session.leases.pause(ORDERS, "0", owner_of(claimed.row), "trimmed beyond 17 – 订单")
        assert session.leases.owners(ORDERS)[0].paused == "trimmed beyond 17 – 订单"
        session.leases.pause(ORDERS, "0", owner_of(claimed.row), None)
        assert session.leases.owners(ORDERS)[0].paused is None

    # -- the fence

    def test_a_fence_that_holds_advances_the_stamp_and_the_lease(self, session: Session) -> None:
        claimed = session.leases.claim(ORDERS, "0", "one", SHORT)
        assert claimed is not None
        with session.transaction():
            moved = step(claimed.row, advance=7, position=Position("42", "log-1"), read_through=99)
            assert session.leases.fence(ORDERS, [moved], LONG) == {}
        row = session.leases.owners(ORDERS)[0]
        assert (row.effect, row.position, row.read_through) == (7, Position("42", "log-1"), 99)
        assert row.lease_until > claimed.row.lease_until

    def test_a_fence_without_a_position_leaves_it_and_read_through_never_goes_back(self, session: Session) -> None:
        claimed = session.leases.claim(ORDERS, "0", "one", LONG)
        assert claimed is not None
        row = claimed.row
        for position, read_through in ((Position("42", "log-1"), 99), (None, 50), (None, None)):
            with session.transaction():
                moved = step(row, position=position, read_through=read_through)
                assert session.leases.fence(ORDERS, [moved], LONG) == {}
            row = session.leases.owners(ORDERS)[0]
            assert (row.position, row.read_through) == (Position("42", "log-1"), 99)

    def test_a_fence_of_another_owner_is_lost(self, session: Session) -> None:
        old = session.leases.claim(ORDERS, "0", "one", SHORT)
        assert old is not None
        new = self.await_claim(session)
        for stale in (
            step(old.row),
            step(new.row, owner=owner_of(old.row)),
            step(new.row, epoch=old.row.epoch),
            step(new.row, partition="unheard of"),
        ):
            with session.transaction():
                assert session.leases.fence(ORDERS, [stale], LONG) == {stale.partition: Fenced.LOST}
        assert session.leases.owners(ORDERS)[0] == new.row

    def test_a_released_lease_cant_be_fenced(self, session: Session) -> None:
        claimed = session.leases.claim(ORDERS, "0", "one", LONG)
        assert claimed is not None
        session.leases.release(ORDERS, "0", owner_of(claimed.row), claimed.row.epoch)
        with session.transaction():
            assert session.leases.fence(ORDERS, [step(claimed.row)], LONG) == {"0": Fenced.LOST}

    @pytest.mark.parametrize("changes", [1, 2, 107])
    @pytest.mark.parametrize("advance", [1, 2, 107])
    def test_a_fence_notices_every_change_by_others(self, session: Session, changes: int, advance: int) -> None:
        """Also one that raised the stamp by just as much as the fence would have."""
        claimed = session.leases.claim(ORDERS, "0", "one", LONG)
        assert claimed is not None
        with session.transaction():
            assert session.leases.hold_row(ORDERS, "0", changes).effect == changes
        with session.transaction():
            fenced = step(claimed.row, advance=advance, position=Position("9", "i"))
            assert session.leases.fence(ORDERS, [fenced], LONG) == {"0": Fenced.MOVED}
        assert session.leases.owners(ORDERS)[0].position is None

    def test_a_fence_over_several_tells_which_of_them_broke(self, session: Session) -> None:
        rows = {}
        for partition in "012":
            claimed = session.leases.claim(ORDERS, partition, "one", LONG)
            assert claimed is not None
            rows[partition] = claimed.row
        with session.transaction():
            assert session.leases.fence(ORDERS, [step(row) for row in rows.values()], LONG) == {}
        rows = {row.partition: row for row in session.leases.owners(ORDERS)}
        with session.transaction():
            session.leases.hold_row(ORDERS, "1")
        session.leases.release(ORDERS, "2", owner_of(rows["2"]), rows["2"].epoch)
        with undone(session):
            broken = session.leases.fence(ORDERS, [step(row) for row in rows.values()], LONG)
            assert broken["1"] is Fenced.MOVED
            assert broken["2"] is Fenced.LOST

    def test_an_operator_and_the_owner_wait_for_each_other(self, open_session: Callable[[], Session]) -> None:
        """Whoever changes a key holds its row: what is done under it is done by one at a time."""
        owner, operator = open_session(), open_session()
        claimed = owner.leases.claim(ORDERS, "0", "one", LONG)
        assert claimed is not None
        order: list[str] = []

        def operate() -> None:
            with operator.transaction():
                operator.leases.hold_row(ORDERS, "0")
                order.append("operator")

        thread = threading.Thread(target=operate)
        with owner.transaction():
            assert not owner.leases.fence(ORDERS, [step(claimed.row)], LONG)
            thread.start()
            thread.join(0.2)
            order.append("owner")
        thread.join(self.patience_s)
        assert order == ["owner", "operator"]

    def test_a_long_transaction_can_begin_its_leases_anew(self, session: Session) -> None:
        claimed = session.leases.claim(ORDERS, "0", "one", SHORT)
        assert claimed is not None
        with session.transaction():
            assert not session.leases.fence(ORDERS, [step(claimed.row)], SHORT)
            session.leases.prolong(ORDERS, ["0"], LONG, since=session.now() - LONG)
        assert session.leases.owners(ORDERS)[0].lease_until > session.now() + LONG // 2

    # -- transactions

    def test_what_is_raised_inside_undoes_everything(self, session: Session) -> None:
        claimed = session.leases.claim(ORDERS, "0", "one", LONG)
        assert claimed is not None
        with undone(session):
            assert not session.leases.fence(ORDERS, [step(claimed.row, position=Position("1", "i"))], LONG)
            session.records.claim(ORDERS, [record("b")], 1)
            session.write(ORDERS, Writes(parks=[parked("w")], keys={"k": ("0", KeyStanding(depth=1))}), 1)
        assert session.leases.owners(ORDERS)[0] == claimed.row
        assert session.records.look_up(ORDERS, ["b"]) == {}
        assert session.parking.waiting(ORDERS, ["w"]) == {}
        assert session.parking.keys(ORDERS, ["k"]) == {}

    def test_others_see_nothing_before_the_commit_and_everything_after(
        self, open_session: Callable[[], Session]
    ) -> None:
        writer, reader = open_session(), open_session()
        with writer.transaction():
            writer.records.claim(ORDERS, [record("b")], 1)
            assert writer.records.look_up(ORDERS, ["b"])
            assert reader.records.look_up(ORDERS, ["b"]) == {}
        assert reader.records.look_up(ORDERS, ["b"])

    def test_a_released_savepoint_doesnt_outlive_its_transaction(self, session: Session) -> None:
        with undone(session):
            session.savepoint("seriatim_inner")
            session.records.claim(ORDERS, [record("b")], 1)
            session.release("seriatim_inner")
        assert session.records.look_up(ORDERS, ["b"]) == {}

    def test_a_savepoint_undoes_what_came_after_it_as_often_as_asked(self, session: Session) -> None:
        with session.transaction():
            session.records.claim(ORDERS, [record("kept")], 1)
            session.savepoint("here")
            for biz_key in ("one", "two"):
                session.records.claim(ORDERS, [record(biz_key)], 1)
                session.rollback_to("here")
            session.release("here")
            session.records.claim(ORDERS, [record("later")], 1)
        found = session.records.look_up(ORDERS, ["kept", "one", "two", "later"])
        assert sorted(found) == ["kept", "later"]

    def test_a_savepoint_that_is_gone_is_an_error(self, session: Session) -> None:
        with pytest.raises(StoreError), session.transaction():
            session.release("never set")
        with session.transaction():
            session.records.claim(ORDERS, [record("b")], 1)

    def test_a_failed_statement_leaves_a_session_that_works(self, session: Session) -> None:
        with pytest.raises(StoreError):
            session.run(text("SELECT * FROM there_is_no_such_table"))
        with pytest.raises(StoreError), session.transaction():
            session.run(text("SELECT * FROM there_is_no_such_table"))
        with session.transaction():
            session.records.claim(ORDERS, [record("b")], 1)
        assert session.records.look_up(ORDERS, ["b"])

    def test_a_read_leaves_no_old_picture_behind(self, open_session: Callable[[], Session]) -> None:
        writer, reader = open_session(), open_session()
        for number in range(3):
            assert len(reader.leases.owners(ORDERS)) == 3
            assert reader.leases.owners(ORDERS)[0].effect == number
            with writer.transaction():
                writer.leases.hold_row(ORDERS, "0")

    def test_the_clock_goes_on_in_microseconds(self, session: Session) -> None:
        first = session.now()
        assert abs(first - time.time() * MICROSECOND) < 3600 * MICROSECOND
        wait_until(lambda: session.now() > first, self.patience_s)

    def test_a_broken_statement_is_its_writers_fault(self, store: Store, session: Session) -> None:
        with pytest.raises(StoreError) as caught:
            session.run(text("SELEKT 1"))
        assert caught.value.__cause__ is not None
        assert store.classify(caught.value.__cause__) is Fault.HANDLER
        assert session.classify(caught.value.__cause__) is Fault.HANDLER

    def test_closing_is_idempotent(self, store: Store) -> None:
        session = store.session()
        session.now()
        session.close()
        session.close()
        store.close()
        store.close()

    # -- records

    def test_a_claimed_record_is_at_status_1(self, session: Session) -> None:
        with session.transaction():
            session.records.claim(ORDERS, [record("b"), record("a", type=None, sharding_key=None, seq=None)], 1)
            found = session.records.look_up(ORDERS, ["a", "b", "c"])
        assert sorted(found) == ["a", "b"]
        assert (found["b"].status, found["b"].outcome, found["b"].type) == (Status.PROCESSING, None, "order.paid")
        assert (found["b"].digest, found["b"].first_digest, found["b"].crash_attempts) == (D1, None, 0)

    def test_every_field_of_a_record_comes_back(self, session: Session) -> None:
        """FC-T1: times keep their microseconds, bodies their bytes."""
        body, response = b"\x00a\x00\xff\xfe" * 1000, "🙂 \x00 订".encode()
        new = record("b", type="тип🙂", sharding_key="🙂" * MAX_KEY, partition="broker-a:3", seq=2**62, body=body)
        with session.transaction():
            session.records.claim(ORDERS, [new], 1_700_000_000_000_001)
            finish = Finish("b", Status.SUCCESS, Outcome.STALE, response, attempts=3, effect=2**40, illegal=True)
            session.write(ORDERS, Writes(finishes={"b": finish}), 1_700_000_000_999_999)
            assert session.records.attempts(ORDERS, "b") == 3
            assert session.records.response(ORDERS, "b") == response
        row = session.run(idempotent_record.select()).mappings().one()
        assert (row["message_type"], row["sharding_key"]) == ("тип🙂", "🙂" * MAX_KEY)
        assert row["partition_id"] == "broker-a:3"
        assert (row["seq"], row["effect"], bytes(row["request_body"])) == (2**62, 2**40, body)
        assert (row["status"], row["outcome"], bool(row["illegal"])) == (2, "stale", True)
        assert (row["produced_at"], row["received_at"]) == (1_700_000_000_123_456, 1_700_000_000_654_321)
        assert (row["create_time"], row["update_time"]) == (1_700_000_000_000_001, 1_700_000_000_999_999)
        assert row["settled_at"] == 1_700_000_000_999_999

    def test_a_record_remembers_what_it_was_first_judged_to_be(self, session: Session) -> None:
        with session.transaction():
            session.records.claim(ORDERS, [record("b")], 1)
            for status, outcome in ((Status.FAILED, Outcome.EARLY), (Status.SUCCESS, Outcome.APPLIED)):
                session.write(ORDERS, Writes(finishes={"b": Finish("b", status, outcome)}), 1)
        row = session.run(idempotent_record.select()).mappings().one()
        assert (row["outcome"], row["first_outcome"]) == ("applied", "early")

    def test_a_failed_record_isnt_settled_until_it_is_final(self, session: Session) -> None:
        with session.transaction():
            session.records.claim(ORDERS, [record("b")], 1)
        for outcome, settled in ((Outcome.PARKED, None), (Outcome.REJECTED, 9)):
            with session.transaction():
                session.write(ORDERS, Writes(finishes={"b": Finish("b", Status.FAILED, outcome)}), 9)
            assert session.run(idempotent_record.select()).mappings().one()["settled_at"] == settled

    def test_a_finish_of_what_isnt_claimed_is_an_error_and_nothing_is_kept(self, session: Session) -> None:
        with session.transaction():
            session.records.claim(ORDERS, [record("b")], 1)
        finishes = {name: Finish(name, Status.SUCCESS, Outcome.APPLIED) for name in ("b", "gone")}
        with pytest.raises(StoreError), session.transaction():
            session.write(ORDERS, Writes(finishes=finishes), 1)
        assert session.records.look_up(ORDERS, ["b"])["b"].status is Status.PROCESSING

    def test_a_claim_can_be_taken_back(self, session: Session) -> None:
        with session.transaction():
            session.records.claim(ORDERS, [record("a"), record("b")], 1)
            session.write(ORDERS, Writes(unclaims={"b"}), 1)
        assert sorted(session.records.look_up(ORDERS, ["a", "b"])) == ["a"]

    def test_crash_marks_are_counted(self, session: Session) -> None:
        for count in (1, 2, 3):
            with session.transaction():
                assert session.records.mark_crash(ORDERS, record("b"), 1) == count
        found = session.records.look_up(ORDERS, ["b"])["b"]
        assert (found.status, found.crash_attempts) == (Status.PROCESSING, 3)

    def test_an_unknown_record_has_no_attempts_and_no_response(self, session: Session) -> None:
        assert session.records.attempts(ORDERS, "b") == 0
        assert session.records.response(ORDERS, "b") is None
        assert session.records.look_up(ORDERS, []) == {}

    def test_a_large_response_comes_back(self, session: Session) -> None:
        response = bytes(range(256)) * 4096
        with session.transaction():
            session.records.claim(ORDERS, [record("b")], 1)
            finish = Finish("b", Status.SUCCESS, Outcome.APPLIED, response)
            session.write(ORDERS, Writes(finishes={"b": finish}), 1)
        assert session.records.response(ORDERS, "b") == response

    # -- keys compare exactly

    @pytest.mark.parametrize(("one", "other"), LOOK_ALIKES)
    def test_keys_that_look_alike_are_two(self, store: Store, session: Session, one: str, other: str) -> None:
        """FC-K1: no case folding, no accents dropped, no normalising, no padding; not in groups and topics either."""
        with session.transaction():
            session.records.claim(ORDERS, [record(one), record(other, digest=D2)], 1)
            writes = Writes(
                parks=[parked(one, one), parked(other, other, digest=D2)],
                keys={one: ("0", KeyStanding(depth=1)), other: ("0", KeyStanding(depth=1, attempts=5))},
            )
            session.write(ORDERS, writes, 1)
        for key, digest, attempts in ((one, D1, 0), (other, D2, 5)):
            found = session.records.look_up(ORDERS, [key])
            assert {name: one.digest for name, one in found.items()} == {key: digest}
            assert session.parking.waiting(ORDERS, [key]) == {key: Waiting("order.paid", digest)}
            assert session.parking.keys(ORDERS, [key])[key].attempts == attempts
            assert [row.biz_key for row in session.parking.rows(ORDERS, key, Place.QUEUE, 9)] == [key]
        store.declare(Scope(one, "topic"), [one, other])
        store.declare(Scope(other, "topic"), [one, other])
        assert {row.partition for row in session.leases.owners(Scope(one, "topic"))} == {one, other}

    @pytest.mark.parametrize("key", ODD_KEYS)
    def test_odd_and_long_keys_come_back(self, session: Session, key: str) -> None:
        with session.transaction():
            session.records.claim(ORDERS, [record(key, sharding_key=key)], 1)
            session.write(ORDERS, Writes(parks=[parked(key, key)], keys={key: ("0", KeyStanding(depth=1))}), 1)
        assert list(session.records.look_up(ORDERS, [key])) == [key]
        assert session.parking.rows(ORDERS, key, Place.QUEUE, 1)[0].sharding_key == key
        assert list(session.parking.keys(ORDERS, [key])) == [key]

    # -- parking

    def test_every_field_of_a_parked_message_comes_back(self, session: Session) -> None:
        whole = parked(
            "🙂" * MAX_KEY,
            "订" * MAX_KEY,
            partition="broker-a:3",
            place=Place.ASIDE,
            reason=Reason.EARLY,
            type="тип🙂",
            seq=2**62,
            headers={"trace": "4bf92f", "note": "naïve 🙂 \t\"'\\", "empty": ""},
            body=b"\x00a\x00\xff\xfe" * 1000,
            digest=D2,
            produced_at=1_700_000_000_123_456,
            received_at=1_700_000_000_654_321,
            wants=("PAID", 'a "b" 订'),
            attempts=3,
            next_attempt_at=1_700_000_009_999_999,
            error_type="ValueError",
            error="it – fails 🙂",
            detail="Traceback\n  File …",
        )
        with session.transaction():
            session.write(ORDERS, Writes(parks=[whole]), 1_700_000_000_777_777)
        (row,) = session.parking.rows(ORDERS, "订" * MAX_KEY, Place.ASIDE, 9)
        assert row.id
        assert replace(row, id=0) == replace(whole, parked_at=1_700_000_000_777_777)

    def test_what_nobody_can_read_is_kept_as_well(self, session: Session) -> None:
        whole = parked(None, None, place=Place.CLOSED, reason=Reason.MALFORMED, type=None, body=b"\xff\x00")
        with session.transaction():
            session.write(ORDERS, Writes(parks=[whole, whole]), 1)
        rows = session.run(parked_message.select()).mappings().all()
        kept = [(row["sharding_key"], row["biz_key"], bytes(row["body"])) for row in rows]
        assert kept == [(None, None, b"\xff\x00")] * 2

    def test_an_error_text_that_is_too_long_is_cut(self, session: Session) -> None:
        long = "🙂\x00" * 200_000
        with session.transaction():
            session.write(ORDERS, Writes(parks=[parked("b", error=long, detail=long, error_type=long)]), 1)
        (row,) = session.parking.rows(ORDERS, "k", Place.QUEUE, 1)
        for kept in (row.error, row.detail, row.error_type):
            assert kept is not None
            assert kept.startswith("🙂")
            assert len(kept) < len(long)

    def test_rows_come_in_the_order_in_which_they_were_parked(self, session: Session) -> None:
        names = [f"m{number}" for number in range(30)]
        for start in range(0, 30, 10):
            with session.transaction():
                session.write(ORDERS, Writes(parks=[parked(name) for name in names[start : start + 10]]), 1)
        assert [row.biz_key for row in session.parking.rows(ORDERS, "k", Place.QUEUE, 100)] == names
        assert [row.biz_key for row in session.parking.rows(ORDERS, "k", Place.QUEUE, 3)] == names[:3]
        assert session.parking.count(ORDERS, "k", Place.QUEUE) == 30
        assert session.parking.count(ORDERS, "k", Place.ASIDE) == 0

    def test_a_row_that_moves_keeps_its_place_in_the_order(self, session: Session) -> None:
        with session.transaction():
            session.write(ORDERS, Writes(parks=[parked("a"), parked("b"), parked("c")]), 1)
        middle = session.parking.rows(ORDERS, "k", Place.QUEUE, 9)[1]
        aside = replace(middle, place=Place.ASIDE, reason=Reason.EARLY, wants=("PAID",), attempts=2, next_attempt_at=5)
        with session.transaction():
            session.write(ORDERS, Writes(moves=[aside]), 2)
        assert session.parking.rows(ORDERS, "k", Place.ASIDE, 9) == [aside]
        assert session.parking.aside_due_at(ORDERS, "k") == 5
        with session.transaction():
            session.write(ORDERS, Writes(moves=[middle]), 3)
        assert [row.biz_key for row in session.parking.rows(ORDERS, "k", Place.QUEUE, 9)] == ["a", "b", "c"]

    def test_a_biz_key_waits_once(self, session: Session) -> None:
        with session.transaction():
            session.write(ORDERS, Writes(parks=[parked("b")]), 1)
        with pytest.raises(StoreError), session.transaction():
            session.write(ORDERS, Writes(parks=[parked("b", "another key")]), 1)
        (row,) = session.parking.rows(ORDERS, "k", Place.QUEUE, 9)
        with session.transaction():
            closed = replace(row, place=Place.CLOSED, reason=Reason.DEAD)
            session.write(ORDERS, Writes(moves=[closed], parks=[parked("b")]), 1)
        assert session.parking.waiting(ORDERS, ["b"]) == {"b": Waiting("order.paid", D1)}

    def test_a_conflict_is_kept_once_for_each_body(self, session: Session) -> None:
        conflict = parked("b", place=Place.CLOSED, reason=Reason.CONFLICT, conflict=True)
        with session.transaction():
            session.write(ORDERS, Writes(parks=[parked("b"), conflict, replace(conflict, digest=D2)]), 1)
        assert sorted(session.parking.conflicts(ORDERS, "b")) == [D1, D2]
        assert session.parking.waiting(ORDERS, ["b"]) == {"b": Waiting("order.paid", D1)}
        with pytest.raises(StoreError), session.transaction():
            session.write(ORDERS, Writes(parks=[conflict]), 1)

    def test_what_is_closed_doesnt_wait(self, session: Session) -> None:
        with session.transaction():
            session.write(ORDERS, Writes(parks=[parked("b", place=Place.CLOSED, reason=Reason.DEAD)] * 2), 1)
        assert session.parking.waiting(ORDERS, ["b"]) == {}

    def test_what_had_its_turn_is_taken_out(self, session: Session) -> None:
        with session.transaction():
            session.write(ORDERS, Writes(parks=[parked("a"), parked("b")]), 1)
        first, _ = session.parking.rows(ORDERS, "k", Place.QUEUE, 9)
        with session.transaction():
            session.write(ORDERS, Writes(unparks=[first.id]), 1)
        assert [row.biz_key for row in session.parking.rows(ORDERS, "k", Place.QUEUE, 9)] == ["b"]

    # -- how keys stand, and what is due

    def test_how_a_key_stands_comes_back(self, session: Session) -> None:
        standings = {
            "blocked": KeyStanding(depth=2, aside=1, attempts=3, due_at=1_700_000_000_123_456),
            "aside": KeyStanding(aside=2, aside_due_at=1_700_000_000_123_457),
            "held": KeyStanding(held=True),
            "stops": KeyStanding(depth=1, due_at=1, stops_partition=True),
            "dead": KeyStanding(depth=1, attempts=8),
        }
        with session.transaction():
            session.write(ORDERS, Writes(keys={key: ("0", one) for key, one in standings.items()}), 1)
        assert session.parking.keys(ORDERS, [*standings, "free"]) == standings

    def test_the_row_of_an_idle_key_goes(self, session: Session) -> None:
        for standing in (KeyStanding(depth=1), KeyStanding(), KeyStanding()):
            with session.transaction():
                session.write(ORDERS, Writes(keys={"k": ("0", standing)}), 1)
        assert session.parking.keys(ORDERS, ["k"]) == {}

    def test_a_held_head_isnt_due_nor_what_is_aside_of_a_blocked_key(self, session: Session) -> None:
        keys = {
            "held": ("0", KeyStanding(depth=1, due_at=1, held=True)),
            "blocked": ("0", KeyStanding(depth=1, due_at=5, aside=1, aside_due_at=1)),
            "held aside": ("0", KeyStanding(aside=1, aside_due_at=1, held=True)),
        }
        with session.transaction():
            session.write(ORDERS, Writes(keys=keys), 1)
        assert session.parking.due_keys(ORDERS, "0", 100, 9) == ["blocked"]
        assert session.parking.aside_due_keys(ORDERS, "0", 100, 9) == []

    def test_due_keys_come_the_longest_due_first(self, session: Session) -> None:
        keys = {f"k{due}": ("0", KeyStanding(depth=1, due_at=due)) for due in (30, 10, 20, 40)}
        keys |= {f"a{due}": ("0", KeyStanding(aside=1, aside_due_at=due)) for due in (33, 11, 22)}
        keys["elsewhere"] = ("1", KeyStanding(depth=1, due_at=5))
        with session.transaction():
            session.write(ORDERS, Writes(keys=keys), 1)
        assert session.parking.due_keys(ORDERS, "0", 30, 9) == ["k10", "k20", "k30"]
        assert session.parking.due_keys(ORDERS, "0", 30, 2) == ["k10", "k20"]
        assert session.parking.due_keys(ORDERS, "0", 9, 9) == []
        assert session.parking.aside_due_keys(ORDERS, "0", 32, 9) == ["a11", "a22"]
        assert session.parking.due_keys(ORDERS, "1", 30, 9) == ["elsewhere"]

    def test_the_outlook_of_a_partition(self, session: Session) -> None:
        nothing = session.parking.outlook(ORDERS, "0")
        assert (nothing.any_keys, nothing.due_at, nothing.aside_due_at, nothing.stopped) == (False, None, None, False)
        keys = {
            "a": ("0", KeyStanding(depth=1, due_at=30)),
            "b": ("0", KeyStanding(aside=1, aside_due_at=20)),
            "c": ("0", KeyStanding(depth=1)),
            "d": ("1", KeyStanding(depth=1, due_at=1, stops_partition=True)),
        }
        with session.transaction():
            session.write(ORDERS, Writes(keys=keys), 1)
        here, there, empty = (session.parking.outlook(ORDERS, partition) for partition in "012")
        assert (here.any_keys, here.due_at, here.aside_due_at, here.stopped) == (True, 30, 20, False)
        assert (there.any_keys, there.due_at, there.stopped) == (True, 1, True)
        assert not empty.any_keys

    # -- many at once

    def test_many_threads_of_two_processes_run_a_biz_key_once(
        self, session: Session, open_child: Callable[[], StoreChild]
    ) -> None:
        """FC-I7, at the store: the row, the look-up and the record in one transaction."""
        biz_keys = [f"b{number}" for number in range(20)]
        children = [open_child(), open_child()]
        for child in children:
            child.tell_race(ORDERS, "0", biz_keys, 8)
        assert sum(child.answer() for child in children) == len(biz_keys)
        found = session.records.look_up(ORDERS, biz_keys)
        assert {one.status for one in found.values()} == {Status.SUCCESS}
        assert len(found) == len(biz_keys)

    def test_processes_that_compete_get_their_turns_fairly(self, open_child: Callable[[], StoreChild]) -> None:
        """N4: nobody starves, and nobody waits for long."""
        children = [open_child() for _ in range(4)]
        for child in children:
            child.claim(ORDERS, "2", LONG)  # it is up
        for child in children:
            child.tell_spin(ORDERS, "0", self.fair_s)
        counts, waits = zip(*(child.answer() for child in children), strict=True)
        assert min(counts) >= self.fair_share * sum(counts) / len(counts), f"turns: {counts}"
        assert max(waits) < self.fair_s, f"the longest waits in seconds: {waits}"

    # -- hand-over

    def test_an_owner_killed_inside_its_transaction_leaves_nothing(
        self, session: Session, open_child: Callable[[], StoreChild]
    ) -> None:
        child = open_child()
        claimed = child.claim(ORDERS, "0", SHORT)
        assert claimed is not None
        child.begin(ORDERS, step(claimed.row, position=Position("9", "i")), SHORT, "b")
        child.kill()
        after = self.await_claim(session)
        assert not after.released
        assert (after.row.effect, after.row.position) == (0, None)
        assert session.records.look_up(ORDERS, ["b"]) == {}

    def test_an_owner_stopped_between_transactions_loses_and_cant_write_any_more(
        self, session: Session, open_child: Callable[[], StoreChild]
    ) -> None:
        """P6: it goes on as if nothing had happened, and the fence refuses it."""
        child = open_child()
        claimed = child.claim(ORDERS, "0", SHORT)
        assert claimed is not None
        child.freeze()
        after = self.await_claim(session)
        child.thaw()
        assert child.fence(ORDERS, step(claimed.row, position=Position("9", "i")), LONG) == {"0": Fenced.LOST}
        assert session.leases.owners(ORDERS)[0] == after.row


class Undo(Exception):
    """Raised to undo a transaction."""


@contextlib.contextmanager
def undone(session: Session) -> Iterator[None]:
    """A transaction that is rolled back at its end."""
    with contextlib.suppress(Undo), session.transaction():
        yield
        raise Undo


def owner_of(row: OwnerRow) -> str:
    assert row.owner is not None
    return row.owner


def step(row: OwnerRow, **changes: Any) -> FenceStep:
    """The fence of a transaction that knows what a row says."""
    return replace(FenceStep(row.partition, owner_of(row), row.epoch, row.effect, advance=1), **changes)


def run_together(jobs: Sequence[Callable[[], object]], patience_s: float) -> None:
    """Run jobs on threads of their own, all begun at once.

    Raises:
        AssertionError: one didn't end in time.
    """
    gate = threading.Barrier(len(jobs))

    def run(job: Callable[[], object]) -> None:
        gate.wait()
        job()

    threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience_s)
    assert not any(thread.is_alive() for thread in threads), "not ended in time"


def wait_until(condition: Callable[[], bool], patience_s: float) -> None:
    """Wait for a condition.

    Raises:
        AssertionError: it didn't come.
    """
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)
