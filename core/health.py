"""Health: what a worker's threads tell of their rounds, and what that means to whoever watches the process.

Two questions are asked from outside. *Live*: would another process do better? Only where a thread is dead, or hangs
in a round outside any handler. *Ready*: does it consume, or stand by to? Not before it has its share, not while it
stops, and not while the store or the broker is away: to restart it wouldn't bring them back.

A handler may take as long as it needs: a thread at work is never taken for one that hangs.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from seriatim.core.errors import BrokerError, StoreUnavailable

PATIENCE_S = 120.0  #: the longest that a round may wait outside any handler, for a socket or a lock that times out
PATIENCE_LEASES = 10  #: … or so many leases, if that is longer


class Condition(str, enum.Enum):
    """How a thread is, in a word."""

    STARTING = "starting"
    READY = "ready"
    STORE_AWAY = "store away"
    BROKER_AWAY = "broker away"
    PARTITION_AWAY = "partition away"
    STUCK = "stuck"
    DEAD = "dead"
    STOPPED = "stopped"


class Pulse:
    """What a thread tells of its rounds: only it writes here, anybody may look. Times are `time.monotonic`'s."""

    def __init__(self) -> None:
        self.since: float | None = None  #: when the round in hand began; None between rounds
        self.began = False  #: whether a round ever came to its end without trouble
        self.trouble: Condition | None = None  #: of the last round that met any, until one goes well

    @contextmanager
    def round(self) -> Iterator[None]:
        """The block is a round; its error passes through, and trouble of the store or the broker is remembered."""
        self.since = time.monotonic()
        try:
            yield
            self.began, self.trouble = True, None
        except StoreUnavailable:
            self.trouble = Condition.STORE_AWAY
            raise
        except BrokerError:
            self.trouble = Condition.BROKER_AWAY
            raise
        finally:
            self.since = None

    def condition(self, now: float, patience_s: float, at_work: float = 0.0) -> Condition:
        """How a thread is that runs. `at_work` is when it was last seen at work, for which no time is too long."""
        since = self.since
        if since is not None and now - max(since, at_work) > patience_s:
            return Condition.STUCK
        return self.trouble or (Condition.READY if self.began else Condition.STARTING)


@dataclass(frozen=True, slots=True)
class ThreadHealth:
    """How a thread is, and for how many seconds its round has gone on; 0 between rounds."""

    name: str
    condition: Condition
    round_s: float = 0.0


def look_at(
    name: str,
    thread: threading.Thread | None,
    pulse: Pulse,
    patience_s: float,
    *,
    at_work: float = 0.0,
    may_end: bool,
) -> ThreadHealth:
    """How a thread is; None stands for one that isn't made yet. `may_end`: it was told to, and met no error."""
    if thread is None or thread.ident is None:
        return ThreadHealth(name, Condition.STARTING)
    if not thread.is_alive():
        return ThreadHealth(name, Condition.STOPPED if may_end else Condition.DEAD)
    now, since = time.monotonic(), pulse.since
    return ThreadHealth(
        name, pulse.condition(now, patience_s, at_work), 0.0 if since is None else max(0.0, now - since)
    )


@dataclass(frozen=True, slots=True)
class Health:
    """How a worker is. `has_share`: it has had its share of every topic, which may be nothing: then it stands by."""

    keeper: ThreadHealth
    lanes: tuple[ThreadHealth, ...]
    has_share: bool
    stopping: bool

    @property
    def live(self) -> bool:
        """Whether it is worth keeping: every thread is there, and none hangs."""
        gone = (Condition.DEAD, Condition.STUCK)
        return not any(thread.condition in gone for thread in (self.keeper, *self.lanes))

    @property
    def ready(self) -> bool:
        """Whether it consumes, or stands by to."""
        threads = (self.keeper, *self.lanes)
        return not self.stopping and self.has_share and all(one.condition is Condition.READY for one in threads)


def patience_s(lease_s: float) -> float:
    """How long a round may take outside any handler."""
    return max(PATIENCE_S, PATIENCE_LEASES * lease_s)
