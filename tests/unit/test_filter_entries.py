"""Entries of the front filter: what is written can be read, and whatever else is found is unknown."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.core.decision import Outcome
from seriatim.core.filtering.port import FINAL, FilterEntry
from seriatim.core.filtering.redis import parse, written

ENTRY = FilterEntry(b"\x00\xff" * 16, "order.paid", Outcome.APPLIED)
ENTRIES = st.builds(
    FilterEntry,
    st.binary(min_size=32, max_size=32),
    st.none() | st.text(max_size=64),
    st.sampled_from(sorted(FINAL)),
)


@given(ENTRIES)
def test_what_is_written_is_read(entry):
    text = written(entry)
    assert text.isascii()
    assert [parse(text), parse(text.encode())] == [entry, entry]


def changed(**values):
    return json.dumps(json.loads(written(ENTRY)) | values)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        b"",
        b"\xff\xfe",
        "1",
        "null",
        "[]",
        "{}",
        "[" * 100_000,
        written(ENTRY)[:-1],
        changed(v=2),
        changed(digest="00"),
        changed(digest="zz" * 32),
        changed(digest=None),
        changed(type=7),
        changed(outcome="rejected"),
        changed(outcome="parked"),
        changed(outcome=["applied"]),
    ],
)
def test_what_isn_t_an_entry_is_unknown(value):
    assert parse(value) is None


@given(st.binary(max_size=200))
def test_no_bytes_are_too_odd(value):
    assert parse(value) is None or isinstance(parse(value), FilterEntry)


def test_only_records_that_no_verb_reopens_are_remembered():
    assert {Outcome.APPLIED, Outcome.ALREADY, Outcome.STALE} == FINAL
