"""What every command shares: where it prints, and how an error becomes a line that a person can act on."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import typer
from rich.console import Console

from seriatim.core.errors import SeriatimError

P = ParamSpec("P")
R = TypeVar("R")

PIPED_WIDTH = 200  #: columns of a table that goes to a file or another program

out = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
err = Console(stderr=True)

FAILED = 1  #: exit status: what was asked for doesn't hold
USAGE = 2  #: exit status: it couldn't be asked


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """A command whose Seriatim errors are one line on standard error and exit status 2, not a traceback."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except SeriatimError as error:
            complain(str(error))
            raise typer.Exit(USAGE) from error

    return run


def complain(text: str) -> None:
    """One line on standard error."""
    err.print(f"[bold red]seriatim:[/] {_escaped(text)}", highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON value on standard output, for programs."""
    typer.echo(json.dumps(value, ensure_ascii=False, default=str))


def _escaped(text: str) -> str:
    return text.replace("[", "\\[")
