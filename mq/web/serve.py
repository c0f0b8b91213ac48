"""Hypercorn on a socket: accept, serve, stop.

Hypercorn's own ``serve`` is not used, for three reasons. A fault in its protocol code, which any client can cause,
would end the whole process; here it ends that connection. Its sends are shielded from cancellation, so one client that
reads nothing could keep the process from stopping; here a connection that is cancelled loses its socket. And some of
its waits have no end once the client is gone; here a silent connection is closed. The price is that
:class:`hypercorn.trio.tcp_server.TCPServer` is not a documented interface.
"""

from __future__ import annotations

import functools
import logging
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Final

import trio
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext

from mq.access.certificates import Certificates
from mq.doors.handshake import shake_hands
from mq.doors.listening import listen, url
from mq.web.app import WebApp
from mq.web.guarded import GuardedServer
from mq.web.hangups import HangUps
from mq.web.lane import Lane
from mq.web.watched import Watch, WatchedStream

logger = logging.getLogger(__name__)

GRACE_SECONDS: Final = 10
"""How long requests may run on after a stop."""
HEAD_SECONDS: Final = 30
"""How long a connection may take for the next request's line and headers, from the end of the last response on."""
SILENT_SECONDS: Final = 120
"""How long a connection may stay open without a byte in either direction, whatever it waits for."""
GOODBYE_SECONDS: Final = 1
"""How long the end of a connection may take: over TLS it is said."""
PROTOCOLS: Final = ("h2", "http/1.1")
"""What is offered by ALPN. HTTP/2 begins with a preface of its own, so what was chosen needs no looking at."""


async def serve(
    app: WebApp,
    address: str,
    port: int,
    *,
    stop: Callable[[], Awaitable[None]],
    certificates: Certificates | None = None,
    fast_lane: bool = True,
    shares_port: bool = False,
    grace_seconds: float = GRACE_SECONDS,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `app` over HTTP/1.1 and HTTP/2 until `stop` returns; then accept nobody and finish what runs.

    Started with the URLs it listens on.

    Args:
        app: answers. It gets no lifespan events.
        address: IP address or host name.
        port: 0 takes a free one.
        stop: returns when it is time to stop.
        certificates: with them TLS is spoken, and nothing else.
        fast_lane: whether plain HTTP/1.1 requests pass Hypercorn by.
        shares_port: other processes may listen there too, if they say the same.
        grace_seconds: what still runs that long after the stop is cut off.
        task_status: of :meth:`trio.Nursery.start`.

    Raises:
        CannotListen: somebody else has the port, or the address is not to be had.
    """
    listeners = await listen(address, port, shares_port=shares_port)
    connections = _Connections(app, certificates, fast_lane)
    scheme = "https" if certificates else "http"
    async with trio.open_nursery() as watching:
        watching.start_soon(connections.watch.run)
        watching.start_soon(connections.hang_ups.run)
        async with trio.open_nursery() as running:
            async with trio.open_nursery() as accepting:
                accepting.start_soon(_accept, connections.serve, listeners, running)
                task_status.started([url(scheme, listener) for listener in listeners])
                await stop()
                accepting.cancel_scope.cancel()
            await connections.finish()
            watching.cancel_scope.deadline = trio.current_time() + grace_seconds
        watching.cancel_scope.cancel()


def first_of(error: BaseException) -> BaseException:
    """The error itself, or the first one in its group of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class _Connections:
    """Serves connections, each on its own.

    Attributes:
        watch: ends those that are of no use; has to run.
        hang_ups: listens to those who wait; has to run.
    """

    def __init__(self, app: WebApp, certificates: Certificates | None, fast_lane: bool) -> None:
        self._app = app
        self._certificates = certificates
        self._has_fast_lane = fast_lane
        self._config = _hypercorn_config()
        self._context = WorkerContext(None)
        self._lanes: set[Lane] = set()
        self.watch = Watch(SILENT_SECONDS, HEAD_SECONDS)
        self.hang_ups = HangUps()

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one connection to its end."""
        if self._certificates is None:
            await self._serve(WatchedStream(stream))
            return
        tls = await shake_hands(stream, self._certificates.context, self._context.terminated.wait)
        if tls is not None:
            await self._serve(WatchedStream(tls))

    async def _serve(self, watched: WatchedStream) -> None:
        try:
            await self.watch.serve(watched, functools.partial(self._serve_both, watched))
        except* Exception as faults:  # noqa: BLE001 # for the reason below
            # Clients have got nine kinds of errors out of Hypercorn's protocol code, so there is no list to go by. None
            # of them is the app's or the broker's: the app answers 500 to its own, the broker fails in its own nursery.
            fault = first_of(faults)
            logger.warning("a connection was dropped, its client confused the server: %s", type(fault).__name__)
            # not its text, which may quote what the client sent: a header with a secret in it
            logger.debug("it came about here:\n%s", "".join(traceback.format_tb(fault.__traceback__)))

    async def _serve_both(self, watched: WatchedStream) -> None:
        """In the fast lane for as long as that goes, and then with Hypercorn."""
        if not self._has_fast_lane or await self._serve_fast(watched):
            await GuardedServer(self._app, self._config, self._context, watched).run()

    async def _serve_fast(self, watched: WatchedStream) -> bool:
        """Whether there is more to serve. If not, the connection is closed."""
        lane = Lane(watched, self._app.handler, self.hang_ups)
        if self._context.terminated.is_set():
            lane.stop()
        self._lanes.add(lane)
        try:
            rest = await lane.run()
        finally:
            self._lanes.discard(lane)
        if rest is not None:
            watched.put_back(rest)
            return True
        with trio.move_on_after(GOODBYE_SECONDS):
            await watched.aclose()
        return False

    async def finish(self) -> None:
        """Close the connections that are idle, and the others as they become so."""
        self._app.is_stopping = True
        await self._context.terminated.set()
        for lane in self._lanes:
            lane.stop()


def _hypercorn_config() -> Config:
    logging.getLogger("hpack").setLevel(logging.INFO)  # below that it writes every header down, secrets too
    config = Config()
    config.accesslog = None
    config.errorlog = logger
    config.include_server_header = False
    config.h11_max_incomplete_size = 32 * 1024  # the request line and the headers, else 431
    config.h2_max_header_list_size = 32 * 1024
    config.h2_max_concurrent_streams = 128
    config.keep_alive_timeout = HEAD_SECONDS  # also for the first request
    config.keep_alive_max_requests = sys.maxsize  # over HTTP/2 the limit would cut off answers that are under way
    config.max_app_queue_size = 4  # pieces of a body, of at most 64 KiB, that wait to be asked for
    return config


async def _accept(
    serve: Callable[[trio.SocketStream], Awaitable[None]], listeners: list[trio.SocketListener], running: trio.Nursery
) -> None:
    await trio.serve_listeners(serve, listeners, handler_nursery=running)
