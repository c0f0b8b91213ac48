"""AMQP 0-9-1: publishes with confirms, deliveries to a consumer with a prefetch, acknowledgements.

An acknowledgement has no answer in AMQP: it goes out with whatever is sent next, and what the server then does for it
is not waited for. So "fetch and delete" promises less here than over the other protocols.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Any, Final

from pamqp import commands, frame, header

from benchmarks.load.codec import Codec, Steps, check

PREFETCH: Final = 1
_CHANNEL: Final = 1
_METHOD, _HEADER, _BODY = 1, 2, 3
_FRAME: Final = struct.Struct(">BHI")
_END: Final = b"\xce"
_ACK: Final = struct.pack(">HH", 60, 80)
_DELIVER: Final = struct.pack(">HH", 60, 60)
_TAG: Final = struct.Struct(">Q")
_BODY_SIZE: Final = slice(4, 12)

Frame = tuple[int, bytes]
"""Its type and its payload."""


class AmqpCodec(Codec):
    """As in Codec; a durable classic queue and persistent messages."""

    arguments: dict[str, Any] = {}

    def __init__(self, queue: str, body: bytes) -> None:
        super().__init__(queue, body)
        self._most = 131_072
        self._publish = b""
        self._acknowledgement = b""
        self._published = self._confirmed = 0
        self._confirmed_alone: set[int] = set()
        self._coming = b""
        self._missing = 0
        self._in_hand: deque[bytes] = deque()

    def parse(self, data: bytes) -> tuple[Frame, int] | None:
        if len(data) < _FRAME.size:
            return None
        kind, _, length = _FRAME.unpack_from(data)
        whole = _FRAME.size + length + 1
        return ((kind, data[_FRAME.size : whole - 1]), whole) if len(data) >= whole else None

    def open(self) -> Steps:
        yield header.ProtocolHeader().marshal()
        answer = yield marshal(commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"), 0)
        tune = _method(answer)
        check(isinstance(tune, commands.Connection.Tune), answer)
        self._most = tune.frame_max or self._most
        self._publish = self._make_publish()
        tuned = marshal(commands.Connection.TuneOk(tune.channel_max, self._most, 0), 0)
        yield tuned + marshal(commands.Connection.Open("/"), 0)
        yield from self._ask(commands.Channel.Open(), commands.Channel.OpenOk)
        yield from self._ask(commands.Confirm.Select(), commands.Confirm.SelectOk)

    def create(self) -> Steps:
        declare = commands.Queue.Declare(queue=self.queue, durable=True, arguments=self.arguments)
        yield from self._ask(declare, commands.Queue.DeclareOk)

    def subscribe(self) -> Steps:
        yield from self._ask(commands.Basic.Qos(prefetch_count=PREFETCH), commands.Basic.QosOk)
        yield from self._ask(commands.Basic.Consume(queue=self.queue), commands.Basic.ConsumeOk)

    def delete(self) -> Steps:
        yield from self._ask(commands.Queue.Delete(queue=self.queue), commands.Queue.DeleteOk)

    def publish(self) -> Steps:
        yield from self.publish_many(1)

    def publish_many(self, count: int, outstanding: int = 0) -> Steps:
        """Publish so many at once, and wait until at the most `outstanding` confirms are."""
        acknowledgement, self._acknowledgement = self._acknowledgement, b""
        self._published += count
        self._take((yield acknowledgement + self._publish * count))
        while self._published - self._confirmed - len(self._confirmed_alone) > outstanding:
            self._take((yield b""))

    def consume(self) -> Steps:
        """As in Codec; one delivery is on its way while the one before is acknowledged."""
        if not self._in_hand:
            acknowledgement, self._acknowledgement = self._acknowledgement, b""
            self._take((yield acknowledgement))
            while not self._in_hand:
                self._take((yield b""))
        payload = _ACK + self._in_hand.popleft() + b"\0"
        self._acknowledgement += _FRAME.pack(_METHOD, _CHANNEL, len(payload)) + payload + _END

    def _take(self, answer: Frame) -> None:
        """Note a confirm, or a part of a delivery."""
        kind, payload = answer
        if kind == _METHOD and payload.startswith(_ACK):
            (tag,) = _TAG.unpack_from(payload, 4)
            self._confirm(tag, multiple=bool(payload[12] & 1))
        elif kind == _METHOD:
            check(payload.startswith(_DELIVER), payload)
            self._coming = payload[5 + payload[4] :][:8]
        elif kind == _HEADER:
            self._missing = int.from_bytes(payload[_BODY_SIZE], "big")
            check(self._missing == len(self.body), payload)
        else:
            self._missing -= len(payload)
            if self._missing == 0:
                self._in_hand.append(self._coming)

    def _confirm(self, tag: int, *, multiple: bool) -> None:
        """All up to :attr:`_confirmed` are, and beyond it some alone."""
        alone = self._confirmed_alone
        if multiple:
            self._confirmed = tag
            alone.difference_update([other for other in alone if other <= tag])
        else:
            alone.add(tag)
        while self._confirmed + 1 in alone:
            self._confirmed += 1
            alone.remove(self._confirmed)

    def last_words(self) -> bytes:
        return self._acknowledgement + marshal(commands.Connection.Close(200, "done", 0, 0), 0)

    def _make_publish(self) -> bytes:
        properties = commands.Basic.Properties(delivery_mode=2)
        room = self._most - _FRAME.size - 1
        parts = [self.body[start : start + room] for start in range(0, len(self.body), room)]
        return b"".join(
            [
                marshal(commands.Basic.Publish(exchange="", routing_key=self.queue)),
                marshal(header.ContentHeader(0, len(self.body), properties)),
                *(_FRAME.pack(_BODY, _CHANNEL, len(part)) + part + _END for part in parts),
            ]
        )

    def _ask(self, request: Any, wanted: type[Any]) -> Steps:
        answer = yield marshal(request)
        while not isinstance(_method(answer), wanted):
            check(answer[0] != _METHOD or not _refused(answer), answer)
            answer = yield b""


class AmqpQuorumCodec(AmqpCodec):
    """As in Codec; a quorum queue."""

    arguments = {"x-queue-type": "quorum"}


def marshal(value: Any, channel: int = _CHANNEL) -> bytes:
    """A method or a header as it is sent."""
    marshalled: bytes = frame.marshal(value, channel)
    return marshalled


def _method(answer: Frame) -> Any:
    kind, payload = answer
    _, _, value = frame.unmarshal(_FRAME.pack(kind, _CHANNEL, len(payload)) + payload + _END)
    return value


def _refused(answer: Frame) -> bool:
    return isinstance(_method(answer), commands.Channel.Close | commands.Connection.Close)
