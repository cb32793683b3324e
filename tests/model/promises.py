"""What must hold: checked at each commit (`commit`) and in each state (`broken_in`).

A violation is a sentence that begins with its promise: P1 to P8 of design.md; HOLD (no effect of a held
key); EARLY (an early message waits for its predecessor, never heads a key, is not given up while that may
still come); ORPHAN (records, parked rows and key rows agree); DEADLOCK; STUCK is found by explore.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from .scenario import Scenario
from .state import FINAL, Change, Key, State, Tables, Writes, write


def commit(sc: Scenario, tables: Tables, writes: Writes, *, stale: bool) -> tuple[Tables, str | None]:
    """Carry a transaction out; say which promise its commit broke."""
    broken = ["P6 a stale owner commits"] if stale else []
    for change in writes:
        broken += _broken_by(sc, tables, change)
        tables = write(tables, change)
    return tables, next((b for b in broken if b.split()[0] not in sc.ignored), None)


def _broken_by(sc: Scenario, tables: Tables, change: Change) -> Iterator[str]:
    name = sc.messages[change.target].name if change.kind in ("effect", "skip", "give_up", "record") else ""
    if change.kind == "effect":
        yield from _broken_by_effect(sc, tables, change.target)
    elif change.kind == "skip" and change.value != change.target:
        yield f"P5 {name} is skipped, the operator was shown another"
    elif change.kind == "give_up":
        yield from _broken_by_giving_up(sc, tables, change.target)
    elif change.kind == "record" and tables.record[change.target] == "applied" != change.value:
        yield f"P2 the record of applied {name} is overwritten"


def _broken_by_effect(sc: Scenario, tables: Tables, b: int) -> Iterator[str]:
    name, k, needs = sc.messages[b].name, sc.messages[b].key, sc.messages[b].needs
    key, row = tables.keys[k], tables.row(b)
    if tables.has_effect(b):
        yield f"P2 second effect of {name}"
    if tables.skipped >> b & 1:
        yield f"P5 effect of skipped {name}"
    if key is not None and key.held:
        yield f"HOLD effect of {name} while its key is held"
    if needs is not None and not tables.has_effect(needs):
        yield f"EARLY effect of {name} before its predecessor"
    for j in sc.earlier[b]:
        if not (tables.effects | tables.excused) >> j & 1:
            promise = "P5" if tables.row(j) else "P1"
            yield f"{promise} effect of {name} before {sc.messages[j].name}"
    queue = tables.rows(sc, k, "queue")
    if (row is None or row.place == "queue") and queue and queue[0] != b:
        yield f"P5 effect of {name} while {sc.messages[queue[0]].name} is head"


def _broken_by_giving_up(sc: Scenario, tables: Tables, e: int) -> Iterator[str]:
    name, needs = sc.messages[e].name, sc.messages[e].needs
    if tables.has_effect(e):
        yield f"EARLY {name} is given up after its effect"
    if needs is None:
        return
    row = tables.row(needs)
    if tables.has_effect(needs):
        yield f"EARLY {name} is given up though its predecessor has its effect"
    elif row is not None:
        yield f"EARLY {name} is given up while its predecessor is parked ({row.place})"
    elif needs in sc.log and not tables.skipped >> needs & 1:
        yield f"EARLY {name} is given up before its predecessor was read"


def broken_in(sc: Scenario, state: State) -> str | None:
    """Return the promise that a state breaks."""
    broken = (*_lost(sc, state), *_untidy(sc, state.tables), *_deadlocked(state))
    return next((b for b in broken if b.split()[0] not in sc.ignored), None)


def _lost(sc: Scenario, state: State) -> Iterator[str]:
    tables = state.tables
    for b in sc.log[: state.acked if sc.mode == "queue" else tables.position]:
        if not (tables.effects | tables.skipped) >> b & 1 and tables.row(b) is None:
            yield f"P3 {sc.messages[b].name} is settled with no effect and no parked row"


def _untidy(sc: Scenario, tables: Tables) -> Iterator[str]:
    parked = {row.message for row in tables.parked}
    for b, record in enumerate(tables.record):
        if record in ("parked", "early") and b not in parked:
            yield f"ORPHAN {record} {sc.messages[b].name} without a parked row"
    for row in tables.parked:
        name, key = sc.messages[row.message].name, tables.keys[sc.messages[row.message].key]
        if key is None:
            yield f"ORPHAN parked {name} without a key row"
        elif key.head == row.message and tables.record[row.message] == "early":
            yield f"EARLY {name} heads its key"
        if tables.record[row.message] in FINAL and not row.dead:
            yield f"P8 {name} has its answer and is parked all the same"
    for k, key in enumerate(tables.keys):
        queue, aside = tables.rows(sc, k, "queue"), tables.rows(sc, k, "aside")
        if key is not None and (key.head, key.early) != (queue[0] if queue else None, len(aside)):
            yield "ORPHAN the key row disagrees with its parked rows"


def _deadlocked(state: State) -> Iterator[str]:
    waiting = any(lane.phase == "waiting" for lane in state.lanes)
    if waiting and state.verb is not None and state.verb.wants_owner:
        yield "DEADLOCK the verb waits for the owner row, the lane for the key row"


def is_final(sc: Scenario, state: State) -> bool:
    """Everything read, nothing locked, nothing parked but what waits for a person behind a dead head."""
    read = state.acked if sc.mode == "queue" else state.tables.position
    quiet = not any(lane.locks for lane in state.lanes) and state.verb is None and state.pending is None
    return read == len(sc.log) and quiet and all(key is None or _waits(state.tables, key) for key in state.tables.keys)


def _waits(tables: Tables, key: Key) -> bool:
    head = tables.row(key.head) if key.head is not None else None
    return head is not None and head.dead and not key.held
