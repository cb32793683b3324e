"""The ledger against the log itself. Nothing here reads Seriatim's tables, nor what replay or audit say."""

import csv
import gzip
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

from sqlalchemy import Connection, select

from examples.loans.tables import ledger

Event = tuple[int, str]  # its place within the case, and the activity


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many events the ledger has, and how many are wrong, in each way. `strange` ones aren't in the log."""

    events: int
    lost: int
    doubled: int
    strange: int
    out_of_order: int

    @property
    def holds(self) -> bool:
        """Whether every event of the log is there once, and each case in order."""
        return not (self.lost or self.doubled or self.strange or self.out_of_order)

    def __str__(self) -> str:
        return (
            f"{self.events:,} events in the ledger: {self.lost} lost, {self.doubled} doubled, {self.strange} strange, "
            f"{self.out_of_order} out of order"
        )


def compare(connection: Connection, log: Path, limit: int | None) -> Comparison:
    """Compare the ledger with the first `limit` events of the log (all, if None)."""
    wanted = _read_log(log, limit)
    written = _read_ledger(connection)
    lost = doubled = strange = out_of_order = 0
    for case_id in wanted.keys() | written.keys():
        expected, found = Counter(wanted[case_id]), Counter(written[case_id])
        lost += (expected - found).total()
        doubled += sum(count - 1 for event, count in found.items() if event in expected)
        strange += sum(count for event, count in found.items() if event not in expected)
        places = [place for place, _ in written[case_id]]
        out_of_order += sum(later <= earlier for earlier, later in pairwise(places))
    return Comparison(sum(map(len, written.values())), lost, doubled, strange, out_of_order)


def _read_log(log: Path, limit: int | None) -> dict[str, list[Event]]:
    cases: dict[str, list[Event]] = defaultdict(list)
    with gzip.open(log, "rt", encoding="utf-8", newline="") as file:
        for row in islice(csv.DictReader(file), limit):
            cases[row["case"]].append((int(row["seq"]), row["activity"]))
    return cases


def _read_ledger(connection: Connection) -> dict[str, list[Event]]:
    """The ledger's events of each case, in the order in which they were written down."""
    cases: dict[str, list[Event]] = defaultdict(list)
    columns = ledger.c
    query = select(columns.case_id, columns.seq, columns.activity).order_by(columns.id)
    for row in connection.execute(query.execution_options(yield_per=5000)):
        cases[row.case_id].append((row.seq, row.activity))
    return cases
