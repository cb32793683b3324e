"""`seriatim parked retry|skip|discard|edit|hold|release`: an operator decides."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich.markup import escape

from seriatim.cli.console import FAILED, guarded, out, print_json
from seriatim.cli.showing import (
    AgeOption,
    DryRunOption,
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
    WhoOption,
    YesOption,
    make_filter,
    opened,
    operator,
    plain,
)
from seriatim.compensation import verbs
from seriatim.compensation.selecting import Filter, select_targets
from seriatim.compensation.verbs import Done
from seriatim.compensation.verbs.holding import KeyTarget, held_keys, scope_of_key
from seriatim.core.errors import ConfigurationError
from seriatim.core.store import SqlStore

SHOWN = 20  #: deeds that are told one by one
IdArguments = Annotated[
    list[int] | None, typer.Argument(metavar="ID…", help="Parked messages, as `parked list` shows them, without #.")
]
KeyArguments = Annotated[list[str] | None, typer.Argument(metavar="KEY…", help="Sharding keys.")]

_HELP = {
    "retry": "Try parked messages again, now: by id, or by what they have in common.\n\nAttempts are counted anew. A "
    "head, and what is aside, is due at once; a dead or skipped one goes back to its old place in its key. By filter: "
    "heads, what is aside, and the dead; what an operator skipped comes back by its id alone.",
    "skip": "Give heads, or messages aside, up: those behind them run.\n\nThe message stays as evidence, and a copy of "
    "it never runs. A head that is applied already only leaves parking.",
    "discard": "Remove parked messages; one that still waits is given up first, and a copy of it never runs.\n\nBy "
    "filter, without --place: only what is closed (dead, skipped, evidence).",
}


@dataclass(frozen=True, slots=True)
class _How:
    """How a verb is carried out, and told."""

    verb: str
    who: str
    dry_run: bool
    yes: bool
    json: bool


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for verb, text in _HELP.items():
        app.command(verb, help=text)(_message_command(verb))
    app.command("edit")(edit_command)
    app.command("hold")(hold_command)
    app.command("release")(release_command)


def _message_command(verb: str) -> Callable[..., None]:
    @guarded
    def command(
        ids: IdArguments = None,
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
        dry_run: DryRunOption = False,
        yes: YesOption = False,
        json: JsonOption = False,
        who: WhoOption = None,
    ) -> None:
        wanted = make_filter(
            group,
            topic,
            ids=ids,
            keys=key,
            kind=kind,
            error=error,
            error_type=error_type,
            reason=reason,
            place=place,
            older_than=older_than,
        )
        _check(wanted, verb)
        how = _How(verb, operator(who), dry_run, yes, json)
        with opened(store) as store_:
            targets = select_targets(store_, wanted, verb)
            _ask(how, len(targets), "messages")
            done = verbs.carry_out(store_, verb, targets, how.who, dry_run=dry_run)
            _tell(how, done, by_name=bool(ids))

    return command


def _check(wanted: Filter, verb: str) -> None:
    if wanted.ids and Filter(wanted.group, wanted.topic, wanted.ids) != wanted:
        raise ConfigurationError("ids name the messages already: leave the other options out, or the ids")
    if not wanted.narrows:
        raise ConfigurationError(
            f"say what to {verb}: ids, or what the messages have in common (--key, --type, --error, --error-type, "
            "--reason, --place, --older-than); `seriatim parked list` shows what there is"
        )


def _ask(how: _How, count: int, what: str) -> None:
    """More than one needs a yes: from the keyboard, or beforehand."""
    if count <= 1 or how.yes or how.dry_run:
        return
    if not sys.stdin.isatty():
        raise ConfigurationError(
            f"{count:,} {what} match: say --yes to {how.verb} them all, or look first with --dry-run (nothing was done)"
        )
    if not typer.confirm(f"{how.verb} {count:,} {what}?", err=True):
        raise typer.Exit(FAILED)


def _tell(how: _How, deeds: Iterable[Done], *, by_name: bool) -> None:
    """Tell what is done as it is done. Exit status 1 where what was asked for by name wasn't done."""
    results: list[Done] = []
    for done in deeds:
        results.append(done)
        if not how.json and len(results) <= SHOWN:
            out.print(escape(plain(_line(how, done))), highlight=False, soft_wrap=True)
    changed = sum(done.changed for done in results)
    if how.json:
        print_json(_as_json(how, results, changed))
    elif len(results) != 1:
        out.print(_sum(how, len(results), changed), highlight=False, soft_wrap=True)
    if by_name and changed < len(results):
        raise typer.Exit(FAILED)


def _line(how: _How, done: Done) -> str:
    where = "" if done.key is None else f"{done.group}/{done.topic} {done.key}: "
    head = "would: " if how.dry_run and done.changed else "" if done.changed else "unchanged: "
    return f"{head}{where}{done.text}"


def _sum(how: _How, count: int, changed: int) -> str:
    if not count:
        return f"nothing matches that {how.verb} could do anything about"
    rest = f" (the first {SHOWN} are shown)" if count > SHOWN else ""
    word = "would change" if how.dry_run else "changed"
    return f"{how.verb}: {changed:,} {word}, {count - changed:,} as they were{rest}"


def _as_json(how: _How, results: Sequence[Done], changed: int) -> dict[str, Any]:
    return {
        "verb": how.verb,
        "dry_run": how.dry_run,
        "who": how.who,
        "matched": len(results),
        "changed": changed,
        "results": [asdict(done) for done in results],
    }


@guarded
def edit_command(
    parked_id: Annotated[int, typer.Argument(metavar="ID", help="The parked message, without #.")],
    body: Annotated[
        typer.FileBinaryRead, typer.Option("--body", metavar="FILE", help="The new body; - reads standard input.")
    ],
    raw: Annotated[bool, typer.Option("--raw", help="Take a body that isn't JSON.")] = False,
    retry: Annotated[bool, typer.Option("--retry/--no-retry", help="Try it again afterwards.")] = True,
    store: StoreOption = None,
    json: JsonOption = False,
    who: WhoOption = None,
) -> None:
    """Give a parked message another body, and try it again.

    The original is kept in the audit, and a copy of it is still known as the same message.
    """
    how = _How("edit", operator(who), dry_run=False, yes=True, json=json)
    content = body.read()
    with opened(store) as store_:
        [target] = select_targets(store_, Filter(ids=(parked_id,)), "edit")
        done = verbs.edit(store_, target.scope, parked_id, how.who, content, raw=raw, then_retry=retry)
    _tell(how, [done], by_name=True)


@guarded
def hold_command(
    keys: KeyArguments = None,
    store: StoreOption = None,
    group: GroupOption = None,
    topic: TopicOption = None,
    partition: Annotated[
        str | None, typer.Option(help="Where a key belongs that the store has never seen; see `seriatim route`.")
    ] = None,
    kind: TypeOption = None,
    error: ErrorOption = None,
    error_type: ErrorTypeOption = None,
    reason: ReasonOption = None,
    older_than: AgeOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
    who: WhoOption = None,
) -> None:
    """Keep keys from running, by name or by what their parked messages have in common; later messages go behind."""
    wanted = make_filter(
        group, topic, kind=kind, error=error, error_type=error_type, reason=reason, older_than=older_than
    )
    how = _How("hold", operator(who), dry_run, yes, json)
    with opened(store) as store_:
        targets = _keys(store_, how.verb, keys or [], wanted, partition)
        _hold_or_release(store_, how, targets, by_name=bool(keys))


@guarded
def release_command(
    keys: KeyArguments = None,
    every: Annotated[bool, typer.Option("--all", help="Every key that is held.")] = False,
    store: StoreOption = None,
    group: GroupOption = None,
    topic: TopicOption = None,
    kind: TypeOption = None,
    error: ErrorOption = None,
    error_type: ErrorTypeOption = None,
    reason: ReasonOption = None,
    older_than: AgeOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
    who: WhoOption = None,
) -> None:
    """Let held keys go on: their heads are due at once."""
    wanted = make_filter(
        group, topic, kind=kind, error=error, error_type=error_type, reason=reason, older_than=older_than
    )
    how = _How("release", operator(who), dry_run, yes, json)
    with opened(store) as store_:
        if every and not keys and not wanted.narrows:
            targets = held_keys(store_, group, topic)
        else:
            targets = _keys(store_, how.verb, keys or [], wanted, None)
        _hold_or_release(store_, how, targets, by_name=bool(keys))


def _keys(store: SqlStore, verb: str, named: Sequence[str], wanted: Filter, partition: str | None) -> list[KeyTarget]:
    """The keys that are meant."""
    if named and wanted.narrows:
        raise ConfigurationError("name the keys, or say what their parked messages have in common: not both")
    if named:
        scopes = ((key, scope_of_key(store, key, wanted.group, wanted.topic)) for key in named)
        return [verbs.find_key(store, scope, key, partition) for key, scope in scopes]
    if not wanted.narrows:
        every = " or --all," if verb == "release" else ""
        raise ConfigurationError(
            f"say what to {verb}: keys,{every} or what their parked messages have in common (--type, --error, …)"
        )
    return verbs.keys_of(select_targets(store, wanted, verb))


def _hold_or_release(store: SqlStore, how: _How, targets: Sequence[KeyTarget], *, by_name: bool) -> None:
    _ask(how, len(targets), "keys")
    _tell(how, verbs.hold_or_release(store, how.verb, targets, how.who, dry_run=how.dry_run), by_name=by_name)
