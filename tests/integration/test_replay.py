"""`seriatim replay`: the whole log, in its order, disturbed as asked and written down; bad input sends nothing."""

import gzip
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from seriatim import BrokerError, Message
from seriatim.adapters.embedded.producer import EmbeddedProducer
from seriatim.cli.main import app as cli
from seriatim.cli.replaying.mixing import LATE, LATE_SPREAD, SOON, Mixer
from seriatim.cli.replaying.survey import Survey, choose
from seriatim.core.brokers import open_broker
from seriatim.core.digest import digest
from seriatim.core.manifest import read_manifest

HEADER = "case,seq,what,at\n"
COLUMNS = ("--key", "case", "--type", "what", "--seq", "seq")


def invoke(*arguments):
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


class Desk:
    """A folder with a log and a broker."""

    def __init__(self, folder):
        self.folder = folder
        self.broker = f"embedded:{folder}/broker.db"
        self.manifest = folder / "manifest.jsonl"

    def csv(self, text, name="log.csv"):
        path = self.folder / name
        path.write_text(HEADER + text)
        return path

    def log(self, keys=5, steps=20):
        """A log of some keys, their events taking turns."""
        rows = [f"k{key},{step},step,{1_000_000 + step}" for step in range(steps) for key in range(keys)]
        return self.csv("\n".join(rows) + "\n")

    def replay(self, log, *arguments, topic="steps", columns=COLUMNS, partitions=4):
        spread = () if partitions is None else ("--partitions", partitions)
        return invoke("replay", log, "--topic", topic, *spread, "--broker", self.broker, *columns, *arguments)

    def sent(self, topic="steps"):
        """Every delivery of a topic, those of a partition in order."""
        found = []
        with (
            closing(open_broker(self.broker)) as broker,
            closing(broker.consumer(topic, "reader")) as consumer,
        ):
            for partition in broker.partitions(topic):
                consumer.start(partition, None)
            waiting = set(broker.partitions(topic))
            deadline = time.monotonic() + 20
            while waiting:
                assert time.monotonic() < deadline
                got = consumer.poll(0.05, 1000)
                if hasattr(got, "deliveries"):
                    found.extend(got.deliveries)
                    consumer.settle(got, len(got.deliveries))
                elif got is not None:
                    waiting.discard(got.partition)
        return found


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


def biz_key(delivery):
    return delivery.raw["seriatim-biz-key"]


def refused(done, *words):
    """A command that said in one line what is wrong, and exited with status 2."""
    assert done.exit_code == 2, done.output
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for word in words:
        assert word in done.stderr


# what is sent


def test_every_row_becomes_a_message_in_the_order_of_its_key(desk):
    done = desk.replay(desk.log())
    sent = desk.sent()

    assert done.exit_code == 0, done.output
    assert "sent 100 messages to topic steps" in done.stdout
    for key in range(5):
        of_key = [one for one in sent if one.raw["seriatim-key"] == f"k{key}"]
        assert [int(one.raw["seriatim-seq"]) for one in of_key] == list(range(20))
        assert len({one.partition for one in of_key}) == 1
    first = next(one for one in sent if biz_key(one) == "k0:0")
    assert json.loads(first.body) == {"case": "k0", "seq": "0", "what": "step", "at": "1000000"}
    assert first.raw["seriatim-type"] == "step"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["csv", "jsonl", "ndjson"])
def test_csv_and_json_lines_packed_or_not_say_the_same(desk, kind, packed):
    rows = [{"case": "k", "seq": str(seq), "what": "ünïcode", "at": 'a "quoted", b'} for seq in range(3)]
    text = "".join(json.dumps(row) + "\n\n" for row in rows)
    if kind == "csv":
        text = "\ufeff" + HEADER + "".join(f'k,{row["seq"]},ünïcode,"a ""quoted"", b"\r\n' for row in rows)
    path = desk.folder / f"log.{kind}{'.gz' if packed else ''}"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())

    assert desk.replay(path).exit_code == 0
    assert [json.loads(one.body) for one in desk.sent()] == rows


def test_json_values_keep_their_types_and_whole_numbers_may_be_keys(desk):
    path = desk.folder / "log.jsonl"
    path.write_text('{"case": 7, "seq": 1, "what": "paid", "sum": 1.5, "tags": ["a"]}\n')

    assert desk.replay(path).exit_code == 0
    [one] = desk.sent()
    assert json.loads(one.body) == {"case": 7, "seq": 1, "what": "paid", "sum": 1.5, "tags": ["a"]}
    assert (one.raw["seriatim-key"], biz_key(one)) == ("7", "7:1")


def test_a_message_is_produced_now_unless_a_column_says_when(desk):
    log = desk.csv("k,0,step,2011-10-01T00:38:44.546+02:00\nk,1,step,2011-09-30T22:38:45Z\nk,2,step,1317422326.5\n")
    began = time.time()
    desk.replay(log, topic="now")
    desk.replay(log, "--time", "at", topic="then")

    assert all(began <= float(one.raw["seriatim-produced-at"]) <= time.time() for one in desk.sent("now"))
    base = datetime(2011, 9, 30, 22, 38, 44, tzinfo=timezone.utc).timestamp()
    then = [float(one.raw["seriatim-produced-at"]) for one in desk.sent("then")]
    assert then == pytest.approx([base + 0.546, base + 1, base + 2.5])


def test_a_biz_key_is_what_the_template_says(desk):
    desk.replay(desk.csv("k,0,paid,1\nk,1,sent,2\n"), "--biz-key", "{case}/{what}#{at}")

    assert [biz_key(one) for one in desk.sent()] == ["k/paid#1", "k/sent#2"]


def test_limit_takes_the_first_rows_and_looks_at_no_others(desk):
    done = desk.replay(desk.csv("k,0,step,1\nk,1,step,2\nbroken\n"), "--limit", 2)

    assert done.exit_code == 0, done.output
    assert len(desk.sent()) == 2


def test_rate_keeps_the_pace(desk):
    began = time.monotonic()
    done = desk.replay(desk.log(keys=1, steps=30), "--rate", 50)

    assert done.exit_code == 0, done.output
    assert time.monotonic() - began >= 25 / 50  # thirty messages in batches of five: the last is due after 25


def test_a_known_topic_tells_its_partitions_itself(desk):
    desk.replay(desk.csv("k,0,step,1\n"), partitions=3)
    done = desk.replay(desk.csv("k,1,step,1\n"), partitions=None)

    assert done.exit_code == 0, done.output
    with closing(open_broker(desk.broker)) as broker:
        assert broker.partitions("steps") == ("0", "1", "2")


# disturbed on purpose


def test_copies_are_real_ones_and_as_many_as_asked_for(desk):
    desk.replay(desk.log(), "--duplicates", 0.2, "--manifest", desk.manifest)
    sent = desk.sent()
    times = Counter(map(biz_key, sent))

    assert Counter(times.values()) == {1: 80, 2: 20}
    assert {len({(one.body, *sorted(one.raw.items())) for one in sent if biz_key(one) == key}) for key in times} == {1}


def test_an_early_message_is_sent_before_its_predecessor_and_nothing_else_is(desk):
    desk.replay(desk.log(), "--early", 0.1, "--manifest", desk.manifest)
    places = {}
    early = 0
    for one in desk.sent():
        key, seq = one.raw["seriatim-key"], int(one.raw["seriatim-seq"])
        early += seq == places.get(key, -1) + 2
        assert seq <= places.get(key, -1) + 2
        places[key] = max(seq, places.get(key, -1))

    assert early == 10


def test_the_manifest_says_what_was_sent_in_the_order_of_first_sending(desk):
    desk.replay(desk.log(), "--duplicates", 0.2, "--early", 0.1, "--seed", 3, "--manifest", desk.manifest)
    header, messages = read_manifest(desk.manifest)
    messages = list(messages)
    sent = desk.sent()

    assert (header.topic, header.partitions) == ("steps", ("0", "1", "2", "3"))
    assert (header.messages, header.sent, header.early) == (100, 120, 10)
    assert header.arguments["seed"] == 3
    assert {one.biz_key: one.copies for one in messages} == Counter(map(biz_key, sent))
    for partition in header.partitions:
        first = list(dict.fromkeys(biz_key(one) for one in sent if one.partition == partition))
        assert [one.biz_key for one in messages if one.partition == partition] == first
    bodies = {biz_key(one): digest(one.body) for one in sent}
    assert {one.biz_key: one.digest for one in messages} == bodies
    assert sum(one.early for one in messages) == 10


def test_the_same_seed_sends_the_same(desk):
    log = desk.log()
    for topic, seed in (("one", 1), ("same", 1), ("other", 2)):
        desk.replay(log, "--duplicates", 0.3, "--early", 0.1, "--seed", seed, topic=topic)
    one, same, other = ([biz_key(sent) for sent in desk.sent(topic)] for topic in ("one", "same", "other"))

    assert one == same
    assert one != other


def messages_of(keys):
    seen = Counter()
    for key in keys:
        yield Message("t", key, f"{key}:{seen[key]}", "step", b"", seq=seen[key])
        seen[key] += 1


def survey_of(messages):
    found, last = Survey(), {}
    for index, message in enumerate(messages):
        found.predecessors.append(last.get(message.sharding_key, -1))
        last[message.sharding_key] = index
    return found


@given(
    keys=st.lists(st.sampled_from("abcd"), min_size=1, max_size=60),
    duplicates=st.floats(0, 1),
    early=st.floats(0, 0.5),
    seed=st.integers(),
)
def test_whatever_is_asked_for_each_message_is_sent_and_only_the_chosen_change_places(keys, duplicates, early, seed):
    messages = list(messages_of(keys))
    plan = choose(survey_of(messages), duplicates, early, random.Random(seed))
    stream = list(Mixer(plan, random.Random(seed)).mix(messages))
    firsts = [one for one in stream if not one.copy]

    assert sorted(one.index for one in firsts) == list(range(len(messages)))
    assert len(stream) == plan.sent
    assert plan.sent - plan.messages == round(len(messages) * duplicates)
    assert sum(one.early for one in firsts) == len(plan.overtaken) <= round(len(messages) * early)
    seen = set()
    for one in stream:
        assert one.copy == (one.index in seen), "a copy came before its original"
        seen.add(one.index)
    for key in set(keys):
        order = [(one.message.seq, one.early) for one in firsts if one.message.sharding_key == key]
        expected = 0
        while order:
            (seq, is_early), *order = order
            if is_early:
                assert seq == expected + 1
                assert order.pop(0) == (expected, False), "its predecessor isn't the next of its key"
                expected += 1
            else:
                assert seq == expected
            expected += 1


def test_half_of_the_copies_come_soon_and_half_late():
    messages = list(messages_of([f"k{number % 97}" for number in range(30_000)]))
    plan = choose(survey_of(messages), 0.1, 0.001, random.Random(1))
    sent_at, soon, late, early_by = {}, [], [], []
    for count, one in enumerate(Mixer(plan, random.Random(1)).mix(messages)):
        if not one.copy:
            sent_at[one.index] = count
            if one.index in plan.overtaken:
                early_by.append(count - sent_at[next(i for i in range(one.index + 97, 30_000, 97) if i in sent_at)])
        else:
            distance = count - sent_at[one.index]
            (soon if distance < LATE / 2 and one.index in plan.soon else late).append(distance)

    assert len(soon) == len(late) == 1500
    assert max(soon) <= SOON + 10  # a few may be due at once
    assert sum(distance >= LATE for distance in late) > 900  # the rest came at the end of the log
    assert max(late) <= LATE + LATE_SPREAD + 10
    assert len(early_by) == 30
    assert max(early_by) <= SOON + 10


# bad input: one line that names the thing, and nothing is sent


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("k,0,step,1\n,1,step,2\n", "line 3: column 'case' is empty: it is a key; nothing was sent"),
        ("k,0,step,1\nk,1,,2\n", "line 3: column 'what' is empty: it is a message type"),
        ("k,0,step,1\nk,one,step,2\n", "line 3: column 'seq' is 'one': a seq is a whole number"),
        ("k,0,step,1\nk,1,step\n", "line 3: it has 3 values, the header 4 columns"),
        ('k,0,step,1\nk,1,"step,2\n', "line 3: unexpected end of data"),
        ("k,0,step,1\nk,1,step,2\nk,0,step,3\n", "line 4: its biz_key 'k:0' is that of line 2, too"),
        (f"{'k' * 300},0,step,1\n", "has 300 characters; at most 255 are allowed"),
        ("", "has no rows"),
    ],
)
def test_a_broken_line_is_named_and_nothing_is_sent(desk, rows, says):
    refused(desk.replay(desk.csv(rows), "--manifest", desk.manifest), "log.csv", says)

    with closing(open_broker(desk.broker)) as broker:
        assert broker.partitions("steps") == ()
    assert not desk.manifest.exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"case": "k", "seq": 0, "what": "step"}\n{"case":\n', "line 2: it isn't JSON"),
        ("[1]\n", "line 1: it is a JSON list, not an object"),
        ('{"case": "k", "what": "step"}\n', "line 1: there is no column 'seq'; there are: case, what"),
        ('{"case": 1.5, "seq": 0, "what": "step"}\n', "column 'case' is 1.5: a key is text or a whole number"),
        ('{"case": "k", "seq": 0, "what": "step", "x": NaN}\n', "line 1: the body can't be written as JSON"),
        ('{"case": "k", "seq": 0, "what": "step", "x": "' + "x" * (5 << 20) + '"}\n', "topic 'steps' takes at most"),
    ],
)
def test_a_broken_json_line_is_named(desk, text, says):
    path = desk.folder / "log.jsonl"
    path.write_text(text)

    refused(desk.replay(path), says)


@pytest.mark.parametrize("at", ["yesterday", "2011-10-01T00:38:44", ""])
def test_a_time_that_is_none_is_named(desk, at):
    refused(desk.replay(desk.csv(f"k,0,step,{at}\n"), "--time", "at"), "line 2", "column 'at'")


def test_a_column_that_is_not_there_is_named_with_those_that_are(desk):
    columns = ("--key", "customer", "--type", "what", "--seq", "seq")
    refused(desk.replay(desk.log(), columns=columns), "no column 'customer'; there are: case, seq, what, at")
    refused(desk.replay(desk.log(), "--biz-key", "{case}:{nr}"), "no column 'nr'")


def test_a_biz_key_that_would_not_tell_messages_apart_is_refused(desk):
    refused(desk.replay(desk.log(), columns=("--key", "case", "--type", "what")), "--biz-key '{case}:{activity}'")
    refused(desk.replay(desk.log(), "--biz-key", "case:seq"), "names no column")


def test_a_log_that_is_missing_unknown_or_damaged_is_said(desk):
    refused(desk.replay(desk.folder / "nowhere.csv"), "nowhere.csv can't be read: No such file")
    refused(desk.replay(desk.folder / "log.xlsx"), "ends in .csv")
    (desk.folder / "plain.csv.gz").write_bytes(HEADER.encode())
    refused(desk.replay(desk.folder / "plain.csv.gz"), "plain.csv.gz: the gzip is cut or damaged")
    cut = gzip.compress((HEADER + "k,0,step,1\n" * 9).encode())[:-10]
    (desk.folder / "cut.csv.gz").write_bytes(cut)
    refused(desk.replay(desk.folder / "cut.csv.gz"), "cut.csv.gz: the gzip is cut or damaged")
    (desk.folder / "latin.csv").write_bytes(HEADER.encode() + b"k,0,caf\xe9,1\n")
    refused(desk.replay(desk.folder / "latin.csv"), "latin.csv isn't UTF-8")
    twice = desk.folder / "twice.csv"
    twice.write_text("case,case\n")
    refused(desk.replay(twice), "the column 'case' is there twice")


def test_another_number_of_partitions_than_the_topic_has_is_refused(desk):
    desk.replay(desk.csv("k,0,step,1\n"), partitions=4)

    refused(desk.replay(desk.csv("k,1,step,1\n"), partitions=8), "has 4 partitions", "--partitions says 8")
    refused(desk.replay(desk.csv("k,1,step,1\n"), topic="new", partitions=None), "say --partitions")
    assert len(desk.sent()) == 1


def test_a_manifest_with_nowhere_to_go_is_said_before_anything_is_sent(desk):
    refused(desk.replay(desk.log(), "--manifest", desk.folder / "none" / "m.jsonl"), "none doesn't exist")

    with closing(open_broker(desk.broker)) as broker:
        assert broker.partitions("steps") == ()


@pytest.mark.parametrize("share", [("--duplicates", "1.5"), ("--duplicates", "-0.1"), ("--early", "0.6")])
def test_a_share_that_is_none_is_refused(desk, share):
    done = desk.replay(desk.log(), *share)

    assert done.exit_code == 2
    assert share[0] in done.stderr


def test_when_the_broker_goes_it_says_how_far_it_came_and_leaves_no_manifest(desk, monkeypatch):
    send, calls = EmbeddedProducer.send, []

    def failing(self, messages):
        calls.append(len(messages))
        if len(calls) == 3:
            raise BrokerError("the disk is full")
        send(self, messages)

    monkeypatch.setattr(EmbeddedProducer, "send", failing)
    done = desk.replay(desk.log(keys=20, steps=100), "--manifest", desk.manifest)

    refused(done, "the disk is full (1000 of 2000 messages are confirmed", "run the same command again")
    assert sorted(path.name for path in desk.folder.glob("*manifest*")) == []


@pytest.mark.slow
def test_the_command_is_quiet_on_a_pipe(desk):
    log = desk.log()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "seriatim.cli.main", "replay", log, "--topic", "steps", "--partitions", "2"),
            *("--broker", desk.broker, *COLUMNS),
        ],
        env=os.environ,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1
