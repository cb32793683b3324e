"""Run the model: the protocol in its bounds, then every mutant. `scripts/model --help`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from multiprocessing import Pool
from typing import NamedTuple

from .explore import Result, explore
from .mutants import MUTANTS, WHOLE
from .scenario import Budget, Scenario


class Job(NamedTuple):
    """One exploration, and the promise expected to break."""

    name: str
    scenario: Scenario
    expect: str | None


def main() -> int:
    """Explore what was asked for; 1 if anything came out otherwise than expected."""
    args = _arguments()
    begun, surprises = time.perf_counter(), 0
    with Pool(args.jobs) as pool:
        jobs = list(_jobs(args))
        for job, result in zip(jobs, pool.imap(_explore, jobs), strict=True):
            surprises += _report(job, result, tell=args.trace)
    sys.stdout.write(f"{len(jobs)} explorations, {surprises} surprises, {time.perf_counter() - begun:.0f} s\n")
    return int(surprises > 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/model",
        description=__doc__,
        epilog=("example: scripts/model --log 'm1 e:m2 m2' --budget fail=1 skip=1 --without drain_defers --trace"),
    )
    parser.add_argument("names", nargs="*", help="mutants, or 'protocol'; default: all")
    parser.add_argument("--log", help="explore this log: 'm1 e:m2 m2 m1' (e is early until m2; n… has another key)")
    parser.add_argument("--mode", choices=("log", "queue"), default="log", help="with --log")
    parser.add_argument("--budget", nargs="*", default=["fail=1"], help="with --log: " + ", ".join(Budget._fields))
    parser.add_argument("--without", nargs="*", default=[], help="with --log: rules to take away")
    parser.add_argument("--ignore", nargs="*", default=[], help="with --log: promises not to check")
    parser.add_argument("--trace", action="store_true", help="tell the shortest story of each broken promise")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="processes (2)")
    args = parser.parse_args()
    unknown = set(args.names) - {mutant.name for mutant in MUTANTS} - {"protocol"}
    if unknown:
        parser.error("no such mutant: " + ", ".join(sorted(unknown)))
    return args


def _jobs(args: argparse.Namespace) -> Iterator[Job]:
    if args.log:
        budget = Budget(**{name: int(n) for name, _, n in (word.partition("=") for word in args.budget)})
        removed, ignored = frozenset(args.without), frozenset(args.ignore)
        yield Job("asked for", Scenario(args.mode, args.log, budget, removed=removed, ignored=ignored), None)
        return
    if not args.names or "protocol" in args.names:
        yield from (Job("PROTOCOL", scenario, None) for scenario in WHOLE)
    for mutant in MUTANTS:
        if not args.names or mutant.name in args.names:
            yield from (Job(mutant.name, mutant.scenario(mode), mutant.expect) for mode in mutant.modes)


def _explore(job: Job) -> Result:
    return explore(job.scenario)


def _report(job: Job, result: Result, *, tell: bool) -> bool:
    surprise = result.promise != job.expect
    found = f"{result.broken} ({len(result.trace)} steps)" if result.broken else "every promise holds"
    line = f"{job.name:24} {job.scenario.mode:5} {result.states:7,} states {result.seconds:5.1f} s  {found}"
    expected = f"   SURPRISE, expected: {job.expect or 'every promise holds'}" if surprise else ""
    sys.stdout.write(line + expected + "\n")
    if result.broken and (tell or surprise):
        sys.stdout.writelines(f"    {n:2}. {label}\n" for n, label in enumerate(result.trace, 1))
    sys.stdout.flush()
    return surprise


if __name__ == "__main__":
    sys.exit(main())
