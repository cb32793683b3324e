"""Every error Seriatim raises, by whose fault it is.

One root, `SeriatimError`; the first fork says who can mend it: the configuration, the message, the broker or the store.
A driver's own error stays as the cause (``raise … from``). A message names the thing and the remedy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seriatim.core.message import Message


class SeriatimError(Exception):
    """Root of everything that Seriatim raises on purpose."""


class ConfigurationError(SeriatimError):
    """A setting, a declaration or a piece of wiring is wrong; running on can't mend it."""


class InvalidMessage(SeriatimError, ValueError):
    """A message breaks a rule of its own: no key, a key too long, a body that can't be encoded."""


class ForbiddenStatement(SeriatimError):
    """A handler tried to end, or to change, the transaction that isn't its own."""


class BrokerError(SeriatimError):
    """The broker is away, refused something, or doesn't hold what was asked for."""


class SendFailed(BrokerError):
    """The broker didn't confirm these messages: each may or may not have arrived.

    Their keys are in doubt. Send them again (their `biz_key` makes it harmless), or abandon the keys by name.
    """

    def __init__(self, message: str, unconfirmed: Sequence[Message]) -> None:
        super().__init__(message)
        self.unconfirmed = tuple(unconfirmed)


class KeyInDoubt(BrokerError):
    """An earlier send of this key was never confirmed; sending later messages of it could overtake the earlier one."""


class StoreError(SeriatimError):
    """The store is away, locked, full, read-only, or not what the program expects."""


class StoreUnavailable(StoreError):
    """The store can't be used just now. Nothing was decided; the lane pauses and tries again."""


class Contention(StoreError):
    """Two transactions wanted the same rows (deadlock, lock time-out). Rolled back; worth trying again."""


#: Trouble of the store that passes: rolled back, nobody's fault, worth trying again after a pause.
PASSING = (StoreUnavailable, Contention)


class DuplicateKey(StoreError):
    """A row of this key is there already."""


class FenceLost(StoreError):
    """The partition belongs to another owner now: what was in hand is dropped, unacknowledged."""


class SchemaMismatch(StoreError, ConfigurationError):
    """The store's tables are missing, older or newer than this program."""


class CommitUnknown(StoreUnavailable):
    """A COMMIT was sent and its answer lost: the transaction may or may not have happened."""
