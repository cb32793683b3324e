"""The thread that keeps held locks alive, and gives back what couldn't be given back at once."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from dataclasses import dataclass, field

from seriatim.core.errors import SeriatimError
from seriatim.core.locking.keeper import Keeper

LOGGER = logging.getLogger("seriatim")


@dataclass(eq=False, slots=True)
class Lease:
    """Names under one token, and since when they are surely alive (`time.monotonic`)."""

    names: tuple[str, ...]
    token: str
    ttl_s: float
    since: float = field(default_factory=time.monotonic)

    @property
    def due(self) -> float:
        """When to renew: a third of the TTL after the last time."""
        return self.since + self.ttl_s / 3

    @property
    def end(self) -> float:
        """When it has ended, if nobody renewed it."""
        return self.since + self.ttl_s

    def renewed(self, began: float) -> None:
        """It was renewed by a call that began then."""
        self.since = max(self.since, began)


class Watchdog:
    """Renews what is kept, from a thread that starts with the first lease and ends with `close`. Thread-safe.

    A keeper that is away is asked again, for as long as a lease is kept: the thread outlives every outage.
    """

    def __init__(self, keeper: Keeper, ttl_s: float) -> None:
        self._keeper = keeper
        self._ttl_s = ttl_s
        self._mutex = threading.Lock()
        self._kept: set[Lease] = set()
        self._owed: set[Lease] = set()  # to be given back as soon as the keeper answers
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def keep(self, lease: Lease) -> bool:
        """Renew it from now on. False after `close`: then it isn't."""
        with self._mutex:
            if self._stop.is_set():
                return False
            self._kept.add(lease)
            self._start()
            return True

    def keeps(self, lease: Lease) -> bool:
        """Whether it is renewed: neither given back nor lost."""
        return lease in self._kept

    def lost(self, lease: Lease) -> None:
        """It is another's, or nobody's: there is nothing to renew."""
        with self._mutex:
            known = lease in self._kept
            self._kept.discard(lease)
        if known:
            LOGGER.warning("lock lost", extra={"fields": {"names": list(lease.names[:4]), "of": len(lease.names)}})
            self.owe(lease)  # those of its names that are still ours; not now, inside a transaction that reads them

    def give_back(self, lease: Lease) -> None:
        """Stop renewing it and free it: now, or as soon as the keeper answers. Raises nothing of Seriatim's."""
        with self._mutex:
            self._kept.discard(lease)
        if not self._free(lease):
            self.owe(lease)

    def owe(self, lease: Lease) -> None:
        """Free it as soon as the keeper answers, or never: it has ended by itself a TTL from now."""
        with self._mutex:
            self._kept.discard(lease)
            ended = self._stop.is_set()
            if not ended:
                lease.since = time.monotonic()
                self._owed.add(lease)
                self._start()
        if ended:  # nobody would do it later
            self._free(lease)

    def _free(self, lease: Lease) -> bool:
        try:
            self._keeper.free(lease.names, lease.token)
        except SeriatimError as error:
            LOGGER.debug("lock not given back yet", extra={"fields": {"error": str(error)}})
            return False
        return True

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="seriatim-locks", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._rest()):
            with contextlib.suppress(Exception):  # whatever goes wrong with one round, there is a next
                self._round()

    def _rest(self) -> float:
        """Seconds until the next lease is due. One that is kept later is due later: nobody need wake us for it."""
        now, third = time.monotonic(), self._ttl_s / 3
        with self._mutex:
            due = min((lease.due for lease in self._kept), default=now + third)
            owing = bool(self._owed)
        rest = min(third, due - now)
        return max(third / 10, min(rest, third / 3) if owing else rest)

    def _round(self) -> None:
        now = time.monotonic()
        with self._mutex:
            due = [lease for lease in self._kept if lease.due <= now]
            owed = list(self._owed)
        for lease in due:
            if not self._renew(lease):  # it is away for the others, too
                return
        for lease in owed:
            if lease.end > now and not self._free(lease):
                return
            with self._mutex:
                self._owed.discard(lease)

    def _renew(self, lease: Lease) -> bool:
        """Whether the keeper answered."""
        began = time.monotonic()
        try:
            ours = self._keeper.extend(lease.names, lease.token)
        except SeriatimError as error:
            LOGGER.warning("lock not renewed", extra={"fields": {"names": list(lease.names[:4]), "error": str(error)}})
            return False
        if ours:
            lease.renewed(began)
        elif self.keeps(lease):  # else it was given back meanwhile
            self.lost(lease)
        return True

    def close(self) -> None:
        """Give everything back and end the thread. Idempotent."""
        self._stop.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        with self._mutex:
            left = [*self._kept, *self._owed]
            self._kept.clear()
            self._owed.clear()
        for lease in left:
            self._free(lease)
