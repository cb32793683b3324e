"""Codecs: what goes in comes out; what can't be said or read is refused in words."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim import BytesCodec, InvalidMessage, JsonCodec

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(TEXT, VALUES, max_size=5))
def test_an_object_comes_back_as_it_went(body):
    codec = JsonCodec()
    assert codec.decode(codec.encode(body)) == body


@given(VALUES)
def test_any_value_comes_back_where_it_is_allowed(body):
    codec = JsonCodec(any_value=True)
    assert codec.decode(codec.encode(body)) == body


@pytest.mark.parametrize("body", [None, 1, "a", [1], True])
def test_what_is_no_object_is_refused_both_ways_with_the_remedy(body):
    with pytest.raises(InvalidMessage, match="any_value=True"):
        JsonCodec().encode(body)
    with pytest.raises(InvalidMessage, match="any_value=True"):
        JsonCodec().decode(json.dumps(body).encode())


@pytest.mark.parametrize(
    "body", [{"a": float("nan")}, {"a": float("inf")}, {"a": {1}}, {"a": b"x"}, {"a": "\ud800"}, {"a": object()}]
)
def test_what_json_cannot_say_is_refused_by_the_producer(body):
    with pytest.raises(InvalidMessage, match="JSON"):
        JsonCodec().encode(body)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"{} {}", b'{"a":\xff}', b'{"a":NaN}', b'{"a":-Infinity}', b"{'a':1}", b'{"a":1,}', b"\x00", b"<a/>",
     b"[" * 100_000, b'{"a":' * 100_000, b'{"a":' + b"9" * 10_000 + b"}"],
    ids=range(13),
)  # fmt: skip
def test_what_is_not_json_is_refused_by_the_consumer(data):
    # field case FC-D7
    with pytest.raises(InvalidMessage, match="body"):
        JsonCodec().decode(data)


@given(st.binary(max_size=60))
def test_no_bytes_do_more_than_be_refused(data):
    try:
        value = JsonCodec().decode(data)
    except InvalidMessage:
        return
    assert isinstance(value, dict)


@pytest.mark.parametrize("levels", [1, 39, 40])
def test_nesting_up_to_the_limit_passes(levels):
    body = json.loads('{"a":' * levels + "1" + "}" * levels)
    assert JsonCodec().decode(JsonCodec().encode(body)) == body


@pytest.mark.parametrize("levels", [41, 50, 900])
@pytest.mark.parametrize(("opening", "closing"), [('{"a":', "}"), ("[", "]")])
def test_deeper_nesting_is_refused_both_ways(levels, opening, closing):
    # field case FC-D7
    data = ('{"x":' + opening * (levels - 1) + "1" + closing * (levels - 1) + "}").encode()
    with pytest.raises(InvalidMessage, match="40 levels"):
        JsonCodec().decode(data)
    with pytest.raises(InvalidMessage, match="40 levels"):
        JsonCodec().encode(json.loads(data))


def test_many_brackets_side_by_side_or_in_text_are_no_depth():
    body = {"a": [[] for _ in range(500)], "b": "[" * 500}
    assert JsonCodec().decode(JsonCodec().encode(body)) == body


def test_bytes_stay_bytes():
    codec = BytesCodec()
    for body in (b"\x00\xff", bytearray(b"a"), memoryview(b"b")):
        assert codec.decode(codec.encode(body)) == bytes(body)
    with pytest.raises(InvalidMessage, match="takes bytes"):
        codec.encode("text")
