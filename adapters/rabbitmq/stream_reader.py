"""Reading a partition from a stream, after a position.

The position is the offset and the digest of the last handled message. Reading begins *at* that message: it must come
first, or this isn't the log that was read. A stream asked for an offset beyond its end is silent for ever and says
nothing, so silence is an answer too; offsets have gaps, so nothing is computed from them.

=====================================  =======================================================================
what comes first                       what it means
=====================================  =======================================================================
that offset, that digest               go on
that offset, another digest            written anew: REWOUND, from the beginning
a later offset, the very next          nothing lies between them: go on
a later offset                         TRIMMED: what lay between can't be known; wait for a new start
nothing, and the last is an earlier    cut: REWOUND, from the beginning
nothing, and there is no last          empty: REWOUND, from the beginning
=====================================  =======================================================================
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from pika.channel import Channel
from pika.spec import Basic, BasicProperties

from seriatim.adapters.rabbitmq import troubles
from seriatim.adapters.rabbitmq.ending import EndWatch
from seriatim.adapters.rabbitmq.inbox import Inbox
from seriatim.adapters.rabbitmq.line import Line
from seriatim.adapters.rabbitmq.link import Link
from seriatim.adapters.rabbitmq.tray import Tray
from seriatim.adapters.rabbitmq.wire import OFFSET, Opener
from seriatim.core.message import Delivery, Position

_LOG = logging.getLogger(__name__)
_SILENCE_S = 5.0  # a replica may lag
_QUIET_S = 1.0


class StreamReader:
    """One stream. On the connection's thread only."""

    def __init__(  # noqa: PLR0917 - what it is made of
        self, link: Link, inbox: Inbox, tray: Tray, opener: Opener, stream: str, after: Position | None
    ) -> None:
        self.line = Line(link, self)
        self._inbox = inbox
        self._tray = tray
        self._opener = opener
        self._stream = stream
        self._prefetch = link.settings.prefetch
        self._end = EndWatch(self.line, inbox, tray, stream, quiet_s=_QUIET_S, counts=False)
        self._after = after
        self._silent = False  # it said nothing at the position: what is its last message?
        self._stopped = False
        self._refused = False  # … and the lane was told
        self._expect: Callable[[Delivery], bool] | None = None  # what to do with the first; whether to hand it out

    def opened(self, channel: Channel) -> None:
        """Begin where the position says."""
        if self._stopped:
            return
        channel.add_on_cancel_callback(lambda _frame: self.line.reopen(f"the server cancelled {self._stream!r}"))
        channel.basic_qos(prefetch_count=self._prefetch)
        if self._after is None:
            self._consume("first", None, self._reading)
        elif self._silent:
            self._consume("last", self._judge_last, lambda: self.line.later(_SILENCE_S, self._no_last))
        elif not self._after.offset.isdecimal():
            self._rewind(f"the position {self._after.offset!r} is none of a stream")
        else:
            begin = int(self._after.offset)
            self._consume(begin, self._judge_first, lambda: self.line.later(_SILENCE_S, self._no_first))

    def closed(self, error: BaseException) -> None:
        """What wasn't handed out comes again. A refusal voids what is in hand, and is told, once."""
        refused = troubles.is_refusal(error)
        if refused and not self._refused:
            why = troubles.of_reading(error, f"stream {self._stream!r}")
            self._after = self._inbox.void(self._tray, why, always=True)
        elif not self._stopped:
            self._after = self._inbox.forget_arrived(self._tray)
        self._refused = self._refused or refused
        self._end.reset()

    def settle(self, channel: Channel, tag: int) -> None:
        """Let the server send as many more; the position itself is kept by the store."""
        if self.line.is_current(channel):
            channel.basic_ack(tag, multiple=True)
        self._end.look()

    def _consume(self, offset: str | int, expect: Callable[[Delivery], bool] | None, then: Callable[[], None]) -> None:
        self._expect = expect
        self.line.consume(self._stream, self._arrived, lambda _answer: then(), arguments={OFFSET: offset})

    def _arrived(self, channel: Channel, method: Basic.Deliver, properties: BasicProperties, body: bytes) -> None:
        if not self.line.is_current(channel):
            return
        handle = (self, channel, method.delivery_tag)
        delivery = self._opener.open(properties, body, handle, redelivered=False)
        if self._expect is not None:
            expect, self._expect = self._expect, None
            if not expect(delivery):
                return
        self._end.arrived()
        self._inbox.put(self._tray, delivery)

    def _reading(self) -> None:
        self._refused = False
        self.line.works()
        self._end.look()

    def _judge_first(self, first: Delivery) -> bool:
        """The first message at or after the position's offset; whether it is to be handed out."""
        position, channel = first.position, self.line.channel
        if position is None or self._after is None or channel is None:
            return False
        wanted, found = int(self._after.offset), int(position.offset)
        if position == self._after:
            self._reading()
            return False
        if found == wanted:
            self._rewind(f"at offset {wanted} is another message than was handled: the stream was written anew")
            return False
        if found == wanted + 1:
            self._reading()
            return True
        self._trimmed(wanted, found)
        return False

    def _judge_last(self, last: Delivery) -> bool:
        found = "" if last.position is None else last.position.offset
        if found.isdecimal() and int(found) >= int(self._offset):  # it was only slow
            self._silent = False
            self.line.reopen("the position is there after all")
        else:
            self._rewind(f"the stream was cut or made anew: offset {self._offset} isn't there, near its end is {found}")
        return False

    def _no_first(self) -> None:
        if self._expect is not None:
            self._silent = True
            self.line.reopen("silence at the position")

    def _no_last(self) -> None:
        if self._expect is not None:
            self._rewind(f"the stream is empty, and offset {self._offset} was handled: it was made anew")

    @property
    def _offset(self) -> str:
        return "" if self._after is None else self._after.offset

    def _rewind(self, why: str) -> None:
        self._inbox.rewound(self._tray, f"stream {self._stream!r}: {why}")
        self._after, self._silent, self._expect = None, False, None
        self.line.works()
        self.line.reopen(why)

    def _trimmed(self, wanted: int, found: int) -> None:
        self._stopped = True
        self._inbox.trimmed(
            self._tray,
            f"stream {self._stream!r}: offset {wanted}, the last handled, is gone, and the first kept is {found}: "
            "what lay between is gone too, and can't be known",
        )
        self.line.close(lambda: None)
