"""The URL of a RabbitMQ server.

``amqp://user:password@host:port/vhost?queue_type=quorum``; ``amqps://`` speaks TLS. Characters that a URL keeps for
itself are written as ``%2F`` and so on; without a path the vhost is ``/``. docs/adapters.md explains every option.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import pika

from seriatim.core.brokers import redact
from seriatim.core.errors import ConfigurationError

QUEUE_TYPES = ("quorum", "classic", "stream")
_PORTS = {"amqp": 5672, "amqps": 5671}
_HIGHEST_PORT = 65_535
_LONGEST_HEARTBEAT_S = 60
_PIKAS_MARGIN_S = 5  # pika.heartbeat.HeartbeatChecker
_LARGEST_PREFETCH = 65_535  # a short, on the wire


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a stream keeps its messages; None is for ever. Set when it is declared, by RabbitMQ's own words.

    `max_age` is like ``7D`` or ``12h``; sizes are in bytes.
    """

    max_age: str | None = None
    max_length_bytes: int | None = None
    segment_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Foreign:
    """Where the keys of a foreign producer's messages are: names of headers, or ``message_id`` for the property."""

    key_header: str | None = None
    type_header: str | None = None
    biz_key_from: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """What a URL says. Times in seconds."""

    server: str  # host and port, for errors
    user: str
    parameters: pika.ConnectionParameters
    queue_type: str = "quorum"
    prefix: str = "seriatim"
    prefetch: int = 250
    heartbeat_s: int = 4
    confirm_timeout_s: float = 30.0
    retention: Retention = Retention()
    foreign: Foreign = Foreign()

    @property
    def silence_s(self) -> float:
        """How long a lost link may look like a quiet one.

        pika looks every `heartbeat` + 5 s whether anything has arrived since it looked last: what arrived just after
        one look passes the next, so that only the one after that notices the silence.
        """
        return 2 * (self.heartbeat_s + _PIKAS_MARGIN_S) + 1

    @property
    def hand_over_s(self) -> float:
        """How long a queue may have another consumer until that is told: a silent one is dropped long before."""
        return 4 * self.heartbeat_s + 20


def read_url(url: str) -> Settings:
    """The settings in `url`.

    Raises:
        ConfigurationError: a part of it, or an option, isn't known or has a value that can't be.
    """
    parts = urlsplit(url)
    try:
        options = _options(parts.query)
        user, parameters = _parameters(parts, options)
    except (ValueError, OSError) as error:
        raise ConfigurationError(f"broker URL {redact(url)!r}: {error}") from error
    return Settings(
        server=f"{parameters.host}:{parameters.port}",
        user=user,
        parameters=parameters,
        queue_type=options.get("queue_type", "quorum"),
        prefix=options.get("prefix", "seriatim"),
        prefetch=options.get("prefetch", 250),
        heartbeat_s=options.get("heartbeat", 4),
        confirm_timeout_s=options.get("confirm_timeout_s", 30.0),
        retention=Retention(options.get("max_age"), options.get("max_length_bytes"), options.get("segment_bytes")),
        foreign=Foreign(options.get("key_header"), options.get("type_header"), options.get("biz_key_from")),
    )


def _parameters(parts: SplitResult, options: Mapping[str, Any]) -> tuple[str, pika.ConnectionParameters]:
    if parts.fragment:
        raise ValueError("write # as %23")
    user = unquote(parts.username or "guest")
    connect_timeout_s = options.get("connect_timeout_s", 5.0)
    host = parts.hostname or "localhost"
    return user, pika.ConnectionParameters(
        host=host,
        port=_port(parts),
        virtual_host=unquote(parts.path[1:]) or "/",
        credentials=pika.PlainCredentials(user, unquote(parts.password or "guest")),
        heartbeat=options.get("heartbeat", 4),
        ssl_options=_tls(host, options) if parts.scheme == "amqps" else _no_tls(options),
        connection_attempts=1,  # trying again is the link's business
        socket_timeout=connect_timeout_s,
        stack_timeout=2 * connect_timeout_s,
        blocked_connection_timeout=None,  # an alarm isn't a reason to give up what is being consumed
        client_properties={"connection_name": "seriatim"},
    )


def _port(parts: SplitResult) -> int:
    port = parts.port  # raises ValueError for what is no number
    if port is not None and not 0 < port <= _HIGHEST_PORT:
        raise ValueError(f"there is no port {port}")
    return port or _PORTS[parts.scheme]


def _tls(host: str, options: Mapping[str, Any]) -> pika.SSLOptions:
    context = ssl.create_default_context(cafile=options.get("ca_file"))
    context.check_hostname = options.get("verify_hostname", True)
    if "cert_file" in options:
        context.load_cert_chain(options["cert_file"], options.get("key_file"))
    elif "key_file" in options:
        raise ValueError("key_file without cert_file")
    return pika.SSLOptions(context, host)


def _no_tls(options: Mapping[str, Any]) -> pika.SSLOptions | None:
    for name in ("ca_file", "cert_file", "key_file", "verify_hostname"):
        if name in options:
            raise ValueError(f"option {name!r} is for TLS: write amqps://")
    return None


def _options(query: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in _READERS:
            raise ValueError(f"unknown option {name!r}; there are {', '.join(sorted(_READERS))}")
        if name in options:
            raise ValueError(f"option {name!r} is given twice")
        try:
            options[name] = _READERS[name](text)
        except ValueError as error:
            raise ValueError(f"option {name!r} can't be {text!r}: {error}") from None
    return options


def _one_of(*values: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in values:
            raise ValueError(f"give one of {', '.join(values)}")
        return text

    return read


def _count(largest: int = 2**62) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = int(text)
        if not 1 <= value <= largest:
            raise ValueError(f"give a whole number from 1 to {largest}")
        return value

    return read


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError("give seconds, more than 0")
    return value


def _age(text: str) -> str:
    if not re.fullmatch(r"[1-9][0-9]*[YMDhms]", text):
        raise ValueError("give a number and one of Y, M, D, h, m, s, like 7D")
    return text


def _name(text: str) -> str:
    if not text.strip():
        raise ValueError("give a name")
    return text


def _yes(text: str) -> bool:
    return _one_of("yes", "no")(text) == "yes"


_READERS: Mapping[str, Callable[[str], Any]] = {
    "queue_type": _one_of(*QUEUE_TYPES),
    "prefix": _name,
    "prefetch": _count(_LARGEST_PREFETCH),
    "heartbeat": _count(_LONGEST_HEARTBEAT_S),
    "connect_timeout_s": _seconds,
    "confirm_timeout_s": _seconds,
    "max_age": _age,
    "max_length_bytes": _count(),
    "segment_bytes": _count(),
    "ca_file": _name,
    "cert_file": _name,
    "key_file": _name,
    "verify_hostname": _yes,
    "key_header": _name,
    "type_header": _name,
    "biz_key_from": _name,
}
