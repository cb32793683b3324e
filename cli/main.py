"""The `seriatim` command."""

from __future__ import annotations

import typer

from seriatim.cli.audit import audit
from seriatim.cli.compensate import compensate
from seriatim.cli.parked import app as parked
from seriatim.cli.replay import replay
from seriatim.cli.resume import resume
from seriatim.cli.route import route
from seriatim.cli.run import run
from seriatim.cli.state_graph import state_graph
from seriatim.cli.status import status
from seriatim.cli.store import init, schema
from seriatim.cli.trace import trace

app = typer.Typer(
    name="seriatim",
    help="Messages in order per business key, each with exactly one effect.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(run)
app.command()(compensate)
app.command()(route)
app.command()(init)
app.command()(schema)
app.command()(status)
app.add_typer(parked)
app.command()(trace)
app.command()(resume)
app.command()(replay)
app.command()(audit)
app.command("state-graph")(state_graph)


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()
