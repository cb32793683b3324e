"""Which events are counted, and as what. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Labels = tuple[str, ...]

_LANE_PAUSED = "lane paused"
_LOST = "partition lost"
FENCED = "the fence refused it"  #: why a partition is lost when its fence didn't hold

#: Events that are counted by group and topic, with the words of further labels.
SIMPLE: Mapping[str, tuple[str, Labels]] = {
    "partition claimed": ("seriatim_lease_changes_total", ("claimed",)),
    "careful take-over": ("seriatim_lease_changes_total", ("careful",)),
    "partition rewound": ("seriatim_log_breaks_total", ("rewound",)),
    "partition trimmed": ("seriatim_log_breaks_total", ("trimmed",)),
    "contention": ("seriatim_contention_total", ()),
    "commit unknown": ("seriatim_commits_unknown_total", ()),
    "transaction ended by a handler": ("seriatim_broken_transactions_total", ()),
    "partition stopped": ("seriatim_broken_transactions_total", ()),
    "key over its cap": ("seriatim_keys_over_cap_total", ()),
}
#: `count` duplicates were answered by the front filter.
FILTER_HITS = "filter hits"
COUNTED = (*SIMPLE, _LOST, _LANE_PAUSED, "keeper paused", FILTER_HITS)


def counted(name: str, fields: Mapping[str, Any]) -> Iterator[tuple[str, Labels, float]]:
    """What an event adds: counter, values of its labels, and how much."""
    scope = (str(fields.get("group")), str(fields.get("topic")))
    if name in SIMPLE:
        counter, words = SIMPLE[name]
        yield counter, (*scope, *words), 1
    elif name == _LOST and "why" in fields:  # the lease is; without it, the broker took the partition away
        yield "seriatim_lease_changes_total", (*scope, "lost"), 1
        if fields["why"] == FENCED:
            yield "seriatim_fence_refusals_total", scope, 1
    elif name == _LOST:
        yield "seriatim_log_breaks_total", (*scope, "lost"), 1
    elif name == _LANE_PAUSED:
        cause = (str(fields.get("cause")),)
        yield "seriatim_lane_pauses_total", cause, 1
        yield "seriatim_lane_paused_seconds_total", cause, float(fields.get("wait_s", 0.0))
    elif name == "keeper paused":
        yield "seriatim_keeper_pauses_total", (), 1
    elif name == FILTER_HITS:
        yield "seriatim_filter_hits_total", scope, float(fields.get("count", 1))
