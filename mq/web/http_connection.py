"""A connection of the HTTP door: its user, its waiting requests, and whether its client has hung up.

A waiting request ends when its client hangs up, and all of them end when mq stops. One task listens for the hang-ups of
all clients. A task for each waiting request would cost memory while nothing happens; and when a message comes, ending
that task would cost time. The kernel reports a closed sending side without a byte being read, so the client's next
requests stay in the socket meanwhile.
"""

from __future__ import annotations

import select
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from types import TracebackType
from typing import Final, TypeVar

import trio

from mq.doors.connections import Peer
from mq.doors.open_connections import ConnectionStatus, ConsumerStatus, traffic_of
from mq.errors import MQError
from mq.web.exchange import OnHangUp
from mq.web.watched_stream import WatchedStream


class HttpConnection:
    """One connection.

    Args:
        stream: carries it.
        peer: the client.

    Attributes:
        door: "http".
        user: the last one that logged in; None before.
        scope: the task that serves the connection runs in it; :meth:`close` cancels it.
    """

    door = "http"

    __slots__ = ("_began", "_peer", "_stream", "_waits", "scope", "user")

    def __init__(self, stream: WatchedStream, peer: Peer) -> None:
        self.user: str | None = None
        self._stream = stream
        self._peer = peer
        self.scope = trio.CancelScope()
        self._began = trio.current_time()
        self._waits: dict[object, tuple[str, float]] = {}

    @contextmanager
    def wait(self, queue: str) -> Iterator[None]:
        """A block in which one of its requests waits for messages of a queue."""
        token = object()
        self._waits[token] = (queue, trio.current_time())
        try:
            yield
        finally:
            del self._waits[token]

    def status(self) -> ConnectionStatus:
        """What there is to see of it now."""
        now, traffic = trio.current_time(), traffic_of(self._stream.socket)
        return ConnectionStatus(
            door=self.door,
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
        self._stream.socket.close()  # that ends a send, too, which Hypercorn shields
        self.scope.cancel()


CONNECTION: Final[ContextVar[HttpConnection | None]] = ContextVar("connection", default=None)
"""The one over which this task's request came; None where it came over no socket."""


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

    async def unless_gone(
        self,
        on_hang_up: OnHangUp,
        work: Callable[[], Awaitable[_T]],
        undo: Callable[[_T], Awaitable[None]] | None = None,
    ) -> _T | None:
        """The result of `work`, or None when the wait ended first. If the client has hung up by then, the result is
        undone.

        Args:
            on_hang_up: that of the request.
            work: may wait. It is cancelled when its result would be useless.
            undo: undoes a result.
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
