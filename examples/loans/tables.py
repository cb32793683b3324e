"""The business tables: a ledger of what was done, and how far each case is.

The ledger has no unique index, on purpose: if an event took effect twice, it would show.
"""

from sqlalchemy import Column, Index, Integer, MetaData, String, Table

metadata = MetaData()

ledger = Table(
    "loan_ledger",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("case_id", String(32), nullable=False),
    Column("seq", Integer, nullable=False),
    Column("activity", String(64), nullable=False),
    Column("biz_key", String(255), nullable=False),
    Index("ix_ledger_case", "case_id", "seq"),
    sqlite_autoincrement=True,
)

case = Table(
    "loan_case",
    metadata,
    Column("case_id", String(32), primary_key=True),
    Column("last_seq", Integer, nullable=False),
)
