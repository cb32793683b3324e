"""Waiting before the next try: between base and cap at any attempt, and never twice the same for everybody."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim import Backoff

ATTEMPTS = [0, 1, 2, 46, 47, 63, 64, 65, 1023, 1024, 10**6, 10**30, -1]


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_the_wait_lies_between_base_and_cap_at_any_attempt(attempt):
    # field case FC-D5
    assert 1.0 <= Backoff(base_s=1.0, cap_s=300.0).delay(attempt) <= 300.0


@given(
    st.integers(-(10**9), 10**18),
    st.floats(1e-6, 1e9),
    st.floats(1e-6, 1e300),
    st.floats(1.0, 1e300),
)
def test_no_setting_overflows(attempt, base_s, cap_s, factor):
    # field case FC-D5, the kind
    wait = Backoff(base_s=base_s, cap_s=cap_s, factor=factor).delay(attempt)
    assert min(base_s, cap_s) <= wait <= cap_s


def test_waits_grow_until_the_cap_and_stay_there():
    backoff = Backoff(base_s=1.0, cap_s=60.0)
    for attempt in range(1, 200):
        whole = min(60.0, 2.0 ** min(attempt - 1, 10))
        waits = [backoff.delay(attempt) for _ in range(50)]
        assert max(1.0, whole / 2) <= min(waits)
        assert max(waits) <= whole


def test_many_who_failed_together_come_back_apart():
    waits = {Backoff(base_s=1.0, cap_s=60.0).delay(6) for _ in range(100)}
    assert len(waits) > 90
    assert max(waits) - min(waits) > 8


def test_a_given_source_of_chance_makes_it_repeatable():
    one, other = (Backoff(random=random.Random(7)) for _ in range(2))
    assert [one.delay(n) for n in range(20)] == [other.delay(n) for n in range(20)]
