"""Handlers: the user's functions, what they get and what they can ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from seriatim.core.errors import SeriatimError
from seriatim.core.message import Message
from seriatim.core.state_machine import Transition

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as OrmSession

    from seriatim.core.transaction import GuardedCursor, HandlerTransaction


LONGEST_WAIT_S = 10 * 365 * 86_400  #: the longest that a message can ask to wait: ten years


class Signal(SeriatimError):
    """What a handler raises to say what should become of its message."""


class Retry(Signal):
    """Try this message again, `after` seconds from now; its key waits."""

    def __init__(self, reason: str = "asked to be tried again", *, after: float) -> None:
        super().__init__(reason)
        if not 0 <= after <= LONGEST_WAIT_S:
            raise ValueError(f"Retry(after={after!r}): it is 0 to {LONGEST_WAIT_S} seconds")
        self.after_s = float(after)


class Reject(Signal):
    """Give this message up at once; the topic's `on_dead` says what becomes of its key."""


class Early(Signal):
    """A predecessor hasn't come yet. `waiting_for` names the states, or the biz_key, that must come first."""

    def __init__(self, reason: str = "its predecessor hasn't come", *, waiting_for: str | tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.wants = (waiting_for,) if isinstance(waiting_for, str) else tuple(waiting_for)
        if not all(isinstance(name, str) for name in self.wants):
            raise TypeError(f"Early(waiting_for={waiting_for!r}): it names states or biz_keys, as text")


@dataclass(slots=True)
class Context:
    """What a handler knows besides its event.

    `tx` is the transaction that holds the message's record: what is done through it is committed with the record or
    not at all. `state_before` is the entity's state before this message (None where there is no row, or no `moves=`).
    `attempt` counts the calls for this message, from 1.
    """

    message: Message
    tx: HandlerTransaction
    attempt: int
    partition: str
    state_before: str | None = None
    redelivered: bool = False
    response: Any = field(default=None, repr=False)

    @property
    def session(self) -> OrmSession:
        """An ORM session on the transaction."""
        return self.tx.session

    @property
    def cursor(self) -> GuardedCursor:
        """A new cursor, in the driver's own style, on the transaction."""
        return self.tx.cursor()


Function = Callable[[Any, Context], Any]
LockNames = Callable[[Any], str | Iterable[str]]  #: of an event: the business keys that its handler locks


@dataclass(frozen=True, slots=True)
class Handler:
    """A function for one message type. `once`: the type happens once in the life of its sharding key.

    `lock` gives the names that must be held while the message runs, such as an account that many orders share.
    """

    type: str
    function: Function
    moves: Transition | None = None
    once: bool = False
    lock: LockNames | None = None

    @property
    def has_default_biz_key(self) -> bool:
        """Whether `<sharding key>:<type>` names one message only."""
        return self.once or self.moves is not None
