"""A wire to a server that is cut after so many messages, of the client's or of the server's, and mended later."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

_AT_ONCE: Final = 65_536
_STARTUP: Final = 196608
"""The version in the message that begins a session; what comes before asks for encryption."""


class Cut(Exception):
    """Here the wire ends."""


class Wire:
    """Passes messages of PostgreSQL's protocol, and counts them once a session has begun.

    Attributes:
        port: where the client connects, on 127.0.0.1.
        asks: so many more messages of the client's pass before the wire is cut; None for all.
        is_down: no connection gets through.

    Args:
        server_port: of the server, on 127.0.0.1.
    """

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self.port = 0
        self.asks: int | None = None
        self.answers: int | None = None
        self.is_down = False
        self.stays_cut = False
        self.cuts = 0

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until it is cancelled."""
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listener.socket.getsockname()[1]
        task_status.started()
        await trio.serve_listeners(self._pass, [listener])

    async def _pass(self, client: trio.SocketStream) -> None:
        if self.is_down:
            await trio.aclose_forcefully(client)
            return
        async with client, await trio.open_tcp_stream("127.0.0.1", self._server_port) as server:
            try:
                await _begin(client, server)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._pass_asks, client, server)
                    await self._pass_answers(server, client)
                    nursery.cancel_scope.cancel()
            except* (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # one of the two has hung up
            except* Cut:
                self.asks = self.answers = None
                self.cuts += 1
                self.is_down = self.stays_cut

    async def _pass_asks(self, client: trio.SocketStream, server: trio.SocketStream) -> None:
        while message := await _message(client):
            if self.asks is not None:
                if self.asks == 0:
                    raise Cut
                self.asks -= 1
            await server.send_all(message)
        await server.aclose()

    async def _pass_answers(self, server: trio.SocketStream, client: trio.SocketStream) -> None:
        while message := await _message(server):
            if self.answers is not None:
                if self.answers == 0:
                    raise Cut
                self.answers -= 1
            await client.send_all(message)


@asynccontextmanager
async def wire_to(server_port: int) -> AsyncIterator[Wire]:
    """A :class:`Wire` for the length of the block."""
    wire = Wire(server_port)
    async with trio.open_nursery() as nursery:
        await nursery.start(wire.serve)
        yield wire
        nursery.cancel_scope.cancel()


async def _begin(client: trio.SocketStream, server: trio.SocketStream) -> None:
    while True:
        head = await _exactly(client, 8)
        if not head:
            return
        length, code = struct.unpack("!II", head)
        if code == _STARTUP:
            await server.send_all(head + await _exactly(client, length - 8))
            return
        await client.send_all(b"N")  # no encryption here


async def _message(source: trio.SocketStream) -> bytes:
    head = await _exactly(source, 5)
    return head and head + await _exactly(source, struct.unpack("!I", head[1:])[0] - 4)


async def _exactly(source: trio.SocketStream, size: int) -> bytes:
    """So many bytes; fewer, or none, where the stream has ended."""
    data = bytearray()
    while len(data) < size:
        more = await source.receive_some(min(_AT_ONCE, size - len(data)))
        if not more:
            return b""
        data += more
    return bytes(data)
