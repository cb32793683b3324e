"""The contract of a keeper of locks, as stories. A keeper is done when it passes.

Derive a class, say where locks are kept and how they are lost, and run it with pytest::

    class TestMyLocks(LockContract):
        @pytest.fixture
        def place(self, tmp_path):
            return Place("mylocks://…", f"sqlite:///{tmp_path}/store.db")

        def lose(self, place, names): ...

The store is the test's own, and is made here. Locks are short-lived, and end by the keeper's own clock.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import pytest

from seriatim.contract.lock_actor import compete
from seriatim.contract.lock_child import LockChild, Place
from seriatim.contract.store import LOOK_ALIKES, ODD_KEYS
from seriatim.core.errors import ConfigurationError, Contention, InvalidMessage
from seriatim.core.locking import Held, LockLost, Locks, LocksClosed, open_locks
from seriatim.core.store import SqlStore, open_store

LONG_S = 30.0  #: a TTL that no test outlives
SHORT_S = 0.9  #: one that ends while a test waits


class Open(Protocol):
    """Opens another keeper of the same locks, as another process would."""

    def __call__(self, *, ttl_s: float = LONG_S) -> Locks: ...


class LockContract:
    """Stories that hold for every keeper of locks."""

    patience_s = 20.0  #: how long anything is waited for

    # -- what a keeper supplies

    @pytest.fixture
    def place(self) -> Place:
        """Where the locks are kept, and the URL of an empty store."""
        raise NotImplementedError

    def lose(self, place: Place, names: Sequence[str]) -> None:
        """Make the keeper forget who has these."""
        raise NotImplementedError

    # -- the scene

    @pytest.fixture
    def store(self, place: Place) -> Iterator[SqlStore]:
        with contextlib.closing(open_store(place.store_url)) as store:
            store.init()
            yield store

    @pytest.fixture
    def opened(self, place: Place, store: SqlStore) -> Iterator[Open]:
        with contextlib.ExitStack() as stack:
            yield lambda ttl_s=LONG_S: stack.enter_context(
                contextlib.closing(open_locks(place.url, store, ttl_s=ttl_s))
            )

    @pytest.fixture
    def locks(self, opened: Open) -> Locks:
        return opened()

    @pytest.fixture
    def others(self, opened: Open) -> Locks:
        return opened()

    @pytest.fixture
    def open_child(self, place: Place, store: SqlStore) -> Iterator[Callable[..., LockChild]]:
        assert not store.init(), "a child finds the tables"
        with contextlib.ExitStack() as stack:

            def open_child(ttl_s: float = LONG_S) -> LockChild:
                child = LockChild(place, ttl_s, self.patience_s)
                stack.callback(child.kill)
                return child

            yield open_child

    def take(self, locks: Locks, *names: str) -> Held:
        """Take what should be free."""
        held = locks.acquire(names, 0)
        assert held is not None, f"{names} should be free"
        return held

    # -- one at a time

    def test_a_name_is_had_by_one_at_a_time(self, locks: Locks, others: Locks) -> None:
        held = self.take(locks, "acct:1")
        assert others.acquire(["acct:1"], 0) is None
        assert locks.acquire(["acct:1"], 0) is None, "not by the same keeper either"
        self.take(others, "acct:2").release()
        held.release()
        self.take(others, "acct:1")

    def test_threads_and_processes_are_never_inside_together(
        self, locks: Locks, open_child: Callable[..., LockChild], tmp_path: Path
    ) -> None:
        names, seconds, folder = ["acct:1", "acct:2"], 1.5, str(tmp_path)
        children = [open_child() for _ in range(2)]
        for child in children:
            child.tell_compete(names, 3, seconds, folder)
        results = [compete(locks, names, 3, seconds, folder), *(child.answer() for child in children)]
        assert sum(met for _, met in results) == 0
        assert all(had for had, _ in results), f"everybody has a turn: {results}"

    def test_all_names_are_had_or_none(self, locks: Locks, others: Locks) -> None:
        held = self.take(locks, "b")
        assert others.acquire(["c", "b", "a"], 0.1) is None
        assert others.acquire(["c", "b", "a"], 0) is None
        for name in ("a", "c"):
            self.take(locks, name).release()
        held.release()
        self.take(others, "a", "b", "c")

    def test_names_in_any_order_wait_in_no_circle(self, locks: Locks, others: Locks) -> None:
        names = ["a", "b", "c", "d"]

        def many(turn: int) -> int:
            mine = names[turn:] + names[:turn]
            had = 0
            for _ in range(8):
                held = (locks if turn % 2 else others).acquire(mine if turn < 2 else mine[::-1], self.patience_s)
                had += held is not None
                if held is not None:
                    held.release()
            return had

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(many, range(4))) == [8] * 4

    def test_who_waits_for_a_name_holds_none_that_comes_after_it(self, locks: Locks, others: Locks) -> None:
        # the one order, seen from outside: whoever waits can be waited for only by names before
        held = self.take(locks, "b")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(others.acquire, ["d", "c", "b", "a"], self.patience_s)
            for _ in range(20):
                time.sleep(0.01)  # while it tries, again and again
                for name in ("c", "d"):
                    self.take(locks, name).release()
            held.release()
            assert waiting.result(self.patience_s) is not None

    def test_a_name_given_twice_is_one(self, locks: Locks) -> None:
        held = locks.acquire(["b", "a", "b"], 0)
        assert held is not None
        assert held.names == ("a", "b")
        assert set(held.fence) == {"a", "b"}

    def test_no_names_are_held_by_everybody(self, locks: Locks, others: Locks) -> None:
        for held in (locks.acquire([], 0), others.acquire([], 0)):
            assert held is not None
            held.check()
            held.release()

    def test_a_batch_of_many_names_is_one_taking(self, locks: Locks, others: Locks) -> None:
        names = [f"acct:{number}" for number in range(250)]
        held = self.take(locks, *names)
        held.check()
        assert others.acquire(["acct:249"], 0) is None
        held.release()
        self.take(others, *names)

    # -- waiting

    def test_the_wait_is_one_for_all_names_and_bounded(self, locks: Locks, others: Locks) -> None:
        for name in ("a", "b", "c"):
            self.take(locks, name)
        began = time.monotonic()
        assert others.acquire(["a", "b", "c"], 0.4) is None
        assert 0.4 <= time.monotonic() - began < 1.4
        began = time.monotonic()
        assert others.acquire(["a", "b", "c"], 0) is None
        assert time.monotonic() - began < 0.4

    def test_who_waits_has_it_soon_after_it_is_given_back(self, locks: Locks, others: Locks) -> None:
        held = self.take(locks, "a")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(others.acquire, ["a", "b"], self.patience_s)
            time.sleep(0.2)  # let it wait; the assertions hold without
            assert not waiting.done()
            held.release()
            began = time.monotonic()
            assert waiting.result(self.patience_s) is not None
        assert time.monotonic() - began < 1.5

    # -- who dies, stands still, or works long

    def test_a_dead_owner_s_lock_ends(self, open_child: Callable[..., LockChild], opened: Open) -> None:
        locks, child = opened(ttl_s=SHORT_S), open_child(ttl_s=SHORT_S)
        assert child.acquire(["a"], 0)
        child.kill()
        began = time.monotonic()
        assert locks.acquire(["a"], 0) is None
        assert locks.acquire(["a"], self.patience_s) is not None
        took_s = time.monotonic() - began
        assert SHORT_S / 3 < took_s < SHORT_S + 1.5, f"it ended after {took_s:.2f} s"

    def test_a_lock_outlives_its_ttl_in_the_hands_of_the_living(self, opened: Open, others: Locks) -> None:
        held = self.take(opened(ttl_s=SHORT_S), "a", "b")
        end = time.monotonic() + 3 * SHORT_S
        while time.monotonic() < end:
            assert others.acquire(["b"], 0.05) is None
        held.check()

    def test_an_owner_that_stood_still_finds_it_lost_and_leaves_the_next_one_alone(
        self, open_child: Callable[..., LockChild], locks: Locks, others: Locks
    ) -> None:
        # field case FC-L3
        child = open_child(ttl_s=SHORT_S)
        assert child.acquire(["a"], 0)
        assert child.still_holds()
        child.freeze()
        held = locks.acquire(["a"], self.patience_s)
        assert held is not None
        child.thaw()
        assert not child.still_holds()
        child.release()
        assert others.acquire(["a"], 0) is None
        held.check()

    def test_a_lock_that_the_keeper_forgot_is_noticed_before_the_commit(self, place: Place, locks: Locks) -> None:
        held = self.take(locks, "a", "b")
        held.check()
        self.lose(place, ["b"])
        for _ in range(2):
            with pytest.raises(LockLost, match="'a' and 1 more"):
                held.check()
        held.release()
        self.take(locks, "a", "b")

    def test_a_lost_lock_is_worth_trying_again(self) -> None:
        assert issubclass(LockLost, Contention)

    def test_giving_back_what_is_another_s_by_now_changes_nothing(
        self, place: Place, locks: Locks, others: Locks
    ) -> None:
        held = self.take(locks, "a")
        self.lose(place, ["a"])
        next_one = self.take(others, "a")
        held.release()
        assert locks.acquire(["a"], 0) is None
        next_one.check()
        with pytest.raises(LockLost):
            held.check()

    def test_giving_back_twice_is_giving_back_once(self, locks: Locks, others: Locks) -> None:
        held = self.take(locks, "a")
        held.release()
        next_one = self.take(others, "a")
        held.release()
        next_one.check()
        with pytest.raises(LockLost):
            held.check()

    # -- with a transaction

    def test_a_transaction_longer_than_the_ttl_commits_under_its_lock(self, opened: Open, store: SqlStore) -> None:
        held = self.take(opened(ttl_s=SHORT_S), "a", "b")
        with contextlib.closing(store.session()) as session, session.transaction():
            time.sleep(2 * SHORT_S)  # a slow handler
            held.check(session)
        held.release()

    def test_a_lost_lock_forbids_the_commit(self, place: Place, locks: Locks, others: Locks, store: SqlStore) -> None:
        held = self.take(locks, "a", "b")
        self.lose(place, ["a"])
        self.take(others, "a")
        began = time.monotonic()
        with contextlib.closing(store.session()) as session, pytest.raises(LockLost), session.transaction():
            held.check(session)
        assert time.monotonic() - began < 2.0, "the check waits for nothing that this transaction holds"

    def test_locks_are_taken_and_given_back_beside_the_transactions_of_others(
        self, locks: Locks, store: SqlStore
    ) -> None:
        with contextlib.closing(store.session()) as session:
            for _ in range(20):
                held = self.take(locks, "a", "b")
                with session.transaction():
                    held.check(session)
                held.release()

    # -- names

    @pytest.mark.parametrize(("one", "other"), LOOK_ALIKES)
    def test_names_compare_exactly(self, locks: Locks, one: str, other: str) -> None:
        self.take(locks, one)
        self.take(locks, other)
        assert locks.acquire([one], 0) is None

    @pytest.mark.parametrize("name", [*ODD_KEYS, "🙂" * 256, "x" * 100_000], ids=lambda name: f"{name[:3]}{len(name)}")
    def test_any_text_is_a_name_however_long(self, locks: Locks, name: str) -> None:
        held = self.take(locks, name)
        self.take(locks, f"{name}2")
        assert locks.acquire([name], 0) is None
        assert held.names == (name,)
        held.check()
        held.release()
        self.take(locks, name)

    @pytest.mark.parametrize("name", ["", "a\x00", "\ud800"])
    def test_what_can_t_be_written_is_refused(self, locks: Locks, name: str) -> None:
        with pytest.raises(InvalidMessage, match="lock"):
            locks.acquire(["a", name], 0)
        self.take(locks, "a")

    # -- the fence

    def test_a_fence_rises_with_each_taking_or_is_none(self, place: Place, locks: Locks, others: Locks) -> None:
        seen = []
        for keeper in (locks, others, locks):
            held = self.take(keeper, "a")
            seen.append(held.fence["a"])
            held.release()
        held = self.take(locks, "a")
        seen.append(held.fence["a"])
        self.lose(place, ["a"])
        seen.append(self.take(others, "a").fence["a"])
        numbers = [number for number in seen if number is not None]
        assert numbers in ([], sorted(set(numbers)))
        assert len(numbers) in (0, len(seen))

    # -- the end

    def test_closed_locks_refuse_and_hold_nothing(self, opened: Open, others: Locks) -> None:
        locks = opened()
        held = self.take(locks, "a")
        locks.close()
        locks.close()
        with pytest.raises(LocksClosed):
            locks.acquire(["b"], 0)
        with pytest.raises(LockLost):
            held.check()
        next_one = self.take(others, "a")
        held.release()
        next_one.check()

    def test_closing_ends_a_wait(self, opened: Open, others: Locks) -> None:
        self.take(others, "a")
        locks = opened()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(locks.acquire, ["a"], self.patience_s)
            time.sleep(0.1)  # let it wait; the assertions hold without
            began = time.monotonic()
            locks.close()
            with pytest.raises(LocksClosed):
                waiting.result(self.patience_s)
        assert time.monotonic() - began < self.patience_s / 4

    def test_one_thread_renews_everything_and_ends_with_the_locks(self, opened: Open) -> None:
        before = threading.active_count()
        locks = opened()
        assert threading.active_count() == before, "it starts with the first lock"
        for number in range(5):
            self.take(locks, f"acct:{number}")
        assert threading.active_count() == before + 1
        locks.close()
        assert threading.active_count() == before

    @pytest.mark.parametrize("ttl_s", [0, -1, 0.01])
    def test_a_ttl_that_can_t_be_kept_is_refused(self, opened: Open, ttl_s: float) -> None:
        with pytest.raises(ConfigurationError, match="ttl_s"):
            opened(ttl_s=ttl_s)
