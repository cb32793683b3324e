"""One UPDATE for many rows, where a round trip costs more than a long statement.

``UPDATE t SET a = %s WHERE k = %s``, to be executed with a list of parameters, becomes
``UPDATE (SELECT %s AS a, %s AS k UNION ALL SELECT %s, %s …) AS v STRAIGHT_JOIN t ON t.k = v.k SET a = v.a``.
The rows are visited, and locked, in the order in which they are given. Each row of the table is written once, so the
parameters must lead to different rows. Measured on MariaDB 10.11 over loopback: 100 rows in 25 ms instead of 80.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Update
from sqlalchemy.engine import Dialect

FEWEST = 3  #: rows from which it pays
MOST_ROWS = 500
MOST_BYTES = 1 << 20  #: of text and bytes among the parameters: the server takes packets of a limited size

_NAMED = re.compile(r"%\((\w+)\)s")
_UPDATE = re.compile(r"UPDATE (?P<table>\S+) SET (?P<sets>.*) WHERE (?P<where>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Folded:
    """A statement that can be executed for many rows at once; `sets` and `where` have their parameters by name.

    `constants` are the values of parameters that no row gives.
    """

    table: str
    sets: str
    where: str
    constants: Mapping[str, Any]

    def fits(self, rows: Sequence[Mapping[str, Any]]) -> bool:
        """Whether these rows may share a statement: not too few, too many or too large, and each another row."""
        if not FEWEST <= len(rows) <= MOST_ROWS:
            return False
        keys = _NAMED.findall(self.where)
        if len({tuple(row[key] for key in keys) for row in rows}) < len(rows):
            return False
        sizes = (len(value) for row in rows for value in row.values() if isinstance(value, (str, bytes)))
        return sum(sizes) <= MOST_BYTES

    def render(self, rows: Sequence[Mapping[str, Any]]) -> tuple[str, tuple[Any, ...]]:
        """The statement for these rows and its positional parameters. What all rows share is said once."""
        first = {**self.constants, **rows[0]}
        varying = [name for name in rows[0] if any(row[name] != first[name] for row in rows)]
        shared: list[Any] = []

        def place(found: re.Match[str]) -> str:
            if found[1] in varying:
                return f"v.{found[1]}"
            shared.append(first[found[1]])
            return "%s"

        where, sets = _NAMED.sub(place, self.where), _NAMED.sub(place, self.sets)
        head = ", ".join(f"%s AS {name}" for name in varying)
        more = ", ".join(["%s"] * len(varying))
        values = " UNION ALL SELECT ".join([head, *[more] * (len(rows) - 1)])
        sql = f"UPDATE (SELECT {values}) AS v STRAIGHT_JOIN {self.table} ON {where} SET {sets}"  # noqa: S608 - our own names
        return sql, (*(row[name] for row in rows for name in varying), *shared)


def fold(statement: Update, dialect: Dialect) -> Folded:
    """The folded form of an UPDATE of one table whose values and conditions are bound by name."""
    compiled = statement.compile(dialect=type(dialect)(paramstyle="pyformat"))  # type: ignore[call-arg]  # every real dialect takes it
    found = _UPDATE.fullmatch(compiled.string)
    if found is None:
        raise AssertionError(f"can't be folded: {compiled.string}")
    constants = {name: value for name, value in compiled.params.items() if value is not None}
    return Folded(found["table"], found["sets"], found["where"], constants)
