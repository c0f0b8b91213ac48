"""The endpoints: a request in, a reply out. Everything that decides a status or a header is behind here, and nothing
that knows of sockets or frameworks, so that every HTTP door gives the same answers.

What each of them does is in the module of its topic, with all that can be said of it (:class:`Operation`).
"""

from __future__ import annotations

import functools
import re
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from mq.broker.api import BrokerAPI
from mq.errors import MQError
from mq.message import shorten
from mq.observers.metrics import Metrics
from mq.web import administering, claims, consuming, looking, publishing, queues
from mq.web.errors import refusal_of
from mq.web.exchange import Reply, Request, document, problem
from mq.web.openapi import describe
from mq.web.operations import Answer, Asked, Operation
from mq.web.parameters import read_query
from mq.web.replies import without_body
from mq.web.routing import Route, Router
from mq.web.schemas import as_json
from mq.web.waits import Waits

NO_WEBSOCKET: Final = problem(400, "there is no WebSocket here: use plain HTTP")
"""The answer to a WebSocket handshake, whatever its path."""

_ORIGIN: Final = re.compile(rb"^https?://[^/]*", re.IGNORECASE)  # RFC 9112, section 3.2.2


class Endpoints:
    """All of them, over one broker.

    Args:
        broker: an open one.
        max_body: the longest body of a message in bytes.
        metrics: what counts; must be an observer of the broker.
    """

    def __init__(self, broker: BrokerAPI, max_body: int, metrics: Metrics | None = None) -> None:
        self._broker = broker
        self._max_body = max_body
        self._metrics = metrics or Metrics()
        self._waits = Waits()

    def end_waits(self) -> None:
        """Let everybody go who waits for a message, before mq stops: they have got none, so nothing is lost."""
        self._waits.end()

    async def handle(self, request: Request) -> Reply:
        """The reply to `request`. Its body is the caller's to close."""
        try:
            reply = await self._route(request)
        except MQError as error:
            reply = refusal_of(error)
        return await without_body(reply) if request.method == "HEAD" else reply

    async def _route(self, request: Request) -> Reply:
        if "transfer-encoding" in request.headers and "content-length" in request.headers:
            # RFC 9112, section 6.1: a sign of request smuggling
            return problem(400, "a request has Transfer-Encoding or Content-Length, not both")._replace(is_last=True)
        found = _ROUTER.find(_segments(request.path))
        if found is None:
            return problem(404, f"nothing is at this path: {shorten(_shown(request.path))}")
        route, names = found
        operation = route.methods.get(request.method)
        if operation is None:
            allowed = ", ".join(route.methods)
            return problem(405, f"this path allows {allowed}", ("allow", allowed))
        query = read_query(request.query, operation.query)
        return await operation.handle(
            Asked(self._broker, self._metrics, self._waits, self._max_body, request, query, *names)
        )


async def openapi(asked: Asked) -> Reply:
    """All of this for programs."""
    return document(200, _description())


@functools.cache
def _description() -> dict[str, Any]:
    return describe(OPERATIONS)


OPERATIONS: Final[tuple[Operation, ...]] = (
    *administering.OPERATIONS,
    Operation(
        "GET",
        "/-/openapi.json",
        openapi,
        "this page for programs",
        {200: Answer("OpenAPI 3.1", as_json({"type": "object"}))},
    ),
    *queues.OPERATIONS,
    *publishing.OPERATIONS,
    *consuming.OPERATIONS,
    *looking.OPERATIONS,
    *claims.OPERATIONS,
)
"""Everything that can be asked for."""


def _routes() -> tuple[Route, ...]:
    methods: dict[tuple[str | None, ...], dict[str, Operation]] = {}
    for operation in OPERATIONS:
        there = methods.setdefault(operation.segments, {})
        there[operation.method] = operation
        if operation.has_head:
            there["HEAD"] = operation
    return tuple(Route(path, dict(sorted(there.items(), key=_place))) for path, there in methods.items())


def _place(method: tuple[str, Operation]) -> int:
    return ("GET", "HEAD", "PUT", "POST", "PATCH", "DELETE").index(method[0])


ROUTES: Final = _routes()
"""Path -> method -> operation. No HEAD where GET would lease a message. No queue's name begins with a dash, so what is
under ``/-/`` hides none; no id is a word, so ``batch`` and ``delete`` hide none."""

_ROUTER: Final = Router(ROUTES)


def _segments(path: bytes) -> list[str]:
    """The path's segments. Split first and decode after, once: an encoded slash stays inside its segment."""
    if path[:1] == b"/" and b"%" not in path:
        return _shown(path[1:]).split("/")
    path = _ORIGIN.sub(b"", path, count=1)
    return [_shown(unquote_to_bytes(segment)) for segment in path[1:].split(b"/")] if path[:1] == b"/" else []


def _shown(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
