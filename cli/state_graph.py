"""`seriatim state-graph`: the state machines of an app, drawn."""

from __future__ import annotations

from typing import Annotated

import typer

from seriatim.cli.console import guarded
from seriatim.cli.loading import load_app
from seriatim.core.errors import ConfigurationError
from seriatim.core.state_machine import StateMachine


@guarded
def state_graph(
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The app whose state machines are drawn.")],
) -> None:
    """Draw the app's state machines as Mermaid diagrams."""
    machines: dict[int, StateMachine] = {}
    for topic in load_app(app).topics.values():
        for handler in topic.handlers:
            if handler.moves is not None:
                machines[id(handler.moves.machine)] = handler.moves.machine
    if not machines:
        raise ConfigurationError(f"no handler of {app} has moves=, so there is no state machine to draw")
    for machine in machines.values():
        typer.echo(f"%% {machine.table}.{machine.column}\n{machine.mermaid()}")
