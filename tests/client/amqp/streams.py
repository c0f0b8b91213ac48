"""Bytes both ways in memory, on either event loop."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import anyio
import anyio.lowlevel
import trio
from anyio.abc import ByteStream


class MemoryStream(ByteStream):
    """One end; made in pairs. It takes as much as there is to send."""

    def __init__(self) -> None:
        self.other = self
        self._data = bytearray()
        self._news = anyio.Event()
        self._is_over = self._is_closed = False

    async def send(self, item: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        if self._is_closed:
            raise anyio.ClosedResourceError
        if self.other._is_closed:
            raise anyio.BrokenResourceError
        self.other._came(item)

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        await anyio.lowlevel.checkpoint()
        while not self._data:
            if self._is_closed:
                raise anyio.ClosedResourceError
            if self._is_over:
                raise anyio.EndOfStream
            self._news = anyio.Event()
            await self._news.wait()
        taken = bytes(self._data[:max_bytes])
        del self._data[:max_bytes]
        return taken

    async def send_eof(self) -> None:
        self.other._is_over = True
        self.other._came(b"")

    async def aclose(self) -> None:
        self._is_closed = True
        self._came(b"")
        await self.send_eof()

    def _came(self, data: bytes) -> None:
        self._data += data
        self._news.set()


class OverTrio(ByteStream):
    """A stream of Trio's, for the client."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def send(self, item: bytes) -> None:
        await self._translated(self._stream.send_all(item))

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        data = await self._translated(self._stream.receive_some(max_bytes))
        if not data:
            raise anyio.EndOfStream
        return bytes(data)

    async def send_eof(self) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def _translated(self, call: Awaitable[Any]) -> Any:
        try:
            return await call
        except trio.ClosedResourceError as error:
            raise anyio.ClosedResourceError from error
        except trio.BrokenResourceError as error:
            raise anyio.BrokenResourceError from error


def memory_pair() -> tuple[MemoryStream, MemoryStream]:
    """What one end sends, the other receives."""
    one, other = MemoryStream(), MemoryStream()
    one.other, other.other = other, one
    return one, other
