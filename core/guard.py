"""The state guard: reads business rows and moves them, by the state machine's judgement.

One read for every key of a batch, the pure judgement, and conditional UPDATEs whose row count is checked: set-wise at
the end of an optimistic pass, one by one in a careful one. What was read is kept up to date in memory, so that the
second message of an entity needs no second read. Statements are built once and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import Any

from sqlalchemy import (
    ClauseElement,
    ColumnClause,
    Insert,
    Select,
    Update,
    bindparam,
    column,
    insert,
    select,
    table,
    update,
)

from seriatim.core.errors import Contention, DuplicateKey, InvalidMessage, StoreError, StoreUnavailable
from seriatim.core.state_machine import Current, Move, StateMachine, Transition
from seriatim.core.task import Task

_ABSENT = Current(None, present=False)
_READS = 3  #: how often a row that changed under our hands is read again


@dataclass(frozen=True, slots=True)
class Guarded:
    """What the guard said: the move, and the state before it."""

    move: Move
    before: str | None


class MoveRefused(Exception):
    """A row that was read under the guard had changed when its moves were written together."""


@dataclass(slots=True)
class Guard:
    """The business rows of one transaction.

    `run` executes a statement, `run_each` an UPDATE for several rows, `lock` makes a read a locking one. `together`:
    moves of existing rows are gathered and written set-wise by `flush`; otherwise each is written at once. A new row
    is always made at once, since its handler may refer to it.
    """

    run: Callable[..., Any]
    run_each: Callable[[Update, Sequence[Mapping[str, Any]]], int]
    lock: Callable[[Any], Any]
    together: bool = False
    _known: dict[tuple[str, str, str], tuple[Current, int]] = field(default_factory=dict)
    _handlers_run: int = 0
    _gathered: list[tuple[Transition, dict[str, Any]]] = field(default_factory=list)

    def prefetch(self, tasks: Iterable[Task]) -> None:
        """Read the rows of these tasks: one statement for each state machine."""
        wanted: dict[int, tuple[StateMachine, set[str]]] = {}
        for task in tasks:
            moves = task.handler.moves if task.handler is not None else None
            if moves is not None:
                keys = wanted.setdefault(id(moves.machine), (moves.machine, set()))[1]
                with suppress(InvalidMessage):  # its turn will say so
                    keys.add(entity_key(moves, task))
        for machine, keys in wanted.values():
            self._read(machine, keys)

    def move(self, transition: Transition, task: Task) -> Guarded:
        """Judge a message's transition and, where it is legal, write it or gather it to be written.

        Raises:
            Contention: the row kept changing between the read and the write.
        """
        machine, key = transition.machine, entity_key(transition, task)
        seq = task.message.seq if task.message is not None else None
        for _ in range(_READS):
            current = self._current(machine, key)
            judged = machine.judge(current, transition.target, seq)
            if judged is not Move.APPLY:
                if self._is_fresh(machine, key):
                    return Guarded(judged, current.state)
            elif self._write(transition, key, current, task.event, seq):
                self._remember(machine, key, Current(transition.target, seq))
                return Guarded(judged, current.state)
            self.flush()
            self._read(machine, {key})
        raise Contention(f"{machine.table}.{machine.column} of {key!r} changed {_READS} times under the guard")

    def flush(self) -> None:
        """Write the moves that were gathered, in order: consecutive ones of a kind by one statement.

        Raises:
            MoveRefused: a row had changed; nothing of the transaction may be kept.
        """
        for transition, group in groupby(self._gathered, key=lambda gathered: gathered[0]):
            params = [values for _, values in group]
            try:
                moved = self.run_each(_update(transition), params)
            except (StoreUnavailable, Contention):
                raise
            except StoreError as error:  # one of them is at fault; written one by one, it will be told
                raise MoveRefused from error
            if moved != len(params):
                raise MoveRefused
        self._gathered.clear()

    def forget(self, task: Task) -> None:
        """What a message moved since the last flush was rolled back: read it again when it is next asked for."""
        self._gathered.clear()
        moves = task.handler.moves if task.handler is not None else None
        if moves is not None:
            self._known.pop(_slot(moves.machine, entity_key(moves, task)), None)

    def _current(self, machine: StateMachine, key: str) -> Current:
        slot = _slot(machine, key)
        if slot not in self._known:
            self._read(machine, {key})
        return self._known[slot][0]

    def _remember(self, machine: StateMachine, key: str, current: Current) -> None:
        self._known[_slot(machine, key)] = current, self._handlers_run

    def _is_fresh(self, machine: StateMachine, key: str) -> bool:
        """Whether no handler has run since a row was read: what it did to the row, only the row can tell."""
        return self._known[_slot(machine, key)][1] == self._handlers_run

    def handler_ran(self) -> None:
        """A handler has run, and may have touched any row."""
        self._handlers_run += 1

    def _read(self, machine: StateMachine, keys: set[str]) -> None:
        rows = self.run(self.lock(_select(machine)), {"entity_keys": sorted(keys)})
        found = {str(row[0]): Current(*row[1:]) for row in rows}
        for name in keys:
            self._remember(machine, name, found.get(name, _ABSENT))

    def _write(self, transition: Transition, key: str, current: Current, event: Any, seq: int | None) -> bool:
        machine = transition.machine
        values = {machine.column: transition.target, **_assigned(transition, event)}
        if machine.version is not None:
            values[machine.version] = seq
        if not current.present:
            if transition.insert is not None:
                row = {machine.key: key, **values, **transition.insert(event)}
                try:
                    self._insert(transition, row)
                except DuplicateKey:  # a handler made the row since it was read
                    if self._is_fresh(machine, key):
                        raise
                    return False
            return True  # without insert=, the handler makes the row
        params = {f"to_{name}": value for name, value in values.items()}
        params |= {"entity_key": key, "from_state": current.state}
        if self.together:
            self._gathered.append((transition, params))
            return True
        return bool(self.run(_update(transition), params).rowcount)

    def _insert(self, transition: Transition, row: dict[str, Any]) -> None:
        if any(isinstance(value, ClauseElement) for value in row.values()):
            target = table(transition.machine.table, *(column(name) for name in row))
            self.run(insert(target).values(row))  # SQL expressions are part of the statement
        else:
            self.run(_insert(transition, tuple(row)), row)


def entity_key(transition: Transition, task: Task) -> str:
    """The key of the entity that a message moves."""
    if transition.key_from is None:
        return task.sharding_key
    try:
        return str(transition.key_from(task.event))
    except Exception as error:  # the user's function: whatever it raises is the message's fault
        raise InvalidMessage(f"key_from= of type {task.arrival.type!r} found no entity key: {error!r}") from error


def _assigned(transition: Transition, event: Any) -> dict[str, Any]:
    """The columns that are set to values; those set to SQL expressions are part of the statement."""
    return {
        name: value(event) if callable(value) else value
        for name, value in transition.assign.items()
        if not isinstance(value, ClauseElement)
    }


def _expressions(transition: Transition) -> dict[str, Any]:
    return {name: value for name, value in transition.assign.items() if isinstance(value, ClauseElement)}


@lru_cache(maxsize=256)
def _select(machine: StateMachine) -> Select[Any]:
    key: ColumnClause[Any] = column(machine.key)
    columns = [key, *(column(name) for name in (machine.column, machine.version) if name is not None)]
    return select(*columns).select_from(table(machine.table)).where(key.in_(bindparam("entity_keys", expanding=True)))


@lru_cache(maxsize=1024)
def _update(transition: Transition) -> Update:
    machine = transition.machine
    plain = {machine.column, *(name for name in transition.assign if name not in _expressions(transition))}
    if machine.version is not None:
        plain.add(machine.version)
    names = sorted(plain | set(transition.assign))
    target = table(machine.table, column(machine.key), *(column(name) for name in names))
    values: dict[str, Any] = {name: bindparam(f"to_{name}") for name in sorted(plain)}
    return (
        update(target)
        .where(target.c[machine.key] == bindparam("entity_key"))
        .where(target.c[machine.column] == bindparam("from_state"))
        .values(values | _expressions(transition))
    )


@lru_cache(maxsize=1024)
def _insert(transition: Transition, names: tuple[str, ...]) -> Insert:
    expressions = {name: value for name, value in _expressions(transition).items() if name not in names}
    target = table(transition.machine.table, *(column(name) for name in (*names, *expressions)))
    values: dict[str, Any] = {name: bindparam(name) for name in names}
    return insert(target).values(values | expressions)


def _slot(machine: StateMachine, key: str) -> tuple[str, str, str]:
    return machine.table, machine.column, key
