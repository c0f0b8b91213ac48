"""Hypercorn on a socket: accept, serve, stop.

Hypercorn's own ``serve`` is not used, for three reasons. A fault in its protocol code would end the whole process, and
any client can cause one; here it ends that connection. Its sends are shielded from cancellation, so a client that reads
nothing could keep the process from stopping; here a cancelled connection loses its socket. And some of its waits never
end once the client is gone; here a silent connection is closed. The price is that
:class:`hypercorn.trio.tcp_server.TCPServer` is not a documented interface.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext

from mq.access.certificates import Certificates
from mq.broker.fairness import SOURCE
from mq.doors.budget import Budget, ClientMemory
from mq.doors.connections import Crowd, FewLines, Peer, peer_of
from mq.doors.listeners import PromptListener, TLSStream, listen, listen_unix, shake_hands, url
from mq.doors.open_connections import OpenConnections
from mq.doors.readers import Reader
from mq.doors.standby import Doorway
from mq.errors import first_of
from mq.web.app import WebApp
from mq.web.fast_http1 import FastHttp1
from mq.web.http_connection import (
    CONNECTION,
    ConnectionLogin,
    HangUps,
    HeadPatience,
    HttpConnection,
    IdleWatch,
    WatchedStream,
)
from mq.web.hypercorn_server import STREAMS, STREAMS_BEFORE_LOGIN, GuardedServer

logger = logging.getLogger(__name__)
_DROPPED: Final = FewLines(logger, logging.WARNING, "dropped an HTTP connection after a protocol violation: %s")

GRACE_SECONDS: Final = 10
"""How long requests may run on after a stop."""
HEAD_SECONDS: Final = 30
"""How long a request's line and headers may take, from their first byte on; those of the first request from the
beginning of the connection on."""
KEEP_ALIVE_SECONDS: Final = 75
"""How long a connection waits for its next request: longer than nginx and load balancers keep an idle one, 60 seconds.
Else they send a request into a connection that is being closed, and their client gets 502."""
SILENT_SECONDS: Final = 120
"""How long a connection may stay open without a byte in either direction, but for the time in which a request waits
for its answer; up to twice as long while an answer is being sent."""
GOODBYE_SECONDS: Final = 1
"""How long the end of a connection may take: over TLS it is announced."""
PROTOCOLS: Final = ("h2", "http/1.1")
"""Offered by ALPN. HTTP/2 begins with a preface of its own, so the choice need not be looked at."""


async def serve(
    app: WebApp,
    address: str,
    port: int,
    *,
    stop: Callable[[], Awaitable[None]],
    certificates: Certificates | None = None,
    crowd: Crowd | None = None,
    seen: OpenConnections | None = None,
    budget: Budget | None = None,
    fast_lane: bool = True,
    shares_port: bool = False,
    doorway: Doorway | None = None,
    keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
    grace_seconds: float = GRACE_SECONDS,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `app` over HTTP/1.1 and HTTP/2 until `stop` returns; then accept no connection and finish what runs.

    Started with the URLs it listens on.

    Args:
        address: IP address or host name.
        port: 0 takes a free one.
        stop: returns when it is time to stop.
        certificates: with them TLS is spoken, and nothing else.
        crowd: says which address has too many connections; None counts those of this server alone.
        seen: has the connections of all protocols; None where they are not looked at.
        budget: the memory that clients of all protocols share; None makes one for this server.
        fast_lane: whether plain HTTP/1.1 requests pass Hypercorn by.
        shares_port: other processes may listen there too, if they say the same.
        doorway: where connections come, in place of the address and the port. None listens there.
        keep_alive_seconds: how long a connection waits for its next request.
        grace_seconds: what still runs that long after the stop is cut off.
        task_status: of :meth:`trio.Nursery.start`.

    Raises:
        CannotListen: the port is taken, or the address is not to be had.
    """
    doorway = doorway or Doorway("http", await listen(address, port, shares_port=shares_port))
    connections = _HttpConnections(
        app,
        certificates,
        crowd or Crowd(),
        seen or OpenConnections(),
        fast_lane,
        budget or Budget(),
        keep_alive_seconds,
    )
    scheme = "https" if certificates else "http"
    urls = [url(scheme, listener) for listener in doorway.listeners]
    await _serve_until(stop, connections, doorway.serving(), grace_seconds, partial(task_status.started, urls))


async def serve_socket(
    app: WebApp,
    path: str,
    mode: int,
    *,
    stop: Callable[[], Awaitable[None]],
    seen: OpenConnections | None = None,
    budget: Budget | None = None,
    fast_lane: bool = True,
    keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
    grace_seconds: float = GRACE_SECONDS,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `app` on a Unix socket, as :func:`serve` does on a port. There is no TLS, as the socket cannot be
    tapped, and connections are not counted, as all are this machine's.

    Started with the URL it listens on.

    Args:
        app: answers. Its requests' addresses name users of this machine.
        mode: of the socket's file: write permission lets a user connect.
        stop: returns when it is time to stop.
        seen: has the connections of all protocols; None where they are not looked at.
        budget: the memory that clients of all protocols share; None makes one for this server.
        fast_lane: whether plain HTTP/1.1 requests pass Hypercorn by.
        keep_alive_seconds: how long a connection waits for its next request.
        grace_seconds: what still runs that long after the stop is cut off.
        task_status: of :meth:`trio.Nursery.start`.

    Raises:
        CannotListen: the path is not to be had.
    """
    connections = _HttpConnections(
        app, None, Crowd(0), seen or OpenConnections(), fast_lane, budget or Budget(), keep_alive_seconds
    )
    async with listen_unix(path, mode) as listener:
        begun = partial(task_status.started, [f"unix:{path}"])
        await _serve_until(stop, connections, [PromptListener(listener)], grace_seconds, begun)


async def _serve_until(
    stop: Callable[[], Awaitable[None]],
    connections: _HttpConnections,
    listeners: list[trio.abc.Listener[trio.SocketStream]],
    grace_seconds: float,
    begun: Callable[[], None],
) -> None:
    async with trio.open_nursery() as watching:
        watching.start_soon(connections.watch.run)
        watching.start_soon(connections.hang_ups.run)
        async with trio.open_nursery() as running:
            async with trio.open_nursery() as accepting:
                accepting.start_soon(
                    partial(trio.serve_listeners, connections.serve, listeners, handler_nursery=running)
                )
                begun()
                await stop()
                accepting.cancel_scope.cancel()
            await connections.finish()
            watching.cancel_scope.deadline = trio.current_time() + grace_seconds
        watching.cancel_scope.cancel()


class _HttpConnections:
    """Serves connections, each on its own.

    Attributes:
        watch: ends silent connections; has to run.
        hang_ups: listens to waiting clients; has to run.
    """

    def __init__(
        self,
        app: WebApp,
        certificates: Certificates | None,
        crowd: Crowd,
        seen: OpenConnections,
        fast_lane: bool,
        budget: Budget,
        keep_alive_seconds: float,
    ) -> None:
        self._app = app
        self._budget = budget
        self._patience = HeadPatience(HEAD_SECONDS, keep_alive_seconds)
        self._crowd = crowd
        self._seen = seen
        self._certificates = certificates
        self._has_fast_lane = fast_lane
        self._config = _hypercorn_config(STREAMS_BEFORE_LOGIN if app.needs_login else STREAMS)
        self._context = WorkerContext(None)
        self._serving: set[FastHttp1 | GuardedServer] = set()
        self.watch = IdleWatch(SILENT_SECONDS, min(self._patience))
        self.hang_ups = HangUps()

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one connection to its end."""
        peer = peer_of(stream.socket)
        with self._crowd.room(peer.address, stream.socket.fileno()) as has_room:
            carrier: trio.SocketStream | TLSStream | None = stream if has_room else None
            if has_room and self._certificates is not None:
                carrier = await shake_hands(stream, self._certificates.context, self._context.terminated.wait)
            if carrier is not None:
                await self._serve(peer, WatchedStream(carrier, peer.address, self._patience))

    async def _serve(self, peer: Peer, watched: WatchedStream) -> None:
        connection = HttpConnection(watched, peer, self._budget, self._seen.waiting)
        CONNECTION.set(connection)  # of this task, and of those that serve its requests
        SOURCE.set(object())
        with self._seen.entry(connection) as id, connection.scope:
            connection.memory.name = f"{id} ({peer})"
            try:
                await self.watch.serve(watched, partial(self._serve_both, connection, watched))
            except* Exception as faults:  # noqa: BLE001 # for the reason below
                # Clients have got nine kinds of errors out of Hypercorn's protocol code, so there is no list to go by.
                # None is the app's or the broker's: the app answers 500 to its own, the broker fails in its own
                # nursery.
                fault = first_of(faults)
                _DROPPED.write(type(fault).__name__)
                # not its text, which may quote what the client sent: a header with a secret in it
                logger.debug("exception traceback:\n%s", "".join(traceback.format_tb(fault.__traceback__)))
            finally:
                connection.memory.close()

    async def _serve_both(self, connection: HttpConnection, watched: WatchedStream) -> None:
        """Serve in the fast lane up to the first request that is not plain, and then with Hypercorn."""
        reader, memory = Reader(), connection.memory
        if not self._has_fast_lane or await self._serve_fast(watched, reader, memory):
            if self._app.needs_login and connection.user is None:
                connection.login = ConnectionLogin()
            login = connection.login
            server = GuardedServer(self._app, self._config, self._context, watched, reader, memory, login)
            self._serving.add(server)
            try:
                await server.run()
            finally:
                self._serving.discard(server)

    async def _serve_fast(self, watched: WatchedStream, reader: Reader, memory: ClientMemory) -> bool:
        """Serve plain requests. True when Hypercorn has to go on; else the connection is closed."""
        lane = FastHttp1(watched, self._app.heads, self.hang_ups, reader, memory)
        if self._context.terminated.is_set():
            lane.stop()
        self._serving.add(lane)
        try:
            rest = await lane.run()
        finally:
            self._serving.discard(lane)
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
        for each in self._serving:
            each.stop()


def _hypercorn_config(streams: int) -> Config:
    logging.getLogger("hpack").setLevel(logging.INFO)  # below that it writes every header down, secrets too
    config = Config()
    config.accesslog = None
    config.errorlog = logger
    config.include_server_header = False
    config.h11_max_incomplete_size = 32 * 1024  # the request line and the headers, else 431
    config.h2_max_header_list_size = 32 * 1024
    config.h2_max_concurrent_streams = streams
    config.keep_alive_max_requests = sys.maxsize  # over HTTP/2 the limit would cut off answers that are under way
    config.max_app_queue_size = 4  # pieces of a body, of at most 64 KiB, that wait to be asked for
    return config
