"""A message's body as its reader gets it: damage that the reader finds, and its end, are told to the broker."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable

from mq.errors import CorruptMessage
from mq.message import Body


def _ignore() -> None:
    """Do nothing: the caller wants to know of nothing."""


class WatchedBody:
    """A body of which is told what becomes of it.

    Args:
        damaged: called when the bytes turn out not to be those that were published.
    """

    def __init__(self, body: Body, damaged: Callable[[], None] = _ignore, closed: Callable[[], None] = _ignore) -> None:
        self._body = body
        self._damaged = damaged
        self._closed = closed

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self._body.size

    async def read(self) -> bytes:
        """All of it."""
        try:
            return await self._body.read()
        except CorruptMessage:
            self._damaged()
            raise

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Chunk by chunk."""
        chunks = aiter(self._body)
        try:
            async for chunk in chunks:
                yield chunk
        except CorruptMessage:
            self._damaged()
            raise
        finally:
            if isinstance(chunks, AsyncGenerator):  # else one that is left in the middle waits for the collector
                await chunks.aclose()

    async def aclose(self) -> None:
        """Give back what the body holds."""
        try:
            await self._body.aclose()
        finally:
            self._closed()
