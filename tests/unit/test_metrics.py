"""What is counted and measured: each thing once, nothing of a key, and docs/metrics.md says all of it."""

import ast
import logging
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from seriatim.core.decision import Outcome, Reason
from seriatim.core.errors import ConfigurationError
from seriatim.core.log import LOGGER
from seriatim.core.message import Delivery
from seriatim.core.store.port import Scope
from seriatim.core.task import of_delivery
from seriatim.core.telemetry.catalogue import METRICS, PROCESS_GAUGES, STORE_GAUGES, STORE_READABLE
from seriatim.core.telemetry.events import COUNTED, FENCED, FILTER_HITS, SIMPLE, counted
from seriatim.core.telemetry.metrics import MetricsObserver
from seriatim.core.telemetry.observers import Observers
from seriatim.core.topic import Topic
from seriatim.core.view import Verdict

ROOT = Path(__file__).parents[2]
SCOPE = Scope("shop", "orders")
WHERE = {"group": "shop", "topic": "orders"}
ORDERS = Topic("orders", ("0",))


@pytest.fixture
def metrics():
    return MetricsObserver("shop", ["orders"])


def verdict(outcome=Outcome.APPLIED, *, key="o1", produced=0.5, received=0.25, row=None, **more):
    """A message that was produced and received so many seconds ago, by the clocks that say so."""
    raw = {
        "seriatim-key": key,
        "seriatim-biz-key": f"{key}:paid",
        "seriatim-type": "paid",
        "seriatim-produced-at": str(time.time() - produced),
    }
    task = of_delivery(ORDERS, Delivery("orders", "3", raw, b"{}", received_at=time.time() - received))
    task.row = row
    return Verdict(task, outcome, **more)


def value(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, labels)


# messages


def test_every_series_begins_at_zero_so_that_the_first_of_its_kind_is_seen_as_an_increase(metrics):
    for outcome in Outcome:
        assert value(metrics, "seriatim_messages_total", **WHERE, outcome=outcome.value) == 0
    assert value(metrics, "seriatim_dead_total", **WHERE) == 0
    assert value(metrics, "seriatim_lane_pauses_total", cause="store") == 0
    assert value(metrics, "seriatim_handler_seconds_count", **WHERE) == 0


def test_messages_are_counted_by_outcome_and_what_came_back_from_parking_apart(metrics):
    row = SimpleNamespace(reason=Reason.FAILED)
    metrics.committed(SCOPE, [verdict(), verdict(key="o2"), verdict(Outcome.DUPLICATE), verdict(row=row)], 0.01)
    assert value(metrics, "seriatim_messages_total", **WHERE, outcome="applied") == 2
    assert value(metrics, "seriatim_messages_total", **WHERE, outcome="duplicate") == 1
    assert value(metrics, "seriatim_redeliveries_total", **WHERE, outcome="applied") == 1
    assert value(metrics, "seriatim_batch_seconds_count", **WHERE) == 1


def test_one_that_was_early_and_ran_in_the_same_transaction_counts_once_by_its_end(metrics):
    early = verdict(Outcome.EARLY, reason=Reason.EARLY)
    metrics.committed(SCOPE, [early, verdict(key="o2"), Verdict(early.task, Outcome.APPLIED)], 0.01)
    assert value(metrics, "seriatim_messages_total", **WHERE, outcome="applied") == 2
    assert value(metrics, "seriatim_messages_total", **WHERE, outcome="early") == 0
    assert value(metrics, "seriatim_received_to_committed_seconds_count", **WHERE) == 2


def test_a_message_dies_once_however_often_it_is_looked_at_after_that(metrics):
    metrics.committed(SCOPE, [verdict(Outcome.REJECTED, reason=Reason.DEAD)], 0.01)
    parked, dead = SimpleNamespace(reason=Reason.FAILED), SimpleNamespace(reason=Reason.DEAD)
    metrics.committed(SCOPE, [verdict(Outcome.REJECTED, reason=Reason.DEAD, row=parked)], 0.01)
    metrics.committed(SCOPE, [verdict(Outcome.REJECTED, reason=Reason.DEAD, row=dead)], 0.01)
    metrics.committed(SCOPE, [verdict(Outcome.REJECTED, reason=Reason.MALFORMED)], 0.01)
    assert value(metrics, "seriatim_dead_total", **WHERE) == 2


def test_a_stale_message_that_the_graph_does_not_explain_is_counted_apart(metrics):
    metrics.committed(SCOPE, [verdict(Outcome.STALE), verdict(Outcome.STALE, illegal=True)], 0.01)
    assert value(metrics, "seriatim_illegal_total", **WHERE) == 1
    assert value(metrics, "seriatim_messages_total", **WHERE, outcome="stale") == 2


# times


def seconds(metrics, name):
    return value(metrics, f"seriatim_{name}_seconds_count", **WHERE), value(
        metrics, f"seriatim_{name}_seconds_sum", **WHERE
    )


def test_times_are_measured_from_receipt_and_from_the_producers_claim(metrics):
    metrics.committed(SCOPE, [verdict(produced=90, received=2)], 0.25)
    assert seconds(metrics, "received_to_committed") == (1, pytest.approx(2, abs=0.2))
    assert seconds(metrics, "produced_to_committed") == (1, pytest.approx(90, abs=0.2))
    assert seconds(metrics, "batch") == (1, 0.25)


def test_a_claim_of_the_future_counts_as_no_time_and_never_takes_any_away(metrics):
    metrics.committed(SCOPE, [verdict(produced=-1e6, received=-5)], 0.01)
    assert seconds(metrics, "produced_to_committed") == (1, 0)
    assert seconds(metrics, "received_to_committed") == (1, 0)


def test_time_in_a_handler_is_of_those_that_had_their_turn(metrics):
    ran, refused, other = verdict(), verdict(key="o2"), verdict(Outcome.DUPLICATE, key="o3")
    ran.task.handler = refused.task.handler = object()
    ran.task.handler_s = refused.task.handler_s = 0.5
    refused.task.refuse(Reason.FAILED, "it ended its process 3 times")
    metrics.committed(SCOPE, [ran, refused, other], 0.7)
    assert seconds(metrics, "handler") == (1, 0.5)


def test_a_redelivery_is_not_measured_from_its_receipt_and_a_duplicate_not_from_its_claim(metrics):
    metrics.committed(SCOPE, [verdict(row=SimpleNamespace(reason=Reason.FAILED)), verdict(Outcome.DUPLICATE)], 0.01)
    assert seconds(metrics, "received_to_committed")[0] == 1
    assert seconds(metrics, "produced_to_committed")[0] == 1


# events


def told_anywhere():
    """Every name of an event that an observer is told of, and every reason for which a partition is dropped."""
    names, reasons = set(), set()
    for path in [*(ROOT / "core").rglob("*.py"), *(ROOT / "compensation").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            texts = [
                one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)
            ]
            if node.func.attr in {"event", "tell", "_tell"}:
                names.update(texts)
            elif node.func.attr == "drop":
                reasons.update(texts)
    notices = {f"partition {word}" for word in ("rewound", "trimmed", "lost")}  # of NoticeKind, put together there
    return names | notices, reasons


def test_every_event_that_is_counted_is_told_somewhere_by_just_this_name():
    names, reasons = told_anywhere()
    assert set(COUNTED) <= names
    assert FENCED in reasons


@pytest.mark.parametrize("name", SIMPLE)
def test_an_event_counts_by_group_and_topic(metrics, name):
    metrics.event(logging.INFO, name, group="shop", topic="orders", partition="3", key="k")
    [(counter, labels, amount)] = counted(name, WHERE)
    assert labels[:2] == ("shop", "orders")
    assert amount == 1
    assert metrics._counters[counter, labels]._value.get() == 1  # noqa: SLF001 - whatever its labels are called


def test_a_partition_is_lost_for_one_reason_or_another(metrics):
    metrics.event(logging.WARNING, "partition lost", **WHERE, partition="3", why=FENCED)
    metrics.event(logging.WARNING, "partition lost", **WHERE, partition="3", why="the lease was lost")
    metrics.event(logging.WARNING, "partition lost", **WHERE, partition="3", detail="the broker has taken it away")
    assert value(metrics, "seriatim_lease_changes_total", **WHERE, change="lost") == 2
    assert value(metrics, "seriatim_fence_refusals_total", **WHERE) == 1
    assert value(metrics, "seriatim_log_breaks_total", **WHERE, what="lost") == 1


def test_pauses_are_counted_by_their_cause_with_the_time_that_they_take(metrics):
    for wait_s in (0.5, 1.5):
        metrics.event(logging.WARNING, "lane paused", lane="lane-0", cause="store", error="gone", wait_s=wait_s)
    metrics.event(logging.WARNING, "keeper paused", error="gone")
    metrics.event(logging.DEBUG, FILTER_HITS, **WHERE, count=7)
    assert value(metrics, "seriatim_lane_pauses_total", cause="store") == 2
    assert value(metrics, "seriatim_lane_paused_seconds_total", cause="store") == 2
    assert value(metrics, "seriatim_keeper_pauses_total") == 1
    assert value(metrics, "seriatim_filter_hits_total", **WHERE) == 7


def test_whatever_it_is_told_no_series_comes_up_that_was_not_declared(metrics):
    def series():
        return {(s.name, *s.labels.items()) for family in metrics.registry.collect() for s in family.samples}

    before = series()
    metrics.committed(Scope("shop", "secret-key"), [verdict(key="secret-key")], 0.01)
    metrics.committed(SCOPE, [verdict(key="secret-key", error="secret-key", reason=Reason.FAILED)], 0.01)
    metrics.event(logging.INFO, "partition claimed", group="shop", topic="secret-key")
    metrics.event(logging.INFO, "lane paused", cause="secret-key", wait_s=1)
    metrics.event(logging.INFO, "secret-key", key="secret-key")
    assert {one for one in series() if one[0].startswith("seriatim")} == {
        one for one in before if one[0].startswith("seriatim")
    }


# several observers


class Broken:
    def committed(self, scope, verdicts, duration_s):
        raise RuntimeError("a bug")

    def event(self, level, name, **fields):
        raise RuntimeError("a bug")


def test_an_observer_that_fails_is_told_of_once_and_keeps_nothing_from_the_others(metrics, monkeypatch):
    told = []
    monkeypatch.setattr(LOGGER, "log", lambda level, name, **more: told.append((level, name, more)))
    observers = Observers(Broken(), metrics)
    for _ in range(3):
        observers.committed(SCOPE, [verdict()], 0.01)
        observers.event(logging.INFO, "partition claimed", **WHERE)
    assert value(metrics, "seriatim_messages_total", **WHERE, outcome="applied") == 3
    assert value(metrics, "seriatim_lease_changes_total", **WHERE, change="claimed") == 3
    [(level, name, more)] = told
    assert (level, name) == (logging.ERROR, "observer failed")
    assert more["extra"]["fields"] == {"observer": "Broken", "error": "RuntimeError('a bug')"}


# the library


def test_without_the_library_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigurationError, match=re.escape("pip install 'seriatim[metrics]'")):
        MetricsObserver("shop", ["orders"])


def test_the_library_is_not_loaded_until_metrics_are_asked_for():
    program = "import sys, seriatim.cli.main; print(sorted(n for n in sys.modules if n.startswith('prometheus')))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


# the document


def documented():
    """(name, kind, labels) of each metric in the tables of docs/metrics.md."""
    rows = re.findall(
        r"^\| `(seriatim_\w+)` \| (counter|gauge|histogram) \|([^|]*)\|([^|]+)\|",
        (ROOT / "docs/metrics.md").read_text(),
        re.MULTILINE,
    )
    assert all(meaning.strip() for *_, meaning in rows)
    return [(name, kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels, _ in rows]


def test_the_document_says_every_metric_with_its_kind_and_labels_and_no_other():
    assert sorted(documented()) == sorted((one.name, one.kind, one.labels) for one in METRICS)


def test_the_registry_holds_what_is_documented_and_no_other(metrics):
    metrics.add_gauges(PROCESS_GAUGES, list)
    metrics.add_gauges((STORE_READABLE, *STORE_GAUGES), list)
    held = {
        (f"{one.name}_total" if one.type == "counter" else one.name, one.type) for one in metrics.registry.collect()
    }
    assert {one for one in held if one[0].startswith("seriatim")} == {(name, kind) for name, kind, _ in documented()}


def test_every_metric_in_an_example_rule_exists():
    names = {one.name for one in METRICS}
    names |= {f"{one.name}_{part}" for one in METRICS if one.kind == "histogram" for part in ("bucket", "sum", "count")}
    text = (ROOT / "docs/metrics.md").read_text()
    used = set(re.findall(r"\bseriatim_\w+", text))
    assert used <= names
    assert used & {one.name for one in STORE_GAUGES}


def test_a_label_is_never_a_key_a_partition_or_a_text_of_an_error():
    allowed = {"group", "topic", "outcome", "change", "what", "cause", "place", "lane"}
    assert {label for one in METRICS for label in one.labels} == allowed
