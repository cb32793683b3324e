"""A batch's size: as large as allowed, halved by contention, kept to the handlers' time, never none."""

from hypothesis import given
from hypothesis import strategies as st

from seriatim.core.sizing import BatchSize


def test_it_begins_with_all_that_is_allowed():
    assert BatchSize(100, 0.02).limit == 100


def test_contention_halves_it_and_success_lets_it_grow_slowly_back():
    size = BatchSize(100, 10.0)
    limits = []
    for _ in range(8):
        size.contended()
        limits.append(size.limit)
    assert limits == [50, 25, 12, 6, 3, 1, 1, 1]
    grown = []
    for _ in range(80):
        size.succeeded(1, 0.0)
        grown.append(size.limit)
    assert grown[0] <= 5
    assert grown == sorted(grown)
    assert grown[-1] == 100


def test_slow_handlers_make_it_small_and_quick_ones_large_again():
    size = BatchSize(100, 0.02)
    for _ in range(30):
        size.succeeded(1, 0.01)
    assert size.limit == 6
    size.succeeded(1, 60.0)
    assert size.limit == 1
    for _ in range(80):
        size.succeeded(100, 0.001)
    assert size.limit == 100


def test_busy_ones_keep_it_from_becoming_very_small_and_slow_ones_never_fill_it():
    """A batch takes three times as long as it should, at most, for the sake of 25 messages."""
    limits = []
    for each in (0.0005, 0.001, 0.003, 0.01, 0.02, 0.1):
        size = BatchSize(100, 0.05)
        for _ in range(60):
            size.succeeded(1, each)
        limits.append(size.limit)
    assert limits == [100, 50, 25, 15, 7, 1]


@given(
    st.integers(1, 10_000),
    st.floats(0.001, 60),
    st.lists(st.none() | st.tuples(st.integers(0, 10_000), st.floats(0, 1e6)), max_size=60),
)
def test_whatever_happens_it_is_at_least_one_and_at_most_the_most(most, batch_s, events):
    size = BatchSize(most, batch_s)
    for happened in events:
        size.contended() if happened is None else size.succeeded(*happened)
        assert 1 <= size.limit <= most
