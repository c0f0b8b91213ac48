"""One connection and its channels, without I/O: bytes in, commands and bytes out.

The server does this with it::

    connection.receive(data)
    connection.frames_left = FRAMES_A_TURN
    while (command := connection.next_command()) is not None:
        ...  # carry it out, and answer what wants an answer, before the next one is taken
    await stream.send_all(connection.outgoing())

until :attr:`Connection.is_over`, and whenever :meth:`Connection.wake_at` has come, :meth:`Connection.tick`. At the end,
however it came, :meth:`Connection.end` and the commands that are left.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from pamqp import base
from pamqp import commands as methods

from mq.amqp.model.topology import Topology
from mq.amqp.protocol import commands
from mq.amqp.protocol.channel import Channel
from mq.amqp.protocol.commands import (
    Answered,
    Arrival,
    Authenticate,
    ChannelKey,
    Command,
    Leave,
    PublishedMessage,
    PublishMessages,
    Result,
    Settle,
)
from mq.amqp.protocol.login import mechanisms, negotiate, read_response
from mq.amqp.protocol.publishes import ChannelFrame, ChannelState
from mq.amqp.protocol.session import ConnectionLimits, Session
from mq.amqp.wire.errors import Code, Refusal, WrongProtocol, clip
from mq.amqp.wire.frames import (
    HEARTBEAT,
    AckFrames,
    Frame,
    FrameReader,
    HeartbeatFrame,
    Heartbeats,
    MethodFrame,
    PublishFrames,
    Together,
    encode_method,
)

CAPABILITIES: Final = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "per_consumer_qos",
    "authentication_failure_close",
)
"""The extensions to the specification that the server announces."""

NODE_ROLE: Final = "cluster"
"""What a neighbor of a cluster's node says that it is. It may connect while no client may."""

FOLLOW_THE_TEXT: Final = frozenset({"py-amqp", "librabbitmq"})
"""Products, as clients name themselves, for which a prefetch also holds for existing consumers. kombu counts on that
with every server by another name than RabbitMQ: a Celery worker raises its prefetch for each task that has to
wait."""

NO_LIMIT: Final = sys.maxsize
"""Of :attr:`Connection.frames_left`: for a caller that has no other connections to serve."""
METHOD_FRAMES: Final = 2
"""A method other than a publish or an acknowledgement counts as so many frames."""
TAGS_A_FRAME: Final = 8
"""Acknowledgements in a row that count as one more frame."""
LOOKS_A_FRAME: Final = 16
"""Bindings and queues that are looked at to route a message, and count as one more frame."""
MOST_HEARTBEATS: Final = 600
"""Heartbeats in :data:`HEARTBEATS_SECONDS`. The shortest interval, of a second, makes 120."""
HEARTBEATS_SECONDS: Final = 60.0

MOST_BYTES_DROPPED: Final = 256 * 1024 * 1024
"""What a client may send after its close was answered. Some cannot stop sending, and a reset would lose the answer."""

_CLOSE_OK: Final = encode_method(0, methods.Connection.CloseOk)


class ConnectionState(Enum):
    """The states of a connection."""

    BEGINNING = "beginning"
    """The protocol header is awaited."""
    STARTING = "starting"
    """The client's login is awaited."""
    JUDGING = "judging"
    """The server's verdict on name and secret is awaited."""
    TUNING = "tuning"
    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    """We have closed it; until the client's close-ok, everything else is ignored."""
    LEAVING = "leaving"
    """The client has closed it. The close-ok follows once all that it awaits confirms for is stored; nothing more is
    read."""
    LEFT = "left"
    """The close-ok is sent; bytes that still come are dropped until the client closes the stream."""
    OVER = "over"


BEFORE_LOGIN: Final = (ConnectionState.BEGINNING, ConnectionState.STARTING, ConnectionState.JUDGING)
"""The states of a client that has not proved who it is."""
_OPEN: Final = ConnectionState.OPEN  # to look up a member of an Enum takes as long as three calls in Python 3.11
_CLOSING: Final = ConnectionState.CLOSING
_CHANNEL_CLOSED: Final = ChannelState.CLOSED
_READS_NOTHING: Final = (ConnectionState.LEAVING, ConnectionState.LEFT, ConnectionState.OVER)


class Connection:
    """A connection.

    Args:
        clock: seconds, on any clock that only goes on.

    Attributes:
        why: why it has been closed, for the log; empty where nothing was wrong.
        is_over: whether nothing more is read: send what is to be sent, and close the stream.
        held: bytes of a frame that is not complete, once :meth:`next_command` has returned None.
        is_drained: whether the last command is known to be the last of what came, without another call.
        sending: bytes to be sent, apart from the confirms that are due.
        is_blocked: whether the client is to know that publishing has to wait.
        frames_left: how many frames may still be handled, for a caller that takes turns; 0 or less once
            :meth:`next_command` has stopped before the last one.
    """

    def __init__(
        self,
        topology: Topology,
        owner: Hashable,
        clock: Callable[[], float],
        limits: ConnectionLimits = ConnectionLimits(),  # noqa: B008 - frozen
        version: str = "",
    ) -> None:
        self.state = ConnectionState.BEGINNING
        self.is_over = False
        self.why = ""
        self._clock = clock
        self._version = version
        self._reader = FrameReader()
        self._heartbeats = Heartbeats(0, clock)
        self._deadline = clock() + limits.handshake_seconds
        self.sending: list[bytes] = []
        self.session = Session(topology, owner, limits, self.sending.append)
        self._channel_max = limits.channel_max
        self._channels: dict[int, Channel] = {}  # open or closing, by number
        self._epoch = 0
        self.held = 0
        self.is_drained = False
        self._mechanism = ""
        self.is_blocked = False
        self._is_deaf = False  # once frames cannot be told apart any more
        self._has_closed = False  # the client was told why, if there was something wrong
        self._dropped = 0
        self._tail = b""
        self.frames_left = NO_LIMIT
        self._heartbeats_taken = 0
        self._heartbeats_until = -math.inf

    # In and out

    def receive(self, data: bytes) -> None:
        """Bytes that came. Take all commands before the next ones."""
        self._heartbeats.dead_at = self._clock() + self._heartbeats.dead_after
        if self.state is _OPEN and not self._is_deaf:  # nearly always
            self._reader.feed(data)
        elif self.state is ConnectionState.LEFT:
            self._dropped += len(data)
            if self._dropped > MOST_BYTES_DROPPED:
                self._be_over("the client closed the connection and did not stop sending")
        elif self._is_deaf:
            self._tail = (self._tail + data)[-len(_CLOSE_OK) :]
            if self._tail == _CLOSE_OK:
                self._be_over("")
        elif not self.is_over:
            self._reader.feed(data)

    def next_command(self) -> Command | None:
        """The next thing to do; None until more has come, or :attr:`frames_left` is used up.

        Frames are handled one by one, so that each finds the answer to those before it. Only publishes and
        settlements are joined, as long as no other frame comes between.
        """
        outbox, reader = self.session.outbox, self._reader
        while reader.held and self.frames_left > 0 and not outbox.whole and self._step():
            pass
        if outbox.whole:
            self.is_drained = False
            return outbox.whole.popleft()
        self.held = reader.held
        self.is_drained = not self.held
        if outbox.messages:
            messages, outbox.messages, outbox.message_bytes = outbox.messages, [], 0
            return PublishMessages(tuple(messages))
        if outbox.deliveries:
            deliveries, outbox.deliveries = outbox.deliveries, []
            return Settle(outbox.outcome, tuple(deliveries))
        return None

    def outgoing(self) -> bytes:
        """The bytes to send now."""
        if self.session.unflushed:
            self._flush()
        if not self.sending:
            return b""
        data = b"".join(self.sending)
        self.sending.clear()
        self._heartbeats.send_at = self._clock() + self._heartbeats.send_after
        return data

    def _flush(self) -> None:
        """Write the confirms that are due."""
        unflushed = self.session.unflushed
        while unflushed:
            next(iter(unflushed)).flush()

    def wake_at(self) -> float:
        """When :meth:`tick` is due, by the clock; infinite for never."""
        return min(self._heartbeats.send_at, self._heartbeats.dead_at, self._deadline)

    def tick(self) -> None:
        """Send a heartbeat, or give up the peer, whichever is due."""
        if self.is_over:
            return
        now = self._clock()
        if now >= self._heartbeats.dead_at:
            self._be_over("no heartbeat received from the client")
        elif now >= self._deadline:
            self._be_over(
                "" if self.state is ConnectionState.LEFT else f"timed out in connection state {self.state.value}"
            )
        elif now >= self._heartbeats.send_at:
            self.sending.append(HEARTBEAT)

    def close(self, code: Code = Code.CONNECTION_FORCED, why: str = "the broker closed the connection") -> None:
        """Close it from this side."""
        self._fail(Refusal(code, why), None)

    def end(self) -> None:
        """End it. The commands that are left say what the server has still to do."""
        self._release_channels()
        self.state, self.is_over = ConnectionState.OVER, True

    # Results

    def answer(self, command: Answered, result: Result) -> None:
        """Answer a command: with its result, or with why it was refused."""
        try:
            if isinstance(command, Authenticate):
                self._judged(result)
            elif isinstance(command, Leave):
                self._leave(command, result)
            elif (channel := self.channel(command.channel)) is not None:
                channel.answer(command, result)
                if channel.state is _CHANNEL_CLOSED:
                    self._free_if_closed(channel)
        except Refusal as refusal:
            self._fail(refusal, None)

    def channel(self, key: ChannelKey) -> Channel | None:
        """The channel, unless it has ended."""
        channel = self._channels.get(key.number)
        return channel if channel is not None and channel.key == key else None

    def owes_confirms(self, channel: ChannelKey | None) -> bool:
        """Whether the client waits for confirms on a channel; None for any of them."""
        channels = self.channels() if channel is None else [self.channel(channel)]
        return any(each is not None and each.owes_confirms for each in channels)

    def channels(self) -> list[Channel]:
        """The open channels, by number."""
        return [channel for _, channel in sorted(self._channels.items())]

    def published(self, messages: Iterable[PublishedMessage], *, is_stored: bool) -> None:
        """Note that messages are stored, durably if they are to last; or that a limit or a full store refused them."""
        by_channel: dict[ChannelKey, list[int]] = {}
        for message in messages:
            if message.number is not None:
                by_channel.setdefault(message.channel, []).append(message.number)
        for key, numbers in by_channel.items():
            channel = self._channels.get(key.number)
            if channel is not None and channel.key == key:
                self.session.unflushed.setdefault(channel, []).append((numbers, is_stored))

    def deliver(self, channel: ChannelKey, tag: str, arrivals: Sequence[Arrival]) -> int:
        """Send messages to a consumer. Returns how many, from the first on. Put the others back: its credit is used up,
        or it has ended."""
        if self.session.unflushed:
            self._flush()  # a publisher that consumes hears of its message before it gets it
        found = self._channels.get(channel.number)  # as `channel` finds it, a call less for each delivery
        return 0 if found is None or found.key != channel else found.deliveries.deliver(tag, arrivals)

    def cancelled(self, channel: ChannelKey, tag: str) -> None:
        """Tell a consumer that its queue is gone."""
        found = self.channel(channel)
        if found is not None:
            found.cancelled(tag)

    def block(self, why: str) -> None:
        """Tell the client that publishing has to wait, if it has the capability."""
        self._tell_blocked(True, methods.Connection.Blocked, reason=clip(why))

    def unblock(self) -> None:
        """Tell it that publishing goes on."""
        self._tell_blocked(False, methods.Connection.Unblocked)

    def _tell_blocked(self, is_blocked: bool, method: type[base.Frame], **values: str) -> None:
        if self.state is ConnectionState.OPEN and self.is_blocked != is_blocked:
            self.is_blocked = is_blocked
            if "connection.blocked" in self.session.capabilities:
                self.session.send_method(0, method, **values)

    # Frames

    def _step(self) -> bool:
        """Handle one more frame. False when there is none."""
        is_open = self.state is _OPEN
        if self._is_deaf or (not is_open and self.state in _READS_NOTHING):
            return False
        frame: Frame | Together | None = None
        try:
            if not is_open and self.state is ConnectionState.BEGINNING:
                return self._begin()
            frame = self._reader.read_together() if is_open else self._reader.read()
            if frame is not None:
                looked_at = self.session.topology.looked_at
                if isinstance(frame, PublishFrames):
                    self.frames_left -= 1  # even if it is refused
                    self._take_on_channel(frame)
                elif isinstance(frame, AckFrames):
                    self.frames_left -= 1 + len(frame.tags) // TAGS_A_FRAME
                    self._take_on_channel(frame)
                else:
                    self.frames_left -= METHOD_FRAMES if isinstance(frame, MethodFrame) else 1
                    self._take(frame)
                self.frames_left -= (self.session.topology.looked_at - looked_at) // LOOKS_A_FRAME
        except WrongProtocol as error:
            self.sending.append(error.answer)
            self._be_over(str(error))
        except Refusal as refusal:
            self._is_deaf = frame is None
            self._fail(refusal, frame.method if isinstance(frame, MethodFrame | PublishFrames) else None)
        return frame is not None

    def _begin(self) -> bool:
        if not self._reader.begin():
            return False
        self.state = ConnectionState.STARTING
        properties = {"product": "mq", "version": self._version, "platform": "Python"}
        self.session.send_method(
            0,
            methods.Connection.Start,
            version_major=0,
            version_minor=9,
            server_properties={**properties, "capabilities": dict.fromkeys(CAPABILITIES, True)},
            mechanisms=mechanisms(self.session.certificate),
            locales="en_US",
        )
        return True

    def _take(self, frame: Frame) -> None:
        if self.state is _CLOSING:
            self._take_while_closing(frame)
        elif isinstance(frame, HeartbeatFrame):
            self._take_heartbeat()
        elif not frame.channel:
            self._take_own(frame)
        elif self.state is not _OPEN:
            raise Refusal(
                Code.CHANNEL_ERROR,
                f"unexpected frame on channel {frame.channel} in connection state {self.state.value}",
            )
        else:
            self._take_on_channel(frame)

    def _take_on_channel(self, frame: ChannelFrame) -> None:
        number = frame.channel
        channel = self._channels.get(number)
        if number > self._channel_max:
            raise Refusal(Code.CHANNEL_ERROR, f"channel number {number} exceeds the maximum of {self._channel_max}")
        if channel is not None:
            channel.handle(frame)
            if channel.state is _CHANNEL_CLOSED:
                self._free_if_closed(channel)
        elif isinstance(frame, MethodFrame) and isinstance(frame.method, methods.Channel.Open):
            self._count_channels(len(self._channels) + 1)
            self._epoch += 1
            self._channels[number] = Channel(ChannelKey(number, self._epoch), self.session)
        else:
            raise Refusal(Code.CHANNEL_ERROR, f"channel {number} is not open. Send channel.open first")

    def _take_heartbeat(self) -> None:
        if self.state in (*BEFORE_LOGIN, ConnectionState.TUNING):
            raise Refusal(
                Code.UNEXPECTED_FRAME,
                f"received a heartbeat in connection state {self.state.value}, before heartbeats were negotiated",
            )
        now = self._clock()
        if now >= self._heartbeats_until:
            self._heartbeats_taken, self._heartbeats_until = 0, now + HEARTBEATS_SECONDS
        self._heartbeats_taken += 1
        if self._heartbeats_taken > MOST_HEARTBEATS:
            text = f"the client sent more than {MOST_HEARTBEATS} heartbeats in {HEARTBEATS_SECONDS:.0f} seconds"
            raise Refusal(Code.RESOURCE_ERROR, text)

    def _take_while_closing(self, frame: Frame) -> None:
        method = frame.method if isinstance(frame, MethodFrame) and not frame.channel else None
        if isinstance(method, methods.Connection.CloseOk):
            self._be_over("")
        elif isinstance(method, methods.Connection.Close):
            self._close_by_client(method)

    def _take_own(self, frame: Frame) -> None:
        if not isinstance(frame, MethodFrame):
            raise Refusal(Code.UNEXPECTED_FRAME, "content frames must not be sent on channel 0")
        handler = _TABLE.get(self.state, {}).get(type(frame.method))
        if handler is None:
            text = f"unexpected method {frame.method.name} in connection state {self.state.value}"
            raise Refusal(Code.CHANNEL_ERROR, text)
        handler(self, frame.method)

    # Methods of the connection

    def _start_ok(self, method: methods.Connection.StartOk) -> None:
        asked = read_response(method.mechanism, method.response, self.session.certificate)
        told = method.client_properties or {}
        self.session.follows_text = told.get("product") in FOLLOW_THE_TEXT
        self.session.is_node = told.get("role") == NODE_ROLE
        given = told.get("capabilities")
        if isinstance(given, dict):
            self.session.capabilities = frozenset(name for name, has in given.items() if has is True)
        self._mechanism = method.mechanism
        self.state = ConnectionState.JUDGING
        self.session.outbox.put(asked)

    def _judged(self, result: Result) -> None:
        if self.state is ConnectionState.JUDGING:
            self._admit(result)
        elif isinstance(result, Refusal):
            raise result
        elif self.state is ConnectionState.OPEN:
            if not isinstance(result, commands.Authenticated):
                raise Refusal(Code.NOT_ALLOWED, "the new secret from connection.update-secret was refused")
            self.session.user = result.user
            self.session.send_method(0, methods.Connection.UpdateSecretOk)

    def _admit(self, result: Result) -> None:
        if not isinstance(result, commands.Authenticated):
            text = f"ACCESS_REFUSED - Login was refused using authentication mechanism {self._mechanism}"
            code, text = (result.code, result.text) if isinstance(result, Refusal) else (Code.ACCESS_REFUSED, text)
            if "authentication_failure_close" in self.session.capabilities:
                self.session.send_method(0, methods.Connection.Close, reply_code=code, reply_text=clip(text))
            self._be_over(text)
            return
        self.session.log_in(result.user)
        self.state = ConnectionState.TUNING
        limits = self.session.limits
        ours = {"channel_max": limits.channel_max, "frame_max": limits.frame_max, "heartbeat": limits.heartbeat_seconds}
        self.session.send_method(0, methods.Connection.Tune, **ours)

    def _tune_ok(self, method: methods.Connection.TuneOk) -> None:
        tuned = negotiate(method, self.session.limits)
        self._channel_max = tuned.channel_max
        self.session.frame_max = self._reader.frame_max = tuned.frame_max
        self._heartbeats = Heartbeats(tuned.heartbeat_seconds, self._clock)
        self.state = ConnectionState.OPENING

    def _open(self, method: methods.Connection.Open) -> None:
        if not self.session.topology.has_vhost(method.virtual_host):
            raise Refusal(Code.NOT_ALLOWED, f"vhost '{method.virtual_host}' not found")
        if self.session.over_limit:
            raise Refusal(Code.NOT_ALLOWED, self.session.over_limit)
        why_closed = "" if self.session.is_node else self.session.closed_to()
        if why_closed:
            raise Refusal(Code.CONNECTION_FORCED, why_closed)
        self.session.vhost = method.virtual_host
        self.session.queues = self.session.topology.queues_by_name(method.virtual_host)
        self.state = ConnectionState.OPEN
        self._deadline = math.inf
        self.session.send_method(0, methods.Connection.OpenOk)

    def _update_secret(self, method: methods.Connection.UpdateSecret) -> None:
        secret = method.new_secret if isinstance(method.new_secret, str) else ""
        user = self.session.user
        self.session.outbox.put(Authenticate("" if user is None else user.name, secret))

    def _close_by_client(self, method: methods.Connection.Close) -> None:
        if method.reply_code != 200:
            self.why = self.why or clip(f"closed by client: {method.reply_text}")
        for channel in self._channels.values():
            if channel.state is ChannelState.OPEN:
                channel.leave()
        self.state = ConnectionState.LEAVING
        self._deadline = math.inf
        self.session.outbox.put(Leave(None))

    def _leave(self, command: Leave, result: Result) -> None:
        """Finish a close by the client, of a channel or of the connection."""
        if command.channel is not None:
            channel = self.channel(command.channel)
            if channel is not None and channel.state is ChannelState.LEAVING:
                channel.left(result)
                self._free_if_closed(channel)
        elif self.state is ConnectionState.LEAVING:
            if isinstance(result, Refusal) and not self._has_closed:
                raise result
            self._flush()
            self._release_channels()
            self.session.send_method(0, methods.Connection.CloseOk)
            self.state = ConnectionState.LEFT
            self._deadline = self._clock() + self.session.limits.handshake_seconds
            self._heartbeats = Heartbeats(0, self._clock)

    # Ends

    def _fail(self, refusal: Refusal, method: base.Frame | None) -> None:
        """Close it from this side; without a reason where the client has not yet logged in."""
        if self.state in (ConnectionState.CLOSING, ConnectionState.LEFT, ConnectionState.OVER):
            return
        if self.state in BEFORE_LOGIN:
            self._be_over(refusal.text)
            return
        self.why = refusal.text
        self._release_channels()
        self.state = ConnectionState.CLOSING
        self._has_closed = True
        self._deadline = self._clock() + self.session.limits.handshake_seconds
        class_id, method_id = divmod(0 if method is None else method.index, 1 << 16)
        ids = {"class_id": class_id, "method_id": method_id}
        self.session.send_method(0, methods.Connection.Close, reply_code=refusal.code, reply_text=refusal.text, **ids)

    def _be_over(self, why: str) -> None:
        self.why = self.why or why
        self.end()

    def _release_channels(self) -> None:
        """End all channels: they give back what they hold."""
        for channel in self._channels.values():
            if channel.state is ChannelState.OPEN:
                channel.release()
                channel.state = ChannelState.CLOSED
        self._channels.clear()
        self.session.unflushed.clear()
        self._count_channels(0)

    def _count_channels(self, channels: int) -> None:
        before, self.session.channels = self.session.channels, channels
        try:
            self.session.recount()
        except Refusal:
            self.session.channels = before
            raise

    def _free_if_closed(self, channel: Channel) -> None:
        """Free the number of a channel that has ended."""
        if channel.state is ChannelState.CLOSED:
            self._channels.pop(channel.key.number, None)
            self._count_channels(len(self._channels))


_TABLE: Final[Mapping[ConnectionState, Mapping[type[base.Frame], Callable[[Connection, Any], None]]]] = {
    ConnectionState.STARTING: {methods.Connection.StartOk: Connection._start_ok},
    ConnectionState.TUNING: {
        methods.Connection.TuneOk: Connection._tune_ok,
        methods.Connection.Close: Connection._close_by_client,
    },
    ConnectionState.OPENING: {
        methods.Connection.Open: Connection._open,
        methods.Connection.Close: Connection._close_by_client,
    },
    ConnectionState.OPEN: {
        methods.Connection.Close: Connection._close_by_client,
        methods.Connection.UpdateSecret: Connection._update_secret,
    },
}
"""State -> the methods that may come on channel 0, and what they do. Any other method is an error."""
