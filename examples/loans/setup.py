"""Make the loans example's tables: ``python -m examples.loans.setup --store sqlite:///loans.db``."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import create_engine, make_url, text

from examples.loans.tables import metadata


def make_tables(store_url: str) -> None:
    """Make the business tables where they are missing."""
    engine = create_engine(store_url)
    try:
        metadata.create_all(engine)
    finally:
        engine.dispose()


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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", default="sqlite:///seriatim.db", help="store URL (%(default)s)")
    make_tables(parser.parse_args().store)
