"""The wire mapping: what was sealed is opened as it was; what can't be opened is told, with what could be read."""

from hypothesis import given
from hypothesis import strategies as st

from seriatim import InvalidMessage, Message
from seriatim.core.envelope import Malformed, open_delivery, seal
from seriatim.core.message import MAX_KEY, Delivery

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=40).filter(
    lambda text: text.strip()
)
ANY_TEXT = st.text(max_size=300) | st.text(st.characters(exclude_categories=[]), max_size=5)
MESSAGES = st.builds(
    Message,
    topic=st.just("orders"),
    sharding_key=NAMES,
    biz_key=NAMES,
    type=NAMES,
    body=st.binary(max_size=50),
    headers=st.dictionaries(NAMES.filter(lambda name: not name.lower().startswith("seriatim-")), NAMES, max_size=3),
    produced_at=st.floats(1, 4e9),
    state=st.none() | NAMES,
    seq=st.none() | st.integers(-(2**63), 2**63 - 1),
    reply_to=st.none() | NAMES,
    correlation_id=st.none() | NAMES,
)
OWN = ["key", "biz-key", "type", "produced-at", "state", "seq", "reply-to", "correlation-id", "unknown"]
RAW = st.dictionaries(
    st.sampled_from([f"seriatim-{name}" for name in OWN]) | NAMES,
    ANY_TEXT | st.integers().map(str) | st.floats().map(repr) | st.sampled_from(["1e999", "0x1", "1_0", "٣", "²", "½"]),
    max_size=9,
)


def delivered(raw, body=b"{}"):
    return Delivery(topic="orders", partition="0", raw=raw, body=body, received_at=1000.0)


@given(MESSAGES)
def test_what_was_sealed_is_opened_as_it_was(message):
    assert open_delivery(delivered(seal(message), message.body), lambda key, kind: None) == message


@given(RAW, st.booleans())
def test_any_headers_are_a_message_or_malformed_with_a_reason(raw, once):
    opened = open_delivery(delivered(raw), lambda key, kind: f"{key}:{kind}"[:MAX_KEY] if once else None)
    if isinstance(opened, Malformed):
        assert opened.reason
        assert opened.sharding_key in (None, raw.get("seriatim-key"))
        return
    assert opened.sharding_key == raw["seriatim-key"]
    assert abs(int(opened.produced_at * 1_000_000)) < 2**63, "no store can hold such a time"
    assert opened.seq is None or abs(opened.seq) <= 2**63
    assert not any(name.lower().startswith("seriatim-") for name in opened.headers)


def test_a_malformed_message_tells_what_of_it_could_be_read():
    raw = {"seriatim-key": "o1", "seriatim-type": "paid", "seriatim-biz-key": "b" * 300}
    opened = open_delivery(delivered(raw), lambda key, kind: None)
    assert isinstance(opened, Malformed)
    assert (opened.sharding_key, opened.biz_key, opened.type) == ("o1", None, "paid")
    assert "300 characters" in opened.reason


def test_a_message_of_a_foreign_producer_needs_no_time_and_gets_the_broker_s():
    raw = {"seriatim-key": "o1", "seriatim-type": "paid", "seriatim-biz-key": "b"}
    opened = open_delivery(Delivery("orders", "0", raw, b"", received_at=7.0, appended_at=5.0), lambda key, kind: None)
    assert not isinstance(opened, Malformed)
    assert opened.produced_at == 5.0


def test_a_default_biz_key_that_is_too_long_is_malformed_and_names_it():
    raw = {"seriatim-key": "k" * 250, "seriatim-type": "t" * 20}
    opened = open_delivery(delivered(raw), lambda key, kind: f"{key}:{kind}")
    assert isinstance(opened, Malformed)
    assert "biz_key" in opened.reason
    assert opened.sharding_key == "k" * 250


def test_headers_of_the_suite_are_hidden_from_handlers_in_any_case():
    raw = {"seriatim-key": "a", "seriatim-type": "t", "seriatim-biz-key": "b", "Seriatim-Odd": "x", "trace": "y"}
    opened = open_delivery(delivered(raw), lambda key, kind: None)
    assert not isinstance(opened, Malformed)
    assert opened.headers == {"trace": "y"}
    assert issubclass(InvalidMessage, ValueError)
