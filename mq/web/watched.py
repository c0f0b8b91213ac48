"""A connection that ends by itself once it is of no use."""

from __future__ import annotations

import trio

TLSStream = trio.SSLStream[trio.SocketStream]


class WatchedStream:
    """A stream that notes when bytes last passed. It has the verbs that a server of streams uses.

    Over TLS only what the client said counts: empty records and renewed keys keep nothing open.

    Args:
        stream: what carries the bytes, its handshake done where it has one.

    Attributes:
        socket: that of the stream.
        last_used: when bytes last passed in or out, on Trio's clock.
        at_work: how many whole requests wait for their answers.
    """

    def __init__(self, stream: trio.SocketStream | TLSStream) -> None:
        self._stream = stream
        self.socket = stream.transport_stream.socket if isinstance(stream, trio.SSLStream) else stream.socket
        self.last_used = trio.current_time()
        self.at_work = 0

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """As :meth:`trio.abc.ReceiveStream.receive_some`."""
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

    async def aclose(self) -> None:
        """As :meth:`trio.abc.AsyncResource.aclose`."""
        await self._stream.aclose()

    def work(self) -> Work:
        """What one request makes us do: while it is under way, the silence is ours."""
        return Work(self)

    async def close_when_silent(self, seconds: float) -> None:
        """Return once no bytes have passed for so long. Then, or when cancelled, the socket is closed, at once: that
        ends even a send that is shielded from cancellation."""
        try:
            while True:
                since = trio.current_time() if self.at_work else self.last_used
                remaining = since + seconds - trio.current_time()
                if remaining <= 0:
                    return
                await trio.sleep(remaining)
        finally:
            self.socket.close()


class Work:
    """From the end of a request to the beginning of its answer."""

    def __init__(self, stream: WatchedStream) -> None:
        self._stream = stream
        self._has_begun = False
        self._has_ended = False

    def begin(self) -> None:
        """The client has said all."""
        if not self._has_begun:
            self._has_begun = True
            self._stream.at_work += 1

    def end(self) -> None:
        """The answer begins, or there will be none."""
        if self._has_begun and not self._has_ended:
            self._has_ended = True
            self._stream.at_work -= 1
            self._stream.last_used = trio.current_time()
