"""The optional parts of a worker: locks on business keys, and the front filter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from seriatim.core.decision import Reason
from seriatim.core.errors import Contention
from seriatim.core.filtering.port import Filter
from seriatim.core.locking.port import Held, Locks, NothingHeld
from seriatim.core.passing import Part
from seriatim.core.task import Task


@dataclass(frozen=True, slots=True)
class OptionalParts:
    """What there is of them; closed by whoever opened them. `lock_wait_s` is how long one batch waits for its locks."""

    locks: Locks | None = None
    lock_wait_s: float = 1.0
    filter: Filter | None = None


@contextmanager
def holding_locks(optional: OptionalParts, parts: Sequence[Part]) -> Iterator[Held]:
    """Hold what the handlers of these tasks lock: all names at once, before the transaction, given back after it.

    Raises:
        Contention: they couldn't be had in time; nothing is held.
        StoreUnavailable: the keeper of the locks is away.
    """
    names = sorted({name for part in parts for task in part.tasks for name in lock_names(task)})
    if not names or optional.locks is None:
        yield NothingHeld()
        return
    held = optional.locks.acquire(names, optional.lock_wait_s)
    if held is None:
        shown = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")  # noqa: PLR2004 - as many as are shown
        raise Contention(f"locks {shown} are held by others, and weren't free within {optional.lock_wait_s:g} s")
    try:
        yield held
    finally:
        held.release()


def lock_names(task: Task) -> tuple[str, ...]:
    """The names that a task's handler locks; where they can't be told, the task is refused."""
    handler = task.handler
    if handler is None or handler.lock is None:
        return ()
    try:
        found: Any = handler.lock(task.event)  # what the user's function really gives
        names: tuple[Any, ...] = (found,) if isinstance(found, str) else tuple(found)
        if not all(isinstance(name, str) and name for name in names):
            raise TypeError(f"it gave {found!r}, not names")  # noqa: TRY301 - the same as what the function raises
    except Exception as error:  # noqa: BLE001 - the user's function: whatever it raises is the message's fault
        task.refuse(Reason.FAILED, f"lock= of type {handler.type!r} found no names: {error!r}")
        return ()
    return names
