"""A key's partition: the same everywhere and for ever, well spread, and never guessed."""

import copy
import enum
import json
import os
import pickle
import random
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from seriatim.cli.route import route as route_command
from seriatim.core.errors import ConfigurationError, InvalidMessage
from seriatim.core.hashing import HASHES, KEY_HASHES
from seriatim.core.keys import canonical_key
from seriatim.core.routing import Move, Routing, numbered

FROZEN = Path(__file__).parent / "data" / "frozen-routes.json"
HASHED = [("modulo", name) for name in HASHES] + [("consistent", name) for name in KEY_HASHES]
PATTERN_KEEPING = {("modulo", "java"), ("modulo", "rocketmq-java")}
BALANCED = [rule for rule in HASHED if rule not in PATTERN_KEEPING]
PRINTS_ROUTES = """
import json
from seriatim.core.routing import Routing, numbered
rules = json.load(open(0))
print(json.dumps({name: [Routing(*name.split("/")).route(f"order-{n}", numbered(16)) for n in range(1000)]
                  for name in rules}))
"""

keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
    lambda text: text.strip() and "\x00" not in text
)
lists = st.lists(keys, min_size=1, max_size=12, unique=True).map(tuple)


# one answer, everywhere


def frozen():
    return {name: row.split() for name, row in json.loads(FROZEN.read_text("utf-8"))["routes"].items()}


def routes_of_another_process(seed, rules):
    done = subprocess.run(
        [sys.executable, "-c", PRINTS_ROUTES],
        input=json.dumps(rules),
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("seed", ["0", "1", "42", "4294967295", "random"])
def test_a_thousand_keys_have_one_partition_in_every_process_and_for_ever(seed):
    # field case FC-R1
    table = frozen()
    assert set(table) == {f"{strategy}/{name}" for strategy, name in HASHED}
    assert routes_of_another_process(seed, list(table)) == table


@given(keys, lists)
def test_a_key_is_routed_to_a_partition_of_the_list_and_always_to_the_same(key, partitions):
    for strategy, name in HASHED:
        chosen = Routing(strategy, name).route(key, partitions)
        assert chosen in partitions
        assert Routing(strategy, name).route(key, list(partitions)) == chosen


def test_modulo_indexes_the_declared_list_in_its_declared_order():
    declared = ("broker-b:0", "broker-a:0", "broker-a:1")
    assert Routing().route("123456789", declared) == declared[0xCBF43926 % 3]


def test_a_key_used_in_two_topics_is_routed_by_each_topic_s_own_list():
    # field case FC-R5, the part of routing: nothing is remembered between topics
    routing = Routing()
    used = [f"order-{number}" for number in range(300)]
    apart = (
        [routing.route(key, numbered(4)) for key in used],
        [routing.route(key, numbered(7)) for key in used],
    )
    together = zip(*[(routing.route(key, numbered(4)), routing.route(key, numbered(7))) for key in used], strict=True)
    assert tuple(map(list, together)) == apart


# balance


def forms_of_keys(count):
    draw = random.Random(20)
    return {
        "order-N": [f"order-{number}" for number in range(count)],
        "multiples of 8": [str(8 * number) for number in range(count)],
        "multiples of 16": [str(16 * number) for number in range(count)],
        "UUID": [str(uuid.UUID(int=draw.getrandbits(128), version=4)) for _ in range(count)],
        "phone": [f"1{draw.choice('3578')}{draw.randrange(10**9):09}" for _ in range(count)],
    }


def busiest(routing, some, count):
    """The load of the busiest partition, in means."""
    loads = Counter(routing.route(key, numbered(count)) for key in some)
    return max(loads.values()) * count / len(some)


@pytest.mark.parametrize(("strategy", "name"), BALANCED)
def test_the_busiest_partition_has_at_most_a_quarter_more_than_the_mean(strategy, name):
    # field case FC-R3
    for form, some in forms_of_keys(10_000).items():
        for count in (4, 8, 16, 32):
            assert busiest(Routing(strategy, name), some, count) <= 1.25, (form, count)


@pytest.mark.parametrize(("strategy", "name"), sorted(PATTERN_KEEPING))
def test_java_s_hash_keeps_patterns_so_no_balance_is_promised_for_it(strategy, name):
    # field case FC-R3: the exception that the documentation makes is a true one
    assert busiest(Routing(strategy, name), forms_of_keys(10_000)["order-N"], 32) > 1.25


# growing a list


@given(st.lists(keys, max_size=20), lists, keys)
def test_consistent_moves_keys_to_the_new_partition_alone(some, before, new):
    after = (*before, new) if new not in before else before
    assert {move.after for move in Routing("consistent").moves(some, before, after)} <= {new}


@given(keys, lists, st.randoms(use_true_random=False))
def test_consistent_does_not_ask_in_which_order_the_list_is_declared(key, partitions, shuffler):
    shuffled = list(partitions)
    shuffler.shuffle(shuffled)
    assert Routing("consistent").route(key, shuffled) == Routing("consistent").route(key, partitions)


def test_consistent_moves_one_key_in_n_where_modulo_moves_most():
    some = [f"order-{number}" for number in range(10_000)]
    few = Routing("consistent").moves(some, numbered(15), numbered(16))
    most = Routing("modulo").moves(some, numbered(15), numbered(16))
    assert 0.8 / 16 < len(few) / len(some) < 1.2 / 16
    assert len(most) / len(some) > 0.9


def test_moves_are_told_in_the_order_of_the_keys_with_where_from_and_where_to():
    by_name = Routing("explicit", explicit=lambda key, ids: ids[-1] if key != "stays" else ids[0])
    assert by_name.moves(["b", "stays", 1], ("x",), ("x", "y")) == (Move("b", "x", "y"), Move("1", "x", "y"))


# explicit


def test_an_explicit_mapping_places_keys_by_name():
    routing = Routing("explicit", explicit={"vip": "3", "42": "0"})
    assert routing.route("vip", numbered(4)) == "3"
    assert routing.route(42, numbered(4)) == "0"


def test_an_explicit_function_sees_the_key_as_text_and_the_declared_list():
    seen = []

    def first(key, partitions):
        seen.append((key, partitions))
        return partitions[0]

    assert Routing("explicit", explicit=first).route(b"42", ["a", "b"]) == "a"
    assert seen == [("42", ("a", "b"))]


@pytest.mark.parametrize("answer", ["9", 1, None, True, ["1"]])
def test_an_explicit_answer_outside_the_list_is_refused_and_named(answer):
    routing = Routing("explicit", explicit=lambda _key, _partitions: answer)
    with pytest.raises(ConfigurationError, match=r"'o1'.*declared list \(0, 1, 2, 3\)"):
        routing.route("o1", numbered(4))


def test_a_key_that_the_explicit_mapping_lacks_is_an_error_never_a_default():
    with pytest.raises(ConfigurationError, match="no partition for key 'o1'"):
        Routing("explicit", explicit={"vip": "3"}).route("o1", numbered(4))


def test_an_explicit_function_that_raises_is_the_cause_of_the_error():
    with pytest.raises(ConfigurationError, match="raised ZeroDivisionError for key 'o1'") as caught:
        Routing("explicit", explicit=lambda _key, _ids: 1 // 0).route("o1", numbered(4))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


# wrong declarations


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"strategy": "random"}, "'random' is unknown; choose one of 'modulo', 'consistent', 'explicit'"),
        ({"hash": "md5"}, "'md5' is unknown"),
        ({"strategy": "consistent", "hash": "rocketmq-proxy"}, "choose one of 'crc32', 'java', 'murmur2'"),
        ({"strategy": "explicit"}, "together with"),
        ({"explicit": {"a": "1"}}, "together with"),
    ],
)
def test_a_routing_that_makes_no_sense_is_refused_when_it_is_made(wrong, says):
    with pytest.raises(ConfigurationError, match=says):
        Routing(**wrong)


@pytest.mark.parametrize(
    "wrong", [(), "01", b"01", ("0", "0"), ("0", ""), ("0", " "), (0, 1), ["0", None], [["0"]], None, 4]
)
def test_a_wrong_partition_list_is_refused(wrong):
    for routing in (Routing(), Routing("consistent"), Routing("explicit", explicit={"o1": "0"})):
        with pytest.raises(ConfigurationError):
            routing.route("o1", wrong)


@pytest.mark.parametrize("count", [0, -1])
def test_a_topic_has_at_least_one_partition(count):
    assert numbered(3) == ("0", "1", "2")
    with pytest.raises(ConfigurationError, match="at least 1"):
        numbered(count)


def test_a_routing_is_a_value():
    routing = Routing("explicit", explicit={"a": "1"})
    assert routing == Routing("explicit", explicit={"a": "1"})
    assert len({routing, copy.deepcopy(routing), pickle.loads(pickle.dumps(routing))}) == 1  # noqa: S301


# what is a key


class Colour(str, enum.Enum):
    RED = "red"


class Shelf(enum.IntEnum):
    TOP = 7


@pytest.mark.parametrize(
    ("given_key", "key"),
    [(42, "42"), ("42", "42"), (b"42", "42"), (-1, "-1"), (0, "0"), (10**30, "1" + "0" * 30), (" a ", " a "),
     ("é", "é"), ("é".encode(), "é"), (Colour.RED, "red"), (Shelf.TOP, "7")],
)  # fmt: skip
def test_a_number_its_text_and_its_bytes_are_one_key(given_key, key):
    # field case FC-R8
    assert canonical_key(given_key) == key
    assert type(canonical_key(given_key)) is str
    assert Routing().route(given_key, numbered(16)) == Routing().route(key, numbered(16))


@pytest.mark.parametrize("nothing", [None, "", b"", " ", "\t\n", b"  ", "\u3000\xa0"])
def test_a_missing_empty_or_blank_key_is_refused_at_once(nothing):
    # field case FC-R8
    with pytest.raises(InvalidMessage):
        canonical_key(nothing)
    with pytest.raises(InvalidMessage):
        Routing("explicit", explicit=lambda _key, ids: ids[0]).route(nothing, numbered(4))


@pytest.mark.parametrize(
    "strange", [True, False, 1.0, float("nan"), uuid.UUID(int=1), bytearray(b"1"), ["1"], ("1",), object()]
)
def test_what_is_neither_text_nor_number_nor_bytes_is_refused_rather_than_guessed_at(strange):
    # field case FC-R8
    with pytest.raises(InvalidMessage, match=type(strange).__name__):
        canonical_key(strange)


@pytest.mark.parametrize(
    "broken",
    [b"\xff", b"\xc3", "\ud800", "a\udfff", "a\x00b", b"\x00", pytest.param(10**5000, id="5001 digits")],
)
def test_what_cannot_be_kept_as_text_is_refused(broken):
    with pytest.raises(InvalidMessage):
        canonical_key(broken)


@given(st.one_of(keys, st.integers()))
def test_a_canonical_key_is_its_own_canonical_key_also_as_bytes(value):
    key = canonical_key(value)
    assert canonical_key(key) == canonical_key(key.encode()) == key


# the command


def run(*arguments, stdin=None):
    app = typer.Typer()
    app.command()(route_command)
    return CliRunner().invoke(app, list(arguments), input=stdin)


def test_the_command_prints_each_key_s_partition():
    done = run("o1", "[bold]o2", "--partitions", "16")
    assert done.exit_code == 0
    for key in ("o1", "[bold]o2"):
        line = next(line for line in done.stdout.splitlines() if key in line)
        assert Routing().route(key, numbered(16)) in line.split(key)[1]


def test_the_command_shows_which_keys_move():
    done = run("o1", "o2", "o3", "--partitions", "2", "--to", "3", "--json")
    moved = [entry["key"] for entry in json.loads(done.stdout) if entry["moves"]]
    assert moved == [move.key for move in Routing().moves(["o1", "o2", "o3"], numbered(2), numbered(3))]
    assert f"{len(moved)} of 3 keys move" in run("o1", "o2", "o3", "-n", "2", "--to", "3").stdout


def test_the_command_reads_keys_from_standard_input():
    done = run("o1", "-", "--partitions", "8", "--strategy", "consistent", "--json", stdin="ü2\r\n\n o3 \n")
    routing = Routing("consistent")
    assert json.loads(done.stdout) == [
        {"key": key, "partition": routing.route(key, numbered(8))} for key in ("o1", "ü2", " o3 ")
    ]


@pytest.mark.parametrize(
    "wrong",
    [["o1", "-n", "0"], ["o1"], [" ", "-n", "4"], ["o1", "-n", "4", "--hash", "md5"],
     ["o1", "-n", "4", "--strategy", "explicit"],
     ["o1", "-n", "4", "--strategy", "consistent", "--hash", "rocketmq-java"]],
)  # fmt: skip
def test_the_command_refuses_wrong_arguments_as_usage_errors(wrong):
    assert run(*wrong).exit_code == 2
