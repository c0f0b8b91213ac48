"""A request's body: taken from the network no faster than it is used, and read whole, in pieces, or as JSON.

Bytes that no handler has asked for stay in the server's short queue, then in the socket's buffer, then with the
client.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, NamedTuple

import trio
from hypercorn.typing import ASGIReceiveEvent

from mq.doors.budget import ENOUGH_BYTES_PER_SECOND, UNCOUNTED_BYTES, Room, Use
from mq.errors import BodyIncomplete, BodyTooLarge, InvalidRequest
from mq.web.exchange import SLOWEST_BYTES_PER_SECOND, STALLED_SECONDS, BodyTooSlow, Request, Tell

IN_MEMORY_BYTES: Final = 64 * 1024
"""Bodies up to this size are held in memory; longer ones stream to and from the store."""
STAGED_STEP: Final = 1 << 20
"""Bytes of disk that are reserved at once for a body whose length is not announced."""
LARGEST_JSON_BYTES: Final = 256 * 1024
"""Of a body that is JSON, and no message."""


class ArrivingBody:
    """The chunks of one body. Only the time spent waiting for the client counts against it, not the server's own.

    Attributes:
        is_gone: the client has ended the connection, or its side of it.
    """

    def __init__(self, receive: Callable[[], Awaitable[ASGIReceiveEvent]]) -> None:
        self._receive = receive
        self._patience_seconds = float(STALLED_SECONDS)
        self.is_complete = False
        self.is_gone = False

    def __aiter__(self) -> ArrivingBody:
        return self

    async def __anext__(self) -> bytes:
        """The next chunk, never empty.

        Raises:
            BodyIncomplete: the client ended before its body did.
            BodyTooSlow: the client paused for too long.
        """
        while not self.is_complete:
            if self.is_gone:
                raise BodyIncomplete("the client closed the connection before the end of the request body")
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
            raise BodyTooSlow(f"timed out: no request body data received for {STALLED_SECONDS} s") from None
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
        """As :data:`mq.web.exchange.OnHangUp`. Bytes that still come are dropped."""

        async def listen() -> None:
            while not self.is_gone:
                await self._take()
            tell()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            yield
            nursery.cancel_scope.cancel()

    async def discard(self, when_complete: trio.Event) -> None:
        """Take and drop what still comes, until the client is gone. Sets the event then, or when it is complete."""
        while not self.is_gone:
            if self.is_complete:
                when_complete.set()
            await self._take()
        when_complete.set()


async def _chunks_of(data: bytes) -> AsyncIterator[bytes]:
    """A body that is here: one chunk, or none of an empty body."""
    if data:
        yield data


class Limit(NamedTuple):
    """The longest body that a request may have.

    Attributes:
        size: in bytes.
        whose: for the text of a refusal: what has the limit; empty for the daemon itself.
    """

    size: int
    whose: str = ""

    def refusal(self, length: int | None = None) -> BodyTooLarge:
        """The error for a longer body.

        Args:
            length: of the body; None if it is not known.
        """
        if self.whose:
            what = "the body" if length is None else f"the body of {length} bytes"
            return BodyTooLarge(f"{what} exceeds the maximum of {self.size} bytes ({self.whose})")
        if length is None:
            return BodyTooLarge(f"the body exceeds the maximum of {self.size} bytes")
        return BodyTooLarge(f"the body of {length} bytes exceeds the maximum of {self.size} bytes")


class LimitedBody:
    """A request's body: never longer than the limit, never shorter than announced.

    Raises:
        BodyTooLarge: before anything is read, where the announced length says so already.
    """

    def __init__(self, request: Request, limit: Limit | int) -> None:
        self._limit = limit if isinstance(limit, Limit) else Limit(limit)
        if request.content_length is not None and request.content_length > self._limit.size:
            raise self._limit.refusal(request.content_length)
        self._chunks = aiter(_chunks_of(request.body) if isinstance(request.body, bytes) else request.body)
        self._announced = request.content_length
        self._size = 0
        self._held = b""
        self._memory = None if isinstance(request.body, bytes) else request.memory
        self._disk: Room | None = None

    def __aiter__(self) -> LimitedBody:
        return self

    async def __anext__(self) -> bytes:
        if self._held:
            held, self._held = self._held, b""
            return held
        try:
            chunk = await anext(self._chunks)
        except StopAsyncIteration:
            if self._announced not in (None, self._size):
                raise BodyIncomplete(
                    f"the request body ended after {self._size} of {self._announced} bytes. Send the request again"
                ) from None
            raise
        self._size += len(chunk)
        self._check()
        if self._disk is not None and self._size > self._disk.size:
            await self._disk.cover_after_slow(min(self._size + STAGED_STEP, self._limit.size))
        return chunk

    @classmethod
    async def begun(cls, request: Request, limit: Limit | int) -> bytes | LimitedBody:
        """The whole body where it is small, else a body to iterate over.

        Raises:
            BodyTooLarge: it is over the limit, as far as that shows yet.
            BodyIncomplete: it is small, and shorter than announced.
        """
        given = request.body
        most = limit.size if isinstance(limit, Limit) else limit
        if isinstance(given, bytes) and len(given) == (request.content_length or 0) <= min(most, IN_MEMORY_BYTES):
            return given
        body = cls(request, limit)
        small = await body._read_small()
        return body if small is None else small

    async def _read_small(self) -> bytes | None:
        with self._making_room(IN_MEMORY_BYTES) as chunks:
            return await self._gather_small(chunks)

    async def _gather_small(self, chunks: AsyncIterator[bytes]) -> bytes | None:
        start = bytearray()
        async for chunk in chunks:
            start += chunk
            if len(start) > IN_MEMORY_BYTES:
                self._held = bytes(start)
                return None
        return bytes(start)

    def narrow(self, limit: Limit | int) -> None:
        """Allow no more than this from now on.

        Raises:
            BodyTooLarge: more has come already.
        """
        self._limit = limit if isinstance(limit, Limit) else Limit(limit)
        self._check()

    def _check(self) -> None:
        if self._size > self._limit.size:
            raise self._limit.refusal()

    async def read(self) -> bytes:
        """The whole body. Its memory is given back with that of the request.

        Raises:
            NoMemory: others have the memory for it.
            BodyTooSlow: others want the memory, and it comes slowly.
        """
        with self._making_room(self._limit.size) as chunks:
            return b"".join([chunk async for chunk in chunks])

    @asynccontextmanager
    async def on_disk(self, room: Room) -> AsyncIterator[AsyncIterator[bytes]]:
        """The chunks of a body that is staged: disk is reserved for its announced length before the first one is read,
        or else as they come.

        Raises:
            NoDisk: others have the disk.
            BodyTooSlow: others want it, and the body comes slowly.
        """
        self._disk = room
        size = min(self._size + STAGED_STEP, self._limit.size) if self._announced is None else self._announced
        await room.cover_after_slow(size)
        with making_room(self, room) as chunks:
            yield chunks

    @contextmanager
    def _making_room(self, most: int) -> Iterator[AsyncIterator[bytes]]:
        """The chunks of a body, for so many of whose bytes memory is reserved."""
        size = most if self._announced is None else min(most, self._announced)
        if self._memory is None or size <= UNCOUNTED_BYTES:
            yield self
        else:
            with making_room(self, self._memory.reserve(Use.BODY, size)) as chunks:
                yield chunks


@contextmanager
def making_room(body: AsyncIterator[bytes], room: Room) -> Iterator[AsyncIterator[bytes]]:
    """The chunks of a body for which memory or disk was reserved. It is given up when it comes slowly and others want
    that.

    Raises:
        BodyTooSlow: it was given up.
    """
    with trio.CancelScope() as wanted, room.arriving(body, wanted.cancel) as chunks:
        yield chunks
    if wanted.cancelled_caught:
        raise BodyTooSlow(
            f"the body arrived more slowly than {ENOUGH_BYTES_PER_SECOND >> 10} KiB per second, and other "
            f"clients needed the {room.resource.name}. Send the body faster, or send smaller bodies"
        )


async def read_object(request: Request) -> dict[str, Any]:
    """A body that is a JSON object; none at all is an empty one.

    Raises:
        InvalidRequest: it is something else.
        BodyTooLarge: it is longer than LARGEST_JSON_BYTES.
    """
    body = await LimitedBody(request, LARGEST_JSON_BYTES).read()
    return parse_object(body) if body else {}


_decode: Final = json.JSONDecoder().raw_decode
_WHITE: Final = " \t\n\r"
"""What may follow a document (RFC 8259, section 2)."""


def _decode_oddly(text: bytes) -> Any:
    """JSON with a byte order mark, half characters, or white space before it."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidRequest("invalid JSON in the request body") from None


def parse_object(text: bytes) -> dict[str, Any]:
    """A JSON object.

    Raises:
        InvalidRequest: it is something else.
    """
    try:
        document = text.decode()
        value, end = _decode(document)
        if end < len(document) and document[end:].strip(_WHITE):
            raise InvalidRequest("invalid JSON in the request body")
    except ValueError:
        value = _decode_oddly(text)
    except RecursionError:
        raise InvalidRequest("invalid JSON in the request body") from None
    if not isinstance(value, dict):
        raise InvalidRequest('expected a JSON object: {"name": value}')
    return value
