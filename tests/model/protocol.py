"""Who may do what next: two lanes, an operator, the broker, the server and the world outside, one step at a
time.

Safety rests on one row: whoever changes a key holds the partition_owner row of its partition, lane and verb
alike, from before it reads to its commit. Rules taken away (`Scenario.lacks`) let others in between, or let
a transaction decide otherwise.

A `Step` says whether it is a fault: the way out of every state may use none (`STUCK`, explore.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from . import promises
from .lanes import Lanes
from .operators import Operators
from .scenario import Scenario
from .state import Change, Lane, State, first_state, write
from .steps import Step, cleared, stamped


class Protocol:
    """The steps of one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        """Prepare the steps of a scenario."""
        self.sc = scenario
        self.lanes, self.operators = Lanes(scenario), Operators(scenario)

    def first(self) -> State:
        """Return the first state."""
        return first_state(self.sc)

    def steps(self, s: State) -> Iterator[Step]:
        """Yield all that may happen next."""
        yield from self.lanes.steps(s, 0)
        yield from self.lanes.steps(s, 1)
        yield from self.operators.steps(s)
        yield from self._surroundings(s)

    def canonical(self, s: State) -> State:
        """Fold states that differ only in which lane is which, or in what a stale lane remembers."""
        first, second = self._forgetful(s.lanes[0]), self._forgetful(s.lanes[1])
        return s._replace(lanes=(first, second) if hash(first) <= hash(second) else (second, first))

    def _forgetful(self, lane: Lane) -> Lane:
        if self.lanes.tracks_epoch or self.sc.lacks("fence", "ack_by_subscriber", "hand_over_quiet"):
            return lane
        if lane.phase == "settling" and not lane.subscribed:
            lane = lane._replace(phase="subscribing", cursor=0)
        if lane.phase in ("subscribing", "idle") and not lane.owns and lane.cursor:
            lane = lane._replace(cursor=0)
        return lane

    def _surroundings(self, s: State) -> Iterator[Step]:
        if s.pending is not None:
            stale = not s.pending.current
            tables, broken = promises.commit(self.sc, s.tables, s.pending.writes, stale=stale)
            done = stamped(self.sc, s._replace(tables=tables, pending=None, fresh_claim=False))
            yield Step("server: the unknown commit succeeds", done, broken)
            yield Step("server: the unknown commit rolls back", s._replace(pending=None))
        for b in self.sc.from_outside if s.budget.outside else ():
            if not s.tables.has_effect(b) and not self._guard_holds(s, b):
                t = s._replace(tables=write(s.tables, Change("effect", b)))
                t = t._replace(budget=s.budget._replace(outside=s.budget.outside - 1))
                yield Step(f"outside: {self.sc.messages[b].name} takes effect", t, fault=True)
        if s.fresh_claim and s.budget.failover:
            yield self._failover(s)

    def _guard_holds(self, s: State, b: int) -> bool:
        """Whether an open transaction judged early what needs `b`: that reading locked the business row."""
        if self.sc.lacks("guard_locks"):
            return False
        open_writes = [lane.writes for lane in s.lanes if lane.phase == "decided"]
        open_writes += [s.pending.writes] if s.pending else []
        judged = (w.target for writes in open_writes for w in writes if w.kind == "record" and w.value != "applied")
        return any(self.sc.messages[e].needs == b for e in judged)

    def _failover(self, s: State) -> Step:
        """Lose the last claim: the row is what it was, every transaction dies."""
        lanes = []
        for lane in s.lanes:
            back = cleared(lane) if lane.phase in ("decided", "waiting", "peeked") else lane
            lanes.append(back._replace(owns=lane.owned_before, owned_before=False))
        t = s._replace(lanes=(lanes[0], lanes[1]), verb=None, pending=None, fresh_claim=False, epoch=s.epoch - 1)
        t = t._replace(budget=s.budget._replace(failover=s.budget.failover - 1))
        return Step("store: a fail-over loses the last claim", t, fault=True)
