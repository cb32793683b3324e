"""Programs of the shop: a module with an app in the test's folder, run by the `seriatim` command."""

import contextlib
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from unittest import mock

from typer.testing import CliRunner

from seriatim.cli.main import app as command

PATIENCE_S = 40.0  #: no program runs longer
ROOT = Path(__file__).parents[2]

HEADER = """
import os, signal, sys, time
from pathlib import Path
from sqlalchemy import text
from seriatim import App, Backoff, Early, Policy, Reject, Retry, StateMachine

HERE = Path(__file__).parent
ENTER = text("INSERT INTO ledger (key, biz_key, type, note) VALUES (:key, :biz_key, :type, :note)")

def enter(ctx, note=""):
    m = ctx.message
    ctx.tx.execute(ENTER, {"key": m.sharding_key, "biz_key": m.biz_key, "type": m.type, "note": note})

def once(name):
    "Whether this name is asked about for the first time, in whatever process."
    try:
        (HERE / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

def mark(name, what=""):
    "Tell the test, at once, that this point was reached."
    with (HERE / name).open("a") as file:
        file.write(f"{what}\\n")

app = App("shop")
"""


class Program:
    """A process that the test started and will have ended by its end."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "seriatim.cli.main", *arguments],
            cwd=folder,
            env=_environment(folder) | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, patience_s: float = PATIENCE_S) -> "Ended":
        """Its end; an error when it doesn't come."""
        out, err = self.process.communicate(timeout=patience_s)
        return Ended(self.process.returncode, out, err)

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def __enter__(self) -> "Program":  # noqa: PYI034 - Self is of Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        if self.running:
            self.process.kill()
        self.process.communicate()


def prove(module: str, *arguments: object, patience_s: float = 600.0) -> "subprocess.CompletedProcess[str]":
    """Run a proof of the examples to its end."""
    return subprocess.run(
        [sys.executable, "-m", module, *(str(one) for one in arguments)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=patience_s,
    )


class Ended:
    """How a program ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def __repr__(self) -> str:
        return f"exit {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


def write_program(folder: Path, source: str, name: str = "shop") -> None:
    """A module with `app` in it, ready to be run as ``shop:app``."""
    (folder / f"{name}.py").write_text(HEADER + dedent(source))


def seriatim(folder: Path, *arguments: str, patience_s: float = PATIENCE_S, **environment: str) -> Ended:
    """Run the command to its end."""
    with Program(folder, *arguments, **environment) as program:
        return program.wait(patience_s)


def here(folder: Path, *arguments: str, **environment: str) -> Ended:
    """The same in the test's own process, for a command that doesn't get far: a second quicker, and as good."""
    before, path = set(sys.modules), list(sys.path)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with _chdir(folder):
        try:
            with mock.patch.dict(os.environ, _environment(folder) | environment, clear=True):
                result = CliRunner().invoke(command, list(arguments), prog_name="seriatim")
        finally:
            sys.path[:] = path
            for number, handler in handlers.items():
                signal.signal(number, handler)
            for name in set(sys.modules) - before:
                if getattr(sys.modules[name], "__file__", None) and str(folder) in str(sys.modules[name].__file__):
                    del sys.modules[name]
    told = result.stderr
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        told += "".join(traceback.format_exception(result.exception))
    return Ended(result.exit_code, result.stdout, told)


@contextlib.contextmanager
def _chdir(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _environment(folder: Path) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("SERIATIM_")}
    return ours | {
        "SERIATIM_BROKER": f"embedded:{folder}/log.db",
        "SERIATIM_STORE": f"sqlite:///{folder}/shop.db",
        "SERIATIM_LEASE_S": "1",
        "NO_COLOR": "1",
        "COLUMNS": "200",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


KILLED = -signal.SIGKILL
