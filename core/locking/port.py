"""What a lock is, whoever keeps it.

A batch takes all its names at once, before its transaction begins: a transaction that waits for a lock while it holds
rows can wait in a circle that no server sees (N13). So:

1. ``held = locks.acquire(names, wait_s)``, with no transaction open; None: turn to something else and come back;
2. the transaction; its last statement before the commit is ``held.check(session)``: an error of it forbids the commit;
3. ``held.release()`` after the commit, or after whatever ended the transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from seriatim.core.errors import Contention, SeriatimError, StoreUnavailable
from seriatim.core.store.port import Session


class LocksUnavailable(StoreUnavailable):
    """The server that keeps the locks can't be used just now. Nothing is held; worth trying again after a pause."""


class LockLost(Contention):
    """A lock may be another's by now: what was done under it must not be committed. Worth trying again."""


class LocksClosed(SeriatimError):
    """The locks were closed: nothing can be taken any more."""


class Held(Protocol):
    """Names that are held, all of them. Used by one thread at a time."""

    @property
    def names(self) -> tuple[str, ...]:
        """What is held: each name once, in the order in which they were taken."""
        ...

    @property
    def fence(self) -> Mapping[str, int | None]:
        """For each name a number that rises with each taking, for an outside system to refuse a late owner by.

        None where the keeper has none (Redis).
        """
        ...

    def check(self, session: Session | None = None) -> None:
        """Return only if all are still ours, and not about to end. One round trip; asks the keeper, not a memory.

        With `session`, inside whose open transaction the caller is, locks in the database are held by their rows until
        that transaction ends: nobody else has them before the commit, however late it comes. Without (and always where
        Redis keeps them), they are renewed, and the commit has a whole TTL to follow.

        Raises:
            LockLost: they aren't, or it can't be known.
        """
        ...

    def release(self) -> None:
        """Give all back; what isn't ours any more is left alone. Idempotent, and raises nothing.

        What can't be given back now is tried again in the background, and ends by itself after the TTL.
        """
        ...


class NothingHeld:
    """No names at all: `Held`, whoever asks."""

    names: tuple[str, ...] = ()
    fence: Mapping[str, int | None] = MappingProxyType({})

    def check(self, session: Session | None = None) -> None:
        """Nothing can be lost."""

    def release(self) -> None:
        """Nothing to give back."""


class Locks(Protocol):
    """A keeper of locks. Thread-safe; one thread of its own renews what is held."""

    def acquire(self, names: Sequence[str], wait_s: float) -> Held | None:
        """All of `names`, or none of them: None when they couldn't be had within `wait_s` seconds (0: one try).

        They are taken in one order, whatever the order of `names`, so that nobody waits in a circle. Names compare
        exactly; a very long one is known by its beginning and its digest. The wait can be longer by what the keeper
        takes to answer. A lock isn't reentrant: taking a held name again waits for oneself.

        Raises:
            LocksUnavailable, StoreUnavailable: the keeper is away; nothing is held.
            LocksClosed: it was closed.
            InvalidMessage: a name is empty, or can't be written in UTF-8.
        """
        ...

    def close(self) -> None:
        """Give back whatever is held, and end the thread. Idempotent."""
        ...

    def describe(self) -> str:
        """The keeper in words fit for a log: no secret in it."""
        ...
