"""A connection, and the task that ends it once its client is silent for too long."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import trio

from mq.doors.listeners import TLSStream, plain_socket

LINGERING_SECONDS: Final = 30
"""How long a connection that has ended on our side takes and drops what its client still says, at the most."""
SILENCE_SECONDS: Final = 2
"""How long it does so while nothing comes."""

_LOOKS: Final = 100
"""How often the watch looks, at the most, in the time that a client may be silent."""
_LARGEST_DROP: Final = 64 * 1024
_UNREAD_SECONDS: Final = 0.1
"""How long bytes are read before TLS's goodbye, which OpenSSL would else take back."""


class WatchedStream:
    """A stream that notes when bytes last passed. It has the methods that a server of streams uses.

    Over TLS only what the client said counts: empty records and renewed keys keep nothing open.

    Args:
        stream: what carries the bytes, its handshake done where it has one.
        address: the client's, as :class:`mq.doors.connections.Peer` has it.

    Attributes:
        socket: that of the stream.
        address: as given.
        last_used: when bytes last passed in or out, on Trio's clock.
        at_work: how many whole requests wait for their answers.
        idle_since: when it began to wait for a request, on Trio's clock; None while it does not wait.
    """

    def __init__(self, stream: trio.SocketStream | TLSStream, address: str = "") -> None:
        self._stream = stream
        self.socket = stream.transport_stream.socket if isinstance(stream, trio.SSLStream) else stream.socket
        self.address = address
        self._plain = plain_socket(stream) if isinstance(stream, trio.SocketStream) else None
        self.last_used = trio.current_time()
        self.at_work = 0
        self.idle_since: float | None = None
        self._idle = trio.CancelScope()
        self._put_back = b""

    def begin_idleness(self, scope: trio.CancelScope) -> None:
        """Begin to wait for a request. When that takes too long, `scope` is cancelled."""
        if self.idle_since is None:
            self.idle_since = self.last_used
            self._idle = scope

    def end_idleness(self) -> None:
        """A request has come. From now on the scope is not cancelled."""
        self.idle_since = None

    def leave_if_idle(self) -> None:
        """Cancel the scope if the connection is idle."""
        if self.idle_since is not None:
            self._idle.cancel()

    def put_back(self, data: bytes) -> None:
        """Put back what was read, for the next reader."""
        self._put_back = data

    async def receive(self, max_bytes: int) -> bytes:
        """The next bytes; none at the end. Only for a task that is alone with the connection.

        Without TLS this reads from the socket itself, which costs half of :meth:`receive_some`.

        Raises:
            trio.BrokenResourceError: the connection is broken.
            trio.ClosedResourceError: it was closed here.
        """
        plain = self._plain
        if plain is None:
            return bytes(await self.receive_some(max_bytes))
        await trio.lowlevel.checkpoint()  # often enough that is as long as it takes
        while True:
            try:
                data = plain.recv(max_bytes)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self.socket)
            except OSError as error:
                raise trio.BrokenResourceError from error
            else:
                self.last_used = trio.current_time()
                return data

    async def send(self, data: bytes) -> None:
        """Send all of it, as :meth:`receive` receives. Not a checkpoint where there is room for it."""
        if self._plain is not None:
            try:
                sent = self._plain.send(data)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                raise trio.BrokenResourceError from error
            if sent == len(data):
                self.last_used = trio.current_time()
                return
            data = data[sent:]
        await self.send_all(data)

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """As :meth:`trio.abc.ReceiveStream.receive_some`."""
        if self._put_back:
            await trio.lowlevel.checkpoint()
            again, self._put_back = self._put_back, b""
            return again
        data = await self._stream.receive_some(max_bytes)
        self.last_used = trio.current_time()
        return data

    async def send_all(self, data: bytes) -> None:
        """As :meth:`trio.abc.SendStream.send_all`."""
        await self._stream.send_all(data)
        self.last_used = trio.current_time()

    async def send_eof(self) -> None:
        """As :meth:`trio.abc.HalfCloseableStream.send_eof`. TLS says goodbye when it is closed, and only then."""
        if not isinstance(self._stream, trio.SSLStream):
            await self._stream.send_eof()

    async def linger(self) -> None:
        """Say that nothing more will be sent; drop what still comes, until the client ends its side or falls silent.

        A socket that is closed while bytes are unread resets its connection, and what the client has not received of
        its answers by then is gone (RFC 9112, section 9.6).
        """
        ended = (trio.BrokenResourceError, trio.ClosedResourceError)
        with suppress(*ended), trio.move_on_after(LINGERING_SECONDS):
            silence = trio.CancelScope(deadline=trio.current_time() + SILENCE_SECONDS)
            with silence:
                await self._say_goodbye()
                while await self.receive_some(_LARGEST_DROP):
                    silence.deadline = trio.current_time() + SILENCE_SECONDS

    async def _say_goodbye(self) -> None:
        """Under TLS in its own words, too; what comes behind them is dropped as it is."""
        if isinstance(self._stream, trio.SSLStream):
            with trio.move_on_after(_UNREAD_SECONDS):
                while await self.receive_some(_LARGEST_DROP):
                    pass
            under_tls, self._stream = self._stream, self._stream.transport_stream
            with suppress(trio.BrokenResourceError):  # the client says something else meanwhile
                await under_tls.unwrap()
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """As :meth:`trio.abc.AsyncResource.aclose`."""
        await self._stream.aclose()

    def work(self) -> Work:
        """The work for one request: while it is under way, silence does not count against the client."""
        return Work(self)

    @property
    def silent_since(self) -> float:
        """Since when the client is silent, on Trio's clock; now, while a request is at work."""
        return trio.current_time() if self.at_work else self.last_used


class IdleWatch:
    """Ends connections with clients that are silent for too long. One task watches all of them, so that a waiting
    connection costs little.

    Args:
        seconds: how long no bytes may pass.
        idle_seconds: seconds from the end of an answer to the next request.
    """

    def __init__(self, seconds: float, idle_seconds: float = math.inf) -> None:
        self._seconds = seconds
        self._idle_seconds = idle_seconds
        self._scopes: dict[WatchedStream, trio.CancelScope] = {}
        self._somebody = trio.Event()
        self._pause = trio.CancelScope()

    async def serve(self, stream: WatchedStream, serve: Callable[[], Awaitable[None]]) -> None:
        """Serve a connection, until that ends or its client has been silent for too long."""
        with trio.CancelScope() as scope:
            self._scopes[stream] = scope
            self._somebody.set()
            try:
                await serve()
            finally:
                del self._scopes[stream]
                if not self._scopes:  # a daemon without connections must not wake up
                    self._somebody = trio.Event()
                    self._pause.cancel()

    async def run(self) -> None:
        """IdleWatch. When this is cancelled every socket is closed, at once: that ends even a send that is shielded."""
        try:
            while True:
                await self._somebody.wait()
                with trio.CancelScope(deadline=self._end_silent()) as self._pause:
                    await trio.sleep_forever()
        finally:
            for stream in self._scopes:
                stream.socket.close()

    def _end_silent(self) -> float:
        """End the connections that were silent for too long. Returns when to look again."""
        now = trio.current_time()
        next_time = now + min(self._seconds, self._idle_seconds)
        for stream, scope in self._scopes.items():
            end = stream.silent_since + self._seconds
            if end <= now:
                stream.socket.close()
                scope.cancel()
                continue
            next_time = min(next_time, end)
            if stream.idle_since is not None:
                end = stream.idle_since + self._idle_seconds
                if end <= now:
                    stream.leave_if_idle()
                else:
                    next_time = min(next_time, end)
        return max(next_time, now + self._seconds / _LOOKS)


class Work:
    """The time from the end of a request to the beginning of its answer."""

    def __init__(self, stream: WatchedStream) -> None:
        self._stream = stream
        self._has_begun = False
        self._has_ended = False

    def begin(self) -> None:
        """The request is complete."""
        if not self._has_begun:
            self._has_begun = True
            self._stream.at_work += 1

    def end(self) -> None:
        """The answer begins, or there will be none."""
        if self._has_begun and not self._has_ended:
            self._has_ended = True
            self._stream.at_work -= 1
            self._stream.last_used = trio.current_time()
