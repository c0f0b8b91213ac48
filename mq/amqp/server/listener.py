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
from mq.amqp.server.served_connection import ServedConnection
from mq.amqp.server.state import AmqpState
from mq.doors.connections import Crowd, Peer, peer_of
from mq.doors.listeners import PortTaken, listen, shake_hands, url
from mq.doors.standby import Doorway

logger = logging.getLogger("mq.amqp")

GRACE_SECONDS: Final = 10
"""How long connections may run on after a stop while nothing is stored."""
LONGEST_STOP_SECONDS: Final = 45
"""How long they may run on in all. With the time to let go of the store it is less than service managers wait before
they kill a daemon, which could not log any more what is lost."""
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))
"""For clients without heartbeats: the kernel finds out that one has vanished."""
_PORT_HINT: Final = "--amqp-port, or serve HTTP alone with --amqp-port=0"
"""What a user can do when another program, such as RabbitMQ, has the port."""


async def serve(
    state: AmqpState,
    address: str,
    port: int,
    *,
    stop: Callable[[], Awaitable[None]],
    version: str,
    certificates: Certificates | None = None,
    crowd: Crowd | None = None,
    shares_port: bool = False,
    needs_port: bool = True,
    doorway: Doorway | None = None,
    grace_seconds: float = GRACE_SECONDS,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve AMQP 0-9-1 until `stop` returns. Then accept no connection, and tell those that are there to go.

    Started with the URLs it listens on; none where it does without a port.

    Args:
        address: IP address or host name.
        port: 0 takes a free one.
        stop: returns when it is time to stop.
        crowd: says which address has too many connections; None counts those of this server alone.
        needs_port: if not, and another program has the port, no client can connect, but all else goes on: dead letters
            still find their exchange, and queues expire.
        doorway: where connections come, in place of the address and the port. None listens there.
        grace_seconds: connections are cut off that long after the stop, or after the store has last taken up some of
            what was published before, but no later than :data:`LONGEST_STOP_SECONDS` after the stop.
        task_status: of :meth:`trio.Nursery.start`.

    Raises:
        CannotListen: the address or the port is not to be had.
        StorageUnusable: what was declared cannot be read.
    """
    if doorway is None:
        doorway = await open_doorway(address, port, shares_port=shares_port, needs_port=needs_port)
    await state.load()
    stopped = trio.Event()
    connections = _ServedConnections(state, certificates, crowd or Crowd(), version, stopped)
    async with trio.open_nursery() as behind:
        behind.start_soon(state.run)
        async with trio.open_nursery() as running:
            async with trio.open_nursery() as accepting:
                accepting.start_soon(
                    partial(trio.serve_listeners, connections.serve, doorway.serving(), handler_nursery=running)
                )
                scheme = "amqps" if certificates else "amqp"
                task_status.started([url(scheme, listener) for listener in doorway.listeners])
                await stop()
                accepting.cancel_scope.cancel()
            stopped.set()
            connections.stop()
            behind.start_soon(_cut_off, running.cancel_scope, state, grace_seconds)
        behind.cancel_scope.cancel()


async def open_doorway(address: str, port: int, *, shares_port: bool = False, needs_port: bool = True) -> Doorway:
    """Where connections come, as :func:`serve` says of these arguments.

    Raises:
        CannotListen: the address or the port is not to be had.
    """
    try:
        return Doorway("amqp", await listen(address, port, _PORT_HINT, shares_port=shares_port))
    except PortTaken:
        if needs_port:
            raise
        return Doorway("amqp", [])


async def _cut_off(scope: trio.CancelScope, state: AmqpState, seconds: float) -> None:
    last = trio.current_time() + LONGEST_STOP_SECONDS
    while True:
        scope.deadline = min(last, trio.current_time() + seconds)
        await state.backlog.wait_for_change()


class _ServedConnections:
    """Serves connections, each on its own."""

    def __init__(
        self, state: AmqpState, certificates: Certificates | None, crowd: Crowd, version: str, stopped: trio.Event
    ) -> None:
        self._state = state
        self._crowd = crowd
        self._certificates = certificates
        self._version = version
        self._stopped = stopped
        self._served: set[ServedConnection] = set()

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one connection to its end."""
        peer = peer_of(stream.socket)
        with self._crowd.room(peer.address, stream.socket.fileno()) as has_room:
            if has_room:
                await self._serve_peer(peer, stream)

    async def _serve_peer(self, peer: Peer, stream: trio.SocketStream) -> None:
        with suppress(OSError):
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                stream.setsockopt(socket.IPPROTO_TCP, option, value)
        if self._certificates is None:
            await self._serve(ServedConnection(self._state, stream, peer, self._version))
            return
        tls = await shake_hands(stream, self._certificates.context, self._stopped.wait)
        if tls is not None:
            await self._serve(ServedConnection(self._state, tls, peer, self._version))

    async def _serve(self, serving: ServedConnection) -> None:
        self._served.add(serving)
        try:
            if not self._stopped.is_set():
                await serving.run()
        finally:
            self._served.discard(serving)

    def stop(self) -> None:
        """Tell all of them to go."""
        for serving in self._served:
            serving.close("mq stops")
