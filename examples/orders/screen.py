"""What the demo prints: live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from examples.orders.app import orders
from examples.orders.check import Check
from examples.orders.traffic import Traffic
from examples.orders.watch import Snapshot, seconds_since
from seriatim.compensation.blocked import BlockedKey, Standing

PLAIN_EVERY_S = 2.0
SHOWN_EVENTS = 8
COLOURS = ("cyan", "magenta", "green", "yellow")


@dataclass(slots=True)
class Screen:
    """The running picture. `consumers` names the processes that were started, by process id."""

    console: Console
    total: int
    consumers: dict[int, str] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)
    _printed: float = float("-inf")
    _events: list[str] = field(default_factory=list)
    _live: Live | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Show it while the block runs."""
        if not self.console.is_terminal:
            yield
            return
        with Live(console=self.console, refresh_per_second=8, transient=True) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None
        for line in self._events:
            self.console.print(line, highlight=False)

    def tell(self, text: str) -> None:
        """Something happened."""
        line = f"[dim]{time.monotonic() - self._began:4.0f} s[/]  {text}"
        self._events.append(line)
        if self._live is None:
            self.console.print(line, highlight=False, soft_wrap=True)

    def show(self, sent: int, now: Snapshot) -> None:
        """How things stand."""
        if self._live is not None:
            self._live.update(self._picture(sent, now))
        elif time.monotonic() - self._printed >= PLAIN_EVERY_S:
            self._printed = time.monotonic()
            self.console.print(self._line(sent, now), highlight=False, soft_wrap=True)

    def _line(self, sent: int, now: Snapshot) -> str:
        totals = now.standing.totals
        return (
            f"{time.monotonic() - self._began:4.0f} s  sent {sent:,} of {self.total:,} · took effect {now.applied:,} · "
            f"duplicates stopped {now.duplicates:,} · waiting {totals.waiting:,} · too early {totals.aside:,} · "
            f"consumers {self._letters(now).plain}"
        )

    def _picture(self, sent: int, now: Snapshot) -> Group:
        table = Table.grid(padding=(0, 2))
        table.add_column(justify="right", style="bold")
        table.add_column(justify="right", min_width=7)
        table.add_column()
        table.add_row("messages sent", f"{sent:,}", ProgressBar(self.total, sent, width=40))
        table.add_row("took effect", f"{now.applied:,}", ProgressBar(self.total, now.applied, width=40))
        table.add_row("duplicates stopped", f"{now.duplicates:,}", "sent twice, took effect once")
        table.add_row("too early", f"{now.standing.totals.aside:,}", "wait for the message before them")
        table.add_row("too late", f"{now.late:,}", "their order had moved on: recorded, no effect")
        waiting = f"of {now.standing.totals.blocked_keys} orders whose payment fails; every other order goes on"
        table.add_row("set aside, in order", f"{now.standing.totals.waiting:,}", waiting)
        table.add_row("who consumes what", "", self._letters(now))
        events = [Text.from_markup(line) for line in self._events[-SHOWN_EVENTS:]]
        return Group(Text(), table, Text(), *events)

    def _letters(self, now: Snapshot) -> Text:
        text = Text()
        for pid in now.owners.values():
            name = self.consumers.get(pid or 0, "·")
            text.append(name, style=COLOURS[ord(name) % len(COLOURS)] if name != "·" else "dim")
        return text


def introduce(console: Console, traffic: Traffic) -> None:
    """What is about to happen."""
    console.print("\n[bold]Seriatim: messages in order, each with exactly one effect.[/]\n")
    console.print(
        f"A shop sends {len(traffic.messages):,} messages about {len(traffic.ends):,} orders: created, paid, shipped.\n"
        "Two consumer processes keep the orders and their stock. Things go wrong:\n\n"
        f"  · {traffic.duplicates:,} messages are sent twice\n"
        f"  · {len(traffic.early)} messages overtake the one before them, {traffic.late} come too late to be legal\n"
        f"  · {traffic.failing} payments fail a few times, {len(traffic.hopeless)} fail for ever\n"
        "  · one of the two consumers is killed (SIGKILL) half-way\n",
        highlight=False,
    )


def sum_up(console: Console, traffic: Traffic, now: Snapshot) -> None:
    """What happened, in numbers."""
    console.print("\n[bold]What happened[/]")
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right")
    table.add_column()
    rows: Sequence[tuple[int, str]] = (
        (len(traffic.messages), "messages were sent"),
        (now.applied, "took effect, each once, in the order of its order"),
        (now.duplicates, "were duplicates: stopped, and answered with the first answer"),
        (now.late, "came too late: recorded, no effect"),
        (now.dead, f"failed for good: given up after {orders.policy.max_attempts} tries"),
        (now.behind, "wait behind those, so that nothing overtakes"),
    )
    for count, text in rows:
        table.add_row(f"{count:,}", text)
    console.print(table)


def show_blocked(console: Console, found: Standing) -> None:
    """What still waits: since when, behind what, why, what next."""
    console.print("\n[bold]What still waits[/]  (seriatim status)")
    if not found.blocked:
        console.print("  nothing")
    for one in found.blocked:
        console.print(
            f"  order [bold]{escape(one.sharding_key)}[/], since {seconds_since(one.since, found.now):.0f} s: "
            f"{escape(str(one.type))} failed {one.attempts} times\n"
            f"      why        {escape(str(one.error))}\n"
            f"      behind it  {one.depth - 1} later messages of this order\n"
            f"      next       {_next(one, found.now)}",
            highlight=False,
            soft_wrap=True,
        )


def _next(one: BlockedKey, now: int) -> str:
    if one.next_attempt_at is None:
        return "a person decides: try it again, or skip it"
    return f"tried again in {max(0.0, seconds_since(now, one.next_attempt_at)):.0f} s"


def show_checks(console: Console, checks: Sequence[Check], audit: Check) -> None:
    """Whether it adds up."""
    console.print("\n[bold]Does it add up?[/]  (from the shop's own tables)")
    for check in checks:
        _show_check(console, check)
    console.print("\n[bold]And by Seriatim's own audit?[/]  (seriatim audit)")
    _show_check(console, audit)


def _show_check(console: Console, check: Check) -> None:
    mark = "[green]✔[/]" if check.holds else "[bold red]✘[/]"
    console.print(f"  {mark} {escape(check.sentence)}", highlight=False, soft_wrap=True)
    for line in check.shown:
        console.print(f"      {escape(line)}", highlight=False, soft_wrap=True)


def conclude(console: Console, *, holds: bool, took_s: float, kept: str | None) -> None:
    """The last word."""
    if holds:
        text = "[bold green]Everything adds up[/]: nothing lost, nothing twice, nothing out of order"
    else:
        text = "[bold red]It doesn't add up[/]: see ✘ above"
    console.print(f"\n{text} ({took_s:.0f} s).", highlight=False)
    if kept:
        console.print(f"Everything is kept in {escape(kept)}", highlight=False, soft_wrap=True)
    console.print()


def letters_of(owners: Mapping[str, int | None], pid: int) -> str:
    """The partitions that a process holds, in words."""
    mine = [partition for partition, owner in owners.items() if owner == pid]
    return f"{len(mine)} of {len(owners)} partitions"
