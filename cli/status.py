"""`seriatim status`: what is blocked, since when, behind what, why, and what comes next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from seriatim.cli.console import guarded, out, print_json
from seriatim.cli.showing import GroupOption, JsonOption, StoreOption, TopicOption, opened, plain, short, span
from seriatim.compensation.blocked import BlockedKey, EarlyMessage, FailureClass, PartitionLine, Standing, standing
from seriatim.compensation.selecting import check_scope

SHOWN = 10  #: keys, and messages aside, that are listed
FEW = 6  #: partitions that are listed at most; of more those that need a look come first


@guarded
def status(
    store: StoreOption = None,
    group: GroupOption = None,
    topic: TopicOption = None,
    limit: Annotated[
        int, typer.Option(min=1, max=10_000, help="Keys and messages listed, the longest blocked first.")
    ] = SHOWN,
    every: Annotated[bool, typer.Option("--partitions", help="List every partition, also where all is well.")] = False,
    json: JsonOption = False,
) -> None:
    """Show what is blocked, since when, behind what, why, and what will be tried when."""
    with opened(store) as store_:
        with store_.read() as connection:
            check_scope(connection, group, topic)
        state = standing(store_, group=group, topic=topic, limit=limit)
        writer, named = store_.writer(), store_.describe()
    if json:
        print_json({**asdict(state), "writer_pid": writer})
        return
    out.print(f"[bold]{escape(named)}[/]", highlight=False)
    if writer is not None:
        out.print(f"written to just now by process {writer}; if it stays, that process is stopped and stops the store")
    _print(state, every=every)


def _print(state: Standing, *, every: bool) -> None:
    for line in _totals(state):
        out.print(line, highlight=False, soft_wrap=True)
    if state.classes:
        out.print(_class_table(state))
    if state.blocked:
        out.print(_blocked_table(state.blocked, state))
    if state.aside:
        out.print(_aside_table(state.aside, state))
    _print_partitions(state, every=every)


def _totals(state: Standing) -> list[str]:
    totals = state.totals
    held = f"; {totals.held:,} of the keys held" if totals.held else ""
    first = (
        f"{totals.blocked_keys:,} keys blocked with {totals.waiting:,} messages waiting; {totals.dead_heads:,} of the "
        f"keys behind a dead message{held}; {totals.aside:,} messages aside; {totals.closed:,} kept as evidence"
    )
    return [first, f"parked in all: {totals.parked_rows:,} messages, {size(totals.parked_bytes)}"]


def size(count: int) -> str:
    """So many bytes, for a person."""
    amount = float(count)
    for unit in ("bytes", "KiB", "MiB"):
        if amount < 1024:  # noqa: PLR2004 - of the next unit
            return f"{count:,} {unit}" if unit == "bytes" else f"{amount:,.1f} {unit}"
        amount /= 1024
    return f"{amount:,.1f} GiB"


def _class_table(state: Standing) -> Table:
    more = f" (and {state.more_classes:,} kinds more)" if state.more_classes else ""
    table = Table(
        "keys",
        "dead",
        "message",
        "why",
        "the first for",
        "such as",
        title=f"blocked by what failed{more}",
        title_justify="left",
    )
    for one in state.classes:
        table.add_row(
            f"{one.keys:,}",
            f"{one.dead:,}" if one.dead else "",
            escape(plain(f"{one.group}/{one.topic} {one.type or '-'}")),
            escape(_class_why(one)),
            span(state.now - one.since),
            f"#{one.parked_id}",
        )
    return table


def _class_why(one: FailureClass) -> str:
    error = short(one.error)
    kind = plain(one.error_type)
    return " ".join(part for part in (f"{one.reason}:" if error else one.reason, kind and f"{kind}:", error) if part)


def _blocked_table(blocked: Sequence[BlockedKey], state: Standing) -> Table:
    more = state.totals.blocked_keys - len(blocked)
    table = Table(
        "key",
        "blocked for",
        "behind",
        "why",
        "waiting",
        "tried",
        "next",
        title="blocked the longest" + (f" (and {more:,} more: --limit, `seriatim parked list`)" if more > 0 else ""),
        title_justify="left",
    )
    for key in blocked:
        table.add_row(
            escape(plain(f"{key.group}/{key.topic}/{key.partition} {key.sharding_key}")),
            span(state.now - key.since),
            escape(plain(f"#{key.parked_id} {key.biz_key or key.type or '?'}")) if key.parked_id else "a hold",
            escape(_why(key)),
            f"{key.depth:,}",
            str(key.attempts),
            _next(key, state.now),
        )
    return table


def _why(key: BlockedKey) -> str:
    if key.held:
        return "held by an operator"
    error = short(key.error)
    return f"{key.reason}: {error}" if error else str(key.reason)


def _next(key: BlockedKey, now: int) -> str:
    if key.held:
        return "when it is released"
    if key.next_attempt_at is None:
        return "a person: it is dead"
    wait = key.next_attempt_at - now
    tried = "due now" if wait <= 0 else f"tried in {span(wait)}"
    return f"{tried}; the partition waits" if key.stops_partition else tried


def _aside_table(aside: Sequence[EarlyMessage], state: Standing) -> Table:
    more = state.totals.aside - len(aside)
    title = "aside the longest" + (f" (and {more:,} more: `seriatim parked list --place aside`)" if more > 0 else "")
    table = Table("message", "aside for", "why", "waits for", "next", title=title, title_justify="left")
    for row in aside:
        wait = None if row.next_attempt_at is None else row.next_attempt_at - state.now
        table.add_row(
            escape(plain(f"{row.group}/{row.topic} {row.biz_key}")),
            span(state.now - row.since),
            row.reason,
            escape(plain(row.wants)),
            "its predecessor, or never" if wait is None else "due now" if wait <= 0 else f"tried in {span(wait)}",
        )
    return table


def _print_partitions(state: Standing, *, every: bool) -> None:
    """All of a few partitions; of many those that need a look, and how the others are in a line."""
    lines = state.partitions
    if not every and len(lines) > FEW:
        lines = [line for line in lines if _trouble(line, state.now)]
        processes = len({(line.host, line.pid) for line in state.partitions if line.pid is not None})
        well = len(state.partitions) - len(lines)
        out.print(
            f"{well:,} of {len(state.partitions):,} partitions are consumed, by {processes:,} processes (--partitions "
            "lists them)",
            highlight=False,
            soft_wrap=True,
        )
    shown = lines if every else lines[:FEW]
    if shown:
        more = f" (and {len(lines) - len(shown):,} more: --partitions)" if len(lines) > len(shown) else ""
        out.print(_partition_table(shown, state.now, more))


def _trouble(line: PartitionLine, now: int) -> bool:
    return bool(line.paused or line.trouble) or line.full or line.pid is None or line.lease_until <= now


def _partition_table(partitions: Sequence[PartitionLine], now: int, more: str) -> Table:
    table = Table(
        "partition", "consumed by", "position", "parked", "duplicates", title=f"partitions{more}", title_justify="left"
    )
    for line in partitions:
        table.add_row(
            escape(plain(f"{line.group}/{line.topic}/{line.partition}")),
            _owner(line, now),
            escape(plain(line.position or "-")),
            f"{line.parked_rows:,}",
            f"{line.duplicates:,}",
        )
    return table


def _owner(line: PartitionLine, now: int) -> str:
    if line.paused:
        return f"[red]paused: {escape(plain(line.paused))}[/]"
    if line.pid is None:
        return "[red]nobody[/]"
    over = "" if line.lease_until > now else f" (its lease ran out {span(now - line.lease_until)} ago)"
    full = "; takes nothing new: the parking is full" if line.full else ""
    trouble = f"; can't read it: {line.trouble}" if line.trouble else ""
    return escape(plain(f"process {line.pid} on {line.host}{over}{full}{trouble}"))
