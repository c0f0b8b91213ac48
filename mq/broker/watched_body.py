"""A message's body as its reader gets it: damage that the reader finds is told to the broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from mq.errors import CorruptMessage
from mq.message import Body


class WatchedBody:
    """A body whose damage is told when its reader finds it.

    Args:
        body: the body itself.
        damaged: called when the bytes turn out not to be those that were published.
    """

    def __init__(self, body: Body, damaged: Callable[[], None]) -> None:
        self._body = body
        self._damaged = damaged

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
        try:
            async for chunk in self._body:
                yield chunk
        except CorruptMessage:
            self._damaged()
            raise

    async def aclose(self) -> None:
        """Give back what the body holds."""
        await self._body.aclose()
