"""What an error of pika or of the server means: whose fault it is, and the remedy. The driver's error is the cause."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable

from pika import exceptions

from seriatim.adapters.rabbitmq.settings import Settings
from seriatim.core.errors import BrokerError, ConfigurationError

DRIVER_ERRORS = (exceptions.AMQPError, OSError)  #: what pika raises, TLS and time-outs included
_ACCESS_REFUSED, _NOT_FOUND, _RESOURCE_LOCKED, _PRECONDITION_FAILED, _NOT_ALLOWED = 403, 404, 405, 406, 530
_RESOURCE_ERROR, _INTERNAL_ERROR = 506, 541
_OTHER_NAME = "connect by the name that it was made for, or give verify_hostname=no"
_CERTIFICATES = {10: "it must be renewed there", 62: _OTHER_NAME, 64: _OTHER_NAME}  # codes of X509_V_ERR_…
_NO_RIGHT = ". Give the user the right to it (rabbitmqctl set_permissions)"


class NoAnswer(BrokerError):
    """The server was asked something, and says nothing."""


def of_connection(settings: Settings, error: BaseException) -> BrokerError | ConfigurationError:
    """What kept a connection from being opened, or ended it."""
    causes = list(_unwrapped(error))
    text = f"RabbitMQ at {settings.server}"
    vhost = settings.parameters.virtual_host
    for cause in causes:
        if isinstance(cause, (exceptions.AuthenticationError, exceptions.ProbableAuthenticationError)):
            return ConfigurationError(
                f"{text} refused the credentials of user {settings.user!r}: correct them in the broker's URL"
            )
        if isinstance(cause, exceptions.ProbableAccessDeniedError) or _code(cause) == _NOT_ALLOWED:
            return ConfigurationError(
                f"{text}: there is no vhost {vhost!r}, or user {settings.user!r} may not use it: make it "
                f"(rabbitmqctl add_vhost, set_permissions), or correct the broker's URL"
            )
        if isinstance(cause, ssl.SSLCertVerificationError):
            remedy = _CERTIFICATES.get(cause.verify_code, "give ca_file= with the authority that has signed it")
            return ConfigurationError(f"{text}: its certificate isn't trusted ({cause.verify_message}): {remedy}")
        if isinstance(cause, ssl.SSLError):
            return ConfigurationError(
                f"{text}: no TLS can be spoken with it ({cause.reason or cause}): give the port of its TLS listener "
                "(5671 by default), or amqp:// without TLS"
            )
        if isinstance(cause, socket.gaierror):
            return BrokerError(f"{text}: the name can't be resolved ({cause})")
    return BrokerError(f"{text} is away: {'; '.join(dict.fromkeys(said(cause) for cause in causes)) or repr(error)}")


def of_channel(error: BaseException, what: str) -> BrokerError | ConfigurationError:
    """Why the server refused to do `what` on a channel."""
    code = _code(error)
    text = f"{what}: {said(error)}"
    if code == _PRECONDITION_FAILED:
        return ConfigurationError(
            f"{text}. It is there already with other settings: delete it once it is empty (rabbitmqctl delete_queue), "
            "or give the queue_type= and retention in the broker's URL that it was made with"
        )
    if code == _ACCESS_REFUSED:
        return ConfigurationError(text + _NO_RIGHT)
    if code == _RESOURCE_LOCKED:
        return ConfigurationError(f"{text}. It is exclusive to another connection: make it durable and shared")
    return BrokerError(text)


def passes(error: BaseException) -> bool:
    """Whether it is soon over: others do the same at this moment (make one stream), or the server is starting."""
    return _code(error.__cause__) in {_RESOURCE_ERROR, _INTERNAL_ERROR} or _is_down(error.__cause__)


def is_missing(error: BaseException | None) -> bool:
    """Whether the server said that there is no such thing; a thing whose node is down is there."""
    return _code(error) == _NOT_FOUND and not _is_down(error)


def is_refusal(error: BaseException) -> bool:
    """Whether there is a server that doesn't do what it was asked: it closed the channel, or says nothing."""
    return isinstance(error, (exceptions.ChannelClosedByBroker, NoAnswer))


def of_reading(error: BaseException, what: str) -> str:
    """Why `what` can't be read now, and the remedy where there is one to be named."""
    remedy = ""
    if is_missing(error):
        remedy = ": declare the topic again (seriatim run does)"
    elif _code(error) == _ACCESS_REFUSED:
        remedy = _NO_RIGHT
    return f"{what}: {said(error)}{remedy}"


def _is_down(error: BaseException | None) -> bool:
    """RabbitMQ says 404 of a queue whose node is down, or still starting, too."""
    return _code(error) == _NOT_FOUND and error is not None and "is down" in said(error)


def _code(error: BaseException | None) -> int | None:
    if isinstance(error, (exceptions.ChannelClosed, exceptions.ConnectionClosed)):
        return error.reply_code
    return None


def said(error: BaseException) -> str:
    """What the server, or the driver, said."""
    if isinstance(error, (exceptions.ChannelClosed, exceptions.ConnectionClosed)):
        return error.reply_text
    return str(error) or type(error).__name__


def _unwrapped(error: BaseException) -> Iterable[BaseException]:
    """The errors within pika's wrappers (AMQPConnectionWorkflowFailed holds a list, its connectors one each)."""
    inner = list(getattr(error, "exceptions", ())) or [getattr(error, "exception", None)]
    inner += [argument for argument in getattr(error, "args", ()) if isinstance(argument, BaseException)]
    found = [one for one in inner if isinstance(one, BaseException)]
    if not found:
        yield error
    for one in found:
        yield from _unwrapped(one)
