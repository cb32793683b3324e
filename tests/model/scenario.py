"""What one exploration is about: the messages, the log they stand in, the bounds, and the rules taken away.

A log is written as text, `e:m2 m1 m2 e`: messages in partition order, a repeated name being a redelivery or
a resend. `e:m2` says that `e` is early until `m2` has its effect. A predecessor that stands nowhere in the
log comes from outside (another topic, an API). Names that begin with `n` belong to a second sharding key.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Mode = Literal["log", "queue"]
"""Log: the position is part of the transaction. Queue: a prefix is acknowledged after the commit."""


OnFailure = Literal["park", "set_aside"]
"""What a failing handler does: block its key, or leave alone and be tried later."""


OnDead = Literal["skip", "block_key"]
"""What a rejected message does: let its followers go on, or block its key until a person comes."""


class Message(NamedTuple):
    """One biz_key: its name, its sharding key, and the message whose effect must be there before it."""

    name: str
    key: int
    needs: int | None


class Budget(NamedTuple):
    """How often each bounded event may still happen.

    Crashes, roll-backs, lost leases and lost answers have no bound. A handler fails (and is tried again), or
    rejects its message for good (`Reject`, dead at once).
    """

    fail: int = 0
    reject: int = 0
    hold: int = 0
    skip: int = 0
    retry: int = 0
    outside: int = 0
    purge: int = 0
    failover: int = 0


@dataclass(frozen=True)
class Scenario:
    """A protocol (less the rules in `removed`), a log and its bounds."""

    mode: Mode
    log_text: str
    budget: Budget
    on_failure: OnFailure = "park"
    on_dead: OnDead = "skip"
    batch: int = 2
    removed: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()
    messages: tuple[Message, ...] = field(init=False)
    log: tuple[int, ...] = field(init=False)
    earlier: tuple[tuple[int, ...], ...] = field(init=False)

    def __post_init__(self) -> None:
        """Read the log's text."""
        needs = dict(word.partition(":")[::2] for word in self.log_text.split() if ":" in word)
        order = [word.partition(":")[0] for word in self.log_text.split()]
        names = list(dict.fromkeys(order)) + sorted({name for name in needs.values() if name not in order})
        messages = tuple(
            Message(name, int(name.startswith("n")), names.index(needs[name]) if name in needs else None)
            for name in names
        )
        log = tuple(names.index(name) for name in order)
        object.__setattr__(self, "messages", messages)
        object.__setattr__(self, "log", log)
        object.__setattr__(self, "earlier", tuple(_earlier(b, messages, log) for b in range(len(names))))

    @property
    def keys(self) -> int:
        """How many sharding keys there are."""
        return max(message.key for message in self.messages) + 1

    @property
    def from_outside(self) -> tuple[int, ...]:
        """The predecessors that never come by this log."""
        return tuple(b for b in range(len(self.messages)) if b not in self.log)

    def lacks(self, *rules: str) -> bool:
        """Say whether any of these rules was taken away."""
        return not self.removed.isdisjoint(rules)


def _earlier(b: int, messages: tuple[Message, ...], log: tuple[int, ...]) -> tuple[int, ...]:
    if b not in log:
        return ()
    ahead = dict.fromkeys(log[: log.index(b)])
    return tuple(j for j in ahead if messages[j].key == messages[b].key)
