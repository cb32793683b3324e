"""`seriatim route`: which partition a key belongs to, and which keys move when the list grows."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from seriatim.core.errors import SeriatimError
from seriatim.core.hashing import HASHES
from seriatim.core.keys import canonical_key
from seriatim.core.routing import Routing, numbered

STDIN = "-"


class Strategy(str, Enum):
    """The strategies that need nothing but a hash."""

    modulo = "modulo"
    consistent = "consistent"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one key is, and where it would be; `after` is None when no second list was asked about."""

    key: str
    partition: str
    after: str | None = None

    @property
    def moves(self) -> bool:
        return self.after is not None and self.after != self.partition


def route(
    keys: Annotated[list[str], typer.Argument(help="Sharding keys; '-' reads them from stdin, one a line.")],
    partitions: Annotated[int, typer.Option("--partitions", "-n", min=1, help="How many partitions there are.")],
    to: Annotated[int | None, typer.Option(min=1, help="Show what moves when there are so many.")] = None,
    strategy: Annotated[Strategy, typer.Option(help="How a key finds its partition.")] = Strategy.modulo,
    hash_name: Annotated[str, typer.Option("--hash", help=f"One of {', '.join(HASHES)}.")] = "crc32",
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the partition of each key and, with --to, which keys move."""
    try:
        routing = Routing(strategy=strategy.value, hash=hash_name)
        placements = [_placed(routing, key, partitions, to) for key in _all_keys(keys)]
    except SeriatimError as error:
        raise typer.BadParameter(str(error)) from error
    if as_json:
        typer.echo(_as_json(placements, to))
    else:
        _print_table(placements, partitions, to)


def _all_keys(keys: list[str]) -> Iterator[str]:
    for key in keys:
        if key == STDIN:
            yield from (line.rstrip("\r\n") for line in sys.stdin if line.strip())
        else:
            yield key


def _placed(routing: Routing, key: str, partitions: int, to: int | None) -> Placement:
    after = None if to is None else routing.route(key, numbered(to))
    return Placement(canonical_key(key), routing.route(key, numbered(partitions)), after)


def _as_json(placements: list[Placement], to: int | None) -> str:
    """Give a list of objects: `key` and `partition`, and with a second count `to` and `moves`."""
    return json.dumps(
        [
            {"key": placed.key, "partition": placed.partition}
            | ({} if to is None else {"to": placed.after, "moves": placed.moves})
            for placed in placements
        ],
        indent=2,
        ensure_ascii=False,
    )


def _print_table(placements: list[Placement], partitions: int, to: int | None) -> None:
    console = Console()
    table = Table("key", f"of {partitions}", *([] if to is None else [f"of {to}", "moves"]))
    for placed in placements:
        table.add_row(escape(placed.key), placed.partition, *_after(placed))
    console.print(table)
    if to is not None:
        moved = sum(placed.moves for placed in placements)
        console.print(f"{moved} of {len(placements)} keys move from {partitions} to {to} partitions")


def _after(placed: Placement) -> list[str]:
    return [] if placed.after is None else [placed.after, "yes" if placed.moves else ""]
