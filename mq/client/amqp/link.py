"""A connection: the tasks that read, write and send heartbeats around a :class:`Protocol`, and its channels.

A :class:`ClientChannel` matches answers to questions, in order. Its subclasses handle all other events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

import anyio
import anyio.lowlevel
from anyio.abc import ByteStream
from pamqp import base
from pamqp import commands as methods

from mq.client.amqp.errors import NoFreeChannel, refusal
from mq.client.amqp.protocol import (
    Answered,
    Arrived,
    Changed,
    ChannelRefused,
    Closed,
    Confirmed,
    ConnectionOpened,
    ConsumerEnded,
    Event,
    Phase,
    Protocol,
    Returned,
)
from mq.client.errors import ClientError, Interrupted, UnexpectedResponse, Unreachable

CLOSE_SECONDS: Final = 5.0
"""How long the server has for its last word."""
MOST_UNSENT: Final = 1 << 20
"""Bytes that wait to be sent before tasks have to wait with theirs."""
_CHUNK: Final = 1 << 16
_CLOSED: Final = "the server closed the connection"
_CLOSED_EARLY: Final = "the server closed the connection before its greeting. If it uses TLS, use an amqps:// URL"
_BROKEN: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)  # OSError: TLS's

Why = Callable[[], ClientError]
"""Makes an error, a new one for each waiting task."""


class Signal:
    """Wakes the waiting tasks, which then check again what they wait for."""

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    async def wait(self) -> None:
        """Return at the next :meth:`notify`."""
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()

    def notify(self) -> None:
        """Wake all that wait now."""
        if self._event is not None:
            self._event.set()
            self._event = None


class PendingAnswer:
    """A task that waits for an answer.

    Attributes:
        value: the answer; None while there is none.
        is_given_up: whether the task waits no longer.
    """

    def __init__(self) -> None:
        self._done = anyio.Event()
        self._why: Why | None = None
        self.value: Any = None
        self.is_given_up = False

    def answer(self, value: Any) -> None:
        """Give the answer to the task."""
        self.value = value
        self._done.set()

    def fail(self, why: Why) -> None:
        """Raise this in the task: no answer will come."""
        self._why = why
        self._done.set()

    async def result(self) -> Any:
        """The answer.

        Raises:
            ClientError: the server will not answer.
        """
        await self._done.wait()
        if self._why is not None:
            raise self._why()
        return self.value


class ClientChannel:
    """One channel of a link, made by :meth:`Link.open_channel`.

    Attributes:
        ended: makes the error that says why the channel has ended; None while it is open.
    """

    def __init__(self, link: Link, number: int) -> None:
        self.number = number
        self.ended: Why | None = None
        self._link = link
        self._questions: deque[PendingAnswer] = deque()

    def check(self) -> None:
        """Raise if the channel cannot be used.

        Raises:
            ClientError: it has ended.
        """
        self._link.check()
        if self.ended is not None:
            raise self.ended()

    def tell(self, method_type: type[base.Frame], **values: Any) -> None:
        """Send a method that has no answer."""
        self.check()
        self._link.send(self.number, method_type, **values)

    async def ask(self, method_type: type[base.Frame], **values: Any) -> Any:
        """Send a method, and wait for its answer: a method, or a whole message.

        Raises:
            Refused: the server closed the channel over it.
            Interrupted: the connection ended before the answer came.
        """
        self.tell(method_type, **values)
        question = PendingAnswer()
        self._questions.append(question)
        try:
            return await question.result()
        except anyio.get_cancelled_exc_class():
            question.is_given_up = True
            if question.value is not None:  # the answer came in the very step of the cancellation
                self.unwanted(question.value)
            raise

    def answered(self, answer: base.Frame | Arrived) -> None:
        """Give an answer to the oldest question."""
        if self._questions:
            question = self._questions.popleft()
            if question.is_given_up:
                self.unwanted(answer)
            question.answer(answer)

    def unwanted(self, answer: base.Frame | Arrived) -> None:
        """Handle an answer to a question that its task has given up."""

    def arrived(self, message: Arrived) -> None:
        """Handle a message."""
        if message.is_answer:
            self.answered(message)

    def returned(self, message: Returned) -> None:
        """Handle a message that the server returned."""

    def confirmed(self, confirm: Confirmed) -> None:
        """Handle a confirm."""

    def consumer_ended(self) -> None:
        """Handle the end of the channel's consumer by the server."""

    def refused(self, event: ChannelRefused) -> None:
        """Handle the close of the channel by the server."""
        self.end(lambda: refusal(event.code, event.text))

    def end(self, why: Why) -> None:
        """End the channel: every question on it fails."""
        if self.ended is None:
            self.ended = why
            while self._questions:
                self._questions.popleft().fail(why)


C = TypeVar("C", bound=ClientChannel)


class Link:
    """One connection.

    Args:
        stream: bytes both ways.
    """

    def __init__(self, stream: ByteStream, protocol: Protocol) -> None:
        self.protocol = protocol
        self._stream = stream
        self._channels: dict[int, ClientChannel] = {}
        self._highest = 0
        self._free: list[int] = []
        self._opened = anyio.Event()
        self._ended: str | None = None
        self._refused: ClientError | None = None
        self._done = anyio.Event()
        self._scope = anyio.CancelScope()
        self._sending = 0
        self._to_send = Signal()
        self._changed = Signal()

    def check(self) -> None:
        """Raise if the connection has ended.

        Raises:
            Unreachable: it has ended.
        """
        if self._ended is not None:
            raise Unreachable(f"the request was not sent because the connection is closed: {self._ended}")

    async def run(self) -> None:
        """Serve the connection until it ends."""
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._read)
                    tasks.start_soon(self._write)
                    tasks.start_soon(self._beat)
        finally:
            self.end("this program closed the connection")
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                await self._last_words()
            self._done.set()

    async def opened(self) -> None:
        """Wait until the login is done.

        Raises:
            NotAllowed: the server refused it.
            ClientError: the connection ended before.
        """
        await self._opened.wait()
        if self._refused is not None:
            raise self._refused
        self.check()

    async def aclose(self) -> None:
        """Close the connection by AMQP's handshake, or without it when the server does not answer."""
        if self._ended is None:
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                if self.protocol.phase is Phase.OPEN:
                    self.protocol.close()
                    self._to_send.notify()
                await self._done.wait()
        self.end("this program closed the connection")

    def end(self, why: str, refused: ClientError | None = None) -> None:
        """End the connection, and fail all that wait on it."""
        if self._ended is not None:
            return
        self._ended = why
        if not self._opened.is_set():
            self._refused = refused
        for channel in list(self._channels.values()):
            channel.end(
                lambda: Interrupted(
                    f"the connection closed before the server responded: {why}. The request may have been executed"
                )
            )
        self._channels.clear()
        self._opened.set()
        self._changed.notify()
        self._scope.cancel()

    def send(self, channel: int, method_type: type[base.Frame], **values: Any) -> None:
        """Queue a method for sending."""
        self.protocol.send(channel, method_type, **values)
        self._to_send.notify()

    def publish(self, channel: int, queue: str, properties: bytes, body: bytes) -> None:
        """Queue a message for sending."""
        self.protocol.publish(channel, queue, properties, body)
        self._to_send.notify()

    async def room(self, publishing: int | None = None) -> None:
        """Wait until there is room for more to send and, for a message, until the server accepts messages.

        Args:
            publishing: the message's channel; None for a method.

        Raises:
            Unreachable: the connection has ended.
        """
        await anyio.lowlevel.checkpoint()
        while True:
            self.check()
            is_wanted = publishing is None or self._wants(publishing)
            if is_wanted and self.protocol.waiting + self._sending < MOST_UNSENT:
                return
            await self._changed.wait()

    async def open_channel(self, kind: Callable[[Link, int], C]) -> C:
        """Open a channel.

        Raises:
            NoFreeChannel: all of them are in use.
        """
        self.check()
        if not self._free and self._highest >= self.protocol.channel_max:
            raise NoFreeChannel(
                f"all {self._highest} channels of the connection are in use: acknowledge messages, cancel "
                "consumers, or open another connection"
            )
        if not self._free:
            self._highest += 1
            self._free.append(self._highest)
        channel = kind(self, self._free.pop())
        self._channels[channel.number] = channel
        try:
            await channel.ask(methods.Channel.Open)
        except anyio.get_cancelled_exc_class():
            self.close_channel(channel)
            raise
        return channel

    def close_channel(self, channel: ClientChannel) -> None:
        """Close a channel. The server requeues what it held, each message at its place."""
        if self._channels.get(channel.number) is channel:
            channel.end(
                lambda: Interrupted(
                    "the channel closed before the server responded; the request may have been executed"
                )
            )
            self.protocol.close_channel(channel.number)
            self._to_send.notify()

    def _wants(self, channel: int) -> bool:
        return self.protocol.blocked is None and channel not in self.protocol.stopped

    async def _read(self) -> None:
        while self._ended is None:
            try:
                for event in self.protocol.receive(await self._stream.receive(_CHUNK)):
                    self._on(event)
            except anyio.EndOfStream:
                self.end(_CLOSED_EARLY if self.protocol.phase is Phase.GREETING else _CLOSED)
            except UnexpectedResponse as error:
                self.end(str(error), refused=error)
            except _BROKEN as error:
                self.end(f"the connection was lost: {error.__cause__ or error}")
            self._to_send.notify()

    async def _write(self) -> None:
        while self._ended is None:  # _last_words sends what is left then, even when this task was cancelled
            if not self.protocol.waiting:
                await self._to_send.wait()
                continue
            data = self.protocol.take()
            self._sending = len(data)
            try:
                await self._stream.send(data)
            except _BROKEN as error:
                self.end(f"the connection was lost: {error.__cause__ or error}")
                return
            self._sending = 0
            self._changed.notify()

    async def _beat(self) -> None:
        await self._opened.wait()
        beats = self.protocol.heartbeats
        while True:
            await anyio.sleep_until(min(beats.send_at, beats.dead_at))
            now = anyio.current_time()
            if now >= beats.dead_at:
                self.end("the server sent nothing for two heartbeat intervals")
            elif now >= beats.send_at:
                if not self._sending:
                    self.protocol.heartbeat()
                    self._to_send.notify()
                beats.sent()

    async def _last_words(self) -> None:
        """Send what is left, unless a frame was cut off half-way; then close."""
        try:
            if self.protocol.waiting and not self._sending:
                await self._stream.send(self.protocol.take())
        except _BROKEN:
            pass
        finally:
            with anyio.CancelScope(shield=True):  # else asyncio keeps it open while the server does not read
                await self._stream.aclose()

    def _on(self, event: Event) -> None:
        if isinstance(event, Closed):
            self._on_closed(event)
        elif isinstance(event, ConnectionOpened):
            self._opened.set()
        elif isinstance(event, Changed):
            self._changed.notify()
        else:
            channel = self._channels.get(event.channel)
            if isinstance(event, ChannelRefused) or isinstance(getattr(event, "method", None), methods.Channel.CloseOk):
                self._forget(event.channel)
            if channel is not None:
                _tell(channel, event)

    def _forget(self, number: int) -> None:
        if self._channels.pop(number, None) is not None:
            self._free.append(number)
            self._changed.notify()

    def _on_closed(self, event: Closed) -> None:
        if self.protocol.phase is Phase.CLOSED and event.code == 0:
            self.end("this program closed the connection")
        else:
            self.end(
                f"the server closed the connection: {event.code} {event.text}", refused=refusal(event.code, event.text)
            )


def _tell(
    channel: ClientChannel, event: Answered | Arrived | Returned | Confirmed | ConsumerEnded | ChannelRefused
) -> None:
    if isinstance(event, Answered):
        channel.answered(event.method)
    elif isinstance(event, Arrived):
        channel.arrived(event)
    elif isinstance(event, Returned):
        channel.returned(event)
    elif isinstance(event, Confirmed):
        channel.confirmed(event)
    elif isinstance(event, ConsumerEnded):
        channel.consumer_ended()
    else:
        channel.refused(event)
