"""Running what is due without its lane: by the daemon itself, with the app's handlers (`seriatim compensate --direct`).

For when a partition's consumers are busy, stopped or elsewhere. A visit holds the partition's row for the length of
each transaction, as an operator's verb does, and changes its stamp; so its lane, if it has one, waits or reads again,
and nothing runs twice. A slow handler makes the lane wait as it would in the lane itself.

Whatever a visit runs is counted before it runs, in a transaction of its own: a message that ends its process would end
the daemon again and again otherwise.
"""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Sequence

from seriatim.core.due import DueWork
from seriatim.core.errors import Contention
from seriatim.core.execution import StampMoved, TransactionBroken
from seriatim.core.holding import Holding
from seriatim.core.observer import Observer
from seriatim.core.optional import OptionalParts
from seriatim.core.passing import Limits
from seriatim.core.response import MAX_RESPONSE
from seriatim.core.sizing import BatchSize
from seriatim.core.store.port import MICROSECOND, Scope, Session
from seriatim.core.topic import Topic
from seriatim.core.transactor import Transactor

VISIT_S = 30.0  #: how long a daemon that was killed in the middle keeps others from visiting its partition
HOLD_S = 10.0  #: how long one transaction may take before the leases it touches are renewed


class Direct:
    """Runs the due heads, and what is due aside, of some topics."""

    def __init__(
        self,
        session: Session,
        group: str,
        topics: Sequence[Topic],
        observer: Observer,
        parts: OptionalParts | None = None,
    ) -> None:
        self._session = session
        self._visitor = secrets.token_hex(16)
        self._transactors = [
            _visitor(session, Scope(group, topic.name), topic, observer, parts or OptionalParts()) for topic in topics
        ]

    def run(self) -> bool:
        """One round over everything that is due now; whether there was anything.

        Raises:
            StoreUnavailable: nothing was lost; run again later.
        """
        ran = [self._run_topic(transactor) for transactor in self._transactors]
        return any(ran)

    def _run_topic(self, transactor: Transactor) -> bool:
        scope, session = transactor.scope, self._session
        now = session.now()
        due = set(session.parking.due_partitions(scope, now))
        if not due:
            return False
        ran = False
        rows = session.leases.owners(scope)
        random.shuffle(rows)  # several daemons begin in different places
        for row in rows:
            if row.partition in due and row.paused is None:
                ran |= self._visit(transactor, row.partition, now)
        return ran

    def _visit(self, transactor: Transactor, partition: str, now: int) -> bool:
        """Run what is due of one partition, unless another daemon is there."""
        leases, scope = self._session.leases, transactor.scope
        row = leases.begin_visit(scope, partition, self._visitor, int(VISIT_S * MICROSECOND))
        if row is None:
            return False
        try:
            holding = Holding.visited(row, self._session.parking.outlook(scope, partition))
            return self._work(transactor, holding, now)
        finally:
            leases.end_visit(scope, partition, self._visitor)

    def _work(self, transactor: Transactor, holding: Holding, now: int) -> bool:
        try:
            return DueWork(transactor).run(holding, now)
        except StampMoved:
            return True  # its lane was quicker: what it left is looked at in the next round
        except Contention as error:
            transactor.tell(logging.INFO, "contention", partition=holding.partition, error=str(error))
            return False
        except TransactionBroken as error:
            transactor.suspect(error.parts)
            transactor.tell(
                logging.ERROR, "transaction ended by a handler", partition=holding.partition, error=str(error)
            )
            return True


def _visitor(session: Session, scope: Scope, topic: Topic, observer: Observer, parts: OptionalParts) -> Transactor:
    return Transactor(
        scope=scope,
        topic=topic,
        session=session,
        limits=Limits(ttl=int(HOLD_S * MICROSECOND), batch_s=HOLD_S, max_response=MAX_RESPONSE),
        size=BatchSize(1, HOLD_S),
        observer=observer,
        parts=parts,
        visiting=True,
    )
