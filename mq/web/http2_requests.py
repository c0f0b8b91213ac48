"""The requests of one HTTP/2 connection: each reserves memory before it is begun, and ends with its stream.

Hypercorn goes on with a request whose stream was reset or whose connection has ended, and remembers what a client may
make as long as it likes. This module wraps its protocol object, as :mod:`mq.web.hypercorn_server` does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final

import trio
from h2.errors import ErrorCodes
from h2.events import RequestReceived
from h2.exceptions import ProtocolError
from h2.utilities import SizeLimitDict
from hypercorn.protocol.h2 import (
    BUFFER_HIGH_WATER,
    BUFFER_LOW_WATER,
    BufferCompleteError,
    H2Protocol,
    StreamBuffer,
)
from hypercorn.protocol.http_stream import ASGIHTTPState, HTTPStream
from hypercorn.typing import AppWrapper, Event

from mq.doors.budget import ClientMemory, Use
from mq.errors import BodyTooLarge, NoMemory
from mq.web.exchange import Reply
from mq.web.refusals import refusal_of

REQUEST_BYTES: Final = 160 * 1024
"""What a request over HTTP/2 is counted as: its objects, its buffers, a small answer, and as much again for the holes
that thousands of small objects leave in the memory of the process."""
_PARSED: Final = 4
"""How much memory a byte of its headers may take."""
HEADER_TABLE_BYTES: Final = 4096
"""The longest table of headers that were sent. A client may allow more, and would fill our memory with it."""
CLOSED_STREAMS: Final = 256
"""Ended streams that are remembered: as many as may have been under way together."""
_SAFE: Final = ("GET", "HEAD")


class PausingBuffer(StreamBuffer):
    """What a stream has still to send. Hypercorn's own takes all of an answer while the client's window is shut."""

    async def push(self, data: bytes) -> None:
        """Add some, and wait until there is room for more."""
        if self._complete:
            raise BufferCompleteError
        self.buffer.extend(data)
        await self._is_empty.clear()
        if len(self.buffer) >= BUFFER_HIGH_WATER:
            await self._paused.clear()
            await self._paused.wait()

    async def pop(self, max_length: int) -> bytes:
        """Take out what may be sent now."""
        data = bytes(self.buffer[:max_length])
        del self.buffer[:max_length]
        if len(self.buffer) < BUFFER_LOW_WATER:
            await self._paused.set()
        if not self.buffer:
            await self._is_empty.set()
        return data


class _Buffers(dict[int, StreamBuffer]):
    """The buffers of a connection, each of which becomes one that pauses."""

    def __init__(self, event_class: type[Event]) -> None:
        super().__init__()
        self._event_class = event_class

    def __setitem__(self, stream: int, buffer: StreamBuffer) -> None:
        super().__setitem__(stream, PausingBuffer(self._event_class))


class RequestWork:
    """The work for one request.

    Attributes:
        is_over: its stream was reset, or its connection has ended: nothing more is sent.
        reset: resets its stream once it has ended; None unless it is to be reset.
    """

    def __init__(self, connection: ClientMemory, method: str) -> None:
        self.memory = connection.request(self.let_go)
        self.scope = trio.CancelScope()
        self.is_over = False
        self.reset: Callable[[], Awaitable[None]] | None = None
        self._is_safe = method in _SAFE
        self._is_answered = False
        self._reset: Callable[[], Awaitable[None]] | None = None

    def may_reset(self, reset: Callable[[], Awaitable[None]]) -> None:
        """Take what resets its stream."""
        self._reset = reset

    async def begin_answer(self) -> None:
        """Go on with the answer, unless it is over."""
        self._is_answered = True
        if self.is_over:
            self.scope.cancel()
            await trio.lowlevel.checkpoint()

    def end(self, *, is_connection: bool) -> None:
        """End it: there is no client for its answer.

        Args:
            is_connection: the whole connection has ended, and not only the stream.
        """
        self.is_over = True
        # What changes something is carried out. And on a connection that goes on, Hypercorn may be sending for others.
        if is_connection if self._is_answered else self._is_safe:
            self.scope.cancel()

    def let_go(self) -> None:
        """End it because its client reads slowly, and others want the memory."""
        self.is_over, self.reset = True, self._reset
        self.scope.cancel()


class Http2Requests:
    """The requests of one connection.

    Args:
        refused: called for each request that is refused here.
    """

    def __init__(
        self,
        protocol: H2Protocol,
        memory: ClientMemory,
        app_for: Callable[[RequestWork], AppWrapper],
        refused: Callable[[], None],
    ) -> None:
        self._protocol = protocol
        self._memory = memory
        self._app_for = app_for
        self._refused = refused
        self._works: dict[int, RequestWork] = {}
        self._create_stream = protocol._create_stream
        self._close_stream = protocol._close_stream
        protocol._create_stream = self._begin  # type: ignore[method-assign,assignment]
        protocol._close_stream = self._end  # type: ignore[method-assign]
        protocol.stream_buffers = _Buffers(protocol.context.event_class)
        protocol.connection._closed_streams = SizeLimitDict(size_limit=CLOSED_STREAMS)

    def received(self) -> None:
        """Frames were taken: hold the client to the tables of headers that mq keeps."""
        encoder = self._protocol.connection.encoder
        if encoder.header_table_size > HEADER_TABLE_BYTES:
            encoder.header_table_size = HEADER_TABLE_BYTES

    async def _begin(self, event: RequestReceived) -> None:
        headers = list(event.headers or ())
        method = next((value.decode("ascii").upper() for name, value in headers if name == b":method"), "")
        work = RequestWork(self._memory, method)
        try:
            size = sum(len(name) + len(value) for name, value in headers)
            work.memory.reserve(Use.REQUEST, REQUEST_BYTES + _PARSED * size)
        except (NoMemory, BodyTooLarge) as error:
            work.memory.close()
            self._refused()
            await self._refuse(event, refusal_of(error))
            return
        assert event.stream_id is not None
        work.may_reset(partial(self._reset_stream, event.stream_id))
        self._works[event.stream_id] = work
        self._protocol.app = self._app_for(work)
        await self._create_stream(event)

    async def _refuse(self, event: RequestReceived, reply: Reply) -> None:
        """Answer a request for which there is no memory, without a task."""
        protocol, id = self._protocol, event.stream_id
        assert id is not None
        assert isinstance(reply.body, bytes)
        headers = [(b":status", b"%d" % reply.status)]
        headers += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
        try:
            has_room = protocol.connection.local_flow_control_window(id) >= len(reply.body)
            protocol.connection.send_headers(id, headers, end_stream=not has_room)
            if has_room:
                protocol.connection.send_data(id, reply.body, end_stream=True)
            if event.stream_ended is None:
                protocol.connection.reset_stream(id, ErrorCodes.NO_ERROR)  # its body is not wanted
        except ProtocolError:
            return  # it was reset in the same breath
        await protocol._flush()

    async def _end(self, stream_id: int) -> None:
        stream = self._protocol.streams.get(stream_id)
        try:
            await self._close_stream(stream_id)
        finally:
            # Also where that is cancelled: the request that finds out that the connection has ended closes all streams,
            # its own too, and is cancelled by that. Hypercorn knows the stream no more, and would not end it later.
            await self._end_work(stream_id, stream)

    async def _end_work(self, stream_id: int, stream: object) -> None:
        work = self._works.pop(stream_id, None)
        is_answered = isinstance(stream, HTTPStream) and stream.state is ASGIHTTPState.CLOSED
        if work is not None and not is_answered:
            work.end(is_connection=self._protocol.closed)
            buffer = self._protocol.stream_buffers.get(stream_id)
            if buffer is not None:
                await buffer.close()  # else a request that waits for room in it would wait for ever

    async def _reset_stream(self, stream_id: int) -> None:
        with suppress(ProtocolError):
            self._protocol.connection.reset_stream(stream_id, ErrorCodes.ENHANCE_YOUR_CALM)
        await self._protocol._flush()
