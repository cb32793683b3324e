"""Many targets of a verb, a little at a time: nobody waits long for a partition because an operator works on it.

Each transaction is about one partition, holds its row, and ends after `SLICE` targets or `SLICE_S`, whichever comes
first; then as long a pause as it took. What is done is told when its transaction is committed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from seriatim.compensation.verbs.case import Done
from seriatim.core.errors import PASSING
from seriatim.core.store.port import Scope, Session, Store

SLICE = 50  #: targets of one transaction
SLICE_S = 0.05  #: how long it goes on
TRIES = 5  #: how often a transaction is begun that met trouble of the store
WAIT_S = 0.2


class Located(Protocol):
    """Something that is in a partition."""

    @property
    def scope(self) -> Scope:
        """Its group and topic."""
        ...

    @property
    def partition(self) -> str:
        """Its partition."""
        ...


T = TypeVar("T", bound=Located)
T_contra = TypeVar("T_contra", bound=Located, contravariant=True)


class Verb(Protocol[T_contra]):
    """Judges one target under the lock, and writes what that means."""

    def __call__(self, session: Session, target: T_contra, *, write: bool) -> Done:
        """What was done, or would be."""
        ...


def in_slices(store: Store, targets: Sequence[T], verb: Verb[T], *, dry_run: bool = False) -> Iterator[Done]:
    """Apply `verb` to each target, in their order within a partition; a dry run reads, and changes nothing.

    Raises:
        StoreError: the store went away; what was told is done, and the rest isn't.
    """
    session = store.session()
    try:
        if dry_run:
            yield from (verb(session, target, write=False) for target in targets)
            return
        for (scope, partition), queue in _by_partition(targets).items():
            while queue:
                began = time.monotonic()
                done = _patiently(session, scope, partition, queue, verb)
                for _ in done:
                    queue.popleft()
                took = time.monotonic() - began
                yield from done
                if queue:
                    time.sleep(min(took, SLICE_S))
    finally:
        session.close()


def _by_partition(targets: Sequence[T]) -> dict[tuple[Scope, str], deque[T]]:
    queues: dict[tuple[Scope, str], deque[T]] = {}
    for target in targets:
        queues.setdefault((target.scope, target.partition), deque()).append(target)
    return queues


def _patiently(session: Session, scope: Scope, partition: str, queue: deque[T], verb: Verb[T]) -> list[Done]:
    """A slice; begun again where the store was busy: what it did then was rolled back, or is judged anew."""
    for _ in range(TRIES - 1):
        try:
            return _slice(session, scope, partition, queue, verb)
        except PASSING:
            time.sleep(WAIT_S)
    return _slice(session, scope, partition, queue, verb)


def _slice(session: Session, scope: Scope, partition: str, queue: deque[T], verb: Verb[T]) -> list[Done]:
    done: list[Done] = []
    with session.transaction():
        session.leases.hold_row(scope, partition)
        began = time.monotonic()
        for target in queue:
            done.append(verb(session, target, write=True))
            if len(done) == SLICE or time.monotonic() - began > SLICE_S:
                break
    return done
