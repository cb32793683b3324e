"""What the daemon's engine is made of."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from seriatim.compensation.dead_letters import DeadLetters
from seriatim.compensation.direct import Direct
from seriatim.compensation.engine import Chore, Engine
from seriatim.compensation.purging import Purge, check_retention, horizon
from seriatim.compensation.watching import Watch
from seriatim.core.app import App
from seriatim.core.broker import Broker
from seriatim.core.brokers import open_broker
from seriatim.core.decision import Policy
from seriatim.core.locking.database import purge
from seriatim.core.observer import Observer
from seriatim.core.optional import OptionalParts
from seriatim.core.settings import Settings
from seriatim.core.store import SqlStore, open_store
from seriatim.core.store.port import Scope
from seriatim.core.topic import Topic

DIRECT_EVERY_S = 0.2
DEAD_LETTERS_EVERY_S = 5.0
PURGE_EVERY_S = 60.0
WATCH_EVERY_S = 30.0


def make_engine(
    store: SqlStore,
    settings: Settings,
    observer: Observer,
    app: App | None = None,
    *,
    direct: bool = False,
    broker: Broker | None = None,
    parts: OptionalParts | None = None,
) -> Engine:
    """An engine on `store`. `app` gives the policies that the retention is checked against, and `direct` its handlers.

    The topics' dead-letter queues are read from `broker`, if it is given.

    Raises:
        ConfigurationError: the retention is shorter than a copy of a message may take to come.
    """
    topics = [] if app is None else list(app.topics.values())
    chores = [Chore("watch", WATCH_EVERY_S, Watch(store, observer).look)]
    if settings.retention_s is not None:
        policies = [topic.policy for topic in topics] or [Policy()]
        check_retention(settings.retention_s, horizon(settings.redelivery_s, policies))
        purging = store.session()
        retention_s = settings.retention_s
        chores.append(Chore("purge of locks", PURGE_EVERY_S, lambda: purge(store, retention_s) > 0))
        chores.append(Chore("purge", PURGE_EVERY_S, Purge(purging, settings.retention_s).step, purging.close))
    if direct and app is not None:
        running = store.session()
        runner = Direct(running, app.group, topics, observer, parts)
        chores.append(Chore("direct", DIRECT_EVERY_S, runner.run, running.close))
    if app is not None and broker is not None:
        chores += [_dead_letters(store, broker, app, topic, observer) for topic in topics if topic.dead_letters]
    return Engine(chores, observer)


@contextmanager
def opened_engine(
    settings: Settings, observer: Observer, app: App | None = None, *, direct: bool = False
) -> Iterator[Engine]:
    """An engine, with all that it needs opened for the length of the block; see `make_engine`.

    Raises:
        ConfigurationError: see `make_engine`. BrokerError, StoreError: one of them is away, or isn't initialised.
    """
    with ExitStack() as opened:
        store = opened.enter_context(closing(open_store(settings.store, lease_s=settings.lease_s)))
        store.check()
        broker = parts = None
        if app is not None and any(topic.dead_letters for topic in app.topics.values()):
            broker = opened.enter_context(closing(open_broker(settings.broker)))
        if app is not None and direct:
            parts = opened.enter_context(app.optional_parts(store, observer))
        yield make_engine(store, settings, observer, app, direct=direct, broker=broker, parts=parts)


@contextmanager
def compensating(app: App, observer: Observer) -> Iterator[None]:
    """The engine on a thread of its own, beside a worker, for the length of the block.

    Raises:
        ConfigurationError, BrokerError, StoreError: see `opened_engine`.
        SeriatimError: it ended in a way that waiting couldn't mend.
    """
    failures: list[BaseException] = []
    with opened_engine(app.settings, observer, app) as engine:

        def work() -> None:
            try:
                engine.run()
            except BaseException as error:  # noqa: BLE001 - raised again where the block ends
                observer.event(logging.CRITICAL, "compensation failed", error=repr(error))
                failures.append(error)

        thread = threading.Thread(target=work, name="compensation", daemon=True)
        thread.start()
        try:
            yield
        finally:
            engine.stop()
            thread.join(app.settings.stop_s)
    if failures:
        raise failures[0]


def _dead_letters(store: SqlStore, broker: Broker, app: App, topic: Topic, observer: Observer) -> Chore:
    source = topic.dead_letters or ""
    consumer = broker.dead_letters(topic.name, source)
    letters = DeadLetters(store.session(), Scope(app.group, topic.name), topic, source, consumer, observer)
    return Chore(f"dead letters of {topic.name}", DEAD_LETTERS_EVERY_S, letters.step, letters.close)
