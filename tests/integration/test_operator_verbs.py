"""Each verb against each way in which a parked message can stand: what it does, what it leaves, who is told."""

import json
import threading
from dataclasses import replace

import pytest
from support.rig import LATER, QUICK, enter, wait_until

from seriatim import ConfigurationError, Early, Reject
from seriatim.compensation import verbs
from seriatim.compensation.selecting import Filter, select_targets
from seriatim.core.store.port import Scope

SCOPE = Scope("shop", "orders")


def shop(rig, *, policy=LATER, partitions=1, **options):
    """An app whose step fails, is early or is rejected as its body says, until `mended` is set."""
    app = rig.app()
    orders = app.topic("orders", partitions=partitions, policy=policy, **options)
    mended = threading.Event()

    @orders.on("step")
    def step(event, ctx):
        how = event.get("how")
        if how == "always":
            raise ConnectionError("always away")
        if how == "dead" and not mended.is_set():
            raise Reject("no such order")
        if how == "early" and not mended.is_set():
            raise Early("not yet", waiting_for="never")
        if how == "bad" and not mended.is_set():
            raise ConnectionError("away")
        enter(ctx, str(event.get("n", "")))

    return app, orders, mended


def ids(rig):
    """The id of each parked row, by biz_key; the newest where there are several."""
    return dict(rig.rows("SELECT biz_key, id FROM parked_message ORDER BY id"))


def tables(rig):
    """Everything a verb could change, but the stamp."""
    names = ("parked_message", "parked_key", "idempotent_record", "operator_action", "attempt_log")
    counted = rig.rows("SELECT partition_id, parked_rows, parked_bytes FROM partition_owner ORDER BY partition_id")
    return [rig.rows(f"SELECT * FROM {name}") for name in names] + [counted]


def actions(rig):
    columns = "who, verb, sharding_key, biz_key, parked_id, `before`, `after`"
    return rig.rows(f"SELECT {columns} FROM operator_action ORDER BY id")


def do(rig, verb, *args, **options):
    with rig.opened() as store:
        return getattr(verbs, verb)(store, SCOPE, *args, **options)


def blocked(rig, how="bad", **options):
    """Key a: a head that failed as `how` says, and two behind it."""
    app, orders, mended = shop(rig, **options)
    sent = [rig.send(orders, "a", how=one) for one in (how, "", "")]
    rig.run(app)
    return app, orders, mended, sent


def counts_are_true(rig):
    """The partitions' counts and the keys' depths are what is there."""
    there = rig.rows("SELECT count(*), coalesce(sum(length(body)), 0) FROM parked_message")
    assert rig.rows("SELECT sum(parked_rows), sum(parked_bytes) FROM partition_owner") == there
    queue = rig.rows("SELECT sharding_key, count(*) FROM parked_message WHERE place = 'queue' GROUP BY sharding_key")
    assert rig.rows("SELECT sharding_key, depth FROM parked_key WHERE depth > 0 ORDER BY sharding_key") == sorted(queue)


# retry


def test_retry_of_a_head_runs_it_at_once_and_those_behind_it_in_order(rig):
    app, _, mended, sent = blocked(rig)
    mended.set()
    with rig.working(app):
        done = do(rig, "retry", ids(rig)[sent[0]], "ann")
        assert (done.changed, done.key, done.biz_key) == (True, "a", sent[0])
        wait_until(lambda: rig.ledger() == sent, "the key")
    assert rig.record(sent[0])[:2] == (2, "applied")
    assert rig.rows("SELECT * FROM parked_key") == []


def test_retry_counts_attempts_anew_so_that_one_more_failure_isn_t_death(rig):
    app, orders, _ = shop(rig, policy=replace(QUICK, max_attempts=2, tries_at_once=1))
    bad = rig.send(orders, "a", how="always")
    with rig.working(app) as witness:
        wait_until(lambda: rig.parked("dead"), "the end of its attempts")
        assert do(rig, "retry", ids(rig)[bad], "ann").changed
        wait_until(lambda: len(witness.outcomes(bad)) == 4, "two more attempts")
    assert witness.outcomes(bad) == ["parked", "rejected"] * 2


def test_retry_of_one_behind_changes_nothing_and_names_the_head(rig):
    _, _, _, sent = blocked(rig)
    before = tables(rig)
    done = do(rig, "retry", ids(rig)[sent[1]], "ann")
    assert not done.changed
    assert f"#{ids(rig)[sent[0]]}" in done.text
    assert tables(rig) == before


def test_retry_of_an_early_message_tries_it_now_and_it_stays_aside(rig):
    app, orders, mended = shop(rig)
    early = rig.send(orders, "a", how="early")
    rig.run(app)
    assert do(rig, "retry", ids(rig)[early], "ann").changed
    assert rig.record(early)[:2] == (3, "early")
    witness = rig.run(app)
    assert witness.outcomes(early) == ["early"], "it was tried, and is early still"
    mended.set()
    with rig.working(app):
        do(rig, "retry", ids(rig)[early], "ann")
        wait_until(lambda: rig.ledger() == [early], "the early one")
    counts_are_true(rig)


def test_retry_of_a_message_that_was_set_aside_tries_it_now(rig):
    app, orders, mended = shop(rig, on_failure="set_aside")
    bad, later = rig.send(orders, "a", how="bad"), rig.send(orders, "a")
    rig.run(app)
    mended.set()
    with rig.working(app):
        assert do(rig, "retry", ids(rig)[bad], "ann").changed
        wait_until(lambda: rig.ledger() == [later, bad], "the one aside")


def test_retry_of_what_is_aside_waits_until_its_key_is_free(rig):
    app, orders, mended = shop(rig)
    early, bad = rig.send(orders, "a", how="early"), rig.send(orders, "a", how="bad")
    rig.run(app)
    assert "once its key is free" in do(rig, "retry", ids(rig)[early], "ann").text
    mended.set()
    assert rig.run(app).outcomes(early) == []
    do(rig, "retry", ids(rig)[bad], "ann")
    rig.run(app)
    assert rig.ledger() == [bad, early]


@pytest.mark.parametrize("on_dead", ["block_key", "skip"])
def test_retry_reopens_a_dead_message_in_its_old_place_in_one_transaction(rig, on_dead):
    app, orders, mended = shop(rig, on_dead=on_dead)
    dead, bad, behind = (rig.send(orders, "a", how=how) for how in ("dead", "bad", ""))
    rig.run(app)
    assert do(rig, "retry", ids(rig)[dead], "ann").changed
    assert rig.record(dead)[:2] == (3, "parked")
    counts_are_true(rig)
    rig.send(orders, "a", biz_key=dead, how="dead")
    mended.set()
    with rig.working(app) as witness:
        wait_until(lambda: rig.ledger() == [dead, bad, behind], "the whole key, in its first order")
        wait_until(lambda: witness.outcomes(dead).count("duplicate") + witness.outcomes(dead).count("parked"), "a copy")


def test_retry_of_a_dead_message_whose_key_is_free_blocks_the_key_until_it_has_run(rig):
    app, orders, mended = shop(rig, on_dead="skip")
    dead = rig.send(orders, "a", how="dead")
    rig.run(app)
    do(rig, "retry", ids(rig)[dead], "ann")
    assert rig.rows("SELECT depth FROM parked_key") == [(1,)]
    mended.set()
    later = rig.send(orders, "a")
    rig.run(app)
    assert rig.ledger() == [dead, later]


def test_retry_brings_back_what_was_skipped(rig):
    app, _, mended, sent = blocked(rig)
    do(rig, "skip", ids(rig)[sent[0]], "ann")
    rig.run(app)
    mended.set()
    with rig.working(app):
        assert do(rig, "retry", ids(rig)[sent[0]], "bob").changed
        wait_until(lambda: rig.ledger() == [*sent[1:], sent[0]], "the skipped one")
    assert rig.record(sent[0])[:2] == (2, "applied")


def test_a_reopened_message_that_is_older_goes_before_the_head_that_stands(rig):
    app, orders, mended = shop(rig, on_dead="skip")
    dead, bad = rig.send(orders, "a", how="dead"), rig.send(orders, "a", how="bad")
    rig.run(app)
    assert do(rig, "retry", ids(rig)[dead], "ann").changed
    assert not do(rig, "retry", ids(rig)[bad], "ann").changed, "it isn't the head any more"
    mended.set()
    rig.run(app)
    assert rig.ledger() == [dead, bad]


def test_evidence_is_never_tried_or_edited_and_may_be_removed(rig):
    app, orders, _ = shop(rig)
    one = rig.send(orders, "a", n=1)
    rig.send(orders, "a", biz_key=one, n=2)
    rig.append(orders, b"nobody can tell whose this is")
    rig.run(app)
    before = tables(rig)
    (conflict,), (stray,) = rig.rows("SELECT id FROM parked_message ORDER BY id")
    for row_id in (conflict, stray):
        for verb, more in (("retry", ()), ("skip", ()), ("edit", (b"{}",))):
            assert not do(rig, verb, row_id, "ann", *more).changed, verb
    assert tables(rig) == before
    for row_id in (conflict, stray):
        assert do(rig, "discard", row_id, "ann").changed
    assert rig.parked() == []
    assert rig.record(one)[:2] == (2, "applied"), "the record is another body's, and stays"
    counts_are_true(rig)


def test_evidence_against_a_message_that_was_given_up_isn_t_tried_in_its_place(rig):
    app, orders, _ = shop(rig, on_dead="skip")
    dead = rig.send(orders, "a", how="dead")
    rig.run(app)
    rig.send(orders, "a", biz_key=dead, n=2)
    rig.run(app)
    before = tables(rig)
    for verb in ("retry", "skip"):
        assert not do(rig, verb, ids(rig)[dead], "ann").changed
    assert tables(rig) == before


# skip


def test_skip_of_a_head_lets_those_behind_it_run_in_a_lane_that_is_at_work(rig):
    app, orders, _, sent = blocked(rig)
    with rig.working(app):
        assert "2 behind it are due now" in do(rig, "skip", ids(rig)[sent[0]], "ann").text
        wait_until(lambda: rig.ledger() == sent[1:], "those behind")
        rig.send(orders, "a", biz_key=sent[0], how="bad")
        marker = rig.send(orders, "b")
        wait_until(lambda: marker in rig.ledger(), "what came after the copy")
    assert rig.ledger("a") == sent[1:]
    assert rig.record(sent[0])[:3] == (3, "rejected", b"skipped by an operator")
    assert [row[1] for row in rig.parked()] == ["closed"]


def test_skip_of_a_dead_head_keeps_the_answer_that_its_copies_got(rig):
    app, _, _, sent = blocked(rig, "dead")
    assert do(rig, "skip", ids(rig)[sent[0]], "ann").changed
    assert rig.record(sent[0])[:3] == (3, "rejected", b"no such order")
    rig.run(app)
    assert rig.ledger() == sent[1:]


def test_skip_of_what_is_aside_closes_it_and_blocks_nobody(rig):
    app, orders, mended = shop(rig)
    early = rig.send(orders, "a", how="early")
    rig.run(app)
    assert do(rig, "skip", ids(rig)[early], "ann").changed
    assert rig.record(early)[:2] == (3, "rejected")
    assert rig.rows("SELECT * FROM parked_key") == []
    mended.set()
    rig.run(app)
    assert rig.ledger() == []


@pytest.mark.parametrize("verb", ["skip", "discard"])
def test_a_head_that_is_applied_already_only_leaves_parking(rig, verb):
    app, _, _, sent = blocked(rig)
    rig.write(
        "UPDATE idempotent_record SET status = 2, outcome = 'applied', response_body = 'yes' WHERE biz_key = ?", sent[0]
    )
    record = rig.rows("SELECT * FROM idempotent_record WHERE biz_key = ?", sent[0])
    done = do(rig, verb, ids(rig)[sent[0]], "ann")
    assert done.changed
    assert "applied" in done.text
    assert rig.rows("SELECT * FROM idempotent_record WHERE biz_key = ?", sent[0]) == record
    assert sent[0] not in ids(rig)
    rig.run(app)
    assert rig.ledger() == sent[1:]


def test_nothing_but_leaving_is_left_for_an_applied_head(rig):
    app, _, _, sent = blocked(rig)
    rig.write("UPDATE idempotent_record SET status = 2, outcome = 'applied' WHERE biz_key = ?", sent[0])
    record = rig.rows("SELECT * FROM idempotent_record WHERE biz_key = ?", sent[0])
    assert not do(rig, "edit", ids(rig)[sent[0]], "ann", b"{}").changed
    assert "applied already" in do(rig, "retry", ids(rig)[sent[0]], "ann").text
    rig.run(app)
    assert rig.rows("SELECT * FROM idempotent_record WHERE biz_key = ?", sent[0]) == record
    assert rig.ledger() == sent[1:], "the head left as the duplicate that it is"


def test_skip_of_one_behind_or_of_a_closed_one_changes_nothing(rig):
    _, _, _, sent = blocked(rig)
    before = tables(rig)
    assert f"#{ids(rig)[sent[0]]} is" in do(rig, "skip", ids(rig)[sent[1]], "ann").text
    assert tables(rig) == before
    do(rig, "skip", ids(rig)[sent[0]], "ann")
    before = tables(rig)
    assert "closed already" in do(rig, "skip", ids(rig)[sent[0]], "ann").text
    assert tables(rig) == before, "the second skip is nobody else's"


# discard


def test_discard_of_a_head_gives_it_up_removes_it_and_the_rest_runs(rig):
    app, orders, _, sent = blocked(rig)
    with rig.working(app):
        assert do(rig, "discard", ids(rig)[sent[0]], "ann").changed
        wait_until(lambda: rig.ledger() == sent[1:], "those behind")
    assert rig.parked() == []
    assert rig.record(sent[0])[:3] == (3, "rejected", b"discarded by an operator")
    rig.send(orders, "a", biz_key=sent[0], how="")
    rig.run(app)
    assert rig.ledger() == sent[1:]
    counts_are_true(rig)


def test_discard_of_one_behind_leaves_a_final_record_where_there_was_none(rig):
    app, orders, mended, sent = blocked(rig)
    assert rig.record(sent[1]) is None
    head = "SELECT attempts, next_attempt_at FROM parked_key"
    before = rig.rows(head)
    assert do(rig, "discard", ids(rig)[sent[1]], "ann").changed
    assert rig.rows(head) == before, "the head is nobody's business here"
    assert rig.record(sent[1])[:2] == (3, "rejected")
    counts_are_true(rig)
    rig.send(orders, "a", biz_key=sent[1], how="")
    mended.set()
    do(rig, "retry", ids(rig)[sent[0]], "ann")
    witness = rig.run(app)
    assert rig.ledger() == [sent[0], sent[2]]
    assert witness.outcomes(sent[1]) == ["duplicate"]


@pytest.mark.parametrize("kind", ["skipped", "dead", "early"])
def test_discard_removes_what_is_closed_or_aside_and_its_record_stays_final(rig, kind):
    app, orders, _ = shop(rig, on_dead="skip")
    one = rig.send(orders, "a", how={"skipped": "bad"}.get(kind, kind))
    rig.run(app)
    if kind == "skipped":
        do(rig, "skip", ids(rig)[one], "ann")
    assert do(rig, "discard", ids(rig)[one], "ann").changed
    assert rig.parked() == []
    assert rig.rows("SELECT * FROM parked_key") == []
    assert rig.record(one)[:2] == (3, "rejected")
    assert json.loads(actions(rig)[-1][5])["place"] == ("aside" if kind == "early" else "closed")
    assert actions(rig)[-1][6] is None, "nothing is there afterwards"
    counts_are_true(rig)


# edit


def edited(how="", n=7):
    return json.dumps({"how": how, "n": n, "more": "x" * 40}).encode()


def test_edit_mends_a_head_and_tries_it_and_both_digests_are_known(rig):
    app, orders, _, sent = blocked(rig, "always")
    received = rig.rows("SELECT request_digest FROM idempotent_record WHERE biz_key = ?", sent[0])
    with rig.working(app):
        assert "tried now" in do(rig, "edit", ids(rig)[sent[0]], "ann", edited()).text
        wait_until(lambda: rig.ledger() == sent, "the key")
        rig.send(orders, "a", biz_key=sent[0], how="always")  # the broker's copy of what was first received
        marker = rig.send(orders, "b")
        wait_until(lambda: marker in rig.ledger(), "what came after the copy")
    assert rig.rows("SELECT note FROM ledger WHERE biz_key = ?", sent[0]) == [("7",)]
    digests = "SELECT first_digest FROM idempotent_record WHERE biz_key = ? AND request_digest <> first_digest"
    assert rig.rows(digests, sent[0]) == received
    assert rig.parked("conflict") == []
    rig.append(orders, edited(), key="a", biz_key=sent[0], kind="step")
    rig.append(orders, b'{"n": 8}', key="a", biz_key=sent[0], kind="step")
    rig.run(app)
    assert rig.witness.outcomes(sent[0]) == ["duplicate", "conflict"], "what ran is known, another body isn't"


def test_edit_of_one_behind_waits_its_turn_and_its_first_copy_is_no_conflict(rig):
    app, orders, mended, sent = blocked(rig)
    done = do(rig, "edit", ids(rig)[sent[1]], "ann", edited())
    assert done.changed
    assert "waits behind" in done.text
    counts_are_true(rig)
    rig.send(orders, "a", biz_key=sent[1], how="")
    witness = rig.run(app)
    assert witness.outcomes(sent[1]) == ["parked"]
    assert rig.ledger() == []
    mended.set()
    do(rig, "retry", ids(rig)[sent[0]], "ann")
    rig.run(app)
    assert rig.ledger() == sent
    assert rig.rows("SELECT note FROM ledger WHERE biz_key = ?", sent[1]) == [("7",)]
    rig.send(orders, "a", biz_key=sent[1], how="")
    assert rig.run(app).outcomes(sent[1]) == ["duplicate"]


@pytest.mark.parametrize("kind", ["dead", "early"])
def test_edit_mends_what_is_dead_or_aside(rig, kind):
    app, orders, _ = shop(rig, on_dead="skip")
    one = rig.send(orders, "a", how=kind)
    rig.run(app)
    with rig.working(app):
        assert do(rig, "edit", ids(rig)[one], "ann", edited()).changed
        wait_until(lambda: rig.ledger() == [one], "the mended one")


def test_edit_twice_keeps_the_digest_first_received(rig):
    _, _, _, sent = blocked(rig)
    received = rig.rows("SELECT request_digest FROM idempotent_record WHERE biz_key = ?", sent[0])
    for n in (1, 2):
        do(rig, "edit", ids(rig)[sent[0]], "ann", edited(n=n), then_retry=False)
    assert rig.rows("SELECT first_digest FROM idempotent_record WHERE biz_key = ?", sent[0]) == received
    of_row = rig.rows("SELECT digest FROM parked_message WHERE biz_key = ?", sent[0])
    assert of_row == rig.rows("SELECT request_digest FROM idempotent_record WHERE biz_key = ?", sent[0]) != received
    counts_are_true(rig)


def test_edit_without_retry_leaves_the_message_where_it_is(rig):
    app, _, _, sent = blocked(rig)
    keys = rig.rows("SELECT * FROM parked_key")
    assert do(rig, "edit", ids(rig)[sent[0]], "ann", edited(), then_retry=False).changed
    assert rig.rows("SELECT * FROM parked_key") == keys
    assert [row[1] for row in actions(rig)] == ["edit"]
    rig.run(app)
    assert rig.ledger() == []


def test_edit_refuses_a_body_that_isn_t_json_unless_told_so(rig):
    _, _, _, sent = blocked(rig)
    before = tables(rig)
    with pytest.raises(ConfigurationError, match="--raw"):
        do(rig, "edit", ids(rig)[sent[0]], "ann", b"{not json")
    assert tables(rig) == before
    assert do(rig, "edit", ids(rig)[sent[0]], "ann", b"\xff\x00", raw=True, then_retry=False).changed
    assert json.loads(actions(rig)[-1][6])["body_base64"] == "/wA="


# hold and release


def test_hold_keeps_a_free_key_from_running_and_release_lets_it_go_on(rig):
    app, orders, _ = shop(rig)
    first = rig.send(orders, "a")
    rig.run(app)
    with rig.working(app):
        assert do(rig, "hold", "a", "ann").changed
        sent = [rig.send(orders, "a"), rig.send(orders, "a")]
        other = rig.send(orders, "b")
        wait_until(lambda: other in rig.ledger() and len(rig.parked()) == 2, "the healthy key, and two behind")
        assert rig.ledger("a") == [first]
        assert do(rig, "release", "a", "bob").changed
        wait_until(lambda: rig.ledger("a") == [first, *sent], "the held key")
    assert rig.rows("SELECT * FROM parked_key") == []
    assert [row[:3] for row in actions(rig)] == [("ann", "hold", "a"), ("bob", "release", "a")]
    assert [json.loads(row[5])["held"] for row in actions(rig)] == [False, True]
    assert [json.loads(row[6])["held"] for row in actions(rig)] == [True, False]


def test_a_key_that_was_never_seen_is_held_where_it_will_come_to(rig):
    app, orders, _ = shop(rig, partitions=2)
    rig.run(app)
    home = orders.routing.route("new", orders.partitions)
    with pytest.raises(ConfigurationError, match="--partition"):
        do(rig, "hold", "new", "ann")
    with pytest.raises(ConfigurationError, match="no partition '9'"):
        do(rig, "hold", "new", "ann", "9")
    assert do(rig, "hold", "new", "ann", home).changed
    new = rig.send(orders, "new")
    rig.run(app)
    assert rig.ledger() == []
    do(rig, "release", "new", "ann")
    rig.run(app)
    assert rig.ledger() == [new]


def test_a_held_head_isn_t_tried_until_its_key_is_released(rig):
    app, _, mended, sent = blocked(rig)
    do(rig, "hold", "a", "ann")
    mended.set()
    assert "once its key is released" in do(rig, "retry", ids(rig)[sent[0]], "ann").text
    rig.run(app)
    assert rig.ledger() == []
    do(rig, "release", "a", "ann")
    rig.run(app)
    assert rig.ledger() == sent


@pytest.mark.parametrize("verb", ["skip", "discard"])
def test_giving_up_the_head_of_a_held_key_lets_nothing_run(rig, verb):
    app, _, _, sent = blocked(rig)
    do(rig, "hold", "a", "ann")
    assert "once their key is released" in do(rig, verb, ids(rig)[sent[0]], "ann").text
    rig.run(app)
    assert rig.ledger() == []
    do(rig, "release", "a", "ann")
    rig.run(app)
    assert rig.ledger() == sent[1:]


def test_edit_of_the_head_of_a_held_key_runs_after_the_release(rig):
    app, _, _, sent = blocked(rig, "always")
    do(rig, "hold", "a", "ann")
    do(rig, "edit", ids(rig)[sent[0]], "ann", edited())
    rig.run(app)
    assert rig.ledger() == []
    do(rig, "release", "a", "ann")
    rig.run(app)
    assert rig.ledger() == sent


def test_release_of_a_key_with_a_dead_head_makes_nothing_due(rig):
    app, _, mended, sent = blocked(rig, "dead")
    do(rig, "hold", "a", "ann")
    assert "dead" in do(rig, "release", "a", "ann").text
    assert rig.rows("SELECT next_attempt_at FROM parked_key") == [(None,)]
    mended.set()
    rig.run(app)
    assert rig.ledger() == []
    do(rig, "retry", ids(rig)[sent[0]], "ann")
    rig.run(app)
    assert rig.ledger() == sent


def test_release_lets_what_is_aside_be_tried(rig):
    app, orders, mended = shop(rig)
    early = rig.send(orders, "a", how="early")
    rig.run(app)
    do(rig, "hold", "a", "ann")
    mended.set()
    rig.run(app)
    assert rig.ledger() == []
    do(rig, "release", "a", "ann")
    rig.run(app)
    assert rig.ledger() == [early]


def test_hold_twice_and_release_twice_change_nothing_the_second_time(rig):
    _, _, _, _ = blocked(rig)
    for verb in ("hold", "release"):
        assert do(rig, verb, "a", "ann").changed
        before = tables(rig)
        assert not do(rig, verb, "a", "ann").changed
        assert tables(rig) == before


# every verb


@pytest.mark.parametrize(
    ("verb", "more"), [("retry", ()), ("skip", ()), ("discard", ()), ("edit", (b'{"n": 1}',))], ids=str
)
def test_every_verb_is_audited_with_who_when_before_and_after(rig, verb, more):
    _, _, _, sent = blocked(rig)
    head = ids(rig)[sent[0]]
    [(before_now,)] = rig.rows("SELECT max(at) FROM attempt_log")
    do(rig, verb, head, "ann", *more)
    row = actions(rig)[0]
    assert row[:5] == ("ann", verb, "a", sent[0], head)
    before = json.loads(row[5])
    assert (before["place"], before["reason"], before["attempts"]) == ("queue", "failed", 1)
    after = None if row[6] is None else json.loads(row[6])
    assert (after and after["place"]) == {"skip": "closed", "discard": None}.get(verb, "queue")
    assert rig.rows("SELECT at >= ? FROM operator_action", before_now)[0] == (1,)
    if verb == "edit":
        assert json.loads(before["body"])["how"] == "bad"
        assert after["body"] == '{"n": 1}'
        assert [one[1] for one in actions(rig)] == ["edit", "retry"]


@pytest.mark.parametrize("verb", ["retry", "skip", "discard"])
def test_no_verb_is_taken_for_a_failure_of_the_message(rig, verb):
    _, _, _, sent = blocked(rig)
    before = rig.rows("SELECT count(*) FROM attempt_log")
    do(rig, verb, ids(rig)[sent[0]], "ann")
    assert rig.rows("SELECT count(*) FROM attempt_log") == before


@pytest.mark.parametrize("verb", ["retry", "skip", "discard"])
def test_a_message_that_is_gone_by_the_time_of_the_lock_is_left_alone(rig, verb):
    app, _, mended, sent = blocked(rig)
    with rig.opened() as store:
        targets = select_targets(store, Filter(ids=(ids(rig)[sent[0]],)), verb)
        mended.set()
        rig.write("UPDATE parked_key SET next_attempt_at = 1")
        rig.run(app)
        before = tables(rig)
        [done] = verbs.carry_out(store, verb, targets, "ann")
    assert not done.changed
    assert "gone" in done.text
    assert tables(rig) == before
