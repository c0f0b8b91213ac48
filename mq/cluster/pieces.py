"""Large bodies over a link, piece by piece. Each piece is a message of the link, and follows when the one before
was taken: others go in between, and neither end holds more than a few.

* To the leader: :class:`Arrivals` hands the pieces of a body that is published to what stages it.
* From the leader: :class:`OpenBodies` are read by a link, each through a :class:`RemoteBody`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

import trio

from mq.cluster.link_codec import Waiting
from mq.cluster.spool import PIECE_BYTES
from mq.errors import CallerError, StorageError
from mq.message import Body

WHOLE_BYTES: Final = 2 * 1024 * 1024
"""Bytes of a body that goes over a link as a whole; a longer one goes in pieces."""


class PiecewiseBody:
    """A body whose pieces arrive."""

    def __init__(self) -> None:
        self.users = 0
        self._put, self._taken = trio.open_memory_channel[bytes](0)

    async def put(self, data: bytes) -> None:
        """Hand over a piece; an empty one ends the body. Returns once it is taken."""
        await self._put.send(data)

    async def pieces(self, size: int) -> AsyncGenerator[bytes]:
        """The pieces, to the end.

        Raises:
            CallerError: they are not so many bytes.
        """
        left = size
        while data := await self._taken.receive():
            left -= len(data)
            if left < 0:
                break
            yield data
        if left:
            raise CallerError(f"the body chunks do not add up to the declared size of {size} bytes")


class Arrivals:
    """Bodies that arrive from one link. Whichever comes first, a piece or what takes it, waits for the other."""

    def __init__(self) -> None:
        self._arrivals: dict[int, PiecewiseBody] = {}

    def __len__(self) -> int:
        """How many there are."""
        return len(self._arrivals)

    @contextmanager
    def of(self, number: int) -> Iterator[PiecewiseBody]:
        """A body by the number that its sender has given it."""
        arrival = self._arrivals.setdefault(number, PiecewiseBody())
        arrival.users += 1
        try:
            yield arrival
        finally:
            arrival.users -= 1
            if not arrival.users:
                del self._arrivals[number]


class _OpenBody:
    def __init__(self, body: Body) -> None:
        self._body = body
        self._chunks = aiter(body)
        self._rest = memoryview(b"")
        self._turn = trio.Lock()  # a reader that is cancelled may still be inside when the body is closed

    async def piece(self) -> bytes:
        async with self._turn:
            while not self._rest:
                try:
                    self._rest = memoryview(await anext(self._chunks))
                except StopAsyncIteration:
                    return b""
            data = bytes(self._rest[:PIECE_BYTES])
            self._rest = self._rest[PIECE_BYTES:]
            return data

    async def aclose(self) -> None:
        async with self._turn:
            if isinstance(self._chunks, AsyncGenerator):
                await self._chunks.aclose()
            await self._body.aclose()


class OpenBodies:
    """Bodies that one link reads."""

    def __init__(self) -> None:
        self._open: dict[int, _OpenBody] = {}
        self._last = 0

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def add(self, body: Body) -> Waiting:
        """Open a body; what is sent in its place."""
        self._last += 1
        self._open[self._last] = _OpenBody(body)
        return Waiting(self._last, body.size)

    async def piece(self, number: int) -> bytes:
        """The next piece of a body; empty at its end.

        Raises:
            CorruptMessage: the bytes are not those that were published.
        """
        if number not in self._open:
            raise StorageError("the message body is no longer available. Fetch the message again")
        return await self._open[number].piece()

    async def close(self, number: int) -> None:
        """Close a body, if it is open."""
        body = self._open.pop(number, None)
        if body is not None:
            with trio.CancelScope(shield=True):
                await body.aclose()

    async def close_all(self) -> None:
        """Close all of them."""
        for number in list(self._open):
            await self.close(number)


class BodySource(Protocol):
    """A neighbour whose bodies are open for this node."""

    async def body_piece(self, number: int) -> bytes:
        """The next piece of a body; empty at its end. Raises what reading it raises, and NotServed without a link."""

    def close_body(self, number: int) -> None:
        """Close a body. Returns at once."""


class RemoteBody:
    """A body of the leader's, read from there piece by piece."""

    def __init__(self, source: BodySource, number: int, size: int) -> None:
        self.size = size
        self._source = source
        self.number = number
        self._is_closed = False

    async def read(self) -> bytes:
        """All of it. Raises as the iteration does."""
        return b"".join([piece async for piece in self])

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Piece by piece.

        Raises:
            CorruptMessage: the bytes are not those that were published.
            NotServed: the leader leads no more, or is out of reach. The message comes again.
            StorageError: the leader's store cannot read it.
        """
        left = self.size
        while left:
            piece = await self._source.body_piece(self.number)
            if not piece:
                raise StorageError("the body is incomplete. Fetch the message again")
            left -= len(piece)
            yield piece

    async def aclose(self) -> None:
        """Let the leader close it."""
        if not self._is_closed:
            self._is_closed = True
            self._source.close_body(self.number)
