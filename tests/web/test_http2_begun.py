"""Requests over HTTP/2 that begin in the step that read them: completions answer them, in any order."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Callable
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest
import trio
from h2.errors import ErrorCodes
from hyperframe.frame import DataFrame, GoAwayFrame, HeadersFrame, RstStreamFrame, WindowUpdateFrame
from trio.testing import wait_all_tasks_blocked

from mq.access.certificates import Certificates
from mq.doors.budget import Budget
from mq.errors import NoSuchMessage
from mq.web.exchange import Abandon, Answer, Later, Reply, Request, empty
from mq.web.http2_requests import MOST_BEGUN
from mq.web.serve import PROTOCOLS
from tests.web.talking import Server, start_server
from tests.web.test_begun_requests import PATIENCE_SECONDS, Begins, text
from tests.web.test_http2_requests import OPEN, PREFACE, SHUT, Client, until_free
from tests.web.test_tls import Authority, connect


class Records(Begins):
    """Begins each request, records it, and answers those that come otherwise with 200.

    Attributes:
        handled: requests that did not begin.
    """

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[Request] = []
        self.handled: list[bytes] = []

    def begin(self, request: Request, answer: Answer) -> Reply | Abandon | None:
        self.begun.append(request)
        return super().begin(request, answer)

    async def handle(self, request: Request) -> Reply:
        assert not isinstance(request.body, bytes)
        self.handled.append(b"".join([piece async for piece in request.body]))
        return empty(200)


@pytest.fixture
def begins() -> Records:
    return Records()


@pytest.fixture
def budget() -> Budget:
    return Budget(64 << 20)


@pytest.fixture
async def server(begins: Records, budget: Budget, nursery: trio.Nursery) -> AsyncIterator[Server]:
    served = await start_server(nursery, begins, budget=budget)
    yield served
    served.stop.set()


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with await server.connect() as stream:
        await stream.send_all(PREFACE)
        yield Client(stream)


@pytest.fixture(params=["plain", "tls"])
async def any_client(
    request: pytest.FixtureRequest, begins: Records, tmp_path: Path, nursery: trio.Nursery
) -> AsyncIterator[Client]:
    is_tls, authority = request.param == "tls", Authority(tmp_path)
    certificates = Certificates(authority.files, PROTOCOLS) if is_tls else None
    server = await start_server(nursery, begins, certificates=certificates)
    stream: Any = await (connect(server, authority.client_context("h2")) if is_tls else server.connect())
    await stream.send_all(PREFACE)
    yield Client(stream)
    await trio.aclose_forcefully(stream)
    server.stop.set()


class Closed:
    """A body that counts how often it was closed."""

    def __init__(self) -> None:
        self.count = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 10_000

    async def aclose(self) -> None:
        self.count += 1


async def answer_to(client: Client, stream: int) -> tuple[dict[str, str], bytes]:
    """An answer without its date."""
    headers, body = await client.answer(stream)
    assert parsedate_to_datetime(headers.pop("date")).tzinfo is not None
    return headers, body


def _giving(reply: Reply | Later) -> Callable[[object], Reply | Later]:
    return lambda _: reply


def post(client: Client, stream: int, body: bytes) -> tuple[HeadersFrame, DataFrame]:
    head = client.ask(stream, "/q/messages", "POST")
    head.flags.discard("END_STREAM")
    return head, DataFrame(stream, body, flags=["END_STREAM"])


async def test_completions_answer_in_any_order_and_the_connection_goes_on(any_client: Client, begins: Records) -> None:
    client = any_client
    await client.send(*(client.ask(stream, f"/q/{stream}") for stream in (1, 3, 5)))
    await begins.until_begun(3)
    for stream, answer in ((5, begins.answers[2]), (1, begins.answers[0]), (3, begins.answers[1])):
        answer(text(b"answer %d" % stream), None)
        assert await answer_to(client, stream) == (
            {":status": "200", "content-length": "8"},
            b"answer %d" % stream,
        )
    await client.send(client.ask(7, "/q"))
    await begins.until_begun(4)
    begins.answers[3](lambda _: Reply(204), None)
    assert await answer_to(client, 7) == ({":status": "204"}, b"")
    assert begins.abandoned == 0


async def test_request_is_as_over_http1(client: Client, begins: Records) -> None:
    await client.send(*post(client, 1, b"body"))
    await begins.until_begun(1)
    [request] = begins.begun
    assert (request.method, request.path, request.query, request.body) == ("POST", b"/q/messages", b"", b"body")
    assert request.headers == {"host": "localhost"}
    assert (request.address, request.scheme) == ("127.0.0.1", "http")


async def test_body_that_comes_later_or_is_long_is_handled(client: Client, begins: Records) -> None:
    head, data = post(client, 1, b"later")
    await client.send(head)
    await wait_all_tasks_blocked(0.01)
    await client.send(data)
    assert (await client.answer(1))[0][":status"] == "200"
    long = b"x" * (MOST_BEGUN // 2 + 1)
    head, data = post(client, 3, long)
    await client.send(head, DataFrame(3, long), data)
    assert (await client.answer(3))[0][":status"] == "200"
    assert begins.handled == [b"later", 2 * long]
    assert not begins.begun


async def test_window_of_the_connection_is_given_back(client: Client, begins: Records) -> None:
    for number in range(10):  # more than the 65,535 bytes of the window
        stream = 2 * number + 1
        await client.send(*post(client, stream, b"x" * 10_000))
        await begins.until_begun(number + 1)
        begins.answers[number](lambda _: Reply(204), None)
        await client.answer(stream)


async def test_client_that_resets_its_stream_abandons_its_request_once(client: Client, begins: Records) -> None:
    await client.send(client.ask(1, "/q"), client.ask(3, "/q"))
    await begins.until_begun(2)
    await client.send(RstStreamFrame(1, error_code=8))
    with trio.fail_after(PATIENCE_SECONDS):
        while not begins.abandoned:
            await trio.sleep(0.01)  # the socket is real
    begins.answers[0](text(b"nobody"), None)
    begins.answers[1](text(b"somebody"), None)
    assert (await client.answer(3))[1] == b"somebody"
    await client.stream.aclose()
    await wait_all_tasks_blocked(0.01)
    assert begins.abandoned == 1


async def test_connection_that_ends_abandons_its_requests(client: Client, begins: Records, budget: Budget) -> None:
    await client.send(client.ask(1, "/q"), client.ask(3, "/q"))
    await begins.until_begun(2)
    assert budget.used
    await client.stream.aclose()
    await until_free(budget)
    assert begins.abandoned == 2
    begins.answers[0](text(b"nobody"), None)


async def test_error_is_answered_as_the_handler_would(client: Client, begins: Records) -> None:
    def refuse(_: object) -> Reply:
        raise NoSuchMessage("it is gone")

    def fail(_: object) -> Reply:
        raise LookupError("a bug")

    await client.send(client.ask(1, "/q"), client.ask(3, "/q"))
    await begins.until_begun(2)
    begins.answers[0](refuse, None)
    headers, body = await client.answer(1)
    assert (headers[":status"], b"it is gone" in body) == ("404", True)
    begins.answers[1](fail, None)
    headers, body = await client.answer(3)
    assert (headers[":status"], b"a bug" in body) == ("500", False)


async def test_answer_waits_for_the_window(client: Client, begins: Records, budget: Budget) -> None:
    await client.send(SHUT, client.ask(1, "/q"))
    await begins.until_begun(1)
    begins.answers[0](text(b"x" * 50_000), None)
    await wait_all_tasks_blocked(0.01)
    await client.send(OPEN)
    assert (await client.answer(1))[1] == b"x" * 50_000
    await client.stream.aclose()
    await until_free(budget)


async def test_answer_that_has_to_be_waited_for_is_told_of_a_hang_up(client: Client, begins: Records) -> None:
    has_hung_up = trio.Event()

    async def later() -> Reply:
        async with begins.begun[0].on_hang_up(has_hung_up.set):
            await has_hung_up.wait()
        return empty(200)

    def make(_: object) -> Later:
        return later

    await client.send(client.ask(1, "/q"))
    await begins.until_begun(1)
    begins.answers[0](make, None)
    await wait_all_tasks_blocked(0.01)
    assert not has_hung_up.is_set()
    await client.stream.aclose()
    with trio.fail_after(PATIENCE_SECONDS):
        await has_hung_up.wait()


@pytest.mark.parametrize("kind", ["body", "later"])
async def test_answer_is_discarded_when_its_connection_has_ended(
    server: Server, begins: Records, budget: Budget, kind: str
) -> None:
    """Which of the two comes first is a matter of chance, so there are some of each."""
    count, body = 20, Closed()

    def later_for(request: Request) -> Later:
        async def later() -> Reply:
            gone = trio.Event()
            async with request.on_hang_up(gone.set):
                await gone.wait()
            return Reply(200, (), body)

        return later

    for number in range(count):
        async with await server.connect() as stream:
            await stream.send_all(PREFACE)
            client = Client(stream)
            await client.send(client.ask(1, "/q"))
            await begins.until_begun(number + 1)
            reply = Reply(200, (), body) if kind == "body" else later_for(begins.begun[number])
            stream.socket.shutdown(socket.SHUT_WR)
            begins.answers[number](_giving(reply), None)
            await wait_all_tasks_blocked()
    await until_free(budget)
    assert body.count == count
    assert begins.abandoned == 0, "each was answered"


async def test_answer_for_which_there_is_no_memory_resets_its_stream(
    client: Client, begins: Records, budget: Budget
) -> None:
    """It may say that something is done, so that a refusal in its place would be a lie."""
    body = Closed()
    await client.send(client.ask(1, "/q"), client.ask(3, "/q"))
    await begins.until_begun(2)
    with budget.reserve(budget.free):
        begins.answers[0](_giving(Reply(200, (), body)), None)
        with trio.fail_after(PATIENCE_SECONDS):
            while (frame := await client.frame()).stream_id != 1:
                pass
    assert isinstance(frame, RstStreamFrame)
    assert frame.error_code == ErrorCodes.INTERNAL_ERROR
    assert body.count == 1
    begins.answers[1](text(b"the connection goes on"), None)
    assert (await client.answer(3))[1] == b"the connection goes on"
    await until_free(budget)


async def test_answer_with_a_wrong_header_resets_its_stream(
    client: Client, begins: Records, caplog: pytest.LogCaptureFixture
) -> None:
    await client.send(client.ask(1, "/q"), client.ask(3, "/q"))
    await begins.until_begun(2)
    with caplog.at_level(logging.ERROR, logger="mq.web.http2_requests"):
        begins.answers[0](_giving(Reply(200, (("x-first", "1"), ("te", "wrong")))), None)
    assert "Invalid value for TE header" in caplog.text
    with trio.fail_after(PATIENCE_SECONDS):
        while (frame := await client.frame()).stream_id != 1:
            pass
    assert isinstance(frame, RstStreamFrame)
    assert frame.error_code == ErrorCodes.INTERNAL_ERROR
    begins.answers[1](_giving(Reply(200, (("x-first", "1"), ("x-second", "2")), b"right")), None)
    assert await answer_to(client, 3) == ({":status": "200", "x-first": "1", "x-second": "2"}, b"right")


async def test_request_is_answered_while_mq_stops_and_the_connection_ends(
    server: Server, client: Client, begins: Records
) -> None:
    await client.send(client.ask(1, "/q"))
    await begins.until_begun(1)
    server.stop.set()
    await wait_all_tasks_blocked(0.01)
    begins.answers[0](text(b"last"), None)
    assert (await client.answer(1))[1] == b"last"
    with trio.fail_after(PATIENCE_SECONDS):
        while not isinstance(await client.frame(), GoAwayFrame):
            pass
        await server.stopped.wait()


@pytest.mark.slow
async def test_client_that_does_not_read_is_not_read_either(client: Client, begins: Records, budget: Budget) -> None:
    """Its window lets all answers through, but the kernel does not."""
    count, body = 5000, b"x" * 16_000

    async def answer() -> None:
        while True:
            await trio.lowlevel.checkpoint()
            while begins.answers:
                begins.answers.pop()(text(body), None)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        await client.send(OPEN, WindowUpdateFrame(0, window_increment=1 << 30))
        asked = b"".join(client.ask(2 * number + 1, "/q").serialize() for number in range(count))
        nursery.start_soon(client.stream.send_all, asked)
        before = -1
        while before != len(begins.begun):
            before = len(begins.begun)
            await trio.sleep(0.5)  # the sockets are real; what comes later does no harm
        assert 0 < before < count
        nursery.cancel_scope.cancel()
    await client.stream.aclose()
    await until_free(budget)
