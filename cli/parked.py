"""`seriatim parked`: look at what is parked, and decide about it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from seriatim.cli.console import guarded, out, print_json
from seriatim.cli.parked_canary import canary
from seriatim.cli.parked_verbs import register
from seriatim.cli.showing import (
    AgeOption,
    ErrorOption,
    ErrorTypeOption,
    GroupOption,
    JsonOption,
    KeyOption,
    PlaceOption,
    ReasonOption,
    StoreOption,
    TopicOption,
    TypeOption,
    clock,
    make_filter,
    message_name,
    opened,
    plain,
    shown_body,
    span,
    what_next,
    why,
)
from seriatim.compensation.parked import ParkedLine, ParkedWhole, list_parked, show_parked
from seriatim.core.decision import Place, Reason

app = typer.Typer(
    name="parked",
    help="Look at what is parked, and decide about it: each verb says what it did, and is audited.",
    no_args_is_help=True,
)


@guarded
def list_command(
    store: StoreOption = None,
    group: GroupOption = None,
    topic: TopicOption = None,
    key: KeyOption = None,
    kind: TypeOption = None,
    error: ErrorOption = None,
    error_type: ErrorTypeOption = None,
    reason: ReasonOption = None,
    place: PlaceOption = None,
    older_than: AgeOption = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many, the longest parked first.")] = 50,
    json: JsonOption = False,
) -> None:
    """List parked messages, the longest parked first."""
    wanted = make_filter(
        group,
        topic,
        keys=key,
        kind=kind,
        error=error,
        error_type=error_type,
        reason=reason,
        place=place,
        older_than=older_than,
    )
    with opened(store) as store_:
        now, lines = list_parked(store_, wanted, limit=limit + 1)
    more, lines = len(lines) > limit, lines[:limit]
    if json:
        print_json({"now": now, "messages": [asdict(line) for line in lines], "more": more})
        return
    if lines:
        out.print(_table(lines, now))
    out.print(_count(lines, more=more, narrowed=wanted.narrows), highlight=False)


def _count(lines: Sequence[ParkedLine], *, more: bool, narrowed: bool) -> str:
    if more:
        return f"the first {len(lines):,} of more: narrow it down, or raise --limit"
    if not lines:
        return "nothing parked matches" if narrowed else "nothing is parked"
    return f"{len(lines):,} parked"


def _table(lines: Sequence[ParkedLine], now: int) -> Table:
    table = Table("id", "message", "key", "parked for", "why", "place", "tried", "next")
    for line in lines:
        table.add_row(
            f"#{line.id}",
            escape(message_name(line.biz_key, line.type)),
            escape(plain(f"{line.group}/{line.topic}/{line.partition} {line.key or '(none)'}")),
            span(now - line.parked_at),
            escape(why(line)),
            place_of(line),
            str(line.attempts),
            escape(what_next(line, now)),
        )
    return table


def place_of(line: ParkedLine) -> str:
    """Where it stands, in a word."""
    if line.place == Place.QUEUE.value:
        return "head" if line.is_head else "behind"
    return line.place


@guarded
def show_command(
    parked_id: Annotated[int, typer.Argument(metavar="ID", help="As `parked list` and `status` show it, without #.")],
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Show one parked message whole: headers, body, error and traceback, and what happens next."""
    with opened(store) as store_:
        now, whole = show_parked(store_, parked_id)
    if json:
        print_json(_as_json(now, whole))
        return
    for name, value in _facts(whole.line, now):
        out.print(f"[bold]{name:>12}[/]  {escape(plain(value))}", highlight=False, soft_wrap=True)
    _print_part("headers", "\n".join(f"{name}: {value}" for name, value in sorted(whole.headers.items())))
    _print_part(f"body, {len(whole.body):,} bytes", shown_body(whole.body))
    if whole.line.error:
        _print_part("error", f"{whole.line.error_type or 'error'}: {whole.line.error}")
    if whole.detail:
        _print_part("traceback", whole.detail)


def _facts(line: ParkedLine, now: int) -> list[tuple[str, str]]:
    facts = [
        ("parked", f"#{line.id}, {place_of(line)}, for {span(now - line.parked_at)} (since {clock(line.parked_at)})"),
        ("key", f"{line.key or '(none)'}, in {line.group}/{line.topic}/{line.partition}"),
        ("biz_key", line.biz_key or "(none)"),
        ("type", line.type or "(none)"),
        ("produced", clock(line.produced_at)),
        ("received", clock(line.received_at)),
        ("reason", line.reason),
        ("attempts", str(line.attempts)),
        ("next", what_next(line, now)),
    ]
    if line.wants:
        facts.append(("waits for", ", ".join(line.wants)))
    facts.append(("you can", "; ".join(_choices(line))))
    return facts


def _choices(line: ParkedLine) -> list[str]:
    """The commands that would do something about it."""
    about = "discard" if line.place == Place.CLOSED.value else "skip"
    if line.reason == Reason.CONFLICT.value or line.key is None:
        return [f"seriatim parked discard {line.id}"]
    if line.place == Place.QUEUE.value and not line.is_head:
        return [f"seriatim parked show {line.head}", f"seriatim parked discard {line.id}"]
    if line.held:
        return [f"seriatim parked release {line.key}"]
    ways = [f"seriatim parked {verb} {line.id}" for verb in ("retry", about)]
    return [*ways, f"seriatim parked edit {line.id} --body FILE"]


def _print_part(title: str, text: str) -> None:
    out.print(f"[bold]{escape(title)}[/]", highlight=False)
    for line in plain(text, lines=True).split("\n"):
        out.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)


def _as_json(now: int, whole: ParkedWhole) -> dict[str, Any]:
    try:
        body: dict[str, str] = {"body": whole.body.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(whole.body).decode()}
    about = {"headers": dict(whole.headers), **body, "detail": whole.detail}
    return {"now": now, **asdict(whole.line), "next": what_next(whole.line, now), **about}


app.command("list")(list_command)
app.command("show")(show_command)
register(app)
app.command()(canary)
