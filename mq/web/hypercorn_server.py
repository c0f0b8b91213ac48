"""Hypercorn's server of one connection, with limits that it does not have itself.

Hypercorn has no hook for them, so this module wraps the two protocol objects of a connection, and
:mod:`mq.web.http2_requests` the requests of the one for HTTP/2. No other module knows Hypercorn's insides.

:class:`FrameCounter` counts what an HTTP/2 client sends by the frames' headers (RFC 9113, section 4.1).
Its limits are on what costs a server more than its client: requests that are reset as soon as they are made (rapid
reset, CVE-2023-44487), header blocks without end (CONTINUATION flood), and frames that only ask for an answer.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from enum import IntEnum
from functools import partial
from typing import Final

import h11
import trio
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import Event as H2Event
from h2.exceptions import ProtocolError
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import MAX_RECV, TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import (
    ASGIFramework,
    ASGIReceiveCallable,
    ASGIReceiveEvent,
    ASGISendCallable,
    ASGISendEvent,
    HTTPScope,
    LifespanState,
    Scope,
)

from mq.doors.budget import ClientMemory
from mq.doors.connections import Turns
from mq.web.http2_requests import Http2Requests, RequestWork
from mq.web.http_connection import REQUEST_MEMORY, WatchedStream
from mq.web.refusals import check_head, refusal_of_head

logger = logging.getLogger(__name__)

SPARE_RESETS: Final = 256
"""How many more resets than finished responses: twice the streams that may be open, so all may be given up at once."""
RUNNING: Final = 256
"""How many requests may be at work, with those whose stream is gone."""
HEADER_BLOCK_BYTES: Final = 64 * 1024
"""The longest header block as it is sent."""
HEADER_BLOCK_FRAMES: Final = 32
"""The most frames that a header block may come in."""
CONTROL_FRAMES: Final = 2000
"""How many frames that carry no request and no body may come in a period."""
PERIOD_SECONDS: Final = 60.0

_PREFACE_BYTES: Final = 24
_HEADER_BYTES: Final = 9


class FrameType(IntEnum):
    """RFC 9113, section 6."""

    HEADERS = 0x1
    PRIORITY = 0x2
    RST_STREAM = 0x3
    SETTINGS = 0x4
    PING = 0x6
    CONTINUATION = 0x9


class Flood(ProtocolError):
    """The client sends more of something than any client needs."""

    error_code = ErrorCodes.ENHANCE_YOUR_CALM


class FrameCounter:
    """Follows the frames of one connection.

    Attributes:
        responses: how many have been finished; for the caller to count.
        ended: how many requests are no longer at work; for the caller to count.
    """

    def __init__(self) -> None:
        self.responses = 0
        self.ended = 0
        self._held = b""
        self._skip = _PREFACE_BYTES
        self._last_stream = 0
        self._opened = 0
        self._resets = 0
        self._block_bytes = 0
        self._block_frames = 0
        self._control_frames = 0
        self._period_ends = 0.0

    def refused(self) -> None:
        """Note that a request was answered without having been at work."""
        self.responses += 1
        self.ended += 1

    def feed(self, data: bytes, now: float) -> None:
        """Take the next bytes, from the connection preface on.

        Args:
            data: what came.
            now: in seconds, on any clock that only goes on.

        Raises:
            Flood: it is too much of something.
        """
        data = self._held + data
        at = self._skip
        while at + _HEADER_BYTES <= len(data):
            size = int.from_bytes(data[at : at + 3])
            self._count(data[at + 3], data[at + 4], int.from_bytes(data[at + 5 : at + 9]) & 0x7FFFFFFF, size, now)
            at += _HEADER_BYTES + size
        self._held = data[at:]
        self._skip = max(at - len(data), 0)

    def _count(self, kind: int, flags: int, stream: int, size: int, now: float) -> None:
        if kind in (FrameType.HEADERS, FrameType.CONTINUATION):
            self._count_block(size, is_first=kind == FrameType.HEADERS)
            if kind == FrameType.HEADERS and stream > self._last_stream:  # else these are trailers
                self._last_stream = stream
                self._opened += 1
                if self._opened - self.ended > RUNNING:
                    raise Flood(f"more than {RUNNING} requests at a time")
        elif kind == FrameType.RST_STREAM:
            self._resets += 1
            if self._resets > SPARE_RESETS + self.responses:
                raise Flood(f"{self._resets} streams reset, {self.responses} responses waited for")
        elif kind in (FrameType.PRIORITY, FrameType.SETTINGS, FrameType.PING):
            self._count_control(now)

    def _count_block(self, size: int, *, is_first: bool) -> None:
        self._block_bytes = size if is_first else self._block_bytes + size
        self._block_frames = 1 if is_first else self._block_frames + 1
        if self._block_bytes > HEADER_BLOCK_BYTES or self._block_frames > HEADER_BLOCK_FRAMES:
            raise Flood(f"a header block of {self._block_bytes} bytes in {self._block_frames} frames")

    def _count_control(self, now: float) -> None:
        if now >= self._period_ends:
            self._period_ends, self._control_frames = now + PERIOD_SECONDS, 0
        self._control_frames += 1
        if self._control_frames > CONTROL_FRAMES:
            raise Flood(f"more than {CONTROL_FRAMES} control frames in {PERIOD_SECONDS:.0f} seconds")


_PAST_THE_LAST: Final = (h11.MUST_CLOSE, h11.CLOSED)
"""States of a client whose last request is complete. What it sends behind that is not read."""


class GuardedServer(TCPServer):
    """Serves one connection.

    Args:
        app: what answers.
        config: Hypercorn's.
        context: has the event of the stop.
        stream: the connection.
        turns: shares the event loop among connections.
        memory: what the client may reserve.
    """

    def __init__(
        self,
        app: ASGIFramework,
        config: Config,
        context: WorkerContext,
        stream: WatchedStream,
        turns: Turns,
        memory: ClientMemory,
    ) -> None:
        self._frames = FrameCounter()
        self._is_http2 = False
        self._hearing = trio.CancelScope()
        self._memory = memory
        self._app_for = partial(_WatchedApp, app, self._frames, self._continue, stream)
        self._watched = stream
        self._turns = turns
        watched = self._app_for(memory)
        super().__init__(watched, config, context, LifespanState(), stream)  # type: ignore[arg-type]

    async def _read_data(self) -> None:
        assert isinstance(self.protocol.protocol, H11Protocol)  # every connection begins as that
        _guard_http1(self.protocol.protocol)
        with self._hearing:
            await self._hear()
        if self._hearing.cancelled_caught:
            await self._watched.linger()
        await self.protocol.handle(Closed())
        await self.idle_task.stop()  # a broken connection would stay until its idle time is over

    async def _hear(self) -> None:
        """Read as Hypercorn does, but for its time limit, which costs memory and is never set."""
        data = b"x"
        while data:
            try:
                data = bytes(await self.stream.receive_some(MAX_RECV))
            except (trio.ClosedResourceError, trio.BrokenResourceError):
                break
            await self._turns.wait()
            await self.protocol.handle(RawData(data))

    async def _continue(self) -> None:
        """Send 100 to a client that waits for it, if it has no response yet."""
        protocol = self.protocol.protocol
        if isinstance(protocol, H11Protocol) and protocol.connection.our_state is h11.SEND_RESPONSE:
            await protocol._send_h11_event(h11.InformationalResponse(status_code=100, headers=[]))

    async def _initiate_server_close(self) -> None:
        """End a connection that has been idle for too long, or is idle when mq stops."""
        protocol = self.protocol.protocol
        if isinstance(protocol, H11Protocol) and not self.context.terminated.is_set() and _has_begun(protocol):
            await protocol._send_error_response(408)
        await super()._initiate_server_close()

    async def protocol_send(self, event: Event) -> None:
        """Send an event of the protocol, as Hypercorn does but for two."""
        if isinstance(event, Closed):
            # Hypercorn would close the socket at once. _read_data closes it when the client has its answer.
            await self.protocol.handle(event)
            self._hearing.cancel()
            return
        if not self._is_http2 and isinstance(self.protocol.protocol, H2Protocol):
            self._is_http2 = True  # it sends its preface before it reads any frame: in time for the guard
            protocol = self.protocol.protocol
            app_for = partial(self._app_for, self._memory)
            requests = Http2Requests(protocol, self._memory, app_for, self._frames.refused)
            connection = protocol.connection
            _guard_http2(connection, self._frames, requests)
            # Hypercorn takes the preface for a request, and would wait for its end for ever. An upgrade is one.
            await super().protocol_send(Updated(idle=not connection.streams))
        await super().protocol_send(event)


class _WatchedApp(ASGIWrapper):
    """The app, with requests counted as they end, and 100 Continue sent when the app wants a body that is held back.

    Args:
        app: what answers.
        frames: counts the requests.
        continue_: sends 100 Continue.
        stream: the connection.
        memory: of the connection.
        work: of the one request that it is for; None makes one for each request.
    """

    def __init__(
        self,
        app: ASGIFramework,
        frames: FrameCounter,
        continue_: Callable[[], Awaitable[None]],
        stream: WatchedStream,
        memory: ClientMemory,
        work: RequestWork | None = None,
    ) -> None:
        super().__init__(app)
        self._stream = stream
        self._frames = frames
        self._continue = continue_
        self._memory = memory
        self._work = work

    async def __call__(
        self,
        scope: Scope,
        receive: ASGIReceiveCallable,
        send: ASGISendCallable,
        sync_spawn: Callable[..., object],
        call_soon: Callable[..., object],
    ) -> None:
        if scope["type"] == "http":
            scope["client"] = (self._stream.address, 0)
            scope["scheme"] = self._stream.scheme
        request = self._work or RequestWork(self._memory, "")
        REQUEST_MEMORY.set(request.memory)
        work = self._stream.work()
        is_held_back = scope["type"] == "http" and _expects_continue(scope)

        async def receive_held_back() -> ASGIReceiveEvent:
            nonlocal is_held_back
            if is_held_back:
                is_held_back = False
                await self._continue()
            event = await receive()
            if event["type"] == "http.request" and not event.get("more_body", False):
                work.begin()
            return event

        async def send_answer(event: ASGISendEvent) -> None:
            work.end()
            await request.begin_answer()
            await send(event)

        try:
            with request.scope:
                await super().__call__(scope, receive_held_back, send_answer, sync_spawn, call_soon)
        finally:
            work.end()
            request.memory.close()
            self._frames.ended += 1
        if request.reset is not None:
            await request.reset()


def _expects_continue(scope: HTTPScope) -> bool:
    return scope["http_version"] == "1.1" and any(
        name == b"expect" and b"100-continue" in value.lower() for name, value in scope["headers"]
    )


def _has_begun(protocol: H11Protocol) -> bool:
    """A part of a request's head has come."""
    connection = protocol.connection
    return (
        isinstance(connection, h11.Connection)
        and connection.our_state is h11.IDLE
        and connection.trailing_data[0] != b""
    )


def _guard_http1(protocol: H11Protocol) -> None:
    """Look at each head before h11 does, and say why something is refused."""
    connection = protocol.connection
    assert isinstance(connection, h11.Connection)
    next_event, receive_data = connection.next_event, connection.receive_data

    def receive_until_last(data: bytes) -> None:
        if connection.their_state not in _PAST_THE_LAST:
            receive_data(data)

    def next_event_of_strict_head() -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        if connection.their_state in _PAST_THE_LAST:
            return h11.NEED_DATA  # h11 would call it a mistake, and Hypercorn answer that instead of the request
        if connection.their_state is h11.IDLE:
            check_head(connection.trailing_data[0])
        event = next_event()
        if isinstance(event, h11.Request):
            connection.client_is_waiting_for_100_continue = False  # Hypercorn would not wait until the body is wanted
        return event

    async def send_error_response(status_code: int) -> None:
        reply = refusal_of_head(status_code)
        assert isinstance(reply.body, bytes)
        await protocol._send_h11_event(h11.Response(status_code=reply.status, headers=list(reply.headers)))
        await protocol._send_h11_event(h11.Data(data=reply.body))
        await protocol._send_h11_event(h11.EndOfMessage())

    connection.receive_data = receive_until_last  # type: ignore[method-assign]
    connection.next_event = next_event_of_strict_head  # type: ignore[method-assign]
    protocol._send_error_response = send_error_response  # type: ignore[method-assign]


def _guard_http2(connection: H2Connection, frames: FrameCounter, requests: Http2Requests) -> None:
    """Count frames before the connection takes them, and responses as they end.

    Hypercorn sends what is left to send and closes when taking them raises a ProtocolError.
    """
    receive_data, end_stream = connection.receive_data, connection.end_stream

    def receive_if_calm(data: bytes) -> list[H2Event]:
        try:
            frames.feed(data, trio.current_time())
        except Flood as flood:
            logger.warning("a connection was closed: %s", flood)
            connection.close_connection(flood.error_code)
            raise
        events = receive_data(data)
        requests.received()
        return events

    def end_and_count(stream_id: int) -> None:
        end_stream(stream_id)
        frames.responses += 1

    connection.receive_data = receive_if_calm  # type: ignore[method-assign,assignment]  # Hypercorn gives bytes
    connection.end_stream = end_and_count  # type: ignore[method-assign]
