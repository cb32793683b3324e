"""MySQL and MariaDB through PyMySQL: the store of more than one host.

The server serialises by its row locks, so several transactions write at once. Every connection works at READ COMMITTED
and tells the server to end a transaction that is silent for a lease: a process that was stopped inside one lets go of
its partitions then. One that is merely slow stays: a thread of ours pings for it, for ten leases at most, and a stopped
process pings for nobody.

Row counts are of rows found, not of rows changed (CLIENT.FOUND_ROWS), and a URL can't turn that off.
"""

from __future__ import annotations

import math
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from pymysql.connections import Connection as DriverConnection
from pymysql.constants import CLIENT, SERVER_STATUS
from pymysql.cursors import Cursor as DriverCursor
from pymysql.err import DataError, Error, InterfaceError
from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    Engine,
    Integer,
    Select,
    TableClause,
    create_engine,
    event,
    literal_column,
    text,
)
from sqlalchemy.pool import NullPool
from sqlalchemy.sql.elements import BinaryExpression, ColumnClause

from seriatim.core.errors import ConfigurationError
from seriatim.core.faults import Fault

_NOBODY = "0 or more writers"
SLOW_LEASES = 10  #: how many leases a transaction may be silent for while its process lives
CONNECT_S = 10
READ_S = 60

#: Codes of servers and driver that mean the store, not the statement.
_STORE_CODES = frozenset(
    (
        *(1021, 1030, 1114, 1034, 1194, 1195),  # disk full, storage engine, table full, crashed
        *(1037, 1038, 1041, 1135),  # out of memory, no thread to be had
        *(1040, 1203, 1226, 1129),  # too many connections, of everybody or of this user; host blocked after errors
        *(1053, 1077, 1079, 1927, 3169, 1317, 1969, 3024, 4031, 1028),  # shutting down, killed, timed out
        *(1290, 1792, 1836, 3032, 1205 - 1205 + 1223),  # read-only, offline, waiting for a backup's lock
        *(1047, 1176 - 1176 + 1180),  # not ready (a node outside its cluster), error during COMMIT
        *(1158, 1159, 1160, 1161, 1184, 1152, 1189, 1190, 1218),  # the network, seen by the server
        *(2000, 2001, 2002, 2003, 2004, 2005, 2006, 2012, 2013, 2014, 2026, 2027, 2045, 2055),  # … and by the driver
    )
)
#: Deadlock, lock time-out, NOWAIT, changed since it was read, write conflict of a cluster.
_CONTENTION_CODES = frozenset((1205, 1213, 1614, 3058, 3101, 3572, 1020))
