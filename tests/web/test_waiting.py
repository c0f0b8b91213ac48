"""Fetches that wait, over real sockets: who is served, and that nobody who goes away takes a message along."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, ResponseReceived, StreamEnded
from trio.testing import MockClock

from mq.broker import Broker
from mq.web.endpoints import Endpoints
from mq.web.serve import SILENT_SECONDS
from tests.broker.inside import wiring_of
from tests.e2e.daemon import Daemon
from tests.web.talking import Server, http1, parse, read_all, start_server

WAIT = http1("GET", "/q/messages?wait=60")
TAKE = http1("POST", "/q/take?wait=60", b"")
RESET = struct.pack("ii", 1, 0)


@pytest.fixture
async def server(endpoints: Endpoints, nursery: trio.Nursery, fast_lane: bool) -> Server:
    return await start_server(nursery, endpoints, fast_lane=fast_lane)


def waiting(broker: Broker) -> int:
    """How many stand in line."""
    return sum(len(line.requests) for line in wiring_of(broker).waiters.queues.values())


async def until(condition: Callable[[], bool]) -> None:
    """Nothing tells when other tasks have gone on. No time passes meanwhile on a clock that jumps."""
    while not condition():
        await trio.lowlevel.checkpoint()


async def answer(stream: trio.SocketStream) -> tuple[int, dict[str, str], bytes]:
    """One whole response, and nothing behind it."""
    received = b""
    with trio.fail_after(10):
        while True:
            received += await stream.receive_some()
            head, _, body = received.partition(b"\r\n\r\n")
            length = re.search(rb"^content-length: (\d+)", head, re.MULTILINE | re.IGNORECASE)
            if b"\r\n\r\n" in received and len(body) == (int(length[1]) if length else 0):
                return parse(received)


def reset(stream: trio.SocketStream) -> None:
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    stream.socket.close()


def end(stream: trio.SocketStream) -> None:
    stream.socket.close()


async def half_close(stream: trio.SocketStream) -> None:
    await stream.send_eof()


async def is_there_and_unread(broker: Broker) -> None:
    """The message is ready, and has never been handed out."""
    message = await broker.fetch("q", wait=10)
    assert message is not None
    assert message.receives == 1


@pytest.mark.parametrize("asking", [WAIT, TAKE], ids=["fetch", "take"])
async def test_who_waits_gets_the_message_that_comes(server: Server, broker: Broker, queue: str, asking: bytes) -> None:
    async with await server.connect() as stream:
        await stream.send_all(asking)
        await until(lambda: waiting(broker) == 1)
        id = await broker.publish(queue, b"hello")
        status, headers, body = await answer(stream)
    assert (status, headers["x-message-id"], body) == (200, id, b"hello")
    assert ("etag" in headers) == (asking == WAIT)


@pytest.mark.parametrize("leave", [reset, end, half_close])
@pytest.mark.parametrize("asking", [WAIT, TAKE], ids=["fetch", "take"])
async def test_who_hangs_up_while_it_waits_takes_no_message(
    server: Server, broker: Broker, queue: str, asking: bytes, leave: Callable[[trio.SocketStream], object]
) -> None:
    stream = await server.connect()
    await stream.send_all(asking)
    await until(lambda: waiting(broker) == 1)
    left = leave(stream)
    if left is not None:
        await left  # type: ignore[misc]
    await until(lambda: waiting(broker) == 0)
    await broker.publish(queue, b"hello")
    await is_there_and_unread(broker)
    await stream.aclose()


@pytest.mark.slow
@pytest.mark.parametrize("leave", [reset, end])
async def test_who_hangs_up_just_as_the_message_comes_does_not_keep_it(
    quick_clock: MockClock, server: Server, broker: Broker, queue: str, leave: Callable[[trio.SocketStream], None]
) -> None:
    """In whatever step that is: it comes at once or, when its answer was sent already, after its lease."""
    for steps in range(25):
        stream = await server.connect()
        await stream.send_all(http1("GET", "/q/messages?wait=60&visibility=5"))
        await until(lambda: waiting(broker) == 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.publish, queue, b"%d" % steps)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            leave(stream)
        message = await broker.fetch(queue, wait=10)
        assert message is not None
        assert await message.body.read() == b"%d" % steps
        await broker.remove(queue, message.id)


async def test_a_wait_ends_when_it_said(quick_clock: MockClock, server: Server, queue: str) -> None:
    status, headers, body = parse(await server.exchange(http1("GET", "/q/messages?wait=20", None, "Connection: close")))
    assert (status, body, headers["cache-control"]) == (204, b"", "no-store")
    assert 20 <= trio.current_time() < 30


async def test_a_wait_may_be_longer_than_any_silence(
    quick_clock: MockClock, server: Server, broker: Broker, queue: str
) -> None:
    async with await server.connect() as stream:
        await stream.send_all(http1("GET", f"/q/messages?wait={5 * SILENT_SECONDS}"))
        await until(lambda: waiting(broker) == 1)
        await trio.sleep(4 * SILENT_SECONDS)
        await broker.publish(queue, b"late")
        assert (await answer(stream))[2] == b"late"


async def test_a_request_behind_one_that_waits_is_answered_after_it(server: Server, broker: Broker, queue: str) -> None:
    async with await server.connect() as stream:
        await stream.send_all(WAIT + http1("GET", "/-/live", None, "Connection: close"))
        await until(lambda: waiting(broker) == 1)
        await broker.publish(queue, b"first")
        with trio.fail_after(10):
            received = await read_all(stream)
    first, _, second = received.rpartition(b"HTTP/1.1 ")
    assert parse(first)[2] == b"first"
    assert second.startswith(b"200")


@pytest.mark.in_turn(2)
@pytest.mark.slow
async def test_a_thousand_who_wait_are_served_in_order(server: Server, broker: Broker, queue: str) -> None:
    streams = []
    for number in range(1000):
        stream = await server.connect()
        streams.append(stream)
        await stream.send_all(WAIT)
        await until(lambda number=number: waiting(broker) == number + 1)
    for number in range(1000):
        await broker.publish(queue, b"%d" % number)
    for number, stream in enumerate(streams):
        with trio.fail_after(10):
            assert (await answer(stream))[2] == b"%d" % number
        await stream.aclose()


async def test_fetch_that_waits_is_one_entry_of_the_wait_queue_and_no_task(
    nursery: trio.Nursery, endpoints: Endpoints, broker: Broker, queue: str
) -> None:
    server = await start_server(nursery, endpoints)
    streams = [await server.connect() for _ in range(20)]
    for stream in streams:
        await stream.send_all(http1("GET", "/q/messages"))
        assert (await answer(stream))[0] == 204
    tasks = trio.lowlevel.current_statistics().tasks_living
    for stream in streams:
        await stream.send_all(WAIT)
    await until(lambda: waiting(broker) == len(streams))
    assert trio.lowlevel.current_statistics().tasks_living == tasks
    for stream in streams:
        await stream.aclose()
    await until(lambda: waiting(broker) == 0)


async def test_many_messages_for_one_who_waits_for_many(server: Server, broker: Broker, queue: str) -> None:
    async with await server.connect() as stream:
        await stream.send_all(http1("GET", "/q/messages?wait=60&max=10"))
        await until(lambda: waiting(broker) == 1)
        await broker.publish(queue, b"one")
        with trio.fail_after(10):
            _, headers, body = await answer(stream)
    assert headers["content-type"] == "application/x-ndjson"
    assert body.count(b"\n") == 1  # what is there, not what might still come


async def test_the_end_of_the_queue_ends_the_wait(server: Server, broker: Broker, queue: str) -> None:
    async with await server.connect() as stream:
        await stream.send_all(WAIT)
        await until(lambda: waiting(broker) == 1)
        await broker.delete_queue(queue)
        with trio.fail_after(10):
            assert (await answer(stream))[0] == 404


# HTTP/2


class Http2:
    """A client with streams of its own."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._connection = H2Connection(H2Configuration(client_side=True))

    async def begin(self) -> None:
        self._connection.initiate_connection()
        await self._flush()

    async def get(self, number: int, path: str) -> None:
        fields = [(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", "mq")]
        self._connection.send_headers(number, fields, end_stream=True)
        await self._flush()

    async def reset(self, number: int) -> None:
        self._connection.reset_stream(number)
        await self._flush()

    async def answer(self, number: int) -> tuple[bytes, bytes]:
        """Status and body of one stream."""
        status, body = b"", b""
        while True:
            for event in await self._events():
                if getattr(event, "stream_id", None) != number:
                    continue
                if isinstance(event, ResponseReceived):
                    status = dict(event.headers)[b":status"]
                elif isinstance(event, DataReceived):
                    body += event.data
                elif isinstance(event, StreamEnded):
                    return status, body

    async def _events(self) -> list[Event]:
        with trio.fail_after(10):
            return self._connection.receive_data(bytes(await self._stream.receive_some()))

    async def _flush(self) -> None:
        await self._stream.send_all(self._connection.data_to_send())


async def test_a_stream_that_is_reset_while_it_waits_takes_no_message(
    server: Server, broker: Broker, queue: str
) -> None:
    async with await server.connect() as stream:
        client = Http2(stream)
        await client.begin()
        await client.get(1, "/q/messages?wait=60")
        await client.get(3, "/q/messages?wait=60")
        await until(lambda: waiting(broker) == 2)
        await client.reset(1)
        await until(lambda: waiting(broker) == 1)
        await broker.publish(queue, b"for the other")
        assert await client.answer(3) == (b"200", b"for the other")


async def test_a_connection_of_streams_that_breaks_takes_no_message(server: Server, broker: Broker, queue: str) -> None:
    stream = await server.connect()
    client = Http2(stream)
    await client.begin()
    for number in range(1, 20, 2):
        await client.get(number, "/q/messages?wait=60")
    await until(lambda: waiting(broker) == 10)
    reset(stream)
    await until(lambda: waiting(broker) == 0)
    await broker.publish(queue, b"hello")
    await is_there_and_unread(broker)


async def test_other_streams_go_on_while_one_waits(server: Server, broker: Broker, queue: str) -> None:
    async with await server.connect() as stream:
        client = Http2(stream)
        await client.begin()
        await client.get(1, "/q/messages?wait=60")
        await until(lambda: waiting(broker) == 1)
        await client.get(3, "/-/live")
        assert (await client.answer(3))[0] == b"200"
        await broker.publish(queue, b"late")
        assert await client.answer(1) == (b"200", b"late")


# The daemon


@pytest.mark.slow
async def test_a_stop_lets_those_go_who_wait(temp_root: Path, tmp_path: Path) -> None:
    """They get 204 and the end of their connection, and the daemon has not waited for its grace to end."""
    with Daemon(temp_root, tmp_path / "log") as daemon:
        ask = await trio.open_tcp_stream("127.0.0.1", daemon.port)
        await ask.send_all(http1("PUT", "/q"))
        assert (await answer(ask))[0] == 201
        await ask.aclose()
        streams = []
        for _ in range(50):
            stream = await trio.open_tcp_stream("127.0.0.1", daemon.port)
            await stream.send_all(WAIT)
            streams.append(stream)
        await trio.sleep(1)  # as above
        started = trio.current_time()
        await trio.to_thread.run_sync(daemon.stop)
        assert trio.current_time() - started < 8
        for stream in streams:
            with trio.fail_after(10):
                assert parse(await read_all(stream))[0] == 204
            await stream.aclose()
    assert "Traceback" not in (tmp_path / "log").read_text()
