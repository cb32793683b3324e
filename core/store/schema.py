"""The tables.

Keys compare exactly: no case folding, no padding. Times are integers, microseconds since the epoch, UTC: no server
rounds, truncates or shifts them, and a due time is never a fraction ahead of the clock that judges it. Bodies are
bytes.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects import mysql

from seriatim.core.message import MAX_KEY, MAX_TOPIC, MAX_TYPE

VERSION = 2

MAX_GROUP = 64
MAX_PARTITION = 128
MAX_OWNER = 128
MAX_LOCK = 255

metadata = MetaData()


def exact(length: int) -> String:
    """Text that compares exactly, byte for byte, on every server."""
    text = String(length)
    text = text.with_variant(mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_0900_bin"), "mysql")
    return text.with_variant(mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_nopad_bin"), "mariadb")


TEXT = Text().with_variant(mysql.TEXT(charset="utf8mb4"), "mysql", "mariadb")  # whatever the database's own default is
LONG_TEXT = Text().with_variant(mysql.MEDIUMTEXT(charset="utf8mb4"), "mysql", "mariadb")
BYTES = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
DIGEST = LargeBinary(32).with_variant(mysql.BINARY(32), "mysql", "mariadb")
MICROSECONDS = BigInteger()
ROW_ID = BigInteger().with_variant(Integer(), "sqlite")


def _scope() -> list[Column[str]]:
    return [
        Column("consumer_group", exact(MAX_GROUP), primary_key=True),
        Column("topic", exact(MAX_TOPIC), primary_key=True),
    ]


topic_partition = Table(
    "topic_partition",
    metadata,
    Column("topic", exact(MAX_TOPIC), primary_key=True),
    Column("partition_id", exact(MAX_PARTITION), primary_key=True),
    Column("ordinal", Integer, nullable=False),
)

group_member = Table(
    "group_member",
    metadata,
    *_scope(),
    Column("member", exact(MAX_OWNER), primary_key=True),
    Column("host", TEXT, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("lease_until", MICROSECONDS, nullable=False),
)

partition_owner = Table(
    "partition_owner",
    metadata,
    *_scope(),
    Column("partition_id", exact(MAX_PARTITION), primary_key=True),
    Column("member", exact(MAX_OWNER), nullable=True),
    Column("owner", exact(MAX_OWNER), nullable=True),  # a token, random per claim; NULL when released
    Column("epoch", BigInteger, nullable=False, server_default="0"),
    Column("lease_until", MICROSECONDS, nullable=False, server_default="0"),
    Column("effect", BigInteger, nullable=False, server_default="0"),
    Column("position", TEXT, nullable=True),
    Column("log_identity", TEXT, nullable=True),
    Column("read_through", MICROSECONDS, nullable=False, server_default="0"),
    Column("duplicates", BigInteger, nullable=False, server_default="0"),
    Column("paused", TEXT, nullable=True),  # why nothing of it is consumed; NULL when it is
    Column("trouble", TEXT, nullable=True),  # what keeps its owner from reading it at the broker
    Column("parked_rows", BigInteger, nullable=False, server_default="0"),  # of parked_message, whatever their place
    Column("parked_bytes", BigInteger, nullable=False, server_default="0"),  # of their bodies
    Column("visitor", exact(MAX_OWNER), nullable=True),  # a daemon that runs what is due; it owns nothing
    Column("visit_until", MICROSECONDS, nullable=False, server_default="0"),
    Column("full", Boolean, nullable=False, server_default="0"),  # its owner waits for room in the parking
    mysql_engine="InnoDB",
)

idempotent_record = Table(
    "idempotent_record",
    metadata,
    *_scope(),
    Column("biz_key", exact(MAX_KEY), primary_key=True),
    Column("mode", SmallInteger, nullable=False, server_default="0"),  # 0 atomic, 1 two-phase
    Column("message_type", exact(MAX_TYPE), nullable=True),
    Column("sharding_key", exact(MAX_KEY), nullable=True),
    Column("partition_id", exact(MAX_PARTITION), nullable=False),
    Column("seq", BigInteger, nullable=True),
    Column("status", SmallInteger, nullable=False),  # 1 processing, 2 success, 3 failed
    Column("outcome", exact(16), nullable=True),
    Column("first_outcome", exact(16), nullable=True),  # of its first judgement: what went another way and came back
    Column("state_before", TEXT, nullable=True),  # of the entity that the message moves
    Column("state_after", TEXT, nullable=True),  # NULL where it wasn't moved
    Column("illegal", Boolean, nullable=False, server_default="0"),  # stale, and no path joins the two states
    Column("request_body", BYTES, nullable=True),
    Column("request_digest", DIGEST, nullable=False),
    Column("first_digest", DIGEST, nullable=True),  # as first received, where an operator edited the body
    Column("response_body", BYTES, nullable=True),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("crash_attempts", Integer, nullable=False, server_default="0"),
    Column("owner", exact(MAX_OWNER), nullable=True),
    Column("lease_until", MICROSECONDS, nullable=True),
    Column("effect", BigInteger, nullable=True),
    Column("produced_at", MICROSECONDS, nullable=False),
    Column("received_at", MICROSECONDS, nullable=False),
    Column("create_time", MICROSECONDS, nullable=False),
    Column("update_time", MICROSECONDS, nullable=False),
    Column("settled_at", MICROSECONDS, nullable=True),
    Index("ix_record_key", "consumer_group", "topic", "sharding_key", "received_at"),
    Index("ix_record_settled", "settled_at"),
    mysql_engine="InnoDB",
    sqlite_with_rowid=False,
)

parked_key = Table(
    "parked_key",
    metadata,
    *_scope(),
    Column("sharding_key", exact(MAX_KEY), primary_key=True),
    Column("partition_id", exact(MAX_PARTITION), nullable=False),
    Column("depth", Integer, nullable=False, server_default="0"),
    Column("aside", Integer, nullable=False, server_default="0"),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("next_attempt_at", MICROSECONDS, nullable=True),
    Column("aside_attempt_at", MICROSECONDS, nullable=True),
    Column("held", Boolean, nullable=False, server_default="0"),
    Column("stops_partition", Boolean, nullable=False, server_default="0"),
    Column("since", MICROSECONDS, nullable=False),
    Index("ix_key_due", "consumer_group", "topic", "partition_id", "next_attempt_at"),
    Index("ix_key_aside_due", "consumer_group", "topic", "partition_id", "aside_attempt_at"),
    Index("ix_key_stops", "consumer_group", "topic", "partition_id", "stops_partition"),
    mysql_engine="InnoDB",
)

parked_message = Table(
    "parked_message",
    metadata,
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("consumer_group", exact(MAX_GROUP), nullable=False),
    Column("topic", exact(MAX_TOPIC), nullable=False),
    Column("partition_id", exact(MAX_PARTITION), nullable=False),
    Column("sharding_key", exact(MAX_KEY), nullable=True),
    Column("biz_key", exact(MAX_KEY), nullable=True),
    Column("waiting", exact(MAX_KEY), nullable=True),  # the biz_key while it waits its turn, else NULL
    Column("conflict_digest", DIGEST, nullable=True),
    Column("place", exact(8), nullable=False),
    Column("reason", exact(16), nullable=False),
    Column("wants", TEXT, nullable=True),  # JSON list of the states or biz_keys that an early one waits for
    Column("message_type", exact(MAX_TYPE), nullable=True),
    Column("seq", BigInteger, nullable=True),
    Column("headers", LONG_TEXT, nullable=False),  # JSON object
    Column("body", BYTES, nullable=False),
    Column("digest", DIGEST, nullable=False),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("next_attempt_at", MICROSECONDS, nullable=True),
    Column("error_type", TEXT, nullable=True),
    Column("error", TEXT, nullable=True),
    Column("detail", LONG_TEXT, nullable=True),
    Column("produced_at", MICROSECONDS, nullable=False),
    Column("received_at", MICROSECONDS, nullable=False),
    Column("parked_at", MICROSECONDS, nullable=False),
    UniqueConstraint("consumer_group", "topic", "waiting", name="uq_parked_waiting"),
    UniqueConstraint("consumer_group", "topic", "biz_key", "conflict_digest", name="uq_parked_conflict"),
    Index("ix_parked_key", "consumer_group", "topic", "sharding_key", "place", "id"),
    mysql_engine="InnoDB",
    sqlite_autoincrement=True,
)

attempt_log = Table(  # one row for each of the first failures of a message: what it said then
    "attempt_log",
    metadata,
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("consumer_group", exact(MAX_GROUP), nullable=False),
    Column("topic", exact(MAX_TOPIC), nullable=False),
    Column("sharding_key", exact(MAX_KEY), nullable=True),
    Column("biz_key", exact(MAX_KEY), nullable=True),
    Column("at", MICROSECONDS, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("place", exact(8), nullable=False),
    Column("reason", exact(16), nullable=False),
    Column("next_attempt_at", MICROSECONDS, nullable=True),
    Column("error_type", TEXT, nullable=True),
    Column("error", TEXT, nullable=True),
    Index("ix_attempt_key", "consumer_group", "topic", "sharding_key"),
    Index("ix_attempt_at", "at"),
    mysql_engine="InnoDB",
    sqlite_autoincrement=True,
)

operator_action = Table(
    "operator_action",
    metadata,
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("at", MICROSECONDS, nullable=False),
    Column("who", TEXT, nullable=False),
    Column("verb", exact(32), nullable=False),
    Column("consumer_group", exact(MAX_GROUP), nullable=False),
    Column("topic", exact(MAX_TOPIC), nullable=False),
    Column("sharding_key", exact(MAX_KEY), nullable=True),
    Column("biz_key", exact(MAX_KEY), nullable=True),
    Column("parked_id", BigInteger, nullable=True),
    Column("before", LONG_TEXT, nullable=True),
    Column("after", LONG_TEXT, nullable=True),
    Index("ix_action_key", "consumer_group", "topic", "sharding_key"),
    mysql_engine="InnoDB",
    sqlite_autoincrement=True,
)

named_lock = Table(  # one row for each name that was ever locked, until it is purged
    "named_lock",
    metadata,
    Column("name", exact(MAX_LOCK), primary_key=True),
    Column("token", exact(64), nullable=True),  # random per taking; NULL when given back
    Column("fence", BigInteger, nullable=False),  # rises with each taking; begins at the clock's time
    Column("expires_at", MICROSECONDS, nullable=False),
    mysql_engine="InnoDB",
    sqlite_with_rowid=False,
)

schema_version = Table(
    "schema_version",
    metadata,
    Column("version", Integer, primary_key=True),
    Column("incarnation", exact(64), nullable=False),  # random; tells this store from a copy or a successor
    Column("installed_at", MICROSECONDS, nullable=False),
)
