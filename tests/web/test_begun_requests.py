"""Requests that begin in the step that read them: their answers come from a completion, straight to the socket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mq.errors import NoSuchMessage
from mq.web.exchange import NO_LENGTH, Abandon, Answer, Handler, Later, Reply, Request
from tests.web.talking import Server, http1, parse, read_all, start_server

PATIENCE_SECONDS = 60


class Begins(Handler):
    """Begins every request, and keeps it.

    Attributes:
        answers: those to call, in the order of the requests.
        abandoned: how many requests were abandoned.
    """

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.abandoned = 0
        self._has_begun = trio.Event()

    async def handle(self, request: Request) -> Reply:
        raise AssertionError("it began")

    def begin(self, request: Request, answer: Answer) -> Reply | Abandon | None:
        self.answers.append(answer)
        self._has_begun.set()
        return self._abandon

    def for_head(self, head: object) -> Handler:
        return self

    def _abandon(self) -> None:
        self.abandoned += 1

    async def until_begun(self, count: int) -> None:
        with trio.fail_after(PATIENCE_SECONDS):
            while len(self.answers) < count:
                self._has_begun = trio.Event()
                await self._has_begun.wait()


def text(body: bytes, **more: Any) -> Callable[[Any], Reply]:
    return lambda _: Reply(200, (("content-length", str(len(body))),), body, **more)


@pytest.fixture
def begins() -> Begins:
    return Begins()


@pytest.fixture
async def server(begins: Begins, nursery: trio.Nursery) -> Server:
    return await start_server(nursery, begins, keep_alive_seconds=PATIENCE_SECONDS)


async def read(client: trio.SocketStream, end: bytes) -> bytes:
    received = b""
    with trio.fail_after(PATIENCE_SECONDS):
        while not received.endswith(end):
            data = await client.receive_some()
            assert data, received
            received += data
    return received


async def test_completion_answers_and_the_connection_goes_on(server: Server, begins: Begins) -> None:
    async with await server.connect() as client:
        for number in (1, 2, 3):
            await client.send_all(http1("GET", "/q/messages"))
            await begins.until_begun(number)
            begins.answers[-1](text(b"answer %d" % number), None)
            assert (await read(client, b"answer %d" % number)).startswith(b"HTTP/1.1 200 ")


async def test_pipelined_requests_are_answered_one_after_the_other(server: Server, begins: Begins) -> None:
    async with await server.connect() as client:
        await client.send_all(http1("GET", "/q/messages") * 2)
        await begins.until_begun(1)
        await wait_all_tasks_blocked()
        assert len(begins.answers) == 1, "the second one waits for the answer to the first"
        begins.answers[0](text(b"first"), None)
        await begins.until_begun(2)
        begins.answers[1](text(b"second"), None)
        assert (await read(client, b"second")).count(b"HTTP/1.1 200 ") == 2


async def test_a_request_that_comes_before_the_answer_waits_for_it(server: Server, begins: Begins) -> None:
    async with await server.connect() as client:
        await client.send_all(http1("GET", "/q/messages"))
        await begins.until_begun(1)
        await wait_all_tasks_blocked()
        await client.send_all(http1("GET", "/q/messages"))
        await wait_all_tasks_blocked(0.01)
        assert len(begins.answers) == 1
        begins.answers[0](text(b"first"), None)
        await begins.until_begun(2)
        begins.answers[1](text(b"second"), None)
        assert (await read(client, b"second")).count(b"HTTP/1.1 200 ") == 2


async def test_a_client_that_closes_its_sending_side_gets_its_answer(server: Server, begins: Begins) -> None:
    async with await server.connect() as client:
        await client.send_all(http1("GET", "/q/messages"))
        await client.send_eof()
        await begins.until_begun(1)
        await wait_all_tasks_blocked(0.01)
        begins.answers[0](text(b"late"), None)
        assert parse(await read_all(client))[2] == b"late"
    assert begins.abandoned == 0


@pytest.mark.parametrize("is_last", [True, False])
async def test_connection_close_ends_the_connection_after_the_answer(
    server: Server, begins: Begins, is_last: bool
) -> None:
    """Of the client, or of the reply."""
    async with await server.connect() as client:
        request = http1("GET", "/q/messages")
        await client.send_all(request if is_last else request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        await begins.until_begun(1)
        await wait_all_tasks_blocked()
        begins.answers[0](text(b"last", is_last=is_last), None)
        with trio.fail_after(PATIENCE_SECONDS):
            _, headers, body = parse(await read_all(client))
        assert (headers["connection"], body) == ("close", b"last")


async def test_a_stop_ends_the_connection_after_the_answer(server: Server, begins: Begins) -> None:
    async with await server.connect() as client, await server.connect() as idle:
        await client.send_all(http1("GET", "/q/messages"))
        await begins.until_begun(1)
        server.stop.set()
        with trio.fail_after(PATIENCE_SECONDS):
            assert await idle.receive_some() == b"", "each connection knows of the stop"
        begins.answers[0](text(b"late"), None)
        with trio.fail_after(PATIENCE_SECONDS):
            assert parse(await read_all(client))[1]["connection"] == "close"
    with trio.fail_after(PATIENCE_SECONDS):
        await server.stopped.wait()


async def test_an_answer_after_which_the_client_is_idle_lets_a_stop_end_at_once(server: Server, begins: Begins) -> None:
    async with await server.connect() as client:
        await client.send_all(http1("GET", "/q/messages"))
        await begins.until_begun(1)
        await wait_all_tasks_blocked()
        begins.answers[0](text(b"done"), None)
        await read(client, b"done")
        server.stop.set()
        with trio.fail_after(PATIENCE_SECONDS):
            assert await client.receive_some() == b""
            await server.stopped.wait()


async def test_an_answer_that_the_kernel_has_no_room_for_arrives_whole(nursery: trio.Nursery) -> None:
    begins = Begins()
    server = await start_server(nursery, begins)
    body = bytes(60_000)
    async with await server.connect() as client:
        with trio.fail_after(PATIENCE_SECONDS):
            count = 200  # together more than the buffers of both sockets
            for number in range(1, count + 1):
                await client.send_all(http1("GET", "/q/messages"))
                if number == 1:
                    await begins.until_begun(1)
            answered = received = 0
            async with trio.open_nursery() as reading:

                async def read_slowly() -> None:
                    nonlocal received
                    while received < count * len(body):
                        received += len(await client.receive_some(1 << 20))

                async def answer() -> None:
                    nonlocal answered
                    while answered < count:
                        await begins.until_begun(answered + 1)
                        begins.answers[answered](text(body), None)
                        answered += 1

                reading.start_soon(answer)
                await wait_all_tasks_blocked(0.05)
                reading.start_soon(read_slowly)
    assert received > count * len(body)


async def test_a_later_reply_is_waited_for_by_the_connection(server: Server, begins: Begins) -> None:
    async def later() -> Reply:
        await trio.lowlevel.checkpoint()
        return text(b"from the disk")(None)

    def make(_: object) -> Later:
        return later

    async with await server.connect() as client:
        for number in (1, 2):
            await client.send_all(http1("GET", "/q/messages"))
            await begins.until_begun(number)
            await wait_all_tasks_blocked()
            begins.answers[-1](make, None)
            await read(client, b"from the disk")


async def test_errors_of_a_completion_are_answered_and_raise_nothing(server: Server, begins: Begins) -> None:
    def refused(_: object) -> Reply:
        raise NoSuchMessage("message is not in queue q")

    def faulty(_: object) -> Reply:
        raise ZeroDivisionError

    async with await server.connect() as client:
        for number, (make, status) in enumerate([(refused, b"404"), (faulty, b"500")], start=1):
            await client.send_all(http1("GET", "/q/messages"))
            await begins.until_begun(number)
            begins.answers[-1](make, None)
            assert (await read(client, b"}\n")).startswith(b"HTTP/1.1 " + status)


async def test_only_the_first_answer_is_sent(server: Server, begins: Begins) -> None:
    async with await server.connect() as client:
        await client.send_all(http1("GET", "/q/messages"))
        await begins.until_begun(1)
        begins.answers[0](text(b"first"), None)
        begins.answers[0](text(b"again"), None)
        await client.send_all(http1("GET", "/q/messages"))
        await begins.until_begun(2)
        begins.answers[1](text(b"second"), None)
        received = await read(client, b"second")
    assert b"again" not in received
    assert received.count(b"HTTP/1.1 200 ") == 2


async def test_a_request_whose_connection_is_cut_off_is_abandoned_once(nursery: trio.Nursery) -> None:
    begins = Begins()
    server = await start_server(nursery, begins, grace_seconds=0.1)
    async with await server.connect() as client:
        await client.send_all(http1("GET", "/q/messages"))
        await begins.until_begun(1)
        server.stop.set()
        with trio.fail_after(PATIENCE_SECONDS):
            await server.stopped.wait()
        assert begins.abandoned == 1
        begins.answers[0](text(b"too late"), None)
    assert begins.abandoned == 1


async def test_an_answer_in_the_same_step_is_sent(nursery: trio.Nursery) -> None:
    class AtOnce(Begins):
        def begin(self, request: Request, answer: Answer) -> Reply | Abandon | None:
            abandon = super().begin(request, answer)
            answer(lambda body: Reply(201, (NO_LENGTH,), body), b"")
            return abandon

    server = await start_server(nursery, AtOnce())
    async with await server.connect() as client:
        for _ in range(3):
            await client.send_all(http1("GET", "/q/messages"))
            assert (await read(client, b"\r\n\r\n")).startswith(b"HTTP/1.1 201 ")
