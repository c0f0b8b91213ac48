"""Operations for people: the page, what it shows live, the beginnings of messages, dead letters, logging in and out."""

from __future__ import annotations

import base64
import codecs
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

from mq import turns
from mq.access import Right
from mq.broker import QueueStatus, Seen
from mq.broker.bodies import close
from mq.broker.peek import READY
from mq.broker.settings import QUEUE, seconds
from mq.errors import CorruptMessage, InvalidRequest, NoSuchQueue
from mq.message import Body, BytesBody, MessageId, QueueName
from mq.observers.metrics import Metrics
from mq.observers.rates import Flow
from mq.web.events import CONTENT_TYPE, EVERY_SECONDS, LONGEST_SECONDS, SILENT_SECONDS, EventFeed, View, events_reply
from mq.web.exchange import NOT_CACHED, Reply, document, empty
from mq.web.json_answer import JsonAnswer, Members
from mq.web.login_sessions import credentials, shown_user
from mq.web.operations import KNOWN, NO_RIGHT, Operation, Parameter, RequestContext, Success
from mq.web.page_files import file_reply, index_reply
from mq.web.parameters import (
    AMOUNT,
    FILTER,
    ID,
    SKIP,
    STATE,
    SWITCH,
    codings_of,
    content_type_of,
    group_of,
    one_of,
    texts_of,
)
from mq.web.queue_operations import SORTS, sort_queues
from mq.web.replies import messages_together
from mq.web.request_body import IN_MEMORY_BYTES, read_object
from mq.web.schemas import BYTES, COUNT, TEXT, as_json, list_of, record, reference

PREVIEW_BYTES: Final = 200
"""Of a body that are shown."""
LONGEST_TEXT: Final = 1000
"""Characters of an attribute that are shown."""


async def previews_of(seen: Sequence[Seen]) -> list[dict[str, Any]]:
    """The previews of messages, as JSON. Closes their bodies."""
    try:
        return [await _preview(each) async for each in turns.in_turns(seen, turns.FRAME)]
    finally:
        await close([each.message for each in seen])


async def _preview(seen: Seen) -> dict[str, Any]:
    message = seen.message
    shown: dict[str, Any] = {
        "id": message.id,
        "queue": message.queue,
        "state": seen.state,
        "receives": message.receives,
        "published_ms": message.id.published_ns // 1_000_000,
        "size": message.body.size,
        "content_type": content_type_of(message.properties.attributes),
        "attributes": {name: text[:LONGEST_TEXT] for name, text in texts_of(message.properties.attributes).items()},
        "dead_letter_history": list(message.dead_letter_history),
    }
    if (codings := codings_of(message.properties.attributes)) is not None:
        shown["content_encoding"] = codings
    if (group := group_of(message.properties.attributes)) is not None:
        shown["group"] = group
    if seen.at_ms is not None:
        shown["at_ms"] = seen.at_ms
    if seen.leased_by is not None:
        shown["leased_by"] = seen.leased_by
    try:
        beginning = await _beginning(message.body)
    except CorruptMessage as error:
        return shown | {"damage": str(error)}
    return shown | _written(beginning, is_whole=len(beginning) == message.body.size)


async def _beginning(body: Body) -> bytes:
    if type(body) is BytesBody:
        return body.data[:PREVIEW_BYTES]
    found = b""
    chunks = aiter(body)
    try:
        async for chunk in chunks:
            found += chunk
            if len(found) >= PREVIEW_BYTES:
                break
    finally:
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()
    return found[:PREVIEW_BYTES]


def _written(beginning: bytes, *, is_whole: bool) -> dict[str, str]:
    try:
        return {"text": codecs.getincrementaldecoder("utf-8")().decode(beginning, is_whole)}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(beginning).decode()}


MOST_PREVIEWS: Final = 100
MOST_DEAD_LETTER_QUEUES: Final = 1000


async def page(context: RequestContext) -> Reply:
    """The page for people."""
    return index_reply(context.request.headers)


async def page_file(context: RequestContext) -> Reply:
    """A style sheet, a module, an icon."""
    return file_reply(context.request.path, context.id, context.request.headers)


# What is live

QUEUES: Final = "queues"
ONE_QUEUE: Final = "queue"

_RATES: Final = {"published": Flow.PUBLISH, "delivered": Flow.DELIVER, "dead_lettered": Flow.DEAD_LETTER}
"""What a list says of how much happens."""


async def events(context: RequestContext) -> Reply:
    """A view, and what changes of it."""
    feed = _queue_feed(context) if context.query["view"] == ONE_QUEUE else _feed(context)
    return await events_reply(feed, context.waits, context.request.on_hang_up, context.query["seconds"])


def _feed(context: RequestContext) -> EventFeed:
    """The list of queues. Users with the same patterns, who ask for the same part of it, share one."""
    user, query, metrics = context.request.user, context.query, context.metrics
    wanted, start, most = query["filter"], query["skip"], query["max"]
    consumers = context.connections.consumers

    async def look() -> View:
        mine = await context.overview.visible(user)
        matching = [status for status in mine.statuses if wanted in status.name.lower()] if wanted else mine.statuses
        metrics.catch_up()
        if query["sort"] != "name" or query["reverse"]:
            await turns.spend(frames=len(matching) // 8)
            matching = list(matching)
            sort_queues(matching, query["sort"], metrics, consumers)
        if query["reverse"]:
            matching.reverse()
        shown = matching[start : start + most]
        return {
            "queues": len(mine.statuses),
            "matching": len(matching),
            "ready": mine.ready,
            "leased": mine.leased,
            "delayed": mine.delayed,
            "dead": mine.dead,
            "names": [status.name for status in shown],
            "rows": {
                status.name: {**_row(status, metrics), "consumers": consumers(status.name)}
                async for status in turns.in_turns(shown, turns.FRAME)
            },
            "lines": {status.name: _line(status, metrics) async for status in turns.in_turns(shown, turns.FRAME)},
        }

    patterns = None if user is None or user.may(Right.MONITOR, None) else user.patterns
    key = (QUEUES, patterns, wanted, query["sort"], query["reverse"], start, most)
    stays_empty = patterns is not None and not patterns
    return context.overview.feeds.feed(key, look, SILENT_SECONDS if stays_empty else EVERY_SECONDS)


def _queue_feed(context: RequestContext) -> EventFeed:
    """One queue. All users who may see it share one.

    Raises:
        InvalidRequest: the request does not say which queue.
        NoSuchQueue: the user may not see it, or would not know whether it exists.
    """
    if context.query["queue"] is None:
        raise InvalidRequest('the parameter "queue" is missing. Use queue=NAME')
    queue, user = QueueName(context.query["queue"]), context.request.user
    unseen = NoSuchQueue(f"queue {queue} does not exist, or you do not have permission to see it")
    if user is not None and not user.may(Right.MONITOR, None) and not user.may_something(queue):
        raise unseen

    async def look() -> View:
        if not await context.broker.has_queue(queue):
            raise unseen
        status = await context.broker.status(queue)
        return {
            "name": queue,
            "settings": status.settings.values(),
            "consumers": context.connections.consumers(queue),
            "is_dead_letter_queue": await context.overview.is_dead_letter_queue(queue),
            **_counts(status),
        }

    return context.overview.feeds.feed((ONE_QUEUE, queue), look)


def _row(status: QueueStatus, metrics: Metrics) -> dict[str, Any]:
    """A queue's row. Ages are given as instants, which do not change by themselves; rates to two digits."""
    ring, settings = metrics.ring(status.name), status.settings
    paused = {"paused": settings.paused, "publish_paused": settings.publish_paused}
    rates = {
        name: 0.0 if ring is None else float(f"{ring.rates(flow, metrics.uptime).minute:.2g}")
        for name, flow in _RATES.items()
    }
    place = {"dead_letter_queue": settings.dead_letter_queue, "store": status.store}
    return {**paused, **place, **_counts(status), **rates}


def _line(status: QueueStatus, metrics: Metrics) -> list[int]:
    """How many messages the queue had at the end of each whole minute of the last hour; empty where nothing happened.
    Changes once a minute."""
    ring = metrics.ring(status.name)
    return [] if ring is None else ring.messages(status.ready + status.leased + status.delayed)[:-1]


def _counts(status: QueueStatus) -> dict[str, Any]:
    oldest = None if status.oldest_ns is None else status.oldest_ns // 1_000_000
    return {"ready": status.ready, "leased": status.leased, "delayed": status.delayed, "oldest_ms": oldest}


# Messages


async def preview(context: RequestContext) -> Reply:
    """The beginnings of messages."""
    query = context.query
    with JsonAnswer(context.memory) as answer:
        previews = _previews(context, answer, context.queue, query["state"], query["max"], query["after"])
        await answer.write({"messages": previews})
        return answer.reply(NOT_CACHED)


async def _previews(
    context: RequestContext, answer: JsonAnswer, queue: str, state: str, most: int, after: MessageId | None = None
) -> AsyncGenerator[dict[str, Any]]:
    """The previews of a queue's messages. Memory is reserved before messages are opened."""
    while most:
        wanted = messages_together(most, answer.free)
        answer.cover(wanted * IN_MEMORY_BYTES)
        seen = await context.broker.peek(queue, state=state, after=after, most=wanted)
        for shown in await previews_of(seen):
            yield shown
        if len(seen) < wanted:
            return
        after, most = seen[-1].message.id, most - wanted


async def dead_letters(context: RequestContext) -> Reply:
    """Dead letters, of all dead-letter queues."""
    left = context.query["max"]
    queues = context.overview.dead_letter_queues(await context.overview.queues())
    found = turns.in_turns(queues, turns.LIGHT)
    mine = [status async for status in found if context.may(Right.CONSUME, status.name)]
    mine.sort(key=lambda status: status.ready == 0)  # if they are too many to show, the empty ones are left out
    del mine[MOST_DEAD_LETTER_QUEUES:]
    with JsonAnswer(context.memory) as answer:

        async def rows() -> AsyncGenerator[Members]:
            nonlocal left
            full = sum(status.ready > 0 for status in mine)
            for status in mine:
                most = 0
                if status.ready:
                    most = -(-left // full)  # a fair share, so that none hides the others
                    full -= 1

                async def messages(status: QueueStatus = status, most: int = most) -> AsyncGenerator[dict[str, Any]]:
                    nonlocal left
                    async for shown in _previews(context, answer, status.name, READY, most):
                        left -= 1
                        yield shown

                yield Members({"queue": status.name, "ready": status.ready, "messages": messages()})

        await answer.write({"queues": rows()})
        return answer.reply(NOT_CACHED)


# The user


async def session(context: RequestContext) -> Reply:
    """The user of the request, and their rights."""
    return document(200, shown_user(context.request.user), NOT_CACHED)


async def log_in(context: RequestContext) -> Reply:
    """Succeed: there are no users. Where there are, the authorizer answers this request."""
    credentials(await read_object(context.request))
    return document(200, shown_user(context.request.user), NOT_CACHED)


async def log_out(context: RequestContext) -> Reply:
    """Succeed: a client that sends a secret with each request has no session. The authorizer ends sessions."""
    return empty(200, NOT_CACHED)


_SHOWN: Final = as_json(reference("Session"))

OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "GET",
        "/",
        NO_RIGHT,
        page,
        "the web console",
        {200: Success("HTML", {"text/html": {"type": "string"}})},
    ),
    Operation(
        "GET",
        "/-/page/VERSION/FILE",
        NO_RIGHT,
        page_file,
        "a file of the web console",
        {200: Success("a style sheet, a module or an icon", BYTES)},
        refusals=(404,),
    ),
    Operation(
        "GET",
        "/-/events",
        KNOWN,
        events,
        "streams queues and their changes to the web console",
        {200: Success("server-sent events in JSON", {CONTENT_TYPE: {}})},
        refusals=(404, 503),
        query=(
            Parameter("view", one_of(QUEUES, ONE_QUEUE), "`queues` shows all queues, `queue` shows one", QUEUES),
            Parameter("queue", QUEUE, "name of the queue, for `view=queue`"),
            Parameter("sort", one_of(*SORTS), "sort key", "name"),
            Parameter("reverse", SWITCH, "`true`: reverse the order"),
            Parameter("filter", FILTER, "text that the queue's name contains", ""),
            Parameter("skip", SKIP, "number of queues to skip", 0),
            Parameter("max", AMOUNT, "maximum number of queues", 100),
            Parameter("seconds", seconds(0, LONGEST_SECONDS), "duration of the stream in seconds", 0),
        ),
    ),
    Operation(
        "GET",
        "/QUEUE/preview",
        Right.CONSUME,
        preview,
        "shows the first bytes of messages",
        {200: Success("a page", as_json(record({"messages": list_of(reference("Preview"))})))},
        refusals=(404, 503),
        query=(
            Parameter("max", AMOUNT, "maximum number of messages in a page", MOST_PREVIEWS),
            Parameter("after", ID, "the id of the last message on the previous page"),
            Parameter("state", STATE, "state of the messages to list", READY),
        ),
        needs_queue=True,
    ),
    Operation(
        "GET",
        "/-/dead-letters",
        KNOWN,
        dead_letters,
        "shows the first bytes of dead letters in all queues that the user may consume",
        {
            200: Success(
                "grouped by dead-letter queue",
                as_json(
                    record(
                        {
                            "queues": list_of(
                                record(
                                    {
                                        "queue": QUEUE.schema,
                                        "ready": COUNT,
                                        "messages": list_of(reference("Preview")),
                                    }
                                )
                            )
                        }
                    )
                ),
            )
        },
        refusals=(503,),
        query=(Parameter("max", AMOUNT, "maximum number of messages in all queues together", MOST_PREVIEWS),),
    ),
    Operation(
        "GET",
        "/-/session",
        KNOWN,
        session,
        "shows the current user and its rights",
        {200: Success("the user, and queue name patterns for each right", _SHOWN)},
    ),
    Operation(
        "POST",
        "/-/session",
        NO_RIGHT,
        log_in,
        "logs in and sets a session cookie",
        {200: Success("as GET", _SHOWN, {"Set-Cookie": ("the session's secret", TEXT)})},
        refusals=(401, 408, 413, 503),
        body=as_json(record({"name": TEXT, "secret": TEXT})),
        audited={},  # logins are noted where they are checked
    ),
    Operation(
        "DELETE",
        "/-/session",
        KNOWN,
        log_out,
        "logs out",
        {200: Success("the session ended")},
        audited={},  # the authorizer notes it, which ends the session
    ),
)
"""Operations of the page."""
