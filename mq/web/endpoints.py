"""The endpoints: a request in, a reply out. Everything that decides a status or a header is here, and nothing that
knows of sockets or frameworks, so that every HTTP door gives the same answers."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Concatenate, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from mq.broker import Broker, Draft, Seen
from mq.broker.fetching import close
from mq.broker.looking import DELAYED, LEASED, READY
from mq.broker.queue_settings import VISIBILITY, check_value
from mq.errors import CorruptMessage, InvalidRequest, MQError, NoSuchQueue, StorageError
from mq.message import Message, MessageId, QueueName, shorten
from mq.observers.metrics import Metrics
from mq.web.batches import Entry, decode_drafts, decode_removals
from mq.web.errors import problem_of, refusal_of, retry_after
from mq.web.exchange import Reply, Request, document, empty, problem
from mq.web.incoming import Incoming, read_object
from mq.web.parameters import (
    MOST,
    WAIT,
    attributes_of,
    delay_of,
    key_of,
    number,
    read_query,
    receipt_of,
    ttl_of,
)
from mq.web.replies import (
    NOT_CACHED,
    age_of,
    batch_reply,
    message_reply,
    outcomes_reply,
    read_body,
    shown_queue,
    unless_gone,
)

logger = logging.getLogger("mq.web")

NO_WEBSOCKET: Final = problem(400, "there is no WebSocket here: use plain HTTP")
"""The answer to a WebSocket handshake, whatever its path."""

_ORIGIN: Final = re.compile(rb"^https?://[^/]*", re.IGNORECASE)  # RFC 9112, section 3.2.2
_PAGE: Final = 100


class Endpoints:
    """All of them, over one broker.

    Args:
        broker: an open one.
        max_body: the longest body of a message in bytes.
        metrics: what counts; must be an observer of the broker.
    """

    def __init__(self, broker: Broker, max_body: int, metrics: Metrics | None = None) -> None:
        self._broker = broker
        self._max_body = max_body
        self._metrics = metrics or Metrics()

    async def handle(self, request: Request) -> Reply:
        """The reply to `request`. Its body is the caller's to close."""
        try:
            reply = await self._route(request)
        except MQError as error:
            reply = refusal_of(error)
        return reply._replace(body=b"") if request.method == "HEAD" else reply

    async def _route(self, request: Request) -> Reply:
        if "transfer-encoding" in request.headers and "content-length" in request.headers:
            # RFC 9112, section 6.1: a sign of request smuggling
            return problem(400, "a request has Transfer-Encoding or Content-Length, not both")._replace(is_last=True)
        segments = _segments(request.path)
        fitting = [(route, found) for route in ROUTES if (found := route.match(segments)) is not None]
        for route, arguments in fitting:
            handler = route.methods.get(request.method)
            if handler is not None:
                return await handler(self, request, *arguments)
        if fitting:
            allowed = ", ".join(dict.fromkeys(method for route, _ in fitting for method in route.methods))
            return problem(405, f"this path allows {allowed}", ("allow", allowed))
        return problem(404, f"nothing is at this path: {shorten(_shown(request.path))}")

    # The broker

    async def live(self, request: Request) -> Reply:
        """The process answers."""
        return document(200, {"live": True})

    async def ready(self, request: Request) -> Reply:
        """The store takes changes."""
        if self._broker.ready:
            return document(200, {"ready": True})
        return problem(503, "the store has failed: see the log, then start mq anew", retry_after())

    async def queues(self, request: Request) -> Reply:
        """All queues, with what is in them."""
        return document(200, {"queues": [shown_queue(status) for status in await self._broker.queues()]})

    async def stats(self, request: Request) -> Reply:
        """Counts and rates."""
        statuses = await self._broker.queues()
        report = self._metrics.report({status.name for status in statuses})
        for status in statuses:
            report["queues"][status.name] |= {
                "ready": status.ready,
                "leased": status.leased,
                "delayed": status.delayed,
                "oldest_seconds": age_of(status),
            }
        return document(200, report)

    # Queues

    async def get_queue(self, request: Request, name: str) -> Reply:
        """Is the queue there, and what is in it?"""
        return document(200, shown_queue(await self._broker.status(await self._known_queue(name))))

    async def create_queue(self, request: Request, name: str) -> Reply:
        """Make the queue. The body does not matter (seed MQ)."""
        queue = QueueName(name)
        is_new = await self._broker.create_queue(queue)
        return document(201 if is_new else 200, {"name": queue})

    async def delete_queue(self, request: Request, name: str) -> Reply:
        """Delete the queue and all its messages."""
        await self._broker.delete_queue(QueueName(name))
        return empty(200)

    async def change_queue(self, request: Request, name: str) -> Reply:
        """Change settings."""
        queue = await self._known_queue(name)
        await self._broker.change_settings(queue, await read_object(request))
        return document(200, shown_queue(await self._broker.status(queue)))

    async def purge(self, request: Request, name: str) -> Reply:
        """Remove all messages that nobody holds."""
        return document(200, {"purged": await self._broker.purge(QueueName(name))})

    async def redrive(self, request: Request, name: str) -> Reply:
        """Move messages back from where they died."""
        queue = await self._known_queue(name)
        wanted = await read_object(request)
        to, ids = wanted.pop("to", None), wanted.pop("ids", None)
        most = check_value("max", wanted.pop("max", 1000), MOST)
        if wanted:
            raise InvalidRequest(f"unknown key {shorten(next(iter(wanted)))}; known: to, max, ids")
        if ids is not None and (not isinstance(ids, list) or not all(isinstance(id, str) for id in ids)):
            raise InvalidRequest("ids must be a list of message ids")
        moved, left = await self._broker.redrive(queue, None if to is None else QueueName(str(to)), most, ids)
        return document(200, {"moved": moved, "left": left})

    # Publishing

    async def publish(self, request: Request, name: str) -> Reply:
        """Publish a message."""
        queue = await self._known_queue(name)
        headers = request.headers
        said = (attributes_of(headers), delay_of(headers), ttl_of(headers), key_of(headers))
        body = Incoming(request, self._max_body)
        small = await body.read_small()
        # a staged body is the broker's to discard once it is given to publish
        draft = Draft(await self._broker.stage(body) if small is None else small, *said)
        [outcome] = await self._broker.publish_many(queue, [draft])
        if isinstance(outcome, MQError):
            raise outcome
        return empty(201 if outcome.is_new else 200, ("x-message-id", outcome.id))

    async def publish_batch(self, request: Request, name: str) -> Reply:
        """Publish many."""
        queue = await self._known_queue(name)
        body = await Incoming(request, self._max_body).read()
        drafts = decode_drafts(request.headers.get("content-type", ""), body)
        good = [draft for draft in drafts if isinstance(draft, Draft)]
        outcomes = iter(await self._broker.publish_many(queue, good))
        answers = []
        for draft in drafts:
            outcome = next(outcomes) if isinstance(draft, Draft) else draft
            if isinstance(outcome, MQError):
                answers.append(problem_of(outcome))
            else:
                answers.append({"status": 201 if outcome.is_new else 200, "id": outcome.id})
        return outcomes_reply(answers)

    async def contains(self, request: Request, name: str) -> Reply:
        """Is this body in the queue?"""
        queue = await self._known_queue(name)
        body = Incoming(request, self._max_body)
        small = await body.read_small()
        if small is not None:
            id = await self._broker.contains(queue, small)
        else:
            upload = await self._broker.stage(body)
            try:
                id = await self._broker.contains(queue, upload)
            finally:
                await upload.discard()
        return document(200, {"contains": id is not None, "id": id})

    # Consuming

    async def fetch(self, request: Request, name: str) -> Reply:
        """Lease a message, or several."""
        query = read_query(request.query, "wait", "visibility", "max")
        wait = number("wait", query["wait"], WAIT) if "wait" in query else 0.0
        visibility = number("visibility", query["visibility"], VISIBILITY) if "visibility" in query else None
        most = number("max", query["max"], MOST) if "max" in query else 1
        queue = QueueName(name)

        async def fetch() -> list[Message]:
            return await self._broker.fetch_many(queue, most, wait=wait, visibility=visibility)

        messages = await unless_gone(request.gone, fetch) if wait else await fetch()
        if not messages:
            return empty(204, NOT_CACHED)
        if "max" in query:
            return await self._fetched(request, messages)
        return await message_reply(messages[0])

    async def take(self, request: Request, name: str) -> Reply:
        """Fetch and remove a message in one step."""
        query = read_query(request.query, "wait")
        wait = number("wait", query["wait"], WAIT) if "wait" in query else 0.0
        queue = QueueName(name)

        async def take() -> Message | None:
            return await self._broker.take(queue, wait=wait)

        message = await unless_gone(request.gone, take) if wait else await take()
        return empty(204, NOT_CACHED) if message is None else await message_reply(message)

    async def remove(self, request: Request, name: str, id: str) -> Reply:
        """Remove a message."""
        await self._broker.remove(QueueName(name), MessageId(id), receipt=receipt_of(request.headers))
        return empty(202)

    async def remove_batch(self, request: Request, name: str) -> Reply:
        """Remove many."""
        queue = await self._known_queue(name)
        removals = decode_removals(await Incoming(request, self._max_body).read())
        good = [removal for removal in removals if not isinstance(removal, MQError)]
        errors = iter(await self._broker.remove_many(queue, good))
        answers = []
        for removal in removals:
            error = removal if isinstance(removal, MQError) else next(errors)
            answers.append({"status": 202} if error is None else problem_of(error))
        return outcomes_reply(answers)

    async def change_message(self, request: Request, name: str, id: str) -> Reply:
        """End or extend a lease."""
        queue, receipt = QueueName(name), receipt_of(request.headers)
        wanted = await read_object(request)
        if wanted.keys() != {"visibility"}:
            raise InvalidRequest('say how long the lease has to go on: {"visibility": seconds}, 0 to end it')
        seconds = wanted["visibility"]
        if seconds == 0 and not isinstance(seconds, bool):
            await self._broker.requeue(queue, MessageId(id), receipt=receipt)
        else:
            await self._broker.extend(queue, MessageId(id), seconds, receipt=receipt)
        return document(200, {"id": id, "visibility": seconds})

    # Looking

    async def show(self, request: Request, name: str, id: str) -> Reply:
        """A message, left where it is."""
        seen = await self._broker.show(QueueName(name), MessageId(id))
        reply = await message_reply(seen.message)
        return reply._replace(headers=(*reply.headers, ("x-message-state", seen.state)))

    async def peek(self, request: Request, name: str) -> Reply:
        """Messages, page by page."""
        query = read_query(request.query, "max", "after", "state")
        most = number("max", query["max"], MOST) if "max" in query else _PAGE
        state = query.get("state", READY)
        if state not in (READY, LEASED, DELAYED):
            raise InvalidRequest(f"state must be {READY}, {LEASED} or {DELAYED}, got {shorten(state)}")
        queue = await self._known_queue(name)
        seen = await self._broker.peek(queue, state=state, after=query.get("after"), most=most)
        entries, rest = await self._fitting(seen)
        if not rest and len(seen) < most:
            return batch_reply(request, entries)
        last = seen[-len(rest) - 1].message.id
        following = f"</{queue}/peek?state={state}&max={most}&after={last}>"
        return batch_reply(request, entries, ("link", f'{following}; rel="next"'))

    # How they are done

    async def _known_queue(self, name: str) -> QueueName:
        queue = QueueName(name)
        if not await self._broker.has_queue(queue):
            raise NoSuchQueue(f"no queue named {queue}: create it with PUT /{queue}")
        return queue

    async def _fitting(self, seen: list[Seen]) -> tuple[list[Entry], list[Seen]]:
        """Those of the first whose bodies have together the length that one body may have, or else the very first; and
        the rest, closed. What is damaged stays where it is."""
        entries: list[Entry] = []
        left = self._max_body
        for position, (message, state) in enumerate(seen):
            left -= message.body.size
            if left < 0 and entries:
                await close([rest.message for rest in seen[position:]])
                return entries, seen[position:]
            try:
                entries.append(Entry(message, await read_body(message), state))
            except CorruptMessage as error:
                logger.error("message %s of %s is not handed out: %s", message.id, message.queue, error)
        return entries, []

    async def _fetched(self, request: Request, messages: list[Message]) -> Reply:
        """A batch of leased messages. Those that do not fit are given back as if they had not been handed out."""
        try:
            entries, rest = await self._fitting([Seen(message, "") for message in messages])
        except StorageError:
            await self._broker.give_back(messages)
            raise
        await self._broker.give_back([seen.message for seen in rest])
        return batch_reply(request, entries) if entries else empty(204, NOT_CACHED)


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
    Route(("-", "queues"), {"GET": Endpoints.queues, "HEAD": Endpoints.queues}),
    Route(("-", "stats"), {"GET": Endpoints.stats, "HEAD": Endpoints.stats}),
    Route(
        (None,),
        {
            "GET": Endpoints.get_queue,
            "HEAD": Endpoints.get_queue,
            "PUT": Endpoints.create_queue,
            "PATCH": Endpoints.change_queue,
            "DELETE": Endpoints.delete_queue,
        },
    ),
    Route((None, "messages"), {"GET": Endpoints.fetch, "POST": Endpoints.publish}),
    Route((None, "messages", "batch"), {"POST": Endpoints.publish_batch}),
    Route((None, "messages", "delete"), {"POST": Endpoints.remove_batch}),
    Route(
        (None, "messages", None),
        {
            "GET": Endpoints.show,
            "HEAD": Endpoints.show,
            "PATCH": Endpoints.change_message,
            "DELETE": Endpoints.remove,
        },
    ),
    Route((None, "peek"), {"GET": Endpoints.peek, "HEAD": Endpoints.peek}),
    Route((None, "take"), {"POST": Endpoints.take}),
    Route((None, "contains"), {"POST": Endpoints.contains}),
    Route((None, "purge"), {"POST": Endpoints.purge}),
    Route((None, "redrive"), {"POST": Endpoints.redrive}),
)
"""Path -> method -> handler; the first line that has both counts. No HEAD where GET would lease a message. No queue's
name begins with a dash, so what is under ``/-/`` hides none; no id is a word, so ``batch`` and ``delete`` hide none."""


def _segments(path: bytes) -> list[str]:
    """The path's segments. Split first and decode after, once: an encoded slash stays inside its segment."""
    path = _ORIGIN.sub(b"", path, count=1)
    return [_shown(unquote_to_bytes(segment)) for segment in path[1:].split(b"/")] if path[:1] == b"/" else []


def _shown(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
