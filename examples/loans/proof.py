"""The proof on real input: a bank's whole log, with copies and early events, through processes that are killed.

Replays the log (every event of 13,087 loan applications) into a broker, 10% of the events twice and 0.05% before their
predecessor; consumes it with two processes, of which one is killed with SIGKILL ten times; then asks `seriatim audit`,
and compares the ledger that the handler wrote with the log itself. Exit status 0: all holds.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, func, make_url, select

from examples.loans.app import PARTITIONS
from examples.loans.check import Comparison, compare
from examples.loans.setup import make_tables
from examples.loans.tables import ledger
from examples.proving.databases import fresh_database
from examples.proving.killing import Gang, ProofError, Toll
from examples.proving.trial import ROOT, SERIATIM, Trial, say
from seriatim.core.manifest import Header, read_manifest

LOG = ROOT.parent / "shared" / "data" / "loans.csv.gz"
PROCESSES = 2
DUPLICATES = 0.10
EARLY = 0.0005
LEASE_S = 1.0
IDLE_S = 5.0  #: longer than a take-over takes (twice the lease), so that nobody leaves too soon


@dataclass(slots=True, kw_only=True)
class Proof(Trial):
    """One run, in a folder of its own."""

    log: Path
    limit: int | None
    kills: int
    seed: int
    folder: Path

    def run(self) -> bool:
        """Run it all; whether all holds."""
        self.seriatim("init", "examples.loans.app:app")
        make_tables(self.store)
        header = self._replay()
        engine = create_engine(self.store)
        try:
            toll = self._consume(engine, header)
            audit = self._audit()
            with engine.connect() as connection:
                comparison = compare(connection, self.log, self.limit)
        finally:
            engine.dispose()
        self._judge(header, toll, audit, comparison)
        return not self.failed

    def _replay(self) -> Header:
        manifest = self.folder / "manifest.jsonl.gz"
        say(f"replaying {self.log.name}: {DUPLICATES:.0%} sent twice, {EARLY:.2%} before their predecessor")
        options = {
            "--topic": "loans",
            "--partitions": PARTITIONS,
            "--key": "case",
            "--type": "activity",
            "--seq": "seq",
            "--biz-key": "{case}:{seq}",
            "--duplicates": DUPLICATES,
            "--early": EARLY,
            "--seed": self.seed,
            "--manifest": manifest,
        } | ({} if self.limit is None else {"--limit": self.limit})
        told = self.seriatim("replay", str(self.log), *(str(part) for option in options.items() for part in option))
        print(f"   {told.stdout.strip()}")
        return read_manifest(manifest)[0]

    def _consume(self, engine: Engine, header: Header) -> Toll:
        rng = random.Random(f"{self.seed}/kills")
        points = sorted(rng.sample(range(header.messages // 50, header.messages * 19 // 20), self.kills))
        say(f"consuming with {PROCESSES} processes; SIGKILL at {', '.join(f'{point:,}' for point in points)} events")
        url = make_url(self.store)
        lock = Path(f"{url.database}.lock") if url.get_backend_name() == "sqlite" else None
        command = [*SERIATIM, "run", "examples.loans.app:app", "--until-idle", str(IDLE_S), "--log-level", "WARNING"]
        gang = Gang([command] * PROCESSES, self.environment(), self.folder, lock)
        query = select(func.coalesce(func.max(ledger.c.id), 0))

        def progress() -> int:
            with engine.connect() as connection:
                return int(connection.execute(query).scalar_one())

        return gang.work(points, progress, rng)

    def _audit(self) -> dict[str, Any]:
        say("auditing")
        manifest = str(self.folder / "manifest.jsonl.gz")
        started = time.monotonic()
        told = self.seriatim(
            "audit",
            "--topic",
            "loans",
            "--manifest",
            manifest,
            "--ledger",
            "loan_ledger:biz_key",
            "--json",
            may_fail=True,
        ).stdout
        print(f"   {time.monotonic() - started:.1f} s: {told.strip()}")
        if not told.strip():
            raise ProofError("the audit couldn't be made")
        answer: dict[str, Any] = json.loads(told)
        return answer

    def _judge(self, header: Header, toll: Toll, audit: Mapping[str, Any], comparison: Comparison) -> None:
        say("what came of it")
        inside = "unknown" if toll.inside is None else f"{toll.inside} of them"
        self._figure(
            f"{header.sent / toll.seconds:,.0f} messages/s ({header.sent:,} in {toll.seconds:.1f} s, kills included)"
        )
        met = toll.kills == self.kills and toll.inside != 0
        self.check(met or not self.kills, f"{toll.kills} SIGKILLs; inside an open transaction: {inside}")
        copies, early = header.sent - header.messages, header.early
        self.check(audit["clean"], "the audit finds no violation")
        self.check(audit["applied"] == header.messages, f"{audit['applied']:,} of {header.messages:,} events applied")
        for name in ("lost", "order_violations", "double_effects"):
            self.check(not audit[name], f"{audit[name]} {name.replace('_', ' ')}")
        self.check(audit["duplicates"] >= copies, f"{audit['duplicates']:,} duplicates stopped; {copies:,} were sent")
        self.check(audit["early"] >= early, f"{audit['early']:,} early; {early:,} were sent early")
        self.check(comparison.holds, f"the log against the handler's own ledger: {comparison}")

    def _figure(self, text: str) -> None:
        print(f"        {text}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/proof", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Path(os.environ.get("SERIATIM_LOANS") or LOG)
    parser.add_argument("log", nargs="?", type=Path, default=default, help="loans.csv.gz (%(default)s)")
    parser.add_argument("--limit", type=int, help="only the first so many events")
    parser.add_argument("--kills", type=int, default=10, help="how often a process is killed (%(default)s)")
    parser.add_argument("--seed", type=int, default=7, help="of the disturbances and of the kills (%(default)s)")
    parser.add_argument("--broker", help="broker URL; a fresh topic 'loans' (an embedded one in a scratch folder)")
    parser.add_argument("--store", help="store URL; a fresh one (SQLite in a scratch folder)")
    parser.add_argument("--fresh-database", action="store_true", help="make the store's database, and drop it after")
    parser.add_argument("--keep", action="store_true", help="keep the scratch folder, and say where it is")
    return parser.parse_args()


def main() -> int:
    """Run the proof; the exit status."""
    asked = _arguments()
    log = asked.log.resolve()
    if not log.is_file():
        print(f"scripts/proof: no file {log}: give the path of loans.csv.gz, or set SERIATIM_LOANS", file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="seriatim-loans-"))
    proof = Proof(
        log=log,
        limit=asked.limit,
        kills=asked.kills,
        seed=asked.seed,
        broker=asked.broker or f"embedded://{folder}/broker.db",
        store=asked.store or f"sqlite:///{folder}/store.db",
        folder=folder,
        lease_s=LEASE_S,
    )
    keep = asked.keep
    try:
        with fresh_database(asked.store) if asked.fresh_database else nullcontext():
            holds = proof.run()
    except ProofError as error:
        print(f"scripts/proof: {error}", file=sys.stderr)
        holds, keep = False, True
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    if keep:
        print(f"   kept: {folder}")
    print("PROVED" if holds else f"NOT PROVED: {'; '.join(proof.failed) or 'it could not be carried through'}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
