"""The pure decisions, over every combination of small domains."""

from __future__ import annotations

import itertools

import pytest

from seriatim.core.backoff import Backoff
from seriatim.core.decision import (
    FREE,
    Action,
    Arrival,
    Failed,
    KeyStanding,
    OnDead,
    OnFailure,
    Outcome,
    Place,
    Policy,
    Reason,
    Record,
    Status,
    Waiting,
    dispose,
    expired,
    judge,
    judge_parked,
)

D1, D2, D3 = b"one", b"two", b"three"
OUTCOMES = (None, *Outcome)
SOME_OUTCOMES = (None, Outcome.APPLIED, Outcome.PARKED, Outcome.REJECTED)

ARRIVALS = [
    Arrival(key, biz_key, kind, digest, problem, ignored)
    for key, biz_key, kind, digest, problem, ignored in itertools.product(
        (None, "k"), (None, "b"), (None, "paid"), (D1, D2), (None, Reason.MALFORMED), (False, True)
    )
]
RECORDS = [
    None,
    *(
        Record(status, outcome, kind, digest, first)
        for status, outcome, kind, digest, first in itertools.product(
            Status, SOME_OUTCOMES, ("paid", "shipped"), (D1, D2), (None, D1)
        )
    ),
]
WAITING = [None, *(Waiting(kind, digest) for kind, digest in itertools.product(("paid", "shipped"), (D1, D2)))]
KEYS = [
    KeyStanding(depth=depth, aside=aside, held=held)
    for depth, aside, held in itertools.product((0, 1), (0, 1), (False, True))
]
EVERYTHING = list(itertools.product(ARRIVALS, RECORDS, WAITING, KEYS))


JUDGED = [(case, judge(*case)) for case in EVERYTHING]


def every(*, where=lambda *_: True):
    return ((case, action) for case, action in JUDGED if where(*case))


def settled(record):
    return record is not None and record.status is not Status.PROCESSING


def marked(arrival, record):
    """Whether a crash mark of this very message is there, or nothing: either says nothing of what may become of it."""
    return record is None or (record.status is Status.PROCESSING and record.same(arrival))


def known(arrival, record, waiting):
    """Whether something is known under the biz_key of an arrival that says what may become of it."""
    return arrival.biz_key is not None and not (marked(arrival, record) and waiting is None)


# -- a delivery


def test_every_combination_has_an_answer():
    actions = {action for _, action in every()}
    assert actions == set(Action) - {Action.STAND}, "an ordinary delivery never stands: that is for parked ones"


def test_a_final_record_answers_whatever_the_state_of_its_key():
    def final(arrival, record, _waiting, _key):
        return arrival.biz_key is not None and settled(record) and record.final

    for (arrival, record, _, _), action in every(where=final):
        assert action is (Action.DUPLICATE if record.same(arrival) else Action.CONFLICT)


def test_a_failed_record_parks_its_duplicates_and_never_runs_them():
    def failed(arrival, record, _waiting, _key):
        return arrival.biz_key is not None and settled(record) and not record.final

    for (arrival, record, _, _), action in every(where=failed):
        assert action is (Action.PARKED if record.same(arrival) else Action.CONFLICT)


def test_a_waiting_row_parks_its_duplicates_where_there_is_no_record_yet():
    def waits(arrival, record, waiting, _key):
        return arrival.biz_key is not None and marked(arrival, record) and waiting is not None

    for (arrival, _, waiting, _), action in every(where=waits):
        assert action is (Action.PARKED if waiting.same(arrival) else Action.CONFLICT)


def test_a_crash_mark_says_nothing_but_which_message_it_marks():
    """A committed status 1 is a crash mark: its message is judged as if there were no record."""

    def has_mark(arrival, record, _waiting, _key):
        return arrival.biz_key is not None and record is not None and record.status is Status.PROCESSING

    for (arrival, record, waiting, key), action in every(where=has_mark):
        assert action is (judge(arrival, None, waiting, key) if record.same(arrival) else Action.CONFLICT)


def test_what_comes_behind_a_blocked_or_held_key_waits():
    def behind(arrival, record, waiting, key):
        return not known(arrival, record, waiting) and key.blocked and arrival.sharding_key and not arrival.ignored

    for _, action in every(where=behind):
        assert action is Action.BEHIND


def test_nothing_runs_that_is_known_or_whose_key_is_blocked_or_that_has_a_problem():
    for (arrival, record, waiting, key), action in every():
        if action is Action.RUN:
            assert not known(arrival, record, waiting)
            assert not key.blocked
            assert arrival.problem is None
            assert arrival.sharding_key is not None


def test_whatever_nothing_keeps_from_running_runs():
    def free(arrival, record, waiting, key):
        return (
            not known(arrival, record, waiting)
            and not key.blocked
            and arrival.sharding_key is not None
            and arrival.problem is None
            and not arrival.ignored
        )

    for _, action in every(where=free):
        assert action is Action.RUN


def test_what_waits_aside_blocks_nobody():
    for (arrival, record, waiting, key), action in every():
        if key.aside:
            assert action is judge(arrival, record, waiting, KeyStanding(depth=key.depth, held=key.held))


def test_a_malformed_one_without_a_readable_key_is_kept_alone():
    def stray(arrival, record, waiting, _key):
        return arrival.sharding_key is None and not known(arrival, record, waiting)

    for _, action in every(where=stray):
        assert action is Action.STRAY


def test_a_malformed_one_with_a_readable_key_holds_up_its_key_like_a_failure():
    for problem in (Reason.MALFORMED, Reason.UNHANDLED, Reason.CONTENTION):
        assert judge(Arrival("k", "b", "paid", D1, problem), None, None, FREE) is Action.PARK


def test_an_edited_record_knows_the_body_first_received_and_the_one_that_ran():
    record = Record(Status.SUCCESS, Outcome.APPLIED, "paid", D2, first_digest=D1)
    answers = [judge(Arrival("k", "b", "paid", digest), record, None, FREE) for digest in (D1, D2, D3)]
    assert answers == [Action.DUPLICATE, Action.DUPLICATE, Action.CONFLICT]


def test_the_same_body_under_another_type_is_a_conflict():
    record = Record(Status.SUCCESS, Outcome.APPLIED, "paid", D1)
    assert judge(Arrival("k", "b", "shipped", D1), record, None, FREE) is Action.CONFLICT
    assert judge(Arrival("k", "b", "shipped", D1), None, Waiting("paid", D1), FREE) is Action.CONFLICT


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("status", Status)
def test_only_success_and_rejected_are_final(status, outcome):
    final = Record(status, outcome, "paid", D1).final
    assert final is (status is Status.SUCCESS or outcome is Outcome.REJECTED)


# -- a parked message whose turn has come


def test_a_dead_message_stands_whatever_its_record_says():
    for arrival, record in itertools.product(ARRIVALS, RECORDS):
        assert judge_parked(arrival, record, Reason.DEAD) is Action.STAND


def test_a_parked_message_with_a_final_record_never_runs():
    for arrival, record, reason in itertools.product(ARRIVALS, RECORDS, set(Reason) - {Reason.DEAD}):
        action = judge_parked(arrival, record, reason)
        if record is not None and record.final:
            assert action is (Action.DUPLICATE if record.same(arrival) else Action.CONFLICT)
        else:
            assert action is (Action.RUN if arrival.problem is None else Action.PARK)


# -- what a failure means

FAILURES = [
    Failed(reason, "no", calls=calls, after_s=after_s, final=final, counted=counted)
    for reason, calls, after_s, final, counted in itertools.product(
        (Reason.FAILED, Reason.MALFORMED, Reason.UNHANDLED, Reason.CONTENTION),
        (1, 2, 3),
        (None, 0.0, 7.5),
        (False, True),
        (False, True),
    )
]
POLICIES = [
    Policy(on_failure, on_dead, max_attempts=attempts)
    for on_failure, on_dead, attempts in itertools.product(OnFailure, OnDead, (1, 2, 4))
]
DISPOSALS = [
    ((failure, attempts, policy, aside), dispose(failure, attempts, policy, aside=aside))
    for failure, attempts, policy, aside in itertools.product(FAILURES, (0, 1, 3, 5), POLICIES, (False, True))
]


def total_of(failure, attempts):
    return attempts + (failure.calls if failure.counted else 0)


def given_up(failure, attempts, policy):
    return failure.final or (failure.counted and total_of(failure, attempts) >= policy.max_attempts)


def test_every_call_counts_and_nobody_elses_does():
    for (failure, attempts, _, _), disposal in DISPOSALS:
        assert disposal.attempts == total_of(failure, attempts)


def test_a_message_is_given_up_when_it_asks_for_it_or_has_used_up_its_attempts():
    for (failure, attempts, policy, _), disposal in DISPOSALS:
        dead = given_up(failure, attempts, policy)
        assert (disposal.reason is Reason.DEAD) is dead
        assert (disposal.outcome is Outcome.REJECTED) is dead
        assert (disposal.wait_s is None) is dead


def test_what_is_nobodys_attempt_never_makes_a_message_dead():
    for (failure, _, _, _), disposal in DISPOSALS:
        if not failure.counted and not failure.final:
            assert disposal.reason is not Reason.DEAD


def test_a_dead_message_blocks_its_key_only_where_the_topic_says_so():
    for (failure, attempts, policy, aside), disposal in DISPOSALS:
        if given_up(failure, attempts, policy):
            may_block = policy.on_dead is OnDead.BLOCK_KEY and policy.on_failure is not OnFailure.SET_ASIDE
            assert disposal.blocks is (may_block and not aside)
            assert disposal.place is (Place.QUEUE if disposal.blocks else Place.CLOSED)


def test_a_failed_message_waits_where_the_topic_says():
    for (failure, attempts, policy, _), disposal in DISPOSALS:
        if not given_up(failure, attempts, policy):
            aside = policy.on_failure is OnFailure.SET_ASIDE
            assert disposal.place is (Place.ASIDE if aside else Place.QUEUE)
            assert disposal.outcome is Outcome.PARKED


def test_only_a_message_that_blocks_can_stop_its_partition():
    for (_, _, policy, _), disposal in DISPOSALS:
        assert disposal.stops_partition is (disposal.blocks and policy.on_failure is OnFailure.BLOCK)


def test_a_handlers_own_wish_for_the_next_attempt_is_kept():
    for (failure, _, policy, _), disposal in DISPOSALS:
        if disposal.wait_s is not None:
            shortest = policy.backoff.base_s if failure.after_s is None else failure.after_s
            assert shortest <= disposal.wait_s <= max(policy.backoff.cap_s, shortest)


def test_the_back_off_is_safe_at_any_attempt():
    backoff = Backoff(base_s=1.0, cap_s=300.0)
    for attempt in (-1, 0, 1, 2, 10, 64, 65, 1_000, 10**9):
        assert 1.0 <= backoff.delay(attempt) <= 300.0


# -- when an early message is given up


def test_an_early_message_is_given_up_only_once_its_partition_was_read_beyond_its_deadline_and_its_key_is_free():
    for received_at, deadline_s, read_through, key in itertools.product(
        (0, 10_000_000), (0.0, 1.5, 3600.0), (0, 1_499_999, 1_500_000, 1_500_001, 4 * 10**9), KEYS
    ):
        over = read_through > received_at + deadline_s * 1_000_000
        assert expired(received_at, deadline_s, read_through, key) is (over and not key.blocked)


# -- how a key stands

STANDINGS = [
    KeyStanding(depth, aside, attempts, due_at, aside_due_at, held, stops)
    for depth, aside, attempts, due_at, aside_due_at, held, stops in itertools.product(
        (0, 1, 2), (0, 1, 2), (0, 3), (None, 50), (None, 40, 60), (False, True), (False, True)
    )
]


def test_a_key_is_blocked_by_its_queue_or_by_being_held_never_by_what_is_aside():
    for key in STANDINGS:
        assert key.blocked is (key.depth > 0 or key.held)


def test_a_key_row_goes_only_when_nothing_is_left_to_remember():
    for key in STANDINGS:
        assert key.idle is (key.depth == 0 and key.aside == 0 and not key.held)


def test_the_next_head_starts_afresh_and_at_once():
    for key in (key for key in STANDINGS if key.depth):
        after = key.head_left(now=70)
        assert (after.depth, after.attempts, after.stops_partition) == (key.depth - 1, 0, False)
        assert after.due_at == (70 if after.depth else None)
        assert (after.aside, after.held) == (key.aside, key.held)


def test_what_is_aside_has_a_time_again_when_the_queue_empties():
    """A blocked key's row keeps no time for what is aside, so whoever frees the key says it anew."""
    for key in (key for key in STANDINGS if key.depth == 1 and key.aside and not key.held):
        assert key.head_left(now=70).aside_due_at is not None


def test_a_failed_head_keeps_its_place():
    for key in (key for key in STANDINGS if key.depth):
        after = key.head_failed(attempts=5, due_at=90)
        assert (after.depth, after.aside, after.attempts, after.due_at) == (key.depth, key.aside, 5, 90)


def test_a_message_that_fails_on_a_free_key_becomes_its_head():
    after = KeyStanding(aside=1, aside_due_at=40).with_head(attempts=2, due_at=90, stops_partition=True)
    assert after == KeyStanding(1, 1, 2, 90, after.aside_due_at, held=False, stops_partition=True)
    assert after.blocked


def test_one_more_behind_changes_nothing_for_the_head():
    for key in (key for key in STANDINGS if key.blocked):
        after = key.with_behind()
        assert after.depth == key.depth + 1
        assert (after.attempts, after.stops_partition) == (key.attempts, key.stops_partition)


def test_what_is_aside_is_due_when_the_first_of_it_is():
    for key, due_at in itertools.product(STANDINGS, (None, 30, 50, 70)):
        after = key.with_aside(due_at)
        times = [time for time in (key.aside_due_at, due_at) if time is not None]
        assert (after.aside, after.aside_due_at) == (key.aside + 1, min(times, default=None))
        assert after.aside_left().aside == key.aside
