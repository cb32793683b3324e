"""`seriatim run`: consume an app's topics."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from types import FrameType
from typing import Annotated, Any

import typer

from seriatim.cli.console import guarded
from seriatim.cli.loading import load_app
from seriatim.cli.serving import check, watched_worker
from seriatim.cli.signals import obey_signals
from seriatim.compensation.daemon import compensating
from seriatim.core.app import App
from seriatim.core.log import LOGGER, LogObserver, configure_logging
from seriatim.core.settings import Settings, load_settings

_SIBLINGS = "_SERIATIM_SIBLINGS"  #: how many processes `--workers` started, told to each of them
_NUMBER = "_SERIATIM_NUMBER"  #: … and which of them it is, from 0
LONGEST_END_S = 3700.0  #: as long as the longest `stop_s`, and a little


@guarded
def run(
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The app to run, such as shop.orders:app.")],
    broker: Annotated[str | None, typer.Option(help="Broker URL.")] = None,
    store: Annotated[str | None, typer.Option(help="Store URL, the database of the business tables.")] = None,
    lanes: Annotated[int | None, typer.Option(help="Threads in each process.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes.")] = None,
    until_idle: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Stop once nothing has arrived for so long.")
    ] = None,
    log: Annotated[str | None, typer.Option(help="Log lines: human or json.")] = None,
    log_level: Annotated[str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = None,
    compensate: Annotated[
        bool | None, typer.Option("--compensate", help="Do the work of `seriatim compensate` in each process, too.")
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(metavar="[HOST:]PORT", help="Serve metrics and health here; SERIATIM_HTTP_TOKEN guards."),
    ] = None,
) -> None:
    """Consume the app's topics: in order per key, each message with exactly one effect.

    SIGTERM or Ctrl-C finishes the batch in hand; a second one leaves at once. Neither loses anything.
    """
    settings = load_settings(
        broker=broker,
        store=store,
        lanes=lanes,
        workers=workers,
        log=log,
        log_level=log_level and log_level.upper(),
        http=http,
        compensate=compensate,
    )
    configure_logging(settings.log, settings.log_level)
    check(settings)
    if settings.workers > 1:
        raise typer.Exit(_run_many(settings.workers))
    _run_one(app, settings, until_idle)


def _run_one(target: str, settings: Settings, until_idle_s: float | None) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))  # asked to stop before it began: nothing is in hand
    app = load_app(target)
    app.configure(settings)
    _explain_idle(app, settings)
    beside = compensating(app, LogObserver(settings.log_rate)) if settings.compensate else nullcontext()
    with beside, watched_worker(app, settings, int(os.environ.get(_NUMBER, "0"))) as worker:
        obey_signals(worker)
        worker.run(until_idle_s)


def _explain_idle(app: App, settings: Settings) -> None:
    """Say so where more processes or threads were asked for than there are partitions to share."""
    for topic in app.topics.values():
        shares = int(os.environ.get(_SIBLINGS, "1")) * settings.lanes
        if shares > len(topic.partitions):
            LOGGER.warning(
                "%d lanes for the %d partitions of topic %s: %d stand by, since a partition is in one lane at a time",
                shares,
                len(topic.partitions),
                topic.name,
                shares - len(topic.partitions),
            )


def _run_many(workers: int) -> int:
    """Run this very command in several processes; the first that fails ends the others."""
    command = [sys.executable, "-m", "seriatim.cli.main", *sys.argv[1:]]
    environment = {**os.environ, "SERIATIM_WORKERS": "1", _SIBLINGS: str(workers)}
    command = _without_option(command, "--workers")
    children: list[subprocess.Popen[Any]] = []
    told: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        told.append(-number)  # a child that hadn't begun yet ends by the signal itself, and had nothing in hand
        for child in children:
            if child.poll() is None:
                child.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGINT, pass_on)
    while len(children) < workers and not told:
        number = {_NUMBER: str(len(children))}
        children.append(subprocess.Popen(command, env=environment | number))  # noqa: S603 - our own command
    return _wait(children, told)


def _wait(children: list[subprocess.Popen[Any]], told: list[int]) -> int:
    while True:
        codes = [0 if (code := child.poll()) in told else code for child in children]
        failed = [code for code in codes if code not in (None, 0)]
        if failed:
            for child in children:
                if child.poll() is None:
                    child.terminate()
            return _end(children, failed[0] or 1)
        if all(code == 0 for code in codes):
            return 0
        time.sleep(0.05)


def _end(children: list[subprocess.Popen[Any]], code: int) -> int:
    """Wait for those that were told to end; the exit status for `code`, as a shell would say it."""
    deadline = time.monotonic() + LONGEST_END_S
    for child in children:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    return 128 - code if code < 0 else code


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
