"""`seriatim compensate`: the daemon that does what no lane does."""

from __future__ import annotations

from typing import Annotated

import typer

from seriatim.cli.console import guarded
from seriatim.cli.loading import load_app
from seriatim.cli.signals import obey_signals
from seriatim.compensation.daemon import opened_engine
from seriatim.core.errors import ConfigurationError
from seriatim.core.log import LogObserver, configure_logging
from seriatim.core.settings import load_settings


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
    with opened_engine(settings, LogObserver(settings.log_rate), loaded, direct=direct) as engine:
        obey_signals(engine)
        engine.run()
