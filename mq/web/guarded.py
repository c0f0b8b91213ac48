"""Hypercorn's server of one connection, with limits that it does not have itself.

It offers no place for them, so they are laid around the two protocol objects of a connection, from the outside: this
module alone knows Hypercorn's insides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio
from h2.connection import H2Connection
from h2.events import Event as H2Event
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Event
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, LifespanState, Scope

from mq.web.frames import Flood, FrameCounter
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
        counted = _CountedApp(app, self._frames)
        super().__init__(counted, config, context, LifespanState(), stream)  # type: ignore[arg-type]

    async def protocol_send(self, event: Event) -> None:
        """Send what the protocol wants sent. Its first words as HTTP/2 come before it has heard any."""
        if not self._is_http2 and isinstance(self.protocol.protocol, H2Protocol):
            self._is_http2 = True
            _guard_http2(self.protocol.protocol.connection, self._frames)
        await super().protocol_send(event)


class _CountedApp(ASGIWrapper):
    """Counts the requests that are no longer at work, be their streams there or not."""

    def __init__(self, app: ASGIFramework, frames: FrameCounter) -> None:
        super().__init__(app)
        self._frames = frames

    async def __call__(
        self,
        scope: Scope,
        receive: ASGIReceiveCallable,
        send: ASGISendCallable,
        sync_spawn: Callable[..., object],
        call_soon: Callable[..., object],
    ) -> None:
        try:
            await super().__call__(scope, receive, send, sync_spawn, call_soon)
        finally:
            self._frames.ended += 1


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
