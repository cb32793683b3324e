"""`seriatim resume`: let a paused partition go on."""

from __future__ import annotations

import getpass
from typing import Annotated

import typer

from seriatim.cli.console import guarded, out
from seriatim.compensation.resuming import resume as resume_partition
from seriatim.core.settings import load_settings
from seriatim.core.store import open_store
from seriatim.core.store.port import Scope


@guarded
def resume(
    group: Annotated[str, typer.Option(help="Consumer group.")],
    topic: Annotated[str, typer.Option(help="Topic.")],
    partition: Annotated[str, typer.Option(help="Partition, as `seriatim status` shows it.")],
    accept_gap: Annotated[
        bool,
        typer.Option("--accept-gap", help="Begin at the earliest message that is kept; what was trimmed is given up."),
    ] = False,
    store: Annotated[str | None, typer.Option(help="Store URL.")] = None,
) -> None:
    """Let a paused partition be consumed again, after you have looked at why it stopped (see `seriatim status`)."""
    opened = open_store(load_settings(store=store).store)
    try:
        opened.check()
        why = resume_partition(opened, Scope(group, topic), partition, getpass.getuser(), accept_gap=accept_gap)
    finally:
        opened.close()
    out.print(f"partition {partition} goes on; it had been paused: {why}", markup=False, highlight=False)
