"""The observer that counts and measures, and the registry that it keeps for one process."""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from seriatim.core.decision import Outcome, Reason
from seriatim.core.errors import ConfigurationError
from seriatim.core.store.port import MICROSECOND, Scope
from seriatim.core.telemetry.catalogue import COUNTERS, HISTOGRAMS, SCOPE, WORDS, Metric
from seriatim.core.telemetry.events import Labels, counted
from seriatim.core.view import Verdict

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Histogram
    from prometheus_client.registry import Collector

_EFFECTS = frozenset({Outcome.APPLIED, Outcome.ALREADY, Outcome.STALE})  #: ends of a message that was run

Reading = tuple[Metric, Labels, float]
Gauges = Callable[[], Iterable[Reading]]  #: called by each scrape, on its thread


class MetricsObserver:
    """Counts what happens in one process. Thread-safe; a message costs a few microseconds."""

    def __init__(self, group: str, topics: Iterable[str]) -> None:
        """Every series of the group and its topics begins at 0.

        Raises:
            ConfigurationError: prometheus-client isn't installed.
        """
        self._library = library()
        self._scopes = [(group, topic) for topic in topics]
        self.registry: CollectorRegistry = self._library.CollectorRegistry()
        self._library.ProcessCollector(registry=self.registry)
        self._counters: dict[tuple[str, Labels], Counter] = {}
        self._histograms: dict[tuple[str, Labels], Histogram] = {}
        for metric in COUNTERS:
            counter = self._library.Counter(metric.name, metric.help, metric.labels, registry=self.registry)
            for labels in self._series(metric):
                self._counters[metric.name, labels] = counter.labels(*labels) if labels else counter
        for metric in HISTOGRAMS:
            histogram = self._library.Histogram(
                metric.name, metric.help, metric.labels, registry=self.registry, buckets=metric.buckets
            )
            for labels in self._series(metric):
                self._histograms[metric.name, labels] = histogram.labels(*labels)

    def add_gauges(self, metrics: Sequence[Metric], read: Gauges) -> None:
        """Show gauges that are read anew by each scrape; a reading that is missing isn't shown."""
        family = self._library.core.GaugeMetricFamily
        collector = _Gauges(metrics, read, family)
        self.registry.register(cast("Collector", collector))

    # -- what it is told

    def committed(self, scope: Scope, verdicts: Sequence[Verdict], duration_s: float) -> None:
        """Count a transaction."""
        labels = (scope.group, scope.topic)
        self._measure("seriatim_batch_seconds", labels, duration_s)
        # One that was early, and ran in the same transaction after all, counts once, by its end.
        last = {id(verdict.task): verdict for verdict in verdicts}
        tally: Tally[tuple[str, Labels]] = Tally()
        now = time.time()
        for verdict in last.values():
            tally.update(_counted(verdict, labels))
            self._measure_message(verdict, labels, now)
        for (name, of), count in tally.items():
            self._add(name, of, count)

    def event(self, level: int, name: str, **fields: Any) -> None:
        """Count an event."""
        del level
        for counter, labels, amount in counted(name, fields):
            self._add(counter, labels, amount)

    # -- how that is counted

    def _series(self, metric: Metric) -> Iterator[Labels]:
        scopes: list[Labels] = list(self._scopes) if metric.labels[:2] == SCOPE else [()]
        words = [WORDS[label] for label in metric.labels if label not in SCOPE]
        for scope, rest in product(scopes, product(*words)):
            yield (*scope, *rest)

    def _add(self, name: str, labels: Labels, amount: float) -> None:
        counter = self._counters.get((name, labels))  # of anything else than was declared there is no series
        if counter is not None:
            counter.inc(amount)

    def _measure(self, name: str, labels: Labels, seconds: float) -> None:
        histogram = self._histograms.get((name, labels))
        if histogram is not None:
            histogram.observe(max(0.0, seconds))  # clocks differ, and a producer may claim any time

    def _measure_message(self, verdict: Verdict, labels: Labels, now: float) -> None:
        task = verdict.task
        if task.handler_s and task.handler is not None:  # one that couldn't be run has none
            self._measure("seriatim_handler_seconds", labels, task.handler_s)
        if task.row is None:
            self._measure("seriatim_received_to_committed_seconds", labels, now - task.received_at / MICROSECOND)
        if verdict.outcome in _EFFECTS:
            self._measure("seriatim_produced_to_committed_seconds", labels, now - task.produced_at / MICROSECOND)


def _counted(verdict: Verdict, labels: Labels) -> Iterator[tuple[str, Labels]]:
    """What one message adds 1 to."""
    row = verdict.task.row
    name = "seriatim_messages_total" if row is None else "seriatim_redeliveries_total"
    yield name, (*labels, verdict.outcome.value)
    if verdict.reason is Reason.DEAD and (row is None or row.reason is not Reason.DEAD):  # not one that only stands
        yield "seriatim_dead_total", labels
    if verdict.illegal:
        yield "seriatim_illegal_total", labels


class _Gauges:
    """What a registry calls a collector."""

    def __init__(self, metrics: Sequence[Metric], read: Gauges, family: Callable[..., Any]) -> None:
        self._metrics = metrics
        self._read = read
        self._family = family

    def describe(self) -> Iterator[Any]:
        """The metrics, without a reading."""
        for metric in self._metrics:
            yield self._family(metric.name, metric.help, labels=metric.labels)

    def collect(self) -> Iterator[Any]:
        """The metrics, read now."""
        families = {metric: self._family(metric.name, metric.help, labels=metric.labels) for metric in self._metrics}
        for metric, labels, value in self._read():
            families[metric].add_metric(labels, value)
        yield from families.values()


def library() -> ModuleType:
    """prometheus-client.

    Raises:
        ConfigurationError: it isn't installed.
    """
    try:
        import prometheus_client  # noqa: PLC0415 - an optional part
        import prometheus_client.core  # noqa: PLC0415 - as above
    except ImportError as error:
        raise ConfigurationError(
            f"metrics need prometheus-client ({error}); pip install 'seriatim[metrics]'"
        ) from error
    return prometheus_client
