"""Log lines: one for each message, with what a person needs to follow a key; and one for each event.

Human or JSON. At high rates successful messages are sampled, and the line says how many it stands for; whatever went
another way is always written.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, TextIO

from seriatim.core.decision import Outcome
from seriatim.core.store.port import MICROSECOND, Scope
from seriatim.core.view import Verdict

LOGGER = logging.getLogger("seriatim")
_QUIET = frozenset({Outcome.APPLIED, Outcome.DUPLICATE})


class LogObserver:
    """Writes to the logger `seriatim`: at most `rate` lines a second for messages that went the ordinary way."""

    def __init__(self, rate: int = 50) -> None:
        self._rate = rate
        self._mutex = threading.Lock()
        self._second = 0
        self._written = 0
        self._skipped = 0

    def committed(self, scope: Scope, verdicts: Sequence[Verdict], duration_s: float) -> None:
        """One line for each message of a transaction."""
        for verdict in verdicts:
            quiet = verdict.outcome in _QUIET
            if not LOGGER.isEnabledFor(logging.INFO if quiet else logging.WARNING):
                continue
            stands_for = self._sample() if quiet else 1
            if stands_for:
                level = logging.INFO if quiet else logging.WARNING
                fields = _fields(scope, verdict, duration_s, stands_for)
                LOGGER.log(level, "message %s", verdict.outcome.value, extra={"fields": fields})

    def event(self, level: int, name: str, **fields: Any) -> None:
        """One line for something that isn't a message's affair."""
        LOGGER.log(level, name, extra={"fields": fields})

    def _sample(self) -> int:
        """How many messages the next line stands for; 0 when this one gets none."""
        with self._mutex:
            second = int(time.monotonic())
            if second != self._second:
                self._second, self._written = second, 0
            if self._written >= self._rate:
                self._skipped += 1
                return 0
            self._written += 1
            stands_for, self._skipped = self._skipped + 1, 0
            return stands_for


def _fields(scope: Scope, verdict: Verdict, duration_s: float, stands_for: int) -> dict[str, Any]:
    task = verdict.task
    message = task.message
    fields: dict[str, Any] = {
        "group": scope.group,
        "topic": scope.topic,
        "partition": task.partition,
        "key": task.arrival.sharding_key,
        "biz_key": task.arrival.biz_key,
        "type": task.arrival.type,
        "outcome": verdict.outcome.value,
        "produced_at": _iso(task.produced_at),
        "state": message.state if message is not None else None,
        "seq": message.seq if message is not None else None,
        "batch_ms": round(duration_s * 1000, 2),
    }
    optional = {
        "reason": verdict.reason.value if verdict.reason else None,
        "attempts": verdict.attempts or None,
        "error": verdict.error or None,
        "retry_in_s": None if verdict.wait_s is None else round(verdict.wait_s, 3),
        "illegal": verdict.illegal or None,
        "stands_for": stands_for if stands_for > 1 else None,
    }
    return {name: value for name, value in (fields | optional).items() if value is not None}


def _iso(microseconds: int) -> str:
    try:
        return dt.datetime.fromtimestamp(microseconds / MICROSECOND, dt.timezone.utc).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):  # a producer may claim any time
        return str(microseconds)


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {
            "at": dt.datetime.fromtimestamp(record.created, dt.timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return _writable(json.dumps(line, default=str, ensure_ascii=False))


class HumanFormatter(logging.Formatter):
    """A line that reads from left to right: time, level, event, fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        at = dt.datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S.%f")[:-3]
        fields = " ".join(f"{name}={_plain(value)}" for name, value in getattr(record, "fields", {}).items())
        line = f"{at} {record.levelname:<7} {record.getMessage()}" + (f"  {fields}" if fields else "")
        return _writable(f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line)


def _writable(line: str) -> str:
    """The line with half a surrogate pair, which no stream can encode, spelt out."""
    return line.encode("utf-8", "backslashreplace").decode()


def _plain(value: Any) -> str:
    text = str(value)
    if not text.isprintable():  # control characters would colour a terminal, or begin another line
        return json.dumps(text)
    return json.dumps(text, ensure_ascii=False) if not text or " " in text or '"' in text else text


def configure_logging(form: str = "human", level: str = "INFO", stream: TextIO | None = None) -> None:
    """Send Seriatim's log lines to `stream` (standard error), as "human" or "json"."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else HumanFormatter())
    LOGGER.handlers[:] = [handler]
    LOGGER.setLevel(level.upper())
    LOGGER.propagate = False
