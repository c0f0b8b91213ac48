"""The endpoints: a request in, a reply out. Everything that decides a status or a header is here, and nothing that
knows of sockets or frameworks, so that every HTTP door gives the same answers."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Concatenate, Final, NamedTuple
from urllib.parse import unquote_to_bytes

import trio

from mq.broker import Broker
from mq.errors import (
    BodyIncomplete,
    BodyTooLarge,
    BrokerClosed,
    CallerError,
    CorruptMessage,
    InvalidId,
    MQError,
    NoSuchMessage,
    NoSuchQueue,
    StorageError,
)
from mq.message import MessageId, QueueName, shorten
from mq.web.exchange import BodyTooSlow, Reply, Request, document, empty, problem

IN_MEMORY_BYTES: Final = 64 * 1024
"""Bodies up to this size are held in memory; longer ones stream to and from the store."""
RETRY_AFTER_SECONDS: Final = 10
"""What a client is told to wait when the store cannot take its request. The program of 2013 said the same."""
DEFAULT_CONTENT_TYPE: Final = "application/octet-stream"

NO_WEBSOCKET: Final = problem(400, "there is no WebSocket here: use plain HTTP")
"""The answer to a WebSocket handshake, whatever its path."""

_STATUS: Final[tuple[tuple[type[MQError], int], ...]] = (
    (NoSuchQueue, 404),
    (NoSuchMessage, 404),
    (InvalidId, 404),
    (BodyTooLarge, 413),
    (BodyTooSlow, 408),
    (CallerError, 400),
    (StorageError, 503),
    (BrokerClosed, 503),
    (CorruptMessage, 500),
)
"""Error -> status; the first line that fits counts."""

_ENDS_CONNECTION: Final = (BodyIncomplete, BodyTooLarge, BodyTooSlow)
"""After these the rest of the request is not worth waiting for."""

_ORIGIN: Final = re.compile(rb"^https?://[^/]*", re.IGNORECASE)  # RFC 9112, section 3.2.2
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]+")
_NOT_CACHED: Final = ("cache-control", "no-store")  # a fetch leases: no cache may answer for it


class Endpoints:
    """All of them, over one broker.

    Args:
        broker: an open one.
        max_body: the longest body of a message in bytes.
    """

    def __init__(self, broker: Broker, max_body: int) -> None:
        self._broker = broker
        self._max_body = max_body

    async def handle(self, request: Request) -> Reply:
        """The reply to `request`. Its body is the caller's to close."""
        try:
            reply = await self._route(request)
        except MQError as error:
            reply = _refusal(error)
        return reply._replace(body=b"") if request.method == "HEAD" else reply

    async def _route(self, request: Request) -> Reply:
        if "transfer-encoding" in request.headers and "content-length" in request.headers:
            # RFC 9112, section 6.1: a sign of request smuggling
            return problem(400, "a request has Transfer-Encoding or Content-Length, not both")._replace(is_last=True)
        segments = _segments(request.path)
        for route in ROUTES:
            arguments = route.match(segments)
            if arguments is not None:
                handler = route.methods.get(request.method)
                if handler is None:
                    allowed = ", ".join(route.methods)
                    return problem(405, f"this path allows {allowed}", ("allow", allowed))
                return await handler(self, request, *arguments)
        return problem(404, f"nothing is at this path: {shorten(_shown(request.path))}")

    async def live(self, request: Request) -> Reply:
        """The process answers."""
        return document(200, {"live": True})

    async def ready(self, request: Request) -> Reply:
        """The store takes changes."""
        if self._broker.ready:
            return document(200, {"ready": True})
        return problem(503, "the store has failed: see the log, then start mq anew", _retry_after())

    async def get_queue(self, request: Request, name: str) -> Reply:
        """Is the queue there?"""
        return document(200, {"name": await self._known_queue(name)})

    async def create_queue(self, request: Request, name: str) -> Reply:
        """Make the queue. The body does not matter (seed MQ)."""
        queue = QueueName(name)
        is_new = await self._broker.create_queue(queue)
        return document(201 if is_new else 200, {"name": queue})

    async def delete_queue(self, request: Request, name: str) -> Reply:
        """Delete the queue and all its messages."""
        await self._broker.delete_queue(QueueName(name))
        return empty(200)

    async def fetch(self, request: Request, name: str) -> Reply:
        """Lease a message."""
        message = await self._broker.fetch(QueueName(name))
        if message is None:
            return empty(204, _NOT_CACHED)
        headers = (
            ("x-message-id", message.id),
            ("content-type", _content_type(message.properties.attributes)),
            ("content-length", str(message.body.size)),
            _NOT_CACHED,
        )
        if message.body.size > IN_MEMORY_BYTES:
            return Reply(200, headers, message.body)
        try:
            return Reply(200, headers, await message.body.read())
        finally:
            with trio.CancelScope(shield=True):
                await message.body.aclose()

    async def publish(self, request: Request, name: str) -> Reply:
        """Publish a message."""
        queue = await self._known_queue(name)
        body = _Incoming(request, self._max_body)
        content_type = request.headers.get("content-type")
        attributes = {"content_type": content_type} if content_type else {}
        small = await body.read_small()
        # a staged body is the broker's to discard once it is given to publish
        id = await self._broker.publish(queue, await self._broker.stage(body) if small is None else small, attributes)
        return empty(201, ("x-message-id", id))

    async def remove(self, request: Request, name: str, id: str) -> Reply:
        """Remove a message."""
        await self._broker.remove(QueueName(name), MessageId(id))
        return empty(202)

    async def _known_queue(self, name: str) -> QueueName:
        queue = QueueName(name)
        if not await self._broker.has_queue(queue):
            raise NoSuchQueue(f"no queue named {queue}: create it with PUT /{queue}")
        return queue


class Route(NamedTuple):
    """One line of the table.

    Attributes:
        path: its segments; None stands for any, which is handed to the handler.
        methods: handler by method; their order is that of Allow.
    """

    path: tuple[str | None, ...]
    methods: Mapping[str, Callable[Concatenate[Endpoints, Request, ...], Awaitable[Reply]]]

    def match(self, segments: list[str]) -> list[str] | None:
        """The segments that stand where the path has None, or None when it does not fit."""
        if len(segments) != len(self.path):
            return None
        pairs = list(zip(self.path, segments, strict=True))
        if any(segment != wanted if wanted is not None else not segment for wanted, segment in pairs):
            return None
        return [segment for wanted, segment in pairs if wanted is None]


ROUTES: Final = (
    Route(("-", "live"), {"GET": Endpoints.live, "HEAD": Endpoints.live}),
    Route(("-", "ready"), {"GET": Endpoints.ready, "HEAD": Endpoints.ready}),
    Route(
        (None,),
        {
            "GET": Endpoints.get_queue,
            "HEAD": Endpoints.get_queue,
            "PUT": Endpoints.create_queue,
            "DELETE": Endpoints.delete_queue,
        },
    ),
    Route((None, "messages"), {"GET": Endpoints.fetch, "POST": Endpoints.publish}),
    Route((None, "messages", None), {"DELETE": Endpoints.remove}),
)
"""Path -> method -> handler. No HEAD where GET would lease a message. No queue's name begins with a dash, so what is
under ``/-/`` hides none."""


class _Incoming:
    """A request's body: never longer than the limit, never shorter than announced.

    Raises:
        BodyTooLarge: before anything is read, where the announced length says so already.
    """

    def __init__(self, request: Request, limit: int) -> None:
        if request.content_length is not None and request.content_length > limit:
            raise BodyTooLarge(f"the body has {request.content_length} bytes, the limit is {limit}")
        self._chunks = aiter(request.body)
        self._announced = request.content_length
        self._limit = limit
        self._size = 0
        self._held = b""

    def __aiter__(self) -> _Incoming:
        return self

    async def __anext__(self) -> bytes:
        if self._held:
            held, self._held = self._held, b""
            return held
        try:
            chunk = await anext(self._chunks)
        except StopAsyncIteration:
            if self._announced not in (None, self._size):
                raise BodyIncomplete(f"the body ended after {self._size} of {self._announced} bytes") from None
            raise
        self._size += len(chunk)
        if self._size > self._limit:
            raise BodyTooLarge(f"the body is over the limit of {self._limit} bytes")
        return chunk

    async def read_small(self) -> bytes | None:
        """All of it, or None when it is not small: then iterate."""
        start = bytearray()
        async for chunk in self:
            start += chunk
            if len(start) > IN_MEMORY_BYTES:
                self._held = bytes(start)
                return None
        return bytes(start)


def _segments(path: bytes) -> list[str]:
    """The path's segments. Split first and decode after, once: an encoded slash stays inside its segment."""
    path = _ORIGIN.sub(b"", path, count=1)
    return [_shown(unquote_to_bytes(segment)) for segment in path[1:].split(b"/")] if path[:1] == b"/" else []


def _shown(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _content_type(attributes: Mapping[str, Any]) -> str:
    value = attributes.get("content_type")
    if isinstance(value, str) and _HEADER_VALUE.fullmatch(value):
        return value
    return DEFAULT_CONTENT_TYPE  # none was given, or one from another door that no header can carry


def _retry_after() -> tuple[str, str]:
    return ("retry-after", str(RETRY_AFTER_SECONDS))


def _refusal(error: MQError) -> Reply:
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    headers = (_retry_after(),) if status == 503 else ()
    return problem(status, str(error), *headers)._replace(is_last=isinstance(error, _ENDS_CONNECTION))
