"""The shop's own tables: orders, stock, and a ledger of everything that moved.

They lie in the same database as Seriatim's tables: that is what lets an order, its stock and the record of the message
be committed together. `create` makes them; a real application uses its migrations.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import CheckConstraint, Column, DateTime, Integer, MetaData, String, Table, create_engine, insert
from sqlalchemy.pool import NullPool

metadata = MetaData()

orders = Table(
    "orders",
    metadata,
    Column("order_no", String(64), primary_key=True),
    Column("status", String(16), nullable=False),
    Column("sku", String(64), nullable=False),
    Column("qty", Integer, nullable=False),
    Column("created_at", DateTime, nullable=False),
    Column("paid_at", DateTime),
    Column("shipped_at", DateTime),
    Column("completed_at", DateTime),
    Column("closed_at", DateTime),
    Column("refunded_at", DateTime),
    mysql_engine="InnoDB",
)

stock = Table(
    "stock",
    metadata,
    Column("sku", String(64), primary_key=True),
    Column("initial", Integer, nullable=False),
    Column("qty", Integer, nullable=False),
    CheckConstraint("qty >= 0", name="never_oversold"),
    mysql_engine="InnoDB",
)

# One line for each message that took effect, and what it did to the stock. Nothing in it is unique on purpose:
# if a message ever took effect twice, there would be two lines.
ledger = Table(
    "order_ledger",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("biz_key", String(255), nullable=False),
    Column("order_no", String(64), nullable=False),
    Column("event", String(64), nullable=False),
    Column("sku", String(64), nullable=False),
    Column("moved", Integer, nullable=False),
    mysql_engine="InnoDB",
    sqlite_autoincrement=True,
)


def create(store_url: str, stocked: Iterable[tuple[str, int]] = ()) -> None:
    """Make the tables where they are missing, and put (sku, quantity) on the shelves."""
    engine = create_engine(store_url, poolclass=NullPool)
    with engine.begin() as connection:
        metadata.create_all(connection)
        rows = [{"sku": sku, "initial": quantity, "qty": quantity} for sku, quantity in stocked]
        if rows:
            connection.execute(insert(stock), rows)
    engine.dispose()
