"""The client's side of a connection without a socket: bytes in, events and bytes out (AMQP 0-9-1, section 2.2.4)."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pamqp import base
from pamqp import commands as methods

from mq.amqp.wire.errors import Code, Refusal, clip
from mq.amqp.wire.frames import (
    HEARTBEAT,
    PROTOCOL_HEADER,
    SMALLEST_FRAME_MAX,
    BodyFrame,
    Frame,
    FrameReader,
    HeaderFrame,
    HeartbeatFrame,
    Heartbeats,
    MethodFrame,
    encode_content,
    encode_method,
)
from mq.client.errors import UnexpectedResponse

CHANNEL_MAX: Final = 2047
FRAME_MAX: Final = 131_072
CAPABILITIES: Final = (
    "authentication_failure_close",
    "basic.nack",
    "connection.blocked",
    "consumer_cancel_notify",
    "publisher_confirms",
)
_Content = methods.Basic.Deliver | methods.Basic.GetOk | methods.Basic.Return


class ConnectionOpened(NamedTuple):
    """The connection is tuned and open: work can begin."""


class Answered(NamedTuple):
    """The answer to a method that has one."""

    channel: int
    method: base.Frame


class Arrived(NamedTuple):
    """A whole message has arrived.

    Attributes:
        is_redelivered: whether a consumer may have had it before.
        is_answer: whether it answers a basic.get.
    """

    channel: int
    number: int
    is_redelivered: bool
    is_answer: bool
    properties: bytes
    body: bytes


class Returned(NamedTuple):
    """The server returned a message: its properties, and the reason."""

    channel: int
    text: str
    properties: bytes


class Confirmed(NamedTuple):
    """The server says whether it keeps a message, or with `multiple` all up to it."""

    channel: int
    sequence: int
    multiple: bool
    is_kept: bool


class ConsumerEnded(NamedTuple):
    """The server ended the consumer of a channel."""

    channel: int


class ChannelRefused(NamedTuple):
    """The server closed a channel, with its code and reason."""

    channel: int
    code: int
    text: str


class Changed(NamedTuple):
    """The server accepts messages again, or no longer: see :attr:`Protocol.blocked` and ``stopped``."""


class Closed(NamedTuple):
    """The connection is at its end.

    Attributes:
        code: the server's reply code; 0 where this side closed.
    """

    code: int
    text: str


Event = ConnectionOpened | Answered | Arrived | Returned | Confirmed | ConsumerEnded | ChannelRefused | Changed | Closed


class Phase(enum.Enum):
    """How far a connection is."""

    GREETING = "greeting"
    TUNING = "tuning"
    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A user, and what the connection is for.

    Attributes:
        role: told to the server, so that its operator sees it.
        heartbeat_seconds: wanted; the server may want them more often. 0 for none.
        max_body: bytes of the longest body that is taken.
    """

    user: str
    secret: str = field(repr=False)
    vhost: str
    role: str
    heartbeat_seconds: int
    max_body: int


@dataclass(slots=True)
class _Assembly:
    """A message that has not arrived completely."""

    method: _Content
    properties: bytes | None = None
    missing: int = 0
    parts: list[bytes] = field(default_factory=list)


class Protocol:
    """One connection.

    Args:
        clock: seconds, on a clock that never goes back.

    Attributes:
        heartbeats: when one is due, and when the server counts as dead.
        blocked: why the server accepts no messages now; None while it accepts them.
        stopped: channels on which the server accepts no messages now.
    """

    def __init__(self, login: Login, clock: Callable[[], float]) -> None:
        self.phase = Phase.GREETING
        self.channel_max = CHANNEL_MAX
        self.heartbeats = Heartbeats(0, clock)
        self.blocked: str | None = None
        self.stopped: set[int] = set()
        self._clock = clock
        self._login = login
        self._frame_max = SMALLEST_FRAME_MAX
        self._reader = FrameReader()
        self._out = bytearray(PROTOCOL_HEADER)
        self._assembling: dict[int, _Assembly] = {}
        self._closing: set[int] = set()

    @property
    def waiting(self) -> int:
        """How many bytes are to be sent."""
        return len(self._out)

    def take(self) -> bytes:
        """Remove and return the bytes that are to be sent."""
        taken = bytes(self._out)
        self._out.clear()
        self.heartbeats.sent()
        return taken

    def receive(self, data: bytes) -> Iterator[Event]:
        """The events in bytes from the server. Exhaust them before the next call.

        Raises:
            UnexpectedResponse: this is not AMQP 0-9-1. :meth:`take` has what tells the server so; send it, and close.
        """
        if self.phase is Phase.GREETING and data.startswith(b"HTTP/"):
            raise UnexpectedResponse("this is an HTTP port. AMQP uses another port, usually 5672")
        self.heartbeats.received()
        self._reader.feed(data)
        try:
            while self.phase is not Phase.CLOSED and (frame := self._reader.read()) is not None:
                yield from self._frame(frame)
        except Refusal as error:
            if self.phase is Phase.OPEN:
                self.close(error.code, error.text)
            self.phase = Phase.CLOSED
            raise UnexpectedResponse(f"the server does not speak AMQP 0-9-1: {error}") from error

    def send(self, channel: int, method_type: type[base.Frame], **values: Any) -> None:
        """Queue a method."""
        self._out += encode_method(channel, method_type, **values)

    def publish(self, channel: int, queue: str, properties: bytes, body: bytes) -> None:
        """Queue a message; the server returns it where there is no such queue."""
        self.send(channel, methods.Basic.Publish, routing_key=queue, mandatory=True)
        self._out += encode_content(channel, properties, body, self._frame_max)

    def heartbeat(self) -> None:
        """Queue a heartbeat."""
        self._out += HEARTBEAT

    def close_channel(self, channel: int) -> None:
        """Close a channel, and drop what still arrives on it. Its number is free after its close-ok."""
        self._closing.add(channel)
        self._assembling.pop(channel, None)
        self.send(channel, methods.Channel.Close, reply_code=200, reply_text="")

    def close(self, code: int = 200, text: str = "") -> None:
        """Close the connection. Only :class:`Closed` follows."""
        self.phase = Phase.CLOSING
        self.send(0, methods.Connection.Close, reply_code=code, reply_text=clip(text))

    def _frame(self, frame: Frame) -> Iterator[Event]:
        if isinstance(frame, HeartbeatFrame):
            return
        if self.phase is Phase.CLOSING or frame.channel in self._closing:
            yield from self._while_closing(frame)
        elif isinstance(frame, HeaderFrame):
            yield from self._header(frame)
        elif isinstance(frame, BodyFrame):
            yield from self._body(frame)
        elif frame.channel in self._assembling:
            raise Refusal(Code.UNEXPECTED_FRAME, f"received {frame.method.name} before the message was complete")
        elif frame.channel == 0:
            yield from self._on_connection(frame.method)
        elif self.phase is not Phase.OPEN:
            raise Refusal(Code.CHANNEL_ERROR, "received a frame on a channel before the connection was open")
        else:
            yield from self._on_channel(frame.channel, frame.method)

    def _while_closing(self, frame: Frame) -> Iterator[Event]:
        """Answer a close of the server, which may cross with this side's."""
        if not isinstance(frame, MethodFrame):
            return
        method, channel = frame.method, frame.channel
        if channel == 0 and isinstance(method, methods.Connection.CloseOk):
            self.phase = Phase.CLOSED
            yield Closed(0, "")
        elif channel == 0 and isinstance(method, methods.Connection.Close):
            yield self._closed(method)
        elif isinstance(method, methods.Channel.Close):
            self.send(channel, methods.Channel.CloseOk)
        elif isinstance(method, methods.Channel.CloseOk):
            self._closing.discard(channel)
            self.stopped.discard(channel)
            yield Answered(channel, method)

    def _closed(self, method: methods.Connection.Close) -> Closed:
        self.send(0, methods.Connection.CloseOk)
        self.phase = Phase.CLOSED
        return Closed(method.reply_code or 0, method.reply_text)

    def _on_connection(self, method: base.Frame) -> Iterator[Event]:
        if isinstance(method, methods.Connection.Close):
            yield self._closed(method)
        elif self.phase is Phase.OPEN and isinstance(method, methods.Connection.Blocked):
            self.blocked = method.reason or "no reason given"
            yield Changed()
        elif self.phase is Phase.OPEN and isinstance(method, methods.Connection.Unblocked):
            self.blocked = None
            yield Changed()
        else:
            step = _OPENING.get((self.phase, type(method)))
            if step is None:
                raise Refusal(
                    Code.COMMAND_INVALID, f"received an unexpected {method.name} in connection phase {self.phase.value}"
                )
            yield from step(self, method)

    def _start(self, method: methods.Connection.Start) -> Iterator[Event]:
        if "PLAIN" not in str(method.mechanisms).split():
            raise Refusal(
                Code.NOT_IMPLEMENTED,
                f"the server only supports the authentication mechanisms {method.mechanisms!a:.80}, not PLAIN",
            )
        properties: Mapping[str, Any] = {
            "product": "mq",
            "platform": "Python",
            "role": self._login.role,
            "capabilities": dict.fromkeys(CAPABILITIES, True),
        }
        response = f"\0{self._login.user}\0{self._login.secret}"
        self.send(
            0,
            methods.Connection.StartOk,
            client_properties=properties,
            mechanism="PLAIN",
            response=response,
            locale="en_US",
        )
        self.phase = Phase.TUNING
        yield from ()

    def _tune(self, method: methods.Connection.Tune) -> Iterator[Event]:
        """Agree on the lowest limits and the shortest heartbeat; 0 is no limit, and no heartbeat."""
        if 0 < method.frame_max < SMALLEST_FRAME_MAX:
            raise Refusal(
                Code.SYNTAX_ERROR,
                f"the server's maximum frame size of {method.frame_max} bytes is too small: AMQP requires at least "
                f"{SMALLEST_FRAME_MAX:,} bytes",
            )
        self.channel_max = _least(method.channel_max, CHANNEL_MAX)
        self._frame_max = self._reader.frame_max = _least(method.frame_max, FRAME_MAX)
        wanted = self._login.heartbeat_seconds
        heartbeat = _least(method.heartbeat, wanted) if wanted else 0
        self.heartbeats = Heartbeats(heartbeat, self._clock)
        self.send(
            0,
            methods.Connection.TuneOk,
            channel_max=self.channel_max,
            frame_max=self._frame_max,
            heartbeat=heartbeat,
        )
        self.send(0, methods.Connection.Open, virtual_host=self._login.vhost)
        self.phase = Phase.OPENING
        yield from ()

    def _open(self, method: methods.Connection.OpenOk) -> Iterator[Event]:
        self.phase = Phase.OPEN
        yield ConnectionOpened()

    def _on_channel(self, channel: int, method: base.Frame) -> Iterator[Event]:
        if isinstance(method, _Content):
            self._assembling[channel] = _Assembly(method)
        elif isinstance(method, methods.Basic.Ack):
            yield Confirmed(channel, method.delivery_tag, method.multiple, is_kept=True)
        elif isinstance(method, methods.Basic.Nack):
            yield Confirmed(channel, method.delivery_tag, method.multiple, is_kept=False)
        elif isinstance(method, methods.Basic.Cancel):
            yield ConsumerEnded(channel)
        elif isinstance(method, methods.Channel.Close):
            self.send(channel, methods.Channel.CloseOk)
            self.stopped.discard(channel)
            yield ChannelRefused(channel, method.reply_code or 0, method.reply_text)
        elif isinstance(method, methods.Channel.Flow):
            (self.stopped.discard if method.active else self.stopped.add)(channel)
            self.send(channel, methods.Channel.FlowOk, active=method.active)
            yield Changed()
        else:
            yield Answered(channel, method)

    def _header(self, frame: HeaderFrame) -> Iterator[Event]:
        begun = self._assembling.get(frame.channel)
        if begun is None or begun.properties is not None:
            raise Refusal(
                Code.UNEXPECTED_FRAME,
                "received a content header without a preceding basic.deliver, basic.get-ok or basic.return",
            )
        if frame.body_size > self._login.max_body:
            raise Refusal(
                Code.FRAME_ERROR,
                f"a message body of {frame.body_size} bytes exceeds the maximum of {self._login.max_body} bytes",
            )
        begun.properties, begun.missing = frame.properties, frame.body_size
        yield from self._went_on(frame.channel, begun)

    def _body(self, frame: BodyFrame) -> Iterator[Event]:
        begun = self._assembling.get(frame.channel)
        if begun is None or begun.properties is None or len(frame.payload) > begun.missing:
            raise Refusal(Code.UNEXPECTED_FRAME, "the message body is longer than its content header declares")
        begun.missing -= len(frame.payload)
        begun.parts.append(frame.payload)
        yield from self._went_on(frame.channel, begun)

    def _went_on(self, channel: int, message: _Assembly) -> Iterator[Event]:
        if message.missing:
            return
        del self._assembling[channel]
        method, properties = message.method, message.properties or b""
        if isinstance(method, methods.Basic.Return):
            yield Returned(channel, method.reply_text, properties)
        else:
            is_answer = isinstance(method, methods.Basic.GetOk)
            body = b"".join(message.parts)
            yield Arrived(channel, method.delivery_tag or 0, method.redelivered, is_answer, properties, body)


_OPENING: Final[Mapping[tuple[Phase, type[base.Frame]], Callable[[Protocol, Any], Iterator[Event]]]] = {
    (Phase.GREETING, methods.Connection.Start): Protocol._start,
    (Phase.TUNING, methods.Connection.Tune): Protocol._tune,
    (Phase.OPENING, methods.Connection.OpenOk): Protocol._open,
}


def _least(offered: int, wanted: int) -> int:
    """The lower limit, where an offer of 0 is none."""
    return min(offered, wanted) if offered else wanted
