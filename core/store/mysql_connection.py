"""PyMySQL connections that are kept alive in silence, and refuse what the server wouldn't take."""

from __future__ import annotations

import ssl
import threading
import time
from contextlib import suppress
from functools import cache
from typing import Any
from weakref import WeakSet

from pymysql.connections import Connection as DriverConnection
from pymysql.constants import SERVER_STATUS
from pymysql.cursors import Cursor as DriverCursor
from pymysql.err import DataError, Error

SLOW_LEASES = 10  #: how many leases a transaction may be silent for while its process lives
TOO_LARGE = 1153  #: the server's code for a packet over max_allowed_packet


@cache
def _opportunistic() -> ssl.SSLContext:
    """One for all connections that verify nobody: the driver makes one for each, and reads every authority for it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class KeptCursor(DriverCursor):
    """A cursor that takes its result before anybody else may use the connection."""

    def _query(self, query: Any) -> Any:
        with self._get_db().mutex:  # type: ignore[attr-defined]  # the driver's own internals
            return super()._query(query)  # type: ignore[misc]  # not in the stubs: an internal


class KeptConnection(DriverConnection):
    """A connection that remembers how long it has been silent, and that one other thread may ping."""

    server_status: int
    _result: Any
    largest: int | None = None  #: bytes that the server takes in one packet

    def __init__(self, **named: Any) -> None:
        self.mutex = threading.RLock()
        self._used_at = time.monotonic()
        self._began_at: float | None = None
        super().__init__(**named)

    def _create_ssl_ctx(self, wanted: Any) -> ssl.SSLContext:
        """What TLS is made with; where none was asked for, the driver uses it if the server has it, unverified."""
        return super()._create_ssl_ctx(wanted) if wanted else _opportunistic()  # type: ignore[misc]  # as above

    def query(self, sql: Any, unbuffered: bool = False) -> Any:  # noqa: FBT001, FBT002 - the driver's own signature
        """Send a statement. One that the server wouldn't take is refused here: there it would cost the connection."""
        data = sql.encode(self.encoding) if isinstance(sql, str) else sql
        if self.largest is not None and len(data) >= self.largest:
            raise DataError(TOO_LARGE, f"a statement of {len(data)} bytes is over max_allowed_packet ({self.largest})")
        with self.mutex:
            try:
                return super().query(data, unbuffered)
            finally:
                self._used()

    def commit(self) -> None:
        with self.mutex:
            super().commit()
            self._used()

    def rollback(self) -> None:
        with self.mutex:
            super().rollback()
            self._used()

    def close(self) -> None:
        with self.mutex:
            super().close()

    def _used(self) -> None:
        self._used_at = time.monotonic()
        if not self.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS:
            self._began_at = None
        elif self._began_at is None:
            self._began_at = self._used_at

    def keep(self, silent_s: float, longest_s: float) -> None:
        """Ping the server if nothing was sent for `silent_s`, unless one transaction has lasted `longest_s`."""
        if not self.mutex.acquire(blocking=False):
            return  # a statement is on its way
        try:
            now = time.monotonic()
            result = self._result
            reading = result is not None and (result.unbuffered_active or result.has_next)
            late = self._began_at is not None and now - self._began_at > longest_s
            if not self.open or reading or late or now - self._used_at < silent_s:
                return
            self._result = None
            with suppress(Error, OSError):  # it is lost, and the next statement will say so
                self.ping(reconnect=False)
            self._result = result
            self._used_at = now
        finally:
            self.mutex.release()


class Pinger:
    """A thread that pings for the connections of one engine, while they are silent."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._connections: WeakSet[KeptConnection] = WeakSet()
        self._mutex = threading.Lock()
        self._stopping: threading.Event | None = None

    def add(self, connection: KeptConnection) -> None:
        """Ping for this one, too."""
        with self._mutex:
            self._connections.add(connection)
            if self._stopping is None:
                self._stopping = threading.Event()
                threading.Thread(target=self._run, args=(self._stopping,), name="pinger", daemon=True).start()

    def stop(self) -> None:
        """End the thread; `add` begins anew."""
        with self._mutex:
            if self._stopping is not None:
                self._stopping.set()
                self._stopping = None

    def _run(self, stopping: threading.Event) -> None:
        while not stopping.wait(min(self._lease_s, 1.0) / 4):
            with self._mutex:
                connections = list(self._connections)
            for connection in connections:
                connection.keep(min(self._lease_s, 1.0) / 3, SLOW_LEASES * self._lease_s)
