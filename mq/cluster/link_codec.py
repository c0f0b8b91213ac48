"""Values of the broker's API as bytes, and back: JSON with bytes beside it. Decoding makes only values of the types in
the tables below, and calls nothing by name."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from mq import errors
from mq.broker import (
    Browsed,
    ClaimedBatch,
    ConsumerPosition,
    Draft,
    Published,
    QueueSettings,
    QueueStatus,
    Ranges,
    Redriven,
    Removal,
    Seen,
    WriteJobStatus,
)
from mq.errors import MQError
from mq.message import Body, BytesBody, DamagedBody, Message, MessageId, Properties


class Coming(NamedTuple):
    """In a draft: a body that is sent in pieces."""

    number: int
    size: int


class Waiting(NamedTuple):
    """In a message: a body that is asked for in pieces."""

    number: int
    size: int


BodyOf = Callable[[int, int], Body]
"""The body that waits at the other end, by its number and its size."""

_VALUES: Final[Mapping[str, Any]] = {
    kind.__name__: kind
    for kind in (
        ClaimedBatch,
        Browsed,
        Coming,
        Draft,
        Message,
        Properties,
        Published,
        QueueStatus,
        Ranges,
        Redriven,
        Removal,
        Seen,
        ConsumerPosition,
        WriteJobStatus,
    )
}
_ERRORS: Final[Mapping[str, type[MQError]]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, MQError)
}
_LENGTH: Final = struct.Struct(">I")
_KIND: Final = "$"


class Malformed(Exception):
    """Bytes that :func:`encode` has not made."""


class Handed(NamedTuple):
    """A message that is held, as it goes over a link.

    Attributes:
        redelivered: whether a consumer may have had it before.
    """

    number: int
    message: Message
    redelivered: bool


class _Blobs:
    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def put(self, data: bytes) -> int:
        self.parts.append(data)
        return len(self.parts) - 1


def encode(value: Any) -> bytes:
    """A value as bytes. Bodies have to be in memory (:class:`~mq.message.BytesBody`)."""
    blobs = _Blobs()
    plain = _plain(value, blobs)
    head = json.dumps([plain, [len(part) for part in blobs.parts]], separators=(",", ":")).encode()
    return b"".join([_LENGTH.pack(len(head)), head, *blobs.parts])


def decode(data: bytes, body_of: BodyOf | None = None) -> Any:
    """The value that :func:`encode` made these bytes of.

    Args:
        body_of: opens bodies that wait at the other end; None where there can be none.

    Raises:
        Malformed: it made no such bytes.
    """
    try:
        (length,) = _LENGTH.unpack_from(data)
        plain, sizes = json.loads(data[_LENGTH.size : _LENGTH.size + length])
        at, blobs = _LENGTH.size + length, []
        for size in sizes:
            blobs.append(data[at : at + size])
            at += size
        if at != len(data):
            raise Malformed("the data is longer than its header specifies")
        return _Reader(blobs, body_of).value(plain)
    except (struct.error, ValueError, KeyError, TypeError, IndexError, AttributeError, MQError) as error:
        raise Malformed(f"invalid data on the cluster link: {error!r}") from error


def _plain(value: Any, blobs: _Blobs) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, MessageId):
        return {_KIND: "id", "v": str(value)}
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return {_KIND: "bytes", "v": blobs.put(value)}
    if isinstance(value, BytesBody):
        return {_KIND: "body", "v": blobs.put(value.data)}
    if isinstance(value, DamagedBody):
        return {_KIND: "damaged", "v": [value.size, value.reason]}
    if isinstance(value, MQError):
        return {_KIND: "error", "v": [_error_name(value), str(value)]}
    if isinstance(value, QueueSettings):
        return {_KIND: "settings", "v": value.kept()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {_KIND: type(value).__name__, "v": [_plain(each, blobs) for each in value]}
    if isinstance(value, Mapping):
        return {_KIND: "map", "v": {str(name): _plain(each, blobs) for name, each in value.items()}}
    if isinstance(value, Sequence):
        return [_plain(each, blobs) for each in value]
    raise TypeError(f"a value of type {type(value).__name__} cannot be sent over a cluster link")


class _Reader:
    def __init__(self, blobs: Sequence[bytes], body_of: BodyOf | None) -> None:
        self._blobs = blobs
        self._body_of = body_of

    def value(self, plain: Any) -> Any:
        if isinstance(plain, list):
            return [self.value(each) for each in plain]
        if not isinstance(plain, dict):
            return plain
        kind, held = plain[_KIND], plain["v"]
        if kind == "id":
            return MessageId(held)
        if kind == "bytes":
            return self._blobs[held]
        if kind == "body":
            return BytesBody(self._blobs[held])
        if kind == Waiting.__name__ and self._body_of is not None:
            return self._body_of(*held)
        if kind == "damaged":
            return DamagedBody(*held)
        if kind == "error":
            return _ERRORS[held[0]](held[1])
        if kind == "settings":
            return QueueSettings.stored(held)
        if kind == "map":
            return {name: self.value(each) for name, each in held.items()}
        if kind == Handed.__name__:
            return Handed(*self.value(held))
        return _VALUES[kind](*self.value(held))


def messages_in(value: Any) -> Iterator[Message]:
    """The messages in an answer."""
    if isinstance(value, Message):
        yield value
    elif isinstance(value, Seen | Handed):
        yield value.message
    elif isinstance(value, Browsed):
        yield from messages_in(value.messages)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from messages_in(each)


def _error_name(error: MQError) -> str:
    """Its class, or the nearest above it that the other side knows."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _ERRORS)
