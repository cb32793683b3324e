"""Which partition a sharding key belongs to: a pure function of the key and the *declared* partition list.

The list is declared once and kept in the store. The broker's live route never enters, so a broker that
misses a queue for a while can't move a key. Nor does the topic: it isn't asked.

``modulo``
    An index into the list, in its declared order, by a rule of `seriatim.core.hashing`. Cheapest, and the
    only one that producers in other languages can share. A longer list moves most keys, except by the rule
    ``rocketmq-proxy``.
``consistent``
    Rendezvous hashing (Thaler and Ravishankar, 1998): each partition scores the key, and the highest score
    wins. The order of the list doesn't matter; a partition that comes or goes moves only the keys that it
    gains or held, about 1 in n. Costs a score per partition: 10 to 30 µs for 32.
``explicit``
    Your own mapping or function. Its answers are checked against the list.

Balance: with 10,000 keys like ``order-1``, multiples of 8 or 16, UUIDs or telephone numbers on 4 to 32
partitions, the busiest has at most 1.25 times the mean under ``consistent`` with any hash, and under
``modulo`` with all but ``java`` and ``rocketmq-java``. Those two promise agreement, not balance:
`String.hashCode` keeps the pattern of its input, and even ``order-0``, ``order-1``, … fill some partitions
to twice the mean. A few very busy keys can't be balanced by any hash: place them with ``explicit``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from seriatim.core.errors import ConfigurationError
from seriatim.core.hashing import HASHES, KEY_HASHES, crc32
from seriatim.core.keys import canonical_key

#: A mapping from key to partition id, or a function of the key and the declared list that answers with an id.
Explicit = Mapping[str, str] | Callable[[str, tuple[str, ...]], str]

_CACHED_LISTS: Final = 256  # partition lists whose checks and seeds are remembered
_U64: Final = 0xFFFFFFFFFFFFFFFF


@dataclass(frozen=True, slots=True)
class Move:
    """A key whose partition changes with the list."""

    key: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Routing:
    """How a topic's keys find their partition: `strategy`, and where it applies, `hash` or `explicit`.

    `hash` is a name from `seriatim.core.hashing`: any of `HASHES` for ``modulo``, any of `KEY_HASHES` for
    ``consistent``. `explicit` belongs to the strategy of that name; a function must give the same answer in
    every process and for ever, which nobody can check for you.

    Raises:
        ConfigurationError: an unknown strategy or hash, or parts that don't go together.
    """

    strategy: str = "modulo"
    hash: str = "crc32"
    explicit: Explicit | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        if self.strategy not in _STRATEGIES:
            raise ConfigurationError(
                f"routing strategy {self.strategy!r} is unknown; choose one of {_choices(_STRATEGIES)}"
            )
        hashes = KEY_HASHES if self.strategy == "consistent" else HASHES
        if self.hash not in hashes:
            raise ConfigurationError(
                f"hash {self.hash!r} is unknown to routing by {self.strategy!r}; choose one of {_choices(hashes)}"
            )
        if (self.strategy == "explicit") != (self.explicit is not None):
            raise ConfigurationError(
                "explicit routing is strategy='explicit' together with explicit=<mapping or function>; "
                f"got strategy={self.strategy!r}, explicit={self.explicit!r}"
            )

    def route(self, key: str | int | bytes, partitions: Sequence[str]) -> str:
        """The partition of `key`, an id out of the declared list `partitions`.

        The same answer in every process, on every machine. Cheapest when the list is a tuple.

        Raises:
            InvalidMessage: `key` isn't a sharding key (see `canonical_key`).
            ConfigurationError: the list is empty, repeats an id or holds anything but text; or the explicit
                rule raised, or answered something that isn't in the list.
        """
        return _STRATEGIES[self.strategy](self, canonical_key(key), declared(partitions))

    def moves(self, keys: Iterable[str | int | bytes], before: Sequence[str], after: Sequence[str]) -> tuple[Move, ...]:
        """Those of `keys`, in their order, whose partition differs between the lists `before` and `after`.

        Raises:
            InvalidMessage, ConfigurationError: as for `route`.
        """
        old, new = declared(before), declared(after)
        routed = (Move(canonical_key(key), self.route(key, old), self.route(key, new)) for key in keys)
        return tuple(move for move in routed if move.before != move.after)


def numbered(count: int) -> tuple[str, ...]:
    """The ids of `count` partitions that are only numbered: ``"0"`` to ``"count-1"``.

    Raises:
        ConfigurationError: `count` is below 1.
    """
    if count < 1:
        raise ConfigurationError(f"a topic needs at least 1 partition, not {count}")
    return tuple(str(number) for number in range(count))


def declared(partitions: Sequence[str]) -> tuple[str, ...]:
    """`partitions` as a checked tuple: at least one id, all text, none twice, in the order given.

    Raises:
        ConfigurationError: it is anything else.
    """
    try:
        return _checked(partitions if isinstance(partitions, tuple) else _as_tuple(partitions))
    except TypeError as error:  # not a list at all, or ids that can't even be compared
        raise ConfigurationError(f"the partition list is {partitions!r}: pass a list of text ids") from error


def _as_tuple(partitions: Sequence[str]) -> tuple[str, ...]:
    if isinstance(partitions, (str, bytes)):
        raise ConfigurationError(f"the partition list is {partitions!r}: pass several ids, such as ('0', '1')")
    return tuple(partitions)


@lru_cache(maxsize=_CACHED_LISTS)
def _checked(partitions: tuple[str, ...]) -> tuple[str, ...]:
    if not partitions:
        raise ConfigurationError("the partition list is empty: declare the topic's partitions first")
    for partition in partitions:
        _check_id(partition)
    if len(set(partitions)) != len(partitions):
        raise ConfigurationError(f"the partition list ({_shown(partitions)}) names a partition twice")
    return partitions


def _check_id(partition: object) -> None:
    if not isinstance(partition, str) or not partition.strip():
        raise ConfigurationError(f"the partition list holds {partition!r}: ids are text that isn't blank")


def _modulo(routing: Routing, key: str, partitions: tuple[str, ...]) -> str:
    return partitions[HASHES[routing.hash](key, len(partitions))]


def _consistent(routing: Routing, key: str, partitions: tuple[str, ...]) -> str:
    number = KEY_HASHES[routing.hash](key) & _U64
    return max([(_mixed(number ^ seed), partition) for seed, partition in _seeded(partitions)])[1]


def _explicit(routing: Routing, key: str, partitions: tuple[str, ...]) -> str:
    answer = _asked(routing.explicit, key, partitions)
    if answer not in partitions:
        raise ConfigurationError(
            f"explicit routing put key {key!r} on {answer!r} ({type(answer).__name__}), which isn't in the "
            f"declared list ({_shown(partitions)}); answer one of these ids, as text"
        )
    return answer


def _asked(explicit: Explicit | None, key: str, partitions: tuple[str, ...]) -> str:
    if isinstance(explicit, Mapping):
        if key not in explicit:
            raise ConfigurationError(f"explicit routing knows no partition for key {key!r}; add it to the mapping")
        return explicit[key]
    if explicit is None:
        raise AssertionError  # Routing refuses the strategy without its rule
    try:
        return explicit(key, partitions)
    except Exception as error:
        raise ConfigurationError(
            f"the explicit routing function raised {type(error).__name__} for key {key!r}; it must answer for every key"
        ) from error


_STRATEGIES: Final[Mapping[str, Callable[[Routing, str, tuple[str, ...]], str]]] = MappingProxyType(
    {"modulo": _modulo, "consistent": _consistent, "explicit": _explicit}
)


@lru_cache(maxsize=_CACHED_LISTS)
def _seeded(partitions: tuple[str, ...]) -> tuple[tuple[int, str], ...]:
    """Pair each partition with a 64-bit seed of its own, which depends on its id and nothing else."""
    return tuple((_mixed(crc32(partition) << 32 | len(partition)), partition) for partition in partitions)


def _mixed(number: int) -> int:
    """SplitMix64's finalizer: a bijection of 64 bits in which every bit of the input stirs all of the output.

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014 (Stafford's mix 13).
    """
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & _U64
    number = (number ^ number >> 27) * 0x94D049BB133111EB & _U64
    return number ^ number >> 31


def _choices(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)


def _shown(partitions: tuple[str, ...], limit: int = 8) -> str:
    return ", ".join(partitions[:limit]) + (", …" if len(partitions) > limit else "")
