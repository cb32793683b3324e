"""`seriatim status`: what is blocked, since when, behind what, why, and what comes next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from seriatim.cli.console import guarded, out, print_json
from seriatim.compensation.blocked import BlockedKey, EarlyMessage, PartitionLine, Standing, standing
from seriatim.core.settings import load_settings
from seriatim.core.store import SqlStore, open_store
from seriatim.core.store.port import MICROSECOND

SHOWN_ERROR = 60  #: characters of an error that a table shows


@guarded
def status(
    store: Annotated[str | None, typer.Option(help="Store URL.")] = None,
    group: Annotated[str | None, typer.Option(help="Only this consumer group.")] = None,
    topic: Annotated[str | None, typer.Option(help="Only this topic.")] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=10_000, help="Keys and messages listed, the longest blocked first.")
    ] = 20,
    json: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
) -> None:
    """Show what is blocked, since when, behind what, why, and what will be tried when."""
    opened = open_store(load_settings(store=store).store)
    try:
        opened.check()
        state = standing(opened, group=group, topic=topic, limit=limit)
        writer = opened.writer()
    finally:
        opened.close()
    if json:
        print_json({**asdict(state), "writer_pid": writer})
        return
    _print(state, opened, writer)


def _print(state: Standing, store: SqlStore, writer: int | None) -> None:
    totals = state.totals
    out.print(f"[bold]{escape(store.describe())}[/]", highlight=False)
    if writer is not None:
        out.print(f"written to just now by process {writer}; if it stays, that process is stopped and stops the store")
    out.print(
        f"{totals.blocked_keys} keys blocked with {totals.waiting} messages waiting; {totals.dead_heads} of the keys "
        f"behind a dead message; {totals.aside} messages aside; {totals.closed} kept as evidence",
        highlight=False,
    )
    if state.blocked:
        out.print(_blocked_table(state.blocked, state.now))
    if state.aside:
        out.print(_aside_table(state.aside, state.now))
    if state.partitions:
        out.print(_partition_table(state.partitions, state.now))


def _blocked_table(blocked: Sequence[BlockedKey], now: int) -> Table:
    table = Table(
        "key", "blocked for", "behind", "why", "waiting", "tried", "next", title="blocked", title_justify="left"
    )
    for key in blocked:
        table.add_row(
            escape(f"{key.group}/{key.topic}/{key.partition} {key.sharding_key}"),
            span(now - key.since),
            escape(f"#{key.parked_id} {key.biz_key or key.type or '?'}") if key.parked_id is not None else "a hold",
            escape(_why(key)),
            str(key.depth),
            str(key.attempts),
            _next(key, now),
        )
    return table


def _why(key: BlockedKey) -> str:
    if key.held:
        return "held by an operator"
    error = (key.error or "").splitlines()[0] if key.error else ""
    shown = error if len(error) <= SHOWN_ERROR else error[: SHOWN_ERROR - 1] + "…"
    return f"{key.reason}: {shown}" if shown else str(key.reason)


def _next(key: BlockedKey, now: int) -> str:
    if key.held:
        return "when it is released"
    if key.next_attempt_at is None:
        return "a person: it is dead"
    wait = key.next_attempt_at - now
    tried = "due now" if wait <= 0 else f"tried in {span(wait)}"
    return f"{tried}; the partition waits" if key.stops_partition else tried


def _aside_table(aside: Sequence[EarlyMessage], now: int) -> Table:
    table = Table("message", "aside for", "why", "waits for", "next", title="aside", title_justify="left")
    for row in aside:
        wait = None if row.next_attempt_at is None else row.next_attempt_at - now
        table.add_row(
            escape(f"{row.group}/{row.topic} {row.biz_key}"),
            span(now - row.since),
            row.reason,
            escape(row.wants or ""),
            "its predecessor, or never" if wait is None else "due now" if wait <= 0 else f"tried in {span(wait)}",
        )
    return table


def _partition_table(partitions: Sequence[PartitionLine], now: int) -> Table:
    table = Table("partition", "consumed by", "position", "duplicates", title="partitions", title_justify="left")
    for line in partitions:
        if line.paused:
            owner = f"[red]paused: {escape(line.paused)}[/]"
        elif line.pid is None:
            owner = "nobody"
        else:
            over = "" if line.lease_until > now else f" (its lease ran out {span(now - line.lease_until)} ago)"
            owner = escape(f"process {line.pid} on {line.host}{over}")
        table.add_row(
            escape(f"{line.group}/{line.topic}/{line.partition}"), owner, line.position or "-", str(line.duplicates)
        )
    return table


def span(microseconds: int) -> str:
    """A length of time in words that fit a table."""
    seconds = max(0, microseconds) // MICROSECOND
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            rest = seconds % size
            smaller = {"d": ("h", 3_600), "h": ("min", 60), "min": ("s", 1)}[unit]
            return f"{seconds // size} {unit} {rest // smaller[1]} {smaller[0]}"
    return f"{seconds} s"
