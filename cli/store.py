"""`seriatim init` and `seriatim schema`: the store's tables."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer
from sqlalchemy import Dialect
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.mysql.mariadb import MariaDBDialect
from sqlalchemy.dialects.mysql.pymysql import MySQLDialect_pymysql
from sqlalchemy.schema import CreateIndex, CreateTable

from seriatim.cli.console import guarded, out
from seriatim.cli.loading import load_app
from seriatim.core.errors import ConfigurationError
from seriatim.core.settings import load_settings
from seriatim.core.store import open_store
from seriatim.core.store.schema import metadata

_DIALECTS: dict[str, type[Dialect]] = {
    "sqlite": sqlite.dialect,
    "mysql": MySQLDialect_pymysql,
    "mariadb": MariaDBDialect,
}


@guarded
def init(
    app: Annotated[
        str | None, typer.Argument(metavar="[MODULE:APP]", help="An app whose topics are declared at the broker, too.")
    ] = None,
    store: Annotated[str | None, typer.Option(help="Store URL.")] = None,
    broker: Annotated[str | None, typer.Option(help="Broker URL.")] = None,
) -> None:
    """Make Seriatim's tables in the store, and declare an app's topics; harmless where they are already there."""
    settings = load_settings(store=store, broker=broker)
    loaded = None if app is None else load_app(app)
    with closing(open_store(settings.store)) as opened:
        made = opened.init()
        out.print(f"{opened.describe()}: {'tables made' if made else 'the tables are there already'}", highlight=False)
    if loaded is not None:
        loaded.configure(settings)
        loaded.declare()
        topics = ", ".join(f"{topic.name} ({len(topic.partitions)})" for topic in loaded.topics.values())
        out.print(f"group {loaded.group}: declared {topics}", highlight=False)


@guarded
def schema(
    dialect: Annotated[str, typer.Option(help="sqlite, mysql or mariadb.")] = "mysql",
) -> None:
    """Print the tables as SQL, for a DBA."""
    if dialect not in _DIALECTS:
        raise ConfigurationError(f"--dialect {dialect!r}: there are {', '.join(_DIALECTS)}")
    speaks = _DIALECTS[dialect]()
    for table in metadata.sorted_tables:
        typer.echo(f"{str(CreateTable(table).compile(dialect=speaks)).strip()};\n")
        for index in sorted(table.indexes, key=lambda one: str(one.name)):
            typer.echo(f"{str(CreateIndex(index).compile(dialect=speaks)).strip()};\n")
