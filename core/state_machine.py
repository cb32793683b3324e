"""The state machine of a business entity, as data, and the pure judgement of one transition.

A `StateMachine` names a table, its key and its state column, and lists each state's legal predecessors. It is checked
when it is built. `judge` says what becomes of a message that wants to move an entity: it touches no database;
`seriatim.core.guard` reads and writes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from seriatim.core.errors import ConfigurationError


class Move(enum.Enum):
    """What becomes of a wanted transition."""

    APPLY = "apply"  #: the current state is a legal predecessor
    ALREADY = "already"  #: the entity is in the wanted state
    STALE = "stale"  #: the wanted state lies behind the current one
    ILLEGAL = "illegal"  #: neither state reaches the other
    EARLY = "early"  #: the wanted state lies ahead, or the row is absent
    UNKNOWN = "unknown"  #: the current state isn't in the graph


@dataclass(frozen=True, slots=True)
class Current:
    """What the business row says now; a row that isn't `present` has no state, one that is may have NULL."""

    state: str | None
    version: int | None = None
    present: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Transition:
    """A move of one entity to `target`, wanted by one message type.

    `assign` are other columns written with the state: values, SQL expressions, or functions of the event.
    `insert` gives the columns of a new row for a state without predecessors (else the handler creates the row).
    `key_from` gives the entity's key where it isn't the sharding key.
    """

    machine: StateMachine
    target: str
    assign: Mapping[str, Any] = field(default_factory=dict)
    insert: Callable[[Any], Mapping[str, Any]] | None = None
    key_from: Callable[[Any], str] | None = None


@dataclass(frozen=True, eq=False)
class StateMachine:
    """States of the rows of `table`, whose key column is `key` and whose state column is `column`.

    `after` lists each state's legal predecessors; a state with none requires an absent row. A graph with a cycle
    can't tell early from stale by its states, so it needs `version`: a column that holds the `seq` of the last
    message applied.

    Raises:
        ConfigurationError: a predecessor isn't a state, no state can begin, or a cycle has no version.
    """

    table: str
    key: str
    column: str
    after: Mapping[str, tuple[str, ...]]
    version: str | None = None
    _ahead: Mapping[str, frozenset[str]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for state, before in self.after.items():
            if isinstance(before, str):
                raise ConfigurationError(f"state machine {self.table}: after[{state!r}] must be a tuple of states")
            for name in before:
                if name not in self.after:
                    raise ConfigurationError(
                        f"state machine {self.table}: {state!r} comes after {name!r}, which isn't a state of the graph"
                    )
        if not any(not before for before in self.after.values()):
            raise ConfigurationError(f"state machine {self.table}: no state is without predecessors, so none can begin")
        ahead = {state: frozenset(_reachable(self.after, state)) for state in self.after}
        cyclic = sorted(state for state, reached in ahead.items() if state in reached)
        if cyclic and self.version is None:
            raise ConfigurationError(
                f"state machine {self.table}: {', '.join(cyclic)} lie on a cycle, so early and stale can't be told "
                "apart; name a version= column that holds the seq of the last message"
            )
        object.__setattr__(self, "_ahead", MappingProxyType(ahead))

    def to(
        self,
        target: str,
        *,
        set: Mapping[str, Any] | None = None,  # noqa: A002 - reads as SQL's SET
        insert: Callable[[Any], Mapping[str, Any]] | None = None,
        key_from: Callable[[Any], str] | None = None,
    ) -> Transition:
        """The transition to `target`; for a handler's ``moves=``."""
        if target not in self.after:
            raise ConfigurationError(
                f"state machine {self.table}: {target!r} isn't a state; it has {', '.join(self.after)}"
            )
        if insert is not None and self.after[target]:
            raise ConfigurationError(
                f"state machine {self.table}: {target!r} has predecessors, so its row exists: insert= can't be used"
            )
        return Transition(self, target, dict(set or {}), insert, key_from)

    def predecessors(self, state: str) -> tuple[str, ...]:
        """The legal predecessors of `state`; none for one that begins."""
        return self.after[state]

    def judge(self, current: Current, target: str, seq: int | None = None) -> Move:
        """What becomes of a message that wants `target` while the row says `current`."""
        if not current.present:
            return Move.EARLY if self.after[target] else Move.APPLY
        if current.state is None or current.state not in self.after:
            return Move.UNKNOWN
        if self.version is not None:
            return self._judge_version(current, target, seq)
        return self._judge_states(current.state, target)

    def _judge_states(self, state: str, target: str) -> Move:
        if state == target:
            return Move.ALREADY
        if state in self.after[target]:
            return Move.APPLY
        if state in self._ahead[target]:
            return Move.STALE
        return Move.EARLY if target in self._ahead[state] else Move.ILLEGAL

    def _judge_version(self, current: Current, target: str, seq: int | None) -> Move:
        last = current.version or 0
        if seq is None:
            return Move.UNKNOWN
        if seq <= last:
            return Move.ALREADY if seq == last and current.state == target else Move.STALE
        return Move.APPLY if current.state in self.after[target] else Move.EARLY

    def mermaid(self) -> str:
        """The graph as a Mermaid state diagram."""
        lines = ["stateDiagram-v2"]
        for state, before in self.after.items():
            lines += [f"    {name} --> {state}" for name in before] or [f"    [*] --> {state}"]
        return "\n".join(lines)


def _reachable(after: Mapping[str, Iterable[str]], start: str) -> set[str]:
    found: set[str] = set()
    todo = [start]
    while todo:
        state = todo.pop()
        for following, before in after.items():
            if state in before and following not in found:
                found.add(following)
                todo.append(following)
    return found
