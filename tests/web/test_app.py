"""The app between a server and the endpoints: ASGI events in and out, endpoints that do as the test says."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from mq.errors import CorruptMessage, MQError, StorageFailed
from mq.message import BytesBody
from mq.web.app import WebApp
from mq.web.exchange import DISCARD_SECONDS, Reply, Request, empty
from tests.web.talking import checked_detail

HTTP_VERSIONS = pytest.mark.parametrize("version", ["1.1", "2"])
LAST = {"type": "http.request", "body": b"", "more_body": False}
GONE = {"type": "http.disconnect"}


class Asgi:
    """A server with one request. What it receives from the app is in `sent`."""

    def __init__(self, *events: dict[str, object], version: str = "1.1", raw_path: bytes = b"/q") -> None:
        self.sent: list[dict[str, object]] = []
        self.asked = 0
        self._to_app, self._of_app = trio.open_memory_channel[dict[str, object]](100)
        for event in events:
            self.tell(event)
        self.scope = {
            "type": "http",
            "method": "GET",
            "path": raw_path.decode("latin-1"),
            "raw_path": raw_path,
            "query_string": b"a=%20",
            "http_version": version,
            "scheme": "http",
            "headers": [(b"host", b"\xff[:" + b"x" * 70), (b"content-type", b"caf\xe9")],
            "client": None,
            "server": None,
            "root_path": "",
            "extensions": {},
        }

    def tell(self, event: dict[str, object]) -> None:
        self._to_app.send_nowait(event)

    async def receive(self) -> dict[str, object]:
        self.asked += 1
        return await self._of_app.receive()

    async def send(self, event: dict[str, object]) -> None:
        await trio.lowlevel.checkpoint()
        self.sent.append(event)

    async def run(self, handle: Callable[[Request], Awaitable[Reply]]) -> None:
        class Endpoints:
            async def handle(self, request: Request) -> Reply:
                return await handle(request)

        await WebApp(Endpoints())(self.scope, self.receive, self.send)

    @property
    def body(self) -> bytes:
        return b"".join(event["body"] for event in self.sent if event["type"] == "http.response.body")

    @property
    def is_ended(self) -> bool:
        return self.sent[-1]["type"] == "http.response.body" and not self.sent[-1]["more_body"]


class Pieces(BytesBody):
    """A body in pieces of one byte, that may break, and knows whether it was closed."""

    def __init__(self, data: bytes, error: MQError | None = None) -> None:
        super().__init__(data)
        self._error = error
        self.is_closed = False

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        for byte in await self.read():
            yield bytes([byte])
        if self._error:
            raise self._error

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
        self.is_closed = True


def large(body: Pieces) -> Reply:
    return Reply(200, (("content-length", str(body.size)),), body)


async def test_the_request_is_told_as_it_came() -> None:
    async def handle(request: Request) -> Reply:
        assert request.method == "GET"
        assert request.path == b"//%2e%2e/?\xff"
        assert request.query == b"a=%20"
        assert request.headers["content-type"] == "caf\xe9"
        assert request.content_length is None
        assert [chunk async for chunk in request.body] == [b"chunk"]
        return empty(201)

    server = Asgi({**LAST, "body": b"chunk"}, raw_path=b"//%2e%2e/?\xff")
    await server.run(handle)
    assert server.sent[0]["status"] == 201


async def test_a_header_that_is_there_twice_is_one_with_a_comma() -> None:
    async def handle(request: Request) -> Reply:
        assert request.headers["accept"] == "a/b, c/d"
        return empty(200)

    server = Asgi(LAST)
    server.scope["headers"] = [(b"accept", b"a/b"), (b"host", b"mq"), (b"accept", b"c/d")]
    await server.run(handle)
    assert server.sent[0]["status"] == 200


async def test_a_request_without_any_path_is_told_too() -> None:
    async def handle(request: Request) -> Reply:
        assert request.path == b""
        return empty(404)

    server = Asgi(LAST, raw_path=b"")
    await server.run(handle)
    assert server.sent[0]["status"] == 404


async def test_the_response_has_the_headers_of_the_reply_and_no_others() -> None:
    async def handle(request: Request) -> Reply:
        return Reply(204, (("x-message-id", "caf\xe9"),))

    server = Asgi(LAST)
    await server.run(handle)
    assert server.sent[0] == {
        "type": "http.response.start",
        "status": 204,
        "headers": [(b"x-message-id", b"caf\xe9")],
    }
    assert server.body == b""
    assert server.is_ended


@pytest.mark.parametrize(("version", "headers"), [("1.1", [(b"connection", b"close")]), ("2", [])])
async def test_a_last_reply_closes_a_connection_of_http1(version: str, headers: list[tuple[bytes, bytes]]) -> None:
    async def handle(request: Request) -> Reply:
        return Reply(413, is_last=True)

    server = Asgi(LAST, version=version)
    await server.run(handle)
    assert server.sent[0]["headers"] == headers


@HTTP_VERSIONS
async def test_a_large_body_is_sent_piece_by_piece_and_closed(version: str) -> None:
    body = Pieces(b"pieces")

    async def handle(request: Request) -> Reply:
        return large(body)

    server = Asgi(LAST, version=version)
    await server.run(handle)
    assert (server.body, server.is_ended, len(server.sent)) == (b"pieces", True, 8)
    assert body.is_closed


async def test_a_client_that_only_ends_its_side_is_answered_in_full() -> None:
    body = Pieces(b"pieces")

    async def handle(request: Request) -> Reply:
        return large(body)

    server = Asgi(LAST, GONE)
    await server.run(handle)
    assert (server.body, server.is_ended, body.is_closed) == (b"pieces", True, True)


@pytest.mark.parametrize(("version", "ends"), [("1.1", False), ("2", True)])
@pytest.mark.parametrize("error", [CorruptMessage("rotten"), StorageFailed("failed")])
async def test_a_body_that_breaks_is_not_passed_off_as_whole(
    version: str, ends: bool, error: MQError, caplog: pytest.LogCaptureFixture
) -> None:
    body = Pieces(b"pieces", error)

    async def handle(request: Request) -> Reply:
        return Reply(200, (("content-length", "100"),), body)

    server = Asgi(LAST, version=version)
    await server.run(handle)
    assert server.body == b"pieces"
    assert server.is_ended == ends  # HTTP/2 has no other way from here; the length tells
    assert body.is_closed
    assert str(error) in caplog.text


async def test_an_unforeseen_error_is_500_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def handle(request: Request) -> Reply:
        raise LookupError("a bug")

    server = Asgi(LAST)
    await server.run(handle)
    headers = dict(server.sent[0]["headers"])
    assert server.sent[0]["status"] == 500
    assert "a bug" not in checked_detail(500, headers[b"content-type"].decode(), server.body)
    assert "a bug" in caplog.text
    assert caplog.records[0].levelno == logging.ERROR


# Backpressure: the server's queue is short, and it waits for room in it.


async def test_a_body_is_not_read_ahead(autojump_clock: MockClock) -> None:
    server = Asgi(*({**LAST, "body": b"x", "more_body": True} for _ in range(10)), LAST)

    async def handle(request: Request) -> Reply:
        await trio.sleep(1)  # a slow disk
        assert server.asked == 0
        await anext(aiter(request.body))
        await trio.sleep(1)
        assert server.asked == 1
        return empty(201)

    await server.run(handle)


async def test_what_was_not_read_is_discarded_before_the_end_is_sent(autojump_clock: MockClock) -> None:
    async def handle(request: Request) -> Reply:
        return Reply(413, body=b"too large")

    server = Asgi(*({**LAST, "body": b"x", "more_body": True} for _ in range(10)), LAST)
    await server.run(handle)
    assert server.asked >= 11
    assert (server.body, server.is_ended) == (b"too large", True)
    assert trio.current_time() == 0


async def test_discarding_does_not_last_for_ever(autojump_clock: MockClock) -> None:
    async def handle(request: Request) -> Reply:
        return Reply(413, body=b"too large")

    server = Asgi({**LAST, "body": b"x", "more_body": True})
    await server.run(handle)
    assert (server.body, server.is_ended) == (b"too large", True)
    assert trio.current_time() == DISCARD_SECONDS


async def test_the_servers_queue_is_kept_empty_while_it_ends_the_response() -> None:
    """Hypercorn tells of the end of the stream through that queue, from within the last send."""

    async def handle(request: Request) -> Reply:
        return Reply(413, body=b"too large")

    server = Asgi(*({**LAST, "body": b"x", "more_body": True} for _ in range(99)), LAST)
    send = server.send

    async def send_and_tell(event: dict[str, object]) -> None:
        await send(event)
        await server._to_app.send(GONE)

    server.send = send_and_tell
    with trio.fail_after(10):
        await server.run(handle)
    assert server.is_ended


async def test_a_websocket_is_refused() -> None:
    server = Asgi({"type": "websocket.connect"})
    server.scope = {**server.scope, "type": "websocket", "subprotocols": []}
    await server.run(None)
    start, body = server.sent
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 400)
    assert "WebSocket" in checked_detail(400, dict(start["headers"])[b"content-type"].decode(), body["body"])
