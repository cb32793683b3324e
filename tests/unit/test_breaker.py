"""The circuit breaker of the front filter, by a clock of the test's own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.core.filtering.breaker import Breaker, State


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def breaker(clock):
    return Breaker(rest_s=1.0, cap_s=5.0, clock=clock)


def opened(breaker):
    assert breaker.passes()
    assert breaker.failed()
    return breaker


def test_closed_everything_passes(breaker):
    for _ in range(3):
        assert breaker.passes()
        assert not breaker.succeeded(), "nothing changed"
    assert breaker.state is State.CLOSED


def test_a_failure_opens_it_and_is_told_once(breaker):
    assert breaker.passes()
    assert breaker.passes(), "a second caller, at the same time"
    assert breaker.failed()
    assert not breaker.failed(), "it was open by then"
    assert breaker.state is State.OPEN


def test_open_nothing_passes_until_the_rest_is_over(breaker, clock):
    opened(breaker)
    for passed_s in (0.0, 0.5, 0.999):
        clock.now = 1000.0 + passed_s
        assert not breaker.passes()
    clock.now = 1001.0
    assert breaker.passes()


def test_half_open_one_passes_as_a_probe(breaker, clock):
    opened(breaker)
    clock.now += 1.0
    assert [breaker.passes() for _ in range(5)] == [True, False, False, False, False]
    assert breaker.state is State.HALF_OPEN


def test_a_probe_that_succeeds_closes_it_and_is_told_once(breaker, clock):
    opened(breaker)
    clock.now += 1.0
    assert breaker.passes()
    assert breaker.succeeded()
    assert breaker.state is State.CLOSED
    assert breaker.passes()
    assert not breaker.succeeded()


def test_a_probe_that_fails_opens_it_for_twice_as_long_up_to_the_cap(breaker, clock):
    opened(breaker)
    rests = []
    for rest_s in (1.0, 2.0, 4.0, 5.0, 5.0):
        clock.now += rest_s - 0.001
        assert not breaker.passes()
        clock.now += 0.001
        assert breaker.passes()
        assert not breaker.failed(), "it never closed: nothing new to tell"
        rests.append(rest_s)
    clock.now += 5.0
    assert breaker.passes()
    assert breaker.succeeded()
    assert breaker.failed()
    clock.now += 1.0
    assert breaker.passes(), "after it has closed the rests begin anew"


def test_a_probe_that_never_reports_back_is_followed_by_another(breaker, clock):
    opened(breaker)
    clock.now += 1.0
    assert breaker.passes()
    clock.now += 0.999
    assert not breaker.passes()
    clock.now += 0.001
    assert breaker.passes()


def test_an_old_call_s_success_doesn_t_close_it(breaker, clock):
    assert breaker.passes()
    opened(breaker)
    assert not breaker.succeeded()
    assert breaker.state is State.OPEN


def test_an_old_call_s_failure_doesn_t_prolong_the_rest(breaker, clock):
    assert breaker.passes()
    opened(breaker)
    clock.now += 0.9
    assert not breaker.failed()
    clock.now += 0.1
    assert breaker.passes()


def test_it_may_take_several_failures_in_a_row(clock):
    breaker = Breaker(failures=3, clock=clock)
    assert not breaker.failed()
    assert not breaker.failed()
    breaker.succeeded()
    assert [breaker.failed() for _ in range(3)] == [False, False, True]


def test_many_threads_have_one_probe(breaker, clock):
    opened(breaker)
    clock.now += 1.0
    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(lambda _: breaker.passes(), range(200))) == 1


@given(st.lists(st.sampled_from(["good", "bad", "wait"]), max_size=60))
def test_whatever_happens_it_recovers_within_its_longest_rest(steps):
    clock = Clock()
    breaker = Breaker(rest_s=1.0, cap_s=5.0, clock=clock)
    for step in steps:
        clock.now += 0.7 if step == "wait" else 0.0
        if step != "wait" and breaker.passes():
            breaker.succeeded() if step == "good" else breaker.failed()
    clock.now += 5.0
    assert breaker.passes()
    breaker.succeeded()
    assert breaker.state is State.CLOSED
