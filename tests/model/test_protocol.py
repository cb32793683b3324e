"""The protocol keeps its promises in every interleaving; without a rule, a promise breaks."""

from __future__ import annotations

import pytest

from .explore import explore
from .mutants import BRIEF, MUTANTS, WHOLE, Mutant
from .scenario import Mode, Scenario


def _named(scenario: Scenario) -> str:
    return f"{scenario.mode}: {scenario.log_text}"


def _pairs(*, noticed: bool) -> list[object]:
    return [
        pytest.param(mutant, mode, id=f"{mutant.name}-{mode}")
        for mutant in MUTANTS
        for mode in mutant.modes
        if (mutant.expect is not None) == noticed
    ]


@pytest.mark.parametrize(("scenario", "at_least"), BRIEF, ids=[_named(scenario) for scenario, _ in BRIEF])
def test_every_promise_holds_in_every_interleaving(scenario: Scenario, at_least: int) -> None:
    """Crashes, lost leases, lost answers and failures at any step break nothing."""
    result = explore(scenario)
    assert result.broken is None, result.trace
    assert result.states > at_least


@pytest.mark.parametrize(("mutant", "mode"), _pairs(noticed=True))
def test_a_rule_taken_away_breaks_the_promise_that_rests_on_it(mutant: Mutant, mode: Mode) -> None:
    """No rule is idle: the very promise that it serves breaks without it."""
    result = explore(mutant.scenario(mode))
    assert result.promise == mutant.expect, (mutant.meaning, result.broken, result.trace)


@pytest.mark.parametrize(("mutant", "mode"), _pairs(noticed=False))
def test_a_second_line_of_defence_is_not_needed_while_the_first_stands(mutant: Mutant, mode: Mode) -> None:
    """What the table calls not caught is so, and it says why."""
    assert mutant.because
    assert explore(mutant.scenario(mode)).broken is None


def test_the_whole_run_has_both_modes_and_every_kind_of_trouble() -> None:
    """A full run can't become vacuous by a slip of its bounds."""
    assert {scenario.mode for scenario in WHOLE} == {"log", "queue"}
    for trouble in ("fail", "reject", "hold", "skip", "retry", "outside"):
        assert any(getattr(scenario.budget, trouble) for scenario in WHOLE), trouble


def test_the_readme_lists_every_mutant(request: pytest.FixtureRequest) -> None:
    """The table that people read is the one that is run."""
    readme = (request.path.parent / "README.md").read_text(encoding="utf-8")
    for mutant in MUTANTS:
        row = next((line for line in readme.splitlines() if line.startswith(f"| `{mutant.name}` ")), "")
        assert (mutant.expect or "not caught") in row, mutant.name
