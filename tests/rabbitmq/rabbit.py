"""RabbitMQ for tests: the server that all share, one of a test's own, and the operator's verbs."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pika
from support.services import ROOT, START_S, ServiceMissing

PORTS = ("AMQP_PORT", "MANAGEMENT_PORT", "STREAM_PORT", "DISTRIBUTION_PORT", "EPMD_PORT")


def manage(server: str, method: str, path: str, body: object = None) -> bytes:
    """One request to the management API of a server of scripts/services: its port follows that of AMQP."""
    url = urlsplit(server)
    request = urllib.request.Request(
        f"http://{url.hostname}:{(url.port or 0) + 1}/api/{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "content-type": "application/json",
            "authorization": "Basic " + base64.b64encode(f"{url.username}:{url.password}".encode()).decode(),
        },
    )
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
        return answer.read()


def plain_connection(server: str) -> pika.BlockingConnection:
    """A connection of somebody who knows nothing of Seriatim."""
    return pika.BlockingConnection(pika.URLParameters(server))


class OwnRabbit:
    """A server of a test's own, to be killed, starved and restarted: on ports of its own, its data in `folder`.

    Given a folder with `authority.pem`, `server.pem` and `server.key`, it speaks TLS as well, at `tls_port`.
    """

    def __init__(self, folder: Path, tls: Path | None = None) -> None:
        first = _free_ports(len(PORTS) + 1)
        self.url = f"amqp://guest:guest@127.0.0.1:{first}/%2F"
        self.tls_port = first + len(PORTS)
        self._pidfile = folder / "data/rabbitmq/pid"
        self._environment = os.environ | {"SERIATIM_SERVICES_DIR": str(folder / "data")}
        self._scripts = folder / "checkout/scripts"
        (self._scripts / "_services").mkdir(parents=True)
        for script in ("services", "_venv"):
            (self._scripts / script).symlink_to(ROOT / "scripts" / script)
        for part in (ROOT / "scripts/_services").iterdir():
            text = part.read_text()
            for number, name in enumerate(PORTS):
                text = re.sub(rf"\b{name}=\d+", f"{name}={first + number}", text)
            text = text.replace("log.console = false\n", f"log.console = false\n{self._tls_options(tls)}")
            (self._scripts / "_services" / part.name).write_text(text)

    def _tls_options(self, folder: Path | None) -> str:
        if folder is None:
            return ""
        files = {"cacertfile": "authority.pem", "certfile": "server.pem", "keyfile": "server.key"}
        options = [f"ssl_options.{name} = {folder / file}" for name, file in files.items()]
        return "\n".join([f"listeners.ssl.1 = 127.0.0.1:{self.tls_port}", *options, ""])

    def start(self) -> None:
        """Start it, or start it again."""
        self._say("start", "rabbitmq")

    def stop(self) -> None:
        """Stop it in order."""
        self._say("stop", "rabbitmq")

    def kill(self) -> None:
        """End it by SIGKILL, and wait for its end."""
        pid = int(self._pidfile.read_text().split()[0])
        os.killpg(pid, signal.SIGKILL)  # a session of its own, beside epmd's
        while Path(f"/proc/{pid}").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text():
            time.sleep(0.02)

    def ctl(self, *arguments: str) -> str:
        """`rabbitmqctl` of this server."""
        return self._say("ctl", *arguments)

    def _say(self, *arguments: str) -> str:
        done = subprocess.run(
            [str(self._scripts / "services"), *arguments],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )
        if done.returncode:
            raise ServiceMissing(f"{' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout


def _free_ports(count: int) -> int:
    """The first of `count` free ports in a row."""
    for first in range(27_000 + os.getpid() % 500 * 10, 33_000, 10):
        if all(_is_free(first + number) for number in range(count)):
            return first
    raise ServiceMissing("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
