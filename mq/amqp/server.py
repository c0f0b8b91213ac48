"""AMQP on a socket: accept, serve, stop."""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final

import trio

from mq.access.certificates import Certificates
from mq.amqp.door import Door
from mq.amqp.serving import Serving
from mq.doors.handshake import shake_hands
from mq.doors.listening import listen, url

logger = logging.getLogger("mq.amqp")

GRACE_SECONDS: Final = 10
"""How long connections may run on after a stop."""
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))
"""For clients that want no heartbeat: one that has vanished is found out by the kernel."""


_CHOICE: Final = "--amqp-port, or serve HTTP alone with --amqp-port=0"
"""What to do where somebody else, RabbitMQ perhaps, has the port."""


async def serve(
    door: Door,
    address: str,
    port: int,
    *,
    stop: Callable[[], Awaitable[None]],
    version: str,
    certificates: Certificates | None = None,
    shares_port: bool = False,
    grace_seconds: float = GRACE_SECONDS,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve AMQP 0-9-1 until `stop` returns; then accept nobody, and tell those that are connected to go.

    Started with the URLs it listens on.

    Args:
        door: what connections share.
        address: IP address or host name.
        port: 0 takes a free one.
        stop: returns when it is time to stop.
        version: of mq, which clients are told.
        certificates: with them TLS is spoken, and nothing else.
        shares_port: other daemons may listen on it, too.
        grace_seconds: who is still there that long after the stop is cut off.
        task_status: of :meth:`trio.Nursery.start`.

    Raises:
        CannotListen: somebody else has the port, or the address is not to be had.
        StorageUnusable: what was declared cannot be read.
    """
    listeners = await listen(
        address, port, "--amqp-port, or serve HTTP alone with --amqp-port=0", shares_port=shares_port
    )
    await door.load()
    stopped = trio.Event()
    connections = _Connections(door, certificates, version, stopped)
    async with trio.open_nursery() as behind:
        behind.start_soon(door.run)
        async with trio.open_nursery() as running:
            async with trio.open_nursery() as accepting:
                accepting.start_soon(
                    partial(trio.serve_listeners, connections.serve, listeners, handler_nursery=running)
                )
                scheme = "amqps" if certificates else "amqp"
                task_status.started([url(scheme, listener) for listener in listeners])
                await stop()
                accepting.cancel_scope.cancel()
            stopped.set()
            connections.stop()
            running.cancel_scope.deadline = trio.current_time() + grace_seconds
        behind.cancel_scope.cancel()


class _Connections:
    """Serves connections, each on its own."""

    def __init__(self, door: Door, certificates: Certificates | None, version: str, stopped: trio.Event) -> None:
        self._door = door
        self._certificates = certificates
        self._version = version
        self._stopped = stopped
        self._served: set[Serving] = set()

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one connection to its end."""
        with suppress(OSError):
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                stream.setsockopt(socket.IPPROTO_TCP, option, value)
        peer = _peer(stream)
        if self._certificates is None:
            await self._serve(Serving(self._door, stream, peer, self._version))
            return
        tls = await shake_hands(stream, self._certificates.context, self._stopped.wait)
        if tls is not None:
            await self._serve(Serving(self._door, tls, peer, self._version))

    async def _serve(self, serving: Serving) -> None:
        self._served.add(serving)
        try:
            if not self._stopped.is_set():
                await serving.run()
        finally:
            self._served.discard(serving)

    def stop(self) -> None:
        """Tell all of them to go."""
        for serving in self._served:
            serving.stop()


def _peer(stream: trio.SocketStream) -> str:
    try:
        name = stream.socket.getpeername()
    except OSError:
        return "(gone)"
    return f"{name[0]} port {name[1]}"
