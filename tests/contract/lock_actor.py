"""The program that a `LockChild` runs: one method per verb; and the competition that its parent takes part in."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

from seriatim.contract.remote import serve
from seriatim.core.locking import Held, LockLost, Locks, open_locks
from seriatim.core.store import open_store


class _Actor:
    """One keeper, and what was taken last."""

    def __init__(self, url: str, store_url: str, ttl_s: float) -> None:
        self._locks = open_locks(url, open_store(store_url), ttl_s=ttl_s)
        self._held: Held | None = None

    def acquire(self, names: Sequence[str], wait_s: float) -> bool:
        self._held = self._locks.acquire(names, wait_s)
        return self._held is not None

    def still_holds(self) -> bool:
        assert self._held is not None
        try:
            self._held.check()
        except LockLost:
            return False
        return True

    def release(self) -> None:
        assert self._held is not None
        self._held.release()

    def compete(self, names: Sequence[str], threads: int, seconds: float, folder: str) -> tuple[int, int]:
        return compete(self._locks, names, threads, seconds, folder)


def compete(locks: Locks, names: Sequence[str], threads: int, seconds: float, folder: str) -> tuple[int, int]:
    """Take all of `names` with so many threads for so long: how often they were had, and how often not alone."""
    end = time.monotonic() + seconds
    with ThreadPoolExecutor(threads) as pool:
        results = list(pool.map(lambda _: _compete(locks, list(names), end, Path(folder)), range(threads)))
    return sum(had for had, _ in results), sum(met for _, met in results)


def _compete(locks: Locks, names: list[str], end: float, folder: Path) -> tuple[int, int]:
    had = met = 0
    while time.monotonic() < end:
        random.shuffle(names)
        held = locks.acquire(names, 5.0)
        if held is None:
            continue
        had += 1
        met += sum(not _alone(folder / name.encode().hex()) for name in names)
        held.release()
    return had, met


def _alone(path: Path) -> bool:
    """Whether nobody else is in here while we are."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    time.sleep(random.random() / 500)
    path.unlink()
    return True


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), _Actor(sys.argv[2], sys.argv[3], float(sys.argv[4])))
