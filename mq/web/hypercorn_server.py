"""Hypercorn's server of one connection, with limits that it does not have itself.

Hypercorn has no hook for them, so this module wraps the two protocol objects of a connection, and
:mod:`mq.web.http2_requests` the requests of the one for HTTP/2. No other module knows Hypercorn's insides.

:class:`FrameCounter` cuts what an HTTP/2 client sends into turns, by the frames' headers (RFC 9113, section 4.1): a
read may hold thousands of frames. Its limits are on what costs a server more than its client (section 10.5): requests
that are reset as soon as they are made (rapid reset, CVE-2023-44487), header blocks without end (CONTINUATION flood),
and frames that do nothing for a request, such as empty DATA and WINDOW_UPDATE without any data to send.

Before its login a connection gets little: few streams at a time, few control frames.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from functools import partial
from types import TracebackType
from typing import Any, Final

import h11
import trio
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import Event as H2Event
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes
from hpack import HeaderTuple, HPACKDecodingError
from hpack.hpack import decode_integer
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

from mq import turns
from mq.doors.budget import ClientMemory, Use
from mq.doors.connections import FewLines
from mq.doors.readers import CONNECTION, FULL_REQUEST, REQUEST, Reader
from mq.errors import BodyTooLarge, NoMemory
from mq.web.app import WebApp
from mq.web.exchange import Handler
from mq.web.fast_http1 import DirectSocket
from mq.web.http2_requests import Http2Requests, RequestWork
from mq.web.http_connection import REQUEST_MEMORY, ConnectionLogin, WatchedStream
from mq.web.refusals import EMPTY_LINES, MOST_EMPTY_LINES, check_head, refusal_of_body, refusal_of_head

logger = logging.getLogger(__name__)
_CLOSED: Final = FewLines(logger, logging.WARNING, "closed an HTTP connection: %s")

SPARE_RESETS: Final = 256
"""How many more resets than finished responses: twice the streams that may be open, so all may be given up at once."""
RUNNING: Final = 256
"""How many requests may be at work, with those whose stream is gone."""
HEADER_BLOCK_BYTES: Final = 32 * 1024
"""The longest header block as it is sent."""
HEADER_BLOCK_FRAMES: Final = 32
"""The most frames that a header block may come in."""
CONTROL_FRAMES: Final = 2000
"""How many frames that carry no request and no body may come in a period."""
CONTROL_FRAMES_BEFORE_LOGIN: Final = 200
PERIOD_SECONDS: Final = 60.0
UPDATES_A_RESPONSE: Final = 4
"""WINDOW_UPDATE frames that a response accounts for. They are no control frames."""
BYTES_AN_UPDATE: Final = 512
"""Bytes of responses that account for one more."""
SETTINGS_BYTES: Final = 384
"""The longest SETTINGS frame: 64 settings."""
TABLE_SIZES: Final = 2
"""Changes of the table's size that a header block may begin with (RFC 7541, section 4.2)."""
STREAMS: Final = 128
"""Streams that may be open at a time."""
STREAMS_BEFORE_LOGIN: Final = 8
"""Requests of a connection that are at work at a time before its login, if logins are asked for. The others wait."""

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\n"
_PREFACE_BYTES: Final = 24
_HEADER_BYTES: Final = 9

_FRAME: Final = 4 * turns.FRAME
"""Units for a frame of HTTP/2: 64 a turn."""
_BODY: Final = 2 * turns.MESSAGE
"""Units for a piece of a body that is handed to the app, however small."""
_HEADER_BYTE: Final = 16 * turns.BYTE
"""Units for a byte of a header block, which may be a Huffman code: 16 KiB a turn."""
_STREAM: Final = turns.FRAME // 16
"""Units for each stream that a frame for the whole connection concerns."""


class FrameType(IntEnum):
    """RFC 9113, section 6."""

    DATA = 0x0
    HEADERS = 0x1
    PRIORITY = 0x2
    RST_STREAM = 0x3
    SETTINGS = 0x4
    PING = 0x6
    WINDOW_UPDATE = 0x8
    CONTINUATION = 0x9


_TABLE_SIZE: Final = 0x20
_ACK: Final = 0x1
_END_STREAM: Final = 0x1
_PADDED: Final = 0x8
_LITTLE_PADDING: Final = 8
"""Bytes of a padded DATA frame that counts as an empty one."""


class Flood(ProtocolError):
    """The client sends more of something than any client needs."""

    error_code = ErrorCodes.ENHANCE_YOUR_CALM


class NoSettings(ProtocolError):
    """The client does not begin with its settings (RFC 9113, section 3.4)."""


def _whole_turn() -> int:
    return turns.TURN


class FrameCounter:
    """Follows the frames of one connection.

    Attributes:
        responses: how many have been finished; for the caller to count.
        ended: how many requests are no longer at work; for the caller to count.
        is_known: whether its client has logged in, or need not.
        error: raised by :meth:`check`: the client sends too much of something, or what it may not.
    """

    def __init__(self, *, is_known: bool = True) -> None:
        self.responses = 0
        self.ended = 0
        self.is_known = is_known
        self.error: ProtocolError | None = None
        self._held = b""  # of a frame's header
        self._skip = _PREFACE_BYTES
        self._ahead = 0  # bytes that are cut, and not yet checked
        self._has_settings = False
        self._last_stream = 0
        self._opened = 0
        self._resets = 0
        self._block_bytes = 0
        self._block_frames = 0
        self._control_frames = 0
        self._period_ends = 0.0
        self._bytes = 0
        self._updates = 0

    def end(self, *, is_answered: bool = True) -> None:
        """Note the end of a request that Hypercorn does not see."""
        if is_answered:
            self.note_response()
        self.ended += 1

    def cut(self, data: bytes, now: float, turn: Callable[[], int] = _whole_turn) -> Iterator[tuple[bytes, int]]:
        """Cut the next bytes, from the connection preface on, into pieces of at most one turn. Yields each piece, and
        the units of work that it makes.

        Args:
            turn: returns the units of work that the next piece may make.
        """
        offset = len(self._held)
        frames = self._held + data
        at, begin, units = self._skip, 0, 0
        self._ahead += len(data)
        while at + _HEADER_BYTES <= len(frames) and self.error is None:
            if units >= turn():
                yield data[begin : max(at - offset, begin)], units
                begin, units = max(at - offset, begin), 0
            size = int.from_bytes(frames[at : at + 3])
            kind, flags = frames[at + 3], frames[at + 4]
            try:
                self._count(kind, flags, int.from_bytes(frames[at + 5 : at + 9]) & 0x7FFFFFFF, size, now)
            except ProtocolError as error:
                self.error = error
            units += self._units(kind, size)
            at += _HEADER_BYTES + size
        self._held = frames[at:]
        self._skip = max(at - len(frames), 0)
        yield data[begin:], units

    @property
    def running(self) -> int:
        """How many requests are at work."""
        return self._opened - self.ended

    def check(self, data: bytes, now: float) -> None:
        """Check bytes before they are handled.

        Raises:
            ProtocolError: there is an :attr:`error`.
        """
        if self._ahead < len(data):  # such as what came together with a request to upgrade, and may not
            pieces = sum(1 for _ in self.cut(data, now))
            if pieces > 1:
                self.error = self.error or Flood(f"{len(data)} bytes of frames before the answer to an upgrade")
        self._ahead -= len(data)
        if self.error is not None:
            raise self.error

    def note_sent(self, size: int) -> None:
        """Note bytes of a response that were sent: their receipt takes WINDOW_UPDATE frames."""
        self._bytes += size
        self._updates += self._bytes // BYTES_AN_UPDATE
        self._bytes %= BYTES_AN_UPDATE

    def note_response(self) -> None:
        """Note that a response is complete."""
        self.responses += 1
        self._updates += UPDATES_A_RESPONSE

    def _units(self, kind: int, size: int) -> int:
        if kind in (FrameType.HEADERS, FrameType.CONTINUATION):
            return _FRAME + size * _HEADER_BYTE
        if kind in (FrameType.SETTINGS, FrameType.WINDOW_UPDATE):
            return _FRAME + self.running * _STREAM
        return _FRAME

    def _count(self, kind: int, flags: int, stream: int, size: int, now: float) -> None:
        if not self._has_settings:
            if kind != FrameType.SETTINGS or flags & _ACK:
                raise NoSettings("the first frame is not SETTINGS")
            self._has_settings = True
        if kind in (FrameType.HEADERS, FrameType.CONTINUATION):
            self._count_block(size, is_first=kind == FrameType.HEADERS)
            if kind == FrameType.HEADERS and stream > self._last_stream:  # else these are trailers
                self._last_stream = stream
                self._opened += 1
                if self.running > RUNNING:
                    raise Flood(f"more than {RUNNING} requests at a time")
        elif kind == FrameType.RST_STREAM:
            self._resets += 1
            if self._resets > SPARE_RESETS + self.responses:
                raise Flood(f"{self._resets} streams reset, {self.responses} responses waited for")
        elif kind == FrameType.DATA:
            is_empty = size <= (_LITTLE_PADDING if flags & _PADDED else 0)
            if is_empty and not flags & _END_STREAM:
                self._count_control(now)
        elif kind == FrameType.WINDOW_UPDATE and self._updates:
            self._updates -= 1
        elif kind == FrameType.SETTINGS and size > SETTINGS_BYTES:
            raise Flood(f"{size} bytes of settings in a frame")
        else:
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
        most = CONTROL_FRAMES if self.is_known else CONTROL_FRAMES_BEFORE_LOGIN
        if self._control_frames > most:
            raise Flood(f"more than {most} control frames in {PERIOD_SECONDS:.0f} seconds")


_PAST_THE_LAST: Final = (h11.MUST_CLOSE, h11.CLOSED)
"""States of a client whose last request is complete. What it sends behind that is not read."""


class GuardedServer(TCPServer):
    """Serves one connection.

    Args:
        login: of the connection; None if none is asked for.
    """

    def __init__(
        self,
        app: WebApp,
        config: Config,
        context: WorkerContext,
        stream: WatchedStream,
        reader: Reader,
        memory: ClientMemory,
        login: ConnectionLogin | None = None,
    ) -> None:
        self._requests: Http2Requests | None = None
        self._unsent = bytearray()  # of answers that completions have written
        self._sending = 0  # bytes of them that a task sends
        self._unsent_room = memory.reserve(Use.ANSWER)
        self._frames = FrameCounter(is_known=login is None)
        self._hearing = trio.CancelScope()
        self._memory = memory
        self._app = app
        self._strangers = _Strangers(login)
        self._watched = stream
        self._socket = DirectSocket(stream)
        self._reader = reader
        self._login = login
        self._patience = stream.patience
        self._idle_until: float | None = None  # None while a request is served
        self._is_receiving = False
        self._waits_for_first_byte = False
        self._has_served = False
        watched = self._app_for(None, None)
        super().__init__(watched, config, context, LifespanState(), stream)  # type: ignore[arg-type]

    def _app_for(self, work: RequestWork | None, handler: Handler | None) -> _WatchedApp:
        return _WatchedApp(self._app if handler is None else partial(self._app, handler=handler), self, work)

    async def _read_data(self) -> None:
        assert isinstance(self.protocol.protocol, H11Protocol)  # every connection begins as that
        _guard_http1(self.protocol.protocol, self._watched)
        if self._login is not None:
            self._login.on_login = self._log_in
        self._watched.idle = idle = trio.CancelScope()  # the fast path may have used the former one
        self._limit_idle(is_idle=True)
        try:
            with self._hearing, idle:
                await self._hear()
            if self._hearing.cancelled_caught:
                await self._watched.linger(self._reader)
            elif idle.cancelled_caught:
                await self.protocol_send(RawData(b""))
                await self._initiate_server_close()
        finally:
            if self._requests is not None:
                self._requests.end()
        # Each of its requests ends in a task of its own, and very many connections may end at once.
        await self._reader.pay(self._frames.running * turns.MESSAGE)
        await self.protocol.handle(Closed())

    async def _hear(self) -> None:
        """Read as Hypercorn does, but for its time limit, which costs memory and is never set; and in turns."""
        beginning: bytes | None = b""  # as long as it may be that of HTTP/2
        data = b"x"
        while data:
            self._is_receiving, self._watched.idle_until = True, self._idle_until
            if self.context.terminated.is_set():
                self.stop()
            try:
                data = bytes(await self.stream.receive_some(MAX_RECV))
            except (trio.ClosedResourceError, trio.BrokenResourceError):
                break
            finally:
                self._is_receiving, self._watched.idle_until = False, None  # what has come is not cut off
            if self._watched.is_left:
                await trio.lowlevel.checkpoint_if_cancelled()
            if beginning is None:
                await self._take(data)
                continue
            beginning += data
            if data and len(beginning) < len(_PREFACE) and _PREFACE.startswith(beginning):
                continue
            if beginning.startswith(_PREFACE):
                await self._take(beginning[: len(_PREFACE)])  # Hypercorn finds out what it is
                beginning = beginning[len(_PREFACE) :]
            await self._take(beginning)
            beginning = None

    async def _take(self, data: bytes) -> None:
        """Handle what was read, in as many turns as it takes."""
        is_preface = data == _PREFACE
        is_http2 = isinstance(self.protocol.protocol, H2Protocol) or is_preface
        reader = self._reader
        one: tuple[tuple[bytes, int], ...] = ((data, turns.FRAME),)
        for piece, units in self._frames.cut(data, trio.current_time(), lambda: reader.next_turn) if is_http2 else one:
            work = units + CONNECTION if is_preface else units
            await reader.begin(work)
            reader.spend(work)
            await self.protocol.handle(RawData(piece))
            while self._unsent or self._sending:  # a client that does not read is not read either
                async with self.send_lock:
                    await trio.lowlevel.checkpoint()
        if self._waits_for_first_byte and self._has_begun():
            self._waits_for_first_byte = False
            self._limit_idle(is_idle=True)

    def _log_in(self) -> None:
        """Give more to a client that has logged in."""
        self._frames.is_known = True
        if isinstance(self.protocol.protocol, H2Protocol):
            connection = self.protocol.protocol.connection
            connection.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: STREAMS})  # goes with the next answer

    def stop(self) -> None:
        """Serve no further request."""
        if self._is_receiving:
            self._watched.leave_if_idle()

    def _note_idle(self, *, is_idle: bool) -> None:
        """A request begins, or the last one has its answer."""
        self._waits_for_first_byte = is_idle and self._has_served
        self._has_served = self._has_served or not is_idle
        self._limit_idle(is_idle=is_idle)

    def _limit_idle(self, *, is_idle: bool) -> None:
        """Let the watch end the connection once a head, or its first byte, has taken too long."""
        seconds = self._patience.keep_alive if self._waits_for_first_byte else self._patience.head
        self._idle_until = trio.current_time() + seconds if is_idle else None
        if self._is_receiving:
            self._watched.idle_until = self._idle_until
        if is_idle and self.context.terminated.is_set():
            self.stop()

    async def _idle_timeout(self) -> None:
        """Nothing: the watch over all connections takes the place of a task for each."""

    def _has_begun(self) -> bool:
        """Whether a part of a request's head has come."""
        protocol = self.protocol.protocol
        connection = protocol.connection if isinstance(protocol, H11Protocol) else None
        return (
            isinstance(connection, h11.Connection)
            and connection.our_state is h11.IDLE
            and connection.trailing_data[0] != b""
        )

    async def _continue(self) -> None:
        """Send 100 to a client that waits for it, if it has no response yet."""
        protocol = self.protocol.protocol
        if isinstance(protocol, H11Protocol) and protocol.connection.our_state is h11.SEND_RESPONSE:
            await protocol._send_h11_event(h11.InformationalResponse(status_code=100, headers=[]))

    async def _initiate_server_close(self) -> None:
        """End a connection that has been idle for too long, or is idle when mq stops."""
        protocol = self.protocol.protocol
        if isinstance(protocol, H11Protocol) and not self.context.terminated.is_set() and self._has_begun():
            await protocol._send_error_response(408)
        await super()._initiate_server_close()

    def _note_begun(self, count: int) -> None:
        """Requests that Hypercorn does not see were begun in this step; or, if none were, a completion has written its
        answer."""
        protocol, requests = self.protocol.protocol, self._requests
        assert isinstance(protocol, H2Protocol)
        assert requests is not None
        self._note_idle(is_idle=False)
        if requests.is_idle:
            if self.context.terminated.is_set():
                protocol.connection.close_connection()
            self._note_idle(is_idle=True)
        self._reader.spend(count * REQUEST)
        if not count:
            self._send_now(protocol.connection.data_to_send())

    def _send_now(self, data: bytes) -> None:
        """Send in this step what the kernel has room for, and the rest by a task."""
        has_task = bool(self._unsent)
        self._unsent += data
        try:
            if not has_task and not self.send_lock.locked():
                self._unsent[:] = self._socket.send_now(bytes(self._unsent))
            self._unsent_room.cover(self._sending + len(self._unsent))
        except (trio.BrokenResourceError, NoMemory, BodyTooLarge):
            self._unsent.clear()
            self._watched.socket.close()
        if self._unsent and not has_task:
            self._task_group.spawn(self.protocol_send, RawData(b""))

    async def protocol_send(self, event: Event) -> None:
        """Send an event of the protocol, as Hypercorn does but for its end, and idle times."""
        if self._requests is None and isinstance(self.protocol.protocol, H2Protocol):
            self._requests = self._begin_http2(self.protocol.protocol)
        if isinstance(event, Closed):
            # Hypercorn would close the socket at once. _read_data closes it when the client has its answer.
            await self.protocol.handle(event)
            self._hearing.cancel()
        elif isinstance(event, Updated):
            self._note_idle(is_idle=event.idle and (self._requests is None or self._requests.is_idle))
        elif isinstance(event, RawData):
            size, data = len(self._unsent), bytes(self._unsent) + event.data
            self._sending += size
            self._unsent.clear()
            try:
                if data:
                    await super().protocol_send(RawData(data))
            finally:
                self._sending -= size
                self._unsent_room.shrink(self._sending + len(self._unsent))

    def _begin_http2(self, protocol: H2Protocol) -> Http2Requests:
        """Guard a connection that speaks HTTP/2. It sends its preface before it reads any frame: in time for this."""
        protocol._priority_updated = _ignore  # type: ignore[method-assign]
        requests = Http2Requests(
            protocol,
            self._watched,
            self._memory,
            self._app.heads,
            self._app_for,
            self._frames.end,
            self._note_begun,
        )
        _guard_http2(protocol.connection, self._frames, requests)
        # Hypercorn takes the preface for a request, and would wait for its end for ever. An upgrade is one.
        self._limit_idle(is_idle=not protocol.connection.streams)
        return requests


class _WatchedApp(ASGIWrapper):
    """The app, with requests counted as they end, and 100 Continue sent when the app wants a body that is held back.

    Args:
        work: of the one request that it is for; None makes one for each request.
    """

    def __init__(self, app: ASGIFramework, server: GuardedServer, work: RequestWork | None) -> None:
        super().__init__(app)
        self._server = server
        self._work = work

    async def __call__(
        self,
        scope: Scope,
        receive: ASGIReceiveCallable,
        send: ASGISendCallable,
        sync_spawn: Callable[..., object],
        call_soon: Callable[..., object],
    ) -> None:
        server = self._server
        if scope["type"] == "http":
            scope["client"] = (server._watched.address, 0)
            scope["scheme"] = server._watched.scheme
        request = self._work or RequestWork(server._memory, "")
        REQUEST_MEMORY.set(request.memory)
        work = server._watched.work()
        is_held_back = scope["type"] == "http" and _expects_continue(scope)

        async def receive_held_back() -> ASGIReceiveEvent:
            nonlocal is_held_back
            if is_held_back:
                is_held_back = False
                await server._continue()
            event = await receive()
            if event["type"] == "http.request":
                await server._reader.pay(_BODY)
                if not event.get("more_body", False):
                    work.begin()
            return event

        async def send_answer(event: ASGISendEvent) -> None:
            work.end()
            await request.begin_answer()
            await send(event)

        try:
            with request.scope:
                async with server._strangers:
                    await server._reader.pay(FULL_REQUEST)
                    await super().__call__(scope, receive_held_back, send_answer, sync_spawn, call_soon)
        finally:
            work.end()
            request.memory.close()
            server._frames.ended += 1
        if request.reset is not None:
            await request.reset()


class _Strangers:
    """A block for each request of a connection. Before its login only a few run, and the others wait."""

    def __init__(self, login: ConnectionLogin | None) -> None:
        self._login = login
        self._running = 0

    async def __aenter__(self) -> None:
        login = self._login
        if login is not None:
            while self._running >= STREAMS_BEFORE_LOGIN and not login.is_done:
                await login.change.park()
        self._running += 1

    async def __aexit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._running -= 1
        if self._login is not None:
            self._login.change.unpark()


def _expects_continue(scope: HTTPScope) -> bool:
    return scope["http_version"] == "1.1" and any(
        name == b"expect" and b"100-continue" in value.lower() for name, value in scope["headers"]
    )


def _guard_http1(protocol: H11Protocol, stream: WatchedStream) -> None:
    """Look at each head before h11 does, and say why something is refused. Requests of a client that is gone are not
    begun: a read may hold thousands of them."""
    connection = protocol.connection
    assert isinstance(connection, h11.Connection)
    next_event, receive_data = connection.next_event, connection.receive_data
    empty_lines, has_ended = 0, False

    def receive_until_last(data: bytes) -> None:
        nonlocal has_ended
        has_ended = has_ended or not data
        if connection.their_state not in _PAST_THE_LAST:
            receive_data(data)

    def next_event_of_strict_head() -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        if stream.is_broken:
            return h11.NEED_DATA
        if connection.their_state in _PAST_THE_LAST:
            return h11.NEED_DATA  # h11 would call it a mistake, and Hypercorn answer that instead of the request
        nonlocal empty_lines
        if connection.their_state is h11.IDLE:
            empty_lines += _drop_empty_lines(connection, MOST_EMPTY_LINES - empty_lines)
            received = connection.trailing_data[0]
            if received == b"\r" and not has_ended:
                return h11.NEED_DATA  # half of an empty line
            check_head(received)
        event = next_event()
        if isinstance(event, h11.Request):
            empty_lines = 0
            connection.client_is_waiting_for_100_continue = False  # Hypercorn would not wait until the body is wanted
        return event

    async def send_error_response(status_code: int) -> None:
        # Hypercorn was waiting for a request's first line, or has one to answer whose body is not whole.
        is_in_body = has_ended and connection.our_state is h11.SEND_RESPONSE
        reply = refusal_of_body() if is_in_body else refusal_of_head(status_code)
        assert isinstance(reply.body, bytes)
        await protocol._send_h11_event(h11.Response(status_code=reply.status, headers=list(reply.headers)))
        await protocol._send_h11_event(h11.Data(data=reply.body))
        await protocol._send_h11_event(h11.EndOfMessage())

    connection.receive_data = receive_until_last  # type: ignore[method-assign]
    connection.next_event = next_event_of_strict_head  # type: ignore[method-assign]
    protocol._send_error_response = send_error_response  # type: ignore[method-assign]


def _drop_empty_lines(connection: h11.Connection, most: int) -> int:
    """Drop up to so many empty lines before a request, which h11 would refuse. Returns their number."""
    found = EMPTY_LINES.match(connection.trailing_data[0])
    size = 0 if found is None else min(found.end(), 2 * most)
    if size:
        connection._receive_buffer._extract(size)  # the only way to take something out of it
    return size // 2


async def _ignore(event: object) -> None:
    """Pass over priorities, which HTTP/2 has given up (RFC 9113, section 5.3.2): a tree of them is work for nothing."""


def _guard_http2(connection: H2Connection, frames: FrameCounter, requests: Http2Requests) -> None:
    """Check frames before the connection takes them, and count responses as they end.

    Hypercorn sends what is left to send and closes when taking them raises a ProtocolError.
    """
    receive_data, send_data, end_stream = connection.receive_data, connection.send_data, connection.end_stream
    decode = connection.decoder.decode

    def receive_if_calm(data: bytes) -> list[H2Event]:
        try:
            frames.check(data, trio.current_time())
        except ProtocolError as error:
            _CLOSED.write(error)
            connection.close_connection(error.error_code)
            raise
        return requests.received(receive_data(data))

    def send_and_count(stream_id: int, data: bytes, *args: Any, **named: Any) -> None:
        send_data(stream_id, data, *args, **named)
        frames.note_sent(len(data))

    def end_and_count(stream_id: int) -> None:
        end_stream(stream_id)
        frames.note_response()

    def decode_if_calm(data: bytes, raw: bool = False) -> Iterable[HeaderTuple]:
        check_table_sizes(data)
        return decode(data, raw)

    if not frames.is_known:
        # A client that follows the settings, which are sent before, opens few streams. One that opens more before it
        # has read them has not done anything wrong: its requests wait.
        connection.local_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = STREAMS
        connection.local_settings.acknowledge()
    connection.receive_data = receive_if_calm  # type: ignore[method-assign,assignment]  # Hypercorn gives bytes
    connection.send_data = send_and_count  # type: ignore[method-assign,assignment]
    connection.end_stream = end_and_count  # type: ignore[method-assign]
    connection.decoder.decode = decode_if_calm  # type: ignore[method-assign]


def check_table_sizes(block: bytes) -> None:
    """Check that a header block does not begin with a long row of table sizes. Each takes a byte, and as much work as a
    header.

    Raises:
        HPACKDecodingError: it does.
    """
    at = 0
    for _ in range(TABLE_SIZES):
        if at >= len(block) or block[at] & 0xE0 != _TABLE_SIZE:
            return
        at += decode_integer(block[at:], 5)[1]
    if at < len(block) and block[at] & 0xE0 == _TABLE_SIZE:
        raise HPACKDecodingError(f"more than {TABLE_SIZES} table sizes in a header block")
