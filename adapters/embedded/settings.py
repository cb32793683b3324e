"""The URL of an embedded log.

``embedded:///var/lib/shop/log.db`` is an absolute path; ``embedded:log.db`` and ``embedded://./log.db`` are
relative to the working directory of the moment. Characters that a URL keeps for itself (``?``, ``#``, ``%``)
are written as ``%3F`` and so on. Options follow a question mark:
``?retention_s=86400&retention_messages=1000000``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from seriatim.core.brokers import redact
from seriatim.core.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Retention:
    """How long messages are kept: for `seconds` after they arrived, the newest `messages` of each partition.

    What breaks either limit goes; None is no limit. Nobody asks whether it was read: a consumer that finds
    itself trimmed says so.
    """

    seconds: float | None = None
    messages: int | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """What a URL says. `synchronous` is SQLite's: FULL outlives a power cut, NORMAL only the process."""

    path: Path
    synchronous: str = "FULL"
    retention: Retention = Retention()


def read_url(url: str) -> Settings:
    """The settings in `url`.

    Raises:
        ConfigurationError: it names no file, a host, or an option that isn't known or has a value that can't
        be.
    """
    parts = urlsplit(url)
    options = _options(url, parts.query)
    return Settings(
        path=_path(url, parts),
        synchronous=options.get("synchronous", "FULL"),
        retention=Retention(options.get("retention_s"), options.get("retention_messages")),
    )


def _path(url: str, parts: SplitResult) -> Path:
    if parts.fragment:
        raise ConfigurationError(f"broker URL {redact(url)!r}: write # as %23 in a file's name")
    if parts.netloc not in {"", "."}:
        raise ConfigurationError(
            f"broker URL {redact(url)!r}: an embedded log is on this host, and {parts.hostname!r} reads as another; "
            "write embedded:///absolute/path.db or embedded:relative.db"
        )
    path = unquote(parts.path.lstrip("/") if parts.netloc else parts.path)
    if not path.strip("/") or path.endswith("/") or "\x00" in path:
        raise ConfigurationError(f"broker URL {redact(url)!r} names no file: write embedded:///absolute/path.db")
    return Path(path).resolve()  # one file, one lock, whatever links lead to it


def _options(url: str, query: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in _READERS:
            raise ConfigurationError(
                f"broker URL {redact(url)!r}: unknown option {name!r}; there are {', '.join(sorted(_READERS))}"
            )
        if name in options:
            raise ConfigurationError(f"broker URL {redact(url)!r}: option {name!r} is given twice")
        try:
            options[name] = _READERS[name](text)
        except ValueError as error:
            raise ConfigurationError(
                f"broker URL {redact(url)!r}: option {name!r} can't be {text!r}: {error}"
            ) from None
    return options


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError("give seconds, more than 0")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError("give a count, at least 1")
    return value


def _synchronous(text: str) -> str:
    if text not in {"full", "normal"}:
        raise ValueError("give full or normal")
    return text.upper()


_READERS: Mapping[str, Callable[[str], Any]] = {
    "retention_s": _seconds,
    "retention_messages": _count,
    "synchronous": _synchronous,
}
