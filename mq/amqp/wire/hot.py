"""The frames of which every message needs one, read and written by hand: publish, deliver, acknowledge.

A whole message is read in one step: its method, header and body. So are acknowledgements in a row. A delivery is
written in one step.

The general way over pamqp takes several times as long, and says what is wrong with a frame. Everything that is not
plainly valid is left to it. Tests compare both ways.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final, NamedTuple

from pamqp import base
from pamqp import commands as methods

PUBLISH: Final = methods.Basic.Publish.index
ACK: Final = methods.Basic.Ack.index

_METHOD: Final = 1
_HEADER: Final = struct.Struct(">BHI")
_BEGINNING: Final = struct.Struct(">BHII")
_CONTENT: Final = struct.Struct(">BBHIHHQ")
"""The end of a frame, and a content header up to the properties."""
_PART: Final = struct.Struct(">BBHI")
"""The end of a frame, and the beginning of another."""
_BASIC: Final = 60
_FIXED_BYTES: Final = 12
"""Of a content header, before the flags."""
_ACKED: Final = struct.Struct(">QB")
_ACK_FRAME: Final = struct.Struct(">BHIIQBB")
_ACK_BYTES: Final = 13
_TAG: Final = struct.Struct(">QB")
_DELIVER: Final = methods.Basic.Deliver.index
_END: Final = 0xCE


class PublishFrames(NamedTuple):
    """A whole published message: three frames, or two where its body is empty."""

    channel: int
    method: methods.Basic.Publish
    properties: bytes
    body: bytes


class AckFrames(NamedTuple):
    """Acknowledgements in a row, each a tag and whether it stands for all before it, too."""

    channel: int
    tags: list[tuple[int, bool]]


def read_together(data: bytes, at: int, largest: int) -> tuple[PublishFrames | AckFrames, int] | None:
    """Read a whole message, or a row of acknowledgements, and its end; None for what is to be read frame by frame.

    Args:
        data: what has come.
        at: where to begin.
        largest: bytes of the largest payload that is accepted.
    """
    if len(data) - at < _BEGINNING.size:
        return None
    kind, channel, size, index = _BEGINNING.unpack_from(data, at)
    if kind != _METHOD or not channel:
        return None
    if index == PUBLISH and size <= largest:
        return _read_message(data, at, channel, size, largest)
    return _read_acks(data, at, channel) if index == ACK and size == _ACK_BYTES else None


def _read_message(data: bytes, at: int, channel: int, size: int, largest: int) -> tuple[PublishFrames, int] | None:
    method_at = at + _HEADER.size
    head_at = method_at + size
    if len(data) < head_at + _CONTENT.size:
        return None
    end, kind, same, head_size, class_id, weight, body_size = _CONTENT.unpack_from(data, head_at)
    if (end, kind, same, class_id, weight) != (
        _END,
        2,
        channel,
        _BASIC,
        0,
    ) or not _FIXED_BYTES + 2 <= head_size <= largest:
        return None
    properties_at = head_at + _CONTENT.size
    body_at = properties_at + head_size - _FIXED_BYTES
    properties = data[properties_at:body_at]
    if body_size:
        if len(data) < body_at + _PART.size:
            return None
        end, kind, same, part_size = _PART.unpack_from(data, body_at)
        if (end, kind, same, part_size) != (_END, 3, channel, body_size) or part_size > largest:
            return None
        body_at += _PART.size
    last = body_at + body_size
    if len(data) <= last or data[last] != _END:
        return None
    method = _read_publish(data[method_at:head_at])
    if method is None:
        return None
    return PublishFrames(channel, method, properties, data[body_at:last]), last + 1


def _read_acks(data: bytes, at: int, channel: int) -> tuple[AckFrames, int] | None:
    tags: list[tuple[int, bool]] = []
    first = (_METHOD, channel, _ACK_BYTES, ACK)
    while at + _ACK_FRAME.size <= len(data):
        *beginning, tag, bits, end = _ACK_FRAME.unpack_from(data, at)
        if tuple(beginning) != first or end != _END or tag >> 63:
            break
        tags.append((tag, bool(bits & 1)))
        at += _ACK_FRAME.size
    return (AckFrames(channel, tags), at) if tags else None


def read(index: int, payload: bytes) -> base.Frame | None:
    """The method of a frame, from the index with which its payload begins; None leaves it to the general way."""
    if index == PUBLISH:
        return _read_publish(payload)
    return _read_ack(payload) if index == ACK else None


def _read_publish(payload: bytes) -> methods.Basic.Publish | None:
    try:
        middle = 7 + payload[6]
        end = middle + 1 + payload[middle]
        if len(payload) != end + 1:
            return None
        exchange, routing_key = payload[7:middle].decode(), payload[middle + 1 : end].decode()
    except (IndexError, UnicodeDecodeError):
        return None
    method = methods.Basic.Publish.__new__(methods.Basic.Publish)  # pamqp checks what it makes, and takes its time
    method.ticket = payload[4] << 8 | payload[5]
    method.exchange, method.routing_key = exchange, routing_key
    method.mandatory, method.immediate = bool(payload[end] & 1), bool(payload[end] & 2)
    return method


def _read_ack(payload: bytes) -> methods.Basic.Ack | None:
    if len(payload) != 4 + _ACKED.size or payload[4] & 0x80:  # pamqp takes such a tag for a negative one
        return None
    method = methods.Basic.Ack.__new__(methods.Basic.Ack)
    tag, bits = _ACKED.unpack_from(payload, 4)
    method.delivery_tag, method.multiple = tag, bool(bits & 1)
    return method


def ack(channel: int, delivery_tag: int, *, multiple: bool) -> bytes:
    """The frame of a confirm."""
    return _ACK_FRAME.pack(_METHOD, channel, _ACK_BYTES, ACK, delivery_tag, multiple, _END)


def short(text: str) -> bytes:
    """A short string as it is written; it has at most 255 bytes."""
    encoded = text.encode()
    return bytes((len(encoded),)) + encoded


@lru_cache(maxsize=256)
def route(exchange: str, routing_key: str) -> bytes:
    """Exchange and routing key as they are written, for :func:`delivery`. Cached: most messages have the same ones."""
    return short(exchange) + short(routing_key)


def delivery(
    channel: int,
    consumer_tag: bytes,
    delivery_tag: int,
    where: bytes,
    properties: bytes,
    body: bytes,
    frame_max: int,
    *,
    redelivered: bool,
) -> bytes:
    """The frames of a delivery, its content included.

    Args:
        channel: its number.
        consumer_tag: as :func:`short` writes it.
        delivery_tag: its number.
        where: as :func:`route` writes it.
        properties: the flags and the properties, as they came.
        body: all of it.
        frame_max: bytes of the largest frame that the peer takes.
        redelivered: whether it has been delivered before.
    """
    parts = [
        _BEGINNING.pack(_METHOD, channel, 13 + len(consumer_tag) + len(where), _DELIVER),
        consumer_tag,
        _TAG.pack(delivery_tag, redelivered),
        where,
        _CONTENT.pack(_END, 2, channel, _FIXED_BYTES + len(properties), _BASIC, 0, len(body)),
        properties,
    ]
    most = frame_max - _HEADER.size - 1
    for at in range(0, len(body), most):
        piece = body[at : at + most]
        parts += (_PART.pack(_END, 3, channel, len(piece)), piece)
    parts.append(b"\xce")
    return b"".join(parts)
