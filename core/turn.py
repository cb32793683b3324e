"""One message's turn: the state guard, the handler, and what became of it as a value."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, replace

from seriatim.core.decision import Failed, Outcome, Reason
from seriatim.core.errors import Contention, ForbiddenStatement, InvalidMessage, StoreError, StoreUnavailable
from seriatim.core.faults import Fault
from seriatim.core.guard import Guard, Guarded
from seriatim.core.handler import Context, Early, Handler, Reject, Retry
from seriatim.core.message import Message
from seriatim.core.response import BadResponse, encode_response
from seriatim.core.state_machine import Move
from seriatim.core.task import Task
from seriatim.core.transaction import HandlerTransaction
from seriatim.core.view import Success, TooEarly

Result = Success | TooEarly | Failed

_SETTLED = {
    Move.ALREADY: Success(Outcome.ALREADY),
    Move.STALE: Success(Outcome.STALE),
    Move.ILLEGAL: Success(Outcome.STALE, illegal=True),
}


@dataclass(slots=True)
class Turn:
    """Runs messages one after another in one transaction."""

    tx: HandlerTransaction
    guard: Guard
    max_response: int

    def run(self, task: Task, attempt: int) -> tuple[Result, bool]:
        """Run one message; what became of it, and whether anything may have been written for it.

        Raises:
            StoreUnavailable, Contention: the transaction is gone, and that is nobody's fault.
        """
        if task.handler is None or task.message is None:
            reason = task.arrival.problem or Reason.MALFORMED
            return _unrun(reason, task.error), False
        try:
            guarded = self._guard(task, task.handler)
        except InvalidMessage as error:
            return Failed(Reason.FAILED, str(error), error_type=type(error).__name__), False
        except (StoreUnavailable, Contention):
            raise
        except StoreError as error:  # the move itself was refused: a constraint, a column that isn't there
            return Failed(Reason.FAILED, str(error), error_type=type(error.__cause__).__name__), True
        if guarded is not None and guarded.move is not Move.APPLY:
            return _unmoved(task, guarded), False
        before = None if guarded is None else guarded.before
        return self._call(task, task.handler, task.message, before, attempt), True

    def _guard(self, task: Task, handler: Handler) -> Guarded | None:
        return None if handler.moves is None else self.guard.move(handler.moves, task)

    def _call(self, task: Task, handler: Handler, message: Message, before: str | None, attempt: int) -> Result:
        context = Context(
            message=message,
            tx=self.tx,
            attempt=attempt,
            partition=task.partition,
            state_before=before,
            redelivered=task.delivery.redelivered,
        )
        reached = None if handler.moves is None else handler.moves.target
        try:
            with self.tx.turn():
                returned = handler.function(task.event, context)
            response = encode_response(returned, self.max_response)
            result: Result = Success(response=response, before=before, reached=reached)
        except BaseException as error:  # noqa: BLE001 - whatever a handler lets out is its message's failure
            result = _result_of(error)
        finally:
            self.guard.handler_ran()
        return self._overruled(result)

    def _overruled(self, result: Result) -> Result:
        """The transaction's own word on what happened outweighs whatever came out of the handler."""
        fault, error = self.tx.fault, self.tx.error
        if fault is Fault.STORE:
            raise StoreUnavailable(f"the store failed under a handler: {error}") from error
        if fault is Fault.CONTENTION:
            raise Contention(f"a handler's statement met contention: {error}") from error
        if fault is Fault.HANDLER and not isinstance(result, Failed):
            return Failed(
                Reason.FAILED,
                f"a statement failed and the handler went on: {error}; use tx.savepoint() for a part that may fail",
                error_type=type(error).__name__,
            )
        return result


def _unrun(reason: Reason, error: str) -> Failed:
    """The failure of a message that can't be run; contention and a missing handler are not its own fault."""
    counted = reason not in (Reason.UNHANDLED, Reason.CONTENTION)
    return Failed(reason, error, counted=counted, after_s=0.0 if reason is Reason.CONTENTION else None)


def _unmoved(task: Task, guarded: Guarded) -> Result:
    handler = task.handler
    if handler is None or handler.moves is None:
        raise AssertionError("the guard answered for a message that moves nothing")
    machine, target = handler.moves.machine, handler.moves.target
    if guarded.move is Move.EARLY:
        state = "there is no row" if guarded.before is None else f"the state is {guarded.before}"
        return TooEarly(machine.predecessors(target), f"{target} can't come yet: {state}")
    if guarded.move is Move.UNKNOWN:
        return Failed(
            Reason.FAILED,
            f"{machine.table}.{machine.column} is {guarded.before!r}, which the state machine can't judge for {target}",
            error_type="UnknownState",
        )
    return replace(_SETTLED[guarded.move], before=guarded.before)


def _said(error: BaseException) -> str:
    """What an exception says, as text that can be stored, whatever its own `__str__` does."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the user's code, and only asked for words
        text = ""
    return text.encode("utf-8", "replace").decode() or type(error).__name__


def _detail(error: BaseException) -> str:
    try:
        lines = traceback.format_exception(type(error), error, error.__traceback__)
    except Exception:  # noqa: BLE001 - the same
        return ""
    return "".join(lines[-12:]).encode("utf-8", "replace").decode()


def _result_of(error: BaseException) -> Result:
    if isinstance(error, Early):
        return TooEarly(error.wants, _said(error))
    kind = type(error).__name__
    if isinstance(error, Retry):
        return Failed(Reason.FAILED, _said(error), error_type=kind, after_s=error.after_s)
    if isinstance(error, Reject):
        return Failed(Reason.FAILED, _said(error), error_type=kind, final=True)
    if isinstance(error, (StoreUnavailable, Contention)):
        raise error
    if isinstance(error, (BadResponse, ForbiddenStatement, StoreError)):
        return Failed(Reason.FAILED, _said(error), error_type=kind)
    return Failed(Reason.FAILED, _said(error), detail=_detail(error), error_type=kind)
