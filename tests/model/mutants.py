"""The protocol less one rule, and the promise that notices; and the bounds in which the whole protocol is
explored.

A mutant that nothing notices says why (`because`): the rule is then a second line behind another, or its
harm lies beyond the model. Each is explored in the smallest scenario that shows its harm.
"""

from __future__ import annotations

from typing import NamedTuple

from .scenario import Budget, Mode, OnDead, Scenario


class Mutant(NamedTuple):
    """Rules taken away, where to look for the harm, and which promise breaks (None: not noticed)."""

    name: str
    meaning: str
    removed: tuple[str, ...]
    expect: str | None
    modes: tuple[Mode, ...] = ("log", "queue")
    log: str = "m1 m2 m1"
    budget: Budget = Budget(fail=1)
    ignored: tuple[str, ...] = ()
    on_dead: OnDead = "skip"
    because: str = ""

    def scenario(self, mode: Mode) -> Scenario:
        """Return what to explore."""
        removed, ignored = frozenset(self.removed), frozenset(self.ignored)
        return Scenario(mode, self.log, self.budget, on_dead=self.on_dead, removed=removed, ignored=ignored)


LOG: tuple[Mode, ...] = ("log",)
QUEUE: tuple[Mode, ...] = ("queue",)
VERBS = Budget(fail=1, hold=1, skip=1, retry=1)
SKIP = Budget(fail=1, skip=1)
EARLY = "e:m2 m1 m2 e"
OUTSIDE = Budget(outside=1)

FENCE = (
    Mutant("no_fence", "transactions don't begin with the fence", ("fence",), "P6"),
    Mutant(
        "epoch_only",
        "the fence compares the epoch, not the token; a fail-over may lose the last claim",
        ("fence_token",),
        "P6",
        budget=Budget(failover=1),
    ),
    Mutant("claim_unlocked", "a claim ignores the lock on partition_owner", ("claim_locks",), "P6"),
    Mutant(
        "position_before",
        "the position is committed before the effects",
        ("position_inside_before",),
        "P3",
        LOG,
    ),
    Mutant(
        "position_after",
        "the position is committed after the effects, in a write of its own",
        ("position_inside_after",),
        None,
        LOG,
        because="records absorb the repeats, as long as they are kept (see position_after_purge)",
    ),
    Mutant(
        "position_after_purge",
        "the same, and a purge that trusts the position",
        ("position_inside_after",),
        "P2",
        LOG,
        log="m1 m2",
        budget=Budget(purge=1),
    ),
    Mutant("ack_first", "acknowledged before the commit", ("ack_after_commit",), "P3", QUEUE),
    Mutant(
        "ack_anybody",
        "the acknowledgement of a closed channel still counts",
        ("ack_by_subscriber",),
        None,
        QUEUE,
        because="what is acknowledged was committed by its owner under the fence, so it may be settled",
    ),
    Mutant(
        "unknown_unfenced",
        "after an unknown COMMIT the position is read without the fence",
        ("unknown_fences",),
        None,
        because="the next fence waits for the pending transaction, records absorb the repeat; it saves work",
    ),
    Mutant(
        "unknown_believes_counter",
        "after an unknown COMMIT, a counter that moved means that it happened",
        ("unknown_repeats",),
        "P3",
        budget=Budget(hold=1),
    ),
    Mutant(
        "subscribe_beside",
        "a new owner subscribes while deliveries are in flight elsewhere",
        ("hand_over_quiet",),
        "P1",
        QUEUE,
    ),
)

LOCKS = (
    Mutant("verbs_unlocked", "verbs don't lock partition_owner", ("verbs_lock_owner",), "ORPHAN", budget=SKIP),
    Mutant("skip_unlocked", "skip doesn't lock partition_owner", ("skip_locks_owner",), "ORPHAN", budget=SKIP),
    Mutant(
        "retry_unlocked",
        "retry doesn't lock partition_owner",
        ("retry_locks_owner",),
        "P5",
        budget=Budget(fail=1, skip=1, retry=1),
    ),
    Mutant(
        "hold_unlocked",
        "hold doesn't lock partition_owner",
        ("hold_locks_owner",),
        "HOLD",
        budget=Budget(hold=1),
    ),
    Mutant(
        "release_unlocked",
        "release doesn't lock partition_owner",
        ("release_locks_owner",),
        "ORPHAN",
        budget=Budget(hold=1),
    ),
    Mutant(
        "key_row_first",
        "a verb locks the key row before partition_owner",
        ("owner_row_first",),
        "DEADLOCK",
        budget=SKIP,
    ),
    Mutant(
        "followers_before_lock",
        "followers are read before the lock; the key is freed on that reading",
        ("followers_under_lock",),
        "ORPHAN",
        budget=SKIP,
    ),
    Mutant(
        "verb_without_id",
        "a verb takes the head it finds, not the one that was shown",
        ("verb_carries_id",),
        "P5",
        budget=SKIP,
    ),
)

RECORDS = (
    Mutant(
        "three_runs",
        "a record of status 3 is run by an ordinary delivery",
        ("three_waits",),
        "P5",
        budget=SKIP,
    ),
    Mutant("key_before_record", "a blocked key is judged before the record (N7)", ("record_before_key",), "P8"),
    Mutant("skip_unrecorded", "skip writes no final record", ("skip_writes_record",), "ORPHAN", budget=SKIP),
    Mutant(
        "skip_unrecorded_harm",
        "the same: what comes of it",
        ("skip_writes_record",),
        "P5",
        log="m1 m2 m2",
        budget=SKIP,
        ignored=("ORPHAN",),
    ),
    Mutant(
        "reject_unrecorded",
        "a message skipped by policy gets no final record",
        ("reject_writes_record",),
        "P5",
        budget=Budget(reject=1),
    ),
    Mutant(
        "retry_heads",
        "retry puts the message in front of its key, not where it stood",
        ("retry_in_place",),
        "P5",
        log="m1 m2",
        budget=Budget(fail=1, skip=1, retry=1),
    ),
    Mutant(
        "drain_passes_dead",
        "a drain takes a dead row's final record for a duplicate",
        ("drain_stops_at_dead",),
        "P3",
        LOG,
        log="m1 m2",
        budget=Budget(fail=1, reject=1, skip=1, retry=1),
        on_dead="block_key",
    ),
    Mutant(
        "skip_overwrites",
        "skip overwrites an applied record",
        ("skip_leaves_applied",),
        None,
        budget=SKIP,
        because="no parked row has an applied record, since records are judged before keys: a second line",
    ),
    Mutant(
        "skip_overwrites_2",
        "the same, where keys are judged before records",
        ("skip_leaves_applied", "record_before_key"),
        "P2",
        budget=SKIP,
        ignored=("P8",),
    ),
    Mutant(
        "drain_trusts_row",
        "a drain runs a row without judging its record",
        ("drain_judges_record",),
        None,
        because="no parked row has a final record, since records are judged before keys: a second line",
    ),
    Mutant(
        "drain_trusts_row_2",
        "the same, where keys are judged before records",
        ("drain_judges_record", "record_before_key"),
        "P2",
        ignored=("P8",),
    ),
    Mutant(
        "record_after",
        "the record is written after the commit of its effect",
        ("record_inside",),
        "P2",
        budget=Budget(),
    ),
    Mutant(
        "behind_runs",
        "after a failure, later messages of the key in the batch still run",
        ("behind_in_batch",),
        "P5",
    ),
    Mutant(
        "behind_dropped",
        "after a failure, later messages of the key in the batch aren't parked",
        ("behind_kept",),
        "P3",
    ),
)

EARLIES = (
    Mutant(
        "early_heads",
        "an early message is parked in the queue, so it can be a head",
        ("early_aside",),
        "EARLY",
        log=EARLY,
    ),
    Mutant(
        "early_heads_harm",
        "the same: what comes of it",
        ("early_aside", "drain_defers"),
        "STUCK",
        log="e:m1 m1",
        ignored=("EARLY",),
    ),
    Mutant(
        "drain_stops_at_early",
        "a drain that meets an early message stops at it",
        ("drain_defers",),
        "EARLY",
        log="m1 e:m2 m2",
    ),
    Mutant(
        "drain_unguarded",
        "a drain runs its rows without asking the guard",
        ("drain_asks_guard",),
        "EARLY",
        log="m1 e:m2 m2",
    ),
    Mutant(
        "wake_drops",
        "the success of the predecessor removes the early row without running it",
        ("wake_runs",),
        "P3",
        log=EARLY,
    ),
    Mutant(
        "wake_unguarded",
        "any success of the key runs its early messages",
        ("wake_asks_guard",),
        "EARLY",
        log=EARLY,
    ),
    Mutant(
        "early_forgotten",
        "a key is freed although it has early messages",
        ("early_keeps_key",),
        "ORPHAN",
        log=EARLY,
    ),
    Mutant(
        "early_run_by_delivery",
        "a duplicate of an early message is run by its delivery",
        ("early_waits",),
        "P8",
        log="e:x e",
        budget=OUTSIDE,
    ),
    Mutant(
        "early_run_by_delivery_2",
        "the same, while the key is held",
        ("early_waits",),
        "HOLD",
        log="e:x e",
        budget=Budget(outside=1, hold=1),
        ignored=("P8",),
    ),
    Mutant(
        "timer_ignores_hold",
        "the timer tries early messages of a held key",
        ("timer_sees_hold",),
        "HOLD",
        log="e:x",
        budget=Budget(outside=1, hold=1),
    ),
    Mutant(
        "no_wake",
        "a success doesn't run those that waited for it",
        ("wake",),
        None,
        log=EARLY,
        because="the timer finds them; the rule saves the wait",
    ),
    Mutant(
        "early_failure_blocks",
        "an early message that fails, once its predecessor is there, goes to the queue of its key",
        ("early_failure_aside",),
        None,
        log=EARLY,
        budget=Budget(fail=2),
        because="a choice: as safe, but then it blocks its key (P4)",
    ),
    Mutant(
        "no_timer",
        "only a success wakes an early message, nothing gives it up",
        ("timer",),
        "STUCK",
        log="e:x m1",
        budget=OUTSIDE,
    ),
    Mutant(
        "wake_only",
        "only a success wakes an early message; the deadline doesn't ask the guard",
        ("timer_tries",),
        "EARLY",
        log="e:x m1",
        budget=OUTSIDE,
    ),
    Mutant(
        "deadline_untried",
        "the deadline gives up without trying once more",
        ("deadline_tries",),
        "EARLY",
        log="e:x m1",
        budget=OUTSIDE,
    ),
    Mutant(
        "guard_unlocked",
        "the guard's reading doesn't lock the business row",
        ("guard_locks",),
        "EARLY",
        log="e:x",
        budget=OUTSIDE,
    ),
    Mutant(
        "deadline_unread",
        "the deadline runs though the partition isn't read through",
        ("deadline_read_through",),
        "EARLY",
        log=EARLY,
    ),
    Mutant(
        "deadline_blocked",
        "the deadline runs while the key is parked",
        ("deadline_unblocked",),
        "EARLY",
        log=EARLY,
    ),
    Mutant(
        "deadline_chain",
        "an early message is given up while its predecessor is early itself",
        ("deadline_chain",),
        "EARLY",
        log="e:f f:x",
        budget=OUTSIDE,
    ),
    Mutant(
        "deadline_other_key",
        "the same, its predecessor being parked under another sharding key",
        ("deadline_chain",),
        "EARLY",
        log="e:n1 n1",
    ),
    Mutant(
        "daemon_gives_up",
        "the daemon gives early messages up, without partition_owner",
        ("lane_gives_up",),
        "EARLY",
        log="e:m1 m1",
        budget=SKIP,
    ),
)

MUTANTS = FENCE + LOCKS + RECORDS + EARLIES

WHOLE = (
    Scenario("log", "m1 m2 m3 m1", Budget(fail=2, hold=1, skip=1, retry=1)),
    Scenario("queue", "m1 m2 m3 m1", Budget(fail=2)),
    Scenario("queue", "m1 m2 m1", VERBS),
    Scenario("log", "m1 m2 m1", Budget(fail=1, reject=1, skip=1, retry=1)),
    Scenario("queue", "m1 m2 m2", Budget(fail=1, reject=1, skip=1)),
    Scenario("log", "m1 n1 m2 m1", Budget(fail=2, skip=1)),
    Scenario("log", EARLY, Budget(fail=2, hold=1, retry=1)),
    Scenario("log", EARLY, Budget(fail=1, skip=1, retry=1)),
    Scenario("queue", EARLY, Budget(fail=2)),
    Scenario("queue", EARLY, Budget(fail=1, hold=1, skip=1)),
    Scenario("queue", "e:m1 m1 e", Budget(fail=1, skip=1)),
    Scenario("log", "m1 e:x m2 e", Budget(fail=2, skip=1, outside=1)),
    Scenario("queue", "m1 e:x e", Budget(fail=1, outside=1)),
    Scenario("log", "e:f f:x m1", Budget(fail=1, reject=1, retry=1, outside=1)),
    Scenario("log", "e:n1 n1 m1", Budget(fail=2, hold=1)),
    Scenario("log", "m1 m2 m3 m1", Budget(fail=1, reject=1, skip=1, retry=1), on_dead="block_key"),
    Scenario("log", "e:m2 m1 m2 e", Budget(fail=1, reject=1, skip=1), on_dead="block_key"),
    Scenario("queue", "m1 m2 m1", Budget(fail=1, reject=1, retry=1), on_dead="block_key"),
    Scenario("log", "m1 n1 m2 n1", Budget(fail=1, reject=1), on_dead="block_key"),
    Scenario("queue", "m1 n1 m2", Budget(fail=1, reject=1), on_dead="block_key"),
    Scenario("log", "m1 e:m1 m2 m1", Budget(fail=2, skip=1), on_failure="set_aside"),
    Scenario("queue", "m1 e:m1 m1", Budget(fail=2), on_failure="set_aside"),
)
"""The protocol in the bounds of a full run."""

BRIEF = (
    (Scenario("log", "m1 m2 m1", Budget(fail=2, hold=1, skip=1)), 5_000),
    (Scenario("queue", "m1 m2 m1", Budget(fail=1, skip=1)), 5_000),
    (Scenario("log", "m1 m2 m1", Budget(fail=1, reject=1, retry=1), on_dead="block_key"), 2_000),
    (Scenario("log", EARLY, Budget(fail=1, hold=1)), 3_000),
    (Scenario("queue", EARLY, Budget(fail=1)), 3_000),
    (Scenario("log", "m1 e:x e", Budget(fail=1, outside=1)), 1_000),
    (Scenario("log", "m1 e:m1 m2 m1", Budget(fail=2), on_failure="set_aside"), 1_000),
)
"""The protocol in the bounds of a test, each with the number of states that it must visit at least."""
