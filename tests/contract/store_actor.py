"""The program that a `StoreChild` runs: one method per verb."""

from __future__ import annotations

import contextlib
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

from seriatim.contract.remote import serve
from seriatim.core.decision import Outcome, Status
from seriatim.core.store import open_store
from seriatim.core.store.port import Claimed, Fenced, FenceStep, Finish, NewRecord, Scope, Session, Writes


class _Actor:
    """One store, and one session for whatever isn't done by many threads."""

    def __init__(self, url: str) -> None:
        self._store = open_store(url)
        self._session = self._store.session()
        self._open = contextlib.ExitStack()

    def claim(self, scope: Scope, partition: str, ttl: int) -> Claimed | None:
        return self._session.leases.claim(scope, partition, "child", ttl)

    def fence(self, scope: Scope, step: FenceStep, ttl: int) -> dict[str, Fenced]:
        with self._session.transaction():
            return self._session.leases.fence(scope, [step], ttl)

    def begin(self, scope: Scope, step: FenceStep, ttl: int, biz_key: str) -> None:
        self._open.enter_context(self._session.transaction())
        assert not self._session.leases.fence(scope, [step], ttl)
        self._session.records.claim(scope, [_record(step.partition, biz_key)], 1)

    def race(self, scope: Scope, partition: str, biz_keys: list[str], threads: int) -> int:
        with ThreadPoolExecutor(threads) as pool:
            return sum(pool.map(lambda _: self._race(scope, partition, biz_keys), range(threads)))

    def _race(self, scope: Scope, partition: str, biz_keys: list[str]) -> int:
        with contextlib.closing(self._store.session()) as session:
            return sum(_run_once(session, scope, partition, biz_key) for biz_key in biz_keys)

    def spin(self, scope: Scope, partition: str, seconds: float) -> tuple[int, float]:
        count, longest = 0, 0.0
        end = time.monotonic() + seconds
        while (began := time.monotonic()) < end:
            with self._session.transaction():
                self._session.leases.hold_row(scope, partition)
            longest = max(longest, time.monotonic() - began)
            count += 1
        return count, longest


def _run_once(session: Session, scope: Scope, partition: str, biz_key: str) -> bool:
    """The fence's row, the look-up, and the record, in one transaction: whether this one was the first."""
    with session.transaction():
        session.leases.hold_row(scope, partition)
        if session.records.look_up(scope, [biz_key]):
            return False
        session.records.claim(scope, [_record(partition, biz_key)], 1)
        finish = Finish(biz_key, Status.SUCCESS, Outcome.APPLIED)
        session.write(scope, Writes(finishes={biz_key: finish}), 1)
        return True


def _record(partition: str, biz_key: str) -> NewRecord:
    return NewRecord(biz_key, "paid", "k", partition, None, b"d" * 32, None, 1, 1)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), _Actor(sys.argv[2]))
