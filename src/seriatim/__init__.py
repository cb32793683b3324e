"""Seriatim: messages in order per business key, each with exactly one effect, on the broker you already have."""

from seriatim.core.app import App
from seriatim.core.backoff import Backoff
from seriatim.core.codec import BytesCodec, Codec, JsonCodec
from seriatim.core.decision import Policy
from seriatim.core.errors import (
    BrokerError,
    ConfigurationError,
    InvalidMessage,
    KeyInDoubt,
    SendFailed,
    SeriatimError,
    StoreError,
)
from seriatim.core.handler import Context, Early, Reject, Retry
from seriatim.core.message import Message
from seriatim.core.producing import OrderedProducer
from seriatim.core.routing import Routing
from seriatim.core.settings import Settings
from seriatim.core.state_machine import StateMachine
from seriatim.core.topic import Topic

__all__ = [
    "App",
    "Backoff",
    "BrokerError",
    "BytesCodec",
    "Codec",
    "ConfigurationError",
    "Context",
    "Early",
    "InvalidMessage",
    "JsonCodec",
    "KeyInDoubt",
    "Message",
    "OrderedProducer",
    "Policy",
    "Reject",
    "Retry",
    "Routing",
    "SendFailed",
    "SeriatimError",
    "Settings",
    "StateMachine",
    "StoreError",
    "Topic",
]
