"""Whose fault a database error is.

The verdict is read from the transaction that saw the error, never from the exception that a handler let out: a
handler can swallow, wrap or retry what it likes.
"""

from __future__ import annotations

import enum


class Fault(enum.Enum):
    """Who is to blame, and so what the lane does."""

    STORE = "store"  #: away, full, read-only: the lane pauses and tries again, nobody is charged
    CONTENTION = "contention"  #: deadlock, lock time-out: rolled back and tried again in smaller batches
    HANDLER = "handler"  #: everything else: the message failed
