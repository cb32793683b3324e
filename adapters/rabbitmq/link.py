"""One connection and the thread that alone touches it, connected again with back-off for as long as it is wanted.

pika isn't thread-safe: whatever is to be done with the connection is posted to its thread. That thread does nothing
else, so heartbeats go on while handlers take their time.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Protocol

import pika
from pika.adapters.select_connection import IOLoop

from seriatim.adapters.rabbitmq import troubles
from seriatim.adapters.rabbitmq.channels import bare_close
from seriatim.adapters.rabbitmq.settings import Settings
from seriatim.core.backoff import Backoff
from seriatim.core.errors import BrokerError, ConfigurationError

_RECONNECT = Backoff(base_s=0.1, cap_s=5.0)
CLOSE_S = 10.0  #: how long a close may take before the socket is cut

Connection = pika.SelectConnection
Error = BrokerError | ConfigurationError


class User(Protocol):
    """Who uses a link; called on its thread."""

    def connected(self, connection: Connection) -> None:
        """There is a connection."""
        ...

    def disconnected(self, error: Error) -> None:
        """There is none, and why; called again for every attempt that fails."""
        ...


class Link:
    """A connection to the server, made on a thread of its own when `start` is called."""

    def __init__(self, settings: Settings, user: User, name: str) -> None:
        self.settings = settings
        self.connection: Connection | None = None  # once it is open; its thread's alone
        self.failure: BaseException | None = None  # a bug: the thread has ended
        self._user = user
        self._loop = IOLoop()
        self._opening: Connection | None = None
        self._posted: list[Callable[[], None]] = []
        self._told = False  # the thread was told of what is posted
        self._ended = False
        self._wanted = True
        self._attempts = 0
        self._pid = os.getpid()
        self._mutex = threading.Lock()
        self._started = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    # -- called by any thread

    def start(self) -> None:
        """Connect, unless that was begun before.

        Raises:
            BrokerError: it was closed, or the process was forked since it was made.
        """
        self.check_usable()
        with self._mutex:
            if not self._started:
                self._started = True
                self._thread.start()

    def check_usable(self) -> None:
        """Refuse what can't be used in this process.

        Raises:
            BrokerError: it was closed, or the process was forked since it was made.
        """
        if self._pid != os.getpid():
            raise BrokerError(
                f"the connection to RabbitMQ at {self.settings.server} was made before this process was forked: "
                "open a broker of its own in each process"
            )
        if not self._wanted:
            raise BrokerError(f"RabbitMQ at {self.settings.server}: this consumer or producer was closed")
        if self.failure is not None:
            raise RuntimeError("the thread of the RabbitMQ connection has failed") from self.failure

    def post(self, call: Callable[[], None]) -> None:
        """Have `call` done on the connection's thread, after what was posted before; dropped when that has ended."""
        with self._mutex:
            self._posted.append(call)
            if self._told or self._ended:
                return
            self._told = True
            self._loop.add_callback_threadsafe(self._do_posted)

    def ask(self, call: Callable[[Callable[[], None]], None], timeout_s: float) -> bool:
        """Post `call`, giving it a function to say that it is done; whether that came within `timeout_s`."""
        done = threading.Event()
        self.post(lambda: call(done.set))
        return done.wait(timeout_s if self._thread.is_alive() else 0.0)

    def cut(self) -> None:
        """Cut the socket, whatever is on it. What was held goes back in order; it is connected again."""
        self.post(self._abort)

    def close(self) -> None:
        """Close every channel barely, then the connection, and end the thread. Idempotent."""
        with self._mutex:
            if self._pid != os.getpid():
                return
            was_wanted, self._wanted = self._wanted, False
        if not was_wanted:
            return
        if not self._started:
            self._loop.close()
            return
        self.post(self._begin_closing)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            self.post(self._abort)
            self._thread.join(CLOSE_S)

    # -- on its thread

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Have `call` done in `delay_s` seconds."""
        self._loop.call_later(delay_s, call)

    def _run(self) -> None:
        try:
            self._connect()
            self._loop.start()
        except BaseException as error:  # noqa: BLE001 - a bug: whoever uses the link raises it
            self.failure = error
            self._abort()
            self._user.disconnected(BrokerError(f"the thread of the RabbitMQ connection has failed: {error!r}"))
        finally:
            with self._mutex:
                self._ended = True
            self._loop.close()

    def _do_posted(self) -> None:
        with self._mutex:
            posted, self._posted = self._posted, []
            self._told = False
        for call in posted:
            call()

    def _connect(self) -> None:
        if not self._wanted:
            self._loop.stop()
            return
        self._opening = pika.SelectConnection(
            self.settings.parameters,
            on_open_callback=self._opened,
            on_open_error_callback=self._not_opened,
            on_close_callback=self._closed,
            custom_ioloop=self._loop,
        )

    def _opened(self, connection: Connection) -> None:
        self.connection, self._opening = connection, None
        self._attempts = 0
        self._user.connected(connection)

    def _not_opened(self, _connection: Connection, error: BaseException) -> None:
        self._opening = None
        self._connect_later(error)

    def _closed(self, _connection: Connection, error: BaseException) -> None:
        self.connection = None
        self._connect_later(error)

    def _connect_later(self, error: BaseException) -> None:
        if not self._wanted:
            self._loop.stop()
            return
        self._user.disconnected(troubles.of_connection(self.settings, error))
        self._attempts += 1
        self._loop.call_later(_RECONNECT.delay(self._attempts), self._connect)

    def _begin_closing(self) -> None:
        if self.connection is None:
            if self._opening is None:
                self._loop.stop()
            else:
                self._opening.close()
            return
        channels = list(self.connection._channels.values())  # type: ignore[attr-defined]  # noqa: SLF001 - no public way to know them
        left = len(channels)

        def one_less() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self._close_connection()

        for channel in channels:
            bare_close(channel, one_less)
        if not channels:
            self._close_connection()

    def _close_connection(self) -> None:
        if self.connection is not None and self.connection.is_open:
            self.connection.close()

    def _abort(self) -> None:
        if self.connection is not None:
            with contextlib.suppress(Exception):
                self.connection._terminate_stream(BrokerError("cut"))  # type: ignore[attr-defined]  # noqa: SLF001 - no public way to cut a socket
