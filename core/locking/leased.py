"""Locks over a keeper: waiting for them, holding them, giving them back."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial

from seriatim.core.backoff import Backoff
from seriatim.core.errors import PASSING, SeriatimError
from seriatim.core.locking.keeper import Keeper
from seriatim.core.locking.names import in_order
from seriatim.core.locking.port import Held, LockLost, LocksClosed, NothingHeld
from seriatim.core.locking.watchdog import Lease, Watchdog
from seriatim.core.store.port import Session


class LeasedLocks:
    """Locks that end by time at `keeper`, `ttl_s` after they were last renewed."""

    def __init__(self, keeper: Keeper, *, ttl_s: float) -> None:
        self._keeper = keeper
        self._ttl_s = ttl_s
        self._poll = Backoff(base_s=0.01, cap_s=0.2, factor=1.6)
        self._closed = threading.Event()
        self._watchdog = Watchdog(keeper, ttl_s)

    def acquire(self, names: Sequence[str], wait_s: float) -> Held | None:
        """All of `names` within `wait_s` seconds, or none."""
        wanted = in_order(names)
        self._refuse_if_closed()
        if not wanted:
            return NothingHeld()
        lease = Lease(tuple(wanted.values()), secrets.token_hex(16), self._ttl_s)
        try:
            fences = self._wait_for(lease, time.monotonic() + max(0.0, wait_s))
        except BaseException:
            self._watchdog.owe(lease)  # behind our back: the keeper that failed would be waited for once more
            raise
        if fences is None:
            self._watchdog.give_back(lease)
            return None
        if not self._watchdog.keep(lease):
            self._watchdog.give_back(lease)
            self._refuse_if_closed()
        numbers = {name: fences[stored] for name, stored in wanted.items()}
        return _Held(tuple(wanted), numbers, lease, self._keeper, self._watchdog)

    def _wait_for(self, lease: Lease, deadline: float) -> Mapping[str, int | None] | None:
        tries = 0
        while True:
            began = time.monotonic()
            fences = self._take(lease)
            if fences is not None:
                lease.renewed(began)
                return fences
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            tries += 1
            self._closed.wait(min(self._poll.delay(tries), left))
            self._refuse_if_closed()

    def _take(self, lease: Lease) -> Mapping[str, int | None] | None:
        """One try; after a lost answer the same token is offered again, and found if it was stored."""
        take = partial(self._keeper.take, lease.names, lease.token)
        try:
            return take()
        except PASSING:
            return take()

    def _refuse_if_closed(self) -> None:
        if self._closed.is_set():
            raise LocksClosed(f"locks {self.describe()}: they were closed")

    def close(self) -> None:
        """Give back whatever is held, and end the thread."""
        self._closed.set()
        self._watchdog.close()
        self._keeper.close()

    def describe(self) -> str:
        """The keeper in words fit for a log."""
        return self._keeper.describe()


class _Held:
    """Names that are held under one token."""

    def __init__(
        self,
        names: tuple[str, ...],
        fence: Mapping[str, int | None],
        lease: Lease,
        keeper: Keeper,
        watchdog: Watchdog,
    ) -> None:
        self.names = names
        self.fence = fence
        self._lease = lease
        self._keeper = keeper
        self._watchdog = watchdog
        self._released = False

    def check(self, session: Session | None = None) -> None:
        """Return only if all are still ours."""
        lease = self._lease
        if not self._watchdog.keeps(lease):
            raise LockLost(f"{self._shown()} was given back, or lost before")
        began = time.monotonic()
        try:
            ours = self._keeper.holds(lease.names, lease.token, session)
        except SeriatimError as error:
            raise LockLost(f"whether {self._shown()} is still ours can't be known: {error}") from error
        if not ours:
            self._watchdog.lost(lease)
            raise LockLost(f"{self._shown()} isn't ours any more: it ended unrenewed, or its keeper forgot it")
        if time.monotonic() - began >= lease.ttl_s:
            raise LockLost(f"{self._shown()}: the answer came too late to rely on")

    def release(self) -> None:
        """Give all back."""
        if not self._released:
            self._released = True
            self._watchdog.give_back(self._lease)

    def _shown(self) -> str:
        more = f" and {len(self.names) - 1} more" if len(self.names) > 1 else ""
        return f"the lock {self.names[0][:40]!r}{more} ({self._keeper.describe()})"

    def __repr__(self) -> str:
        return f"<Held {self._shown()}>"
