"""The requests of one HTTP/2 connection: each reserves memory before it is begun, and ends with its stream.

Hypercorn goes on with a request whose stream was reset or whose connection has ended, and remembers what a client may
make as long as it likes. This module wraps its protocol object, as :mod:`mq.web.hypercorn_server` does.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import lru_cache, partial
from time import time
from typing import Any, Final

import trio
from h2.connection import ConnectionState
from h2.errors import ErrorCodes
from h2.events import DataReceived, Event, RequestReceived, StreamEnded
from h2.exceptions import NoSuchStreamError, ProtocolError
from h2.utilities import SizeLimitDict
from hpack import Encoder
from hypercorn.config import Config
from hypercorn.protocol.events import EndBody
from hypercorn.protocol.h2 import (
    BUFFER_HIGH_WATER,
    BUFFER_LOW_WATER,
    BufferCompleteError,
    H2Protocol,
    StreamBuffer,
)
from hypercorn.protocol.http_stream import ASGIHTTPState, HTTPStream
from hypercorn.typing import AppWrapper
from hypercorn.typing import Event as LoopEvent

from mq.doors.budget import ClientMemory, Use
from mq.errors import BodyTooLarge, MQError, NoMemory
from mq.web.exchange import (
    Abandon,
    Handler,
    Later,
    OnHangUp,
    Reply,
    Request,
    Tell,
    nobody_hangs_up,
)
from mq.web.fast_http1 import Heads, begin_request, head_of, made_reply
from mq.web.http_connection import WatchedStream
from mq.web.refusals import refusal_of
from mq.web.replies import without_body

logger = logging.getLogger(__name__)

REQUEST_BYTES: Final = 160 * 1024
"""What a request over HTTP/2 is counted as: its objects, its buffers, a small answer, and as much again for the holes
that thousands of small objects leave in the memory of the process."""
_PARSED: Final = 4
"""How much memory a byte of its headers may take."""
HEADER_TABLE_BYTES: Final = 4096
"""The longest table of headers that were sent. A client may allow more, and would fill our memory with it."""
CLOSED_STREAMS: Final = 256
"""Ended streams that are remembered: as many as may have been under way together."""
MOST_BEGUN: Final = 16 * 1024
"""Bytes of the longest body with which a request begins in the step that read it."""
BEGUN_BYTES: Final = 8 * 1024
"""What such a request is counted as: no task of its own, and no buffers."""
_OF_A_REQUEST: Final = (RequestReceived, DataReceived, StreamEnded)
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

    def __init__(self, event_class: type[LoopEvent]) -> None:
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

    def carry_out(self) -> None:
        """Go on up to the answer in any case, as with a request that changes something."""
        self._is_safe = False

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


class _Answered(Handler):
    """Gives the reply that a completion has made."""

    def __init__(self, begun: _BegunRequest, reply: Reply | Later) -> None:
        self._begun = begun
        self._reply = reply

    async def handle(self, request: Request) -> Reply:
        """The reply."""
        if isinstance(self._reply, Reply):
            return self._reply
        self._begun.hang_ups = request.on_hang_up
        try:
            return await self._reply()
        except MQError as error:
            return refusal_of(error)

    async def discard(self) -> None:
        """Give back what the reply holds, as there is no client for it."""
        with trio.CancelScope(shield=True):
            await without_body(await self.handle(Request("", b"", b"", {}, b"", None, on_hang_up=_has_hung_up)))


def _has_hung_up(tell: Tell) -> AbstractAsyncContextManager[None]:
    """As :data:`mq.web.exchange.OnHangUp`, of a client that is gone."""
    tell()
    return nullcontext()


class _BegunRequest:
    """A request that was begun in the step that read it, up to its answer.

    Args:
        answered: called with it and its reply; in the step that begins it, or later by a completion.

    Attributes:
        id: of its stream.
        is_over: it has a reply, or nobody to answer.
    """

    __slots__ = ("_answered", "abandon", "event", "hang_ups", "id", "is_over", "work")

    def __init__(
        self,
        event: RequestReceived,
        work: RequestWork,
        answered: Callable[[_BegunRequest, Reply | Later], None],
    ) -> None:
        assert event.stream_id is not None
        self.id = event.stream_id
        self.event = event
        self.work = work
        self.hang_ups: OnHangUp = nobody_hangs_up  # while its answer is waited for, Hypercorn reports them
        self.abandon: Abandon | None = None  # while a completion is to answer
        self.is_over = False
        self._answered = answered

    def begin(self, handler: Handler, request: Request) -> bool:
        """Begin it. False where that is not possible."""
        begun = begin_request(handler, request, self.answer)
        if self.is_over:  # it was answered in this step, and is not again, even if the handler failed afterwards
            return True
        if isinstance(begun, Reply):
            self._end(begun)
        else:
            self.abandon = begun
        return begun is not None

    def on_hang_up(self, tell: Tell) -> AbstractAsyncContextManager[None]:
        """As :data:`mq.web.exchange.OnHangUp`."""
        return self.hang_ups(tell)

    def answer(self, make: Callable[..., Reply | Later], *values: Any) -> None:
        """As :data:`mq.web.exchange.Answer`."""
        if not self.is_over:
            self._end(made_reply(make, *values))

    def _end(self, reply: Reply | Later) -> None:
        self.is_over = True
        self.abandon = None
        self._answered(self, reply)


class Http2Requests:
    """The requests of one connection. A plain one that is read in one piece begins in that step, and its completion
    answers it without a task; Hypercorn gets the others.

    Args:
        heads: says who answers a request.
        ended: called for each request that ends here.
        note_begun: called with how many were begun in this step; with 0 when a completion has written an answer.
    """

    def __init__(
        self,
        protocol: H2Protocol,
        stream: WatchedStream,
        memory: ClientMemory,
        heads: Heads,
        app_for: Callable[[RequestWork, Handler | None], AppWrapper],
        ended: Callable[..., None],
        note_begun: Callable[[int], None],
    ) -> None:
        self._protocol = protocol
        self._stream = stream
        self._memory = memory
        self._heads = heads
        self._app_for = app_for
        self._ended = ended
        self._note_begun = note_begun
        self._works: dict[int, RequestWork] = {}
        self._begun: dict[int, _BegunRequest] = {}
        self._create_stream = protocol._create_stream
        self._close_stream = protocol._close_stream
        protocol._create_stream = self._begin  # type: ignore[method-assign,assignment]
        protocol._close_stream = self._end  # type: ignore[method-assign]
        protocol.stream_buffers = _Buffers(protocol.context.event_class)
        protocol.connection._closed_streams = SizeLimitDict(size_limit=CLOSED_STREAMS)
        _check_before_encoding(protocol.connection.encoder)

    @property
    def is_idle(self) -> bool:
        """Whether no request is at work."""
        return self._protocol.idle and not self._begun

    def received(self, events: list[Event]) -> list[Event]:
        """Hold the client to the tables of headers that mq keeps, and begin requests. Returns the events for
        Hypercorn."""
        encoder = self._protocol.connection.encoder
        if encoder.header_table_size > HEADER_TABLE_BYTES:
            encoder.header_table_size = HEADER_TABLE_BYTES
        arriving: dict[int | None, tuple[RequestReceived, list[DataReceived]]] = {}
        begun = set()
        for event in events:
            if isinstance(event, RequestReceived):
                arriving[event.stream_id] = (event, [])
            elif isinstance(event, DataReceived) and event.stream_id in arriving:
                arriving[event.stream_id][1].append(event)
            elif (
                isinstance(event, StreamEnded)
                and event.stream_id in arriving
                and self._begin_now(*arriving.pop(event.stream_id))
            ):
                begun.add(event.stream_id)
        if not begun:
            return events
        self._note_begun(len(begun))
        return [each for each in events if not isinstance(each, _OF_A_REQUEST) or each.stream_id not in begun]

    def end(self) -> None:
        """The connection has ended: abandon what was begun and is not sent."""
        for id in list(self._begun):
            self._abandon(id)

    def _begin_now(self, event: RequestReceived, pieces: Sequence[DataReceived]) -> bool:
        """Begin a request that is whole. False where Hypercorn has to serve it."""
        protocol, size = self._protocol, sum(len(piece.data or b"") for piece in pieces)
        head = head_of(event.headers or ())
        if head is None or size > MOST_BEGUN or protocol.context.terminated.is_set():
            return False
        found = self._heads.find(head)
        if found is None:
            return False
        (method, path, query, headers, length, _, id), handler = found
        work, stream = RequestWork(self._memory, method), self._stream
        begun = _BegunRequest(event, work, self._answered)
        try:
            work.memory.reserve(Use.REQUEST, BEGUN_BYTES + size + _PARSED * len(head))
        except (NoMemory, BodyTooLarge):
            work.memory.close()
            return False
        request = Request(
            method,
            path,
            query,
            headers,
            b"".join(piece.data or b"" for piece in pieces),
            length,
            id,
            begun.on_hang_up,
            stream.address,
            stream.scheme,
            work.memory,
        )
        if not begun.begin(handler, request):
            work.memory.close()
            return False
        for piece in pieces:
            protocol.connection.acknowledge_received_data(piece.flow_controlled_length or 0, begun.id)
        if not begun.is_over:
            self._keep(begun)
        return True

    def _keep(self, begun: _BegunRequest) -> None:
        if begun.id not in self._begun:
            self._begun[begun.id] = begun
            self._stream.at_work += 1

    def _leave(self, id: int) -> _BegunRequest | None:
        begun = self._begun.pop(id, None)
        if begun is not None:
            self._stream.at_work -= 1
            self._stream.last_used = trio.current_time()
        return begun

    def _answered(self, begun: _BegunRequest, reply: Reply | Later) -> None:
        """Write an answer, if the client's window has room for it; else have Hypercorn send it."""
        body = reply.body if isinstance(reply, Reply) else None
        if not (isinstance(reply, Reply) and isinstance(body, bytes) and self._write(begun.id, reply, body)):
            self._keep(begun)
            self._protocol.task_group.spawn(self._send_slowly, begun, _Answered(begun, reply))
            return
        is_in_step = self._leave(begun.id) is None
        begun.work.memory.close()
        self._ended()
        if not is_in_step:
            self._note_begun(0)

    def _write(self, id: int, reply: Reply, body: bytes) -> bool:
        """Write an answer, to be flushed. False if it has no room."""
        connection = self._protocol.connection
        try:
            if body and len(body) > min(connection.local_flow_control_window(id), connection.max_outbound_frame_size):
                return False
            headers = [(b":status", b"%d" % reply.status)]
            headers += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
            headers += _common_headers(self._protocol.config, int(time()))
            connection.send_headers(id, headers, end_stream=not body)
            if body:
                connection.send_data(id, body, end_stream=True)
        except NoSuchStreamError:
            pass  # it was reset in the same breath
        except ProtocolError as error:
            if connection.state_machine.state is not ConnectionState.CLOSED:
                logger.error("internal error", exc_info=error)
                self._reset(id, ErrorCodes.INTERNAL_ERROR)
        return True

    async def _send_slowly(self, begun: _BegunRequest, answered: _Answered) -> None:
        """Have Hypercorn send an answer. What was asked for is done, so that it cannot be refused any more."""
        id, memory, has_stream = begun.id, begun.work.memory, False
        try:
            await memory.reserve(Use.REQUEST).cover_after_slow(REQUEST_BYTES)
            # Nothing would end a stream that is made after the end of its connection.
            has_stream = not self._protocol.closed and self._leave(id) is not None
        except (NoMemory, BodyTooLarge):
            self._reset(id, ErrorCodes.INTERNAL_ERROR)  # says that the outcome is unknown
            self._abandon(id)
            self._note_begun(0)
        finally:
            if not has_stream:
                self._abandon(id)
                await answered.discard()
                memory.close()
        if has_stream:
            begun.work.carry_out()  # what the reply holds is given back by the one who takes it
            await self._hand_over(begun.event, begun.work, answered)
            await self._protocol.streams[id].handle(EndBody(stream_id=id))

    def _abandon(self, id: int) -> None:
        begun = self._leave(id)
        if begun is not None:
            begun.is_over = True
            begun.work.memory.close()
            self._ended(is_answered=False)
            if begun.abandon is not None:
                begun.abandon()

    async def _begin(self, event: RequestReceived) -> None:
        headers = list(event.headers or ())
        method = next((value.decode("ascii").upper() for name, value in headers if name == b":method"), "")
        work = RequestWork(self._memory, method)
        try:
            size = sum(len(name) + len(value) for name, value in headers)
            work.memory.reserve(Use.REQUEST, REQUEST_BYTES + _PARSED * size)
        except (NoMemory, BodyTooLarge) as error:
            work.memory.close()
            self._ended()
            await self._refuse(event, refusal_of(error))
            return
        await self._hand_over(event, work, None)

    async def _hand_over(self, event: RequestReceived, work: RequestWork, answered: _Answered | None) -> None:
        """Have Hypercorn serve a request that has its memory."""
        assert event.stream_id is not None
        work.may_reset(partial(self._reset_slow, event.stream_id))
        self._works[event.stream_id] = work
        self._protocol.app = self._app_for(work, answered)
        await self._create_stream(event)

    async def _refuse(self, event: RequestReceived, reply: Reply) -> None:
        """Answer a request for which there is no memory, without a task."""
        protocol, id = self._protocol, event.stream_id
        assert id is not None
        assert isinstance(reply.body, bytes)
        if not self._write(id, reply, reply.body):
            self._write(id, reply, b"")
        if event.stream_ended is None:
            self._reset(id, ErrorCodes.NO_ERROR)  # its body is not wanted
        await protocol._flush()

    async def _end(self, stream_id: int) -> None:
        self._abandon(stream_id)
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

    async def _reset_slow(self, id: int) -> None:
        self._reset(id, ErrorCodes.ENHANCE_YOUR_CALM)
        await self._protocol._flush()

    def _reset(self, id: int, code: ErrorCodes) -> None:
        """Reset a stream, unless it has ended; to be flushed."""
        with suppress(ProtocolError):
            self._protocol.connection.reset_stream(id, code)


@lru_cache(maxsize=1)
def _common_headers(config: Config, second: int) -> list[tuple[bytes, bytes]]:
    """The headers that Hypercorn adds to each answer of this second."""
    return config.response_headers("h2")


def _check_before_encoding(encoder: Encoder) -> None:
    """Have h2 check all headers of an answer before the first is encoded. It checks one after the other, and those
    before one that it refuses would be in our table of headers and not in the client's."""
    encode = encoder.encode

    def encode_checked(headers: Iterable[Any], huffman: bool = True) -> bytes:
        return encode(list(headers), huffman)

    encoder.encode = encode_checked  # type: ignore[method-assign]
