"""Make the loans example's tables: ``python -m examples.loans.setup --store sqlite:///loans.db``."""

import argparse

from sqlalchemy import create_engine

from examples.loans.tables import metadata


def make_tables(store_url: str) -> None:
    """Make the business tables where they are missing."""
    engine = create_engine(store_url)
    try:
        metadata.create_all(engine)
    finally:
        engine.dispose()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", default="sqlite:///seriatim.db", help="store URL (%(default)s)")
    make_tables(parser.parse_args().store)
