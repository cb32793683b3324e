"""Stable hashes of a sharding key, and the rules by which other clients turn one into a partition's index.

Two producers agree on a key's partition only if they agree on the hash *and* on how it becomes an index:
RocketMQ's Java client and a floor modulo differ for nearly every key whose `hashCode` is negative. So a
rule has a name, and the name stands for the whole of it: a `Selector` takes the key and the number of
partitions, and gives an index.

``crc32``
    CRC-32 of the UTF-8 bytes, ``% n``. The default; easy to repeat in any language.
``java``
    ``Math.floorMod(key.hashCode(), n)``: Java programs with a partitioner of their own.
``murmur2``
    ``toPositive(murmur2(utf8)) % n``: Kafka's Java client, and librdkafka when set to ``murmur2_random``.
``rocketmq-java``
    ``Math.abs(key.hashCode() % n)``: `SelectMessageQueueByHash` of RocketMQ's Java client (remoting).
``rocketmq-native``
    ``std::hash<std::string>(utf8) % n`` of 64-bit libstdc++: librocketmq, and so rocketmq-client-python.
``rocketmq-proxy``
    Guava's ``consistentHash(key.hashCode(), n)``: RocketMQ's proxy, on behalf of every gRPC client.

The last three disagree with each other: a topic written by several kinds of RocketMQ client needs one rule
for all of them, and queues chosen explicitly.

Everything here is pure, takes any text that UTF-8 can encode (`canonical_key` refuses the rest) and never
touches Python's own ``hash()``, which is salted per process. The known answers in ``tests/unit/data`` come
from the other side's real libraries.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Mapping
from sys import byteorder
from types import MappingProxyType
from typing import Final
from zlib import crc32 as _crc32

KeyHash = Callable[[str], int]  #: a key's hash, the same in every process
Selector = Callable[[str, int], int]  #: a key and the number of partitions (1 or more) give an index below it

_U32: Final = 0xFFFFFFFF
_U64: Final = 0xFFFFFFFFFFFFFFFF


def crc32(key: str) -> int:
    """CRC-32 (ISO 3309, as in zlib) of the key's UTF-8 bytes: 0 to 2**32 - 1."""
    return _crc32(key.encode())


def java_hash(key: str) -> int:
    """Java's ``String.hashCode``: -2**31 to 2**31 - 1.

    Runs over UTF-16 code units, so that a character beyond U+FFFF counts as its two surrogates.
    Source: the documentation of ``java.lang.String.hashCode``.
    """
    value = 0
    for unit in _utf16_units(key):
        value = (31 * value + unit) & _U32
    return _signed32(value)


def murmur2(key: str) -> int:
    """Kafka's hash of the key's UTF-8 bytes, after its ``toPositive``: 0 to 2**31 - 1.

    Source: Kafka's ``Utils.murmur2`` and ``Utils.toPositive`` (the sign bit is masked, not negated).
    """
    return _murmur2_32(key.encode(), seed=0x9747B28C) & 0x7FFFFFFF


def libstdcxx_hash(key: str) -> int:
    """``std::hash<std::string>`` of GNU libstdc++ on 64-bit machines, over UTF-8: 0 to 2**64 - 1.

    Source: ``_Hash_bytes`` in libstdc++'s ``hash_bytes.cc``: MurmurHash64A, the tail folded in as one word.
    """
    return _murmur64a(key.encode(), seed=0xC70F6907)


def guava_consistent_hash(value: int, buckets: int) -> int:
    """The bucket that Guava's ``Hashing.consistentHash(long, int)`` picks: 0 to `buckets` - 1.

    Jump consistent hash (Lamping and Veach, 2014), driven by Guava's own linear congruential generator.
    `value` is a number of 64 bits with its sign; `buckets` is 1 or more.
    """
    state = value & _U64
    bucket = 0
    while True:
        state = (2862933555777941757 * state + 1) & _U64
        # Guava adds 1 in 32-bit arithmetic: the largest draw becomes -1.0, a jump backwards, the end.
        draw = _signed32((state >> 33) + 1) / 2**31
        following = int((bucket + 1) / draw)
        if not 0 <= following < buckets:
            return bucket
        bucket = following


def _utf16_units(key: str) -> Iterable[int]:
    if key.isascii():
        return key.encode()
    units = array("H", key.encode("utf-16-le"))
    if byteorder == "big":
        units.byteswap()
    return units


def _signed32(value: int) -> int:
    """The lower 32 bits of `value`, read as two's complement."""
    return ((value & _U32) ^ 0x80000000) - 0x80000000


def _murmur2_32(data: bytes, seed: int) -> int:
    m = 0x5BD1E995
    whole = len(data) & ~3
    h = seed ^ len(data)
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        k = word * m & _U32
        k = (k ^ k >> 24) * m & _U32
        h = (h * m & _U32) ^ k
    if tail := data[whole:]:
        h = (h ^ int.from_bytes(tail, "little")) * m & _U32
    h = (h ^ h >> 13) * m & _U32
    return h ^ h >> 15


def _murmur64a(data: bytes, seed: int) -> int:
    m = 0xC6A4A7935BD1E995
    whole = len(data) & ~7
    h = seed ^ (len(data) * m & _U64)
    for (word,) in struct.iter_unpack("<Q", data[:whole]):
        k = word * m & _U64
        k = (k ^ k >> 47) * m & _U64
        h = (h ^ k) * m & _U64
    if tail := data[whole:]:
        h = (h ^ int.from_bytes(tail, "little")) * m & _U64
    h = (h ^ h >> 47) * m & _U64
    return h ^ h >> 47


def _crc32_index(key: str, count: int) -> int:
    return _crc32(key.encode()) % count


def _java_index(key: str, count: int) -> int:
    return java_hash(key) % count


def _murmur2_index(key: str, count: int) -> int:
    return murmur2(key) % count


def _rocketmq_java_index(key: str, count: int) -> int:
    """Java's remainder takes the sign of the dividend, and is made positive *after* the division."""
    return abs(java_hash(key)) % count


def _rocketmq_native_index(key: str, count: int) -> int:
    return libstdcxx_hash(key) % count


def _rocketmq_proxy_index(key: str, count: int) -> int:
    return guava_consistent_hash(java_hash(key), count)


#: Hashes that are a number of the key alone.
KEY_HASHES: Final[Mapping[str, KeyHash]] = MappingProxyType({"crc32": crc32, "java": java_hash, "murmur2": murmur2})

#: Every rule by name, as key and count to index.
HASHES: Final[Mapping[str, Selector]] = MappingProxyType(
    {
        "crc32": _crc32_index,
        "java": _java_index,
        "murmur2": _murmur2_index,
        "rocketmq-java": _rocketmq_java_index,
        "rocketmq-native": _rocketmq_native_index,
        "rocketmq-proxy": _rocketmq_proxy_index,
    }
)
