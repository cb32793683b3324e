"""`seriatim resume`: let a paused partition go on."""

from __future__ import annotations

from typing import Annotated

import typer

from seriatim.cli.console import guarded, out
from seriatim.cli.showing import StoreOption, opened, operator
from seriatim.compensation.resuming import resume as resume_partition
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
    store: StoreOption = None,
) -> None:
    """Let a paused partition be consumed again, after you have looked at why it stopped (see `seriatim status`)."""
    with opened(store) as store_:
        why = resume_partition(store_, Scope(group, topic), partition, operator(None), accept_gap=accept_gap)
    out.print(f"partition {partition} goes on; it had been paused: {why}", markup=False, highlight=False)
