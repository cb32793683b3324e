"""The tables as SQL: exact collations, index bytes within MySQL 8's limit, names quoted, on each kind of server."""

import re

import pytest
from sqlalchemy import Boolean, Integer, LargeBinary, SmallInteger, String, Text, create_mock_engine
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.mysql.mariadb import MariaDBDialect
from sqlalchemy.dialects.mysql.pymysql import MySQLDialect_pymysql
from sqlalchemy.schema import CreateTable
from typer.testing import CliRunner

from seriatim.cli.main import app
from seriatim.core.store.schema import metadata

MYSQL_LIMIT = 3072  #: bytes of an index key in InnoDB, as MySQL 8 counts; MariaDB cuts in silence or accepts more
DIALECTS = {"mysql": MySQLDialect_pymysql(), "mariadb": MariaDBDialect(), "sqlite": sqlite.dialect()}
COLLATIONS = {"mysql": "utf8mb4_0900_bin", "mariadb": "utf8mb4_nopad_bin"}


def ddl_of(table, family):
    return str(CreateTable(table).compile(dialect=DIALECTS[family]))


def every_index():
    """(name, columns) of every primary key, unique constraint and index."""
    for table in metadata.sorted_tables:
        yield f"{table.name} primary key", list(table.primary_key.columns)
        for index in sorted(table.indexes, key=lambda one: str(one.name)):
            yield index.name, list(index.columns)
        for constraint in sorted(table.constraints, key=lambda one: str(one.name)):
            if getattr(constraint, "name", None) and str(constraint.name).startswith("uq_"):
                yield constraint.name, list(constraint.columns)


def bytes_of(column):
    """The most bytes of a column in an index key: four a character, two for the length, one where it may be NULL."""
    nullable = 1 if column.nullable else 0
    kind = column.type
    if isinstance(kind, String) and not isinstance(kind, Text):
        return 4 * kind.length + 2 + nullable
    if isinstance(kind, LargeBinary):
        return kind.length + 2 + nullable
    if isinstance(kind, (SmallInteger, Boolean)):
        return 2 + nullable
    return 8 + nullable


INDEXES = dict(every_index())


@pytest.mark.parametrize(("name", "columns"), list(INDEXES.items()), ids=list(INDEXES))
def test_an_index_fits_the_limit_of_mysql(name, columns):
    # field case FC-K3: MariaDB accepts what MySQL refuses, so the bytes are computed from the tables themselves;
    # a secondary index of InnoDB ends with the primary key, which doesn't count
    assert not any(isinstance(column.type, Text) for column in columns), "text without a length can't be indexed"
    assert sum(bytes_of(column) for column in columns) <= MYSQL_LIMIT


@pytest.mark.parametrize("family", ["mysql", "mariadb"])
@pytest.mark.parametrize("table", metadata.sorted_tables, ids=lambda table: table.name)
def test_text_of_a_length_compares_exactly_and_all_text_is_utf8mb4(table, family):
    # field case FC-K1
    text = ddl_of(table, family)
    for column in table.columns:
        [line] = re.findall(rf"^\s+`?{column.name}`? (.*?),?\s*$", text, re.MULTILINE)
        if isinstance(column.type, Text):
            assert "CHARACTER SET utf8mb4" in line
        elif isinstance(column.type, String):
            assert re.match(rf"VARCHAR\(\d+\) CHARACTER SET utf8mb4 COLLATE {COLLATIONS[family]}\b", line)


@pytest.mark.parametrize("family", ["mysql", "mariadb"])
def test_bodies_are_bytes_without_a_small_limit_and_rows_count_in_64_bits(family):
    text = ddl_of(metadata.tables["parked_message"], family)
    assert re.search(r"\bbody`? LONGBLOB NOT NULL", text)
    assert re.search(r"\bid BIGINT NOT NULL AUTO_INCREMENT", text)
    assert re.search(r"\bdigest BINARY\(32\) NOT NULL", text)


def test_times_are_whole_microseconds_everywhere():
    # field case FC-T1: no column of a time type, which MySQL rounds and MariaDB cuts
    for table in metadata.sorted_tables:
        for column in table.columns:
            if re.search(r"(_at|_time|_until|_through|^since|^at)$", column.name):
                assert isinstance(column.type, Integer), f"{table.name}.{column.name}"
                assert "BIGINT" in str(column.type.compile(dialect=DIALECTS["mysql"]))


@pytest.mark.parametrize("family", ["mysql", "mariadb"])
def test_reserved_names_are_quoted(family):
    text = ddl_of(metadata.tables["operator_action"], family)
    assert "`before`" in text


@pytest.mark.parametrize("family", DIALECTS)
def test_the_printed_schema_is_every_table_with_its_indexes(family):
    printed = CliRunner().invoke(app, ["schema", "--dialect", family])
    assert printed.exit_code == 0, printed.output
    for table in metadata.sorted_tables:
        assert f"CREATE TABLE {table.name} (" in printed.output
        for index in sorted(table.indexes, key=lambda one: str(one.name)):
            assert f"INDEX {index.name} ON {table.name}" in printed.output
    assert printed.output.count(";") == len(metadata.tables) + sum(
        len(table.indexes) for table in metadata.tables.values()
    )


def test_what_is_printed_is_what_is_made():
    made = []
    engine = create_mock_engine("mariadb+pymysql://", lambda statement, *_: made.append(statement))
    metadata.create_all(engine, checkfirst=False)
    printed = CliRunner().invoke(app, ["schema", "--dialect", "mariadb"]).output
    for statement in made:
        assert str(statement.compile(dialect=DIALECTS["mariadb"])).strip() in printed
