"""Which member is asked when one fails, and what is known then. The members are sockets that do as they are told, and
clocks are real: nothing but sockets says whether a connection that was kept is still good.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from mq_etcd.client import Client, open_client
from mq_etcd.errors import Denied, NoSpace, Unavailable, Uncertain

from mq.testing.ports import HeldPort

PATIENCE = 1.0
GOOD = b'{"header":{"revision":"7"}}'


def reply(content: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(content), content)


def refusal(code: int, text: str) -> bytes:
    return reply(b'{"error":"%s","message":"","code":%d}' % (text.encode(), code), "500 Whatever")


Answer = bytes | None
"""What a member answers; None for silence, empty for hanging up."""


class Stub:
    """A member that answers what it is told to, one request after another, and the last for ever."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.requests: list[bytes] = []
        self.port = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, task_status: trio.TaskStatus[None]) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        await trio.serve_listeners(self._handle, listeners, task_status=task_status)

    async def _handle(self, stream: trio.SocketStream) -> None:
        async with stream:
            while True:
                data = b""
                while b"\r\n\r\n" not in data or len(data.partition(b"\r\n\r\n")[2]) < length_of(data):
                    more = await stream.receive_some(65536)
                    if not more:
                        return
                    data += more
                self.requests.append(data)
                answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
                if answer is None:
                    await trio.sleep_forever()
                if not answer:
                    return
                await stream.send_all(answer)


def length_of(request: bytes) -> int:
    head = request.partition(b"\r\n\r\n")[0]
    return int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])


@asynccontextmanager
async def asking(*stubs: Stub, deadline: float = 3.0, **options: object) -> AsyncIterator[Client]:
    async with trio.open_nursery() as nursery:
        for stub in stubs:
            await nursery.start(stub.serve)
        endpoints = [stub.endpoint for stub in stubs]
        async with open_client(endpoints, patience=PATIENCE, deadline=deadline, **options) as client:  # type: ignore[arg-type]
            yield client
        nursery.cancel_scope.cancel()


BUSY = refusal(14, "etcdserver: no leader")
TIMED_OUT = refusal(14, "etcdserver: request timed out")
HALF = reply(GOOD)[:-5]

NOT_DONE = {"no leader": BUSY, "too busy": refusal(8, "etcdserver: too many requests")}
NOT_KNOWN: dict[str, Answer] = {
    "silence": None,
    "hanging up": b"",
    "timed out": TIMED_OUT,
    "leader changed": refusal(14, "etcdserver: leader changed"),
    "not an HTTP/1.1 response": b"220 smtp.example.org\r\n\r\n",
    "not JSON": reply(b"<html>"),
}


@pytest.fixture(params=[*NOT_DONE.items(), *NOT_KNOWN.items()], ids=lambda item: item[0])
def failure(request: pytest.FixtureRequest) -> Answer:
    return request.param[1]


async def test_another_member_is_asked(failure: Answer) -> None:
    failing, good = Stub(failure), Stub(reply(GOOD))
    async with asking(failing, good) as client:
        assert await client.get("key") is None
        assert await client.put("key", b"value") == 7
        assert (len(failing.requests), len(good.requests)) == (1, 2), "the one that answers is asked first from then on"


@pytest.mark.parametrize("answer", NOT_KNOWN.values(), ids=NOT_KNOWN)
async def test_a_change_that_may_have_landed_is_not_repeated_unasked(answer: Answer) -> None:
    failing, good = Stub(answer), Stub(reply(GOOD))
    async with asking(failing, good) as client:
        with pytest.raises(Uncertain):
            await client.put("key", b"value", repeats=False)
        assert not good.requests


@pytest.mark.parametrize("answer", NOT_DONE.values(), ids=NOT_DONE)
async def test_a_change_that_was_not_begun_is_repeated(answer: Answer) -> None:
    async with asking(Stub(answer), Stub(reply(GOOD))) as client:
        assert await client.put("key", b"value", repeats=False) == 7


async def test_a_member_that_is_not_there_is_passed_over() -> None:
    async with asking(Stub(reply(GOOD))) as one:
        [endpoint] = one.endpoints
        nobody = HeldPort()
        async with open_client([f"http://127.0.0.1:{nobody}", str(endpoint)]) as client:
            assert await client.put("key", b"value", repeats=False) == 7


async def test_comes_back_to_one_that_recovers() -> None:
    async with asking(Stub(BUSY, BUSY, BUSY, reply(GOOD)), Stub(BUSY)) as client:
        assert await client.put("key", b"value", repeats=False) == 7


@pytest.mark.parametrize(
    ("answers", "error", "text"),
    [
        ((BUSY, BUSY), Unavailable, "no etcd member responded within 0.5 seconds.*no leader.*running"),
        ((BUSY, None), Uncertain, "did not report the outcome of a change within 0.5 seconds.*is not responding"),
    ],
)
async def test_gives_up_in_time(answers: tuple[Answer, ...], error: type[Exception], text: str) -> None:
    started = trio.current_time()
    async with asking(*map(Stub, answers), deadline=0.5) as client:
        with pytest.raises(error, match=text):
            await client.put("key", b"value")
        with pytest.raises(Unavailable, match="responded"):
            await client.get("key")
    assert trio.current_time() - started < 3, "two calls of half a second"


async def test_what_was_uncertain_once_stays_so() -> None:
    """Though the same member says afterwards that it cannot."""
    async with asking(Stub(None, BUSY), deadline=0.5) as client:
        with pytest.raises(Uncertain):
            await client.put("key", b"value")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (refusal(8, "etcdserver: mvcc: database space exceeded"), NoSpace),
        (refusal(7, "etcdserver: permission denied"), Denied),
    ],
)
async def test_what_every_member_would_say_is_asked_once(answer: bytes, error: type[Exception]) -> None:
    first, second = Stub(answer), Stub(reply(GOOD))
    async with asking(first, second) as client:
        with pytest.raises(error, match=f"etcd at {first.endpoint} returned an error"):
            await client.put("key", b"value")
        assert not second.requests


async def test_a_connection_is_kept() -> None:
    stub = Stub(reply(GOOD))
    connections = counted(stub)
    async with asking(stub) as client:
        for _ in range(5):
            await client.get("key")
    assert connections() == 1


@pytest.mark.parametrize(
    "last", [reply(GOOD) + b"unasked", reply(GOOD).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")]
)
async def test_a_connection_that_is_of_no_more_use_is_not(last: bytes) -> None:
    stub = Stub(last, reply(GOOD))
    connections = counted(stub)
    async with asking(stub) as client:
        for _ in range(3):
            await client.put("key", b"value", repeats=False)
    assert connections() == 2


async def test_a_connection_that_the_member_has_closed_is_not() -> None:
    """Else what is sent on it would be uncertain."""
    stub = Stub(reply(GOOD), b"", reply(GOOD))
    async with asking(stub) as client:
        await client.put("key", b"value")
        with pytest.raises(Uncertain):
            await client.put("key", b"value", repeats=False)
        await client.put("key", b"value", repeats=False)


async def test_who_is_cancelled_leaves_nothing_behind() -> None:
    """The reply that comes late is not taken for that of the next request."""
    stub = Stub(None, reply(GOOD))
    async with asking(stub) as client:
        with trio.move_on_after(0.05) as scope:
            await client.put("key", b"value")
        assert scope.cancelled_caught
        assert await client.put("key", b"value") == 7


async def test_logs_in_once_and_again_when_the_token_is_old() -> None:
    token, old = reply(b'{"token":"t.1"}'), refusal(16, "etcdserver: invalid auth token")
    stub = Stub(token, reply(GOOD), reply(GOOD), old, token, reply(GOOD))
    async with asking(stub, user=("mq", "secret")) as client:
        for _ in range(3):
            assert await client.put("key", b"value", repeats=False) == 7
    asked = [(request.split(b" ")[1], b"Authorization: t.1\r\n" in request) for request in stub.requests]
    login, put = (b"/v3/auth/authenticate", False), (b"/v3/kv/put", True)
    assert asked == [login, put, put, put, login, put]


async def test_a_wrong_password_is_said() -> None:
    wrong = refusal(3, "etcdserver: authentication failed, invalid user ID or password")
    async with asking(Stub(wrong), user=("mq", "wrong")) as client:
        with pytest.raises(Denied, match="Set the user and password"):
            await client.get("key")


@pytest.mark.parametrize(
    "endpoint", ["127.0.0.1:2379", "ftp://host", "http://", "http://host:port", "http://host/path", "http://u@host"]
)
async def test_says_what_is_no_endpoint(endpoint: str) -> None:
    with pytest.raises(ValueError, match="such as http://"):
        Client([endpoint])


async def test_one_endpoint_there_must_be() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Client([])


def counted(stub: Stub) -> Callable[[], int]:
    """How often a stub was connected to."""
    handle, count = stub._handle, 0

    async def counting(stream: trio.SocketStream) -> None:
        nonlocal count
        count += 1
        await handle(stream)

    stub._handle = counting  # type: ignore[method-assign]
    return lambda: count
