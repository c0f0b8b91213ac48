"""The endpoints: a request in, a reply out, without sockets or frameworks.

Every HTTP server, fast or not, calls :class:`Endpoints`, so all give the same replies. Here are the table of all
operations, the router derived from it, and the strict subset of the seed MQ (``--strict``). The handlers are in
the modules of their topics: :mod:`mq.web.queue_operations` and its neighbours.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

from mq.broker.api import BrokerAPI
from mq.doors.budget import Budget
from mq.doors.exchanges import Exchanges
from mq.doors.open_connections import OpenConnections
from mq.errors import InvalidName, InvalidRequest, MQError
from mq.message import QueueName, no_such_queue, shorten
from mq.observers.metrics import Metrics
from mq.schedules.cluster_schedules import ClusterSchedules
from mq.schedules.scheduler import Scheduler
from mq.web import (
    admin_operations,
    cluster_operations,
    consumer_operations,
    exchange_operations,
    message_operations,
    page_operations,
    queue_operations,
    schedule_operations,
    write_operations,
)
from mq.web.exchange import Handler, Reply, Request, RequestHead, document, problem
from mq.web.http_connection import WaitingRequests
from mq.web.openapi import describe
from mq.web.operations import NO_RIGHT, HeadContext, Operation, RequestContext, Success
from mq.web.overview import Overview
from mq.web.parameters import ATTRIBUTE, TRACE_HEADERS, read_query, without_trace
from mq.web.refusals import refusal_of
from mq.web.replies import without_body
from mq.web.schemas import as_json

NO_WEBSOCKET: Final = problem(400, "WebSockets are not supported. Use plain HTTP")
"""The answer to a WebSocket handshake, whatever its path."""

_ORIGIN: Final = re.compile(rb"^https?://[^/]*", re.IGNORECASE)  # RFC 9112, section 3.2.2


# The table


async def openapi(context: RequestContext) -> Reply:
    """All of this for programs."""
    return _description()


@functools.cache
def _description() -> Reply:
    """The answer, written once: all requests share its bytes."""
    return document(200, describe(OPERATIONS))


OPERATIONS: Final[tuple[Operation, ...]] = (
    *admin_operations.OPERATIONS,
    Operation(
        "GET",
        "/-/openapi.json",
        NO_RIGHT,
        openapi,
        "describes the HTTP API in OpenAPI format",
        {200: Success("OpenAPI 3.1", as_json({"type": "object"}))},
    ),
    *queue_operations.OPERATIONS,
    *message_operations.OPERATIONS,
    *consumer_operations.OPERATIONS,
    *write_operations.OPERATIONS,
    *exchange_operations.OPERATIONS,
    *schedule_operations.OPERATIONS,
    *cluster_operations.OPERATIONS,
    *page_operations.OPERATIONS,
)
"""All operations of the HTTP server."""

SEEDS: Final = frozenset(
    {
        "GET /QUEUE",
        "PUT /QUEUE",
        "DELETE /QUEUE",
        "GET /QUEUE/messages",
        "POST /QUEUE/messages",
        "DELETE /QUEUE/messages/ID",
    }
)
"""The seed's endpoints, each as :attr:`Operation.line`."""


# The router


_PUBLISHING: Final = ("POST", (None,))
"""A request to the queue itself, by a client that probably wants to publish."""


class Route(NamedTuple):
    """A path, and its operations.

    Attributes:
        path: its segments; None stands for any, which is handed on: first the queue, then the message or consumer.
        methods: operation by method, in the order of Allow.
        is_of_queue: whether the first name in the path is a queue's.
    """

    path: tuple[str | None, ...]
    methods: Mapping[str, Operation]
    is_of_queue: bool = True


class Router:
    """Finds the route of a path, segment by segment. A fixed segment goes before one that may be anything."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Fork()
        for route in routes:
            fork = self._root
            for segment in route.path:
                fork = fork.ways.setdefault(segment, _Fork())
            fork.route = route

    def find(self, segments: Sequence[str], method: str | None = None) -> tuple[Route, tuple[str, ...]] | None:
        """The route, and the segments that stand where its path has None; None without a route."""
        return self._root.follow(segments, 0, (), method)


class _Fork:
    """A place in the tree of paths: its own route, and the ways that the next segment may lead."""

    __slots__ = ("route", "ways")

    def __init__(self) -> None:
        self.route: Route | None = None
        self.ways: dict[str | None, _Fork] = {}

    def follow(
        self, segments: Sequence[str], at: int, names: tuple[str, ...], method: str | None
    ) -> tuple[Route, tuple[str, ...]] | None:
        if at == len(segments):
            route = self.route
            return None if route is None or not (method is None or method in route.methods) else (route, names)
        segment = segments[at]
        fixed = self.ways.get(segment)
        found = None if fixed is None else fixed.follow(segments, at + 1, names, method)
        if found is None and segment and (free := self.ways.get(None)) is not None:
            return free.follow(segments, at + 1, (*names, segment), method)
        return found


def _routes(operations: Iterable[Operation], *, with_heads: bool = True) -> tuple[Route, ...]:
    methods: dict[tuple[str | None, ...], dict[str, Operation]] = {}
    for operation in operations:
        there = methods.setdefault(operation.segments, {})
        there[operation.method] = operation
        if operation.has_head and with_heads:
            there["HEAD"] = operation
    return tuple(
        Route(path, dict(sorted(there.items(), key=_place)), next(iter(there.values())).is_of_queue)
        for path, there in methods.items()
    )


def _place(method: tuple[str, Operation]) -> int:
    return ("GET", "HEAD", "PUT", "POST", "PATCH", "DELETE").index(method[0])


ROUTES: Final = _routes(OPERATIONS)
"""Path -> method -> operation. No HEAD where GET would lease a message. No queue's name begins with a dash, so what is
under ``/-/`` hides none; no id is a word, so ``batch`` and ``delete`` hide none."""
ROUTER: Final = Router(ROUTES)

STRICT_ROUTES: Final = _routes((each for each in OPERATIONS if each.line in SEEDS), with_heads=False)
"""The routes of the seed."""
_STRICT_ROUTER: Final = Router(STRICT_ROUTES)


def split_path(path: bytes) -> list[str]:
    """The path's segments, percent-decoded; none at all for what is not a path."""
    # Split first and decode after, once: an encoded slash stays inside its segment.
    if path[:1] == b"/" and b"%" not in path:
        return _text(path[1:]).split("/")
    path = _ORIGIN.sub(b"", path, count=1)
    return [_text(unquote_to_bytes(segment)) for segment in path[1:].split(b"/")] if path[:1] == b"/" else []


def join_path(segments: Iterable[str]) -> bytes:
    """The path that :func:`split_path` splits so, with all but letters, digits and ``-._~`` encoded."""
    return "".join(f"/{quote_from_bytes(_bytes(segment), safe='')}" for segment in segments).encode()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


# What serves requests


class Endpoints(Handler):
    """Replies to requests, over one broker.

    Args:
        max_body: the longest body of a message in bytes.
        metrics: what counts; must be an observer of the broker.
        budget: memory for batches; None for one of its own.
        connections: of all protocols; None for none.
        exchanges: tells what is declared over AMQP; None for nothing.
        schedules: those of this daemon; None for some that never fire.
        strict: only the seed's endpoints exist, without what mq adds to them.
    """

    def __init__(
        self,
        broker: BrokerAPI,
        max_body: int,
        metrics: Metrics | None = None,
        budget: Budget | None = None,
        connections: OpenConnections | None = None,
        exchanges: Exchanges | None = None,
        schedules: Scheduler | ClusterSchedules | None = None,
        *,
        strict: bool = False,
    ) -> None:
        self._is_strict = strict
        self._begins = not strict and not broker.is_shared
        self._router = _STRICT_ROUTER if strict else ROUTER
        self._waits = WaitingRequests()
        self._shared: _Shared = (
            broker,
            metrics or Metrics(),
            self._waits,
            max_body,
            budget or Budget(),
            connections or OpenConnections(),
            Overview(broker, exchanges or Exchanges()),
            Scheduler(broker) if schedules is None else schedules,
        )

    def end_waits(self) -> None:
        """End all waits for messages, before mq stops. They have received none, so nothing is lost."""
        self._waits.end()

    async def handle(self, request: Request) -> Reply:
        """The reply to `request`. Its body is the caller's to close."""
        return await self.for_head(request).handle(request)

    def for_head(self, head: RequestHead | Request) -> Handler:
        """What answers requests with this head: their operation, or their refusal."""
        try:
            return self._route(head)
        except MQError as error:
            return _Refused(refusal_of(error))

    def _route(self, head: RequestHead | Request) -> Handler:
        if "transfer-encoding" in head.headers and "content-length" in head.headers:
            # RFC 9112, section 6.1: a sign of request smuggling
            unclear = problem(400, "a request must not have both Transfer-Encoding and Content-Length")
            return _Refused(unclear._replace(is_last=True))
        found = self._router.find(split_path(head.path))
        if found is None:
            return _Refused(problem(404, f"unknown path {shorten(_text(head.path))}"))
        route, names = found
        operation = route.methods.get(head.method)
        if operation is None:
            allowed = ", ".join(route.methods)
            hint = (
                ". To publish a message, use POST /QUEUE/messages" if (head.method, route.path) == _PUBLISHING else ""
            )
            return _Refused(problem(405, f"this path supports only {allowed}{hint}", ("allow", allowed)))
        if self._is_strict:
            _check_plain(head, operation)
        query = read_query(head.query, operation.query)
        if operation.needs_queue:
            names = (QueueName(names[0]), *names[1:])
        elif not route.is_of_queue:
            names = ("", *names[-1:])
        else:
            with suppress(InvalidName):  # the operation refuses it; a valid one is checked once for all such requests
                names = (QueueName(names[0]), *names[1:])
        context = HeadContext(*self._shared, query, *names)
        return _Routed(operation, context, self._begins, without_traces=self._is_strict)


_Shared = tuple[
    BrokerAPI, Metrics, WaitingRequests, int, Budget, OpenConnections, Overview, Scheduler | ClusterSchedules
]
"""What all requests of the server share, as each :class:`HeadContext` begins."""


class _Routed(Handler):
    """Answers requests for one operation on one thing.

    Args:
        begins: whether an operation may begin in the step that reads its request.
        without_traces: whether headers of a trace are passed over. Proxies add them, which is no reason to refuse.
    """

    def __init__(self, operation: Operation, head: HeadContext, begins: bool, *, without_traces: bool) -> None:
        self._operation = operation
        self._head = head
        self._begins = begins
        self._without_traces = without_traces
        self.takes_id = True
        if operation.begin is not None and begins:
            self.begin = partial(operation.begin, head)  # type: ignore[method-assign] # a method would only call it

    async def handle(self, request: Request) -> Reply:
        """The reply to `request`. Its body is the caller's to close."""
        if self._without_traces:
            request = request._replace(headers=without_trace(request.headers))
        try:
            if self._operation.needs_queue and not await self._head.broker.has_queue(self._head.queue):
                # What no queue takes need not be sent. And a cluster's broker publishes to names that are no queues.
                raise no_such_queue(self._head.queue)
            reply = await self._operation.handle(RequestContext.of(self._head, request))
        except MQError as error:
            reply = refusal_of(error)
        if self._head.broker.node_control.is_draining:
            reply = reply._replace(is_last=True)  # its next request may go to another node
        return await without_body(reply) if request.method == "HEAD" else reply


class _Refused(Handler):
    """Gives every request the same reply."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    async def handle(self, request: Request) -> Reply:
        """The reply to `request`."""
        return await without_body(self._reply) if request.method == "HEAD" else self._reply


_STRICT: Final = "this daemon only serves the six endpoints of the MQ specification. Start mq without --strict"


def _check_plain(head: RequestHead | Request, operation: Operation) -> None:
    """Refuse what the seed does not know: ignored, it would look carried out.

    Raises:
        InvalidRequest: the request has a query, or a header that mq has added to the endpoint.
    """
    if head.query:
        raise InvalidRequest(f"query parameters are not supported, because {_STRICT}")
    added = {header.name.lower() for header in operation.headers if header not in TRACE_HEADERS}
    for name in head.headers:
        if name in added or name.startswith(ATTRIBUTE):
            raise InvalidRequest(f"the header {name} is not supported, because {_STRICT}")
