"""The operator's side on MariaDB: the stories of the other files that its SQL could tell differently."""

import json

import pytest
from support.mariadb import ENTER, MariadbRig, made_database
from support.programs import here

from . import test_operator_canary as canary
from . import test_operator_verbs as verbs

STORIES = [
    verbs.test_retry_of_a_head_runs_it_at_once_and_those_behind_it_in_order,
    verbs.test_retry_of_an_early_message_tries_it_now_and_it_stays_aside,
    verbs.test_retry_brings_back_what_was_skipped,
    verbs.test_a_reopened_message_that_is_older_goes_before_the_head_that_stands,
    verbs.test_evidence_is_never_tried_or_edited_and_may_be_removed,
    verbs.test_discard_of_one_behind_leaves_a_final_record_where_there_was_none,
    verbs.test_edit_mends_a_head_and_tries_it_and_both_digests_are_known,
    verbs.test_edit_of_one_behind_waits_its_turn_and_its_first_copy_is_no_conflict,
    verbs.test_edit_twice_keeps_the_digest_first_received,
    verbs.test_hold_keeps_a_free_key_from_running_and_release_lets_it_go_on,
    verbs.test_a_held_head_isn_t_tried_until_its_key_is_released,
]


@pytest.fixture
def rig(tmp_path, monkeypatch):
    monkeypatch.setattr(verbs, "enter", enter)
    monkeypatch.setattr(canary, "enter", enter)
    with made_database() as made:
        yield MariadbRig(tmp_path, made)


def enter(ctx, note=""):
    message = ctx.message
    ctx.tx.execute(ENTER, {"key": message.sharding_key, "biz_key": message.biz_key, "type": message.type, "note": note})


def command(rig, *arguments):
    told = here(rig.folder, *arguments, SERIATIM_STORE=rig.store)
    assert told.code == 0, told
    return told.out


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__.removeprefix("test_"))
def test_on_mariadb(rig, story):
    story(rig)


def test_every_command_on_mariadb(rig):
    bank = canary.blocked_bank(rig, count=6)
    assert "6 keys blocked" in command(rig, "status")
    [one] = json.loads(command(rig, "status", "--json"))["classes"]
    assert (one["keys"], one["error_type"]) == (6, "TimeoutError")
    listed = json.loads(command(rig, "parked", "list", "--error", "BANK", "--json"))["messages"]
    assert len(listed) == 6
    assert "tried in" in command(rig, "parked", "show", str(listed[0]["id"]))
    assert "attempt 1" in command(rig, "trace", "k0")
    bank.early.add("k1")
    with rig.working(bank.app):
        command(rig, "parked", "canary", "--error", "bank", "--timeout", "20s")
    assert len(rig.ledger()) == 5
    assert json.loads(command(rig, "parked", "retry", "--type", "step", "--yes", "--json"))["changed"] == 1
    assert json.loads(command(rig, "parked", "discard", "--place", "aside", "--json"))["changed"] == 1
    assert json.loads(command(rig, "parked", "hold", "k2", "--json"))["changed"] == 1
    assert json.loads(command(rig, "parked", "release", "--all", "--json"))["changed"] == 1
    story = json.loads(command(rig, "trace", "k1", "--json"))["stories"][0]["events"]
    assert [event["details"]["verb"] for event in story if event["what"] == "operator"] == ["retry", "retry", "discard"]
    assert "0 keys blocked" in command(rig, "status")
