"""`seriatim parked canary`: bring a class of failures back with care."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.markup import escape

from seriatim.cli.console import FAILED, err, guarded, out, print_json
from seriatim.cli.showing import (
    DryRunOption,
    ErrorOption,
    ErrorTypeOption,
    GroupOption,
    JsonOption,
    ReasonOption,
    StoreOption,
    TopicOption,
    TypeOption,
    WhoOption,
    age,
    make_filter,
    opened,
    operator,
    plain,
    short,
)
from seriatim.compensation.canary import MAX_WAVE, Canary, Wave
from seriatim.compensation.selecting import Target
from seriatim.core.errors import ConfigurationError

SHOWN_PENDING = 5


@guarded
def canary(
    store: StoreOption = None,
    group: GroupOption = None,
    topic: TopicOption = None,
    kind: TypeOption = None,
    error: ErrorOption = None,
    error_type: ErrorTypeOption = None,
    reason: ReasonOption = None,
    timeout: Annotated[str, typer.Option(metavar="AGE", help="How long a wave may take: 90s, 10m.")] = "5m",
    max_wave: Annotated[int, typer.Option(min=1, max=10_000, help="Keys of a wave at most.")] = MAX_WAVE,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    who: WhoOption = None,
) -> None:
    """Retry a class of failures with care: one key, then 2, 4, 8 …, stopping as soon as the failure returns.

    Needs running consumers: they do the work, this makes keys due and watches. Exit status 0: every key came back; 1:
    stopped, and what wasn't retried yet stays as it was.
    """
    wanted = make_filter(group, topic, kind=kind, error=error, error_type=error_type, reason=reason)
    if not wanted.narrows:
        raise ConfigurationError("say which failure: --error TEXT, --error-type, --type or --reason")
    timeout_s = age(timeout)
    with opened(store) as store_:
        run = Canary(store_, wanted, operator(who), timeout_s, max_wave)
        targets = run.targets()
        if not dry_run:
            _say(json, _keys(len(targets)) if targets else "nothing matches: no key waits for such a failure")
        waves = [] if dry_run else _run(run, targets, json=json)
    if dry_run:
        _say(json, f"would begin with {_named(targets[0])}, of {_keys(len(targets))}" if targets else "nothing matches")
    if json:
        print_json(_as_json(targets, waves, dry_run=dry_run))
    if waves and waves[-1].stops:
        raise typer.Exit(FAILED)


def _run(run: Canary, targets: list[Target], *, json: bool) -> list[Wave]:
    waves = []
    for wave in run.run(targets):
        waves.append(wave)
        _say(json, _line(wave))
        for text in wave.unchanged:
            _say(json, f"  unchanged: {text}")
        for text in _stopped(wave):
            _say(json, text)
    if waves and not waves[-1].stops:
        settled = sum(len(wave.settled) for wave in waves)
        _say(json, f"done: {settled:,} of {_keys(len(targets))} came back")
    return waves


def _line(wave: Wave) -> str:
    parts = [f"{len(wave.settled):,} settled"]
    for word, these in (("wait for a predecessor", wave.early), ("failed", wave.failed), ("undecided", wave.pending)):
        if these:
            parts.append(f"{len(these):,} {word}")
    one = f" ({_named(wave.targets[0])})" if len(wave.targets) == 1 else ""
    return f"wave {wave.number}: {_keys(len(wave.targets))}{one}: {', '.join(parts)}; {wave.left:,} left"


def _stopped(wave: Wave) -> list[str]:
    """Why nothing more is retried, and what to do."""
    if not wave.stops:
        return []
    if wave.returned is not None:
        why = f"the failure is back: {short(wave.returned, 200)}"
    elif wave.timed_out:
        first = ", ".join(_named(one) for one in wave.pending[:SHOWN_PENDING])
        why = f"time was up before {first} had come to an end: see `seriatim status`, or give more with --timeout"
    else:
        why = f"every key of the wave failed, with another error: `seriatim parked show {wave.failed[0].id}`"
    return [f"stopped: {why}", f"{_keys(wave.left)} left as they were"]


def _keys(count: int) -> str:
    return "1 key" if count == 1 else f"{count:,} keys"


def _named(target: Target) -> str:
    return f"{target.group}/{target.topic} {target.key} #{target.id}"


def _say(json: bool, text: str) -> None:  # noqa: FBT001 - one of two places
    console = err if json else out
    console.print(escape(plain(text)), highlight=False, soft_wrap=True)


def _as_json(targets: list[Target], waves: list[Wave], *, dry_run: bool) -> dict[str, Any]:
    told = [
        {**asdict(wave), "targets": [one.id for one in wave.targets], "stops": wave.stops}
        | {name: [one.id for one in getattr(wave, name)] for name in ("settled", "early", "failed", "pending")}
        for wave in waves
    ]
    stopped = bool(waves) and waves[-1].stops
    return {"dry_run": dry_run, "keys": len(targets), "stopped": stopped, "waves": told}
