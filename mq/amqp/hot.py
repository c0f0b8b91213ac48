"""The frames of which there is one for each message, read and written by hand: publish, deliver, acknowledge.

The general way, over pamqp, takes several times as long, and says what is wrong with a frame: whatever is not plainly
right is left to it. Tests hold both ways to each other.
"""

from __future__ import annotations

import struct
from typing import Final

from pamqp import base
from pamqp import commands as methods

PUBLISH: Final = methods.Basic.Publish.index
ACK: Final = methods.Basic.Ack.index

_HEADER: Final = struct.Struct(">BHI")
_ACKED: Final = struct.Struct(">QB")
_ACK_FRAME: Final = struct.Struct(">BHIIQBB")
_TAG: Final = struct.Struct(">QB")
_DELIVER: Final = methods.Basic.Deliver.index.to_bytes(4)
_END: Final = 0xCE


def read(index: int, payload: bytes) -> base.Frame | None:
    """The method of a frame whose payload begins with `index`; None for what is to go the general way."""
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
    return _ACK_FRAME.pack(1, channel, 13, ACK, delivery_tag, multiple, _END)


def deliver(
    channel: int, consumer_tag: str, delivery_tag: int, *, redelivered: bool, exchange: str, routing_key: str
) -> bytes:
    """The frame that begins a delivery. Each of the texts has at most 255 bytes."""
    who, where, key = consumer_tag.encode(), exchange.encode(), routing_key.encode()
    size = 16 + len(who) + len(where) + len(key)
    return b"".join(
        (
            _HEADER.pack(1, channel, size),
            _DELIVER,
            bytes((len(who),)),
            who,
            _TAG.pack(delivery_tag, redelivered),
            bytes((len(where),)),
            where,
            bytes((len(key),)),
            key,
            b"\xce",
        )
    )
