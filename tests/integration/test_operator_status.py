"""`seriatim status`, `parked list` and `parked show`: what stands, on one screen, whatever there is."""

import json
import sqlite3
import time
from contextlib import closing

import pytest
from sqlalchemy import event
from support.programs import here
from support.rig import wait_until

from seriatim.compensation import blocked as blocked_module
from seriatim.compensation.parked import listing
from seriatim.compensation.selecting import MEANT, Filter
from seriatim.core.store.schema import parked_key, parked_message

from .test_operator_verbs import SCOPE, blocked, do, ids, shop

SCREEN = 50  #: lines
MANY = 100_000
PARKED = (
    "INSERT INTO parked_message (consumer_group, topic, partition_id, sharding_key, biz_key, waiting, place, reason,"
    " message_type, headers, body, digest, attempts, error_type, error, produced_at, received_at, parked_at)"
    " VALUES ('shop', 'orders', ?, ?, ?, ?, 'queue', ?, 'step', '{}', '{}', ?, 1, ?, ?, 1, 1, 1)"
)
KEYS = (
    "INSERT INTO parked_key (consumer_group, topic, sharding_key, partition_id, depth, next_attempt_at, since)"
    " VALUES ('shop', 'orders', ?, ?, 1, ?, ?)"
)


def status(rig, *arguments):
    return here(rig.folder, "status", *arguments)


def show(rig, *arguments):
    told = here(rig.folder, "parked", "show", *map(str, arguments))
    assert told.code == 0, told
    return told.out


def a_hundred_thousand(rig, partitions=16):
    """So many blocked keys, written straight into the tables: a tenth dead, of fourteen kinds of error."""
    with rig.opened() as store:
        store.declare(SCOPE, [str(number) for number in range(partitions)])
    now = int(time.time() * 1_000_000)
    with closing(sqlite3.connect(rig.folder / "shop.db")) as connection, connection:
        connection.executemany(
            PARKED,
            (
                (str(n % partitions), f"k{n}", biz_key, biz_key, reason, b"x" * 32, f"Error{n % 14}", f"away {n}")
                for n in range(MANY)
                for biz_key, reason in [(f"k{n}/1", "dead" if n % 10 == 0 else "failed")]
            ),
        )
        connection.executemany(
            KEYS, ((f"k{n}", str(n % partitions), None if n % 10 == 0 else now + 10**9, now - n) for n in range(MANY))
        )


def plans(rig, query):
    return [row[3] for row in rig.rows(f"EXPLAIN QUERY PLAN {query.compile(compile_kwargs={'literal_binds': True})}")]


def test_a_hundred_thousand_blocked_keys_are_one_screen(rig):
    a_hundred_thousand(rig)
    told = status(rig)
    assert told.code == 0, told
    lines = told.out.splitlines()
    assert len(lines) <= SCREEN, told
    assert "100,000 keys blocked with 100,000 messages waiting; 10,000 of the keys behind a dead message" in told.out
    assert "kinds more" in told.out
    assert "and 99,990 more" in told.out
    assert told.out.index("k99999") < told.out.index("k99990"), "the longest blocked first"
    assert "0 of 16 partitions are consumed" in told.out

    machine = json.loads(status(rig, "--json").out)
    assert machine["totals"]["blocked_keys"] == MANY
    assert sum(one["keys"] for one in machine["classes"]) < MANY
    assert machine["more_classes"] == 21 - len(machine["classes"]), "fourteen kinds, half of them dead at times"
    assert {"error_type", "keys", "dead", "since", "parked_id", "error", "reason", "type"} <= set(machine["classes"][0])
    assert len(machine["blocked"]) == 10


def test_status_reads_few_rows_and_each_list_through_an_index_or_a_limit(rig):
    a_hundred_thousand(rig)
    heads, closed = blocked_module.classes_query("shop", "orders"), blocked_module.closed_query(None, None)
    assert not [step for step in plans(rig, heads) if "SCAN parked_message" in step or "SCAN heads" in step]
    assert any("ix_parked_key" in step and "place=?" in step for step in plans(rig, heads))
    assert any("INTEGER PRIMARY KEY" in step for step in plans(rig, heads)), "of a key only its head is read"
    assert any("COVERING INDEX ix_parked_key" in step for step in plans(rig, closed)), "no body is read"

    statements = []
    with rig.opened() as store:

        @event.listens_for(store._engine, "before_cursor_execute")  # noqa: SLF001 - what it asks is the promise
        def asked(connection, cursor, statement, *_):
            statements.append(statement)

        blocked_module.standing(store, limit=10)
    assert len(statements) < 40, "their number doesn't grow with what is blocked"
    unbounded = [one for one in statements if "FROM parked_" in one and not bounded(one)]
    assert unbounded == []


def bounded(statement):
    """Whether a statement gives few rows: an aggregate, a limit, or one row by its id."""
    return any(part in statement for part in ("LIMIT", "count(", "sum(", "WHERE parked_message.id ="))


def test_a_list_of_many_is_read_in_the_order_of_ids_up_to_its_limit(rig):
    a_hundred_thousand(rig)
    told = here(rig.folder, "parked", "list")
    assert told.code == 0, told
    assert len(told.out.splitlines()) <= 60
    assert "the first 50 of more" in told.out
    for wanted in (Filter(), Filter(group="shop", topic="orders", error="away")):
        steps = plans(rig, listing(wanted, 0, 50, MEANT["list"]))
        assert any(step in steps for step in ("CO-ROUTINE found", "MATERIALIZE found")), steps
        assert "SEARCH parked_message USING INTEGER PRIMARY KEY (rowid=?)" in steps, "whole rows of the few alone"


def test_a_dead_and_a_held_and_an_early_one_are_told_from_each_other(rig):
    app, orders, _ = shop(rig)
    for key, how in (("dead", "dead"), ("early", "early"), ("held", "bad"), ("bad", "bad")):
        rig.send(orders, key, how=how)
    rig.run(app)
    do(rig, "hold", "held", "ann")
    printed = status(rig).out
    for words in (
        "a person: it is dead",
        "held by an operator",
        "when it is released",
        "waits for",
        "1 of the keys held",
    ):
        assert words in printed, printed
    totals = json.loads(status(rig, "--json").out)["totals"]
    assert (totals["blocked_keys"], totals["dead_heads"], totals["held"], totals["aside"]) == (3, 1, 1, 1)
    assert (totals["parked_rows"], totals["parked_bytes"]) == rig.rows(
        "SELECT count(*), sum(length(body)) FROM parked_message"
    )[0]
    listed = here(rig.folder, "parked", "list").out
    for words in ("a person: it is dead", "when its key is released", "tried in", "4 parked"):
        assert words in listed, listed


def test_partitions_that_need_a_look_are_shown_where_there_are_many(rig):
    app, orders, _ = shop(rig, partitions=16)
    rig.declare(orders)
    with rig.working(app):
        wait_until(lambda: rig.owners() == 1 and _owned(rig) == 16, "every partition")
        rig.write("UPDATE partition_owner SET paused = 'its log was trimmed' WHERE partition_id = '3'")
        rig.write("UPDATE partition_owner SET full = 1 WHERE partition_id = '5'")
        printed = status(rig).out
    assert "14 of 16 partitions are consumed, by 1 processes" in printed
    assert "shop/orders/3" in printed
    assert "paused: its log was trimmed" in printed
    assert "the parking is full" in printed
    assert "shop/orders/7" not in printed
    assert "shop/orders/7" in status(rig, "--partitions").out
    assert "14 of 16" not in status(rig).out, "nobody consumes any of them now"


def _owned(rig):
    return rig.rows("SELECT count(*) FROM partition_owner WHERE owner IS NOT NULL")[0][0]


def test_an_unknown_group_or_topic_is_a_mistake(rig):
    blocked(rig)
    for option, name in (("--group", "nobody"), ("--topic", "nothing")):
        told = status(rig, option, name)
        assert told.code == 2
        assert repr(name) in told.err
    assert status(rig, "--group", "shop", "--topic", "orders").code == 0


def test_what_fails_alike_is_counted_together(rig):
    app, orders, _ = shop(rig)
    for number in range(5):
        rig.send(orders, f"k{number}", how="bad")
    rig.send(orders, "k9", how="dead")
    rig.run(app)
    classes = json.loads(status(rig, "--json").out)["classes"]
    told = [(one["reason"], one["error_type"], one["keys"], one["dead"], one["error"]) for one in classes]
    assert told == [("failed", "ConnectionError", 5, 0, "away"), ("dead", "Reject", 1, 1, "no such order")]


# one message


def test_a_message_is_shown_whole_with_what_happens_next_and_what_can_be_done(rig):
    _, _, _, sent = blocked(rig)
    head, behind = ids(rig)[sent[0]], ids(rig)[sent[1]]
    printed = show(rig, head)
    for words in ("shop/orders/0", sent[0], "tried in", f"parked retry {head}", "seriatim-key: a", '"how": "bad"'):
        assert words in printed, printed
    assert "ConnectionError: away" in printed
    assert "traceback" in printed
    assert f"behind #{head}" in show(rig, behind)
    do(rig, "skip", head, "ann")
    assert "kept as evidence" in show(rig, head)
    machine = json.loads(show(rig, head, "--json"))
    assert json.loads(machine["body"])["how"] == "bad"
    assert (machine["id"], machine["place"], machine["headers"]["seriatim-key"]) == (head, "closed", "a")


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b'{"b": 1, "a": ["\xc3\xa9"]}', '"b": 1'),
        (b'{"b": "\x1b[31m\\u001b]0;x"}', "\\x1b"),
        (b"plain \x1b[2Jtext\x07", "plain \\x1b[2Jtext\\x07"),
        (b"\xff\xfe\x1b\x00abc", "00000000  ff fe 1b 00 61 62 63"),
        (b"", "body, 0 bytes"),
        (b"[" * 5000, "[[[["),
        (b"x" * 40_000, "more"),
    ],
    ids=["json", "json with escapes", "text", "bytes", "empty", "deep", "long"],
)
def test_a_body_is_shown_as_what_it_is_and_does_nothing_to_the_terminal(rig, body, shown):
    app, orders, _ = shop(rig)
    rig.append(orders, body, key="a\x1b[31m", biz_key="b", kind="no such type", raw={"x\x07": "y\x1b[2J"})
    rig.run(app)
    printed = show(rig, 1)
    assert shown in printed, printed
    assert not {"\x1b", "\x07", "\x00", "\x9b"} & set(printed)
    assert "x\\x07: y\\x1b[2J" in printed
    assert len(printed) < 60_000


def test_the_tables_of_the_plans_are_the_ones_in_use():
    """The plans above are of these tables: a renamed index would make them prove nothing."""
    assert "ix_parked_key" in {index.name for index in parked_message.indexes}
    assert parked_key.primary_key.columns.keys()[-1] == "sharding_key"
