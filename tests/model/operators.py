"""What operators and the daemon do: verbs, each a transaction under the partition_owner row; a purge."""

from __future__ import annotations

from collections.abc import Iterator

from . import promises
from .decisions import plan_verb
from .scenario import Scenario
from .state import Change, Shown, State, Verb, write
from .steps import Step, row_free, stamped


class Operators:
    """The steps of operators; one verb at a time."""

    def __init__(self, scenario: Scenario) -> None:
        """Prepare the steps of a scenario."""
        self.sc = scenario
        self.queue = scenario.mode == "queue"

    def steps(self, s: State) -> Iterator[Step]:
        """Yield what an operator may do next."""
        if s.verb is not None:
            yield from self._goes_on(s, s.verb)
            return
        for verb, target in self._verbs(s):
            nolock = self.sc.lacks(f"{verb}_locks_owner", "verbs_lock_owner") or verb == "give_up"
            key_first = self.sc.lacks("owner_row_first")
            if not (row_free(s) or nolock or key_first):
                continue
            by_key = verb in ("hold", "release")
            key = target if by_key else self.sc.messages[target].key
            writes = plan_verb(self.sc, s.tables, verb, target, s.shown)
            if writes:
                begun = Verb(verb, key, writes, locks=not (nolock or key_first), wants_owner=key_first)
                yield Step(f"operator: {verb} begins", s._replace(verb=begun), fault=verb != "release")
        yield from self._shows(s)
        yield from self._purges(s)

    def _verbs(self, s: State) -> Iterator[tuple[str, int]]:
        for k, key in enumerate(s.tables.keys):
            if key is not None and key.held:
                yield "release", k
            elif s.budget.hold:
                yield "hold", k
        if s.shown and s.budget.skip:
            yield "skip", s.shown.message
        for b, record in enumerate(s.tables.record):
            if record == "rejected" and s.budget.retry:
                yield "retry", b
            elif record == "early" and self.sc.lacks("lane_gives_up") and self._all_read(s):
                yield "give_up", b

    def _all_read(self, s: State) -> bool:
        return len(self.sc.log) == (s.acked if self.queue else s.tables.position)

    def _shows(self, s: State) -> Iterator[Step]:
        if s.shown is not None or not s.budget.skip:
            return
        for k in range(self.sc.keys):
            queue, aside = s.tables.rows(self.sc, k, "queue"), s.tables.rows(self.sc, k, "aside")
            for b in (*queue, *aside):
                followers = queue[1:] if b in queue[:1] and self.sc.lacks("followers_under_lock") else ()
                label = f"operator is shown {self.sc.messages[b].name}"
                yield Step(label, s._replace(shown=Shown(b, b in queue[:1], followers)), fault=True)

    def _purges(self, s: State) -> Iterator[Step]:
        for b, record in enumerate(s.tables.record if s.budget.purge else ()):
            if record == "applied" and s.tables.keys[self.sc.messages[b].key] is None:
                t = s._replace(tables=write(s.tables, Change("record", b, "")))
                t = t._replace(budget=s.budget._replace(purge=s.budget.purge - 1))
                yield Step(f"daemon purges the record of {self.sc.messages[b].name}", t, fault=True)

    def _goes_on(self, s: State, verb: Verb) -> Iterator[Step]:
        yield Step(f"{verb.name} is rolled back", s._replace(verb=None), fault=True)
        if verb.wants_owner:
            if row_free(s):
                yield Step(
                    f"{verb.name} locks the owner row",
                    s._replace(verb=verb._replace(locks=True, wants_owner=False)),
                )
            return
        tables, broken = promises.commit(self.sc, s.tables, verb.writes, stale=False)
        budget = s.budget
        if verb.name in budget._fields:
            budget = budget._replace(**{verb.name: getattr(budget, verb.name) - 1})
        shown = None if verb.name == "skip" else s.shown
        done = stamped(self.sc, s._replace(tables=tables, verb=None, shown=shown, budget=budget))
        yield Step(f"{verb.name} commits", done, broken)
