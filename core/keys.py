"""One rule for what a sharding key is, whoever sends it and through whichever broker."""

from __future__ import annotations

from seriatim.core.errors import InvalidMessage

SHOWN = 40  #: characters of a refused key that an error message quotes


def canonical_key(value: str | int | bytes) -> str:
    """The text that stands for `value` as a sharding key: ``42``, ``"42"`` and ``b"42"`` are one key.

    Text is kept as it is: nothing is stripped, folded or normalised, so ``"a"`` and ``"a "`` are two keys.
    A whole number becomes its decimal digits; bytes are read as UTF-8. Anything else is refused rather than
    guessed at: ``True``, ``1.0`` or an object's ``str()`` would be another key in another program.

    Raises:
        InvalidMessage: the key is missing, empty or only blanks; is neither text, whole number nor bytes;
            or is what UTF-8 or a text column can't hold (other bytes, half a surrogate pair, NUL).
    """
    text = value if type(value) is str else _as_text(value)
    if text.isascii() and text.isprintable() and not text.isspace() and text:
        return text  # nearly every key ends here; what follows says what is wrong with the others
    if not text.strip():
        raise InvalidMessage(f"the sharding key is {value!r}: order needs one; pass the id of the business entity")
    _check_encodable(text)
    if "\x00" in text:
        raise InvalidMessage(f"the sharding key {text[:SHOWN]!r} holds a NUL, which brokers and stores don't keep")
    return text


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return _decimal(value)
    if isinstance(value, bytes):
        return _decoded(value)
    raise InvalidMessage(
        f"the sharding key is {value!r} ({type(value).__name__}): it must be text, a whole number or UTF-8 "
        "bytes; turn the id into text first"
    )


def _decimal(value: int) -> str:
    try:
        return int.__repr__(value)
    except ValueError as error:  # more digits than Python will print
        raise InvalidMessage("the sharding key is a number of thousands of digits; use a shorter id") from error


def _decoded(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise InvalidMessage(
            f"the sharding key {value[:SHOWN]!r} isn't UTF-8; decode it, or pass its hexadecimal digits"
        ) from error


def _check_encodable(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(
            f"the sharding key {text[:SHOWN]!r} holds half a surrogate pair: UTF-8 can't carry it"
        ) from error
