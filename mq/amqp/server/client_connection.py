"""A client's socket, and the base of its served connection, as the connection's channels, consumers and publishes see
it: write, start tasks, end. No write waits for a client that reads slowly."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Final

import trio

from mq.amqp.model.names import DEFAULT_VHOST
from mq.amqp.protocol.connection import Connection
from mq.amqp.server.state import AmqpState
from mq.amqp.wire.errors import Code, Refusal
from mq.broker.fairness import SOURCE
from mq.doors.budget import Room, Use
from mq.doors.connections import FewLines, Peer
from mq.doors.listeners import TLSStream
from mq.doors.open_connections import Traffic, traffic_of
from mq.errors import MQError

logger = logging.getLogger("mq.amqp")

_DROPPED: Final = FewLines(logger, logging.INFO, "disconnected AMQP client %s: %s")

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
    """Writes to one client what the kernel does not take at once.

    Args:
        stream: any handshake is done.
        memory: for the bytes that the client has not read.
        start: starts a task of the connection.
        lost: called when the client takes nothing more.

    Attributes:
        unsent: bytes that the kernel has not taken.
    """

    def __init__(
        self,
        stream: trio.SocketStream | TLSStream,
        peer: Peer,
        memory: Room,
        start: Callable[[Callable[[], Awaitable[object]]], None],
        lost: Callable[[], None],
    ) -> None:
        self.unsent = 0
        self._stream = stream
        self._peer = peer
        self._memory = memory
        self._start = start
        self._lost = lost
        self._outgoing: deque[bytes] = deque()
        self._has_sent = trio.lowlevel.ParkingLot()  # tasks that wait until `unsent` is smaller
        self._is_writing = False
        self._is_last = False

    def put(self, data: bytes, *, is_last: bool) -> None:
        """Have the writing task send bytes that the kernel did not take at once.

        Args:
            is_last: whether the end of the stream follows.
        """
        self._is_last = is_last
        self._outgoing.append(data)
        self.unsent += len(data)
        if not self._is_writing:
            self._is_writing = True
            self._start(self.write)
        if self.unsent > MOST_BYTES_UNCOUNTED:
            self._count_unsent()

    def _count_unsent(self) -> None:
        """Reserve memory for unread bytes. A client for which there is none is disconnected."""
        try:
            self._memory.cover(self.unsent)
        except MQError as error:
            logger.info("disconnected AMQP client %s because it was not reading its messages: %s", self._peer, error)
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


class ClientConnection(ABC):
    """The part of a client's connection that its channels, consumers and publishes use.

    They write to the client through it, start tasks of the connection, and close it after an error.
    :class:`~mq.amqp.server.served_connection.ServedConnection` completes it: it reads, carries out commands and writes.

    Attributes:
        connection: the protocol, without a socket.
    """

    def __init__(self, state: AmqpState, stream: trio.SocketStream | TLSStream, peer: Peer, version: str) -> None:
        self.state = state
        self.peer = peer
        self.now = trio.lowlevel.current_clock().current_time  # two calls less than by trio.current_time
        self.connection = Connection(state.topology, self, self.now, state.limits, version)
        session = self.connection.session
        session.address = peer.address
        session.closed_to = state.closed_to
        session.check_connection = state.quotas.check_connection
        session.longest_body = state.broker.longest_body
        session.denied = self._note_denied
        self.memory = state.memory.client(str(peer), self._drop)
        session.use_memory(self.memory)
        self.reading = trio.CancelScope()
        self.socket = ClientSocket(stream, peer, self.memory.reserve(Use.DELIVERY), self.start, self.reading.cancel)
        self.source = object()
        self.context = copy_context()
        self.context.run(SOURCE.set, self.source)
        self.nursery: trio.Nursery | None = None

    @property
    def vhost(self) -> str:
        """The vhost of the connection."""
        return self.connection.session.vhost

    @property
    def owner(self) -> Hashable:
        """The owner of the client's exclusive queues."""
        return self.connection.session.owner

    @abstractmethod
    async def work_again(self) -> None:
        """Carry out what a close from this side has left to do."""

    @abstractmethod
    def send_answers(self) -> None:
        """Send what completions have written. It never raises."""

    @abstractmethod
    async def wait_until_stored(self) -> None:
        """Wait until everything published before is stored, or refused. A checkpoint only if something is not.

        Raises:
            MQError: the store has failed, or the broker ends; the rest is not stored.
        """

    def start(self, work: Callable[..., Awaitable[object]], *args: object) -> None:
        """Start a task of this connection, unless it has ended. The caller may be a completion, in another task."""
        if self.nursery is not None:
            self.context.copy().run(self.nursery.start_soon, work, *args)

    def _drop(self) -> None:
        self.socket.drop()

    # Errors

    def fail(self, refusal: Refusal) -> None:
        """Close the connection after a command without an answer failed, so that the client knows."""
        code = refusal.code if refusal.closes_connection else Code.INTERNAL_ERROR
        self.connection.close(code, str(refusal))
        self.start(self.work_again)

    def complete(self, completion: Callable[..., None], *args: Any) -> None:
        """Call a completion. One that raises ends this connection, and not the save worker that calls it."""
        try:
            completion(*args)
        except Exception as error:  # noqa: BLE001 - it is logged, and ends the connection alone
            self.end_after_error(error)

    def end_after_error(self, error: Exception) -> None:
        """Log an internal error, and end the connection."""
        logger.error("disconnecting AMQP client %s after an internal error", self.peer, exc_info=error)
        self.fail(Refusal(Code.INTERNAL_ERROR, "mq could not respond because of an internal error; see the mq log"))

    def log_left(self, error: MQError) -> None:
        """Log that the end of the connection could not do all of its work."""
        logger.warning("cannot clean up after AMQP client %s: %s", self.peer, error)

    def _note_denied(self, right: str, what: str, name: str | None) -> None:
        session = self.connection.session
        if session.user is not None:
            vhost = None if session.vhost == DEFAULT_VHOST else session.vhost
            about = {"right": right, "vhost": vhost, what: name}
            self.state.note_denied(session.address, session.user, **about)
