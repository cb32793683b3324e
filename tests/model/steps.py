"""A step, and the few things that every actor's steps need."""

from __future__ import annotations

from typing import NamedTuple

from .scenario import Scenario
from .state import Lane, State, Tables, Writes, write


class Step(NamedTuple):
    """What happens, what follows, which promise it breaks; is it a fault (or an operator's whim)?"""

    label: str
    state: State
    broken: str | None = None
    fault: bool = False


def with_lane(s: State, i: int, lane: Lane) -> State:
    """Replace one lane."""
    return s._replace(lanes=(lane, s.lanes[1]) if i == 0 else (s.lanes[0], lane))


def cleared(lane: Lane) -> Lane:
    """Return the lane with its transaction ended."""
    return lane._replace(phase="idle", locks=False, writes=(), size=0, peeked=None, after="idle")


def row_free(s: State) -> bool:
    """Say whether nobody holds the partition_owner row."""
    verb_locks = s.verb is not None and s.verb.locks
    pending_locks = s.pending is not None and s.pending.locks
    return not (s.lanes[0].locks or s.lanes[1].locks or verb_locks or pending_locks)


def written(tables: Tables, writes: Writes) -> Tables:
    """Carry out a transaction's changes."""
    for change in writes:
        tables = write(tables, change)
    return tables


def stamped(sc: Scenario, s: State) -> State:
    """Raise the partition's counter; only a lane that believes it after an unknown COMMIT looks at it."""
    if not sc.lacks("unknown_repeats"):
        return s
    first, second = (lane._replace(stamp_moved=lane.phase == "unknown") for lane in s.lanes)
    return s._replace(lanes=(first, second))
