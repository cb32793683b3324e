"""`seriatim parked retry|skip|discard|edit|hold|release` from the command line: selection, slices, dry runs, errors."""

import json
import threading
from itertools import pairwise

import pytest
from support.programs import here
from support.rig import wait_until

from seriatim import Policy
from seriatim.compensation import verbs
from seriatim.compensation.selecting import Filter, select_targets
from seriatim.compensation.verbs import slices
from seriatim.core.errors import StoreUnavailable
from seriatim.core.store.sql import SqlSession

from .test_operator_verbs import actions, blocked, ids, shop, tables


def parked(rig, *arguments, **environment):
    return here(rig.folder, "parked", *arguments, **environment)


def asked(rig, *arguments):
    told = parked(rig, *arguments, "--json")
    assert told.code == 0, told
    return json.loads(told.out)


def crowd(rig, count=7, **options):
    """So many blocked keys over several partitions, each with one behind it, half of them failing for ever."""
    app, orders, mended = shop(rig, **options)
    for number in range(count):
        rig.send(orders, f"k{number}", how="bad" if number % 2 else "always")
        rig.send(orders, f"k{number}")
    rig.run(app)
    return app, orders, mended


def test_many_are_retried_by_what_they_have_in_common_and_the_lanes_hear_of_it(rig):
    # field case FC-C12: "retry now" works, and keeps the order of each key
    app, _, mended = crowd(rig, partitions=3)
    mended.set()
    with rig.working(app):
        told = asked(rig, "retry", "--error", "AWAY", "--yes", "--who", "ann")
        assert {name: told[name] for name in ("verb", "dry_run", "who", "matched", "changed")} == {
            "verb": "retry",
            "dry_run": False,
            "who": "ann",
            "matched": 7,
            "changed": 7,
        }
        wait_until(lambda: len(rig.ledger()) == 6, "three keys with two messages each")
    for key in ("k1", "k3", "k5"):
        first, second = (int(biz_key.partition("/")[2]) for biz_key in rig.ledger(key))
        assert first < second
    assert {one["key"] for one in told["results"]} == {f"k{n}" for n in range(7)}
    assert all(one["changed"] and one["parked_id"] and one["biz_key"] and one["text"] for one in told["results"])
    assert [row[:2] for row in actions(rig)] == [("ann", "retry")] * 7


@pytest.mark.parametrize("verb", ["retry", "skip", "discard", "hold", "release"])
def test_a_dry_run_says_what_would_be_done_and_changes_nothing(rig, verb):
    crowd(rig)
    if verb == "discard":
        asked(rig, "skip", "--type", "step", "--yes")
    if verb == "release":
        asked(rig, "hold", "--type", "step", "--yes")
    before, stamps = tables(rig), rig.rows("SELECT effect FROM partition_owner")
    told = asked(rig, verb, "--type", "step", "--dry-run")
    assert (told["dry_run"], told["matched"], told["changed"]) == (True, 7, 7)
    assert (tables(rig), rig.rows("SELECT effect FROM partition_owner")) == (before, stamps)
    told = parked(rig, verb, "--type", "step", "--dry-run")
    assert told.out.count("would: ") == 7
    assert "7 would change" in told.out
    assert asked(rig, verb, "--type", "step", "--yes")["changed"] == 7


@pytest.mark.parametrize("verb", ["retry", "skip", "discard", "hold"])
def test_more_than_one_needs_a_yes_where_nobody_can_be_asked(rig, verb):
    crowd(rig)
    before = tables(rig)
    told = parked(rig, verb, "--type", "step", *(["--place", "queue"] if verb == "discard" else []))
    assert told.code == 2
    assert "--yes" in told.err
    assert "--dry-run" in told.err
    assert tables(rig) == before


def test_a_verb_by_filter_means_no_more_than_its_name_promises(rig):
    app, orders, _ = shop(rig, on_dead="skip")
    sent = {how: rig.send(orders, how, how=how) for how in ("dead", "early", "bad")}
    behind = rig.send(orders, "bad")
    skipped = rig.send(orders, "skipped", how="bad")
    rig.run(app)
    asked(rig, "skip", str(ids(rig)[skipped]))

    def meant(verb, *more):
        return {one["biz_key"] for one in asked(rig, verb, "--type", "step", "--dry-run", *more)["results"]}

    assert meant("retry") == {sent["dead"], sent["early"], sent["bad"]}, "not what an operator skipped"
    assert meant("skip") == {sent["early"], sent["bad"]}
    assert meant("discard") == {sent["dead"], skipped}, "nothing that waits"
    assert meant("discard", "--place", "queue") == {sent["bad"], behind}
    assert meant("retry", "--place", "closed") == {sent["dead"], skipped}
    assert asked(rig, "hold", "--type", "step", "--dry-run")["matched"] == 2


def test_every_filter_narrows(rig):
    app, orders, _ = crowd(rig, partitions=2)
    other = app.topic("other", partitions=1, policy=Policy(tries_at_once=1))
    other.on("news")(lambda event, ctx: 1 / 0)
    rig.send(other, "k1", "news", biz_key="news")
    rig.run(app)
    del orders

    def found(*options):
        return len(asked(rig, "list", "--limit", "100", *options)["messages"])

    assert found() == 15
    assert found("--topic", "other") == 1
    assert found("--group", "shop") == 15
    assert found("--key", "k1") == 3
    assert found("--key", "k1", "--key", "k2", "--topic", "orders") == 4
    assert found("--type", "news") == 1
    assert found("--error", "always") == 4
    assert found("--error", "%") == 0, "no pattern"
    assert found("--error-type", "ZeroDivisionError") == 1
    assert found("--reason", "behind") == 7
    assert found("--place", "closed") == 0
    assert found("--older-than", "1h") == 0
    rig.write("UPDATE parked_message SET parked_at = parked_at - 7200000000 WHERE message_type = 'news'")
    assert found("--older-than", "1h") == 1


def test_discarding_a_whole_queue_lets_none_of_it_run_meanwhile(rig):
    app, _, mended, sent = blocked(rig)
    mended.set()
    with rig.working(app):
        assert asked(rig, "discard", "--key", "a", "--place", "queue", "--yes")["changed"] == 3
        wait_until(lambda: not rig.parked(), "the empty queue")
    assert rig.ledger() == []
    assert [rig.record(one)[:2] for one in sent] == [(3, "rejected")] * 3
    assert [row[3] for row in actions(rig)] == sent[::-1]


def test_many_are_done_in_slices_of_one_partition_with_pauses(rig, monkeypatch):
    crowd(rig, count=12, partitions=3)
    held, slept = [], []
    monkeypatch.setattr(slices, "SLICE", 2)
    monkeypatch.setattr(slices.time, "sleep", slept.append)
    transaction = SqlSession.transaction

    def counted(self):
        held.append(rig.rows("SELECT partition_id, effect FROM partition_owner"))
        return transaction(self)

    monkeypatch.setattr(SqlSession, "transaction", counted)
    with rig.opened() as store:
        targets = select_targets(store, Filter(type="step"), "skip")
        done = list(verbs.carry_out(store, "skip", targets, "ann"))
    assert [one.changed for one in done] == [True] * 12
    assert len(held) >= 6, "at most two in a transaction"
    for before, after in pairwise(held):
        assert len(set(after) - set(before)) == 1, "each transaction is about one partition"
    assert len(slept) >= 3
    assert all(0 <= pause <= slices.SLICE_S for pause in slept)


def test_a_slice_ends_when_its_time_is_up(rig, monkeypatch):
    crowd(rig, count=4)
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    with rig.opened() as store:
        targets = select_targets(store, Filter(type="step"), "skip")
        done = verbs.carry_out(store, "skip", targets, "ann")
        next(done)
        assert len(actions(rig)) == 1, "what is told is committed, and no more than that was begun"
        assert len(list(done)) == 3


def test_a_slice_that_met_a_busy_store_is_begun_again(rig, monkeypatch):
    crowd(rig, count=3)
    monkeypatch.setattr(slices, "WAIT_S", 0.01)
    write, troubles = SqlSession.write, [StoreUnavailable("busy"), StoreUnavailable("busy")]

    def busy(self, *args):
        if troubles:
            raise troubles.pop()
        return write(self, *args)

    monkeypatch.setattr(SqlSession, "write", busy)
    assert asked(rig, "skip", "--type", "step", "--yes")["changed"] == 3
    assert len(actions(rig)) == 3


def test_lanes_go_on_while_many_keys_are_worked_on(rig):
    app, orders, _ = crowd(rig, count=60)
    done = threading.Event()
    with rig.working(app):
        sent = [rig.send(orders, "healthy") for _ in range(5)]
        assert asked(rig, "skip", "--type", "step", "--yes")["changed"] == 60
        wait_until(lambda: rig.ledger("healthy") == sent, "the healthy key")
        wait_until(lambda: len(rig.ledger()) == 65, "those that were behind")
        done.set()
    assert len(rig.parked()) == 60


def test_the_audit_finds_nothing_wrong_with_what_the_verbs_left(rig):
    app, orders, mended = shop(rig, on_dead="skip")
    sent = {
        key: [rig.send(orders, key, how=how) for how in hows]
        for key, hows in {
            "a": ["dead", "", ""],
            "b": ["bad", "", ""],
            "c": ["always", ""],
            "d": ["bad", "", ""],
        }.items()
    }
    early = rig.send(orders, "e", how="early")
    rig.run(app)
    number = {biz_key: str(row_id) for biz_key, row_id in ids(rig).items()}
    (rig.folder / "body.json").write_text("{}")
    asked(rig, "hold", "b")
    asked(rig, "retry", number[sent["a"][0]])
    asked(rig, "skip", number[sent["b"][0]])
    asked(rig, "edit", number[sent["c"][0]], "--body", str(rig.folder / "body.json"))
    asked(rig, "discard", number[sent["d"][1]])
    asked(rig, "discard", number[sent["d"][0]])
    asked(rig, "skip", number[early])
    mended.set()
    rig.run(app)
    asked(rig, "release", "b")
    rig.run(app)
    asked(rig, "discard", "--place", "closed", "--yes")
    told = here(rig.folder, "audit", "--topic", "orders", "--json")
    assert told.code == 0, told
    assert rig.parked() == []
    assert rig.ledger("b") == sent["b"][1:]
    assert rig.ledger("d") == sent["d"][2:]


def test_what_isn_t_done_by_name_is_told_and_is_exit_1(rig):
    _, _, _, sent = blocked(rig)
    told = parked(rig, "skip", str(ids(rig)[sent[1]]))
    assert told.code == 1
    assert f"unchanged: shop/orders a: #{ids(rig)[sent[1]]}" in told.out
    assert f"#{ids(rig)[sent[0]]} is" in told.out


def test_an_edit_reads_a_file_or_standard_input(rig):
    app, _, _, sent = blocked(rig, "always")
    (rig.folder / "body.json").write_text('{"n": 5}')
    told = parked(rig, "edit", str(ids(rig)[sent[0]]), "--body", str(rig.folder / "body.json"), "--no-retry")
    assert told.code == 0, told
    (rig.folder / "bad.json").write_text("{n: 5}")
    told = parked(rig, "edit", str(ids(rig)[sent[0]]), "--body", str(rig.folder / "bad.json"))
    assert told.code == 2
    assert "--raw" in told.err
    assert asked(rig, "retry", str(ids(rig)[sent[0]]))["changed"] == 1
    rig.run(app)
    assert rig.rows("SELECT note FROM ledger WHERE biz_key = ?", sent[0]) == [("5",)]


def test_keys_are_held_and_released_by_name_by_failure_and_all_together(rig):
    # field case FC-C9: what was paused goes on at once after it
    app, _, mended = crowd(rig, count=5)
    assert asked(rig, "hold", "k0")["changed"] == 1
    assert asked(rig, "hold", "--error", "away", "--yes")["changed"] == 4
    mended.set()
    rig.write("UPDATE parked_key SET aside = aside")
    assert rig.run(app).verdicts == []
    assert asked(rig, "release", "k1")["changed"] == 1
    assert asked(rig, "release", "--all", "--yes")["changed"] == 4
    rig.run(app)
    assert len(rig.ledger()) == 4


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["retry", "4711"], ["#4711", "parked list"]),
        (["skip", "4711", "--group", "shop"], ["#4711", "'shop'"]),
        (["show", "4711"], ["#4711", "trace"]),
        (["edit", "4711", "--body", "body.json"], ["#4711"]),
        (["retry", "--group", "nobody", "--type", "step"], ["'nobody'", "shop"]),
        (["list", "--topic", "nothing"], ["'nothing'", "orders"]),
        (["retry"], ["--key", "--error", "parked list"]),
        (["retry", "1", "--type", "step"], ["ids"]),
        (["hold"], ["keys", "--type"]),
        (["hold", "unseen"], ["'unseen'", "--partition"]),
        (["release", "unseen"], ["'unseen'"]),
        (["hold", "a", "--partition", "9"], ["'9'", "it has: 0"]),
        (["hold", "a", "--type", "step"], ["not both"]),
        (["retry", "--older-than", "soon"], ["soon", "90s"]),
        (["canary"], ["--error"]),
    ],
    ids="_".join,
)
def test_a_mistake_is_one_line_with_the_remedy_and_exit_2(rig, arguments, named):
    blocked(rig)
    (rig.folder / "body.json").write_text("{}")
    before = tables(rig)
    told = parked(rig, *arguments, COLUMNS="80")
    assert told.code == 2, told
    assert told.err.count("\n") == 1, told
    assert "Traceback" not in told.err
    for word in named:
        assert word in told.err
    assert tables(rig) == before


def test_nothing_that_matches_is_no_mistake(rig):
    blocked(rig)
    told = parked(rig, "retry", "--error", "another")
    assert (told.code, told.out) == (0, "nothing matches that retry could do anything about\n")


def test_what_is_printed_is_bounded_and_harmless_to_a_terminal(rig):
    app, orders, _ = shop(rig)
    for number in range(30):
        rig.send(orders, f"k\x1b[31m{number}\u202e", how="always")
    rig.run(app)
    told = parked(rig, "retry", "--type", "step", "--yes")
    assert len(told.out.splitlines()) == 21
    assert "30 changed" in told.out
    assert not {"\x1b", "\u202e"} & set(told.out)
    assert "k\\x1b[31m0\\u202e" in told.out
