"""Real services for tests: those that SERIATIM_TEST_* variables name, or those of scripts/services."""

import os
import re
import shlex
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
START_S = 600.0  #: it may have to be installed first


class ServiceMissing(Exception):
    """A service that a test needs can't be had. It fails the run, here and on CI: nothing is skipped."""


@cache
def service_url(name: str) -> str:
    """The URL of `rabbitmq`, `mariadb` or `redis`; started when no variable names it.

    Raises:
        ServiceMissing: it can't be started.
    """
    variable = f"SERIATIM_TEST_{name.upper()}"
    return os.environ.get(variable) or _started(name, variable)


def _started(name: str, variable: str) -> str:
    command = f"scripts/services start {name}"
    try:
        started = _services("start", name)
        if started.returncode:
            said = started.stderr.strip() or started.stdout.strip()
            raise ServiceMissing(f"`{command}` failed: {said}\nMend that, or set {variable} to the URL of a server")
        exported = _services("env", name).stdout
    except subprocess.TimeoutExpired as error:
        raise ServiceMissing(f"`{command}` took longer than {START_S:.0f} s; run it by hand") from error
    [assignment] = [word for word in shlex.split(exported) if word.startswith(variable)]
    return assignment.partition("=")[2]


def _services(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(ROOT / "scripts/services"), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )


class OwnService:
    """A service of the test's own, to be killed and restarted: on a port of its own, its data in `folder`."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.pidfile = folder / "services" / name / "pid"
        self._environment = os.environ | {"SERIATIM_SERVICES_DIR": str(folder / "services")}
        self._script = folder / "checkout/scripts/services"
        parts = self._script.parent / "_services"
        parts.mkdir(parents=True)
        for script in ("services", "_venv"):
            (self._script.parent / script).symlink_to(ROOT / "scripts" / script)
        for part in (ROOT / "scripts/_services").iterdir():
            ported = re.sub(
                rf"^{name.upper()}_PORT=\d+", f"{name.upper()}_PORT={self.port}", part.read_text(), flags=re.MULTILINE
            )
            (parts / part.name).write_text(ported)

    def say(self, verb: str) -> "subprocess.CompletedProcess[str]":
        """`scripts/services VERB` for this service."""
        return subprocess.run(
            [str(self._script), verb, self.name],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )

    def start(self) -> None:
        """Start it, or start it again."""
        started = self.say("start")
        if started.returncode:
            raise ServiceMissing(started.stderr)

    @contextmanager
    def running(self) -> "Iterator[OwnService]":
        """It runs for the length of the block, and is stopped after it, also where it was frozen or killed."""
        self.start()
        try:
            yield self
        finally:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)
            self.say("stop")

    @property
    def pid(self) -> int:
        """Its process, as recorded."""
        return int(self.pidfile.read_text().split()[0])
