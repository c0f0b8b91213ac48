"""HTTP/2 with prior knowledge: by a client that keeps to it, and in frames that do not."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import httpx
import pytest
import trio
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
)
from trio.testing import MockClock

from mq.broker import Broker
from mq.doors.readers import CONNECTION as CONNECTION_UNITS
from mq.doors.readers import SHARE
from mq.storage.memory import MemoryStorage
from mq.web.exchange import Handler, Reply, Request, empty
from mq.web.http_connection import CONNECTION
from mq.web.hypercorn_server import (
    CONTROL_FRAMES,
    HEADER_BLOCK_FRAMES,
    RUNNING,
    SPARE_RESETS,
    STREAMS,
    STREAMS_BEFORE_LOGIN,
)
from mq.web.request_body import IN_MEMORY_BYTES
from mq.web.serve import HEAD_SECONDS, KEEP_ALIVE_SECONDS
from tests.cases import for_each
from tests.web.talking import BAD_NAMES, MAX_BODY, Server, checked_detail, contents, http1, parse, start_server

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SettingsFrame(0).serialize()

MOST_BEGUN = SHARE // CONNECTION_UNITS + 1
"""Connections that may begin to speak HTTP/2 in one pass of the event loop: a turn may go beyond its share."""


@pytest.fixture
async def client(server: Server, broker: Broker) -> AsyncIterator[httpx.AsyncClient]:
    await broker.create_queue("q")
    async with httpx.AsyncClient(base_url=server.url, http1=False, http2=True) as client:
        yield client


async def test_all_endpoints(client: httpx.AsyncClient) -> None:
    assert (await client.put("/r")).status_code == 201
    assert (await client.get("/r")).json()["name"] == "r"
    posted = await client.post("/r/messages", content=b"hello", headers={"content-type": "a/b"})
    assert (posted.status_code, posted.http_version) == (201, "HTTP/2")
    fetched = await client.get("/r/messages")
    assert (fetched.status_code, fetched.content, fetched.headers["content-type"]) == (200, b"hello", "a/b")
    assert (await client.get("/r/messages")).status_code == 204
    assert (await client.delete(f"/r/messages/{posted.headers['x-message-id']}")).status_code == 202
    assert (await client.post("/r")).headers["allow"] == "GET, HEAD, PUT, PATCH, DELETE"
    assert (await client.head("/r")).status_code == 200
    assert (await client.delete("/r")).status_code == 200
    assert (await client.get("/r")).status_code == 404


async def test_a_large_body_both_ways(client: httpx.AsyncClient) -> None:
    body = bytes(number % 251 for number in range(MAX_BODY))
    assert (await client.post("/q/messages", content=body)).status_code == 201
    assert (await client.get("/q/messages")).content == body


async def test_many_streams_of_one_connection_at_once(client: httpx.AsyncClient) -> None:
    async def post(number: int) -> None:
        body = b"%03d" % number * (IN_MEMORY_BYTES // 3 + number)  # some in memory, some staged
        assert (await client.post("/q/messages", content=body)).status_code == 201

    async with trio.open_nursery() as nursery:
        for number in range(30):
            nursery.start_soon(post, number)
    assert len({(await client.get("/q/messages")).content for _ in range(30)}) == 30


@pytest.mark.in_turn(2)
@pytest.mark.slow
async def test_more_requests_than_hypercorn_allows_a_connection(client: httpx.AsyncClient) -> None:
    """Its default of 1000 ends the connection while answers are under way, which are then lost."""

    async def ask() -> None:
        for _ in range(150):
            assert (await client.get("/q")).status_code == 200

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(ask)


async def test_a_stop_finishes_the_stream_in_flight(
    client: httpx.AsyncClient, server: Server, broker: Broker, nursery: trio.Nursery
) -> None:
    started, may_end = trio.Event(), trio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"half"
        started.set()
        await may_end.wait()
        yield b"half"

    async def post() -> None:
        assert (await client.post("/q/messages", content=body())).status_code == 201

    await client.get("/q")  # so that the client knows how many streams it may open
    nursery.start_soon(post)
    await started.wait()
    with trio.fail_after(10):
        await client.get("/q")  # on the same connection, so the server knows of the other stream, too
    server.stop.set()
    await server.until_refused()
    may_end.set()
    with trio.fail_after(5):  # sooner than the stop's grace ends
        await server.stopped.wait()
    message = await broker.fetch("q")
    assert message is not None
    assert await message.body.read() == b"halfhalf"


async def test_a_body_too_large_is_413(client: httpx.AsyncClient, store: MemoryStorage) -> None:
    reply = await client.post("/q/messages", content=bytes(MAX_BODY + 1))
    assert reply.status_code == 413
    assert str(MAX_BODY) in checked_detail(413, reply.headers["content-type"], reply.content)
    assert (await client.get("/q")).status_code == 200
    assert await contents(store) == (["q"], 0)


class Frames:
    """An HTTP/2 client that writes any frame it is given."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._encoder = Encoder()

    async def send(self, *frames: Frame) -> None:
        await self._stream.send_all(b"".join(frame.serialize() for frame in frames))

    def headers(self, *fields: tuple[bytes, bytes], stream: int = 1, ends: bool = False) -> HeadersFrame:
        flags = ["END_HEADERS", "END_STREAM"] if ends else ["END_HEADERS"]
        return HeadersFrame(stream, self._encoder.encode(fields), flags=flags)

    async def ping(self) -> None:
        """What was sent before has been taken by the server."""
        await self.send(PingFrame(0, b"answer!!"))
        with trio.fail_after(10):
            await self.read_until(PingFrame(0, b"answer!!", flags=["ACK"]).serialize())

    async def read_until(self, part: bytes) -> None:
        received = b""
        while part not in received:
            received += await self._stream.receive_some()

    async def read_until_closed(self) -> bytes:
        received = b""
        try:
            async for data in self._stream:
                received += data
        except trio.BrokenResourceError:
            pass  # reset: closed, too
        return received


def request(method: bytes, path: bytes, *more: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    return [(b":method", method), (b":scheme", b"http"), (b":path", path), (b":authority", b"mq"), *more]


@pytest.fixture
async def frames(server: Server, broker: Broker) -> AsyncIterator[Frames]:
    await broker.create_queue("q")
    async with await server.connect() as stream:
        await stream.send_all(PREFACE)
        yield Frames(stream)


async def is_alive(server: Server) -> bool:
    return parse(await server.exchange(http1("GET", "/-/live"), half_close=True))[0] == 200


@pytest.mark.parametrize(
    "fields",
    [
        request(b"GET", b"/caf\xc3\xa9"),
        request(b"\xc3", b"/q"),
        [(b":method", b"CONNECT"), (b":authority", b"mq")],
        [(b":method", b"GET")],
        request(b"GET", b"/q", (b"connection", b"close")),
        request(b"POST", b"/q/messages", (b"content-length", b"many")),
        request(b"GET", b"/q", (b"x", b"y" * 40_000)),
    ],
    ids=["path", "method", "CONNECT", "no path", "connection", "content-length", "size"],
)
async def test_a_malformed_request_ends_its_connection_only(
    server: Server, frames: Frames, fields: list[tuple[bytes, bytes]]
) -> None:
    headers = frames.headers(*fields, ends=True)
    if len(headers.data) > 16_384:
        headers.data = headers.data[:16_384]
    await frames.send(headers)
    with trio.fail_after(10):
        await frames.read_until_closed()
    assert await is_alive(server)


async def test_data_after_the_response_ends_its_connection_only(
    server: Server, frames: Frames, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client may not have seen the end of the response yet; Hypercorn has forgotten the stream."""
    monkeypatch.setattr("mq.web.app.DISCARD_SECONDS", 0)
    await frames.send(frames.headers(*request(b"GET", b"/q")))
    await frames.read_until(b"\x00\x00\x00\x00\x01\x00\x00\x00\x01")  # DATA with END_STREAM
    await frames.send(DataFrame(1, b"late"))
    with trio.fail_after(10):
        await frames.read_until_closed()
    assert await is_alive(server)
    assert "KeyError" in caplog.text


async def test_priorities_of_many_streams_are_passed_over(server: Server, frames: Frames) -> None:
    await frames.send(*(PriorityFrame(number, depends_on=0, stream_weight=1) for number in range(1, 2301, 2)))
    await frames.ping()
    assert await is_alive(server)


@pytest.mark.parametrize("settings", ["%%%", "AAAA", "AAT_____"])
async def test_a_malformed_upgrade_ends_its_connection_only(server: Server, settings: str) -> None:
    lines = ["Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings", f"HTTP2-Settings: {settings}"]
    async with await server.connect() as stream:
        await stream.send_all(http1("GET", "/-/live", None, *lines) + b"PRI nonsense\r\n")
        with trio.fail_after(10):
            await Frames(stream).read_until_closed()
    assert await is_alive(server)


async def test_a_reset_in_the_middle_of_a_body_leaves_nothing(
    server: Server, frames: Frames, store: MemoryStorage
) -> None:
    await frames.send(frames.headers(*request(b"POST", b"/q/messages")), DataFrame(1, bytes(10_000)), RstStreamFrame(1))
    await frames.send(frames.headers(*request(b"GET", b"/q/messages"), stream=3, ends=True))
    await frames.read_until(b"\x00\x00\x00\x03")
    assert await contents(store) == (["q"], 0)


async def is_told_to_calm_down(frames: Frames) -> None:
    """GOAWAY says so, and the connection ends."""
    with trio.fail_after(10):
        received = await frames.read_until_closed()
    assert [frame.error_code for frame in read_frames(received) if isinstance(frame, GoAwayFrame)] == [
        ErrorCodes.ENHANCE_YOUR_CALM
    ]


def read_frames(data: bytes) -> Iterator[Frame]:
    while len(data) >= 9:
        frame, size = Frame.parse_frame_header(memoryview(data)[:9])
        frame.parse_body(memoryview(data)[9 : 9 + size])
        yield frame
        data = data[9 + size :]


async def test_requests_that_are_reset_as_soon_as_made_end_the_connection(server: Server, frames: Frames) -> None:
    for stream in range(1, 2 * SPARE_RESETS, 2 * 64):  # a few at a time, so that none of them is left running
        for number in range(stream, stream + 2 * 64, 2):
            await frames.send(frames.headers(*request(b"GET", b"/q"), stream=number), RstStreamFrame(number))
        await frames.ping()
    last = 2 * SPARE_RESETS + 1
    await frames.send(frames.headers(*request(b"GET", b"/q"), stream=last), RstStreamFrame(last))
    await is_told_to_calm_down(frames)
    assert await is_alive(server)


@pytest.mark.slow
async def test_who_waits_for_responses_may_reset_as_many(frames: Frames) -> None:
    for number in range(1, 4 * SPARE_RESETS, 4):
        await frames.send(frames.headers(*request(b"GET", b"/q"), stream=number, ends=True))
        await frames.send(frames.headers(*request(b"GET", b"/q"), stream=number + 2), RstStreamFrame(number + 2))
        await frames.ping()
    await frames.send(RstStreamFrame(1))
    await frames.ping()


async def test_requests_at_work_are_limited_even_when_their_streams_are_gone(
    frames: Frames, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mq.web.hypercorn_server.SPARE_RESETS", 10 * RUNNING)
    most = at_work = 0

    async def purge(*_: object, **__: object) -> None:
        nonlocal most, at_work
        at_work += 1
        most = max(most, at_work)
        try:
            await trio.sleep_forever()
        finally:
            at_work -= 1

    monkeypatch.setattr(broker, "purge", purge)  # what changes something is carried out, whatever becomes of its stream
    for number in range(1, 2 * RUNNING, 2):
        await frames.send(
            frames.headers(*request(b"POST", b"/q/purge"), stream=number, ends=True), RstStreamFrame(number)
        )
    await frames.ping()
    await frames.send(frames.headers(*request(b"POST", b"/q/purge"), stream=2 * RUNNING + 1, ends=True))
    await is_told_to_calm_down(frames)
    assert most == RUNNING


@pytest.mark.parametrize(("number", "size"), [(HEADER_BLOCK_FRAMES, 0), (5, 16_384)])
async def test_headers_without_end_end_the_connection(server: Server, frames: Frames, number: int, size: int) -> None:
    await frames.send(HeadersFrame(1, b""))
    await frames.send(*(ContinuationFrame(1, bytes(size)) for _ in range(number)))
    await is_told_to_calm_down(frames)
    assert await is_alive(server)


@pytest.mark.parametrize("frame", [PingFrame(0), SettingsFrame(0), PriorityFrame(1, depends_on=0, stream_weight=1)])
async def test_frames_that_only_want_an_answer_are_limited(server: Server, frames: Frames, frame: Frame) -> None:
    for _ in range(CONTROL_FRAMES // 100 - 1):
        await frames.send(*[frame] * 99)
        await frames.ping()
    await frames.send(*[frame] * 98)
    await frames.ping()  # the last one allowed: the preface had SETTINGS, too
    await frames.send(frame)
    await is_told_to_calm_down(frames)
    assert await is_alive(server)


class FramesPerStep(trio.abc.Instrument):
    """Counts the frames that connections take in each step of the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = self.now = self.all = 0
        take = H2Connection._receive_frame

        def count(connection: H2Connection, frame: Frame) -> object:
            self.now += 1
            self.all += 1
            self.most = max(self.most, self.now)
            return take(connection, frame)

        monkeypatch.setattr(H2Connection, "_receive_frame", count)
        trio.lowlevel.add_instrument(self)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.now = 0


@pytest.mark.parametrize("first", [0, 5, 18, 24, 100], ids=lambda first: f"{first} bytes first")
async def test_read_of_cheap_frames_takes_many_turns(
    server: Server, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    counted = FramesPerStep(monkeypatch)
    data = PREFACE + PingFrame(0).serialize() * 1500
    async with await server.connect() as stream:
        if first:
            await stream.send_all(data[:first])
            await trio.sleep(0.05)  # real sockets: so that it is read by itself
        await stream.send_all(data[first:])
        await Frames(stream).ping()
    assert counted.all >= 1500
    assert counted.most <= 64 + 1  # and one of which a part had come


class BegunPerPass(trio.abc.Instrument):
    """Counts the connections that begin to speak HTTP/2 in each pass of the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passes = 0
        self.begun = Counter[int]()
        initiate = H2Connection.initiate_connection

        def count(connection: H2Connection) -> None:
            self.begun[self.passes] += 1
            initiate(connection)

        monkeypatch.setattr(H2Connection, "initiate_connection", count)
        trio.lowlevel.add_instrument(self)

    def before_io_wait(self, timeout: float) -> None:
        self.passes += 1


async def test_many_clients_that_begin_http2_at_once_are_served_over_many_passes(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To begin a connection is far more work than its 24 bytes look like."""
    counted = BegunPerPass(monkeypatch)
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(await server.connect()) for _ in range(5 * MOST_BEGUN)]
        for stream in streams:
            os.write(stream.socket.fileno(), PREFACE)  # all in one step
        for stream in streams:
            await Frames(stream).ping()
    assert counted.begun.total() == len(streams)
    assert max(counted.begun.values()) <= MOST_BEGUN


async def test_frames_behind_a_request_to_upgrade_end_their_connection_only(server: Server) -> None:
    lines = ["Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: "]
    async with await server.connect() as stream:
        await stream.send_all(http1("GET", "/-/live", None, *lines) + PREFACE + PingFrame(0).serialize() * 1000)
        with trio.fail_after(10):
            await Frames(stream).read_until_closed()
    assert await is_alive(server)


@pytest.mark.parametrize("first", [PingFrame(0), SettingsFrame(0, flags=["ACK"]), HeadersFrame(1, b"")])
async def test_connection_that_does_not_begin_with_settings_is_closed(server: Server, first: Frame) -> None:
    async with await server.connect() as stream:
        await stream.send_all(PREFACE[:24] + first.serialize())
        with trio.fail_after(10):
            said = await Frames(stream).read_until_closed()
    assert GoAwayFrame(0, error_code=ErrorCodes.PROTOCOL_ERROR).serialize() in said
    assert await is_alive(server)


class Guarded(Handler):
    """Answers requests once `may_answer` is set, and logs their clients in if `logs_in` is."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.logs_in = False
        self.may_answer = trio.Event()

    async def handle(self, request: Request) -> Reply:
        self.running += 1
        self.most = max(self.most, self.running)
        connection = CONNECTION.get()
        if self.logs_in and connection is not None:
            connection.log_in("me")
        await self.may_answer.wait()
        self.running -= 1
        return empty(200)


async def test_few_requests_run_before_the_login(nursery: trio.Nursery) -> None:
    handler = Guarded()
    server = await start_server(nursery, handler, needs_login=True)
    async with await server.connect() as stream:
        await stream.send_all(PREFACE)
        frames = Frames(stream)
        with trio.fail_after(10):
            await frames.read_until(b"\0\3" + STREAMS_BEFORE_LOGIN.to_bytes(4))  # in the server's SETTINGS
        wanted = range(1, 81, 2)  # more than that, as clients do that have not read them
        await frames.send(*(frames.headers(*request(b"GET", b"/q"), stream=number, ends=True) for number in wanted))
        await frames.ping()
        with trio.fail_after(10):
            while handler.running < STREAMS_BEFORE_LOGIN:
                await trio.sleep(0.01)
            handler.may_answer.set()
            await frames.read_until((79).to_bytes(4))
        assert handler.most == STREAMS_BEFORE_LOGIN


async def test_all_requests_run_behind_the_login(nursery: trio.Nursery) -> None:
    handler = Guarded()
    handler.logs_in = True
    server = await start_server(nursery, handler, needs_login=True)
    async with await server.connect() as stream:
        await stream.send_all(PREFACE)
        frames = Frames(stream)
        wanted = range(1, 81, 2)
        await frames.send(*(frames.headers(*request(b"GET", b"/q"), stream=number, ends=True) for number in wanted))
        with trio.fail_after(10):
            while handler.running < len(wanted):
                await trio.sleep(0.01)
            handler.may_answer.set()
            await frames.read_until(b"\0\3" + STREAMS.to_bytes(4))  # in new SETTINGS


BEGUN = HeadersFrame(1, b"").serialize()


@pytest.mark.parametrize("first_words", [PREFACE, PREFACE[:20], PREFACE + BEGUN])
async def test_a_connection_without_a_request_ends_in_time(
    quick_clock: MockClock, server: Server, first_words: bytes
) -> None:
    async with await server.connect() as stream:
        await stream.send_all(first_words)
        await Frames(stream).read_until_closed()
    assert HEAD_SECONDS <= trio.current_time() < KEEP_ALIVE_SECONDS


async def test_a_stop_does_not_wait_for_a_connection_without_a_request(server: Server, frames: Frames) -> None:
    await frames.ping()
    server.stop.set()
    with trio.fail_after(5):  # sooner than the stop's grace ends
        await server.stopped.wait()


async def test_an_upgraded_connection_has_the_same_limits(server: Server) -> None:
    lines = ["Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: "]
    async with await server.connect() as stream:
        await stream.send_all(http1("GET", "/-/live", None, *lines))
        switched = await stream.receive_some()
        assert switched.startswith(b"HTTP/1.1 101")
        await stream.send_all(PREFACE)
        frames = Frames(stream)
        await frames.send(HeadersFrame(3, b""), *(ContinuationFrame(3, b"") for _ in range(HEADER_BLOCK_FRAMES)))
        with trio.fail_after(10):
            received = await frames.read_until_closed()
    assert (ErrorCodes.ENHANCE_YOUR_CALM.to_bytes(4)) in received


@for_each("name", [name for name in BAD_NAMES if not name.startswith(".")])  # httpx resolves dots
async def test_bad_names(client: httpx.AsyncClient, store: MemoryStorage, name: str) -> None:
    assert (await client.put(f"/{name}")).status_code == 400
    assert await contents(store) == (["q"], 0)
