"""What a transaction decides: pure code over the tables it read.

A `Draft` is a transaction so far: the tables as it sees them, its changes, how many handlers failed, and
the story in words. A handler succeeds or fails, so each function returns every draft that may follow.

The order of judgement of a delivery (N7): a final record is a duplicate, whatever the state of its key; any
other record of status 3 is `parked`, for it runs only in its turn; so is a biz_key that already waits in a
parked row; a message of a blocked key goes behind; then the guard says early, or the handler runs. A
success runs at once those early ones that waited for it. A drain judges each row's record, then the guard,
then runs it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from .scenario import Budget, Scenario
from .state import FINAL, Change, Key, Shown, Tables, Writes, write

Verdict = Literal["duplicate", "parked", "behind", "dropped", "early", "run"]


class Draft(NamedTuple):
    """A transaction so far."""

    tables: Tables
    writes: Writes = ()
    failed: int = 0
    rejected: int = 0
    story: tuple[str, ...] = ()

    def then(self, *changes: Change, story: str = "", failed: int = 0, rejected: int = 0) -> Draft:
        """Go on with more changes; a key row is written once, last."""
        tables, writes = self.tables, self.writes
        for change in changes:
            tables = write(tables, change)
            if change.kind == "key":
                writes = tuple(w for w in writes if w[:2] != change[:2])
            writes = (*writes, change)
        told = (*self.story, story) if story else self.story
        return Draft(tables, writes, self.failed + failed, self.rejected + rejected, told)


def is_early(sc: Scenario, tables: Tables, b: int) -> bool:
    """Ask the guard: is what this message needs not there yet?"""
    needs = sc.messages[b].needs
    return needs is not None and not tables.has_effect(needs)


def key_row(sc: Scenario, tables: Tables, k: int) -> Change:
    """Write parked_key as its parked messages say; free the key when nothing is left."""
    queue, aside, old = tables.rows(sc, k, "queue"), tables.rows(sc, k, "aside"), tables.keys[k]
    held = old is not None and old.held
    if not queue and not held and (not aside or sc.lacks("early_keeps_key")):
        return Change("key", k, None)
    return Change("key", k, Key(queue[0] if queue else None, len(aside), held))


# ---- an ordinary batch


def judge(sc: Scenario, tables: Tables, start: Tables, b: int) -> Verdict:
    """Decide what becomes of a delivery; `start` is what the look-up read, before this batch."""
    record, k = tables.record[b], sc.messages[b].key
    key, key_before = tables.keys[k], start.keys[k]
    blocked = key is not None and key.blocked
    if sc.lacks("behind_in_batch", "behind_kept"):
        blocked, failed_now = key_before is not None and key_before.blocked, blocked
        if failed_now and not blocked and sc.lacks("behind_kept"):
            return "dropped"
    if sc.lacks("record_before_key") and blocked and tables.row(b) is None:
        return "behind"
    if record == "applied" or (record == "rejected" and not sc.lacks("three_waits")):
        return "duplicate"
    reopened = sc.lacks("three_waits") or (record == "early" and sc.lacks("early_waits"))
    if not reopened and (record or tables.row(b) is not None):
        return "parked"
    if blocked and not reopened:
        return "behind"
    return "early" if is_early(sc, tables, b) else "run"


def plan_batch(sc: Scenario, tables: Tables, batch: tuple[int, ...], budget: Budget) -> list[Draft]:
    """Handle deliveries in order."""
    drafts = [Draft(tables)]
    for b in batch:
        drafts = [after for draft in drafts for after in _deliver(sc, draft, tables, b, budget)]
    return drafts


def _deliver(sc: Scenario, draft: Draft, start: Tables, b: int, budget: Budget) -> list[Draft]:
    verdict, name = judge(sc, draft.tables, start, b), sc.messages[b].name
    if verdict == "run":
        return _run_delivery(sc, draft, b, budget)
    if verdict == "early":
        place = "aside" if not sc.lacks("early_aside") else "queue"
        return [_parked(sc, draft, b, (Change("record", b, "early"), Change("park", b, place)), name + " early")]
    if verdict == "behind":
        return [_parked(sc, draft, b, (Change("park", b, "queue"),), name + " behind")]
    return [draft.then(story=f"{name} {verdict}")]


def _parked(sc: Scenario, draft: Draft, b: int, changes: Writes, story: str) -> Draft:
    draft = draft.then(*changes, story=story)
    return draft.then(key_row(sc, draft.tables, sc.messages[b].key))


def _run_delivery(sc: Scenario, draft: Draft, b: int, budget: Budget) -> list[Draft]:
    name = sc.messages[b].name
    drafts = _wake(sc, draft.then(*_success(b), story=name + " ok"), b, budget)
    if draft.failed < budget.fail:
        place = "aside" if sc.on_failure == "set_aside" else "queue"
        parked = Change("record", b, "parked"), Change("park", b, place)
        drafts.append(_parked(sc, draft.then(failed=1), b, parked, name + " FAILS"))
    if draft.rejected < budget.reject:
        blocks = sc.on_dead == "block_key"
        changes = (Change("park", b, "queue"), *_dead(b)) if blocks else _skipped(sc, b)
        drafts.append(_parked(sc, draft.then(rejected=1), b, changes, name + " REJECTS"))
    return drafts


def _success(b: int) -> Writes:
    return Change("effect", b), Change("record", b, "applied")


def _dead(b: int) -> Writes:
    """Give up what blocks its key: a final record, but the row stays until a person comes."""
    return Change("dead", b), Change("record", b, "rejected")


def _skipped(sc: Scenario, b: int) -> Writes:
    """Skip by the topic's policy: a final record, although nothing ran, and no row."""
    skip = Change("skip", b, b), Change("unpark", b)
    return skip if sc.lacks("reject_writes_record") else (*skip, Change("record", b, "rejected"))


# ---- early messages


def _wake(sc: Scenario, draft: Draft, b: int, budget: Budget) -> list[Draft]:
    """Run, right after the success of `b` and in its transaction, the early ones that waited for it."""
    k, drafts = sc.messages[b].key, [draft]
    if sc.lacks("wake"):
        return drafts
    for e in draft.tables.rows(sc, k, "aside"):
        if sc.messages[e].needs == b or sc.lacks("wake_asks_guard"):
            drafts = [after for d in drafts for after in _run_aside(sc, d, e, budget)]
    return drafts


def _run_aside(sc: Scenario, draft: Draft, e: int, budget: Budget) -> list[Draft]:
    """Run an early (or set aside) message whose predecessor has its effect; if it fails, it stays aside."""
    name, gone = sc.messages[e].name, Change("unpark", e)
    if sc.lacks("wake_runs"):
        return [_parked(sc, draft, e, (gone,), name + " dropped")]
    drafts = _wake(sc, _parked(sc, draft, e, (*_success(e), gone), name + " ok"), e, budget)
    if draft.failed < budget.fail:
        stays = sc.messages[e].needs is None or not sc.lacks("early_failure_aside")
        changes = () if stays else (Change("record", e, "parked"), gone, Change("put_back", e))
        drafts.append(_parked(sc, draft.then(failed=1), e, changes, name + " FAILS"))
    if draft.rejected < budget.reject:
        drafts.append(_parked(sc, draft.then(rejected=1), e, _skipped(sc, e), name + " REJECTS"))
    return drafts


def plan_early(sc: Scenario, tables: Tables, e: int, budget: Budget, *, read_through: bool) -> list[Draft]:
    """Try an early message on its timer: run it, or, past its deadline, give it up."""
    key, name = tables.keys[sc.messages[e].key], sc.messages[e].name
    if sc.lacks("timer") or (key is not None and key.held and not sc.lacks("timer_sees_hold")):
        return []
    waits = is_early(sc, tables, e)
    drafts = [] if waits or sc.lacks("timer_tries") else _run_aside(sc, Draft(tables), e, budget)
    tried = waits or sc.lacks("timer_tries", "deadline_tries")
    if tried and _may_give_up(sc, tables, e, read_through=read_through):
        gone = Draft(tables).then(*_give_up(e), story=name + " is given up")
        drafts.append(gone.then(key_row(sc, gone.tables, sc.messages[e].key)))
    return drafts


def _give_up(e: int) -> Writes:
    return Change("give_up", e), Change("record", e, "rejected"), Change("unpark", e)


def _may_give_up(sc: Scenario, tables: Tables, e: int, *, read_through: bool) -> bool:
    """Any time may be past the deadline; these are the other conditions."""
    key, needs = tables.keys[sc.messages[e].key], sc.messages[e].needs
    blocked = key is not None and key.blocked
    chained = needs is not None and tables.row(needs) is not None
    return (
        (read_through or sc.lacks("deadline_read_through"))
        and (not blocked or sc.lacks("deadline_unblocked"))
        and (not chained or sc.lacks("deadline_chain", "deadline_unblocked"))
    )


# ---- a drain slice


def plan_drain(sc: Scenario, tables: Tables, k: int, slice_size: int, budget: Budget) -> list[Draft]:
    """Run the head, and those behind it, until one fails or the slice is full."""
    key = tables.keys[k]
    head = tables.row(key.head) if key is not None and key.head is not None else None
    if key is None or key.held or head is None or head.dead:
        return []
    going, ended = [Draft(tables)], []
    for b in tables.rows(sc, k, "queue")[:slice_size]:
        steps = [step for draft in going for step in _drain_one(sc, draft, b, budget)]
        going = [draft for draft, goes_on in steps if goes_on]
        ended += [draft for draft, goes_on in steps if not goes_on]
    return [draft.then(key_row(sc, draft.tables, k)) for draft in ended + going]


def _drain_one(sc: Scenario, draft: Draft, b: int, budget: Budget) -> list[tuple[Draft, bool]]:
    """Return what may become of one row, and whether the drain goes on."""
    name = sc.messages[b].name
    row = draft.tables.row(b)
    if row is not None and row.dead and not sc.lacks("drain_stops_at_dead"):
        return [(draft, False)]
    if draft.tables.record[b] in FINAL and not sc.lacks("drain_judges_record"):
        return [(draft.then(Change("unpark", b), story=name + " duplicate"), True)]
    if is_early(sc, draft.tables, b) and not sc.lacks("drain_asks_guard"):
        early = draft.then(Change("record", b, "early"), story=name + " early")
        if sc.lacks("drain_defers"):
            return [(early, False)]
        return [(early.then(Change("aside", b)), True)]
    done = draft.then(*_success(b), Change("unpark", b), story=name + " ok")
    steps = [(after, True) for after in _wake(sc, done, b, budget)]
    if draft.failed < budget.fail:
        failed = draft.then(Change("record", b, "parked"), story=name + " FAILS", failed=1)
        aside = sc.on_failure == "set_aside"
        steps.append((failed.then(Change("aside", b)), True) if aside else (failed, False))
    if draft.rejected < budget.reject:
        blocks = sc.on_dead == "block_key"
        changes = _dead(b) if blocks else _skipped(sc, b)
        steps.append((draft.then(*changes, story=name + " REJECTS", rejected=1), not blocks))
    return steps


# ---- operators' verbs


def plan_verb(sc: Scenario, tables: Tables, verb: str, target: int, shown: Shown | None) -> Writes:
    """Return what a verb writes under the partition's row; nothing when the state has moved on."""
    if verb in ("hold", "release"):
        return _plan_hold(sc, tables, target, held=verb == "hold")
    if verb == "skip" and shown is not None:
        return _plan_skip(sc, tables, shown)
    if verb == "retry" and tables.record[target] == "rejected":
        back = Change("park_first" if sc.lacks("retry_in_place") else "put_back", target)
        draft = Draft(tables).then(Change("reopen", target), Change("record", target, "parked"), back)
        return draft.then(key_row(sc, draft.tables, sc.messages[target].key)).writes
    if verb == "give_up" and is_early(sc, tables, target):  # only a mutant lets the daemon do it
        draft = Draft(tables).then(*_give_up(target))
        return draft.then(key_row(sc, draft.tables, sc.messages[target].key)).writes
    return ()


def _plan_hold(sc: Scenario, tables: Tables, k: int, *, held: bool) -> Writes:
    key = tables.keys[k] or Key(None, 0, held=False)
    if key.held == held:
        return ()
    keys = (*tables.keys[:k], key._replace(held=held), *tables.keys[k + 1 :])
    return (key_row(sc, tables._replace(keys=keys), k),)


def _plan_skip(sc: Scenario, tables: Tables, shown: Shown) -> Writes:
    """Skip the head, or discard another parked message, if it is still the one that was shown."""
    k, b, head = sc.messages[shown.message].key, shown.message, shown.head
    queue, row = tables.rows(sc, k, "queue"), tables.row(shown.message)
    if sc.lacks("verb_carries_id") and queue:
        b = queue[0]
    elif row is None or (row.place == "queue" and (b == queue[0]) != head):
        return ()
    done = tables.record[b] == "applied" and not sc.lacks("skip_leaves_applied")
    draft = Draft(tables).then(Change("unpark", b))
    if not done:
        draft = draft.then(Change("skip", b, shown.message))
        draft = draft if sc.lacks("skip_writes_record") else draft.then(Change("record", b, "rejected"))
    return draft.then(_freed(sc, draft.tables, k, shown)).writes


def _freed(sc: Scenario, tables: Tables, k: int, shown: Shown) -> Change:
    if sc.lacks("followers_under_lock"):
        seen = tuple(row for row in tables.parked if row.message in shown.followers or row.place == "aside")
        tables = tables._replace(parked=seen)
    return key_row(sc, tables, k)
