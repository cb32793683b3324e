"""The proof of compensation: a failing key harms only itself, and what failed comes back without overtaking.

Payments of many accounts, some of which fail for a while and some for ever, through consumers and daemons that are
killed with SIGKILL at random; then every account is looked at. Second, without kills and at a steady rate: what the
failures cost the accounts that are well. Exit status 0: all holds.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Engine, create_engine, func, select

from examples.healing.app import app, payments
from examples.healing.check import check, healthy_p99_ms, progress
from examples.healing.tables import ledger, metadata
from examples.proving.databases import fresh_database
from examples.proving.killing import Gang, ProofError
from examples.proving.trial import SERIATIM, Trial, say
from seriatim import Settings
from seriatim.core.store.schema import parked_key

T = TypeVar("T")

LEASE_S = 2.0
IDLE_S = 8.0  #: longer than a take-over and the longest back-off
SENT_AT_ONCE = 500
P99_FACTOR = 2.0  #: what failures may cost the accounts that are well


@dataclass(slots=True, kw_only=True)
class Proof(Trial):
    """One run, in a folder of its own."""

    accounts: int
    each: int
    kills: int
    seed: int
    folder: Path

    def names(self, *, failing: bool = True) -> list[str]:
        """The accounts: 5% are sick, 1% lost, unless nothing is to fail."""
        kinds = [
            "lost" if failing and n % 100 == 0 else "sick" if failing and 1 <= n % 100 <= 5 else "well"  # noqa: PLR2004 - of every hundred
            for n in range(self.accounts)
        ]
        return [f"{kind}-{n:05}" for n, kind in enumerate(kinds)]

    def run_with_kills(self) -> None:
        """Consumers and daemons are killed at random."""
        names = self.names()
        self._prepare()
        total = self.accounts * self.each
        say(f"sending {total:,} payments of {self.accounts:,} accounts; 5% sick, 1% lost")
        self._send(names)
        engine = create_engine(self.store)
        try:
            self._consume(engine, total)
            with engine.connect() as connection:
                found = check(connection, names, self.each)
        finally:
            engine.dispose()
        sick, lost = (sum(name.startswith(kind) for name in names) for kind in ("sick", "lost"))
        say("what came of it")
        for wrong in found.wrong[:5]:
            print(f"        {wrong}")
        self.check(not found.wrong, f"{len(found.wrong)} accounts are wrong: out of order, doubled, or incomplete")
        self.check(found.healed == sick, f"{found.healed} of {sick} sick accounts complete and in order")
        self.check(found.given_up == lost, f"{found.given_up} of {lost} lost ones dead, with their followers behind")
        self.check(found.well == self.accounts - sick - lost, f"{found.well} accounts were never harmed")
        self.check(self._audit(), "the audit finds no violation")

    def _consume(self, engine: Engine, total: int) -> None:
        rng = random.Random(f"{self.seed}/kills")
        points = sorted(rng.sample(range(total // 20, total * 9 // 10), self.kills))
        say(f"two consumers and two daemons, of which one is killed with SIGKILL {self.kills} times")
        run = [*SERIATIM, "run", "examples.healing.app:app", "--until-idle", str(IDLE_S), "--log-level", "ERROR"]
        daemon = [*SERIATIM, "compensate", "examples.healing.app:app", "--direct", "--log-level", "ERROR"]
        gang = Gang([run] * 2, self.environment(), self.folder, helpers=[daemon] * 2)

        def done() -> int:
            with engine.connect() as connection:
                return progress(connection)

        toll = gang.work(points, done, rng)
        print(f"        {total / toll.seconds:,.0f} messages/s with {toll.kills} kills ({toll.seconds:.0f} s)")

    def measure(self, rate: int, *, failing: bool) -> float:
        """Milliseconds to the commit for 99% of the payments of accounts that are well, at a steady rate."""
        names = self.names(failing=failing)
        self._prepare()
        run = [*SERIATIM, "run", "examples.healing.app:app", "--log-level", "ERROR"]
        with Gang([run], self.environment(), self.folder).running():
            self._send(names, rate)
            self._await_quiet()
        engine = create_engine(self.store)
        try:
            with engine.connect() as connection:
                return healthy_p99_ms(connection)
        finally:
            engine.dispose()

    # -- its parts

    def _prepare(self) -> None:
        self.seriatim("init", "examples.healing.app:app")
        engine = create_engine(self.store)
        metadata.create_all(engine)
        engine.dispose()

    def _send(self, names: Sequence[str], rate: int | None = None) -> None:
        """Send every account's payments, one round after another, as fast as possible or at a steady rate."""
        app.configure(Settings(broker=self.broker, store=self.store))
        rounds = [(name, number) for number in range(self.each) for name in names]
        at_once = SENT_AT_ONCE if rate is None else max(1, rate // 50)
        began = time.monotonic()
        with app.producer() as producer:
            for start in range(0, len(rounds), at_once):
                if rate is not None:
                    time.sleep(max(0.0, began + start / rate - time.monotonic()))
                producer.send(
                    *(
                        payments.message(key=name, type="payment", biz_key=f"{name}:{number}", body={"number": number})
                        for name, number in rounds[start : start + at_once]
                    )
                )

    def _await_quiet(self) -> None:
        """Until nothing has taken effect for a while, and nothing is due any more."""
        engine = create_engine(self.store)
        last, since = -1, time.monotonic()
        try:
            while time.monotonic() - since < IDLE_S:
                with engine.connect() as connection:
                    due = connection.execute(
                        select(func.count()).select_from(parked_key).where(parked_key.c.next_attempt_at.is_not(None))
                    ).scalar_one()
                    now = int(connection.execute(select(func.count()).select_from(ledger)).scalar_one())
                if now != last or due:
                    last, since = now, time.monotonic()
                time.sleep(0.2)
        finally:
            engine.dispose()

    def _audit(self) -> bool:
        told = self.seriatim("audit", "--topic", "payments", "--json", may_fail=True)
        print(f"        audit: {told.stdout.strip()}")
        return told.returncode == 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/heal", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--accounts", type=int, default=1_000, help="how many keys (%(default)s)")
    parser.add_argument("--each", type=int, default=100, help="messages of each (%(default)s)")
    parser.add_argument("--kills", type=int, default=10, help="how often a process is killed (%(default)s)")
    parser.add_argument("--rate", type=int, help="measure at this rate, with and without failures, instead of killing")
    parser.add_argument("--seed", type=int, default=7, help="of the kills (%(default)s)")
    parser.add_argument("--broker", help="broker URL; `{n}` in it is another number for each run")
    parser.add_argument("--store", help="store URL, likewise")
    parser.add_argument("--fresh-database", action="store_true", help="make the stores' databases, and drop them after")
    return parser.parse_args()


def main() -> int:
    """Run the proof; the exit status."""
    asked = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="seriatim-healing-"))

    def run(number: int, what: Callable[[Proof], T]) -> tuple[T, list[str]]:
        proof = Proof(
            accounts=asked.accounts,
            each=asked.each,
            kills=asked.kills,
            seed=asked.seed,
            broker=(asked.broker or f"embedded://{folder}/broker-{{n}}.db").replace("{n}", str(number)),
            store=(asked.store or f"sqlite:///{folder}/store-{{n}}.db").replace("{n}", str(number)),
            folder=folder,
            lease_s=LEASE_S,
        )
        with fresh_database(proof.store) if asked.fresh_database else nullcontext():
            return what(proof), proof.failed

    failed: list[str] = []
    try:
        if asked.rate is None:
            _, failed = run(1, Proof.run_with_kills)
        else:
            without, _ = run(1, lambda proof: proof.measure(asked.rate, failing=False))
            with_failures, _ = run(2, lambda proof: proof.measure(asked.rate, failing=True))
            print(f"P99 of healthy keys: {without:.1f} ms without failures, {with_failures:.1f} ms with them")
            if with_failures > P99_FACTOR * without:
                failed = [f"more than {P99_FACTOR:g} times"]
    except ProofError as error:
        print(f"scripts/heal: {error}", file=sys.stderr)
        failed = ["it could not be carried through"]
    else:
        shutil.rmtree(folder, ignore_errors=True)
    print("PROVED" if not failed else f"NOT PROVED: {'; '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
