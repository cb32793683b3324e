"""What an operator may do to parked messages and their keys.

A verb names the parked row that it was shown, is judged again under its partition's row, and changes nothing where
what was shown isn't so any more. Every change raises the partition's stamp, so that its lane reads again what it
remembers, and is written to `operator_action` with what was before and after. No verb changes a record of status 2.

`case` is what a verb judges, `judging` the decisions (pure), `carrying` what writes them, `holding` the verbs about
keys, and `slices` how many are done at once without holding anybody up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from seriatim.compensation.selecting import Filter, Target, select_targets
from seriatim.compensation.verbs import judging
from seriatim.compensation.verbs.carrying import MessageVerb, check_body
from seriatim.compensation.verbs.case import Case, Done, Plan
from seriatim.compensation.verbs.holding import KeyTarget, KeyVerb, find_key, hold_plan, keys_of, release_plan
from seriatim.compensation.verbs.slices import in_slices
from seriatim.core.store import SqlStore
from seriatim.core.store.port import Scope

ACTS: dict[str, Callable[[Case], Plan]] = {
    "retry": judging.retry,
    "skip": judging.skip,
    "discard": judging.discard,
}


def retry(store: SqlStore, scope: Scope, parked_id: int, who: str) -> Done:
    """Try a parked message again, now; a dead or skipped one is reopened and goes back to its old place in its key.

    Raises:
        ConfigurationError: no such row. StoreError: the store is away.
    """
    return _one(store, scope, parked_id, MessageVerb("retry", judging.retry, who))


def skip(store: SqlStore, scope: Scope, parked_id: int, who: str) -> Done:
    """Give the head of a key up, so that those behind it run. Its biz_key is final: a duplicate of it never runs.

    A head that is applied already only leaves parking; its record stays.

    Raises:
        ConfigurationError: no such row. StoreError: the store is away.
    """
    return _one(store, scope, parked_id, MessageVerb("skip", judging.skip, who))


def discard(store: SqlStore, scope: Scope, parked_id: int, who: str) -> Done:
    """Remove a parked message. One that still waits is given up first: its biz_key is final, even without a record.

    Raises:
        ConfigurationError: no such row. StoreError: the store is away.
    """
    return _one(store, scope, parked_id, MessageVerb("discard", judging.discard, who))


def edit(
    store: SqlStore, scope: Scope, parked_id: int, who: str, body: bytes, *, raw: bool = False, then_retry: bool = True
) -> Done:
    """Give a parked message another body, and try it again. A copy of the original is known as the same message still.

    `raw` takes a body that isn't JSON.

    Raises:
        ConfigurationError: no such row, or the body isn't JSON. StoreError: the store is away.
    """
    if not raw:
        check_body(body)
    then = MessageVerb("retry", judging.retry, who) if then_retry else None
    return _one(store, scope, parked_id, MessageVerb("edit", lambda case: judging.edit(case, body), who, then))


def hold(store: SqlStore, scope: Scope, key: str, who: str, partition: str | None = None) -> Done:
    """Keep a key from running: its head isn't tried, and later messages of it go behind, even where none is parked.

    `partition` is needed for a key that the store has never seen.

    Raises:
        ConfigurationError: the key's partition isn't known. StoreError: the store is away.
    """
    return _key(store, find_key(store, scope, key, partition), KeyVerb("hold", hold_plan, who))


def release(store: SqlStore, scope: Scope, key: str, who: str) -> Done:
    """Let a held key go on: its head is due at once.

    Raises:
        ConfigurationError: the store doesn't know the key. StoreError: the store is away.
    """
    return _key(store, find_key(store, scope, key, None), KeyVerb("release", release_plan, who))


def carry_out(
    store: SqlStore, verb: str, targets: Sequence[Target], who: str, *, dry_run: bool = False
) -> Iterator[Done]:
    """Retry, skip or discard many, in slices; what was done is told as each slice is committed.

    Raises:
        StoreError: the store went away; what was told is done, and the rest isn't.
    """
    return in_slices(store, targets, MessageVerb(verb, ACTS[verb], who), dry_run=dry_run)


def hold_or_release(
    store: SqlStore, verb: str, targets: Sequence[KeyTarget], who: str, *, dry_run: bool = False
) -> Iterator[Done]:
    """Hold or release many keys, in slices. Raises as `carry_out` does."""
    act = hold_plan if verb == "hold" else release_plan
    return in_slices(store, targets, KeyVerb(verb, act, who), dry_run=dry_run)


def _one(store: SqlStore, scope: Scope, parked_id: int, verb: MessageVerb) -> Done:
    targets = select_targets(store, Filter(scope.group, scope.topic, ids=(parked_id,)), verb.name)
    [done] = in_slices(store, targets, verb)
    return done


def _key(store: SqlStore, target: KeyTarget, verb: KeyVerb) -> Done:
    [done] = in_slices(store, [target], verb)
    return done


__all__ = [
    "ACTS",
    "Done",
    "KeyTarget",
    "carry_out",
    "discard",
    "edit",
    "find_key",
    "hold",
    "hold_or_release",
    "keys_of",
    "release",
    "retry",
    "skip",
]
