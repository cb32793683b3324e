"""Every metric there is, as data: its name, kind, labels and sentence.

A label has values that are known before the first message comes: the group, the app's topics, and the words below.
So the number of series is bounded, each begins at 0, and no key ever becomes a label.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from seriatim.core.decision import Outcome, Place

SCOPE = ("group", "topic")

#: The words of every other label whose values are counted; a lane's name is a gauge's alone.
WORDS = {
    "outcome": tuple(outcome.value for outcome in Outcome),
    "change": ("claimed", "careful", "lost"),
    "what": ("rewound", "trimmed", "lost"),
    "cause": ("store", "broker", "contention", "fence"),
}
PLACES = tuple(place.value for place in Place)

QUICK = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SLOW = (*QUICK, 300.0, 1800.0, 3600.0)  #: what waited in a backlog, or parked


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `buckets` are a histogram's bounds, in seconds."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = SCOPE
    buckets: tuple[float, ...] = ()


COUNTERS = (
    Metric(
        "seriatim_messages_total",
        "counter",
        "Deliveries settled, by what became of them then.",
        (*SCOPE, "outcome"),
    ),
    Metric(
        "seriatim_redeliveries_total",
        "counter",
        "Parked messages whose turn came, by what became of them then.",
        (*SCOPE, "outcome"),
    ),
    Metric("seriatim_dead_total", "counter", "Messages given up: a person decides about them."),
    Metric("seriatim_illegal_total", "counter", "Stale messages that no path of the state machine explains."),
    Metric(
        "seriatim_lease_changes_total",
        "counter",
        "Partitions claimed, claimed from an owner that never let go (careful), and lost.",
        (*SCOPE, "change"),
    ),
    Metric("seriatim_fence_refusals_total", "counter", "Transactions refused: another process owns the partition."),
    Metric("seriatim_contention_total", "counter", "Partitions' batches put back after a deadlock or lock time-out."),
    Metric("seriatim_commits_unknown_total", "counter", "Partitions looked at again after a commit without answer."),
    Metric("seriatim_broken_transactions_total", "counter", "Partitions' batches whose handler ended the transaction."),
    Metric(
        "seriatim_log_breaks_total",
        "counter",
        "Logs that were cut (rewound), trimmed unread, or taken away by the broker (lost).",
        (*SCOPE, "what"),
    ),
    Metric("seriatim_keys_over_cap_total", "counter", "Keys that came over their cap of parked messages."),
    Metric("seriatim_filter_hits_total", "counter", "Duplicates that the front filter answered."),
    Metric(
        "seriatim_lane_pauses_total", "counter", "Rounds of a lane that met trouble and are tried again.", ("cause",)
    ),
    Metric("seriatim_lane_paused_seconds_total", "counter", "How long lanes waited before the next try.", ("cause",)),
    Metric("seriatim_keeper_pauses_total", "counter", "Rounds of the keeper that found the store away.", ()),
)

HISTOGRAMS = (
    Metric(
        "seriatim_handler_seconds", "histogram", "Time of a message in its handler, all calls of a turn.", buckets=QUICK
    ),
    Metric(
        "seriatim_batch_seconds",
        "histogram",
        "Time of a transaction, from its beginning past its commit.",
        buckets=QUICK,
    ),
    Metric(
        "seriatim_received_to_committed_seconds",
        "histogram",
        "From the receipt of a delivery to the commit that settles it.",
        buckets=QUICK,
    ),
    Metric(
        "seriatim_produced_to_committed_seconds",
        "histogram",
        "From the time that the producer claims to the commit of the effect.",
        buckets=SLOW,
    ),
)

PROCESS_GAUGES = (
    Metric("seriatim_ready", "gauge", "Whether /health/ready says yes (1) or no (0).", ()),
    Metric("seriatim_partitions_held", "gauge", "Partitions that this process holds."),
    Metric("seriatim_lane_round_seconds", "gauge", "How long a lane's round has gone on; 0 between rounds.", ("lane",)),
)

STORE_READABLE = Metric("seriatim_store_readable", "gauge", "Whether the gauges of the store could be read.", ())
STORE_GAUGES = (
    Metric("seriatim_parked_keys", "gauge", "Keys that are blocked or held."),
    Metric(
        "seriatim_parked_messages",
        "gauge",
        "Parked messages, by where they stand: queue (blocks its key), aside, closed (kept).",
        (*SCOPE, "place"),
    ),
    Metric("seriatim_dead_heads", "gauge", "Blocked keys that nothing tries: a person decides."),
    Metric(
        "seriatim_oldest_blocked_key_seconds", "gauge", "How long the key that is blocked longest has been; 0: none."
    ),
    Metric("seriatim_overdue_seconds", "gauge", "For how long the head that is due longest has been due; 0: none is."),
    Metric("seriatim_parked_rows", "gauge", "Rows of the parking that the group takes."),
    Metric("seriatim_parked_rows_cap", "gauge", "Rows from which partitions pause."),
    Metric("seriatim_parked_bytes", "gauge", "Bytes of bodies that the group has parked."),
    Metric("seriatim_parked_bytes_cap", "gauge", "Bytes from which partitions pause."),
    Metric("seriatim_partitions_paused", "gauge", "Partitions that nothing is consumed of until a person has looked."),
    Metric("seriatim_partitions_full", "gauge", "Partitions whose owner waits for room in the parking."),
    Metric("seriatim_partitions_unowned", "gauge", "Partitions that no living process holds."),
)

METRICS = (*COUNTERS, *HISTOGRAMS, *PROCESS_GAUGES, STORE_READABLE, *STORE_GAUGES)
