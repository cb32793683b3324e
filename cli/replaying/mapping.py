"""From a row of a log to a message: which column is what."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from seriatim.cli.replaying.rows import Row
from seriatim.core.errors import ConfigurationError, InvalidMessage
from seriatim.core.message import Message
from seriatim.core.topic import Topic

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_FRACTION = re.compile(r"\.(\d+)")


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns of a log are what. `biz_key` is a template, such as ``{case}:{seq}``."""

    key: str
    type: str
    time: str | None
    seq: str | None
    biz_key: str
    names: tuple[str, ...]  #: every column that is needed

    @classmethod
    def of(cls, key: str, type: str, time: str | None, seq: str | None, biz_key: str | None) -> Columns:  # noqa: A002 - the contract's word
        """The columns, the biz_key being ``<key>:<seq>`` unless it is said.

        Raises:
            ConfigurationError: no biz_key can be made, or the template names no column.
        """
        if biz_key is None and seq is None:
            raise ConfigurationError(
                "every message needs a biz_key of its own: name the columns that tell one event from every other, such "
                "as --biz-key '{case}:{activity}', or give --seq, and it is <key>:<seq>"
            )
        template = biz_key if biz_key is not None else f"{{{key}}}:{{{seq}}}"
        if not _PLACEHOLDER.search(template):
            raise ConfigurationError(
                f"--biz-key {template!r} names no column: all messages would share one; write '{{case}}:{{seq}}'"
            )
        named = [key, type, time, seq, *_PLACEHOLDER.findall(template)]
        return cls(key, type, time, seq, template, tuple(name for name in dict.fromkeys(named) if name is not None))


@dataclass(frozen=True, slots=True)
class Mapper:
    """Makes messages of rows."""

    topic: Topic
    columns: Columns

    def message(self, row: Row) -> Message:
        """The message that a row is; its body is the row as JSON.

        Raises:
            InvalidMessage: a column is missing or empty, or its value isn't what it should be.
        """
        columns = self.columns
        for name in columns.names:
            if name not in row:
                raise InvalidMessage(f"there is no column {name!r}; there are: {', '.join(row)}")
        return self.topic.message(
            key=_text(row, columns.key, "key"),
            type=_text(row, columns.type, "message type"),
            body=row,
            biz_key=_PLACEHOLDER.sub(lambda found: _text(row, found[1], "part of the biz_key"), columns.biz_key),
            seq=None if columns.seq is None else _whole(row, columns.seq),
            produced_at=None if columns.time is None else _time(row, columns.time),
        )


def _text(row: Row, name: str, what: str) -> str:
    value = row[name]
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise InvalidMessage(f"column {name!r} is {value!r}: a {what} is text or a whole number")
    if not value.strip():
        raise InvalidMessage(f"column {name!r} is empty: it is a {what}")
    return value


def _whole(row: Row, name: str) -> int:
    text = _text(row, name, "seq")
    try:
        value = int(text)
    except ValueError:
        raise InvalidMessage(f"column {name!r} is {text!r}: a seq is a whole number") from None
    if not -(2**63) <= value < 2**63:
        raise InvalidMessage(f"column {name!r} is {text!r}: a seq has at most 63 bits")
    return value


def _time(row: Row, name: str) -> float:
    """Seconds since the epoch, from those or from ISO 8601 with an offset."""
    value: Any = row[name]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    text = _text(row, name, "time").strip()
    try:
        return float(text)
    except ValueError:
        moment = _moment(name, text)
    if moment.tzinfo is None:
        raise InvalidMessage(f"column {name!r} is {text!r}: without an offset (Z, +02:00) nobody knows when that was")
    return moment.timestamp()


def _moment(name: str, text: str) -> datetime:
    plain = f"{text[:-1]}+00:00" if text[-1] in "Zz" else text  # Python 3.10 knows neither Z …
    plain = _FRACTION.sub(lambda found: f".{found[1][:6]:0<6}", plain)  # … nor fractions of any length
    try:
        return datetime.fromisoformat(plain)
    except ValueError:
        raise InvalidMessage(
            f"column {name!r} is {text!r}: a time is ISO 8601 with an offset, or seconds since the epoch"
        ) from None
