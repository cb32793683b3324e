"""Whether two bodies say the same: names in any order and white space don't count, everything else does."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.core.digest import digest

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
BODIES = st.dictionaries(st.text(max_size=4), VALUES, max_size=5) | st.lists(VALUES, max_size=4)


def shuffled(value, chance):
    if isinstance(value, dict):
        items = list(value.items())
        chance.shuffle(items)
        return {name: shuffled(inner, chance) for name, inner in items}
    return [shuffled(inner, chance) for inner in value] if isinstance(value, list) else value


@given(BODIES, st.randoms(use_true_random=False), st.sampled_from([None, 1, "\t"]), st.booleans())
def test_names_in_another_order_at_any_depth_and_white_space_do_not_count(body, chance, indent, ascii_only):
    # field case FC-K5
    written = json.dumps(shuffled(body, chance), indent=indent, ensure_ascii=ascii_only)
    try:
        other = f" \r\n\t{written}\n".encode()
    except UnicodeEncodeError:  # half a character, which only ASCII can write
        return
    assert digest(json.dumps(body).encode()) == digest(other)


def test_a_payload_reordered_at_depth_three_says_the_same():
    # field case FC-K5
    one = b'{"order":{"lines":[{"sku":"a","price":{"amount":1,"currency":"EUR"}}],"id":7}}'
    other = b'{"order":{"id":7,"lines":[{"price":{"currency":"EUR","amount":1},"sku":"a"}]}}'
    assert digest(one) == digest(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"a":1}', b'{"a":2}'),
        (b'{"a":1}', b'{"a":"1"}'),
        (b'{"a":1}', b'{"a":true}'),
        (b'{"a":0}', b'{"a":false}'),
        (b'{"a":null}', b"{}"),
        (b'{"a":[1,2]}', b'{"a":[2,1]}'),
        (b'{"a":[]}', b'{"a":{}}'),
        (b'{"a":"x"}', b'{"A":"x"}'),
        (b'{"a":"x"}', b'{"a":"x "}'),
        ('{"a":"é"}'.encode(), '{"a":"e\u0301"}'.encode()),
        (b'{"a":1,"a":2}', b'{"a":2,"a":1}'),
        (b'{"a":1,"a":2}', b'{"a":2}'),
        (b'{"a":9007199254740993}', b'{"a":9007199254740992}'),
        (b'{"a":123456789012345678901234567890}', b'{"a":123456789012345678901234567891}'),
        (b'{"a":1e400}', b'{"a":1e401}'),
        (b'{"a":NaN}', b'{"a":Infinity}'),
        (b"{", b"{ "),
        (b"a b", b"a  b"),
        (b"", b" "),
        (b"\x00", b"\x00\x00"),
        (b"\xff{}", b"{}"),
    ],
)
def test_what_says_something_else_is_told_apart(one, other):
    assert digest(one) != digest(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"a":1.0}', b'{"a":1}'),
        (b'{"a":10}', b'{"a":1e1}'),
        (b'{"a":0.5}', b'{"a":5e-1}'),
        (b'{"a":-0.0}', b'{"a":0}'),
        (b'{"a":"\\u00e9"}', '{"a":"é"}'.encode()),
        (b'{"a":"\\/"}', b'{"a":"/"}'),
    ],
)
def test_one_value_written_in_two_ways_says_the_same(one, other):
    assert digest(one) == digest(other)


@given(st.binary(max_size=200))
def test_any_bytes_have_a_digest_of_32_bytes_and_always_the_same(body):
    assert len(digest(body)) == 32
    assert digest(body) == digest(bytes(bytearray(body)))


@given(st.binary(min_size=1, max_size=40), st.integers(0, 39), st.integers(1, 255))
def test_one_byte_changed_in_what_is_not_json_is_another_body(body, at, by):
    body = b"\x01" + body
    changed = bytearray(body)
    changed[at % len(body)] ^= by
    if changed[0] == 1:
        assert digest(body) != digest(bytes(changed))


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"a":' * 100_000, b'{"a":"\\ud800"}', b'{"a":' + b"9" * 9999 + b"}"]
)
def test_hostile_json_is_compared_by_its_bytes(body):
    assert digest(body) == digest(body)
    assert digest(body) != digest(body + b" ")


def test_the_digest_is_fixed_for_ever():
    # records of older releases are compared with it
    assert digest(b'{"b":[1.5,"\xc3\xa9"],"a":1.0}').hex() == (
        "2bb202b35963ad9e57f87e5828e072cc53f4720ecd10a7d625f850411a31c4c6"
    )
    assert digest(b"plain").hex() == "a116c9ed46d6207734a43317d30fd88f52ac8634c37d904bbf4e41d865f90475"
