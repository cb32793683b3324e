"""The state guard: reads business rows and moves them, by the state machine's judgement.

One read for every key of a batch, the pure judgement, and one conditional UPDATE for each move, its row count checked.
What was read is kept up to date in memory, so that the second message of an entity needs no second read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnClause, column, insert, select, table, update

from seriatim.core.errors import Contention, InvalidMessage
from seriatim.core.state_machine import Current, Move, StateMachine, Transition
from seriatim.core.task import Task

_ABSENT = Current(None)
_READS = 3  #: how often a row that changed under our hands is read again


@dataclass(frozen=True, slots=True)
class Guarded:
    """What the guard said: the move, and the state before it."""

    move: Move
    before: str | None


@dataclass(slots=True)
class Guard:
    """The business rows of one transaction. `run` executes a statement, `lock` makes a read a locking one."""

    run: Callable[..., Any]
    lock: Callable[[Any], Any]
    _known: dict[tuple[str, str, str], Current] = field(default_factory=dict)

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
        """Judge a message's transition and, where it is legal, write it.

        Raises:
            Contention: the row kept changing between the read and the write.
        """
        machine, key = transition.machine, entity_key(transition, task)
        seq = task.message.seq if task.message is not None else None
        for _ in range(_READS):
            current = self._current(machine, key)
            judged = machine.judge(current, transition.target, seq)
            if judged is not Move.APPLY:
                return Guarded(judged, current.state)
            if self._write(transition, key, current, task.event, seq):
                self._known[_slot(machine, key)] = Current(transition.target, seq)
                return Guarded(judged, current.state)
            self._read(machine, {key})
        raise Contention(f"{machine.table}.{machine.column} of {key!r} changed {_READS} times under the guard")

    def forget(self, task: Task) -> None:
        """What a message moved was rolled back: read it again when it is next asked for."""
        moves = task.handler.moves if task.handler is not None else None
        if moves is not None:
            self._known.pop(_slot(moves.machine, entity_key(moves, task)), None)

    def forget_all(self) -> None:
        """Everything was rolled back."""
        self._known.clear()

    def _current(self, machine: StateMachine, key: str) -> Current:
        slot = _slot(machine, key)
        if slot not in self._known:
            self._read(machine, {key})
        return self._known[slot]

    def _read(self, machine: StateMachine, keys: set[str]) -> None:
        key: ColumnClause[Any] = column(machine.key)
        state: ColumnClause[Any] = column(machine.column)
        columns = [key, state] if machine.version is None else [key, state, column(machine.version)]
        query = select(*columns).select_from(table(machine.table)).where(key.in_(sorted(keys)))
        found = {str(row[0]): Current(*row[1:]) for row in self.run(self.lock(query))}
        for name in keys:
            self._known[_slot(machine, name)] = found.get(name, _ABSENT)

    def _write(self, transition: Transition, key: str, current: Current, event: Any, seq: int | None) -> bool:
        machine = transition.machine
        if current.state is None:
            if transition.insert is not None:
                self._insert(transition, key, event, seq)
            return True  # without insert=, the handler makes the row
        values = {machine.column: transition.target, **_assigned(transition, event)}
        if machine.version is not None:
            values[machine.version] = seq
        target = table(machine.table, column(machine.key), *(column(name) for name in values))
        conditional = update(target).where(
            target.c[machine.key] == key, target.c[machine.column] == current.state
        )
        return bool(self.run(conditional.values(values)).rowcount)

    def _insert(self, transition: Transition, key: str, event: Any, seq: int | None) -> None:
        machine = transition.machine
        values = {machine.key: key, machine.column: transition.target, **_assigned(transition, event)}
        if machine.version is not None:
            values[machine.version] = seq
        if transition.insert is not None:
            values.update(transition.insert(event))
        self.run(insert(table(machine.table, *(column(name) for name in values))).values(values))


def entity_key(transition: Transition, task: Task) -> str:
    """The key of the entity that a message moves."""
    if transition.key_from is None:
        return task.sharding_key
    try:
        return str(transition.key_from(task.event))
    except Exception as error:  # the user's function: whatever it raises is the message's fault
        raise InvalidMessage(f"key_from= of type {task.arrival.type!r} found no entity key: {error!r}") from error


def _assigned(transition: Transition, event: Any) -> dict[str, Any]:
    return {name: value(event) if _is_of_event(value) else value for name, value in transition.assign.items()}


def _is_of_event(value: Any) -> bool:
    return callable(value) and not hasattr(value, "__clause_element__") and not hasattr(value, "compile")


def _slot(machine: StateMachine, key: str) -> tuple[str, str, str]:
    return machine.table, machine.column, key
