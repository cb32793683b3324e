"""The application: a consumer group, its topics, and the ways to run it and to send to it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

from seriatim.core.beside import check_eviction
from seriatim.core.broker import Broker
from seriatim.core.brokers import open_broker
from seriatim.core.codec import Codec, JsonCodec
from seriatim.core.decision import OnDead, OnFailure, Policy
from seriatim.core.errors import ConfigurationError
from seriatim.core.filtering import open_filter
from seriatim.core.locking import open_locks
from seriatim.core.message import check_text
from seriatim.core.observer import Observer
from seriatim.core.optional import OptionalParts
from seriatim.core.producing import OrderedProducer
from seriatim.core.routing import Routing, numbered
from seriatim.core.settings import Settings, load_settings
from seriatim.core.store import SqlStore, open_store
from seriatim.core.store.port import Scope
from seriatim.core.store.schema import MAX_GROUP
from seriatim.core.topic import Topic
from seriatim.core.worker import Worker, WorkerOptions


class App:
    """A consumer group and its topics.

    `settings` say where the broker and the store are; without them they are read from flags, environment and file
    when they are first needed.
    """

    def __init__(self, group: str, *, settings: Settings | None = None) -> None:
        check_text("consumer group", group, MAX_GROUP)
        self.group = group
        self.topics: dict[str, Topic] = {}
        self._settings = settings

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        if self._settings is None:
            self._settings = load_settings()
        return self._settings

    def configure(self, settings: Settings) -> None:
        """Use these settings from now on."""
        self._settings = settings

    def topic(
        self,
        name: str,
        *,
        partitions: int | Sequence[str],
        codec: Codec | None = None,
        routing: Routing | None = None,
        policy: Policy | None = None,
        on_failure: str | OnFailure | None = None,
        on_dead: str | OnDead | None = None,
        max_attempts: int | None = None,
        ignore: Iterable[str] = (),
        max_body: int = 4 * 1024 * 1024,
        keep_body: str = "on_failure",
        dead_letters: str | None = None,
    ) -> Topic:
        """Declare a topic. `partitions` is their number, or their ids as the broker names them.

        The number is kept in the store at the first run, and a different one is refused from then on.

        Raises:
            ConfigurationError: the topic is declared twice, or a value isn't one of those there are.
        """
        if name in self.topics:
            raise ConfigurationError(f"topic {name!r} is declared twice in the app of group {self.group!r}")
        ids = numbered(partitions) if isinstance(partitions, int) else tuple(partitions)
        topic = Topic(
            name=name,
            partitions=ids,
            codec=codec or JsonCodec(),
            routing=routing or Routing(),
            policy=_policy(name, policy or Policy(), on_failure, on_dead, max_attempts),
            ignore=frozenset(ignore),
            max_body=max_body,
            keep_body=keep_body,
            dead_letters=dead_letters,
        )
        self.topics[name] = topic
        return topic

    def open_broker(self) -> Broker:
        """The broker of the settings; closed by the caller."""
        return open_broker(self.settings.broker)

    def open_store(self) -> SqlStore:
        """The store of the settings; closed by the caller."""
        return open_store(self.settings.store, lease_s=self.settings.lease_s)

    @contextmanager
    def producer(self) -> Iterator[OrderedProducer]:
        """A producer for the app's topics, which are declared at the broker first.

        Raises:
            BrokerError: the broker is away.
        """
        broker = self.open_broker()
        try:
            for topic in self.topics.values():
                _check_partitions(broker, topic)
                broker.declare(topic.name, topic.partitions)
            producer = OrderedProducer(broker, self.topics)
            try:
                yield producer
            finally:
                producer.close()
        finally:
            broker.close()

    @contextmanager
    def worker(self, observer: Observer) -> Iterator[Worker]:
        """A worker on the broker and the store of the settings, everything declared.

        Raises:
            ConfigurationError: no topic or handler, or a declaration that contradicts what is there.
            BrokerError, StoreError: the broker or the store is away, or the store isn't initialised.
        """
        self._check()
        store = self.open_store()
        try:
            store.check()
            broker = self.open_broker()
            try:
                self._declare(store, broker)
                with self.optional_parts(store, observer) as parts:
                    topics = list(self.topics.values())
                    yield Worker(self.group, topics, store, broker, observer, self._options(), parts)
            finally:
                broker.close()
        finally:
            store.close()

    @contextmanager
    def optional_parts(self, store: SqlStore, observer: Observer) -> Iterator[OptionalParts]:
        """The locks, if a handler needs them, and the front filter, if the settings name one.

        Raises:
            ConfigurationError: a URL can't be read, or Redis's client isn't installed.
        """
        settings = self.settings
        with ExitStack() as opened:
            locks = front = None
            if any(topic.locks for topic in self.topics.values()):
                locks = opened.enter_context(closing(open_locks(settings.lock, store, ttl_s=settings.lock_ttl_s)))
                if settings.lock != "database":
                    _warn_of_eviction(settings.lock, "lock", observer)
            if settings.filter is not None:
                front = opened.enter_context(closing(open_filter(settings.filter, store, ttl_s=settings.filter_ttl_s)))
                _warn_of_eviction(settings.filter, "filter", observer)
            yield OptionalParts(locks, settings.lock_wait_s, front)

    def declare(self) -> None:
        """Declare the topics, and the group's part in them, at the broker and in the store; harmless when repeated.

        Where the broker has queues, what is sent before its group was declared is refused: so declare first.

        Raises:
            ConfigurationError: a declaration contradicts what is there.
            BrokerError, StoreError: the broker or the store is away, or the store isn't initialised.
        """
        with closing(self.open_store()) as store, closing(self.open_broker()) as broker:
            store.check()
            self._declare(store, broker)

    def _declare(self, store: SqlStore, broker: Broker) -> None:
        for topic in self.topics.values():
            _check_partitions(broker, topic)
            store.declare(Scope(self.group, topic.name), topic.partitions)
            broker.declare(topic.name, topic.partitions, self.group)

    def _options(self) -> WorkerOptions:
        settings = self.settings
        return WorkerOptions(
            lanes=settings.lanes,
            lease_s=settings.lease_s,
            batch_size=settings.batch_size,
            batch_s=settings.batch_ms / 1000,
            stop_s=settings.stop_s,
        )

    def _check(self) -> None:
        if not self.topics:
            raise ConfigurationError(f"the app of group {self.group!r} has no topic: declare one with app.topic(…)")
        for topic in self.topics.values():
            if not list(topic.handlers):
                raise ConfigurationError(
                    f"topic {topic.name!r} has no handler: register one with @topic.on(…), or nothing can be consumed"
                )


def _warn_of_eviction(url: str, part: str, observer: Observer) -> None:
    """Say so where the Redis at `url` may remove keys by itself."""
    if trouble := check_eviction(url, part):
        level = logging.ERROR if part == "lock" else logging.WARNING
        observer.event(level, f"{part} may lose keys", detail=trouble)


def _check_partitions(broker: Broker, topic: Topic) -> None:
    """Refuse a topic that the broker holds with other partitions: some would never be read, and keys would move."""
    there = broker.partitions(topic.name)
    if there and set(there) != set(topic.partitions):
        raise ConfigurationError(
            f"topic {topic.name!r} is declared with {len(topic.partitions)} partitions, but the broker holds "
            f"{len(there)} of it: keys would move between partitions and overtake themselves; declare {len(there)}, or "
            "grow the topic in the guided way"
        )


def _policy(
    topic: str,
    policy: Policy,
    on_failure: str | OnFailure | None,
    on_dead: str | OnDead | None,
    max_attempts: int | None,
) -> Policy:
    try:
        return replace(
            policy,
            on_failure=policy.on_failure if on_failure is None else OnFailure(on_failure),
            on_dead=policy.on_dead if on_dead is None else OnDead(on_dead),
            max_attempts=policy.max_attempts if max_attempts is None else max_attempts,
        )
    except ValueError as error:
        raise ConfigurationError(
            f"topic {topic!r}: {error}; on_failure is one of {', '.join(OnFailure)}, on_dead one of {', '.join(OnDead)}"
        ) from None
