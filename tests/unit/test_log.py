"""Log lines: R16's fields on each, a line says how many it stands for, and nothing said is lost."""

import io
import json
import logging

import pytest

from seriatim.core.decision import Outcome, Reason
from seriatim.core.log import LOGGER, LogObserver, configure_logging
from seriatim.core.message import Delivery
from seriatim.core.store.port import Scope
from seriatim.core.task import of_delivery
from seriatim.core.topic import Topic
from seriatim.core.view import Verdict

SCOPE = Scope("shop", "orders")
ORDERS = Topic("orders", ("0",))


@pytest.fixture
def stream():
    before = LOGGER.handlers[:], LOGGER.level, LOGGER.propagate
    yield io.StringIO()
    LOGGER.handlers[:], LOGGER.level, LOGGER.propagate = before


def verdict(outcome=Outcome.APPLIED, *, key="o1", state="NEW", **more):
    raw = {
        "seriatim-key": key,
        "seriatim-biz-key": f"{key}:paid",
        "seriatim-type": "paid",
        "seriatim-produced-at": "1700000000.25",
        "seriatim-seq": "7",
        **({"seriatim-state": state} if state else {}),
    }
    task = of_delivery(ORDERS, Delivery("orders", "3", raw, b"{}", received_at=1700000001.0))
    return Verdict(task, outcome, **more)


def lines(stream):
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_line_has_produced_time_and_business_state_key_partition_and_outcome(stream, outcome):
    # R16
    configure_logging("json", "INFO", stream)
    LogObserver().committed(SCOPE, [verdict(outcome)], 0.002)
    [line] = lines(stream)
    assert line["produced_at"] == "2023-11-14T22:13:20.250+00:00"
    assert (line["state"], line["key"], line["partition"], line["outcome"]) == ("NEW", "o1", "3", outcome.value)
    assert (line["group"], line["topic"], line["biz_key"], line["type"], line["seq"]) == (
        "shop", "orders", "o1:paid", "paid", 7,
    )  # fmt: skip
    assert line["level"] == ("info" if outcome in (Outcome.APPLIED, Outcome.DUPLICATE) else "warning")


def test_the_human_line_has_the_same_fields(stream):
    configure_logging("human", "INFO", stream)
    LogObserver().committed(SCOPE, [verdict(key="two words")], 0.002)
    line = stream.getvalue()
    for part in ("state=NEW", 'key="two words"', "partition=3", "outcome=applied", "produced_at=2023-11-14"):
        assert part in line
    assert line.count("\n") == 1


def test_a_failure_says_why_how_often_and_when_next(stream):
    configure_logging("json", "INFO", stream)
    failed = verdict(Outcome.PARKED, reason=Reason.FAILED, attempts=3, error="away", wait_s=1.5)
    LogObserver().committed(SCOPE, [failed], 0.0)
    [line] = lines(stream)
    assert (line["reason"], line["attempts"], line["error"], line["retry_in_s"]) == ("failed", 3, "away", 1.5)


def test_at_high_rates_a_line_says_how_many_it_stands_for(stream, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("seriatim.core.log.time.monotonic", lambda: clock[0])
    configure_logging("json", "INFO", stream)
    observer = LogObserver(rate=5)
    observer.committed(SCOPE, [verdict() for _ in range(1000)], 0.0)
    assert len(lines(stream)) == 5
    clock[0] += 1
    observer.committed(SCOPE, [verdict()], 0.0)
    told = lines(stream)
    assert len(told) == 6
    assert sum(line.get("stands_for", 1) for line in told) == 1001


def test_what_went_another_way_is_always_written_and_never_counted_against_the_rate(stream):
    configure_logging("json", "INFO", stream)
    observer = LogObserver(rate=1)
    observer.committed(SCOPE, [verdict(Outcome.CONFLICT) for _ in range(30)] + [verdict()], 0.0)
    assert [line["outcome"] for line in lines(stream)] == ["conflict"] * 30 + ["applied"]


def test_no_rate_means_no_lines_for_what_went_well(stream):
    configure_logging("json", "INFO", stream)
    LogObserver(rate=0).committed(SCOPE, [verdict(), verdict(Outcome.STALE)], 0.0)
    assert [line["outcome"] for line in lines(stream)] == ["stale"]


@pytest.mark.parametrize("form", ["human", "json"])
@pytest.mark.parametrize(
    "key", ["a\nb", "a\r\nINFO forged", "a\u2028b", "a\u0085b", 'a"b', "a\x1b[31mb", "a\tb", "\u202e"]
)
def test_no_key_can_forge_a_line_or_colour_a_terminal(stream, form, key):
    configure_logging(form, "INFO", stream)
    LogObserver().committed(SCOPE, [verdict(key=key, state=key)], 0.0)
    text = stream.getvalue()
    assert text.endswith("\n")
    assert text.count("\n") == 1
    if form == "json":
        assert "\x1b" not in text
        assert json.loads(text)["key"] == key
    else:
        assert text[:-1].isprintable()


def test_a_time_that_can_t_be_doesn_t_stop_the_log(stream):
    configure_logging("json", "INFO", stream)
    odd = verdict()
    odd.task.produced_at = 2**62
    LogObserver().committed(SCOPE, [odd], 0.0)
    assert lines(stream)[0]["produced_at"] == str(2**62)


def test_the_level_is_heeded(stream):
    configure_logging("json", "WARNING", stream)
    observer = LogObserver()
    observer.committed(SCOPE, [verdict(), verdict(Outcome.STALE)], 0.0)
    observer.event(logging.INFO, "partition claimed", partition="3")
    observer.event(logging.ERROR, "partition trimmed", partition="3")
    assert [line["event"] for line in lines(stream)] == ["message stale", "partition trimmed"]
