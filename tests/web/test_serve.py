"""A served app, spoken to in raw bytes over HTTP/1.1."""

from __future__ import annotations

import json
import re
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from mq.broker import BrokerConfig, open_broker
from mq.broker.api import NoNode
from mq.broker.commit import Future
from mq.doors.listeners import CannotListen
from mq.message import BytesBody, Message, MessageIds, Properties
from mq.storage.memory import MemoryStorage
from mq.web.app import WebApp
from mq.web.endpoints import Endpoints
from mq.web.exchange import Reply, Request
from mq.web.request_body import IN_MEMORY_BYTES
from mq.web.serve import GRACE_SECONDS, HEAD_SECONDS, KEEP_ALIVE_SECONDS, serve
from tests.cases import for_each
from tests.web.talking import (
    BAD_NAMES,
    MAX_BODY,
    Server,
    checked_detail,
    contents,
    http1,
    parse,
    publish,
    read_all,
    start_server,
)

POST_HEAD = "POST /q/messages HTTP/1.1\r\nHost: mq\r\n"


@pytest.fixture
async def server(endpoints: Endpoints, nursery: trio.Nursery, fast_lane: bool) -> Server:
    return await start_server(nursery, endpoints, fast_lane=fast_lane)


async def until(condition: Callable[[], bool]) -> None:
    """For what no event tells of: the folders, the log."""
    with trio.fail_after(30):
        while not condition():
            await trio.sleep(0.005)


# Requests as they should be


async def test_a_message_there_and_back(server: Server, queue: str) -> None:
    status, headers, _ = parse(
        await server.exchange(http1("POST", "/q/messages", b"hello", "Content-Type: a/b"), half_close=True)
    )
    assert status == 201
    fetched = parse(await server.exchange(http1("GET", "/q/messages"), half_close=True))
    assert (fetched[0], fetched[2]) == (200, b"hello")
    assert fetched[1]["content-type"] == "a/b"
    assert fetched[1]["x-message-id"] == headers["x-message-id"]
    assert "server" not in fetched[1]


async def test_requests_share_a_connection(server: Server, queue: str) -> None:
    requests = [http1("POST", "/q/messages", b"%d" % number) for number in range(3)]
    requests += [http1("PUT", "/r", b"a body that means nothing"), http1("GET", "/q/messages"), http1("GET", "/r")]
    received = await server.exchange(b"".join(requests), half_close=True)
    assert re.findall(rb"HTTP/1.1 (\d+)", received) == [b"201", b"201", b"201", b"201", b"200", b"200"]


async def test_chunked_and_with_expectation(server: Server, queue: str, store: MemoryStorage) -> None:
    head = f"{POST_HEAD}Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n".encode()
    received = await server.exchange(head + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", half_close=True)
    interim, _, final = received.partition(b"\r\n\r\n")
    assert interim.startswith(b"HTTP/1.1 100")
    assert parse(final)[0] == 201
    assert parse(await server.exchange(http1("GET", "/q/messages"), half_close=True))[2] == b"abcde"


@pytest.mark.slow
async def test_a_large_body_both_ways(nursery: trio.Nursery, temp_root: Path, fast_lane: bool) -> None:
    body = b"".join(b"%015d\n" % number for number in range(1 << 20))  # 16 MiB
    async with open_broker(f"posix:{temp_root}", BrokerConfig(max_body=len(body))) as broker:
        server = await start_server(nursery, Endpoints(broker, len(body)), fast_lane=fast_lane)
        await broker.create_queue("q")
        assert parse(await server.exchange(http1("POST", "/q/messages", body), half_close=True))[0] == 201
        status, _, fetched = parse(await server.exchange(http1("GET", "/q/messages"), half_close=True))
        assert status == 200
        assert fetched == body
        server.stop.set()


async def test_an_old_client_is_answered_and_closed(server: Server, queue: str) -> None:
    status, _, body = parse(await server.exchange(b"GET /q HTTP/1.0\r\n\r\n"))
    assert (status, json.loads(body)["name"]) == (200, "q")


# Requests as they should not be


@for_each("name", BAD_NAMES)
async def test_bad_names_as_bytes(server: Server, store: MemoryStorage, name: str) -> None:
    for method, rest, body in (("PUT", "", None), ("POST", "/messages", b"x"), ("GET", "/messages", None)):
        status, headers, text = parse(await server.exchange(http1(method, f"/{name}{rest}", body), half_close=True))
        assert status == 400
        assert "invalid queue name" in checked_detail(status, headers["content-type"], text)
    assert await contents(store) == ([], 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /q HTTP/1.1\r\nHost: mq\r\nX: " + b"x" * 70_000, 431),
        (b"GET /" + b"q" * 70_000, 431),
        (b"GET /q HTTP/1.1\r\nHost: mq\r\n" + b"X: y\r\n" * 10_000, 431),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /q HTTP/1.1\nHost: mq\r\n\r\n", 400),
        (b"GET /q HTTP/1.1\r\nHost: mq\n\r\n", 400),
        (b"GET /q HTTP/1.1\r\nHost: mq\r\n\n", 400),
        (b"GET /q HTTP/1.1\r\nHost: mq\n", 400),
        (b"\nGET /q HTTP/1.1\r\nHost: mq\r\n\r\n", 400),
        (f"{POST_HEAD} Content-Length: 3\r\n\r\nabc".encode(), 400),
        (f"{POST_HEAD}X: y\r\n\tz\r\n\r\n".encode(), 400),
        (f"{POST_HEAD}Content-Length: 3, 4\r\n\r\nabc".encode(), 400),
        (f"{POST_HEAD}Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n".encode(), 400),
        (f"{POST_HEAD}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".encode(), 501),
        (b"GET /q HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET /caf\xc3\xa9 HTTP/1.1\r\nHost: mq\r\n\r\n", 400),
        (b"GET /q HTTP/1.1\r\nHost: mq\r\nX : y\r\n\r\n", 400),
        (f"{POST_HEAD}Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc".encode(), 400),
        (f"{POST_HEAD}Content-Length: -1\r\n\r\n".encode(), 400),
        (f"{POST_HEAD}Content-Length: 3x\r\n\r\nabc".encode(), 400),
        (f"{POST_HEAD}Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".encode(), 400),
        (f"{POST_HEAD}Transfer-Encoding: chunked\r\n\r\nzz\r\n".encode(), 400),
        (f"{POST_HEAD}Transfer-Encoding: gzip\r\n\r\n".encode(), 501),
        (http1("POST", "/q/messages", bytes(MAX_BODY + 1)), 413),
    ],
)
async def test_malformed_requests_end_the_connection(
    server: Server, queue: str, store: MemoryStorage, request_: bytes, status: int
) -> None:
    with trio.fail_after(20):
        received = await server.exchange(request_)
    replied, headers, body = parse(received)
    assert replied == status
    assert headers["connection"] == "close"
    assert checked_detail(status, headers["content-type"], body)
    assert await contents(store) == (["q"], 0)


async def test_bare_lf_in_a_body_is_a_matter_of_the_body(server: Server, queue: str) -> None:
    requests = http1("POST", "/q/messages", b"a\nb\n\n") + http1("GET", "/q/messages")
    assert b"a\nb\n\n" in await server.exchange(requests, half_close=True)


@pytest.mark.parametrize("before", [b"", http1("GET", "/-/live")])
@pytest.mark.parametrize("part", [b"G", b"GET /q HTTP/1.1\r\n", b"GET /q HTTP/1.1\r\nHost: mq\r\nX: y"])
async def test_a_head_that_does_not_come_to_its_end_is_408(
    quick_clock: MockClock, server: Server, before: bytes, part: bytes
) -> None:
    received = await server.exchange(before + part)
    status, headers, body = parse(received[received.rindex(b"HTTP/1.1 ") :])
    assert status == 408
    assert headers["connection"] == "close"
    assert "timed out" in checked_detail(status, headers["content-type"], body)
    assert HEAD_SECONDS <= trio.current_time() < KEEP_ALIVE_SECONDS


async def test_a_head_that_comes_byte_by_byte_is_408_all_the_same(
    quick_clock: MockClock, server: Server, nursery: trio.Nursery
) -> None:
    async with await server.connect() as stream:

        async def drip() -> None:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await stream.send_all(b"GET /q HTTP/1.1\r\nHost: mq\r\nX: ")
                while True:
                    await trio.sleep(HEAD_SECONDS / 5)
                    await stream.send_all(b"x")

        nursery.start_soon(drip)
        received = await stream.receive_some()
        assert trio.current_time() < HEAD_SECONDS + 1
    assert received.startswith(b"HTTP/1.1 408")


async def test_a_connection_without_a_request_is_closed_without_a_word(quick_clock: MockClock, server: Server) -> None:
    assert await server.exchange(b"") == b""
    assert HEAD_SECONDS <= trio.current_time() < KEEP_ALIVE_SECONDS


def test_an_idle_connection_outlives_those_of_proxies() -> None:
    assert KEEP_ALIVE_SECONDS > 60  # what nginx and most load balancers keep open


async def test_a_connection_waits_longer_for_its_next_request_than_for_a_head(
    quick_clock: MockClock, server: Server
) -> None:
    async with await server.connect() as stream:
        for _ in range(2):
            await stream.send_all(http1("GET", "/-/live"))
            received = b""
            while not received.endswith(b"}\n"):
                received += await stream.receive_some()
            assert received.startswith(b"HTTP/1.1 200")
            await trio.sleep(2 * HEAD_SECONDS)
        await stream.send_all(b"G")  # from now on a head is awaited
        received = await read_all(stream)
    assert received.startswith(b"HTTP/1.1 408")


async def test_a_connection_without_a_next_request_is_closed_without_a_word(
    quick_clock: MockClock, server: Server
) -> None:
    async with await server.connect() as stream:
        await stream.send_all(http1("GET", "/-/live"))
        received = await read_all(stream)
    assert received.startswith(b"HTTP/1.1 200")
    assert received.count(b"HTTP/1.1") == 1
    assert trio.current_time() >= KEEP_ALIVE_SECONDS


async def test_a_chunked_body_that_grows_too_long_is_413(server: Server, queue: str, store: MemoryStorage) -> None:
    chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"
    async with await server.connect() as stream:
        await stream.send_all(f"{POST_HEAD}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk * 17 + b"0\r\n\r\n")
        status, headers, body = parse(await read_all(stream))
    assert status == 413
    assert str(MAX_BODY) in checked_detail(status, headers["content-type"], body)
    assert await contents(store) == (["q"], 0)


async def test_413_comes_before_the_body_is_sent(server: Server, queue: str, store: MemoryStorage) -> None:
    async with await server.connect() as stream:
        await stream.send_all(f"{POST_HEAD}Content-Length: 99999999999999999999\r\n\r\n".encode())
        received = b""
        while not received.endswith(b"}\n"):
            received += await stream.receive_some()
    assert parse(received)[0] == 413
    assert await contents(store) == (["q"], 0)


@pytest.mark.parametrize(("target", "status"), [("/q/messages", 413), ("/%00/messages", 400)])
async def test_no_100_before_a_refusal(
    quick_clock: MockClock, server: Server, queue: str, target: str, status: int
) -> None:
    size = MAX_BODY + 1 if status == 413 else 1
    head = f"POST {target} HTTP/1.1\r\nHost: mq\r\nContent-Length: {size}\r\nExpect: 100-continue\r\n\r\n"
    async with await server.connect() as stream:
        await stream.send_all(head.encode())
        assert parse(await read_all(stream))[0] == status


async def test_413_reaches_a_client_that_sends_first_and_listens_after(
    server: Server, queue: str, store: MemoryStorage
) -> None:
    """Closing at once would reset the connection, and the reply would be lost with it."""
    received = await server.exchange(http1("POST", "/q/messages", bytes(8 * MAX_BODY)))
    assert parse(received)[0] == 413


@pytest.mark.parametrize("sent", [0, 10, IN_MEMORY_BYTES * 2])
async def test_a_body_cut_short_by_a_client_that_still_listens_is_400(
    server: Server, queue: str, store: MemoryStorage, sent: int
) -> None:
    cut = f"{POST_HEAD}Content-Length: {sent + 1}\r\n\r\n".encode() + bytes(sent)
    assert parse(await server.exchange(cut, half_close=True))[0] == 400
    assert await contents(store) == (["q"], 0)


@pytest.mark.parametrize("framing", ["Content-Length: 1000000", "Transfer-Encoding: chunked"])
async def test_a_client_that_vanishes_leaves_nothing_on_the_disk(
    nursery: trio.Nursery, temp_root: Path, framing: str, fast_lane: bool
) -> None:
    def files() -> set[Path]:
        return {path for path in temp_root.rglob("*") if path.is_file()}

    async with open_broker(f"posix:{temp_root}", BrokerConfig(max_body=MAX_BODY)) as broker:
        server = await start_server(nursery, Endpoints(broker, MAX_BODY), fast_lane=fast_lane)
        await broker.create_queue("q")
        before = files()
        stream = await server.connect()
        await stream.send_all(f"{POST_HEAD}{framing}\r\n\r\n".encode())
        await stream.send_all(b"20000\r\n" + bytes(0x20000) + b"\r\n")
        await until(lambda: files() != before)  # a part of it has reached the disk
        await stream.aclose()
        await until(lambda: files() == before)
        assert await broker.fetch("q") is None
        server.stop.set()


async def test_a_client_that_asks_and_closes_its_side_gets_its_message(
    server: Server, queue: str, endpoints: Endpoints
) -> None:
    await publish(endpoints, queue, b"x" * MAX_BODY)
    status, _, body = parse(await server.exchange(http1("GET", "/q/messages"), half_close=True))
    assert (status, body) == (200, b"x" * MAX_BODY)


async def test_a_websocket_handshake_is_refused(server: Server, queue: str) -> None:
    lines = ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Key: a2V5", "Sec-WebSocket-Version: 13"]
    status, headers, body = parse(await server.exchange(http1("GET", "/q/messages", None, *lines)))
    assert status == 400
    assert "WebSocket" in checked_detail(status, headers["content-type"], body)


async def test_a_websocket_handshake_with_something_behind_it_ends_its_connection_only(server: Server) -> None:
    lines = ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Key: a2V5", "Sec-WebSocket-Version: 13"]
    with trio.fail_after(10):
        assert (await server.exchange(http1("GET", "/q", None, *lines) + b"hello")).startswith(b"HTTP/1.1 400")
    assert parse(await server.exchange(http1("GET", "/-/live"), half_close=True))[0] == 200


QUOTED = "Authorization: Bearer hunter2"
"""What a client sent, in the text of an error."""


class NeverSeen(Exception):
    """A fault of a kind that nobody has thought of."""


async def test_a_fault_never_seen_before_ends_its_connection_only(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*arguments: object) -> None:
        raise NeverSeen(QUOTED)

    caplog.set_level("DEBUG")
    with monkeypatch.context() as patch, trio.fail_after(10):
        patch.setattr("hypercorn.protocol.h11.H11Protocol._create_stream", fail)
        assert await server.exchange(http1("GET", "/-/live", None, "Expect: nothing")) == b""
    await until(lambda: "exception traceback:" in caplog.text)
    assert "NeverSeen" in caplog.text
    assert "in fail" in caplog.text
    assert QUOTED not in caplog.text
    assert parse(await server.exchange(http1("GET", "/-/live"), half_close=True))[0] == 200


# Starting and stopping


async def test_a_port_in_use_is_told(server: Server, endpoints: Endpoints) -> None:
    with pytest.raises(CannotListen, match=f"port {server.port}: Address already in use"):
        await serve(WebApp(endpoints), "127.0.0.1", server.port, stop=trio.sleep_forever)


@pytest.mark.parametrize("address", ["256.1.1.1", "nowhere.invalid", "192.0.2.1", "a" * 70 + ".b", ".."])
async def test_an_address_that_is_not_ours_is_told(endpoints: Endpoints, address: str) -> None:
    with pytest.raises(CannotListen, match="cannot listen on"):
        await serve(WebApp(endpoints), address, 0, stop=trio.sleep_forever)


async def test_ipv6_urls_have_brackets(endpoints: Endpoints, nursery: trio.Nursery) -> None:
    try:
        [url] = await nursery.start(partial(serve, WebApp(endpoints), "::1", 0, stop=trio.sleep_forever))
    except CannotListen:
        pytest.skip("no IPv6 here")
    assert url.startswith("http://[::1]:")


class FilledQueues:
    """Declarations by which every queue has messages."""

    def is_empty(self, queue: str) -> bool:
        return False


class SlowBroker:
    """Fetches when it is told to.

    Args:
        nursery: answers fetches that begin in the step that read them; None begins none.
    """

    ready = True
    is_shared = False
    node_control = NoNode()
    declarations = FilledQueues()

    def __init__(self, nursery: trio.Nursery | None) -> None:
        self._nursery = nursery
        self.asked = trio.Event()
        self.may_answer = trio.Event()
        self.body = b"late"

    async def fetch_many(self, queue: str, *_: object, **__: object) -> list[Message]:
        self.asked.set()
        await self.may_answer.wait()
        return [Message(queue, MessageIds().new(), BytesBody(self.body), Properties(len(self.body), 0), 1, "receipt")]

    def fetch_now(self, queue: str, *_: object, **__: object) -> Future[list[Message]] | None:
        if self._nursery is None:
            return None
        future: Future[list[Message]] = Future()
        self._nursery.start_soon(self._answer, queue, future)
        return future

    async def _answer(self, queue: str, future: Future[list[Message]]) -> None:
        messages = await self.fetch_many(queue)
        if not future.answered:
            future.set(messages)


@pytest.fixture(params=["begins a fetch", "awaits a fetch"])
def slow(request: pytest.FixtureRequest, nursery: trio.Nursery) -> SlowBroker:
    return SlowBroker(nursery if request.param == "begins a fetch" else None)


@pytest.fixture
async def stopping(slow: SlowBroker, nursery: trio.Nursery, fast_lane: bool) -> Server:
    return await start_server(nursery, Endpoints(slow, MAX_BODY), fast_lane=fast_lane)


async def test_a_stop_finishes_what_runs(stopping: Server, slow: SlowBroker) -> None:
    async with await stopping.connect() as busy, await stopping.connect() as idle:
        await busy.send_all(http1("GET", "/q/messages"))
        await slow.asked.wait()
        stopping.stop.set()
        assert await idle.receive_some() == b""  # the idle one is closed at once
        await stopping.until_refused()
        slow.may_answer.set()
        _, headers, body = parse(await read_all(busy))
        assert (headers["connection"], body) == ("close", b"late")
    with trio.fail_after(10):
        await stopping.stopped.wait()


async def test_a_stop_waits_no_longer_than_its_grace(
    quick_clock: MockClock, stopping: Server, slow: SlowBroker
) -> None:
    async with await stopping.connect() as busy:
        await busy.send_all(http1("GET", "/q/messages"))
        await slow.asked.wait()
        stopping.stop.set()
        await stopping.stopped.wait()
    assert trio.current_time() < 2 * GRACE_SECONDS


async def test_a_client_that_reads_nothing_does_not_hold_up_the_stop(
    quick_clock: MockClock, stopping: Server, slow: SlowBroker
) -> None:
    slow.body = bytes(64 << 20)  # more than the sockets' buffers hold
    slow.may_answer.set()
    async with await stopping.connect() as deaf:
        await deaf.send_all(http1("GET", "/q/messages"))
        assert await deaf.receive_some(1)
        stopping.stop.set()
        await stopping.stopped.wait()
    assert trio.current_time() < 2 * GRACE_SECONDS


async def test_requests_of_a_client_that_is_gone_are_not_begun(
    endpoints: Endpoints, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the slower of the two servers, which reads on while it answers."""
    handled = 0
    handle = endpoints.handle

    async def counted(request: Request) -> Reply:
        nonlocal handled
        handled += 1
        return await handle(request)

    monkeypatch.setattr(endpoints, "handle", counted)
    server = await start_server(nursery, endpoints, fast_lane=False)
    stream = await server.connect()
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await stream.send_all(http1("GET", "/-/live") * 1000)
    with trio.fail_after(10):
        while not handled:
            await trio.lowlevel.checkpoint()
    stream.socket.close()  # a reset: what the server sends fails
    with trio.fail_after(30):
        while (before := handled) < 1000:
            await trio.sleep(0.2)
            if handled == before:
                break
    assert handled < 500
