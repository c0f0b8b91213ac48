"""A connection of the HTTP door, as operators see it: who asks over it, and which of its requests wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Final

import trio

from mq.doors.connections import Peer
from mq.doors.open_connections import ConnectionStatus, ConsumerStatus, traffic_of
from mq.web.watched_stream import WatchedStream


class HttpConnection:
    """One connection.

    Args:
        stream: carries it.
        peer: the client.

    Attributes:
        door: "http".
        user: who logged in last; None before.
        scope: it is served in this one; :meth:`close` cancels it.
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
        """In the block one of its requests waits for messages of a queue."""
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
        """End it, at once: HTTP has no word for why. A request that was carried out is, whatever its client hears."""
        self._stream.socket.close()  # that ends a send, too, which Hypercorn shields
        self.scope.cancel()


CONNECTION: Final[ContextVar[HttpConnection | None]] = ContextVar("connection", default=None)
"""The one over which this task's request came; None where it came over no socket."""


def waiting_for(queue: str) -> AbstractContextManager[None]:
    """In the block this task's request waits for messages of a queue, and is seen to."""
    connection = CONNECTION.get()
    return nullcontext() if connection is None else connection.wait(queue)
