"""Frames: from bytes to methods, content headers and bodies, and back (AMQP 0-9-1, section 4.2).

pamqp's codec reads and writes the fields of methods. This module adds what pamqp lacks: input cut at any byte, limits,
and strictness. pamqp takes a string that ends early for a short one, and refuses to write names that RabbitMQ's users
have. The frames of which every message needs one (publish, get, deliver, acknowledge) are read and written by hand, and
whole messages in one step: pamqp takes several times as long. What is not plainly valid is left to the general way,
which says what is wrong; tests compare both ways.

:class:`Heartbeats` says when a heartbeat is due and when the peer counts as dead; it does not wait.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from pamqp import base, commands, constants, decode, encode

from mq.amqp.wire import tables
from mq.amqp.wire.errors import Code, Refusal, WrongProtocol
from mq.amqp.wire.tables import DECODING_ERRORS, LARGEST_TABLE

PROTOCOL_HEADER: Final = b"AMQP\0\0\x09\x01"
"""The first bytes of every connection, and the answer to a client that begins otherwise."""
HEARTBEAT: Final = b"\x08\0\0\0\0\0\0\xce"
SMALLEST_FRAME_MAX: Final = 4096
"""Bytes of a frame that every peer has to take, its header and end included."""
UNTUNED_FRAME_MAX: Final = 8192
"""Bytes of the largest frame before limits are negotiated: a token may be long."""
OVERHEAD: Final = 8
"""Bytes of a frame beside its payload."""

_HTTP: Final = re.compile(rb"(GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS) ")
_TLS: Final = b"\x16\x03"
"""How a client that uses TLS begins (RFC 8446, section 5.1)."""
_TO_HTTP: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\nconnection: close\r\n\r\n"
    b'{"status": 400, "detail": "this is an AMQP port. HTTP uses another port, usually 8080"}\n'
)
_CONTENT_HEADER: Final = struct.Struct(">HHQ")
_ZEROS: Final[dict[str, Any]] = {"shortstr": "", "longstr": "", "table": {}}


# By hand: publish, get, deliver, acknowledge

PUBLISH: Final = commands.Basic.Publish.index
ACK: Final = commands.Basic.Ack.index
GET: Final = commands.Basic.Get.index

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
ACKED: Final = struct.Struct(">QB")
"""The tag and the bits of an acknowledgement."""
_ACK_FRAME: Final = struct.Struct(">BHIIQBB")
_ACK_BYTES: Final = 13
_TAG: Final = struct.Struct(">QB")
MOST_ACKS_TOGETHER: Final = 512
"""Acknowledgements that are read in one step."""
_DELIVER: Final = commands.Basic.Deliver.index
_GET_OK: Final = commands.Basic.GetOk.index
_GET_EMPTY: Final = commands.Basic.GetEmpty.index
_END: Final = 0xCE
END: Final = b"\xce"
"""The last byte of each frame."""


class PublishFrames(NamedTuple):
    """A whole published message: three frames, or two where its body is empty."""

    channel: int
    method: commands.Basic.Publish
    properties: bytes
    body: bytes


class AckFrames(NamedTuple):
    """Acknowledgements in a row, each a tag and whether it stands for all before it, too."""

    channel: int
    tags: list[tuple[int, bool]]


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
    while at + _ACK_FRAME.size <= len(data) and len(tags) < MOST_ACKS_TOGETHER:
        *beginning, tag, bits, end = _ACK_FRAME.unpack_from(data, at)
        if tuple(beginning) != first or end != _END or tag >> 63:
            break
        tags.append((tag, bool(bits & 1)))
        at += _ACK_FRAME.size
    return (AckFrames(channel, tags), at) if tags else None


def _read_publish(payload: bytes) -> commands.Basic.Publish | None:
    try:
        middle = 7 + payload[6]
        end = middle + 1 + payload[middle]
        if len(payload) != end + 1:
            return None
        exchange, routing_key = payload[7:middle].decode(), payload[middle + 1 : end].decode()
    except (IndexError, UnicodeDecodeError):
        return None
    method = commands.Basic.Publish.__new__(commands.Basic.Publish)  # pamqp checks what it makes, and takes its time
    method.ticket = payload[4] << 8 | payload[5]
    method.exchange, method.routing_key = exchange, routing_key
    method.mandatory, method.immediate = bool(payload[end] & 1), bool(payload[end] & 2)
    return method


def _read_get(payload: bytes) -> commands.Basic.Get | None:
    try:
        end = 7 + payload[6]
        if len(payload) != end + 1:
            return None
        queue = payload[7:end].decode()
    except (IndexError, UnicodeDecodeError):
        return None
    method = commands.Basic.Get.__new__(commands.Basic.Get)
    method.ticket, method.queue, method.no_ack = payload[4] << 8 | payload[5], queue, bool(payload[end] & 1)
    return method


def _read_ack(payload: bytes) -> commands.Basic.Ack | None:
    if len(payload) != 4 + ACKED.size or payload[4] & 0x80:  # pamqp takes such a tag for a negative one
        return None
    method = commands.Basic.Ack.__new__(commands.Basic.Ack)
    tag, bits = ACKED.unpack_from(payload, 4)
    method.delivery_tag, method.multiple = tag, bool(bits & 1)
    return method


READ_BY_HAND: Final[Mapping[int, Callable[[bytes], base.Frame | None]]] = {
    PUBLISH: _read_publish,
    GET: _read_get,
    ACK: _read_ack,
}
"""Makes a method of a frame's payload, by the index with which that begins; None leaves it to the general way."""


def ack_beginning(channel: int) -> bytes:
    """The frame of a channel's confirms up to :data:`ACKED`, behind which :data:`END` follows."""
    return _BEGINNING.pack(_METHOD, channel, _ACK_BYTES, ACK)


def get_empty(channel: int) -> bytes:
    """The frame that says that a get found no message."""
    return _BEGINNING.pack(_METHOD, channel, 5, _GET_EMPTY) + b"\0\xce"


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
    """The frames of a delivery, or of the message that a get returns, with the content.

    Args:
        consumer_tag: as :func:`short` writes it; empty for a get.
        where: as :func:`route` writes it; for a get with the number of messages behind it, in four bytes.
    """
    parts = [
        _BEGINNING.pack(_METHOD, channel, 13 + len(consumer_tag) + len(where), _DELIVER if consumer_tag else _GET_OK),
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
    parts.append(END)
    return b"".join(parts)


# Any frame


class MethodFrame(NamedTuple):
    """A method, as one of pamqp's objects."""

    channel: int
    method: base.Frame


class HeaderFrame(NamedTuple):
    """A content header: the size of the body in bytes, and the properties as they came."""

    channel: int
    body_size: int
    properties: bytes


class BodyFrame(NamedTuple):
    """A part of a body."""

    channel: int
    payload: bytes


class HeartbeatFrame(NamedTuple):
    """The peer is alive."""

    channel: int


Frame = MethodFrame | HeaderFrame | BodyFrame | HeartbeatFrame
Together = PublishFrames | AckFrames
"""Frames of one channel that are read in one step."""


class FrameReader:
    """Cuts a stream of bytes into frames. Read all frames before feeding more: then it holds less than a frame.

    Attributes:
        held: how many bytes are not read: once all frames are, those of a frame that is not complete.
    """

    def __init__(self) -> None:
        self.frame_max = UNTUNED_FRAME_MAX
        self.held = 0
        self._held = b""
        self._at = 0

    def feed(self, data: bytes) -> None:
        """The next bytes from the peer."""
        self._held = self._held[self._at :] + data if self.held else data
        self._at = 0
        self.held += len(data)

    def begin(self) -> bool:
        """Take the protocol header, which comes before the first frame; False while a part of it is missing.

        Raises:
            WrongProtocol: the peer begins otherwise.
        """
        begin = self._held[: len(PROTOCOL_HEADER)]
        if not PROTOCOL_HEADER.startswith(begin):
            if _HTTP.match(self._held) is not None:
                raise WrongProtocol("the client sent HTTP to the AMQP port", _TO_HTTP)
            if self._held.startswith(_TLS):
                raise WrongProtocol(
                    "the client uses TLS, but TLS is not enabled in mq. Start mq with --tls-cert and --tls-key",
                    PROTOCOL_HEADER,
                )
            raise WrongProtocol("the client does not speak AMQP 0-9-1", PROTOCOL_HEADER)
        if begin != PROTOCOL_HEADER:
            return False
        self._at = len(PROTOCOL_HEADER)
        self.held = len(self._held) - self._at
        return True

    def read_together(self) -> Frame | Together | None:
        """The next whole message, or acknowledgements in a row; else what :meth:`read` gives.

        Raises:
            Refusal: as there.
        """
        if self.held < _BEGINNING.size:
            return self.read()
        data, largest = self._held, self.frame_max - OVERHEAD
        kind, channel, size, index = _BEGINNING.unpack_from(data, self._at)
        found: tuple[Together, int] | None = None
        if kind != _METHOD or not channel:
            pass
        elif index == PUBLISH and size <= largest:
            found = _read_message(data, self._at, channel, size, largest)
        elif index == ACK and size == _ACK_BYTES:
            found = _read_acks(data, self._at, channel)
        if found is None:
            return self.read()
        frames, self._at = found
        self.held = len(data) - self._at
        return frames

    def read(self) -> Frame | None:
        """The next frame; None while a part of it is missing.

        Raises:
            Refusal: 501 for a frame too large, with a wrong end or of an unknown type; 502 for malformed fields; 503
                for an unknown method; 505 for a heartbeat on a channel.
        """
        if self.held < _HEADER.size:
            return None
        kind, channel, size = _HEADER.unpack_from(self._held, self._at)
        if size + OVERHEAD > self.frame_max:
            raise Refusal(
                Code.FRAME_ERROR,
                f"a frame of {size + OVERHEAD} bytes exceeds the negotiated frame_max of {self.frame_max} bytes",
            )
        start = self._at + _HEADER.size
        if len(self._held) <= start + size:
            return None
        if self._held[start + size] != _END:
            raise Refusal(Code.FRAME_ERROR, f"a frame ends with byte {self._held[start + size]} instead of {_END}")
        self._at = start + size + 1
        self.held = len(self._held) - self._at
        return _parse(kind, channel, self._held[start : start + size])


def _parse(kind: int, channel: int, payload: bytes) -> Frame:
    if kind == constants.FRAME_METHOD:
        return MethodFrame(channel, _method(payload))
    if kind == constants.FRAME_HEADER:
        return _content_header(channel, payload)
    if kind == constants.FRAME_BODY:
        return BodyFrame(channel, payload)
    if kind == constants.FRAME_HEARTBEAT and not payload:
        if channel:
            raise Refusal(Code.UNEXPECTED_FRAME, "heartbeats must be sent on channel 0")
        return HeartbeatFrame(channel)
    raise Refusal(Code.FRAME_ERROR, f"invalid frame of type {kind} with {len(payload)} bytes")


def _method(payload: bytes) -> base.Frame:
    """As pamqp's unmarshal, but strict: nothing may be missing, and nothing may follow."""
    if len(payload) > LARGEST_TABLE:
        raise Refusal(Code.SYNTAX_ERROR, f"a method frame of {len(payload)} bytes is too large")
    index = int.from_bytes(payload[:4])
    by_hand = READ_BY_HAND.get(index)
    if by_hand is not None and (found := by_hand(payload)) is not None:
        return found
    method_type: type[base.Frame] | None = commands.INDEX_MAPPING.get(index)
    if method_type is None or len(payload) < 4:
        raise Refusal(Code.COMMAND_INVALID, f"unknown method {index >> 16}.{index & 65535}")
    method = method_type.__new__(method_type)  # pamqp warns of some as they are made
    try:
        _fill(method, payload[4:])
    except DECODING_ERRORS as error:
        raise Refusal(Code.SYNTAX_ERROR, f"the fields of {method.name} are malformed") from error
    return method


def _fill(method: base.Frame, data: bytes) -> None:
    bit = 0
    for name in method.attributes():
        kind = method.amqp_type(name)
        if bit and (kind != "bit" or bit == 8):
            data, bit = data[1:], 0
        if kind == "table":
            used = 4 + int.from_bytes(data[:4])
            value: Any = tables.decoded(data[:used])
        else:
            used, value = decode.by_type(data, kind, bit)
        bit += kind == "bit"
        if used > len(data):
            raise ValueError(f"the frame ends in the middle of the method's {name} field")
        data = data[used:]
        setattr(method, name, value)
    if len(data) != (bit > 0):
        raise ValueError("the length of the method does not match the size of its frame")


def _content_header(channel: int, payload: bytes) -> HeaderFrame:
    if len(payload) < _CONTENT_HEADER.size + 2:
        raise Refusal(Code.FRAME_ERROR, "a content header is incomplete")
    class_id, weight, body_size = _CONTENT_HEADER.unpack_from(payload)
    if class_id != _BASIC or weight:
        raise Refusal(
            Code.UNEXPECTED_FRAME,
            f"a content header has an unexpected class or weight (class {class_id}, weight {weight})",
        )
    return HeaderFrame(channel, body_size, payload[_CONTENT_HEADER.size :])


def encode_method(channel: int, method_type: type[base.Frame], **values: Any) -> bytes:
    """A method's frame. Fields that are not given are zero, empty or false."""
    fields, bits, place = [struct.pack(">I", method_type.index)], 0, 0
    for name in method_type.attributes():
        kind = method_type.amqp_type(name)
        if place and (kind != "bit" or place == 8):
            fields.append(bytes([bits]))
            bits, place = 0, 0
        if kind == "bit":
            bits |= bool(values.get(name)) << place
            place += 1
        else:
            fields.append(encode.by_type(values.get(name, _ZEROS.get(kind, 0)), kind))
    if place:
        fields.append(bytes([bits]))
    return _frame(constants.FRAME_METHOD, channel, b"".join(fields))


def encode_content(channel: int, properties: bytes, body: bytes, frame_max: int) -> bytes:
    """The content header, and the body in as many frames as it takes."""
    most = frame_max - OVERHEAD
    frames = [_frame(constants.FRAME_HEADER, channel, _CONTENT_HEADER.pack(_BASIC, 0, len(body)) + properties)]
    frames += [_frame(constants.FRAME_BODY, channel, body[at : at + most]) for at in range(0, len(body), most)]
    return b"".join(frames)


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return b"".join((_HEADER.pack(kind, channel, len(payload)), payload, b"\xce"))


class Heartbeats:
    """The heartbeats of one connection.

    Args:
        interval_seconds: as negotiated; 0 for none.
        clock: seconds, on any clock that only goes on.

    Attributes:
        send_at: when a heartbeat is due, by that clock: half the interval after the last bytes were sent.
        dead_at: when the peer counts as dead: two intervals after the last bytes came from it.
        send_after, dead_after: seconds from the last bytes until then; infinite for none.
    """

    def __init__(self, interval_seconds: float, clock: Callable[[], float]) -> None:
        self.dead_after = 2 * interval_seconds or math.inf
        self.send_after = interval_seconds / 2 or math.inf
        self._clock = clock
        self.send_at = self.dead_at = math.inf
        self.sent()
        self.received()

    def sent(self) -> None:
        """Note that bytes of any kind were sent."""
        self.send_at = self._clock() + self.send_after

    def received(self) -> None:
        """Note that bytes of any kind came."""
        self.dead_at = self._clock() + self.dead_after
