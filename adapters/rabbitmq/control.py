"""A connection for asking and declaring: short-lived, used by one thread, its channels thrown away."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from pika import exceptions
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

from seriatim.adapters.rabbitmq import troubles
from seriatim.adapters.rabbitmq.channels import bare_close
from seriatim.adapters.rabbitmq.settings import Settings

_CLOSE_S = 5.0


@contextlib.contextmanager
def control(settings: Settings) -> Iterator[BlockingConnection]:
    """An open connection.

    Raises:
        ConfigurationError: refused credentials, an absent vhost, an untrusted certificate.
        BrokerError: the server is away.
    """
    try:
        connection = BlockingConnection(settings.parameters)
    except troubles.DRIVER_ERRORS as error:
        raise troubles.of_connection(settings, error) from error
    try:
        yield connection
    except exceptions.ConnectionClosed as error:
        raise troubles.of_connection(settings, error) from error
    finally:
        with contextlib.suppress(*troubles.DRIVER_ERRORS):
            connection.close()


@contextlib.contextmanager
def doing(what: str) -> Iterator[None]:
    """Says what was refused, if it is.

    Raises:
        ConfigurationError: what is there has other settings, or the user has no right to it.
        BrokerError: the server refuses otherwise, or is away.
    """
    try:
        yield
    except exceptions.ConnectionClosed:
        raise
    except troubles.DRIVER_ERRORS as error:
        raise troubles.of_channel(error, what) from error


def version(connection: BlockingConnection) -> tuple[int, ...]:
    """The server's version, as far as it says one."""
    properties: dict[str, Any] = connection._impl.server_properties or {}  # type: ignore[attr-defined]  # noqa: SLF001 - no public way
    text = properties.get("version") or "0"
    if isinstance(text, bytes):
        text = text.decode("ascii", "replace")
    return tuple(int(part) for part in text.split("-")[0].split("+")[0].split(".") if part.isdigit())


def first_of_stream(connection: BlockingConnection, stream: str, begin: str, silence_s: float) -> bytes | None:
    """The body of the first message that a stream gives from `begin` on; None if it is silent or not there."""
    channel = connection.channel()
    found: list[bytes] = []
    channel.basic_qos(prefetch_count=1)
    try:
        channel.basic_consume(
            stream,
            lambda _channel, _method, _properties, body: found.append(body),
            arguments={"x-stream-offset": begin},
        )
        _wait(connection, lambda: bool(found), silence_s)
    except exceptions.ChannelClosedByBroker as error:
        if troubles.is_missing(error):
            return None
        raise
    _leave(connection, channel)
    return found[0] if found else None


def _leave(connection: BlockingConnection, channel: BlockingChannel) -> None:
    closed: list[bool] = []
    bare_close(channel._impl, lambda: closed.append(True))  # type: ignore[attr-defined]  # noqa: SLF001 - a consumer is never closed by pika's close
    _wait(connection, lambda: bool(closed), _CLOSE_S)


def _wait(connection: BlockingConnection, done: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not done() and (left_s := deadline - time.monotonic()) > 0:
        connection.process_data_events(time_limit=min(left_s, 0.05))
