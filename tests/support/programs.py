"""Programs of the shop: a module with an app in the test's folder, run by the `seriatim` command."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

PATIENCE_S = 40.0  #: no program runs longer

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

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        if self.running:
            self.process.kill()
        self.process.communicate()


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
