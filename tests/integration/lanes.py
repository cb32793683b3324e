"""Real lanes on a real store, over a log in memory, to be killed between any two statements."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from seriatim.compensation.direct import Direct
from seriatim.core.broker import Batch, Capabilities, Notice, NoticeKind
from seriatim.core.clock import StoreClock
from seriatim.core.holding import Holding
from seriatim.core.message import Delivery, Position
from seriatim.core.passing import Limits
from seriatim.core.sizing import BatchSize
from seriatim.core.store import SqlStore
from seriatim.core.store.port import Scope
from seriatim.core.topic import Topic
from seriatim.core.topic_lane import TopicLane
from seriatim.core.transactor import Transactor

TTL = 10_000_000  #: the lease, in microseconds


class Log:
    """A broker in memory. With positions it is a log; without, it remembers what was acknowledged, as a queue does."""

    def __init__(
        self, delivery: Callable[[str, int], Delivery], length: Callable[[str], int], *, positions: bool
    ) -> None:
        self.delivery = delivery
        self.length = length
        self.positions = positions
        self.acknowledged: dict[str, int] = {}


class LogConsumer:
    """A consumer of such a broker: `seriatim.core.broker.Consumer` in its plainest form."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._next: dict[str, int] = {}
        self._out: dict[str, int] = {}
        self._told: set[str] = set()

    def start(self, partition: str, position: Position | None) -> None:
        if self._log.positions:
            self._next[partition] = int(position.offset) + 1 if position else 0
        else:
            self._next[partition] = self._log.acknowledged.get(partition, 0)
        self._told.discard(partition)

    def poll(self, timeout_s: float, limit: int) -> Batch | Notice | None:
        del timeout_s
        for partition in sorted(self._next.keys() - self._out.keys()):
            start = self._next[partition]
            end = min(start + limit, self._log.length(partition))
            if start < end:
                self._told.discard(partition)
                self._out[partition] = start
                return Batch(partition, tuple(self._log.delivery(partition, index) for index in range(start, end)))
            if partition not in self._told:
                self._told.add(partition)
                return Notice(partition, NoticeKind.READ_THROUGH)
        return None

    def settle(self, batch: Batch, upto: int) -> None:
        start = self._out.pop(batch.partition, None)
        if start is None:
            return
        self._next[batch.partition] = start + upto
        if not self._log.positions:
            before = self._log.acknowledged.get(batch.partition, 0)
            self._log.acknowledged[batch.partition] = max(before, start + upto)

    def stop(self, partition: str) -> None:
        self._next.pop(partition, None)
        self._out.pop(partition, None)

    def wake(self) -> None:
        pass

    def close(self) -> None:
        self._next.clear()


class Died(BaseException):
    """The process is killed here."""


EXECUTE = ("do_execute", "do_executemany", "do_execute_no_params")  #: how a dialect of the toolkit's executes


class Faults:
    """What goes wrong with a store's statements, and when. The store itself is one on SQLite here."""

    statements: tuple[str, ...] = ("die", "die", "fail")  #: what may happen at any statement
    commits: tuple[str, ...] = ("died", "done and died", "unknown", "unknown", "done and unknown")

    def __init__(self, store: SqlStore) -> None:
        self.session = store.session()  #: what the process works with
        self.dead = False
        self.after = -1  #: statements until it happens
        self.what = ""
        self.at_commit = ""
        self.interruption: Callable[[], None] | None = None
        dialect = store._engine.dialect  # noqa: SLF001 - a process is killed from outside
        for name in EXECUTE:
            setattr(dialect, name, self._before(getattr(dialect, name)))
        dialect.do_commit = self._commit(dialect.do_commit)  # type: ignore[method-assign]  # the fault that is planted

    # -- what differs from database to database

    def in_its_turn(self) -> bool:
        """Whether somebody else who acts now would wait for this process."""
        return self.session._exclusive._lock.held  # type: ignore[attr-defined]  # noqa: SLF001 - seen from inside: no public way

    def failure(self, what: str) -> Exception:
        """What the driver raises, once it has happened."""
        del what
        return sqlite3.OperationalError("disk I/O error")

    def vanish(self) -> None:
        """What the system does at the moment when the process is killed."""

    def over(self) -> None:
        """Nothing goes wrong any more, and what went wrong has come to its end."""
        self.disarm()

    # -- when

    def arm(self, what: str, after: int) -> None:
        """`what` is to happen at a statement, or is one of `commits` and happens at one."""
        if what in self.commits:
            self.at_commit, self.after = what, after
        else:
            self.what, self.after = what, after

    def interrupt(self, action: Callable[[], None], after: int) -> None:
        """Somebody else acts before a statement, the first after so many at which this process has no turn to write."""
        self.interruption, self.after = action, after

    def disarm(self) -> None:
        self.what = self.at_commit = ""
        self.interruption = None
        self.after = -1

    def _before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def execute(*arguments: Any, **options: Any) -> Any:
            if self.dead:
                raise Died
            if self.what and self._is_now():
                self._happen(self.what)
            if self.interruption is not None and not self.in_its_turn() and self._is_now():
                action = self.interruption
                self.disarm()
                action()
            return call(*arguments, **options)

        return execute

    def _is_now(self) -> bool:
        self.after -= 1
        return self.after < 0

    def _happen(self, what: str) -> None:
        self.disarm()
        if what == "die":
            self.dead = True
            self.vanish()
            raise Died
        raise self.failure(what)

    def _commit(self, call: Callable[[Any], None]) -> Callable[[Any], None]:
        def commit(connection: Any) -> None:
            if self.dead:
                raise Died
            what = self.at_commit if self.at_commit and self._is_now() else ""
            if what in ("", "done and died", "done and unknown"):
                call(connection)
            if what:
                self._happen("die" if what in ("done and died", "died") else what)

        return commit


class Quiet:
    """An observer that only counts."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def committed(self, scope: Scope, verdicts: Sequence[Any], duration_s: float) -> None:
        pass

    def event(self, level: int, name: str, **fields: Any) -> None:
        self.events.append(name)


class Process:
    """A process with one lane and a keeper that does as it is told."""

    def __init__(self, store: SqlStore, faults: Faults, scope: Scope, topic: Topic, log: Log, *, size: int) -> None:
        self.scope = scope
        self.store = store
        self.faults = faults
        self.session = faults.session
        self.keeper = store.session()
        self.observer = Quiet()
        transactor = Transactor(
            scope=scope,
            topic=topic,
            session=self.session,
            limits=Limits(ttl=TTL, batch_s=60.0, max_response=65536),
            size=BatchSize(size, 60.0),
            observer=self.observer,
        )
        self.lane = TopicLane(
            transactor=transactor,
            consumer=LogConsumer(log),
            capabilities=Capabilities(positions=log.positions, partial_refusal=False),
            gone=lambda *_: None,
            clock=StoreClock(self.session.now, max_age_s=0.0),
        )

    def epoch(self, partition: str) -> int:
        """Under which claim it works on a partition."""
        return self.lane.holdings[partition].epoch

    def claim_what_is_free(self) -> int:
        """Claim every partition that nobody holds; how many were got."""
        got = 0
        for row in self.keeper.leases.owners(self.scope):
            if row.partition not in self.lane.holdings:
                claimed = self.keeper.leases.claim(self.scope, row.partition, "member", TTL)
                if claimed is not None:
                    self.lane.take(Holding.of(claimed))
                    got += 1
        return got

    def renew(self) -> None:
        holdings = list(self.lane.holdings.values())
        lost = self.keeper.leases.renew(self.scope, [(one.partition, one.owner, one.epoch) for one in holdings], TTL)
        for holding in holdings:
            holding.lost |= holding.partition in lost

    def work(self, *, read_stamps: bool) -> bool:
        """One round; reading the change stamps first, or finding out at the fence."""
        self.lane._stamps_read = float("-inf" if read_stamps else "inf")  # noqa: SLF001 - seen from inside: no public way
        return self.lane.work(0.0)

    def bury(self) -> None:
        """What the system does for a process that is gone: its connections end, its locks go."""
        self.faults.over()
        self.faults.dead = False
        for session in (self.session, self.keeper):
            with suppress(Exception):
                session.close()
        self.store.close()


class Daemon:
    """A process that runs what is due, and owns nothing."""

    def __init__(self, store: SqlStore, faults: Faults, scope: Scope, topic: Topic) -> None:
        self.scope = scope
        self.store = store
        self.faults = faults
        self.session = faults.session
        self.runner = Direct(self.session, scope.group, [topic], Quiet())

    def epoch(self, partition: str) -> int:
        """The claim of whoever owns the partition now."""
        return next(row.epoch for row in self.session.leases.owners(self.scope) if row.partition == partition)

    def bury(self) -> None:
        """What the system does for a process that is gone."""
        self.faults.over()
        self.faults.dead = False
        with suppress(Exception):
            self.session.close()
        self.store.close()
