"""Stored responses: one obvious text, or a clear refusal."""

import dataclasses
import datetime as dt
import decimal
import enum
import json
import math
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from seriatim.core.response import MAX_RESPONSE, BadResponse, encode_response


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Line:
    price: decimal.Decimal
    colour: Colour


class Model(BaseModel):
    at: dt.date


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (decimal.Decimal("1.10"), '"1.10"'),
        (dt.date(2026, 1, 2), '"2026-01-02"'),
        (dt.time(1, 2, 3, 4), '"01:02:03.000004"'),
        (dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc), '"2026-01-02T00:00:00+00:00"'),
        (b"\x00\xff", '"AP8="'),
        (bytearray(b"a"), '"YQ=="'),
        ({3, 1, 2}, "[1,2,3]"),
        (frozenset("ba"), '["a","b"]'),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (Colour.RED, '"red"'),
        (Line(decimal.Decimal(5), Colour.RED), '{"price":"5","colour":"red"}'),
        (Model(at=dt.date(2026, 1, 2)), '{"at":"2026-01-02"}'),
        ({"a": [{"b": {decimal.Decimal(1)}}]}, '{"a":[{"b":["1"]}]}'),
        ((1, 2), "[1,2]"),
        ({1: "a"}, '{"1":"a"}'),
        ("é😀", '"é😀"'),
    ],
)  # fmt: skip
def test_a_value_with_one_obvious_text_is_written_as_that(value, text):
    # field case FC-K7
    assert encode_response(value) == text.encode()


def test_nothing_is_nothing():
    assert encode_response(None) is None


@pytest.mark.parametrize("value", [0, False, "", [], {}])
def test_what_is_empty_is_still_an_answer(value):
    assert json.loads(encode_response(value)) == value


def endless():
    value = []
    value.append(value)
    return value


def deep():
    value = []
    for _ in range(200_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, {"a": math.nan}, object(), {("a", "b"): 1}, {1, "a"}, endless(), deep(), "\ud800",
     lambda: None, iter(()), Colour, Line, {b"a": 1}, 1j],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_value_without_one_is_refused(value):
    # field case FC-K7
    with pytest.raises(BadResponse, match="response"):
        encode_response(value)


def test_the_limit_is_of_bytes_and_itself_allowed():
    assert len(encode_response("é" * 5, 12)) == 12
    with pytest.raises(BadResponse, match=r"13 bytes.*12"):
        encode_response("é" * 5 + "a", 12)
    assert len(encode_response("x" * (MAX_RESPONSE - 2))) == MAX_RESPONSE


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    )
)
def test_what_json_can_say_comes_back_as_it_was(value):
    stored = encode_response(value, 10**9)
    assert (None if stored is None else json.loads(stored)) == value
    assert encode_response(value, 10**9) == stored
