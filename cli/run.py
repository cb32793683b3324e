"""`seriatim run`: consume an app's topics."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import FrameType
from typing import Annotated, Any

import typer

from seriatim.cli.console import guarded
from seriatim.cli.loading import load_app
from seriatim.core.log import LogObserver, configure_logging
from seriatim.core.settings import Settings, load_settings
from seriatim.core.worker import Worker

AT_ONCE = 130  #: exit status after a second SIGTERM or SIGINT


@guarded
def run(
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The app to run, such as shop.orders:app.")],
    broker: Annotated[str | None, typer.Option(help="Broker URL.")] = None,
    store: Annotated[str | None, typer.Option(help="Store URL, the database of the business tables.")] = None,
    lanes: Annotated[int | None, typer.Option(help="Threads in each process.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes.")] = None,
    until_idle: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Stop once nothing has arrived for so long.")
    ] = None,
    log: Annotated[str | None, typer.Option(help="Log lines: human or json.")] = None,
    log_level: Annotated[str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = None,
) -> None:
    """Consume the app's topics: in order per key, each message with exactly one effect.

    SIGTERM or Ctrl-C finishes the batch in hand; a second one leaves at once. Neither loses anything.
    """
    settings = load_settings(
        broker=broker, store=store, lanes=lanes, workers=workers, log=log, log_level=log_level and log_level.upper()
    )
    configure_logging(settings.log, settings.log_level)
    if settings.workers > 1:
        raise typer.Exit(_run_many(settings.workers))
    _run_one(app, settings, until_idle)


def _run_one(target: str, settings: Settings, until_idle_s: float | None) -> None:
    app = load_app(target)
    app.configure(settings)
    with app.worker(LogObserver(settings.log_rate)) as worker:
        _obey_signals(worker)
        worker.run(until_idle_s)


def _obey_signals(worker: Worker) -> None:
    def on_signal(number: int, _: FrameType | None) -> None:
        if worker.stopping:
            os._exit(AT_ONCE)  # the second signal: the broker or the position brings back what was in hand
        del number
        worker.stop()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)


def _run_many(workers: int) -> int:
    """Run this very command in several processes; the first that fails ends the others."""
    command = [sys.executable, "-m", "seriatim.cli.main", *sys.argv[1:]]
    environment = {**os.environ, "SERIATIM_WORKERS": "1"}
    command = _without_option(command, "--workers")
    children = [subprocess.Popen(command, env=environment) for _ in range(workers)]  # noqa: S603 - our own command

    def pass_on(number: int, _: FrameType | None) -> None:
        for child in children:
            if child.poll() is None:
                child.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGINT, pass_on)
    return _wait(children)


def _wait(children: list[subprocess.Popen[Any]]) -> int:
    while True:
        codes = [child.poll() for child in children]
        failed = [code for code in codes if code not in (None, 0)]
        if failed:
            for child in children:
                if child.poll() is None:
                    child.terminate()
            for child in children:
                child.wait()
            return failed[0] or 1
        if all(code == 0 for code in codes):
            return 0
        time.sleep(0.05)


def _without_option(command: list[str], option: str) -> list[str]:
    kept: list[str] = []
    skip = False
    for part in command:
        if skip:
            skip = False
        elif part == option:
            skip = True
        elif not part.startswith(f"{option}="):
            kept.append(part)
    return kept
