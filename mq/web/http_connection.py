"""A connection of the HTTP server: its stream, its user, its waiting requests, and whether its client has hung up.

A connection ends once its client is silent for too long: one task watches all of them.

A waiting request ends when its client hangs up, and all of them end when mq stops. One task listens for the hang-ups of
all clients. A task for each waiting request would cost memory while nothing happens; and when a message comes, ending
that task would cost time. The kernel reports a closed sending side without a byte being read, so the client's next
requests stay in the socket meanwhile.
"""

from __future__ import annotations

import math
import select
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import Final, NamedTuple, TypeVar

import trio

from mq import turns
from mq.broker.api import BrokerAPI
from mq.doors.budget import Budget, ClientMemory
from mq.doors.connections import Peer
from mq.doors.listeners import TLSStream, plain_socket
from mq.doors.open_connections import ConnectionStatus, ConsumerStatus, traffic_of
from mq.doors.readers import Reader
from mq.errors import MQError
from mq.message import Message, QueueName
from mq.web.exchange import OnHangUp

LINGERING_SECONDS: Final = 30
"""How long a connection that has ended on our side takes and drops what its client still says, at the most."""
SILENCE_SECONDS: Final = 2
"""How long it does so while nothing comes."""

_LOOKS: Final = 100
"""How often the watch looks, at the most, in the time that a client may be silent."""
_LARGEST_DROP: Final = 64 * 1024
_DROP: Final = turns.MESSAGE
"""Units of work to receive so many bytes and to drop them."""
_FEW_BYTES: Final = 16 * 1024
"""For which there is room, unless the client does not read."""
_UNREAD_SECONDS: Final = 0.1
"""How long bytes are read before TLS's goodbye, which OpenSSL would else take back."""


class HeadPatience(NamedTuple):
    """How long a connection waits for requests.

    Attributes:
        head: seconds for a request's line and headers, from their first byte on; for the first request from the
            beginning of the connection on.
        keep_alive: seconds from the end of an answer to the first byte of the next request.
    """

    head: float
    keep_alive: float


UNLIMITED: Final = HeadPatience(math.inf, math.inf)


class WatchedStream:
    """A stream that notes when bytes last passed. It has the methods that a server of streams uses.

    Over TLS only what the client said counts: empty records and renewed keys keep nothing open.

    Args:
        stream: what carries the bytes, its handshake done where it has one.
        address: the client's, as :class:`mq.doors.connections.Peer` has it.

    Attributes:
        plain: the socket, for :class:`mq.web.fast_http1.DirectSocket`; None under TLS.
        last_used: when bytes last passed in or out, on Trio's clock.
        is_broken: whether a send has failed: the client is gone.
        at_work: how many whole requests wait for their answers.
        idle_until: until when it waits for the head of a request, on Trio's clock; None while it does not wait.
        idle: the scope that is cancelled when it waits for a request for too long.
    """

    def __init__(
        self, stream: trio.SocketStream | TLSStream, address: str = "", patience: HeadPatience = UNLIMITED
    ) -> None:
        self._stream = stream
        self.socket = stream.transport_stream.socket if isinstance(stream, trio.SSLStream) else stream.socket
        self.address = address
        self.patience = patience
        self.scheme = "https" if isinstance(stream, trio.SSLStream) else "http"
        self.plain = plain_socket(stream) if isinstance(stream, trio.SocketStream) else None
        self.last_used = trio.current_time()
        self.is_broken = False
        self.at_work = 0
        self.idle_until: float | None = None
        self.idle = trio.CancelScope()
        self.is_left = False
        self._put_back = b""
        self._arrived: int | None = None  # bytes that had arrived at the last look, while some are being sent

    def leave_if_idle(self) -> None:
        """Cancel the scope if the connection waits for a request."""
        if self.idle_until is not None:
            self.is_left = True
            self.idle.cancel()

    def put_back(self, data: bytes) -> None:
        """Put back what was read, for the next reader."""
        self._put_back = data

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
        try:
            if len(data) > _FEW_BYTES:
                await self.send_slowly(data)
            else:
                await self._stream.send_all(data)
                self.last_used = trio.current_time()
        except trio.BrokenResourceError:
            self.is_broken = True
            raise

    async def send_slowly(self, data: bytes | memoryview) -> None:
        """Send what may be more than there is room for."""
        self._arrived = _arrived(self.socket)
        try:
            await self._stream.send_all(data)
        finally:
            self._arrived = None
        self.last_used = trio.current_time()

    def note_reading(self) -> None:
        """Count it as use if more has arrived of what is being sent than at the last look, or at its beginning."""
        # A send ends when the kernel has room for all of it: of that a slow reader frees a third before there is any.
        arrived = None if self._arrived is None else _arrived(self.socket)
        if self._arrived is not None and arrived is not None and arrived > self._arrived:
            self._arrived, self.last_used = arrived, trio.current_time()

    async def send_eof(self) -> None:
        """As :meth:`trio.abc.HalfCloseableStream.send_eof`. TLS says goodbye when it is closed, and only then."""
        if not isinstance(self._stream, trio.SSLStream):
            await self._stream.send_eof()

    async def linger(self, reader: Reader) -> None:
        """Say that nothing more will be sent; drop what still comes, until the client ends its side or falls silent.

        A socket that is closed while bytes are unread resets its connection, and what the client has not received of
        its answers by then is gone (RFC 9112, section 9.6).

        Args:
            reader: of this connection, which takes its turns while it drops bytes, too.
        """
        ended = (trio.BrokenResourceError, trio.ClosedResourceError)
        with suppress(*ended), trio.move_on_after(LINGERING_SECONDS):
            silence = trio.CancelScope(deadline=trio.current_time() + SILENCE_SECONDS)
            with silence:
                await self._say_goodbye()
                while await self.receive_some(_LARGEST_DROP):
                    silence.deadline = math.inf  # the client is not silent while others are served first
                    await reader.pay(_DROP)
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
        idle_seconds: the shortest time for which a connection waits for a head.
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
        """IdleWatch. When this is cancelled every socket is closed, at once: that ends even a shielded send."""
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
                stream.note_reading()
                end = stream.silent_since + self._seconds
            if end <= now:
                stream.socket.close()
                scope.cancel()
                continue
            next_time = min(next_time, end)
            if stream.idle_until is not None:
                if stream.idle_until <= now:
                    stream.leave_if_idle()
                else:
                    next_time = min(next_time, stream.idle_until)
        return max(next_time, now + self._seconds / _LOOKS)


def _arrived(socket: trio.socket.SocketType) -> int | None:
    """How many bytes of ours have arrived at the client; None where the kernel does not tell."""
    traffic = traffic_of(socket)
    return None if traffic is None else traffic.sent_bytes


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


class ConnectionLogin:
    """Whether the client of a connection has logged in.

    Attributes:
        change: where requests wait until it has, or one before them has ended.
    """

    def __init__(self) -> None:
        self.is_done = False
        self.change = trio.lowlevel.ParkingLot()
        self.on_login: Callable[[], None] | None = None

    def succeed(self) -> None:
        """The client has logged in."""
        if not self.is_done:
            self.is_done = True
            self.change.unpark_all()
            if self.on_login is not None:
                self.on_login()


class HttpConnection:
    """One connection.

    Attributes:
        user: the last one that logged in; None before.
        login: for the server that goes on behind the fast path; None in the fast path.
        scope: the task that serves the connection runs in it; :meth:`close` cancels it.
    """

    protocol = "http"

    __slots__ = ("_began", "_peer", "_stream", "_waiting", "_waits", "login", "memory", "scope", "user")

    def __init__(self, stream: WatchedStream, peer: Peer, budget: Budget, waiting: Counter[str]) -> None:
        self.user: str | None = None
        self.login: ConnectionLogin | None = None
        self.memory = budget.client(
            str(peer), partial(self.close, "the client reads slowly, and other clients needed its memory")
        )
        self._stream = stream
        self._peer = peer
        self.scope = trio.CancelScope()
        self._began = trio.current_time()
        self._waiting = waiting
        self._waits: dict[object, tuple[str, float]] = {}

    def log_in(self, user: str) -> None:
        """Note the user of a request."""
        self.user = user
        if self.login is not None:
            self.login.succeed()

    @contextmanager
    def wait(self, queue: str) -> Iterator[None]:
        """A block in which one of its requests waits for messages of a queue."""
        token = object()
        self._waits[token] = (queue, trio.current_time())
        self._waiting[queue] += 1
        try:
            yield
        finally:
            del self._waits[token]
            if self._waiting[queue] == 1:
                del self._waiting[queue]
            else:
                self._waiting[queue] -= 1

    def status(self) -> ConnectionStatus:
        """What there is to see of it now."""
        now, traffic = trio.current_time(), traffic_of(self._stream.socket)
        return ConnectionStatus(
            protocol=self.protocol,
            state="waiting" if self._waits else "open",
            address=self._peer.address,
            port=self._peer.port,
            user=self.user,
            vhost=None,
            open_seconds=now - self._began,
            idle_seconds=now - self._stream.last_used if traffic is None else traffic.idle_seconds,
            received_bytes=None if traffic is None else traffic.received_bytes,
            sent_bytes=None if traffic is None else traffic.sent_bytes,
            channels=(),
        )

    def consumers(self) -> list[ConsumerStatus]:
        """Its requests that wait for messages."""
        now = trio.current_time()
        return [
            ConsumerStatus(queue, None, None, None, True, 0, 0, 0.0, now - since, now - since)
            for queue, since in self._waits.values()
        ]

    def close(self, why: str) -> None:
        """End it at once, without a reason, for which HTTP has no message. A request that was carried out stays so."""
        self._stream.socket.close()  # this ends a send, too, although Hypercorn shields it
        self.scope.cancel()


CONNECTION: Final[ContextVar[HttpConnection | None]] = ContextVar("connection", default=None)
"""The connection of this task's request; None where that came over no socket."""


REQUEST_MEMORY: Final[ContextVar[ClientMemory | None]] = ContextVar("request memory", default=None)
"""What this task's request may reserve, where a connection has several at a time."""


def waiting_for(queue: str) -> AbstractContextManager[None]:
    """A block in which this task's request waits for messages of a queue, and is shown as waiting."""
    connection = CONNECTION.get()
    return nullcontext() if connection is None else connection.wait(queue)


_T = TypeVar("_T")


class WaitingRequests:
    """The requests that wait for messages now."""

    def __init__(self) -> None:
        self._scopes: set[trio.CancelScope] = set()
        self._are_over = False

    def end(self) -> None:
        """End every wait, now and later: each request gets the reply for no message."""
        self._are_over = True
        for scope in self._scopes:
            scope.cancel()

    async def fetch(
        self,
        broker: BrokerAPI,
        queue: QueueName,
        wait: float,
        on_hang_up: OnHangUp,
        fetch: Callable[[float], Awaitable[list[Message]]],
    ) -> list[Message]:
        """Messages of a queue, leased to a request: none when none came in time, or the wait ended first.

        Args:
            wait: seconds to wait for the first.
            fetch: leases them, and waits for so many seconds.
        """
        # To prepare for a wait costs as much as a lease, so what is there is leased without: as with a fetch that does
        # not wait, the lease of a client that goes in that moment runs out.
        found = await fetch(0) if not wait or broker.declarations.ready(queue) else []
        if wait and not found:
            with waiting_for(queue):
                found = await self.unless_gone(on_hang_up, partial(fetch, wait), broker.give_back) or []
        return found

    async def unless_gone(
        self,
        on_hang_up: OnHangUp,
        work: Callable[[], Awaitable[_T]],
        undo: Callable[[_T], Awaitable[None]] | None = None,
    ) -> _T | None:
        """The result of `work`, or None when the wait ended first. If the client has hung up by then, the result is
        undone.

        Args:
            work: may wait. It is cancelled when its result would be useless.
        """
        done: _T | None = None
        failed: MQError | None = None
        is_gone = False

        def hang_up() -> None:
            nonlocal is_gone
            is_gone = True
            scope.cancel()

        with trio.CancelScope() as scope:
            if self._are_over:
                return None
            self._scopes.add(scope)
            try:
                async with on_hang_up(hang_up):
                    try:
                        done = await work()
                    except MQError as error:
                        failed = error
            finally:
                self._scopes.discard(scope)
        if failed is not None:
            raise failed
        if is_gone and done is not None and undo is not None:
            await undo(done)
            return None
        return done


class HangUps:
    """The sockets of clients that wait, in one epoll."""

    def __init__(self) -> None:
        self._listening = select.epoll()
        self._tell: dict[int, Callable[[], None]] = {}

    async def run(self) -> None:
        """Listen, until cancelled."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._listening.fileno())
                for file, _ in self._listening.poll(0):
                    self._listening.unregister(file)  # once is enough
                    tell = self._tell.pop(file, None)
                    if tell is not None:
                        tell()
        finally:
            self._listening.close()

    def watch(self, socket: trio.socket.SocketType, tell: Callable[[], None]) -> _Watching:
        """In this context, `tell` is called when the other end of the connection, or its sending side, is closed."""
        return _Watching(self, socket.fileno(), tell)

    def begin(self, file: int, tell: Callable[[], None]) -> None:
        """Call `tell` at a hang-up from now on."""
        if file < 0 or self._listening.closed:
            tell()
            return
        self._tell[file] = tell
        with suppress(FileExistsError):  # it has waited before
            self._listening.register(file, select.EPOLLRDHUP)

    def end(self, file: int, tell: Callable[[], None]) -> None:
        """Do not call `tell` any more."""
        # The kernel goes on listening until the socket is closed: to end that now would only delay the answer.
        if self._tell.get(file) is tell:
            del self._tell[file]


class _Watching:
    def __init__(self, hang_ups: HangUps, file: int, tell: Callable[[], None]) -> None:
        self._hang_ups = hang_ups
        self._file = file
        self._tell = tell

    async def __aenter__(self) -> None:
        self._hang_ups.begin(self._file, self._tell)

    async def __aexit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._hang_ups.end(self._file, self._tell)
