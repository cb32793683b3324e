"""`seriatim audit`: it finds nothing where nothing is wrong, and everything that is planted."""

import json
import sqlite3
from contextlib import closing

import pytest
from sqlalchemy import text
from support.rig import QUICK, Rig, enter
from typer.testing import CliRunner

from seriatim import Early, Policy, Reject
from seriatim.cli.main import app as cli
from seriatim.core.decision import OnDead, OnFailure
from seriatim.core.manifest import read_manifest

KEYS, STEPS = 12, 8
_WRITTEN = text("SELECT count(*) FROM ledger WHERE key = :key")


def invoke(*arguments):
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def steps_of(app):
    """A topic whose handler keeps the order of each key by its own ledger."""
    topic = app.topic("steps", partitions=4, policy=QUICK)

    @topic.on("*")
    def step(event, ctx):
        seq = int(event["seq"])
        if seq > ctx.tx.execute(_WRITTEN, {"key": event["case"]}).scalar_one():
            raise Early(waiting_for=f"{event['case']}:{seq - 1}")
        enter(ctx)

    return topic


@pytest.fixture(scope="module")
def workload(tmp_path_factory):
    """A log that was replayed with copies and early messages, and consumed to its end."""
    rig = Rig(tmp_path_factory.mktemp("workload"))
    rows = [f"case-{key},{step},step-{step % 3}" for step in range(STEPS) for key in range(KEYS)]
    (rig.folder / "log.csv").write_text("case,seq,what\n" + "\n".join(rows) + "\n")
    sent = invoke(
        *("replay", rig.folder / "log.csv", "--topic", "steps", "--partitions", 4, "--broker", rig.broker),
        *("--key", "case", "--type", "what", "--seq", "seq", "--duplicates", 0.2, "--early", 0.05),
        *("--manifest", rig.folder / "manifest.jsonl"),
    )
    assert sent.exit_code == 0, sent.output
    app = rig.app()
    steps_of(app)
    rig.run(app)
    return rig


class Scene:
    """A copy of the workload's store, to plant things in."""

    def __init__(self, workload, folder):
        self.file = folder / "shop.db"
        self.manifest = workload.folder / "manifest.jsonl"
        with (
            closing(sqlite3.connect(workload.folder / "shop.db")) as whole,
            closing(sqlite3.connect(self.file)) as copy,
        ):
            whole.backup(copy)

    def write(self, statement, *params):
        with closing(sqlite3.connect(self.file)) as connection, connection:
            assert connection.execute(statement, params).rowcount > 0, f"nothing was planted by {statement}"

    def rows(self, query, *params):
        with closing(sqlite3.connect(self.file)) as connection:
            return connection.execute(query, params).fetchall()

    def record(self, columns="biz_key", offset=3):
        """One of a key's records that wasn't early, nor its neighbours, with as many after it as there may be."""
        key = self.calm_key()
        query = f"SELECT {columns} FROM idempotent_record WHERE sharding_key = ? ORDER BY effect"
        return self.rows(query, key)[offset]

    def calm_key(self):
        [(key, *_), *_] = self.rows(
            "SELECT sharding_key FROM idempotent_record GROUP BY sharding_key"
            " HAVING sum(first_outcome = 'early') = 0 ORDER BY sharding_key"
        )
        return key

    def copy_record(self, original, **changes):
        """Insert a copy of a record with some columns changed."""
        with closing(sqlite3.connect(self.file)) as connection, connection:
            connection.row_factory = sqlite3.Row
            row = dict(connection.execute("SELECT * FROM idempotent_record WHERE biz_key = ?", [original]).fetchone())
            row |= changes
            marks = ", ".join(f":{name}" for name in row)
            connection.execute(f"INSERT INTO idempotent_record ({', '.join(row)}) VALUES ({marks})", row)

    def park(self, biz_key, place, reason):
        """Put a message that has a record into the parking table."""
        self.write(
            "INSERT INTO parked_message (consumer_group, topic, partition_id, sharding_key, biz_key, waiting, place,"
            " reason, message_type, seq, headers, body, digest, produced_at, received_at, parked_at)"
            " SELECT consumer_group, topic, partition_id, sharding_key, biz_key, biz_key, ?, ?, message_type, seq,"
            " '{}', x'', request_digest, 0, 0, 0 FROM idempotent_record WHERE biz_key = ?",
            *(place, reason, biz_key),
        )

    def audit(self, *arguments, manifest=True, ledger=True):
        """The exit status, and the answer as JSON."""
        known = ["--manifest", self.manifest] if manifest else []
        known += ["--ledger", "ledger:biz_key"] if ledger else []
        done = invoke("audit", "--topic", "steps", "--store", f"sqlite:///{self.file}", *known, "--json", *arguments)
        return done.exit_code, json.loads(done.stdout) if done.exit_code < 2 else done.output

    def convicted(self, **counts):
        """What the audit tells of each kind of violation, which are these and no others."""
        code, answer = self.audit()
        assert code == 1
        found = {kind: answer[kind] for kind in answer["violations"]}
        assert found == counts
        assert not answer["clean"]
        return answer["violations"]


@pytest.fixture
def scene(workload, tmp_path):
    return Scene(workload, tmp_path)


def test_a_sound_workload_is_clean_and_its_shares_are_what_was_injected(scene):
    code, answer = scene.audit()
    header, sent = read_manifest(scene.manifest)

    assert code == 0
    assert answer["clean"]
    assert answer["violations"] == {}
    assert answer["messages"] == answer["sent"] == answer["applied"] == len(list(sent)) == KEYS * STEPS
    assert answer["duplicates"] == answer["copies"] == header.sent - header.messages > 0
    assert answer["early"] == header.early > 0
    assert answer["parked"] == answer["dead"] == answer["conflicts"] == answer["stale"] == answer["already"] == 0
    assert 0 < answer["p50_ms"] <= answer["p99_ms"]
    assert answer["p50_ms"] < answer["p50_produced_ms"] <= answer["p99_produced_ms"]


def test_without_a_manifest_the_seq_tells_the_order_and_early_ones_are_apart(scene):
    code, answer = scene.audit(manifest=False, ledger=False)

    assert (code, answer["sent"], answer["lost"], answer["order_violations"]) == (0, None, 0, 0)


def test_its_table_ends_in_one_line_that_says_whether_all_holds(scene):
    clean = invoke("audit", "--topic", "steps", "--store", f"sqlite:///{scene.file}")
    scene.write("UPDATE idempotent_record SET status = 1, outcome = NULL WHERE biz_key = ?", *scene.record())
    broken = invoke("audit", "--topic", "steps", "--store", f"sqlite:///{scene.file}")

    assert clean.exit_code == 0
    assert clean.stdout.splitlines()[-1].startswith("CLEAN")
    assert broken.exit_code == 1
    assert broken.stdout.splitlines()[-1].startswith("VIOLATED: 1 violation")


# what is planted is found


@pytest.mark.parametrize("manifest", [True, False], ids=["by the manifest", "by seq"])
def test_swapped_effects_are_found(scene, manifest):
    one, effect = scene.record("biz_key, effect", 3)
    other, its_effect = scene.record("biz_key, effect", 4)
    scene.write("UPDATE idempotent_record SET effect = ? WHERE biz_key = ?", its_effect, one)
    scene.write("UPDATE idempotent_record SET effect = ? WHERE biz_key = ?", effect, other)
    code, answer = scene.audit(manifest=manifest)

    assert (code, answer["order_violations"]) == (1, 1)
    [found] = answer["violations"]["order_violations"]
    assert (found["biz_key"], found["applied_after"]) == (one, other)


def test_an_effect_under_a_second_biz_key_is_found(scene):
    biz_key, partition, key, seq = scene.record("biz_key, partition_id, sharding_key, seq", STEPS - 1)
    [(last,)] = scene.rows("SELECT effect FROM partition_owner WHERE partition_id = ?", partition)
    scene.copy_record(biz_key, biz_key="again", effect=last)
    scene.write("INSERT INTO ledger (key, biz_key) VALUES (?, 'again')", key)

    [found] = scene.convicted(double_effects=1)["double_effects"]
    assert found == {"key": key, "seq": seq, "biz_keys": [biz_key, "again"]}


def test_a_doubled_row_of_the_ledger_is_found(scene):
    [biz_key] = scene.record()
    scene.write("INSERT INTO ledger (key, biz_key) SELECT key, biz_key FROM ledger WHERE biz_key = ?", biz_key)

    assert scene.convicted(double_effects=1)["double_effects"] == [{"biz_key": biz_key, "table": "ledger", "times": 2}]


def test_a_missing_row_of_the_ledger_is_found(scene):
    [biz_key] = scene.record()
    scene.write("DELETE FROM ledger WHERE biz_key = ?", biz_key)

    assert scene.convicted(lost_effects=1)["lost_effects"] == [{"biz_key": biz_key}]


def test_an_effect_that_no_record_knows_is_found(scene):
    scene.write("INSERT INTO ledger (key, biz_key) VALUES ('case-1', 'from nowhere')")

    [found] = scene.convicted(unrecorded_effects=1)["unrecorded_effects"]
    assert found == {"biz_key": "from nowhere", "table": "ledger"}


def test_an_effect_number_given_out_twice_is_found(scene):
    effect, partition, key = scene.record("effect, partition_id, sharding_key")
    [(other,)] = scene.rows(
        "SELECT max(biz_key) FROM idempotent_record WHERE partition_id = ? AND sharding_key <> ?", partition, key
    )
    scene.write("UPDATE idempotent_record SET effect = ? WHERE biz_key = ?", effect, other)
    _, answer = scene.audit()

    assert answer["unfenced"] == 1
    assert answer["violations"]["unfenced"] == [{"partition": partition, "effect": effect, "times": "several"}]


def test_an_effect_number_that_was_never_given_out_is_found(scene):
    biz_key, partition = scene.record("biz_key, partition_id", STEPS - 1)
    [(last,)] = scene.rows("SELECT effect FROM partition_owner WHERE partition_id = ?", partition)
    scene.write("UPDATE idempotent_record SET effect = ? WHERE biz_key = ?", last + 1, biz_key)

    [found] = scene.convicted(unfenced=1)["unfenced"]
    assert found == {"biz_key": biz_key, "partition": partition, "effect": last + 1, "given_out": last}


def test_a_message_that_nobody_knows_is_lost_and_was_passed_by_its_followers(scene):
    [biz_key] = scene.record()
    scene.write("DELETE FROM idempotent_record WHERE biz_key = ?", biz_key)
    scene.write("DELETE FROM ledger WHERE biz_key = ?", biz_key)

    found = scene.convicted(lost=1, order_violations=1)
    assert [one["biz_key"] for one in found["lost"]] == [biz_key]
    assert [one["biz_key"] for one in found["order_violations"]] == [biz_key]


def test_what_is_lost_at_the_end_of_a_partition_may_just_not_have_been_read(scene):
    _, sent = read_manifest(scene.manifest)
    last = list(sent)[-1].biz_key
    scene.write("DELETE FROM idempotent_record WHERE biz_key = ?", last)
    scene.write("DELETE FROM ledger WHERE biz_key = ?", last)
    code, answer = scene.audit()

    assert (code, answer["lost"], answer["maybe_unread"], answer["order_violations"]) == (1, 1, 1, 0)


def test_a_record_that_waits_for_nothing_is_lost_and_needs_no_manifest_to_be_found(scene):
    [biz_key] = scene.record("biz_key", STEPS - 1)
    scene.write("UPDATE idempotent_record SET status = 3, outcome = 'parked', effect = NULL WHERE biz_key = ?", biz_key)
    code, answer = scene.audit(manifest=False, ledger=False)

    assert (code, answer["lost"]) == (1, 1)
    assert answer["violations"]["lost"][0]["recorded_as"] == "parked"


def test_a_skip_that_nobody_recorded_is_found_and_one_by_an_operator_is_not(scene):
    biz_key, key = scene.record("biz_key, sharding_key")
    scene.write(
        "UPDATE idempotent_record SET status = 3, outcome = 'rejected', effect = NULL WHERE biz_key = ?", biz_key
    )
    scene.write("DELETE FROM ledger WHERE biz_key = ?", biz_key)
    assert [one["biz_key"] for one in scene.convicted(unexplained=1)["unexplained"]] == [biz_key]

    scene.write(
        "INSERT INTO operator_action (at, who, verb, consumer_group, topic, sharding_key, biz_key)"
        " VALUES (1, 'ann', 'skip', 'shop', 'steps', ?, ?)",
        *(key, biz_key),
    )
    code, answer = scene.audit()
    assert (code, answer["rejected"]) == (0, 1)


def test_a_record_that_was_begun_is_in_hand_while_its_partition_has_an_owner_and_else_unfinished(scene):
    biz_key, partition = scene.record("biz_key, partition_id", STEPS - 1)
    scene.write("UPDATE idempotent_record SET status = 1, outcome = NULL, effect = NULL WHERE biz_key = ?", biz_key)
    scene.write("DELETE FROM ledger WHERE biz_key = ?", biz_key)
    assert [one["biz_key"] for one in scene.convicted(unfinished=1)["unfinished"]] == [biz_key]

    scene.write("UPDATE partition_owner SET owner = 'somebody' WHERE partition_id = ?", partition)
    code, answer = scene.audit()
    assert (code, answer["in_hand"]) == (0, 1)


def test_another_body_type_or_key_than_was_sent_is_found(scene):
    [body] = scene.record("biz_key", 1)
    [kind] = scene.record("biz_key", 2)
    scene.write("UPDATE idempotent_record SET request_digest = ? WHERE biz_key = ?", bytes(32), body)
    scene.write("UPDATE idempotent_record SET message_type = 'other' WHERE biz_key = ?", kind)

    found = scene.convicted(altered=2)["altered"]
    assert [(one["biz_key"], one["differs"]) for one in found] == [(body, "body"), (kind, "type")]


def test_a_key_in_two_partitions_is_found(scene):
    biz_key, partition = scene.record("biz_key, partition_id", STEPS - 1)
    elsewhere = next(other for (other,) in scene.rows("SELECT partition_id FROM partition_owner") if other != partition)
    scene.write("UPDATE partition_owner SET effect = effect + 1000")
    scene.write(
        "UPDATE idempotent_record SET partition_id = ?, effect = effect + 1000 WHERE biz_key = ?", elsewhere, biz_key
    )

    found = scene.convicted(misplaced=2)["misplaced"]
    assert {"biz_key": biz_key, "sent_to": partition, "recorded_in": elsewhere} in found


@pytest.mark.parametrize("manifest", [True, False], ids=["by the manifest", "by seq"])
def test_a_message_that_waits_while_a_later_one_of_its_key_was_applied_is_found(scene, manifest):
    [biz_key] = scene.record()
    scene.park(biz_key, "queue", "behind")
    scene.write("DELETE FROM idempotent_record WHERE biz_key = ?", biz_key)
    code, answer = scene.audit(manifest=manifest, ledger=False)

    assert (code, answer["order_violations"], answer["parked"], answer["messages"]) == (1, 1, 1, KEYS * STEPS)
    assert answer["violations"]["order_violations"][0]["biz_key"] == biz_key


def test_of_many_violations_all_are_counted_and_the_first_are_told(scene):
    scene.write("DELETE FROM ledger")
    code, answer = scene.audit()

    assert (code, answer["lost_effects"]) == (1, KEYS * STEPS)
    assert 0 < len(answer["violations"]["lost_effects"]) < KEYS * STEPS


# failures that are as they should be


def failing(rig, policy, error, settles_s=0.25):
    """Two keys of three messages; the first message of one fails as `error` says."""
    app = rig.app()
    topic = app.topic("orders", partitions=1, policy=policy)
    calls = []

    @topic.on("step")
    def step(event, ctx):
        if ctx.message.biz_key == "bad:0":
            calls.append(ctx.attempt)
            error(len(calls))
        enter(ctx)

    messages = [
        topic.message(key=key, type="step", body={"n": seq}, biz_key=f"{key}:{seq}", seq=seq)
        for seq in range(3)
        for key in ("bad", "good")
    ]
    rig.send_all(topic, messages)
    rig.run(app, until_idle_s=settles_s)


def audit_orders(rig, *arguments):
    store = ["--store", rig.store, "--ledger", "ledger:biz_key"]
    done = invoke("audit", "--topic", "orders", *store, "--json", *arguments)
    return done.exit_code, json.loads(done.stdout)


def reject(_):
    raise Reject("no such account")


def test_a_dead_head_and_those_behind_it_are_no_violation(rig):
    failing(rig, QUICK, reject)
    code, answer = audit_orders(rig)

    assert code == 0, answer["violations"]
    assert (answer["dead"], answer["parked"], answer["rejected"], answer["messages"]) == (1, 2, 1, 6)


def test_a_dead_message_that_the_topic_skips_is_no_violation(rig):
    failing(rig, Policy(on_dead=OnDead.SKIP, backoff=QUICK.backoff), reject)
    code, answer = audit_orders(rig)

    assert code == 0, answer["violations"]
    assert (answer["dead"], answer["parked"], answer["applied"]) == (1, 0, 5)


def test_a_head_that_succeeds_later_keeps_the_order(rig):
    def twice(calls):
        if calls <= 2:
            raise ValueError("not yet")

    failing(rig, Policy(tries_at_once=1, backoff=QUICK.backoff), twice, settles_s=1.2)
    code, answer = audit_orders(rig)

    assert (code, answer["applied"], answer["order_violations"]) == (0, 6, 0)


def test_a_message_that_was_set_aside_may_come_late_and_its_record_says_why(rig):
    def once(calls):
        if calls == 1:
            raise ValueError("not yet")

    failing(rig, Policy(on_failure=OnFailure.SET_ASIDE, tries_at_once=1, backoff=QUICK.backoff), once, settles_s=1.2)

    code, answer = audit_orders(rig)

    assert (code, answer["applied"], answer["order_violations"]) == (0, 6, 0)


def test_a_conflict_is_counted_and_is_no_violation(rig):
    app = rig.app()
    topic = app.topic("orders", partitions=1)
    topic.on("step")(lambda event, ctx: enter(ctx))
    rig.send(topic, "k", biz_key="k:1", n=1)
    rig.send(topic, "k", biz_key="k:1", n=2)
    rig.run(app)
    code, answer = audit_orders(rig)

    assert (code, answer["conflicts"], answer["applied"], answer["messages"]) == (0, 1, 1, 1)


# what can't be asked


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--topic", "stepz"], "knows no topic 'stepz'; it knows: steps"),
        (["--topic", "steps", "--group", "shap"], "group 'shap' doesn't consume topic 'steps'"),
        (["--topic", "steps", "--ledger", "ledger"], "write TABLE:COLUMN"),
        (["--topic", "steps", "--ledger", "legder:biz_key"], "the store has no table 'legder'"),
        (["--topic", "steps", "--ledger", "ledger:bizkey"], "no column 'bizkey'; it has id, key, biz_key"),
        (["--topic", "steps", "--manifest", "nowhere.jsonl"], "nowhere.jsonl can't be read"),
    ],
)
def test_what_cannot_be_asked_is_said_in_one_line(scene, arguments, says):
    done = invoke("audit", "--store", f"sqlite:///{scene.file}", *arguments)

    assert done.exit_code == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_store_without_tables_is_said_to_need_init(tmp_path):
    done = invoke("audit", "--topic", "steps", "--store", f"sqlite:///{tmp_path}/new.db")

    assert done.exit_code == 2
    assert "seriatim init" in done.stderr


def test_the_group_must_be_said_where_several_consume_the_topic(scene):
    scene.write("INSERT INTO partition_owner (consumer_group, topic, partition_id) VALUES ('other', 'steps', '0')")
    done = invoke("audit", "--topic", "steps", "--store", f"sqlite:///{scene.file}")

    assert done.exit_code == 2
    assert "other, shop" in done.stderr
    assert scene.audit("--group", "shop")[0] == 0
