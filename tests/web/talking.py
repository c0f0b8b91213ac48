"""How tests talk to the endpoints, to the app and to a served app."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

import trio

from mq.access.certificates import Certificates
from mq.doors.budget import Budget
from mq.doors.open_connections import OpenConnections
from mq.lifecycle import State
from mq.storage.interface import QUEUE, Storage
from mq.web.app import WebApp
from mq.web.exchange import Handler, Reply, Request
from mq.web.replies import StreamedPage
from mq.web.serve import GRACE_SECONDS, KEEP_ALIVE_SECONDS, serve

MAX_BODY = 1 << 20

BAD_NAMES = (
    "..",
    ".",
    ".hidden",
    "%2e%2e",
    "%2e",
    "..%2f..%2fetc",
    "a%2fb",
    "a%2Fmessages",
    "a%5cb",
    "a:b",
    "a%3ab",
    "a%00",
    "%00",
    "a%0a",
    "a%0d%0ab",
    "a%20b",
    "a" * 101,
    "%61" * 101,
    "caf%c3%a9",
    "%ff",
    "-dash",
    "~home",
    "a%",
    "a%2",
    "a%zz",
    "%2561",
    "a+b",
    "a,b",
    "a;b",
    "a*",
    "-",
)
"""One segment of a path each; no queue may have such a name."""


async def ask(
    endpoints: Handler,
    method: str,
    path: str,
    *chunks: bytes,
    headers: Mapping[str, str] | None = None,
    content_length: int | None = None,
    address: str = "",
) -> Reply:
    async with contextlib.aclosing(stream(*chunks)) as body:
        request = Request(method, path.encode(), b"", headers or {}, body, content_length, address=address)
        request = Request(method, path.encode(), b"", headers or {}, body, content_length, address=address)
        return await whole(await endpoints.handle(request))


async def whole(reply: Reply) -> Reply:
    """The reply, with all of its body where that is a batch that is made while it is sent."""
    if not isinstance(reply.body, StreamedPage):
        return reply
    body = b"".join([piece async for piece in reply.body])
    await reply.body.aclose()
    return reply._replace(body=body)


async def stream(*chunks: bytes) -> AsyncGenerator[bytes, None]:
    for chunk in chunks:
        await trio.lowlevel.checkpoint()
        yield chunk


async def publish(endpoints: Handler, queue: str, *chunks: bytes, **more: object) -> str:
    reply = await ask(endpoints, "POST", f"/{queue}/messages", *chunks, **more)
    assert reply.status == 201
    return dict(reply.headers)["x-message-id"]


def detail(reply: Reply) -> str:
    """The reason that a refusal gives; it has the form of RFC 9457, or this fails."""
    assert isinstance(reply.body, bytes)
    return checked_detail(reply.status, dict(reply.headers)["content-type"], reply.body)


def checked_detail(status: int, content_type: str, body: bytes) -> str:
    assert content_type == "application/problem+json"
    value = json.loads(body)
    assert value.keys() - {"outcome"} == {"type", "title", "status", "detail"}
    assert value.get("outcome", "unknown") == "unknown"
    assert value["status"] == status
    assert value["title"]
    assert value["detail"]
    assert value["detail"].isprintable()  # so it is one line, too
    return value["detail"]


async def contents(store: Storage) -> tuple[list[str], int]:
    """The queues, and how many messages there are anywhere."""
    queues = sorted(await store.records(QUEUE))
    entries = [entry for state in (State.NEW, State.DELAYED, State.REMOVED) for entry in await store.scan(state)]
    for queue in queues:
        entries += await store.scan(State.READY, queue)
    return queues, len({entry.id for entry in entries})  # one that was delivered meanwhile was seen twice


@dataclass
class Server:
    """A served app. Set `stop` to stop it; `stopped` tells that it has."""

    url: str
    stop: trio.Event
    stopped: trio.Event

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)

    async def until_refused(self) -> None:
        """Until it accepts nobody."""
        with trio.fail_after(10), contextlib.suppress(OSError):
            while True:
                await (await self.connect()).aclose()

    async def exchange(self, data: bytes, *, half_close: bool = False) -> bytes:
        """Send, and everything that comes back until the server closes. Half-closing is the way to make it close."""
        async with await self.connect() as stream:
            await stream.send_all(data)
            if half_close:
                await stream.send_eof()
            return await read_all(stream)


async def start_server(
    nursery: trio.Nursery,
    endpoints: Handler,
    *,
    certificates: Certificates | None = None,
    fast_lane: bool = True,
    grace_seconds: float = GRACE_SECONDS,
    seen: OpenConnections | None = None,
    budget: Budget | None = None,
    needs_login: bool = False,
    keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
) -> Server:
    """A server on a port of its own."""
    stop, stopped = trio.Event(), trio.Event()

    async def serve_and_tell(task_status: trio.TaskStatus[list[str]]) -> None:
        await serve(
            WebApp(endpoints, needs_login=needs_login),
            "127.0.0.1",
            0,
            stop=stop.wait,
            certificates=certificates,
            fast_lane=fast_lane,
            grace_seconds=grace_seconds,
            seen=seen,
            budget=budget,
            keep_alive_seconds=keep_alive_seconds,
            task_status=task_status,
        )
        stopped.set()

    [url] = await nursery.start(serve_and_tell)
    return Server(url, stop, stopped)


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    received = b""
    async for data in stream:
        received += data
    return received


def parse(response: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the only response in `response`."""
    head, _, body = response.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    assert int(headers.get("content-length", 0)) == len(body)
    return int(lines[0].split()[1]), headers, body


def http1(method: str, target: str, body: bytes | None = None, *lines: str) -> bytes:
    """A request, with a Content-Length where there is a body."""
    length = [] if body is None else [f"Content-Length: {len(body)}"]
    head = [f"{method} {target} HTTP/1.1", "Host: localhost", *length, *lines]
    return "\r\n".join([*head, "", ""]).encode("latin-1") + (body or b"")
