"""The store on SQLAlchemy Core: engines, sessions and transactions; the statements are beside it, by subject."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import (
    Connection,
    CursorResult,
    Engine,
    Executable,
    RootTransaction,
    Select,
    Update,
    func,
    insert,
    inspect,
    select,
)
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from seriatim.core.errors import (
    CommitUnknown,
    ConfigurationError,
    Contention,
    DuplicateKey,
    SchemaMismatch,
    StoreError,
    StoreUnavailable,
)
from seriatim.core.faults import Fault
from seriatim.core.store import schema
from seriatim.core.store.dialect import Dialect
from seriatim.core.store.leases import SqlLeases
from seriatim.core.store.parking import SqlParking
from seriatim.core.store.port import Scope, Writes
from seriatim.core.store.records import SqlRecords
from seriatim.core.transaction import install_guard


class SqlStore:
    """A database that SQLAlchemy reaches."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._engine: Engine = dialect.create_engine()
        install_guard(self._engine)

    def session(self) -> SqlSession:
        """A session of its own."""
        return SqlSession(self._engine, self._dialect)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection for reading, on one snapshot."""
        with self._mapped(), self._engine.connect() as connection:
            connection.info["seriatim_reader"] = True
            try:
                yield connection
            finally:
                connection.rollback()
                connection.info.pop("seriatim_reader", None)

    def init(self) -> bool:
        """Make the tables."""
        if self._dialect.exists() and schema.schema_version.name in self._table_names():
            self.check()
            return False
        session = self.session()
        try:
            with session.transaction():
                schema.metadata.create_all(session.connection)
                if session.run(select(schema.schema_version.c.version)).first() is None:
                    session.run(
                        insert(schema.schema_version).values(
                            version=schema.VERSION, incarnation=secrets.token_hex(16), installed_at=self._dialect.now()
                        )
                    )
        finally:
            session.close()
        return True

    def check(self) -> None:
        """Raise `SchemaMismatch` unless the tables are this program's."""
        names = self._table_names() if self._dialect.exists() else set()
        if schema.schema_version.name not in names:
            raise SchemaMismatch(
                f"store {self._dialect.describe()}: it has no Seriatim tables; run `seriatim init` first"
            )
        with self.read() as connection:
            version = connection.execute(select(func.max(schema.schema_version.c.version))).scalar()
        if version != schema.VERSION:
            raise SchemaMismatch(
                f"store {self._dialect.describe()}: its tables are of version {version}, this program's of "
                f"{schema.VERSION}; install the matching release, or migrate the store"
            )
        missing = sorted(set(schema.metadata.tables) - names)
        if missing:
            raise SchemaMismatch(f"store {self._dialect.describe()}: the tables {', '.join(missing)} are missing")

    def _table_names(self) -> set[str]:
        with self.read() as connection:
            return set(inspect(connection).get_table_names())

    def declare(self, scope: Scope, partitions: Sequence[str]) -> None:
        """Record a topic's partitions and make the group's rows."""
        session = self.session()
        try:
            with session.transaction():
                known = self._known(session, scope.topic)
                if known and known != tuple(partitions):
                    raise ConfigurationError(
                        f"topic {scope.topic!r} is declared with {_listed(partitions)}, but the store knows "
                        f"{_listed(known)}: keys would move between partitions and overtake themselves; declare the "
                        "old number, or grow the topic in the guided way"
                    )
                if not known:
                    session.run(
                        insert(schema.topic_partition),
                        [
                            {"topic": scope.topic, "partition_id": partition, "ordinal": ordinal}
                            for ordinal, partition in enumerate(partitions)
                        ],
                    )
                self._make_owner_rows(session, scope, partitions)
        finally:
            session.close()

    @staticmethod
    def _known(session: SqlSession, topic: str) -> tuple[str, ...]:
        table = schema.topic_partition
        query = select(table.c.partition_id).where(table.c.topic == topic).order_by(table.c.ordinal)
        return tuple(session.run(query).scalars())

    @staticmethod
    def _make_owner_rows(session: SqlSession, scope: Scope, partitions: Sequence[str]) -> None:
        table = schema.partition_owner
        query = select(table.c.partition_id).where(table.c.consumer_group == scope.group, table.c.topic == scope.topic)
        there = set(session.run(query).scalars())
        new = [
            {"consumer_group": scope.group, "topic": scope.topic, "partition_id": partition}
            for partition in partitions
            if partition not in there
        ]
        if new:
            session.run(insert(table), new)

    def partitions(self, topic: str) -> tuple[str, ...]:
        """The declared partitions."""
        table = schema.topic_partition
        query = select(table.c.partition_id).where(table.c.topic == topic).order_by(table.c.ordinal)
        with self.read() as connection:
            return tuple(connection.execute(query).scalars())

    def classify(self, error: BaseException) -> Fault:
        """Whose fault a database error is."""
        return self._dialect.classify(error)

    def describe(self) -> str:
        """The store in words fit for a log."""
        return self._dialect.describe()

    def writer(self) -> int | None:
        """The process that holds the turn to write, where there is one and it can be told."""
        return self._dialect.writer()

    @property
    def dialect(self) -> Dialect:
        """What kind of database it is."""
        return self._dialect

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            raise mapped(error, self._dialect) from error

    def close(self) -> None:
        """Let go of every pooled connection."""
        self._engine.dispose()


class SqlSession:
    """One connection, opened at its first use and again after it was lost."""

    def __init__(self, engine: Engine, dialect: Dialect) -> None:
        self._engine = engine
        self._dialect = dialect
        self._exclusive = dialect.exclusive()
        self._connection: Connection | None = None
        self._writing = False
        self.leases = SqlLeases(self.run, self.run_each, self.transaction, dialect)
        self.records = SqlRecords(self.run, self.run_each)
        self.parking = SqlParking(self.run)
        self._now = select(dialect.now())

    @property
    def connection(self) -> Connection:
        """The connection; opened when there is none.

        Raises:
            StoreUnavailable: the database can't be reached.
        """
        if self._connection is not None and self._connection.invalidated and not self._writing:
            self._forget()  # it was lost; the toolkit would open another behind our back
        if self._connection is None:
            try:
                self._connection = self._engine.connect()
            except SQLAlchemyError as error:
                raise mapped(error, self._dialect) from error
        return self._connection

    def run(self, statement: Executable, params: Any = None) -> CursorResult[Any]:
        """Execute one statement of our own; outside a transaction it is a read that leaves none open."""
        if not self._writing:
            return self._read(statement, params)
        return self._write(lambda connection: connection.execute(statement, params))

    def run_each(self, statement: Update, rows: Sequence[Mapping[str, Any]]) -> int:
        """Execute an UPDATE of our own for each of these, which lead to different rows; how many rows it found."""
        folded = self._dialect.fold(statement, rows)
        if folded is None:
            return int(self.run(statement, list(rows)).rowcount)
        return int(self._write(lambda connection: connection.exec_driver_sql(*folded)).rowcount)

    def _write(self, execute: Callable[[Connection], CursorResult[Any]]) -> CursorResult[Any]:
        connection = self.connection
        if not connection.in_transaction():
            raise StoreError("the transaction was ended by somebody else")
        try:
            return execute(connection)
        except SQLAlchemyError as error:
            raise mapped(error, self._dialect) from error

    def _read(self, statement: Executable, params: Any) -> CursorResult[Any]:
        """A read of its own, which leaves no transaction open whatever happens."""
        connection = self.connection
        connection.info["seriatim_reader"] = True
        try:
            frozen = connection.execute(statement, params).freeze()
        except SQLAlchemyError as error:
            self._forget()
            raise mapped(error, self._dialect) from error
        connection.rollback()
        connection.info.pop("seriatim_reader", None)
        return frozen()  # type: ignore[return-value]  # what a read needs of a cursor, it has

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """One write transaction."""
        with self._exclusive.hold():
            connection = self.connection
            try:
                begun = connection.begin()
            except SQLAlchemyError as error:
                self._forget()
                raise mapped(error, self._dialect) from error
            self._writing = True
            try:
                yield
            except BaseException:
                self._roll_back(begun)
                raise
            finally:
                self._writing = False
            if not begun.is_active:
                self._forget()
                raise StoreError("the transaction was ended by somebody else")
            try:
                begun.commit()
            except SQLAlchemyError as error:
                self._forget()
                raise CommitUnknown(f"the answer to a COMMIT was lost: {error}") from error

    def _roll_back(self, begun: RootTransaction) -> None:
        if not begun.is_active:  # somebody else ended it, or thinks so: only a new connection is sure
            self._forget()
            return
        try:
            begun.rollback()
        except SQLAlchemyError:  # the connection is gone, and the server rolls back by itself
            self._forget()
        if self._connection is not None and self._connection.invalidated:
            self._forget()

    def _forget(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            if not connection.invalidated:
                connection.invalidate()
            connection.close()
        except SQLAlchemyError:  # it was lost already; what matters is that it isn't used again
            connection.detach()

    def locking(self, query: Select[Any]) -> Select[Any]:
        """`query` as a locking read.

        Raises:
            StoreUnavailable: it needs to know the table's indexes, and the database can't be asked.
        """
        try:
            return self._dialect.lock(query, wait=True)
        except SQLAlchemyError as error:
            raise mapped(error, self._dialect) from error

    def classify(self, error: BaseException) -> Fault:
        """Whose fault a database error is."""
        return self._dialect.classify(error)

    def now(self) -> int:
        """The database's time."""
        return int(self.run(self._now).scalar_one())

    def savepoint(self, name: str) -> None:
        """Set a savepoint."""
        self._driver(f"SAVEPOINT {name}")

    def rollback_to(self, name: str) -> None:
        """Undo what came after a savepoint."""
        self._driver(f"ROLLBACK TO SAVEPOINT {name}")

    def release(self, name: str) -> None:
        """Let a savepoint go."""
        self._driver(f"RELEASE SAVEPOINT {name}")

    def _driver(self, statement: str) -> None:
        try:
            self.connection.exec_driver_sql(statement)
        except SQLAlchemyError as error:
            raise mapped(error, self._dialect) from error

    def write(self, scope: Scope, writes: Writes, now: int) -> None:
        """Carry out what a transaction leaves behind, in the lock order: parked rows, then records."""
        self._count_parked(scope, writes)
        self.parking.remove(writes.unparks)
        self.parking.move(writes.moves)
        self.parking.insert(scope, writes.parks, now)
        self.parking.log(scope, writes.failures, now)
        self.parking.write_keys(scope, writes.keys, now)
        self.records.unclaim(scope, sorted(writes.unclaims))
        self.records.finish(scope, list(writes.finishes.values()), now)
        for partition, count in sorted(writes.duplicates.items()):
            self.leases.count_duplicates(scope, partition, count)
        for partition, position in writes.positions.items():
            self.leases.set_position(scope, partition, position)

    def _count_parked(self, scope: Scope, writes: Writes) -> None:
        """Keep the partitions' counts of what is parked."""
        changes: dict[str, list[int]] = {}
        for partition, (count, size) in self.parking.sizes(writes.unparks).items():
            changes[partition] = [-count, -size]
        for message in writes.parks:
            change = changes.setdefault(message.partition, [0, 0])
            change[0] += 1
            change[1] += len(message.body)
        for partition, (count, size) in sorted(changes.items()):
            self.leases.count_parked(scope, partition, count, size)

    def close(self) -> None:
        """Let go of the connection and of the turn."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self._exclusive.close()


def mapped(error: SQLAlchemyError, dialect: Dialect) -> StoreError:
    """The error of ours that says whose fault a driver's error is."""
    text = str(getattr(error, "orig", None) or error)
    fault = dialect.classify(error)
    if fault is Fault.STORE:
        return StoreUnavailable(f"store {dialect.describe()}: {text}")
    if isinstance(error, IntegrityError):
        return DuplicateKey(f"store {dialect.describe()}: {text}")
    if fault is Fault.CONTENTION:
        return Contention(f"store {dialect.describe()}: {text}")
    return StoreError(f"store {dialect.describe()}: {text}")


def _listed(partitions: Sequence[str]) -> str:
    shown = partitions[:4]
    more = ", …" if len(partitions) > len(shown) else ""
    return f"{len(partitions)} partitions ({', '.join(shown)}{more})"
