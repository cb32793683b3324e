"""Every interleaving of a scenario, breadth first, so that a counterexample is a shortest one.

Afterwards the steps that are no faults are walked backwards from the final states: a state from which no
final one can be reached without a fault is `STUCK`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from .promises import broken_in, is_final
from .protocol import Protocol
from .scenario import Scenario
from .state import State
from .steps import Step


@dataclass(frozen=True)
class Result:
    """What an exploration found: the broken promise, if any, with its shortest story."""

    states: int
    steps: int
    seconds: float
    broken: str | None = None
    trace: tuple[str, ...] = ()

    @property
    def promise(self) -> str | None:
        """The broken promise's short name."""
        return self.broken.split()[0] if self.broken else None


@dataclass
class _Graph:
    ids: dict[State, int] = field(default_factory=dict)
    states: list[State] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    back: list[list[int]] = field(default_factory=list)

    def add(self, state: State, parent: int) -> int:
        self.ids[state] = len(self.states)
        self.states.append(state)
        self.parent.append(parent)
        self.back.append([])
        return len(self.states) - 1

    def path(self, i: int) -> list[State]:
        path = []
        while i >= 0:
            path.append(self.states[i])
            i = self.parent[i]
        return path[::-1]


def explore(sc: Scenario) -> Result:
    """Visit every state of a scenario; stop at the first broken promise."""
    protocol, graph, begun, steps = Protocol(sc), _Graph(), time.perf_counter(), 0
    graph.add(protocol.canonical(protocol.first()), -1)
    i, found = 0, None
    while i < len(graph.states) and found is None:
        for step in protocol.steps(graph.states[i]):
            steps += 1
            broken = _visit(protocol, graph, i, step)
            if broken:
                found = (broken, _trace(protocol, graph.path(i), broken))
                break
        i += 1
    if found is None and (stuck := _stuck(sc, graph)) is not None:
        found = ("STUCK no final state can be reached", _trace(protocol, graph.path(stuck), ""))
    broken, trace = found or (None, ())
    return Result(len(graph.states), steps, time.perf_counter() - begun, broken, trace)


def _visit(protocol: Protocol, graph: _Graph, i: int, step: Step) -> str | None:
    state = protocol.canonical(step.state)
    j = graph.ids.get(state)
    broken = step.broken or (broken_in(protocol.sc, state) if j is None else None)
    if broken is None:
        j = graph.add(state, i) if j is None else j
        if not step.fault:
            graph.back[j].append(i)
    return broken


def _stuck(sc: Scenario, graph: _Graph) -> int | None:
    todo = [i for i, state in enumerate(graph.states) if is_final(sc, state)]
    saved = set(todo)
    while todo:
        new = [i for i in graph.back[todo.pop()] if i not in saved]
        saved.update(new)
        todo += new
    return next((i for i in range(len(graph.states)) if i not in saved), None)


def _trace(protocol: Protocol, path: list[State], broken: str) -> tuple[str, ...]:
    """Replay without the folding of lanes, so that A stays A."""
    labels, state = [], protocol.first()
    for wanted in path[1:]:
        step = next(step for step in protocol.steps(state) if protocol.canonical(step.state) == wanted)
        labels.append(step.label)
        state = step.state
    for step in protocol.steps(state) if broken else ():
        if broken in (step.broken, broken_in(protocol.sc, step.state)):
            labels.append(step.label)
            break
    return tuple(labels)
