"""`seriatim audit`: prove from the database what happened."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table
from sqlalchemy import Connection

from seriatim.cli.console import FAILED, guarded, out, print_json
from seriatim.cli.showing import StoreOption, opened
from seriatim.core.audit.auditing import Question
from seriatim.core.audit.auditing import audit as audited
from seriatim.core.audit.evidence import Ledger, groups, topics
from seriatim.core.audit.report import SHOWN, Report, Violation
from seriatim.core.errors import ConfigurationError
from seriatim.core.manifest import Sent, read_manifest
from seriatim.core.store.port import Scope

_MEANINGS = {
    "messages": "distinct messages that the store knows",
    "sent": "distinct messages that were sent, by the manifest",
    "copies": "sent again, by the manifest",
    "applied": "run, their effect committed",
    "already": "their state was reached already",
    "stale": "too late for their state",
    "rejected": "given up or skipped",
    "duplicates": "deliveries stopped because the message was known",
    "early": "came before their predecessor (whatever became of them)",
    "parked": "wait in the queue of their key now",
    "aside": "wait now without blocking their key",
    "dead": "wait for a person",
    "conflicts": "kept because another body or type came under a known biz_key",
    "unreadable": "kept because not even their key could be read",
    "in_hand": "being worked on",
    "ignored": "of a type that the topic ignores, by --ignore",
    "beyond_manifest": "known to the store and not in the manifest",
}
_ALWAYS = ("messages", "applied", "duplicates", "early", "parked", "dead", "conflicts")
_CRIMES = {
    Violation.LOST: "sent or received, and neither settled nor waiting",
    Violation.ORDER: "passed, or were passed by, another of their key",
    Violation.DOUBLE: "have more than one effect",
    Violation.LOST_EFFECT: "recorded as applied, and not in the business table",
    Violation.UNRECORDED_EFFECT: "in the business table, and not recorded as applied",
    Violation.ALTERED: "recorded with another body, type or key than was sent",
    Violation.MISPLACED: "in a partition that isn't their key's",
    Violation.UNFENCED: "have an effect number that wasn't theirs",
    Violation.UNEXPLAINED: "skipped, and nothing says why",
    Violation.UNFINISHED: "begun, and nobody is at it",
}


@guarded
def audit(
    topic: Annotated[str, typer.Option(help="The topic to audit.")],
    group: Annotated[
        str | None, typer.Option(help="The consumer group; needed where several consume the topic.")
    ] = None,
    manifest: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What `seriatim replay --manifest` wrote: tells what was lost, and the order of sending. Without it "
            "the order is that of each message's seq, where it has one.",
        ),
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            metavar="TABLE:COLUMN[,…]",
            help="Business tables that hold the biz_key of every effect: each applied message must be there, once.",
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="TYPE", help="A message type that the topic ignores. Repeatable.")
    ] = None,
    store: StoreOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Prove from the database what happened: order per key, one effect per message, nothing lost.

    Exit status 0: no violation; 1: violations, which are shown; 2: it couldn't be asked. Times are from received to
    committed (p50_ms, p99_ms) and from produced to committed (p50_produced_ms, p99_produced_ms).
    """
    with opened(store) as store_:
        sent = None if manifest is None else _messages(manifest, topic)
        ledgers = Ledger.parse(ledger) if ledger is not None else []
        with store_.read() as connection:
            scope = Scope(_group(connection, topic, group), topic)
            report = audited(connection, Question(scope, sent, ledgers, frozenset(ignore or ())))
    if as_json:
        print_json(report.as_json())
    else:
        _print(report)
    if not report.clean:
        raise typer.Exit(FAILED)


def _messages(path: Path, topic: str) -> list[Sent]:
    header, messages = read_manifest(path)
    if header.topic != topic:
        raise ConfigurationError(f"manifest {path} is of topic {header.topic!r}, not of {topic!r}")
    return list(messages)


def _group(connection: Connection, topic: str, wanted: str | None) -> str:
    known = groups(connection, topic)
    if not known:
        raise ConfigurationError(
            f"the store knows no topic {topic!r}; it knows: {', '.join(topics(connection)) or 'none'}"
        )
    if wanted is None and len(known) > 1:
        raise ConfigurationError(f"topic {topic!r} is consumed by {', '.join(known)}: say which with --group")
    if wanted is not None and wanted not in known:
        raise ConfigurationError(f"group {wanted!r} doesn't consume topic {topic!r}; those that do: {', '.join(known)}")
    return wanted or known[0]


def _print(report: Report) -> None:
    values = report.as_json()
    table = Table(
        "", "count", "meaning", title=escape(f"topic {report.topic}, group {report.group}"), title_justify="left"
    )
    for name, meaning in _MEANINGS.items():
        if values[name] or name in _ALWAYS or (name in ("sent", "copies") and values[name] is not None):
            table.add_row(name.replace("_", " "), f"{values[name]:,}", meaning)
    for kind, meaning in _CRIMES.items():
        count = report.findings.counts[kind]
        name = kind.value.replace("_", " ")
        table.add_row(f"[bold red]{name}[/]" if count else name, f"{count:,}", meaning)
    out.print(table)
    _print_times(values)
    _print_violations(report)
    out.print(_verdict(report), highlight=False, soft_wrap=True)


def _print_times(values: dict[str, float | None]) -> None:
    for name, what in (("", "received"), ("_produced", "produced")):
        p50, p99 = values[f"p50{name}_ms"], values[f"p99{name}_ms"]
        if p50 is not None and p99 is not None:
            out.print(f"from {what} to committed: p50 {p50:,.1f} ms, p99 {p99:,.1f} ms", highlight=False)


def _print_violations(report: Report) -> None:
    for kind, details in report.findings.details.items():
        count = report.findings.counts[kind]
        out.print(f"[bold red]{kind.value.replace('_', ' ')}[/]: {_CRIMES[kind]}", highlight=False)
        for detail in details:
            words = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in detail.items())
            out.print(f"  {escape(words)}", highlight=False, soft_wrap=True)
        if count > SHOWN:
            out.print(f"  … and {count - SHOWN:,} more", highlight=False)
    if report.maybe_unread:
        out.print(
            f"{report.maybe_unread:,} of those lost may just not have been read yet: nothing later of their partition "
            "has been handled; let a worker run until it is idle, and audit again",
            highlight=False,
            soft_wrap=True,
        )


def _verdict(report: Report) -> str:
    if not report.clean:
        return f"[bold red]VIOLATED[/]: {report.findings.total:,} violations"
    waiting = report.parked + report.aside + report.dead
    rest = f"; {waiting:,} wait, each with its reason" if waiting else ""
    return f"[bold green]CLEAN[/]: in order per key, one effect per message, nothing lost{rest}"
