"""Hypercorn's server of one connection, with limits that it does not have itself.

It offers no place for them, so they are laid around the two protocol objects of a connection, from the outside: this
module alone knows Hypercorn's insides.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import h11
import trio
from h2.connection import H2Connection
from h2.events import Event as H2Event
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

from mq.web.frames import Flood, FrameCounter
from mq.web.refusals import check_head, refusal
from mq.web.watched import WatchedStream

logger = logging.getLogger(__name__)


class GuardedServer(TCPServer):
    """Serves one connection.

    Args:
        app: what answers.
        config: Hypercorn's.
        context: tells of the stop.
        stream: the connection.
    """

    def __init__(self, app: ASGIFramework, config: Config, context: WorkerContext, stream: WatchedStream) -> None:
        self._frames = FrameCounter()
        self._is_http2 = False
        watched = _WatchedApp(app, self._frames, self._continue, stream)
        super().__init__(watched, config, context, LifespanState(), stream)  # type: ignore[arg-type]

    async def _read_data(self) -> None:
        assert isinstance(self.protocol.protocol, H11Protocol)  # every connection begins as that
        _guard_http1(self.protocol.protocol)
        data = b"x"
        while data:  # as Hypercorn does, but for its time limit, which costs memory and is never set
            try:
                data = bytes(await self.stream.receive_some(MAX_RECV))
            except (trio.ClosedResourceError, trio.BrokenResourceError):
                break
            await self.protocol.handle(RawData(data))
        await self.protocol.handle(Closed())
        await self.idle_task.stop()  # nobody is left to be idle; a broken connection would stay for as long as that

    async def _continue(self) -> None:
        """Send 100 to a client that waits for it, if it has no response yet."""
        protocol = self.protocol.protocol
        if isinstance(protocol, H11Protocol) and protocol.connection.our_state is h11.SEND_RESPONSE:
            await protocol._send_h11_event(h11.InformationalResponse(status_code=100, headers=[]))

    async def _initiate_server_close(self) -> None:
        """End a connection that has been idle for too long, or that is idle when mq stops."""
        protocol = self.protocol.protocol
        if isinstance(protocol, H11Protocol) and not self.context.terminated.is_set() and _has_begun(protocol):
            await protocol._send_error_response(408)
        await super()._initiate_server_close()

    async def protocol_send(self, event: Event) -> None:
        """Send what the protocol wants sent. Its first words as HTTP/2 come before it has heard any."""
        if not self._is_http2 and isinstance(self.protocol.protocol, H2Protocol):
            self._is_http2 = True
            connection = self.protocol.protocol.connection
            _guard_http2(connection, self._frames)
            # Hypercorn takes the preface for a request, and would wait for its end for ever. An upgrade is one.
            await super().protocol_send(Updated(idle=not connection.streams))
        await super().protocol_send(event)


class _WatchedApp(ASGIWrapper):
    """Counts the requests that are no longer at work, be their streams there or not, and tells when a body that its
    client holds back is asked for."""

    def __init__(
        self,
        app: ASGIFramework,
        frames: FrameCounter,
        continue_: Callable[[], Awaitable[None]],
        stream: WatchedStream,
    ) -> None:
        super().__init__(app)
        self._stream = stream
        self._frames = frames
        self._continue = continue_

    async def __call__(
        self,
        scope: Scope,
        receive: ASGIReceiveCallable,
        send: ASGISendCallable,
        sync_spawn: Callable[..., object],
        call_soon: Callable[..., object],
    ) -> None:
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
            await send(event)

        try:
            await super().__call__(scope, receive_held_back, send_answer, sync_spawn, call_soon)
        finally:
            work.end()
            self._frames.ended += 1


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
    next_event = connection.next_event

    def next_event_of_strict_head() -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        if connection.their_state is h11.IDLE:
            check_head(connection.trailing_data[0])
        event = next_event()
        if isinstance(event, h11.Request):
            connection.client_is_waiting_for_100_continue = False  # Hypercorn would not wait until the body is wanted
        return event

    async def send_error_response(status_code: int) -> None:
        reply = refusal(status_code)
        assert isinstance(reply.body, bytes)
        await protocol._send_h11_event(h11.Response(status_code=reply.status, headers=list(reply.headers)))
        await protocol._send_h11_event(h11.Data(data=reply.body))
        await protocol._send_h11_event(h11.EndOfMessage())

    connection.next_event = next_event_of_strict_head  # type: ignore[method-assign]
    protocol._send_error_response = send_error_response  # type: ignore[method-assign]


def _guard_http2(connection: H2Connection, frames: FrameCounter) -> None:
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
        return receive_data(data)

    def end_and_count(stream_id: int) -> None:
        end_stream(stream_id)
        frames.responses += 1

    connection.receive_data = receive_if_calm  # type: ignore[method-assign,assignment]  # Hypercorn gives bytes
    connection.end_stream = end_and_count  # type: ignore[method-assign]
