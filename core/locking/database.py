"""Locks in the store: one row for each name, changed by short transactions on connections of their own.

A name is taken by a conditional UPDATE of its row by primary key; the first time by an INSERT. Whoever waits only
reads, so waiting keeps nobody from writing. Rows are kept when they are given back: what is updated in place leaves no
gaps to lock, and the fence goes on rising. A purged row begins again with the clock's microseconds, above all that went
before.

Cost: one look-up and one transaction to take, one to give back. On SQLite each is a turn to write.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Executable, Select, and_, bindparam, delete, insert, or_, select, update

from seriatim.core.errors import Contention, DuplicateKey, StoreUnavailable
from seriatim.core.store.port import MICROSECOND, Session
from seriatim.core.store.schema import named_lock
from seriatim.core.store.sql import SqlStore

_CHUNK = 100  #: names in one look-up
_TRIES = 3  #: to make a row that others make at the same moment
_PURGED = 200  #: rows in one transaction
_T = TypeVar("_T")

_ROW = named_lock.c
_TOKENS = select(_ROW.name, _ROW.token).where(_ROW.name.in_(bindparam("names", expanding=True)))
_FENCES = select(_ROW.name, _ROW.fence).where(_ROW.name.in_(bindparam("names", expanding=True)))


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a look at a row saw."""

    token: str | None
    left: int  #: microseconds until it ends

    def can_be(self, token: str) -> bool:
        """Whether `token` could have it."""
        return self.token in (None, token) or self.left <= 0


class DatabaseKeeper:
    """Tokens in the table `named_lock` of `store`."""

    def __init__(self, store: SqlStore, ttl_s: float) -> None:
        self._store = store
        self._ttl = int(ttl_s * MICROSECOND)
        self._mutex = threading.Lock()
        self._idle: list[Session] = []
        self._closed = False
        now = store.dialect.now()
        mine = and_(_ROW.name == bindparam("of"), _ROW.token == bindparam("mine"))
        free = or_(_ROW.token.is_(None), _ROW.token == bindparam("mine"), _ROW.expires_at <= now)
        until = {"expires_at": now + self._ttl}
        self._seen: Select[Any] = _TOKENS.add_columns((_ROW.expires_at - now).label("left_us"))
        self._insert = insert(named_lock).values(name=bindparam("of"), token=bindparam("mine"), fence=now, **until)
        self._update = (
            update(named_lock)
            .where(_ROW.name == bindparam("of"), free)
            .values(token=bindparam("mine"), fence=_ROW.fence + 1, **until)
        )
        self._extend = update(named_lock).where(mine).values(**until)
        self._free = update(named_lock).where(mine).values(token=None, expires_at=now)

    # -- the four steps

    def take(self, names: Sequence[str], token: str) -> Mapping[str, int | None] | None:
        """Take the names in order until one is another's."""
        for _ in range(_TRIES):
            try:
                return self._use(partial(self._take, names, token))
            except DuplicateKey:  # another made the row since we looked: look again
                continue
            except Contention:  # another is at it this moment
                break
        return None

    def extend(self, names: Sequence[str], token: str) -> bool:
        """Give those that are ours a whole TTL again."""
        return self._use(partial(self._each, self._extend, names, token)) == len(names)

    def holds(self, names: Sequence[str], token: str, session: Session | None) -> bool:
        """Whether all are ours: until `session`'s transaction ends, or for a third of a TTL."""
        if session is not None:
            locking = session.locking(_TOKENS)
            return all(
                {row.name: row.token for row in session.run(locking, {"names": part})} == dict.fromkeys(part, token)
                for part in _chunks(names)
            )
        seen = self._use(partial(self._look, names))
        ours = [one for one in seen.values() if one.token == token]
        if len(ours) < len(names):
            return False
        return all(one.left >= self._ttl / 3 for one in ours) or self.extend(names, token)

    def free(self, names: Sequence[str], token: str) -> int:
        """Give back those that are ours; where none is, nothing is written."""
        seen = self._use(partial(self._look, names))
        ours = [name for name in names if name in seen and seen[name].token == token]
        return self._use(partial(self._each, self._free, ours, token)) if ours else 0

    # -- how

    def _take(self, names: Sequence[str], token: str, session: Session) -> Mapping[str, int | None] | None:
        seen = self._look(names, session)
        ready = _before_the_first(names, lambda name: name in seen and not seen[name].can_be(token))
        if len(ready) < len(names) and all(name in seen and self._is_kept(seen[name], token) for name in ready):
            return None  # nothing to gain, and nothing to keep alive
        fences: dict[str, int | None] = {}
        with session.transaction():
            taken = _before_the_first(ready, lambda name: not self._take_one(name, token, seen, session))
            for part in _chunks(taken):
                fences.update((row.name, row.fence) for row in session.run(_FENCES, {"names": part}))
        return fences if len(fences) == len(names) else None

    def _take_one(self, name: str, token: str, seen: Mapping[str, _Seen], session: Session) -> bool:
        statement = self._update if name in seen else self._insert
        return session.run(statement, {"of": name, "mine": token}).rowcount == 1

    def _is_kept(self, seen: _Seen, token: str) -> bool:
        """Whether it is ours for a good while yet."""
        return seen.token == token and seen.left > 2 * self._ttl / 3

    def _look(self, names: Sequence[str], session: Session) -> dict[str, _Seen]:
        rows = (row for part in _chunks(names) for row in session.run(self._seen, {"names": part}))
        return {row.name: _Seen(row.token, row.left_us) for row in rows}

    @staticmethod
    def _each(statement: Executable, names: Sequence[str], token: str, session: Session) -> int:
        with session.transaction():
            return sum(session.run(statement, {"of": name, "mine": token}).rowcount for name in names)

    # -- sessions

    def _use(self, action: Callable[[Session], _T]) -> _T:
        """Do it on an idle session. A connection may have been lost while it was idle: then once again."""
        with self._session() as session:
            try:
                return action(session)
            except StoreUnavailable:
                if self._store.dialect.single_writer:  # its trouble is no lost connection, and was waited for
                    raise
                return action(session)

    @contextlib.contextmanager
    def _session(self) -> Iterator[Session]:
        with self._mutex:
            session = self._idle.pop() if self._idle else self._store.session()
        try:
            yield session
        finally:
            with self._mutex:
                if not self._closed:
                    self._idle.append(session)
            if self._closed:
                session.close()

    def close(self) -> None:
        """Let go of every connection."""
        with self._mutex:
            idle, self._idle, self._closed = self._idle, [], True
        for session in idle:
            session.close()

    def describe(self) -> str:
        """The store's own words."""
        return f"database {self._store.describe()}"


def purge(store: SqlStore, older_s: float) -> int:
    """Delete rows of names that nobody has had for `older_s` seconds, at most 200; how many there were."""
    now = store.dialect.now()
    session = store.session()
    old = _ROW.expires_at < now - int(older_s * MICROSECOND)
    try:
        found = session.run(select(_ROW.name).where(old).limit(_PURGED)).scalars().all()
        one = delete(named_lock).where(_ROW.name == bindparam("of"), old)
        with session.transaction():
            return sum(session.run(one, {"of": name}).rowcount for name in sorted(found))
    finally:
        session.close()


def _before_the_first(names: Sequence[str], stops: Callable[[str], bool]) -> list[str]:
    """The names before the first that `stops`."""
    found: list[str] = []
    for name in names:
        if stops(name):
            break
        found.append(name)
    return found


def _chunks(names: Sequence[str]) -> Iterator[list[str]]:
    for begin in range(0, len(names), _CHUNK):
        yield list(names[begin : begin + _CHUNK])
