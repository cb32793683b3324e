"""The store on MySQL and MariaDB: what must be true of the server and of the tables before anything is consumed."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from sqlalchemy import Connection, Dialect, String, Table, false, insert, select, text, update
from sqlalchemy.exc import DBAPIError

from seriatim.core.errors import (
    ConfigurationError,
    Contention,
    DuplicateKey,
    SchemaMismatch,
    StoreUnavailable,
)
from seriatim.core.faults import Fault
from seriatim.core.store import schema
from seriatim.core.store.mysql import MysqlDialect
from seriatim.core.store.port import Scope
from seriatim.core.store.sql import SqlStore, mapped

OLDEST = {"mariadb": (10, 6), "mysql": (8, 0, 17)}  #: SKIP LOCKED, and collations that compare exactly
_TRIES = 5
_NO_RIGHTS = (1044, 1045, 1142, 1143, 1227, 1370)
_NO_DATABASE = 1049
_INIT_LOCK = "seriatim init"

_SERVER = text("SELECT VERSION(), @@log_bin, @@binlog_format")
_CLUSTER = text("SHOW GLOBAL STATUS LIKE 'wsrep_cluster_size'")
_MANY_PRIMARIES = text(
    "SELECT COUNT(*) FROM performance_schema.replication_group_members"
    " WHERE member_role = 'PRIMARY' AND member_state = 'ONLINE'"
)
_COLUMNS = text(
    "SELECT table_name, column_name, character_set_name, collation_name FROM information_schema.columns"
    " WHERE table_schema = DATABASE()"
)
_ENGINES = text("SELECT table_name, engine FROM information_schema.tables WHERE table_schema = DATABASE()")


class MysqlStore(SqlStore):
    """A store on MySQL or MariaDB."""

    def __init__(self, dialect: MysqlDialect) -> None:
        super().__init__(dialect)
        self._mysql = dialect

    def init(self) -> bool:
        """Make the tables where they are missing; one process at a time."""
        with self._named(), closing(self._mysql.engine_for("mysql+pymysql").connect()) as connection:
            family = self._check_server(connection)
        engine = self._mysql.engine_for(f"{family}+pymysql")
        with self._named(), closing(engine.connect()) as connection:
            connection.execute(text("SELECT GET_LOCK(:name, 60)"), {"name": _INIT_LOCK})  # let go of by the end
            made = not self._installed(connection)
            if made:
                schema.metadata.create_all(connection)
                version = {"version": schema.VERSION, "incarnation": secrets.token_hex(16)}
                connection.execute(insert(schema.schema_version).values(**version, installed_at=self._dialect.now()))
                connection.commit()
        self.check()
        return made

    def _installed(self, connection: Connection) -> bool:
        there = connection.execute(_ENGINES).all()
        if schema.schema_version.name not in {name for name, _ in there}:
            return False
        return connection.execute(select(schema.schema_version.c.version)).first() is not None

    def check(self) -> None:
        """Raise unless server, rights and tables are as they must be.

        Raises:
            ConfigurationError: the server, or what the user may do on it, won't do.
            SchemaMismatch: the tables are missing, older or newer, or compare keys inexactly.
        """
        with self._named(), self._engine.connect() as connection:
            family = self._check_server(connection)
        super().check()
        with self._named(), self._engine.connect() as connection:
            self._check_tables(connection, family)
            self._check_rights(connection)

    def declare(self, scope: Scope, partitions: Sequence[str]) -> None:
        """Record a topic's partitions; two processes that begin at once make the same rows, and one tries again."""
        for last in (*[False] * _TRIES, True):
            try:
                return super().declare(scope, partitions)
            except (DuplicateKey, Contention):
                if last:
                    raise
        return None

    # -- the server

    def _check_server(self, connection: Connection) -> str:
        """The family of the server: mariadb or mysql."""
        version, logged, log_format = connection.execute(_SERVER).one()
        family = "mariadb" if "mariadb" in version.lower() else "mysql"
        found = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
        if found < OLDEST[family]:
            oldest = ".".join(map(str, OLDEST[family]))
            raise self._refused(f"the server is {family} {version}; it must be {oldest} or newer")
        if logged and log_format == "STATEMENT":
            raise self._refused(
                "the server's binlog_format is STATEMENT, which refuses writes at READ COMMITTED; set it to ROW"
            )
        if not self._mysql.one_writer and self._writers(connection, family) > 1:
            raise self._refused(
                "the server is one of several that accept writes, and a row lock doesn't leave its node: let every "
                "process write to one node, and say so with one_writer=true in the store URL"
            )
        return family

    @staticmethod
    def _writers(connection: Connection, family: str) -> int:
        if family == "mariadb":
            row = connection.execute(_CLUSTER).first()
            return int(row[1]) if row is not None else 1
        try:
            return int(connection.execute(_MANY_PRIMARIES).scalar_one())
        except DBAPIError:  # no right to look: a plain server
            return 1

    # -- the tables

    def _check_tables(self, connection: Connection, family: str) -> None:
        there = {(row[0], row[1]): (row[2], row[3]) for row in connection.execute(_COLUMNS)}
        engines = {row[0]: row[1] for row in connection.execute(_ENGINES)}
        dialect = self._mysql.engine_for(f"{family}+pymysql").dialect
        wrong: list[str] = []
        for table in schema.metadata.sorted_tables:
            if engines.get(table.name) != "InnoDB":
                wrong.append(f"table {table.name} is of engine {engines.get(table.name)}, and must be InnoDB")
            wrong += _wrong_columns(table, there, dialect)
        if wrong:
            raise SchemaMismatch(
                f"store {self.describe()}: {'; '.join(wrong[:5])}; compare with `seriatim schema --dialect {family}` "
                "and alter the tables, or let `seriatim init` make them in an empty database"
            )

    @staticmethod
    def _check_rights(connection: Connection) -> None:
        """Statements that change nothing, but need every right: refused ones raise."""
        for table in schema.metadata.sorted_tables:
            column = next(iter(table.c))
            connection.execute(update(table).where(false()).values({column.name: column}))
            connection.execute(table.delete().where(false()))
            connection.execute(insert(table).from_select(list(table.c), select(table).where(false())))
        connection.rollback()

    # -- errors

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Errors of the database as ours, with what to do about them."""
        try:
            yield
        except DBAPIError as error:
            code = error.orig.args[0] if error.orig is not None and error.orig.args else None
            if code in _NO_RIGHTS:
                raise self._refused(
                    f"{error.orig}; check user and password, and GRANT SELECT, INSERT, UPDATE, DELETE on the database "
                    "(and CREATE, INDEX for `seriatim init`, or give `seriatim schema` to a DBA)"
                ) from error
            if code == _NO_DATABASE:
                raise self._refused(f"{error.orig}; CREATE DATABASE first, or correct the store URL") from error
            if self._dialect.classify(error) is Fault.STORE:
                raise StoreUnavailable(f"store {self.describe()}: {error.orig}") from error
            raise mapped(error, self._dialect) from error

    def _refused(self, why: str) -> ConfigurationError:
        return ConfigurationError(f"store {self.describe()}: {why}")


def _wrong_columns(table: Table, there: dict[tuple[Any, Any], tuple[Any, Any]], dialect: Dialect) -> Iterator[str]:
    for column in table.columns:
        found = there.get((table.name, column.name))
        if found is None:
            yield f"column {table.name}.{column.name} is missing"
            continue
        if not isinstance(column.type, String):
            continue
        wanted = getattr(column.type.dialect_impl(dialect), "collation", None)
        if wanted is not None and found[1] != wanted:
            yield f"column {table.name}.{column.name} compares by {found[1]}, and must by {wanted}"
        elif found[0] != "utf8mb4":
            yield f"column {table.name}.{column.name} is of character set {found[0]}, and must be of utf8mb4"
