"""MariaDB for tests: databases of a test's own on the server that all share, and the shop on one."""

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pymysql
from sqlalchemy import make_url, text

from seriatim.core.store import open_store
from support.rig import Rig, Witness
from support.services import service_url

LEDGER = (
    "CREATE TABLE ledger (id BIGINT PRIMARY KEY AUTO_INCREMENT, `key` VARCHAR(255), biz_key VARCHAR(255),"
    " type VARCHAR(64), note TEXT) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"
)
ORDERS = "CREATE TABLE orders (order_no VARCHAR(64) PRIMARY KEY, status VARCHAR(16), version BIGINT)"
ENTER = text("INSERT INTO ledger (`key`, biz_key, type, note) VALUES (:key, :biz_key, :type, :note)")


class Database:
    """A database of the test's own, latin1 by default: what our tables need they must say themselves."""

    def __init__(self, name: str, server_url: str | None = None) -> None:
        server = make_url(server_url or service_url("mariadb"))
        self.name = name
        self.url = server.set(database=name).render_as_string(hide_password=False)
        self._to = {"host": server.host, "port": server.port, "user": server.username, "password": server.password}

    def connect(self, **named: Any) -> Any:
        return pymysql.connect(**(self._to | named), charset="utf8mb4", autocommit=True)

    def sql(self, statement: str, *params: Any) -> Any:
        """Rows of a statement, on a connection of its own."""
        with closing(self.connect(database=self.name)) as connection, connection.cursor() as cursor:
            cursor.execute(statement, params)
            return cursor.fetchall()

    def make(self) -> None:
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {self.name} CHARACTER SET latin1")

    def drop(self) -> None:
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE db = %s", (self.name,))
            for (connection_id,) in cursor.fetchall():
                with suppress(pymysql.Error):
                    cursor.execute(f"KILL {connection_id}")
            cursor.execute(f"DROP DATABASE {self.name}")


@contextmanager
def made_database() -> Iterator[Database]:
    made = Database(f"seriatim_test_{os.getpid()}_{time.monotonic_ns()}")
    made.make()
    try:
        yield made
    finally:
        made.drop()


class MariadbRig(Rig):
    """The shop on MariaDB: the embedded broker, and everything else in the test's database."""

    def __init__(self, folder: Path, database: Database) -> None:
        self.folder, self.database = folder, database
        self.broker, self.store = f"embedded:{folder}/log.db", database.url
        self.witness = Witness()
        self._numbers = count(1)
        with closing(open_store(self.store)) as store:
            store.init()
        for statement in (LEDGER, ORDERS):
            database.sql(statement)

    def rows(self, query: str, *params: Any) -> list[tuple[Any, ...]]:
        return list(self.database.sql(_for_mariadb(query), *params))

    def write(self, statement: str, *params: Any) -> None:
        self.database.sql(_for_mariadb(statement), *params)


def _for_mariadb(statement: str) -> str:
    return statement.replace("?", "%s").replace("SELECT key,", "SELECT `key`,")
