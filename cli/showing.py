"""What the commands for operators share: options, times and texts made fit for a terminal, who is at the keyboard."""

from __future__ import annotations

import datetime as dt
import getpass
import json
import os
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from seriatim.compensation.parked import ParkedLine
from seriatim.compensation.selecting import Filter
from seriatim.core.decision import Place, Reason
from seriatim.core.errors import ConfigurationError
from seriatim.core.settings import load_settings
from seriatim.core.store import SqlStore, open_store
from seriatim.core.store.port import MICROSECOND

SHOWN_ERROR = 60  #: characters of an error that a table shows
SHOWN_BODY = 16 * 1024  #: bytes of a body that is shown
DUMP_WIDTH = 16  #: bytes of one line of a dump
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})  # controls, and what turns or hides text

StoreOption = Annotated[str | None, typer.Option(help="Store URL.")]
GroupOption = Annotated[str | None, typer.Option(help="Only this consumer group.")]
TopicOption = Annotated[str | None, typer.Option(help="Only this topic.")]
KeyOption = Annotated[list[str] | None, typer.Option("--key", help="Of this sharding key. Repeatable.")]
TypeOption = Annotated[str | None, typer.Option("--type", help="Of this message type.")]
ErrorOption = Annotated[str | None, typer.Option("--error", metavar="TEXT", help="With this text in its error.")]
ErrorTypeOption = Annotated[str | None, typer.Option("--error-type", help="With this type of error: TimeoutError.")]
ReasonOption = Annotated[Reason | None, typer.Option("--reason", help="Parked for this reason.")]
PlaceOption = Annotated[Place | None, typer.Option("--place", help="In the queue of its key, aside, or closed.")]
AgeOption = Annotated[str | None, typer.Option("--older-than", metavar="AGE", help="Parked for so long: 90s, 10m, 2h.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask, however many there are.")]
WhoOption = Annotated[
    str | None,
    typer.Option("--who", envvar="SERIATIM_WHO", help="Who does it, for the audit.", show_default="the user"),
]


@contextmanager
def opened(url: str | None) -> Iterator[SqlStore]:
    """The store, opened, checked, and closed."""
    store = open_store(load_settings(store=url).store)
    try:
        store.check()
        yield store
    finally:
        store.close()


def operator(who: str | None) -> str:
    """Who is at the keyboard."""
    if who:
        return who
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid {os.getuid()}"


def make_filter(
    group: str | None,
    topic: str | None,
    *,
    ids: list[int] | None = None,
    keys: list[str] | None = None,
    kind: str | None = None,
    error: str | None = None,
    error_type: str | None = None,
    reason: Reason | None = None,
    place: Place | None = None,
    older_than: str | None = None,
) -> Filter:
    """The options of a command as a filter."""
    return Filter(
        group=group,
        topic=topic,
        ids=tuple(ids or ()),
        keys=tuple(keys or ()),
        type=kind,
        error=error,
        error_type=error_type,
        reason=reason,
        place=place,
        older_than_s=None if older_than is None else age(older_than),
    )


def age(text: str) -> float:
    """Seconds of a length of time such as 90s, 10m, 2h or 3d.

    Raises:
        ConfigurationError: it can't be read.
    """
    number, unit = (text[:-1], text[-1:]) if text[-1:].lower() in _UNITS else (text, "s")
    try:
        seconds = float(number) * _UNITS[unit.lower()]
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ConfigurationError(f"--older-than {text!r}: write a number and a unit: 90s, 10m, 2h, 3d")
    return seconds


def span(microseconds: int) -> str:
    """A length of time in words that fit a table."""
    seconds = max(0, microseconds) // MICROSECOND
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            rest = seconds % size
            smaller = {"d": ("h", 3_600), "h": ("min", 60), "min": ("s", 1)}[unit]
            return f"{seconds // size} {unit} {rest // smaller[1]} {smaller[0]}"
    return f"{seconds} s"


def clock(microseconds: int) -> str:
    """A time of the store, UTC, to the millisecond."""
    moment = dt.datetime.fromtimestamp(microseconds / MICROSECOND, tz=dt.timezone.utc)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{microseconds % MICROSECOND // 1000:03d}Z"


def plain(text: str | None, *, lines: bool = False) -> str:
    """Text that does nothing to a terminal: what isn't printable is written as an escape; `lines` keeps its lines."""
    return "".join(_printable(one, lines=lines) for one in text or "")


def _printable(character: str, *, lines: bool) -> str:
    if lines and character in "\n\t":
        return character
    if unicodedata.category(character) in _UNSAFE:
        code = ord(character)
        return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}"  # noqa: PLR2004 - one byte
    return character


def short(text: str | None, limit: int = SHOWN_ERROR) -> str:
    """The first line of a text, no longer than `limit`, fit for a table."""
    first = plain((text or "").strip().partition("\n")[0])
    return first if len(first) <= limit else first[: limit - 1] + "…"


def message_name(biz_key: str | None, kind: str | None) -> str:
    """A message in a few words: its biz_key, and its type where that isn't a part of it."""
    if biz_key is None or kind is None:
        return plain(biz_key or kind or "-")
    return plain(biz_key if biz_key.endswith(f":{kind}") else f"{biz_key} {kind}")


def why(line: ParkedLine) -> str:
    """Why a message is parked, in a line."""
    error = short(line.error)
    return f"{line.reason}: {error}" if error else line.reason


def what_next(line: ParkedLine, now: int) -> str:
    """What will happen with a parked message by itself."""
    if line.place == Place.CLOSED.value:
        return "nothing: it was given up" if line.dead else "nothing: it is kept as evidence"
    if line.held:
        return "when its key is released"
    if line.place == Place.QUEUE.value and not line.is_head:
        return f"behind #{line.head}"
    if line.dead:
        return "a person: it is dead"
    if line.next_attempt_at is None:
        return "a person" if line.is_head else "when its key is free"
    wait = line.next_attempt_at - now
    return "due now" if wait <= 0 else f"tried in {span(wait)}"


def shown_body(body: bytes) -> str:
    """A body for a person: JSON set out, other text with its controls escaped, anything else as a dump."""
    cut = body[:SHOWN_BODY]
    more = f"\n… and {len(body) - len(cut):,} bytes more" if len(body) > len(cut) else ""
    try:
        return plain(json.dumps(json.loads(body), indent=2, ensure_ascii=False), lines=True)[:SHOWN_BODY] + more
    except (ValueError, RecursionError):
        pass
    try:
        text = cut.decode()
    except UnicodeDecodeError:
        return "\n".join(_dump(cut)) + more
    return plain(text, lines=True) + more


def _dump(data: bytes) -> Iterator[str]:
    for start in range(0, len(data), DUMP_WIDTH):
        line = data[start : start + DUMP_WIDTH]
        letters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in line)  # noqa: PLR2004 - printable ASCII
        yield f"{start:08x}  {line.hex(' '):<{DUMP_WIDTH * 3}} {letters}"
