"""Databases that a run makes for itself, and drops."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import create_engine, make_url, text


@contextmanager
def fresh_database(store_url: str) -> Iterator[None]:
    """The database that a MySQL or MariaDB URL names, made for the length of the block."""
    url = make_url(store_url)
    engine = create_engine(url.set(database=""), isolation_level="AUTOCOMMIT")
    name = engine.dialect.identifier_preparer.quote_identifier(url.database or "")
    try:
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        yield
        with engine.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name}"))
    finally:
        engine.dispose()
