"""A first look at a log, before anything is sent: every line is read and checked, and the disturbances are chosen."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from seriatim.cli.replaying.mapping import Mapper
from seriatim.cli.replaying.rows import Line, at_line
from seriatim.core.errors import ConfigurationError, InvalidMessage

_FIRST = -1  #: the predecessor of a key's first message


@dataclass(slots=True)
class Survey:
    """What a log holds: the number of its messages, and for each the index of its predecessor of the same key."""

    predecessors: array[int] = field(default_factory=lambda: array("q"))

    @property
    def messages(self) -> int:
        """How many messages there are."""
        return len(self.predecessors)


@dataclass(frozen=True, slots=True)
class Plan:
    """Which messages (by their index in the log) are sent again soon or late, and which are overtaken by the next."""

    messages: int
    soon: frozenset[int] = frozenset()
    late: frozenset[int] = frozenset()
    overtaken: frozenset[int] = frozenset()

    @property
    def sent(self) -> int:
        """How many sendings there are, copies among them."""
        return self.messages + len(self.soon) + len(self.late)

    def copies(self, index: int) -> int:
        """How often a message is sent in all."""
        return 1 + (index in self.soon) + (index in self.late)


def survey(path: Path, lines: Iterable[Line], mapper: Mapper) -> Survey:
    """Read every line of a log.

    Raises:
        ConfigurationError: a line is no message, two have the same biz_key, or there is none at all; names the line.
    """
    seen: dict[str, int] = {}
    last: dict[str, int] = {}
    found = Survey()
    for line in lines:
        try:
            message = mapper.message(line.row)
        except InvalidMessage as error:
            raise at_line(path, line.number, f"{error}; nothing was sent") from error
        before = seen.setdefault(message.biz_key, line.number)
        if before != line.number:
            raise at_line(
                path,
                line.number,
                f"its biz_key {message.biz_key!r} is that of line {before}, too: one of them would be taken for a copy "
                "and lost; say --biz-key with columns that tell them apart; nothing was sent",
            )
        found.predecessors.append(last.get(message.sharding_key, _FIRST))
        last[message.sharding_key] = found.messages - 1
    if not found.messages:
        raise ConfigurationError(f"{path} has no rows: there is nothing to send")
    return found


def choose(found: Survey, duplicates: float, early: float, rng: random.Random) -> Plan:
    """Choose by lot: `duplicates` and `early` are shares of the messages, got exactly where that can be."""
    copied = rng.sample(range(found.messages), round(found.messages * duplicates))
    half = len(copied) // 2
    return Plan(
        messages=found.messages,
        soon=frozenset(copied[half:]),
        late=frozenset(copied[:half]),
        overtaken=frozenset(_overtaken(found, round(found.messages * early), rng)),
    )


def _overtaken(found: Survey, wanted: int, rng: random.Random) -> set[int]:
    """Messages that their successor overtakes: of three in a row at most one pair changes places."""
    candidates = [index for index, before in enumerate(found.predecessors) if before != _FIRST] if wanted else []
    rng.shuffle(candidates)
    overtaken: set[int] = set()
    overtaking: set[int] = set()
    for index in candidates:
        if len(overtaken) == wanted:
            break
        before = found.predecessors[index]
        if index not in overtaken and before not in overtaking:
            overtaken.add(before)
            overtaking.add(index)
    return overtaken
