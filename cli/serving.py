"""`/metrics` and `/health/…` of one process, over HTTP.

Health is for whoever asks, and says nothing but words; metrics are for whoever has the token. The server is small on
purpose: a few threads, each connection given a few seconds from its first byte to its last, so that one that hangs
keeps nobody else waiting.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import io
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from socketserver import TCPServer
from types import TracebackType
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from seriatim.core.app import App
from seriatim.core.errors import ConfigurationError
from seriatim.core.health import Health
from seriatim.core.log import LOGGER, LogObserver
from seriatim.core.settings import Settings
from seriatim.core.telemetry.catalogue import PROCESS_GAUGES, STORE_GAUGES, STORE_READABLE
from seriatim.core.telemetry.gauges import StoreGauges, process_gauges
from seriatim.core.telemetry.metrics import MetricsObserver, library
from seriatim.core.telemetry.observers import Observers
from seriatim.core.worker import Worker

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

THREADS = 8  #: requests that are answered at once
DEADLINE_S = 5.0  #: how long one may take, with everything
SHORTEST_TOKEN = 16
LOOPBACK = "127.0.0.1"
HIGHEST_PORT = 65_535

_ADDRESS = re.compile(r"(?:(?P<host>[^\s:\[\]]+)|\[(?P<v6>[0-9A-Fa-f:.]+)\])?(?::|^)(?P<port>\d{1,5})")
_TOKEN = re.compile(r"[!-~]+")  # what fits into a header as it is


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; port 0 takes any that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Access:
    """What the settings say of HTTP: where, and the token that metrics ask for."""

    address: Address
    token: bytes

    def __repr__(self) -> str:
        return f"Access({self.address})"


def access(settings: Settings, number: int = 0) -> Access | None:
    """What the settings say of HTTP, for the process of this number; None where they ask for none.

    Raises:
        ConfigurationError: the address can't be read, or there is no token, or none that would do.
    """
    if settings.http is None:
        return None
    found = _ADDRESS.fullmatch(settings.http)
    if found is None:
        raise ConfigurationError(f"setting 'http': {settings.http!r} can't be read; it looks like {LOOPBACK}:9464")
    port = int(found["port"])
    port += number if port else 0
    if port > HIGHEST_PORT:
        raise ConfigurationError(f"setting 'http': there is no port {port} (each process takes the next one)")
    return Access(Address(found["host"] or found["v6"] or LOOPBACK, port), _token(settings))


def _token(settings: Settings) -> bytes:
    how = "set SERIATIM_HTTP_TOKEN, or http_token in seriatim.toml, to the output of `openssl rand -hex 16`"
    if settings.http_token is None:
        raise ConfigurationError(f"setting 'http' needs a token, which whoever reads metrics must show: {how}")
    token = settings.http_token.get_secret_value()
    if len(token) < SHORTEST_TOKEN or not _TOKEN.fullmatch(token):
        raise ConfigurationError(
            f"setting 'http_token' must be {SHORTEST_TOKEN} or more visible ASCII characters without a space: {how}"
        )
    return token.encode()


def check(settings: Settings) -> None:
    """Refuse settings that ask for HTTP and can't have it, before anything begins.

    Raises:
        ConfigurationError: see `access`; or prometheus-client isn't installed.
    """
    highest = access(settings, settings.workers - 1)
    if highest is not None:
        library()


@contextmanager
def watched_worker(app: App, settings: Settings, number: int = 0) -> Iterator[Worker]:
    """The app's worker, with its log lines and, where the settings ask for it, its metrics and health over HTTP.

    Raises:
        ConfigurationError: see `App.worker` and `access`; or the port can't be had.
        BrokerError, StoreError: see `App.worker`.
    """
    log = LogObserver(settings.log_rate)
    wanted = access(settings, number)
    if wanted is None:
        with app.worker(log) as worker:
            yield worker
        return
    metrics = MetricsObserver(app.group, app.topics)
    observers = Observers(log, metrics)
    with app.worker(observers) as worker, closing(app.open_store()) as store:
        policies = {name: topic.policy for name, topic in app.topics.items()}
        parked = StoreGauges(store, app.group, policies)
        metrics.add_gauges(PROCESS_GAUGES, lambda: process_gauges(worker))
        metrics.add_gauges((STORE_READABLE, *STORE_GAUGES), parked.read)
        pages = Pages(worker.health, library().make_wsgi_app(metrics.registry), wanted.token)
        with Server(wanted.address, pages) as server:
            observers.event(logging.INFO, "http", address=f"http://{server.address}")
            yield worker


class Pages:
    """The WSGI application: two pages of health, and one of metrics."""

    def __init__(self, health: Callable[[], Health], metrics: WSGIApplication, token: bytes) -> None:
        self._health = health
        self._metrics = metrics
        self._token = token

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        try:
            return self._page(environ, start_response)
        except Exception:  # noqa: BLE001 - a page that fails is our bug, and no reason to end a server
            LOGGER.exception("an HTTP page failed")
            return _answer(start_response, HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "see the log"})

    def _page(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        method, path = environ.get("REQUEST_METHOD"), environ.get("PATH_INFO")
        if path not in {"/metrics", "/health/live", "/health/ready"}:
            return _answer(start_response, HTTPStatus.NOT_FOUND, {"error": "no such page"})
        if method not in {"GET", "HEAD"}:
            return _answer(start_response, HTTPStatus.METHOD_NOT_ALLOWED, {"error": "GET only"}, ("Allow", "GET, HEAD"))
        if path != "/metrics":
            body: Iterable[bytes] = self._health_page(start_response, path)
        elif self._may_read(environ.get("HTTP_AUTHORIZATION", "")):
            environ["REQUEST_METHOD"] = "GET"
            body = self._metrics(environ, start_response)
        else:
            challenges = [("WWW-Authenticate", f'{scheme} realm="seriatim"') for scheme in ("Bearer", "Basic")]
            body = _answer(start_response, HTTPStatus.UNAUTHORIZED, {"error": "token needed"}, *challenges)
        return [] if method == "HEAD" else body

    def _health_page(self, start_response: StartResponse, path: str) -> list[bytes]:
        health = self._health()
        good = health.live if path == "/health/live" else health.ready
        page = {
            "status": _status(health, path),
            "keeper": health.keeper.condition.value,
            "lanes": {lane.name: lane.condition.value for lane in health.lanes},
        }
        return _answer(start_response, HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE, page)

    def _may_read(self, shown: str) -> bool:
        """Whether a header shows the token: as a bearer's, or as the password of any user."""
        scheme, _, value = shown.partition(" ")
        if scheme.lower() == "bearer":
            return hmac.compare_digest(value.strip().encode("utf-8", "replace"), self._token)
        if scheme.lower() == "basic":
            with suppress(binascii.Error, ValueError):
                _, _, password = base64.b64decode(value.strip(), validate=True).partition(b":")
                return hmac.compare_digest(password, self._token)
        return False


def _status(health: Health, path: str) -> str:
    if path == "/health/live":
        return "live" if health.live else "dead"
    if health.stopping:
        return "stopping"
    if health.ready:
        return "ready"
    return "not ready" if health.has_share else "gathering its share"


def _answer(
    start_response: StartResponse, status: HTTPStatus, page: dict[str, Any], *headers: tuple[str, str]
) -> list[bytes]:
    body = json.dumps(page).encode() + b"\n"
    start_response(
        f"{status.value} {status.phrase}",
        [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            *headers,
        ],
    )
    return [body]


class _Handler(WSGIRequestHandler):
    """One request; then the connection ends."""

    timeout = DEADLINE_S
    server_version = "seriatim"
    sys_version = ""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Nothing: who asks how often is of no interest."""

    def get_stderr(self) -> io.StringIO:
        """Nowhere: a client that went away is no error of ours."""
        return io.StringIO()


class Server(WSGIServer):
    """Answers requests on threads of its own from `__enter__` until `__exit__`.

    Raises:
        ConfigurationError: the address can't be listened on.
    """

    allow_reuse_port = False
    request_queue_size = 64

    def __init__(self, address: Address, app: WSGIApplication) -> None:
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self._host = address.host
        self._slots = threading.BoundedSemaphore(THREADS)
        self._mutex = threading.Lock()
        self._open: dict[socket.socket, float] = {}
        self._ending = False
        try:
            super().__init__((address.host, address.port), _Handler)
        except OSError as error:
            reason = error.strerror or error
            raise ConfigurationError(f"can't listen on {address} for HTTP: {reason}; set 'http' to another") from error
        self.set_app(app)
        self._pool = ThreadPoolExecutor(THREADS, "http")
        self._thread = threading.Thread(target=self.serve_forever, args=(0.2,), name="http", daemon=True)

    @property
    def address(self) -> Address:
        """Where it listens."""
        return Address(self._host, self.server_port)

    def server_bind(self) -> None:
        """Bind, without asking the name server for our own name."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self._host, self.socket.getsockname()[1]
        self.setup_environ()

    def __enter__(self) -> Server:  # noqa: PYI034 - Self is of Python 3.11
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending = True
        self.shutdown()
        self.server_close()
        self._hang_up(0.0)
        self._pool.shutdown()

    # -- connections

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer on a thread of the pool; where all are busy, wait until one is free or its time is over."""
        while not self._slots.acquire(timeout=0.05):
            self._hang_up(DEADLINE_S)
            if self._ending:
                self.shutdown_request(request)
                return
        with self._mutex:
            self._open[request] = time.monotonic()
        self._pool.submit(self._serve, request, client_address)

    def _serve(self, request: socket.socket, client_address: Any) -> None:
        try:
            with suppress(OSError):  # it went away, or was given up on
                self.finish_request(request, client_address)
        finally:
            with self._mutex:
                del self._open[request]
            self.shutdown_request(request)
            self._slots.release()

    def service_actions(self) -> None:
        """Called by the library again and again."""
        self._hang_up(DEADLINE_S)

    def _hang_up(self, after_s: float) -> None:
        """End connections that take longer: who reads or writes on them gets an error at once."""
        with self._mutex:
            now = time.monotonic()
            for connection, began in self._open.items():
                if now - began >= after_s:
                    with suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)
