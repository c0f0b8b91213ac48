"""So many connections to a server, each with one operation under way at a time."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import trio

from benchmarks.load.codec import Codec, ServerError, Steps

PATIENCE_SECONDS: Final = 60.0
_CHUNK: Final = 1 << 18

Operation = Callable[[Any], Steps]
"""From a codec to what it shall do."""


class Timed(NamedTuple):
    """What a phase came to.

    Attributes:
        seconds: from the first start to the last end.
        latencies: seconds that each took, in ascending order.
        driver_seconds: processor time of this process meanwhile.
    """

    operations: int
    seconds: float
    latencies: Sequence[float]
    driver_seconds: float

    @property
    def rate(self) -> float:
        """Operations a second."""
        return self.operations / self.seconds

    def percentile(self, share: float) -> float:
        """The latency in seconds that this share of all operations did not exceed."""
        return self.latencies[max(0, math.ceil(share * len(self.latencies)) - 1)]


class Connection:
    """One connection and its codec.

    Args:
        stream: connected, and not blocking.
    """

    def __init__(self, stream: socket.socket, codec: Codec) -> None:
        self._stream = stream
        self.codec = codec
        self._received = b""

    async def do(self, steps: Steps) -> None:
        """Go through an operation."""
        try:
            request = next(steps)
            while True:
                if request:
                    await self._send(request)
                request = steps.send(await self._next_answer())
        except StopIteration:
            return

    def close(self) -> None:
        """Say the last words and end the connection."""
        with self._stream:
            self._stream.setblocking(True)
            self._stream.sendall(self.codec.last_words())

    async def _send(self, request: bytes) -> None:
        try:
            sent = self._stream.send(request)
        except BlockingIOError:
            sent = 0
        while sent < len(request):
            await trio.lowlevel.wait_writable(self._stream)
            sent += self._stream.send(memoryview(request)[sent:])

    async def _next_answer(self) -> Any:
        while True:
            if self._received:
                found = self.codec.parse(self._received)
                if found is not None:
                    answer, length = found
                    self._received = self._received[length:]
                    return answer
            await trio.lowlevel.wait_readable(self._stream)
            data = self._stream.recv(_CHUNK)
            if not data:
                raise ServerError("the server has ended the connection")
            self._received += data


class Session:
    """All connections."""

    def __init__(self, connections: Sequence[Connection]) -> None:
        self._connections = connections

    async def each(self, operation: Operation) -> None:
        """Every connection does it once."""
        with trio.fail_after(PATIENCE_SECONDS):
            async with trio.open_nursery() as nursery:
                for connection in self._connections:
                    nursery.start_soon(connection.do, operation(connection.codec))

    async def first(self, operation: Operation) -> None:
        """One connection does it once."""
        await Session(self._connections[:1]).each(operation)

    async def run(
        self,
        operation: Operation,
        seconds: float,
        *,
        least: int = 0,
        most: int | None = None,
    ) -> Timed:
        """All connections do it again and again.

        Args:
            seconds: when to begin no more.
            least: begin so many all the same.
            most: never begin more.
        """
        latencies: list[float] = []
        clock = time.perf_counter
        begun = 0

        async def work(connection: Connection) -> None:
            nonlocal begun
            codec, do = connection.codec, connection.do
            before = clock()
            while begun != most and (before < end or begun < least):
                begun += 1
                await do(operation(codec))
                now = clock()
                latencies.append(now - before)
                before = now

        driver = time.process_time()
        start = clock()
        end = start + seconds
        with trio.fail_after(seconds + PATIENCE_SECONDS):
            async with trio.open_nursery() as nursery:
                for connection in self._connections:
                    nursery.start_soon(work, connection)
        took = clock() - start
        return Timed(len(latencies), took, sorted(latencies), time.process_time() - driver)


@asynccontextmanager
async def open_session(
    make: Callable[[], Codec], ports: Sequence[int], clients: int, *, creates: bool = True
) -> AsyncIterator[Session]:
    """Connections for the length of the block.

    Args:
        ports: of the servers on 127.0.0.1, which share the connections.
    """
    connections: list[Connection] = []
    try:
        for number in range(clients):
            stream = socket.create_connection(("127.0.0.1", ports[number % len(ports)]), timeout=PATIENCE_SECONDS)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream.setblocking(False)
            connections.append(Connection(stream, make()))
        session = Session(connections)
        await session.each(lambda codec: codec.open())
        if creates:
            await session.first(lambda codec: codec.create())
        yield session
    finally:
        for connection in connections:
            connection.close()


async def delete_queue(make: Callable[[], Codec], port: int) -> None:
    """Take the queue away over a connection of its own."""
    async with open_session(make, [port], 1, creates=False) as session:
        await session.first(lambda codec: codec.delete())
