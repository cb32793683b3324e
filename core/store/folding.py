"""One UPDATE for many rows, where a round trip costs more than a long statement.

``UPDATE t SET a = %s WHERE k = %s``, to be executed with a list of parameters, becomes
``UPDATE (SELECT %s AS a, %s AS k UNION ALL SELECT %s, %s …) AS v STRAIGHT_JOIN t ON t.k = v.k SET a = v.a``.
The rows are visited, and locked, in the order in which they are given. Each row of the table is written once, so the
parameters must lead to different rows. Measured on MariaDB 10.11 over loopback: 100 rows in 6.5 ms instead of 20.

Where nothing but the key varies, ``… WHERE k IN (%s, …)`` does it, held to the index of the key: left to itself, the
server reads the whole of a small table and locks it. That form serves tables of other people's, too: a literal takes on
the collation of the column that it is compared with, a joined column does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Update
from sqlalchemy.engine import Dialect

from seriatim.core.store import schema

FEWEST = 3  #: rows from which it pays
MOST_ROWS = 500
MOST_BYTES = 1 << 20  #: of text and bytes among the parameters: the server takes packets of a limited size

_NAMED = re.compile(r"%\((\w+)\)s")
_UPDATE = re.compile(r"UPDATE (?P<table>\S+) SET (?P<sets>.*) WHERE (?P<where>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Folded:
    """A statement that can be executed for many rows at once; `sets` and `where` have their parameters by name.

    `constants` are the values of parameters that no row gives; `ours` says that the table's collations are known.
    """

    table: str
    sets: str
    where: str
    constants: Mapping[str, Any]
    ours: bool

    def fits(self, rows: Sequence[Mapping[str, Any]]) -> bool:
        """Whether these rows may share a statement: not too few, too many or too large, and each another row."""
        if not FEWEST <= len(rows) <= MOST_ROWS:
            return False
        keys = _NAMED.findall(self.where)
        if len({tuple(row.get(key) for key in keys) for row in rows}) < len(rows):
            return False
        sizes = (len(value) for row in rows for value in row.values() if isinstance(value, (str, bytes)))
        return sum(sizes) <= MOST_BYTES

    def render(
        self, rows: Sequence[Mapping[str, Any]], index_of: Callable[[str, str], str | None]
    ) -> tuple[str, tuple[Any, ...]] | None:
        """The statement for these rows and its positional parameters; None where a table of other people's would join.

        What all rows share is said once. `index_of` gives the name of a table's index by a column.
        """
        first = {**self.constants, **rows[0]}
        varying = [name for name in rows[0] if any(row[name] != first[name] for row in rows)]
        compared = self._compared(varying[0]) if len(varying) == 1 else None
        index = compared and index_of(self.table.strip("`"), compared["column"])
        if compared and index:
            return self._listed(rows, first, compared, index)
        return self._joined(rows, first, varying) if self.ours else None

    def _compared(self, name: str) -> re.Match[str] | None:
        """The comparison with a parameter, if that is in the WHERE and nowhere else."""
        once = _NAMED.findall(f"{self.sets} {self.where}").count(name) == 1
        return re.search(rf"(?P<left>\S*?(?P<column>\w+)`?) = %\({name}\)s", self.where) if once else None

    def _listed(
        self, rows: Sequence[Mapping[str, Any]], first: Mapping[str, Any], compared: re.Match[str], index: str
    ) -> tuple[str, tuple[Any, ...]]:
        values: list[Any] = []

        def place(found: re.Match[str]) -> str:
            values.append(first[found[1]])
            return "%s"

        sets = _NAMED.sub(place, self.sets)
        before = _NAMED.sub(place, self.where[: compared.start()])
        name = _NAMED.findall(compared[0])[0]
        values += [row[name] for row in rows]
        after = _NAMED.sub(place, self.where[compared.end() :])
        where = f"{before}{compared['left']} IN ({', '.join(['%s'] * len(rows))}){after}"
        return f"UPDATE {self.table} FORCE INDEX (`{index}`) SET {sets} WHERE {where}", tuple(values)  # noqa: S608 - our own names

    def _joined(
        self, rows: Sequence[Mapping[str, Any]], first: Mapping[str, Any], varying: Sequence[str]
    ) -> tuple[str, tuple[Any, ...]]:
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
    ours = found["table"].strip("`") in schema.metadata.tables
    return Folded(found["table"], found["sets"], found["where"], constants, ours)
