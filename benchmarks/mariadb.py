"""What a run costs MariaDB, as the server counts it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from sqlalchemy import Connection, func, select, text

from seriatim.core.store.port import MICROSECOND
from seriatim.core.store.schema import idempotent_record

#: Server variables by what they are called here. MariaDB 10.8 and newer count no syncs of the log alone
#: (Innodb_os_log_fsyncs); of all of InnoDB's, a busy log's are nearly every one (200 lone commits: 201).
COUNTED = {"Questions": "statements", "Com_commit": "commits", "Innodb_data_fsyncs": "fsyncs"}
_NAMES = ", ".join(f"'{name}'" for name in COUNTED)
_GLOBAL = text(f"SHOW GLOBAL STATUS WHERE Variable_name IN ({_NAMES})")
_OURS = text("SHOW SESSION STATUS WHERE Variable_name = 'Questions'")
_SETTINGS = text("SELECT VERSION(), @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog")


def counters(connection: Connection) -> Mapping[str, int]:
    """Statements, commits and syncs since the server began, of everybody but this connection."""
    found = {COUNTED[row[0]]: int(row[1]) for row in connection.execute(_GLOBAL)}
    return found | {"statements": found["statements"] - int(connection.execute(_OURS).one()[1])}


def settled(connection: Connection) -> int:
    """How many messages are settled."""
    column = idempotent_record.c.settled_at
    return int(connection.execute(select(func.count()).where(column.is_not(None))).scalar_one())


def rate(connection: Connection) -> float:
    """Messages a second between the first and the last commit by the server's clock, less those of the first."""
    column = idempotent_record.c.settled_at
    instants = connection.execute(select(column, func.count()).group_by(column).order_by(column)).all()
    seconds = (instants[-1][0] - instants[0][0]) / MICROSECOND
    return float(sum(count for _, count in instants[1:]) / seconds)


def describe(connection: Connection) -> str:
    """The server, and how durable a commit of its is."""
    with closing(connection.execute(_SETTINGS)) as found:
        version, flush, logged, sync = found.one()
    binlog = f"binary log with sync_binlog={sync}" if logged else f"no binary log (sync_binlog={sync})"
    return f"MariaDB {version}: innodb_flush_log_at_trx_commit={flush}, {binlog}"
