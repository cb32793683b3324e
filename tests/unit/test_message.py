"""Messages: what a key may be, said once and the same for every field."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim import App, InvalidMessage, Message
from seriatim.core.message import MAX_KEY, MAX_TOPIC, MAX_TYPE, check_text

GOOD = {"topic": "orders", "sharding_key": "o1", "biz_key": "o1:paid", "type": "paid", "body": b"{}"}
LIMITS = {"topic": MAX_TOPIC, "sharding_key": MAX_KEY, "biz_key": MAX_KEY, "type": MAX_TYPE}


@pytest.mark.parametrize("field", LIMITS)
def test_a_name_of_the_longest_length_passes_and_one_more_is_refused_by_name(field):
    limit = LIMITS[field]
    assert getattr(Message(**GOOD | {field: "é" * limit}), field) == "é" * limit
    with pytest.raises(InvalidMessage, match=f"{limit + 1} characters; at most {limit}"):
        Message(**GOOD | {field: "x" * (limit + 1)})


@pytest.mark.parametrize("field", LIMITS)
@pytest.mark.parametrize("value", [None, "", " ", "\t\n", 7, b"o1", "a\x00b", "\ud800", "a\udfff"])
def test_a_name_that_is_no_text_blank_or_unkeepable_is_refused(field, value):
    with pytest.raises(InvalidMessage, match=r"topic|sharding key|biz_key|message type"):
        Message(**GOOD | {field: value})


@given(st.text(max_size=20) | st.text("ab \x00", min_size=250, max_size=260))
def test_text_passes_as_it_is_or_not_at_all(value):
    try:
        assert check_text("key", value, MAX_KEY) is value
    except InvalidMessage:
        assert (
            not value.strip()
            or len(value) > MAX_KEY
            or "\x00" in value
            or any("\ud800" <= c <= "\udfff" for c in value)
        )


@pytest.mark.parametrize("name", ["seriatim-key", "Seriatim-Key", "SERIATIM-", "seriatim-anything"])
def test_the_suite_s_own_headers_are_refused_in_any_case(name):
    with pytest.raises(InvalidMessage, match="rename"):
        Message(**GOOD, headers={name: "x"})
    with pytest.raises(InvalidMessage, match="rename"):
        Message(**GOOD).with_headers(**{name: "x"})


def test_headers_are_added_to_a_copy():
    message = Message(**GOOD, headers={"a": "1"})
    assert message.with_headers(b="2").headers == {"a": "1", "b": "2"}
    assert message.headers == {"a": "1"}


@pytest.mark.parametrize(
    "wrong",
    [{"seq": 2**63}, {"seq": "7"}, {"seq": 1.0}, {"seq": True}, {"produced_at": float("nan")}, {"produced_at": -1.0},
     {"produced_at": 1.7e15}, {"produced_at": float("inf")}],
)  # fmt: skip
def test_a_number_that_no_consumer_could_read_is_refused(wrong):
    with pytest.raises(InvalidMessage, match=next(iter(wrong))):
        Message(**GOOD, **wrong)


def test_a_biz_key_is_made_of_key_and_type_only_where_that_is_unique():
    orders = App("shop").topic("orders", partitions=2)
    orders.on("paid", once=True)(lambda event, ctx: None)
    orders.on("noted")(lambda event, ctx: None)
    assert orders.message(key="o1", type="paid", body={}).biz_key == "o1:paid"
    for kind in ("noted", "unknown"):
        with pytest.raises(InvalidMessage, match=f"(?s){kind}.*biz_key.*once=True"):
            orders.message(key="o1", type=kind, body={})
        assert orders.message(key="o1", type=kind, body={}, biz_key="b").biz_key == "b"


@pytest.mark.parametrize("key", [42, "42", b"42"])
def test_a_number_its_text_and_its_bytes_make_one_message(key):
    # field case FC-R8, the part of the message
    orders = App("shop").topic("orders", partitions=2)
    orders.on("paid", once=True)(lambda event, ctx: None)
    message = orders.message(key=key, type="paid", body={})
    assert (message.sharding_key, message.biz_key) == ("42", "42:paid")
