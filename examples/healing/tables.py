"""The business table: a ledger without a unique index, so that an effect that happened twice would show."""

from sqlalchemy import Column, Index, Integer, MetaData, String, Table

metadata = MetaData()

ledger = Table(
    "payment_ledger",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("account", String(32), nullable=False),
    Column("number", Integer, nullable=False),
    Index("ix_payment_account", "account", "id"),
    sqlite_autoincrement=True,
)
