"""Hypercorn on a socket: accept, serve, stop.

Hypercorn's own ``serve`` is not used, for three reasons. A fault in its protocol code, which any client can cause,
would end the whole process; here it ends that connection. Its sends are shielded from cancellation, so one client that
reads nothing could keep the process from stopping; here a connection that is cancelled loses its socket. And some of
its waits have no end once the client is gone; here a silent connection is closed. The price is that
:class:`hypercorn.trio.tcp_server.TCPServer` is not a documented interface.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Final

import trio
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ASGIFramework

from mq.access.certificates import Certificates
from mq.errors import MQError
from mq.message import shorten
from mq.web.guarded import GuardedServer
from mq.web.handshake import shake_hands
from mq.web.watched import Watch, WatchedStream

logger = logging.getLogger(__name__)

GRACE_SECONDS: Final = 10
"""How long requests may run on after a stop."""
HEAD_SECONDS: Final = 30
"""How long a connection may take for the next request's line and headers, from the end of the last response on."""
SILENT_SECONDS: Final = 120
"""How long a connection may stay open without a byte in either direction, whatever it waits for."""


class CannotListen(MQError):
    """The address cannot be listened on: in use, not this machine's, or not allowed."""


async def serve(
    app: ASGIFramework,
    address: str,
    port: int,
    *,
    stop: Callable[[], Awaitable[None]],
    certificates: Certificates | None = None,
    grace_seconds: float = GRACE_SECONDS,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `app` over HTTP/1.1 and HTTP/2 until `stop` returns; then accept nobody and finish what runs.

    Started with the URLs it listens on.

    Args:
        app: an ASGI app. It gets no lifespan events.
        address: IP address or host name.
        port: 0 takes a free one.
        stop: returns when it is time to stop.
        certificates: with them TLS is spoken, and nothing else.
        grace_seconds: what still runs that long after the stop is cut off.
        task_status: of :meth:`trio.Nursery.start`.

    Raises:
        CannotListen: somebody else has the port, or the address is not to be had.
    """
    listeners = await _listen(address, port)
    connections = _Connections(app, certificates)
    scheme = "https" if certificates else "http"
    async with trio.open_nursery() as watching:
        watching.start_soon(connections.watch.run)
        async with trio.open_nursery() as running:
            async with trio.open_nursery() as accepting:
                accepting.start_soon(_accept, connections.serve, listeners, running)
                task_status.started([_url(scheme, listener) for listener in listeners])
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
    """

    def __init__(self, app: ASGIFramework, certificates: Certificates | None) -> None:
        self._app = app
        self._certificates = certificates
        self._config = _hypercorn_config()
        self._context = WorkerContext(None)
        self.watch = Watch(SILENT_SECONDS)

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one connection to its end."""
        if self._certificates is None:
            await self._serve(WatchedStream(stream))
            return
        tls = await shake_hands(stream, self._certificates.context, self._context.terminated.wait)
        if tls is not None:
            await self._serve(WatchedStream(tls))

    async def _serve(self, watched: WatchedStream) -> None:
        server = GuardedServer(self._app, self._config, self._context, watched)
        try:
            await self.watch.serve(watched, server.run)
        except* Exception as faults:  # noqa: BLE001 # for the reason below
            # Clients have got nine kinds of errors out of Hypercorn's protocol code, so there is no list to go by. None
            # of them is the app's or the broker's: the app answers 500 to its own, the broker fails in its own nursery.
            fault = first_of(faults)
            logger.warning("a connection was dropped, its client confused the server: %s", type(fault).__name__)
            # not its text, which may quote what the client sent: a header with a secret in it
            logger.debug("it came about here:\n%s", "".join(traceback.format_tb(fault.__traceback__)))

    async def finish(self) -> None:
        """Close the connections that are idle, and the others as they become so."""
        await self._context.terminated.set()


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


async def _listen(address: str, port: int) -> list[trio.SocketListener]:
    try:
        return await trio.open_tcp_listeners(port, host=address)
    except OSError as error:
        raise CannotListen(f"cannot listen on {address} port {port}: {error.strerror}") from error
    except UnicodeError as error:
        raise CannotListen(f"cannot listen on {shorten(address)}: not an address or a host name") from error


async def _accept(
    serve: Callable[[trio.SocketStream], Awaitable[None]], listeners: list[trio.SocketListener], running: trio.Nursery
) -> None:
    await trio.serve_listeners(serve, listeners, handler_nursery=running)


def _url(scheme: str, listener: trio.SocketListener) -> str:
    host, port = listener.socket.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
