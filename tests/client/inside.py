"""The daemon's endpoints over a store in memory, in a thread of their own: real answers, without a process or a port.

Clients reach it by an httpx transport instead of a socket.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import anyio.to_thread
import httpx
import trio

from mq.broker import Broker, BrokerConfig, open_broker
from mq.doors.open_connections import OpenConnections
from mq.observers.metrics import Metrics
from mq.web.endpoints import Endpoints
from mq.web.exchange import Reply, Request

MAX_BODY: Final = 1 << 20


class Inside(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """A transport into the daemon. Any thread may use it, and any event loop but its own."""

    def __init__(self, token: trio.lowlevel.TrioToken, broker: Broker, metrics: Metrics) -> None:
        self.broken = False
        """While True nobody takes a connection."""
        self._token = token
        self.connections = OpenConnections()
        self._endpoints = Endpoints(broker, MAX_BODY, metrics, connections=self.connections)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self.broken:
            raise httpx.ConnectError("refused")
        return trio.from_thread.run(self._answer, request, request.read(), trio_token=self._token)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.broken:
            raise httpx.ConnectError("refused")
        body = await request.aread()
        there = partial(trio.from_thread.run, self._answer, request, body, trio_token=self._token)
        return await anyio.to_thread.run_sync(there)

    async def _answer(self, request: httpx.Request, body: bytes) -> httpx.Response:
        path, _, query = request.url.raw_path.partition(b"?")
        headers = {name.decode().lower(): value.decode("latin-1") for name, value in request.headers.raw}
        length = headers.get("content-length")
        reply = await self._endpoints.handle(
            Request(request.method, path, query, headers, _chunks(body), None if length is None else int(length))
        )
        return httpx.Response(
            reply.status,
            headers=[(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers],
            stream=httpx.ByteStream(await _all(reply)),  # so that it can be streamed, too
        )


@contextmanager
def running(store: str = "memory:", **config: float) -> Iterator[Inside]:
    """A daemon for the length of the block."""
    begun: list[Inside] = []
    ready, stop = threading.Event(), []

    async def serve() -> None:
        metrics = Metrics()
        async with open_broker(store, BrokerConfig(max_body=MAX_BODY, **config), observers=[metrics]) as broker:
            token, ended = trio.lowlevel.current_trio_token(), trio.Event()
            begun.append(Inside(token, broker, metrics))
            stop.append(partial(token.run_sync_soon, ended.set))
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=trio.run, args=(serve,), daemon=True)
    thread.start()
    assert ready.wait(20), "it did not start"
    try:
        yield begun[0]
    finally:
        stop[0]()
        thread.join(20)


async def _chunks(body: bytes) -> AsyncIterator[bytes]:
    if body:
        yield body


async def _all(reply: Reply) -> bytes:
    if isinstance(reply.body, bytes):
        return reply.body
    try:
        return b"".join([piece async for piece in reply.body])
    finally:
        await reply.body.aclose()
