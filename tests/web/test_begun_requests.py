"""Requests that begin in the step that read them: their answers come from a completion, straight to the socket."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mq.access import UserDirectory
from mq.broker import Broker
from mq.doors.logins import Logins
from mq.errors import NoSuchMessage
from mq.web.authorizer import Authorizer
from mq.web.endpoints import Endpoints
from mq.web.exchange import NO_LENGTH, Abandon, Answer, Handler, Later, Reply, Request
from tests.access.files import OTHER_TOKEN, PASSWORD, TOKEN, write_users
from tests.broker.inside import wiring_of
from tests.web.talking import MAX_BODY, Server, http1, parse, read_all, start_server

PATIENCE_SECONDS = 60


class Begins(Handler):
    """Begins every request, and keeps it.

    Attributes:
        answers: those to call, in the order of the requests.
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


@pytest.mark.parametrize("error", [RuntimeError("a test"), NoSuchMessage("a test")])
async def test_a_request_that_fails_after_its_answer_is_not_answered_again(
    error: Exception, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    class AnswersAndFails(Begins):
        def begin(self, request: Request, answer: Answer) -> Reply | Abandon | None:
            answer(text(b"done"), None)
            raise error

    server = await start_server(nursery, AnswersAndFails())
    async with await server.connect() as client:
        await client.send_all(http1("GET", "/q/messages") * 2)
        await client.send_eof()
        assert (await read_all(client)).count(b"HTTP/1.1") == 2


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


# Behind the authorizer

USERS = """
[users.shop]
tokens = ["TOKEN"]
publish = ["q"]
consume = ["q"]
{}
[users.ben]
password = "PASSWORD"
publish = ["q"]
"""


class Counting(Broker):
    """A broker that counts what begins in the step that read it."""

    begun = 0


class Guarded:
    """A server with users, and a broker with queues q and r."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.access = UserDirectory(write_users(path, USERS.format("")))

    def change(self, limits: str = "", token: str = "TOKEN") -> None:
        write_users(self._path, USERS.format(limits).replace("TOKEN", token))
        self.access.reload()


@pytest.fixture
def counted(broker: Broker) -> Counting:
    broker.__class__ = Counting
    assert isinstance(broker, Counting)
    publish_now = broker.publish_now

    def count(*args: Any) -> bool:
        broker.begun += 1
        return publish_now(*args)

    broker.publish_now = count
    return broker


@pytest.fixture
def guarded(tmp_path: Path) -> Guarded:
    return Guarded(tmp_path / "users")


@pytest.fixture
async def guarded_server(counted: Counting, guarded: Guarded, nursery: trio.Nursery) -> Server:
    await counted.create_queue("q")
    await counted.create_queue("r")
    return await start_server(nursery, Authorizer(Endpoints(counted, MAX_BODY), Logins(guarded.access)))


async def status(client: trio.SocketStream, method: str, path: str, credentials: str, body: bytes = b"x") -> int:
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: mq\r\nAuthorization: {credentials}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    await client.send_all(head.encode() + body)
    received = b""
    with trio.fail_after(PATIENCE_SECONDS):
        while b"\r\n\r\n" not in received:
            received += await client.receive_some()
        found = re.search(rb"content-length: (\d+)", received)
        length = int(found[1]) if found else 0
        while len(received.partition(b"\r\n\r\n")[2]) < length:
            received += await client.receive_some()
    return int(received[9:12])


@pytest.mark.parametrize(
    "credentials", [f"Bearer {TOKEN}", "Basic " + base64.b64encode(f"ben:{PASSWORD}".encode()).decode()]
)
async def test_a_known_user_begins_from_the_second_request_on(
    guarded_server: Server, counted: Counting, credentials: str
) -> None:
    async with await guarded_server.connect() as client:
        assert [await status(client, "POST", "/q/messages", credentials) for _ in range(3)] == [201, 201, 201]
    assert counted.begun == 2


async def test_rights_and_credentials_count_for_each_begun_request(
    guarded_server: Server, counted: Counting, guarded: Guarded
) -> None:
    async with await guarded_server.connect() as client:
        token = f"Bearer {TOKEN}"
        assert await status(client, "POST", "/q/messages", token) == 201
        assert await status(client, "POST", "/r/messages", token) == 403
        assert await status(client, "POST", "/%71/messages", token) == 201
        assert await status(client, "POST", "/q/messages", "Bearer wrong") == 401
        assert await status(client, "POST", "/q/messages", token) == 201
        assert counted.begun == 2
        guarded.change(token="OTHER_TOKEN")
        assert await status(client, "POST", "/q/messages", token) == 401
        assert await status(client, "POST", "/q/messages", f"Bearer {OTHER_TOKEN}") == 201


async def test_begun_publishes_count_against_the_users_rate(
    guarded_server: Server, counted: Counting, guarded: Guarded
) -> None:
    guarded.change("max_publish_rate = 3")
    async with await guarded_server.connect() as client:
        while (found := await status(client, "POST", "/q/messages", f"Bearer {TOKEN}")) == 201:
            pass  # faster than three a second
    assert found == 429
    assert counted.begun >= 2


async def test_begun_fetch_and_removal_of_a_user(guarded_server: Server, counted: Counting) -> None:
    token = f"Bearer {TOKEN}"
    async with await guarded_server.connect() as client:
        assert await status(client, "POST", "/q/messages", token) == 201
        id = (await counted.peek("q"))[0].message.id
        assert await status(client, "GET", "/q/messages", token, b"") == 200
        assert await status(client, "GET", "/q/messages", token, b"") == 204
        assert await status(client, "DELETE", f"/r/messages/{id}", token, b"") == 403
        assert await status(client, "DELETE", f"/q/messages/{id}", token, b"") == 202
        assert await status(client, "DELETE", f"/q/messages/{id}", token, b"") == 404


async def test_a_fetch_that_waits_has_no_task_of_its_own(broker: Broker, nursery: trio.Nursery) -> None:
    await broker.create_queue("q")
    server = await start_server(nursery, Endpoints(broker, MAX_BODY))
    clients = [await server.connect() for _ in range(10)]
    for client in clients:  # each connection has its task from here on
        await client.send_all(http1("GET", "/q/messages"))
        await read(client, b"\r\n\r\n")
    await wait_all_tasks_blocked()
    idle = trio.lowlevel.current_statistics().tasks_living
    for client in clients:
        await client.send_all(http1("GET", "/q/messages?wait=60"))
    waiters = wiring_of(broker).waiters
    with trio.fail_after(PATIENCE_SECONDS):
        while sum(line.wanted for line in waiters.queues.values()) < len(clients):
            await trio.sleep(0.001)
    await wait_all_tasks_blocked()
    assert trio.lowlevel.current_statistics().tasks_living == idle
    for client in clients:
        await client.aclose()
