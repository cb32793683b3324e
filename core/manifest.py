"""Manifests: what `seriatim replay` sent, message by message, for `seriatim audit` to compare with the database.

A manifest is JSON lines, gzipped where its name ends in ``.gz``. The first line is a header: the topic, its partitions,
the arguments of the run, and three counts (`messages` distinct ones, `sent` with the copies, `early`). Then a line for
each distinct message in the order of first sending::

    [biz_key, sharding key, message type, partition, seq or null, digest in hex, times sent, 1 if early else 0]

An early message was sent before its predecessor of the same key, on purpose.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from seriatim.core.errors import ConfigurationError

VERSION = 1
_MARK = "seriatim-manifest"
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of a manifest."""

    topic: str
    partitions: Sequence[str]
    messages: int
    sent: int
    early: int
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sent:
    """One distinct message that was sent, `copies` times in all."""

    biz_key: str
    sharding_key: str
    type: str
    partition: str
    seq: int | None
    digest: bytes
    copies: int = 1
    early: bool = False


@contextmanager
def write_manifest(path: Path, header: Header) -> Iterator[Callable[[Sent], None]]:
    """Gives a function that adds a message. The file appears when the block ends well, whole and on disk.

    Raises:
        ConfigurationError: the folder is missing, or the file can't be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with _explained(path):
        raw = temporary.open("wb")
    file = _packed(raw, path)
    try:

        def add(sent: Sent) -> None:
            with _explained(path):
                file.write(_line(_message_values(sent)))

        with _explained(path):
            file.write(_line(_header_values(header)))
        yield add
        with _explained(path):
            if file is not raw:
                file.close()
            raw.flush()
            os.fsync(raw.fileno())
            temporary.replace(path)
    finally:
        for one in (file, raw):
            with suppress(OSError):
                one.close()
        temporary.unlink(missing_ok=True)


def read_manifest(path: Path) -> tuple[Header, Iterator[Sent]]:
    """A manifest's header, and its messages in the order of first sending, read as they are asked for.

    Raises:
        ConfigurationError: there is no such file, it isn't a manifest, or it was cut; also while it is read.
    """
    lines = _lines(path)
    header = _header(path, next(lines, None))
    return header, _messages(path, header, lines)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """An error of the file's names it; those of whoever sends meanwhile are none of its business."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"manifest {path} can't be written: {error.strerror or error}") from error


def _packed(raw: IO[bytes], path: Path) -> IO[bytes]:
    if path.suffix != ".gz":
        return raw
    packed = gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=3, mtime=0)
    return cast("IO[bytes]", packed)


def _message_values(sent: Sent) -> list[Any]:
    return [
        sent.biz_key,
        sent.sharding_key,
        sent.type,
        sent.partition,
        sent.seq,
        sent.digest.hex(),
        sent.copies,
        int(sent.early),
    ]


def _line(value: Any) -> bytes:
    return _JSON.encode(value).encode() + b"\n"


def _header_values(header: Header) -> dict[str, Any]:
    return {
        _MARK: VERSION,
        "topic": header.topic,
        "partitions": list(header.partitions),
        "messages": header.messages,
        "sent": header.sent,
        "early": header.early,
        "arguments": dict(header.arguments),
    }


def _lines(path: Path) -> Iterator[Any]:
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):  # noqa: B007 - named in the error below
                yield json.loads(line)
    except (ValueError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ConfigurationError(f"manifest {path}, line {number}: {error}; it is cut or damaged") from error
    except OSError as error:
        raise ConfigurationError(f"manifest {path} can't be read: {error.strerror or error}") from error


def _header(path: Path, value: Any) -> Header:
    if not isinstance(value, dict) or value.get(_MARK) != VERSION:
        raise ConfigurationError(
            f"{path} isn't a manifest of this version: give the file that `seriatim replay --manifest` wrote"
        )
    try:
        return Header(
            topic=value["topic"],
            partitions=tuple(value["partitions"]),
            messages=value["messages"],
            sent=value["sent"],
            early=value["early"],
            arguments=value["arguments"],
        )
    except (KeyError, TypeError) as error:
        raise ConfigurationError(f"manifest {path}: its header is damaged ({error})") from error


def _messages(path: Path, header: Header, lines: Iterator[Any]) -> Iterator[Sent]:
    count = 0
    for count, value in enumerate(lines, 1):
        yield _sent(path, count + 1, value)
    if count != header.messages:
        raise ConfigurationError(
            f"manifest {path}: its header says {header.messages} messages and it has {count}; it is cut or damaged"
        )


def _sent(path: Path, number: int, value: Any) -> Sent:
    try:
        biz_key, sharding_key, kind, partition, seq, digest, copies, early = value
        return Sent(biz_key, sharding_key, kind, partition, seq, bytes.fromhex(digest), copies, bool(early))
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"manifest {path}, line {number}: it isn't a message ({error})") from error
