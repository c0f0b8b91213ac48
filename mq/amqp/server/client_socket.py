"""A client's socket: read from it, and write to it without waiting for a client that reads slowly."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Final

import trio

from mq.doors.budget import Room
from mq.doors.connections import FewLines, Peer
from mq.doors.listeners import TLSStream, plain_socket
from mq.doors.open_connections import Traffic, traffic_of
from mq.errors import MQError

logger = logging.getLogger("mq.amqp")

_DROPPED: Final = FewLines(logger, logging.INFO, "disconnected AMQP client %s: %s")

READ_BYTES: Final = 128 * 1024
"""The most bytes in one read."""
MOST_BYTES_UNSENT: Final = 1024 * 1024
"""A client that leaves more unread is sent nothing, and nothing is read from it."""
MOST_BYTES_UNCOUNTED: Final = 16 * 1024
"""Unsent bytes for which no memory is reserved."""
PIECE_BYTES: Final = 64 * 1024
"""The most bytes in one write of the writing task."""
STALLED_SECONDS: Final = 120
"""A client that takes no piece for so long is disconnected, whatever its heartbeat."""
LINGER_SECONDS: Final = 5
"""How long a connection that has ended keeps its socket, for the store to finish and its client to read the answers.
Its messages are stored even if that takes longer."""


class ClientSocket:
    """Reads from one client and writes to it.

    Args:
        stream: any handshake is done.
        memory: for the bytes that the client has not read.
        write: starts the writing task, :meth:`write`.
        lost: called when the client takes nothing more.

    Attributes:
        unsent: bytes that the kernel has not taken.
    """

    def __init__(
        self,
        stream: trio.SocketStream | TLSStream,
        peer: Peer,
        memory: Room,
        write: Callable[[], None],
        lost: Callable[[], None],
    ) -> None:
        self.unsent = 0
        self._stream = stream
        self._plain = plain_socket(stream) if isinstance(stream, trio.SocketStream) else None
        self._peer = peer
        self._memory = memory
        self._start_writing = write
        self._lost = lost
        self._outgoing: deque[bytes] = deque()
        self._has_sent = trio.lowlevel.ParkingLot()  # tasks that wait until `unsent` is smaller
        self._is_writing = False
        self._is_last = False

    # Reading

    async def receive(self, most: int) -> bytes | bytearray:
        """Return the client's next bytes, none at its end. Always a checkpoint.

        Raises:
            trio.BrokenResourceError: the connection broke.
            trio.ClosedResourceError: it was closed here.
        """
        if self._plain is None:
            return await self._stream.receive_some(most)
        while True:  # as `receive_some` of the stream, in a third of its calls
            file = self._plain.fileno()
            if file < 0:  # dropped; Trio would keep the number -1, and fail all who come with it later
                raise trio.ClosedResourceError
            await trio.lowlevel.wait_readable(file)
            try:
                return self._plain.recv(most)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError from error

    def chunks(self) -> AsyncIterator[bytes]:
        """Iterate over what the client sends, until its end."""
        return _Chunks(self._stream)

    # Writing

    def send(self, data: bytes, *, is_last: bool) -> None:
        """Send at once what the kernel takes; the writing task sends the rest.

        Args:
            is_last: whether the end of the stream follows.
        """
        self._is_last = is_last
        if self._plain is not None and not self.unsent and not is_last:
            try:  # noqa: SIM105 - a context manager is three calls
                data = data[self._plain.send(data) :]
            except OSError:
                pass  # no room; the writing task finds out whether the connection broke
        if data:
            self._outgoing.append(data)
            self.unsent += len(data)
            if not self._is_writing:
                self._is_writing = True
                self._start_writing()
            if self.unsent > MOST_BYTES_UNCOUNTED:
                self._count_unsent()

    def _count_unsent(self) -> None:
        """Reserve memory for unread bytes. A client for which there is none is disconnected."""
        try:
            self._memory.cover(self.unsent)
        except MQError as error:
            logger.info("disconnected AMQP client %s because it does not read its messages: %s", self._peer, error)
            self._lost()
        self._memory.begin_sending()

    async def write(self) -> None:
        """Send what the kernel did not take at once, to its end."""
        while self.unsent:
            if not await self._send_outgoing():
                self._outgoing.clear()
                self._note_sent(self.unsent)
                self._memory.give_back()
                self._lost()
            elif self._is_last and not self.unsent and isinstance(self._stream, trio.abc.HalfCloseableStream):
                # The client may wait for it. TLS cannot half-close: there the client closes.
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await self._stream.send_eof()
        self._is_writing = False

    async def _send_outgoing(self) -> bool:
        """Return False when the client takes nothing more."""
        data = memoryview(b"".join(self._outgoing))
        self._outgoing.clear()
        try:
            for at in range(0, len(data), PIECE_BYTES):
                piece = data[at : at + PIECE_BYTES]
                with trio.move_on_after(STALLED_SECONDS) as patience:
                    await self._stream.send_all(piece)
                if patience.cancelled_caught:
                    _DROPPED.write(self._peer, "the client does not read")
                    return False
                self._note_sent(len(piece))
                if self._memory.size:
                    self._memory.shrink(self.unsent if self.unsent > MOST_BYTES_UNCOUNTED else 0)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        return True

    def _note_sent(self, size: int) -> None:
        self.unsent -= size
        self._has_sent.unpark_all()

    @property
    def has_room(self) -> bool:
        """Whether the client has read most of what was sent."""
        return self.unsent < MOST_BYTES_UNSENT

    async def wait_for_room(self, stalled: Callable[[], None] | None = None) -> None:
        """Wait until the client has read most of what was sent; call `stalled` first if it has not."""
        if stalled is not None and self.unsent >= MOST_BYTES_UNSENT:
            stalled()
        while self.unsent >= MOST_BYTES_UNSENT:
            await self._has_sent.park()

    async def wait_until_sent(self) -> None:
        """Wait until the kernel has taken everything."""
        while self.unsent:
            await self._has_sent.park()

    # The end

    def drop(self) -> None:
        """Disconnect a client that reads slowly, for others need the memory. It would not read a reason either."""
        _DROPPED.write(self._peer, "the client reads slowly, and other clients needed its memory")
        carrier = self._carrier
        if isinstance(carrier, trio.SocketStream):
            carrier.socket.close()

    async def aclose(self) -> None:
        """Close the stream."""
        with trio.move_on_after(LINGER_SECONDS, shield=True):
            await self._stream.aclose()

    def traffic(self) -> Traffic | None:
        """Return how much was sent and received; None where the kernel does not count it."""
        carrier = self._carrier
        return traffic_of(carrier.socket) if isinstance(carrier, trio.SocketStream) else None

    @property
    def _carrier(self) -> trio.abc.Stream:
        return self._stream.transport_stream if isinstance(self._stream, trio.SSLStream) else self._stream


class _Chunks:
    # Not a generator: this one is dropped in the middle.

    def __init__(self, stream: trio.SocketStream | TLSStream) -> None:
        self._stream = stream

    def __aiter__(self) -> _Chunks:
        return self

    async def __anext__(self) -> bytes:
        data = await self._stream.receive_some(READ_BYTES)
        if not data:
            raise StopAsyncIteration
        return bytes(data)
