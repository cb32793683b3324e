"""A topic as a program declares it: its partitions, routing, codec, handlers and policy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from seriatim.core.codec import Codec, JsonCodec
from seriatim.core.decision import Policy
from seriatim.core.errors import ConfigurationError, InvalidMessage
from seriatim.core.handler import Function, Handler, LockNames
from seriatim.core.keys import canonical_key
from seriatim.core.message import ANY, MAX_TOPIC, MAX_TYPE, NO_HEADERS, Message, check_text
from seriatim.core.routing import Routing
from seriatim.core.state_machine import Transition

F = TypeVar("F", bound=Function)


@dataclass(slots=True)
class Topic:
    """A logical stream of messages. Made by `App.topic`; handlers are added with `on`.

    `max_body` is the longest body in bytes that is accepted, by the producer and by the consumer. `keep_body` says
    whether a record keeps its request body: "always", "on_failure" or "never". `dead_letters` names a queue of the
    broker's own in which it puts what it gives up, as a policy of the server may tell it to: `seriatim compensate`
    parks what comes there.
    """

    name: str
    partitions: tuple[str, ...]
    codec: Codec = field(default_factory=JsonCodec)
    routing: Routing = field(default_factory=Routing)
    policy: Policy = field(default_factory=Policy)
    ignore: frozenset[str] = frozenset()
    max_body: int = 4 * 1024 * 1024
    keep_body: str = "on_failure"
    dead_letters: str | None = None
    _handlers: dict[str, Handler] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_text("topic", self.name, MAX_TOPIC)
        if not self.partitions or len(set(self.partitions)) != len(self.partitions):
            raise ConfigurationError(f"topic {self.name!r}: it needs partitions, each with an id of its own")
        if self.keep_body not in ("always", "on_failure", "never"):
            raise ConfigurationError(
                f"topic {self.name!r}: keep_body is {self.keep_body!r}; it is 'always', 'on_failure' or 'never'"
            )

    def on(
        self,
        type: str,  # noqa: A002 - the contract's word
        *,
        moves: Transition | None = None,
        once: bool = False,
        lock: LockNames | None = None,
    ) -> Callable[[F], F]:
        """Register the handler of a message type; ``"*"`` takes every type without a handler of its own.

        `moves` is the state transition that the message asks for; the handler runs only when it is legal. `once`
        declares that the type happens once in the life of its sharding key: ``<key>:<type>`` may be its biz_key then.
        `lock` is given the event and names business keys that no other handler, of any topic or group, shall work on
        at the same moment: they are locked before the transaction and given back after its commit (setting `lock`).

        Raises:
            ConfigurationError: the type has a handler already.
        """
        check_text("message type", type, MAX_TYPE)
        if type in self._handlers:
            raise ConfigurationError(f"topic {self.name!r}: type {type!r} has a handler already")

        def register(function: F) -> F:
            self._handlers[type] = Handler(type, function, moves, once, lock)
            return function

        return register

    def handler(self, type: str) -> Handler | None:  # noqa: A002 - the contract's word
        """The handler of a message type."""
        return self._handlers.get(type) or self._handlers.get(ANY)

    @property
    def handlers(self) -> Iterable[Handler]:
        """Every handler."""
        return self._handlers.values()

    def types_reaching(self, states: Iterable[str]) -> frozenset[str]:
        """The types whose messages move their entity to one of these states; `ANY` stands for every other type."""
        wanted = set(states)
        return frozenset(one.type for one in self.handlers if one.moves is not None and one.moves.target in wanted)

    @property
    def locks(self) -> bool:
        """Whether a handler locks business keys."""
        return any(handler.lock is not None for handler in self.handlers)

    def listed_types(self) -> str:
        """The types that have handlers, in words."""
        return ", ".join(sorted(self._handlers)) or "none"

    def default_biz_key(self, sharding_key: str, type: str) -> str | None:  # noqa: A002 - the contract's word
        """``<sharding key>:<type>`` for a type that happens once in the life of its key, else None."""
        handler = self.handler(type)
        return f"{sharding_key}:{type}" if handler is not None and handler.has_default_biz_key else None

    def message(
        self,
        *,
        key: str | int | bytes,
        type: str,  # noqa: A002 - the contract's word
        body: Any,
        biz_key: str | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
        state: str | None = None,
        seq: int | None = None,
        reply_to: str | None = None,
        correlation_id: str | None = None,
        produced_at: float | None = None,
    ) -> Message:
        """A message of this topic, its body encoded by the topic's codec.

        Raises:
            InvalidMessage: a key is missing or too long, the body has no encoding or is too long, or the type may
                happen more than once in the life of its key and no biz_key was given.
        """
        sharding_key = canonical_key(key)
        biz_key = biz_key or self.default_biz_key(sharding_key, type)
        if biz_key is None:
            raise InvalidMessage(
                f"a message of type {type!r} needs an explicit biz_key (a flow number): <key>:<type> is enough only "
                "for a type that happens once in the life of its key (declare it with moves= or once=True)"
            )
        data = self.codec.encode(body)
        self.check_body(data)
        return Message(
            topic=self.name,
            sharding_key=sharding_key,
            biz_key=biz_key,
            type=type,
            body=data,
            headers=headers,
            produced_at=time.time() if produced_at is None else produced_at,
            state=state,
            seq=seq,
            reply_to=reply_to,
            correlation_id=correlation_id,
        )

    def check_body(self, data: bytes) -> None:
        """Raise `InvalidMessage` for a body that is too long."""
        if len(data) > self.max_body:
            raise InvalidMessage(
                f"the body has {len(data)} bytes; topic {self.name!r} takes at most {self.max_body} (max_body=): "
                "send a reference to it instead"
            )
