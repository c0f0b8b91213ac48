"""One connection, without I/O: bytes in, commands and bytes out.

Whoever stands behind it does this::

    connection.receive(data)
    while (command := connection.next_command()) is not None:
        ...  # carry it out, and answer what wants an answer, before the next one is taken
    await stream.send_all(connection.outgoing())

until :attr:`Connection.is_over`, and whenever :meth:`Connection.wake_at` has come, :meth:`Connection.tick`. At the end,
however it came, :meth:`Connection.end` and the commands that are left.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from pamqp import base
from pamqp import commands as methods

from mq.amqp import commands, login
from mq.amqp.channel import Channel
from mq.amqp.channel import State as ChannelState
from mq.amqp.commands import Arrival, Authenticate, ChannelCommand, ChannelKey, Command, Message, Result
from mq.amqp.errors import Code, Refused, WrongProtocol, clip
from mq.amqp.frames import (
    HEARTBEAT,
    PROTOCOL_HEADER,
    Frame,
    FrameReader,
    HeartbeatFrame,
    MethodFrame,
    Together,
    encode_method,
)
from mq.amqp.heartbeats import Heartbeats
from mq.amqp.hot import PublishFrames
from mq.amqp.session import Limits, Session
from mq.amqp.topology import Topology
from mq.amqp.tuning import negotiate

CAPABILITIES: Final = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "per_consumer_qos",
    "authentication_failure_close",
)
"""What clients are told that the server does beyond the specification."""

_CLOSE_OK: Final = encode_method(0, methods.Connection.CloseOk)


class State(Enum):
    """Where a connection's life is."""

    BEGINNING = "beginning"
    """The protocol header is awaited."""
    STARTING = "starting"
    """The client is to say who it is."""
    JUDGING = "judging"
    """Whoever stands behind is to say whether that is so."""
    TUNING = "tuning"
    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    """We have closed it; the client's word on that is awaited, and nothing else is heard."""
    OVER = "over"


class Connection:
    """A connection.

    Args:
        topology: what is declared, in the whole daemon.
        owner: told apart from every other connection by this.
        clock: seconds, on any clock that only goes on.
        limits: how much of what it may ask for.
        version: of mq, which clients are told.

    Attributes:
        state: where its life is.
        why: why it has been closed, for the log; empty where nothing was wrong.
    """

    def __init__(
        self,
        topology: Topology,
        owner: Hashable,
        clock: Callable[[], float],
        limits: Limits = Limits(),  # noqa: B008 - frozen
        version: str = "",
    ) -> None:
        self.state = State.BEGINNING
        self.why = ""
        self._clock = clock
        self._version = version
        self._reader = FrameReader()
        self._heartbeats = Heartbeats(0, clock)
        self._deadline = clock() + limits.handshake_seconds
        self._sending: list[bytes] = []
        self._session = Session(topology, owner, limits, self._sending.append)
        self._channels: dict[int, Channel] = {}
        self._unflushed: set[Channel] = set()
        self._channel_max = limits.channel_max
        self._epoch = 0
        self._mechanism = ""
        self._is_blocked = False
        self._is_deaf = False  # once frames cannot be told apart any more
        self._tail = b""

    # In and out

    @property
    def is_over(self) -> bool:
        """Whether nothing more is read: send what is to be sent, and close the stream."""
        return self.state is State.OVER

    @property
    def session(self) -> Session:
        """Who it is, and where it works."""
        return self._session

    def receive(self, data: bytes) -> None:
        """Bytes that came. Take all commands before the next ones."""
        self._heartbeats.received()
        if self._is_deaf:
            self._tail = (self._tail + data)[-len(_CLOSE_OK) :]
            if self._tail == _CLOSE_OK:
                self._be_over("")
        elif not self.is_over:
            self._reader.feed(data)

    def next_command(self) -> Command | None:
        """The next thing to do; None until more has come.

        Frames are looked at one by one, so that each finds the answer to those before it. Only what is stored or
        settled is gathered, as long as nothing else comes between.
        """
        while not self._session.outbox.has_whole and self._step():
            pass
        return self._session.outbox.take()

    def outgoing(self) -> bytes:
        """What is to be sent now."""
        for channel in self._unflushed:
            channel.flush()
        self._unflushed.clear()
        data = b"".join(self._sending)
        self._sending.clear()
        if data:
            self._heartbeats.sent()
        return data

    def wake_at(self) -> float:
        """When :meth:`tick` is due, by the clock; infinite for never."""
        deadline = float("inf") if self.state is State.OPEN else self._deadline
        return min(self._heartbeats.send_at, self._heartbeats.dead_at, deadline)

    def tick(self) -> None:
        """Time has passed: a heartbeat is sent, or the peer is given up."""
        now = self._clock()
        if now >= self._heartbeats.dead_at:
            self._be_over("missed heartbeats from client")
        elif self.state is not State.OPEN and now >= self._deadline:
            self._be_over(f"timeout while {self.state.value}")
        elif now >= self._heartbeats.send_at:
            self._sending.append(HEARTBEAT)

    def close(self, code: Code = Code.CONNECTION_FORCED, why: str = "broker forced connection closure") -> None:
        """Close it from this side: the daemon ends, or somebody wants it."""
        self._fail(Refused(code, why), None)

    def end(self) -> None:
        """It has ended, however that came. What is left to do is in the commands that are left."""
        self._release()
        self.state = State.OVER

    # Results

    def answer(self, command: Authenticate | ChannelCommand, result: Result) -> None:
        """What became of a command that wants to know: its result, or why it was refused."""
        try:
            if isinstance(command, Authenticate):
                self._judged(result)
            else:
                self._answer(command, result)
        except Refused as refusal:
            self._fail(refusal, None)

    def _answer(self, command: ChannelCommand, result: Result) -> None:
        channel = self._find(command.channel)
        if channel is not None:
            channel.answer(command, result)
            self._tidy(channel)

    def published(self, messages: Iterable[Message], *, is_stored: bool) -> None:
        """These are stored, and durable if they are to be; or they are refused, by a limit or for want of room."""
        by_channel: dict[ChannelKey, list[int]] = {}
        for message in messages:
            if message.number is not None:
                by_channel.setdefault(message.channel, []).append(message.number)
        for key, numbers in by_channel.items():
            channel = self._find(key)
            if channel is not None:
                channel.published(numbers, is_stored=is_stored)
                self._unflushed.add(channel)

    def credit(self, channel: ChannelKey, tag: str) -> int:
        """How many messages a consumer may be sent now. A :class:`~mq.amqp.commands.Credit` follows when that was none
        and changes."""
        found = self._find(channel)
        return 0 if found is None else found.credit(tag)

    def deliver(self, channel: ChannelKey, tag: str, arrivals: Sequence[Arrival]) -> int:
        """Send messages to a consumer; how many of them, from the first on. The others are to go back: its credit is
        used up, or it has ended."""
        found = self._find(channel)
        return 0 if found is None else found.deliver(tag, arrivals)

    def cancelled(self, channel: ChannelKey, tag: str) -> None:
        """A consumer has lost its queue."""
        found = self._find(channel)
        if found is not None:
            found.cancelled(tag)

    def block(self, why: str) -> None:
        """Tell the client that publishing has to wait, if it wants to hear of that."""
        self._tell_blocked(True, methods.Connection.Blocked, reason=clip(why))

    def unblock(self) -> None:
        """Tell it that publishing goes on."""
        self._tell_blocked(False, methods.Connection.Unblocked)

    def _tell_blocked(self, is_blocked: bool, method: type[base.Frame], **values: str) -> None:
        if self.state is State.OPEN and self._is_blocked != is_blocked:
            self._is_blocked = is_blocked
            if "connection.blocked" in self._session.capabilities:
                self._session.send_method(0, method, **values)

    def flow(self, channel: ChannelKey, *, active: bool) -> None:
        """Ask for no publishes on a channel for now, or for more of them."""
        found = self._find(channel)
        if found is not None:
            found.flow(active=active)

    # Frames

    def _step(self) -> bool:
        """Look at one more frame. False when there is none."""
        if self.is_over or self._is_deaf:
            return False
        frame: Frame | Together | None = None
        try:
            if self.state is State.BEGINNING:
                return self._begin()
            frame = (self._reader.read_together() if self.state is State.OPEN else None) or self._reader.read()
            if frame is not None:
                self._take(frame)
        except WrongProtocol as error:
            self._sending.append(PROTOCOL_HEADER)
            self._be_over(str(error))
        except Refused as refusal:
            self._is_deaf = frame is None
            self._fail(refusal, frame.method if isinstance(frame, MethodFrame | PublishFrames) else None)
        return frame is not None

    def _begin(self) -> bool:
        if not self._reader.begin():
            return False
        self.state = State.STARTING
        properties = {"product": "mq", "version": self._version, "platform": "Python"}
        self._session.send_method(
            0,
            methods.Connection.Start,
            version_major=0,
            version_minor=9,
            server_properties={**properties, "capabilities": dict.fromkeys(CAPABILITIES, True)},
            mechanisms=login.MECHANISMS,
            locales="en_US",
        )
        return True

    def _take(self, frame: Frame | Together) -> None:
        if isinstance(frame, HeartbeatFrame):
            return
        if self.state is State.CLOSING:
            self._take_while_closing(frame)
        elif not frame.channel:
            self._take_own(frame)
        elif self.state is not State.OPEN:
            raise Refused(Code.CHANNEL_ERROR, f"a frame on channel {frame.channel} while {self.state.value}")
        else:
            self._take_of_channel(frame)

    def _take_while_closing(self, frame: Frame | Together) -> None:
        method = frame.method if isinstance(frame, MethodFrame) and not frame.channel else None
        if isinstance(method, methods.Connection.CloseOk):
            self._be_over("")
        elif isinstance(method, methods.Connection.Close):
            self._session.send_method(0, methods.Connection.CloseOk)
            self._be_over("")

    def _take_own(self, frame: Frame | Together) -> None:
        if not isinstance(frame, MethodFrame):
            raise Refused(Code.UNEXPECTED_FRAME, "channel 0 has no content")
        handler = _TABLE.get(self.state, {}).get(type(frame.method))
        if handler is None:
            text = f"unexpected method {frame.method.name} in connection state {self.state.value}"
            raise Refused(Code.CHANNEL_ERROR, text)
        handler(self, frame.method)

    def _take_of_channel(self, frame: Frame | Together) -> None:
        assert not isinstance(frame, HeartbeatFrame)
        number = frame.channel
        channel = self._channels.get(number)
        if number > self._channel_max:
            raise Refused(Code.CHANNEL_ERROR, f"channel {number} is over the maximum of {self._channel_max}")
        if channel is not None:
            channel.handle(frame)
            self._unflushed.add(channel)
            self._tidy(channel)
        elif isinstance(frame, MethodFrame) and isinstance(frame.method, methods.Channel.Open):
            self._epoch += 1
            self._channels[number] = Channel(ChannelKey(number, self._epoch), self._session)
        else:
            raise Refused(Code.CHANNEL_ERROR, f"expected 'channel.open' on channel {number}")

    def _find(self, key: ChannelKey) -> Channel | None:
        channel = self._channels.get(key.number)
        return channel if channel is not None and channel.key == key else None

    def _tidy(self, channel: Channel) -> None:
        """A number whose channel has ended may be used again."""
        if channel.state is ChannelState.CLOSED:
            self._channels.pop(channel.key.number, None)
            self._unflushed.discard(channel)

    # Methods of the connection

    def _start_ok(self, method: methods.Connection.StartOk) -> None:
        asked = login.read_response(method.mechanism, method.response)
        given = (method.client_properties or {}).get("capabilities")
        if isinstance(given, dict):
            self._session.capabilities = frozenset(name for name, has in given.items() if has is True)
        self._mechanism = method.mechanism
        self.state = State.JUDGING
        self._session.outbox.put(asked)

    def _judged(self, result: Result) -> None:
        if isinstance(result, Refused):
            raise result
        known = result if isinstance(result, commands.Authenticated) else None
        if self.state is State.JUDGING:
            self._admit(known)
        elif self.state is State.OPEN:
            if known is None:
                raise Refused(Code.NOT_ALLOWED, "the new secret was refused")
            self._session.user = known.user
            self._session.send_method(0, methods.Connection.UpdateSecretOk)

    def _admit(self, known: commands.Authenticated | None) -> None:
        if known is None:
            text = f"ACCESS_REFUSED - Login was refused using authentication mechanism {self._mechanism}"
            if "authentication_failure_close" in self._session.capabilities:
                self._session.send_method(0, methods.Connection.Close, reply_code=Code.ACCESS_REFUSED, reply_text=text)
            self._be_over(text)
            return
        self._session.user = known.user
        self.state = State.TUNING
        limits = self._session.limits
        self._session.send_method(
            0,
            methods.Connection.Tune,
            channel_max=limits.channel_max,
            frame_max=limits.frame_max,
            heartbeat=limits.heartbeat_seconds,
        )

    def _tune_ok(self, method: methods.Connection.TuneOk) -> None:
        tuned = negotiate(method, self._session.limits)
        self._channel_max = tuned.channel_max
        self._session.frame_max = self._reader.frame_max = tuned.frame_max
        self._heartbeats = Heartbeats(tuned.heartbeat_seconds, self._clock)
        self.state = State.OPENING

    def _open(self, method: methods.Connection.Open) -> None:
        if not self._session.topology.has_vhost(method.virtual_host):
            raise Refused(Code.NOT_ALLOWED, f"vhost '{method.virtual_host}' not found")
        self._session.vhost = method.virtual_host
        self.state = State.OPEN
        self._session.send_method(0, methods.Connection.OpenOk)

    def _update_secret(self, method: methods.Connection.UpdateSecret) -> None:
        secret = method.new_secret if isinstance(method.new_secret, str) else ""
        user = self._session.user
        self._session.outbox.put(Authenticate("" if user is None else user.name, secret))

    def _close_by_client(self, method: methods.Connection.Close) -> None:
        self._session.send_method(0, methods.Connection.CloseOk)
        self._be_over("" if method.reply_code == 200 else clip(f"closed by client: {method.reply_text}"))

    # Ends

    def _fail(self, refusal: Refused, method: base.Frame | None) -> None:
        """It is closed from this side. Before the client is known, without a word."""
        if self.state in (State.CLOSING, State.OVER):
            return
        if self.state in (State.BEGINNING, State.STARTING, State.JUDGING):
            self._be_over(refusal.text)
            return
        self.why = refusal.text
        self._release()
        self.state = State.CLOSING
        self._deadline = self._clock() + self._session.limits.handshake_seconds
        class_id, method_id = divmod(0 if method is None else method.index, 1 << 16)
        ids = {"class_id": class_id, "method_id": method_id}
        self._session.send_method(0, methods.Connection.Close, reply_code=refusal.code, reply_text=refusal.text, **ids)

    def _be_over(self, why: str) -> None:
        self.why = self.why or why
        self.end()

    def _release(self) -> None:
        """Every channel gives back what it holds."""
        for channel in self._channels.values():
            if channel.state is ChannelState.OPEN:
                channel.release()
                channel.state = ChannelState.CLOSED
        self._channels.clear()
        self._unflushed.clear()


_TABLE: Final[Mapping[State, Mapping[type[base.Frame], Callable[[Connection, Any], None]]]] = {
    State.STARTING: {methods.Connection.StartOk: Connection._start_ok},
    State.TUNING: {
        methods.Connection.TuneOk: Connection._tune_ok,
        methods.Connection.Close: Connection._close_by_client,
    },
    State.OPENING: {methods.Connection.Open: Connection._open, methods.Connection.Close: Connection._close_by_client},
    State.OPEN: {
        methods.Connection.Close: Connection._close_by_client,
        methods.Connection.UpdateSecret: Connection._update_secret,
    },
}
"""State -> the methods that may come on channel 0, and what they do. Any other method is an error."""
