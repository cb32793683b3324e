"""The hashes agree with the other side's real libraries; see `produced_by` in each file of known answers."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.core.hashing import (
    HASHES,
    KEY_HASHES,
    crc32,
    guava_consistent_hash,
    java_hash,
    libstdcxx_hash,
    murmur2,
)

DATA = Path(__file__).parent / "data"
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


def known(name):
    return json.loads((DATA / f"{name}.json").read_text("utf-8"))


@pytest.mark.parametrize("name", ["java", "murmur2"])
def test_a_key_has_the_hash_that_the_java_library_gives_it(name):
    for answer in known(name)["answers"]:
        assert KEY_HASHES[name](answer["key"]) == answer["hash"], answer["key"]


@pytest.mark.parametrize("name", ["java", "murmur2", "rocketmq-java", "rocketmq-proxy"])
def test_a_key_goes_to_the_index_that_the_java_client_chooses(name):
    table = known(name)
    for answer in table["answers"]:
        ours = [HASHES[name](answer["key"], count) for count in table["counts"]]
        assert ours == answer["indexes"], answer["key"]


def test_a_key_has_the_hash_that_libstdcxx_gives_it():
    for answer in known("rocketmq-native")["answers"]:
        assert libstdcxx_hash(answer["key"]) == answer["hash"], answer["key"]
        assert HASHES["rocketmq-native"](answer["key"], 7) == answer["hash"] % 7


def test_guava_s_bucket_is_the_same_for_any_64_bit_number():
    table = known("guava")
    for answer in table["answers"]:
        ours = [guava_consistent_hash(answer["input"], count) for count in table["counts"]]
        assert ours == answer["indexes"], answer["input"]


def test_the_known_answers_hold_the_corners():
    keys = {answer["key"] for answer in known("rocketmq-java")["answers"]}
    hashes = {java_hash(key) for key in keys}
    assert {-(2**31), -1, 0, 1, 2**31 - 1} <= hashes
    assert {975451704, 1278998757} <= hashes  # where Guava's 32-bit addition overflows at the first draw
    assert any(max(key) > "\uffff" for key in keys)
    assert any(not key.isascii() for key in keys)
    assert {len(key.encode()) % 8 for key in keys} == set(range(8))  # every tail of the word-wise hashes
    assert max(map(len, keys)) > 1000


def test_crc32_is_the_one_of_the_standards():
    assert crc32("123456789") == 0xCBF43926  # the check value of CRC-32/ISO-HDLC
    assert crc32("é") == crc32(b"\xc3\xa9".decode())


def test_the_smallest_hashcode_has_no_positive_twin_and_still_finds_an_index():
    key = "polygenelubricants"
    assert java_hash(key) == -(2**31)
    assert HASHES["rocketmq-java"](key, 7) == 2**31 % 7
    assert HASHES["java"](key, 7) == -(2**31) % 7


def test_rocketmq_s_java_rule_and_a_floor_modulo_part_ways_on_negative_hashcodes():
    key = "order-1"
    assert java_hash(key) < 0
    assert HASHES["rocketmq-java"](key, 7) != HASHES["java"](key, 7)


def test_rocketmq_s_three_clients_disagree_about_one_topic():
    keys = [f"order-{number}" for number in range(200)]
    rules = [HASHES[name] for name in ("rocketmq-java", "rocketmq-native", "rocketmq-proxy")]
    assert sum(len({rule(key, 8) for rule in rules}) > 1 for key in keys) > 150


@given(TEXTS, st.integers(1, 2000))
def test_every_rule_answers_with_an_index_for_any_text_and_count(key, count):
    for select in HASHES.values():
        assert 0 <= select(key, count) < count


@given(TEXTS)
def test_hashes_stay_within_their_stated_ranges(key):
    assert 0 <= crc32(key) < 2**32
    assert -(2**31) <= java_hash(key) < 2**31
    assert 0 <= murmur2(key) < 2**31
    assert 0 <= libstdcxx_hash(key) < 2**64


@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 500))
def test_one_bucket_more_either_keeps_a_number_or_gives_it_to_the_new_bucket(value, buckets):
    assert guava_consistent_hash(value, buckets + 1) in {guava_consistent_hash(value, buckets), buckets}


@given(TEXTS, TEXTS)
def test_java_s_hash_is_a_polynomial_over_utf16_units(left, right):
    units = len(right.encode("utf-16-le")) // 2
    expected = (java_hash(left) * 31**units + java_hash(right)) % 2**32
    assert java_hash(left + right) % 2**32 == expected
