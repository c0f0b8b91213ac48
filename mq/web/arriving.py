"""A request's body on its way in, taken from the network no faster than it is used.

What nobody has asked for yet stays in the server's short queue, then in the socket's buffer, then with the client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio
from hypercorn.typing import ASGIReceiveEvent

from mq.errors import BodyIncomplete
from mq.web.exchange import SLOWEST_BYTES_PER_SECOND, STALLED_SECONDS, BodyTooSlow, Tell


class Arriving:
    """The chunks of one body. Only the time spent waiting for the client counts against it, not our own.

    Args:
        receive: gives the next ASGI event.

    Attributes:
        is_complete: all of it has been taken.
        is_gone: the client has ended: the connection, or its side of it.
    """

    def __init__(self, receive: Callable[[], Awaitable[ASGIReceiveEvent]]) -> None:
        self._receive = receive
        self._patience_seconds = float(STALLED_SECONDS)
        self.is_complete = False
        self.is_gone = False

    def __aiter__(self) -> Arriving:
        return self

    async def __anext__(self) -> bytes:
        """The next chunk, never empty.

        Raises:
            BodyIncomplete: the client ended before its body did.
            BodyTooSlow: it kept us waiting for too long.
        """
        while not self.is_complete:
            if self.is_gone:
                raise BodyIncomplete("the client ended the connection before the end of its body")
            chunk = await self._next_within_patience()
            if chunk:
                return chunk
        raise StopAsyncIteration

    async def _next_within_patience(self) -> bytes:
        since = trio.current_time()
        try:
            with trio.fail_after(self._patience_seconds):
                chunk = await self._take()
        except trio.TooSlowError:
            raise BodyTooSlow(f"the body stopped arriving: waited {STALLED_SECONDS} s for it") from None
        gained = len(chunk) / SLOWEST_BYTES_PER_SECOND - (trio.current_time() - since)
        self._patience_seconds = min(max(self._patience_seconds + gained, 0), STALLED_SECONDS)
        return chunk

    async def _take(self) -> bytes:
        event = await self._receive()
        if event["type"] == "http.disconnect":
            self.is_gone = True
            return b""
        assert event["type"] == "http.request"
        self.is_complete = not event.get("more_body", False)
        return event.get("body", b"")

    @asynccontextmanager
    async def on_hang_up(self, tell: Tell) -> AsyncIterator[None]:
        """See :data:`mq.web.exchange.OnHangUp`. What still comes is dropped."""

        async def listen() -> None:
            while not self.is_gone:
                await self._take()
            tell()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            yield
            nursery.cancel_scope.cancel()

    async def discard(self, when_complete: trio.Event) -> None:
        """Take and drop what still comes, until the client is gone. Then, or when it is complete, set the event."""
        while not self.is_gone:
            if self.is_complete:
                when_complete.set()
            await self._take()
        when_complete.set()


class Whole:
    """The chunks of a body that is here already: one, or none of an empty one."""

    def __init__(self, data: bytes) -> None:
        self._left = data

    def __aiter__(self) -> Whole:
        return self

    async def __anext__(self) -> bytes:
        data, self._left = self._left, b""
        if not data:
            raise StopAsyncIteration
        return data
