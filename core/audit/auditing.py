"""One audit: read the rows once, key by key, and judge them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from sqlalchemy import Connection

from seriatim.core.audit import evidence
from seriatim.core.audit.evidence import Entry, Ledger
from seriatim.core.audit.judging import Judge, Known, LedgerJudge
from seriatim.core.audit.report import Report
from seriatim.core.decision import Outcome
from seriatim.core.manifest import Sent
from seriatim.core.store.port import Scope


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be audited, and what is known of it besides the database."""

    scope: Scope
    sent: Iterable[Sent] | None = None
    ledgers: Sequence[Ledger] = ()
    ignored: frozenset[str] = frozenset()


def audit(connection: Connection, question: Question) -> Report:
    """Read everything on one snapshot and judge it. In memory are what is parked, the manifest and the ledger's keys.

    Raises:
        ConfigurationError: a ledger's table or column isn't there, or the manifest is damaged.
    """
    scope = question.scope
    report = Report(scope.group, scope.topic)
    known = Known(
        parked=evidence.parked_rows(connection, scope),
        partitions=evidence.partitions(connection, scope),
        acted_on=evidence.acted_on(connection, scope),
        sent=None if question.sent is None else {sent.biz_key: sent for sent in question.sent},
        ignored=question.ignored,
    )
    if known.sent is not None:
        report.sent = len(known.sent)
        report.copies = sum(sent.copies for sent in known.sent.values()) - report.sent
    report.duplicates = sum(row.duplicates for row in known.partitions.values())
    judge = Judge(report, known)
    applied: set[str] = set()
    for sharding_key, entries in _by_key(evidence.entries(connection, scope)):
        judge.key(sharding_key, entries)
        if question.ledgers:
            applied.update(entry.biz_key for entry in entries if entry.outcome == Outcome.APPLIED.value)
    judge.finish(evidence.repeated_effects(connection, scope))
    if question.ledgers:
        _compare_ledgers(connection, question.ledgers, LedgerJudge(report, applied))
    return report


def _by_key(entries: Iterator[Entry]) -> Iterator[tuple[str | None, list[Entry]]]:
    for sharding_key, of_key in groupby(entries, key=attrgetter("sharding_key")):
        yield sharding_key, list(of_key)


def _compare_ledgers(connection: Connection, ledgers: Sequence[Ledger], judge: LedgerJudge) -> None:
    for ledger in ledgers:
        judge.ledger(ledger.table, evidence.effects_in(connection, ledger))
    judge.finish()
