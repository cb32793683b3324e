"""`seriatim compensate`: the daemon that does what no lane does."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack, closing
from types import FrameType
from typing import Annotated

import typer

from seriatim.cli.console import guarded
from seriatim.cli.loading import load_app
from seriatim.compensation.daemon import make_engine
from seriatim.compensation.engine import Engine
from seriatim.core.brokers import open_broker
from seriatim.core.errors import ConfigurationError
from seriatim.core.log import LogObserver, configure_logging
from seriatim.core.settings import load_settings
from seriatim.core.store import open_store

AT_ONCE = 130  #: exit status after a second SIGTERM or SIGINT


@guarded
def compensate(
    app: Annotated[
        str | None, typer.Argument(metavar="[MODULE:APP]", help="The app, for its policies and for --direct.")
    ] = None,
    direct: Annotated[
        bool, typer.Option("--direct", help="Run heads that are due here, with the app's handlers, beside its lanes.")
    ] = False,
    broker: Annotated[str | None, typer.Option(help="Broker URL, where a topic has dead_letters=.")] = None,
    store: Annotated[str | None, typer.Option(help="Store URL, the database of the business tables.")] = None,
    retention: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Remove settled records that are older than this.")
    ] = None,
    redelivery: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="How late the broker or a producer may send a copy.")
    ] = None,
    log: Annotated[str | None, typer.Option(help="Log lines: human or json.")] = None,
    log_level: Annotated[str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = None,
) -> None:
    """Watch over what is parked, remove what is old enough, and (with --direct) run what is due. Any number may run.

    Parked messages come back by themselves where `seriatim run` consumes their partition. SIGTERM or Ctrl-C finishes
    the work in hand; a second one leaves at once. Neither loses anything.
    """
    settings = load_settings(
        broker=broker,
        store=store,
        retention_s=retention,
        redelivery_s=redelivery,
        log=log,
        log_level=log_level and log_level.upper(),
    )
    configure_logging(settings.log, settings.log_level)
    if direct and app is None:
        raise ConfigurationError("--direct runs the app's handlers: name the app, such as shop.orders:app")
    loaded = None if app is None else load_app(app)
    if loaded is not None:
        loaded.configure(settings)
    with ExitStack() as opened:
        tables = opened.enter_context(closing(open_store(settings.store, lease_s=settings.lease_s)))
        tables.check()
        letters = loaded is not None and any(topic.dead_letters for topic in loaded.topics.values())
        source = opened.enter_context(closing(open_broker(settings.broker))) if letters else None
        observer = LogObserver(settings.log_rate)
        parts = opened.enter_context(loaded.optional_parts(tables, observer)) if loaded is not None and direct else None
        engine = make_engine(tables, settings, observer, loaded, direct=direct, broker=source, parts=parts)
        _obey_signals(engine)
        engine.run()


def _obey_signals(engine: Engine) -> None:
    def on_signal(number: int, _: FrameType | None) -> None:
        if engine.stopping:
            os._exit(AT_ONCE)  # the second signal: what was in hand is rolled back
        del number
        engine.stop()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
