"""Requests over HTTP/2: each has memory before it is begun, and ends with its stream and its connection."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator

import pytest
import trio
from hpack import Decoder, Encoder
from hyperframe.frame import DataFrame, Frame, HeadersFrame, RstStreamFrame, SettingsFrame, WindowUpdateFrame

from mq.broker import Broker, Draft
from mq.doors.budget import Budget, Use
from mq.errors import NoMemory
from mq.web.app import PIECE_BYTES
from mq.web.endpoints import Endpoints
from mq.web.http2_requests import BUFFER_HIGH_WATER, HEADER_TABLE_BYTES, REQUEST_BYTES, PausingBuffer
from tests.web.talking import MAX_BODY, Server, start_server

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SettingsFrame(0).serialize()
SHUT = SettingsFrame(0, settings={SettingsFrame.INITIAL_WINDOW_SIZE: 0})
OPEN = SettingsFrame(0, settings={SettingsFrame.INITIAL_WINDOW_SIZE: 1 << 20})


@pytest.fixture
def budget() -> Budget:
    return Budget(64 << 20)


@pytest.fixture
async def server(broker: Broker, budget: Budget, nursery: trio.Nursery) -> AsyncIterator[Server]:
    await broker.create_queue("q")
    served = await start_server(nursery, Endpoints(broker, MAX_BODY, budget=budget), budget=budget)
    yield served
    served.stop.set()


class Client:
    """A client that writes the frames it is given, and reads frame by frame."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._encoder = Encoder()
        self._decoder = Decoder()
        self._decoder.max_allowed_table_size = 1 << 30
        self._headers: dict[int, dict[str, str]] = {}
        self._received = b""

    @property
    def header_table_size(self) -> int:
        """The size of the table that the server says it uses."""
        size: int = self._decoder.header_table_size
        return size

    async def send(self, *frames: Frame) -> None:
        await self.stream.send_all(b"".join(frame.serialize() for frame in frames))

    def ask(self, stream: int, path: str, method: str = "GET") -> HeadersFrame:
        fields = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "localhost")]
        return HeadersFrame(stream, self._encoder.encode(fields), flags=["END_HEADERS", "END_STREAM"])

    async def frame(self) -> Frame:
        while True:
            if len(self._received) >= 9:
                frame, size = Frame.parse_frame_header(memoryview(self._received[:9]))
                if len(self._received) >= 9 + size:
                    frame.parse_body(memoryview(self._received[9 : 9 + size]))
                    self._received = self._received[9 + size :]
                    if isinstance(frame, HeadersFrame):  # each of them changes the table of headers
                        found = self._decoder.decode(frame.data)
                        self._headers[frame.stream_id] = {str(name): str(value) for name, value in found}
                    return frame
            data = await self.stream.receive_some()
            assert data, "the connection has ended"
            self._received += data

    async def answer(self, stream: int) -> tuple[dict[str, str], bytes]:
        """The headers and the body of an answer."""
        body = b""
        with trio.fail_after(20):
            while True:
                frame = await self.frame()
                if isinstance(frame, DataFrame) and frame.stream_id == stream:
                    body += frame.data
                if frame.stream_id == stream and "END_STREAM" in frame.flags:
                    return self._headers[stream], body


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with await server.connect() as stream:
        await stream.send_all(PREFACE)
        yield Client(stream)


async def until_free(budget: Budget, free: int | None = None) -> None:
    """Wait until so much is free; with None until nothing is reserved."""
    with trio.fail_after(60):
        while budget.free != (budget.most if free is None else free):
            await trio.sleep(0.01)  # the sockets are real, and so is the time


async def test_answers_that_are_not_read_take_what_was_reserved_for_them(client: Client, budget: Budget) -> None:
    await client.send(SHUT, *(client.ask(number, "/-/openapi.json") for number in range(1, 201, 2)))
    for _ in range(100):
        while not isinstance(await client.frame(), HeadersFrame):
            pass
    taken = budget.used
    assert 100 * REQUEST_BYTES <= taken < 100 * REQUEST_BYTES * 1.1
    await client.stream.aclose()
    await until_free(budget)


async def test_a_long_answer_stays_where_it_is_while_the_window_is_shut(
    client: Client, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte that the client lets in makes room for a byte, and not for all that is left."""
    largest = 0
    push = PausingBuffer.push

    async def look(self: PausingBuffer, data: bytes) -> None:
        nonlocal largest
        largest = max(largest, len(self.buffer) + len(data))
        await push(self, data)

    monkeypatch.setattr(PausingBuffer, "push", look)
    await broker.publish_many("q", [Draft(b"x" * 100_000)] * 20)
    await client.send(SHUT, client.ask(1, "/q/peek"))
    for _ in range(100):
        await client.send(WindowUpdateFrame(1, window_increment=1))
    sent = 0
    with trio.fail_after(10):
        while sent < 100:
            frame = await client.frame()
            sent += len(frame.data) if isinstance(frame, DataFrame) else 0
    assert largest <= BUFFER_HIGH_WATER + PIECE_BYTES


@pytest.mark.slow
async def test_all_requests_end_when_one_of_them_finds_the_connection_broken(server: Server, budget: Budget) -> None:
    """It closes the others' streams and its own, and is cancelled meanwhile."""
    for _ in range(20):
        async with await server.connect() as stream:
            client = Client(stream)
            await stream.send_all(PREFACE)
            await client.send(SHUT, *(client.ask(number, "/-/openapi.json") for number in range(1, 161, 2)))
            assert isinstance(await client.frame(), SettingsFrame)
            while not isinstance(await client.frame(), HeadersFrame):
                pass  # the first answers are being sent
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it vanishes
    await until_free(budget)


async def test_a_request_that_is_reset_ends(client: Client, budget: Budget, broker: Broker) -> None:
    """Its answer waits for a window that never opens."""
    await broker.publish_many("q", [Draft(b"x" * 100_000)] * 20)
    await client.send(SHUT, client.ask(1, "/q/peek"), client.ask(3, "/-/openapi.json"))
    for _ in range(2):
        while not isinstance(await client.frame(), HeadersFrame):
            pass
    assert budget.used > 2 * REQUEST_BYTES + 1_000_000
    await client.send(RstStreamFrame(1), RstStreamFrame(3))
    await until_free(budget)
    await client.send(OPEN, client.ask(5, "/-/live"))  # the connection goes on
    assert (await client.answer(5))[0][":status"] == "200"


@pytest.mark.parametrize("ends", ["reset", "connection"])
async def test_an_answer_that_is_being_made_is_not_made_any_more(
    client: Client, budget: Budget, broker: Broker, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    begun, ended = trio.Event(), trio.Event()

    async def queues() -> list[object]:
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.set()
        return []

    monkeypatch.setattr(broker, "queues", queues)
    await client.send(client.ask(1, "/-/queues"))
    with trio.fail_after(10):
        await begun.wait()
    if ends == "reset":
        await client.send(RstStreamFrame(1))
    else:
        await client.stream.aclose()
    with trio.fail_after(10):
        await ended.wait()
    await until_free(budget)


async def test_a_change_is_carried_out_although_its_connection_has_ended(
    client: Client, budget: Budget, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end, ended = trio.Event(), trio.Event(), trio.Event()

    async def purge(queue: str) -> int:
        begun.set()
        await may_end.wait()
        ended.set()
        return 0

    monkeypatch.setattr(broker, "purge", purge)
    await client.send(client.ask(1, "/q/purge", "POST"))
    with trio.fail_after(10):
        await begun.wait()
    await client.stream.aclose()
    await trio.testing.wait_all_tasks_blocked(0.1)
    may_end.set()
    with trio.fail_after(10):
        await ended.wait()
    await until_free(budget)


async def test_a_request_without_memory_is_refused_with_503(client: Client, budget: Budget) -> None:
    with budget.reserve(budget.most - REQUEST_BYTES // 2):
        await client.send(client.ask(1, "/-/live"))
        headers, body = await client.answer(1)
        assert (headers[":status"], headers["retry-after"]) == ("503", "10")
        assert b"memory" in body
        await client.send(SHUT, client.ask(3, "/-/live"))
        assert (await client.answer(3))[0][":status"] == "503"
    await client.send(OPEN, client.ask(5, "/-/live"))
    assert (await client.answer(5))[0][":status"] == "200"
    assert budget.refused == {Use.REQUEST: 2}
    await until_free(budget)


async def test_a_stream_that_is_read_slowly_is_reset_when_others_want_its_memory(
    client: Client, budget: Budget, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mq.doors.budget.PATIENCE_SECONDS", 0)
    await broker.publish_many("q", [Draft(b"x" * 100_000)] * 20)
    await client.send(SHUT, client.ask(1, "/q/peek"))
    while not isinstance(await client.frame(), HeadersFrame):
        pass
    other = budget.client("another")
    with trio.fail_after(10):
        while budget.used >= 1_000_000:
            with pytest.raises(NoMemory):
                other.reserve(Use.ANSWER, 48 << 20)
            await trio.sleep(0.01)  # the sockets are real, and so is the time
        while not isinstance(frame := await client.frame(), RstStreamFrame):
            pass
    assert frame.stream_id == 1
    await until_free(budget)
    await client.send(OPEN, client.ask(3, "/-/live"))
    assert (await client.answer(3))[0][":status"] == "200"


async def test_a_client_cannot_make_the_table_of_headers_larger(client: Client) -> None:
    await client.send(SettingsFrame(0, settings={SettingsFrame.HEADER_TABLE_SIZE: 1 << 30}), client.ask(1, "/-/live"))
    assert (await client.answer(1))[0][":status"] == "200"
    assert client.header_table_size == HEADER_TABLE_BYTES


async def test_a_large_answer_is_whole(client: Client, budget: Budget, broker: Broker) -> None:
    await broker.publish_many("q", [Draft(b"x" * 100_000)] * 5)
    await client.send(OPEN, WindowUpdateFrame(0, window_increment=1 << 20), client.ask(1, "/q/peek"))
    headers, body = await client.answer(1)
    assert (headers[":status"], body.count(b"x" * 100_000)) == ("200", 5)
    await until_free(budget)
