"""Reading a log: CSV or JSON lines, gzipped or not, row by row."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

from seriatim.core.errors import ConfigurationError

Row = dict[str, Any]
_CSV = (".csv",)
_JSON_LINES = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True, slots=True)
class Line:
    """A row and the number of its (last) line in the file."""

    number: int
    row: Row


def read_rows(path: Path, limit: int | None = None) -> Iterator[Line]:
    """The rows of a log, at most `limit`, read as they are asked for. A CSV's values are text.

    Raises:
        ConfigurationError: the file is missing, of an unknown kind, or broken; names the line.
    """
    kind = _kind(path)
    with _opened(path) as file:
        rows = _csv_rows(path, file) if kind in _CSV else _json_rows(path, file)
        yield from islice(rows, limit)


def at_line(path: Path, number: int, problem: object) -> ConfigurationError:
    """An error that names a line of a log."""
    return ConfigurationError(f"{path}, line {number}: {problem}")


def _kind(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    kind = next((suffix for suffix in reversed(suffixes) if suffix != ".gz"), "")
    if kind not in _CSV + _JSON_LINES:
        raise ConfigurationError(
            f"{path}: a log's name ends in {', '.join(_CSV + _JSON_LINES)}, with .gz after it where it is gzipped"
        )
    return kind


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    try:
        with (
            gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb") as raw,
            io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as text,
        ):
            yield text
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ConfigurationError(f"{path}: the gzip is cut or damaged: {error}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} isn't UTF-8: {error}") from error
    except OSError as error:
        raise ConfigurationError(f"{path} can't be read: {error.strerror or error}") from error


def _csv_rows(path: Path, file: IO[str]) -> Iterator[Line]:
    reader = csv.reader(file, strict=True)
    names: list[str] | None = None
    try:
        for values in reader:
            if not values:  # an empty line
                continue
            if names is None:
                names = _checked_names(path, values)
            elif len(values) != len(names):
                raise at_line(path, reader.line_num, f"it has {len(values)} values, the header {len(names)} columns")
            else:
                yield Line(reader.line_num, dict(zip(names, values, strict=True)))
    except csv.Error as error:
        raise at_line(path, reader.line_num, error) from error


def _checked_names(path: Path, names: list[str]) -> list[str]:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise at_line(path, 1, f"the column {twice[0]!r} is there twice")
    return names


def _json_rows(path: Path, file: IO[str]) -> Iterator[Line]:
    for number, text in enumerate(file, 1):
        if text.isspace():
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise at_line(path, number, f"it isn't JSON: {error}") from error
        if not isinstance(value, dict):
            raise at_line(path, number, f"it is a JSON {type(value).__name__}, not an object")
        yield Line(number, value)
