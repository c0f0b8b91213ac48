"""Operations on queues: create, show, change settings, purge, redrive, delete."""

from __future__ import annotations

from typing import Final

from mq.access import Right
from mq.broker.settings import PAUSES, QUEUE, check_value
from mq.errors import InvalidRequest
from mq.message import QueueName, shorten
from mq.web.exchange import Reply, document, empty
from mq.web.operations import ANY_RIGHT, Operation, Parameter, RequestContext, Success, known_queue
from mq.web.parameters import LARGEST_BATCH, MOST, STORE
from mq.web.replies import shown_queue
from mq.web.request_body import read_object
from mq.web.schemas import COUNT, as_json, record, reference


async def create_queue(context: RequestContext) -> Reply:
    """Make the queue. The body does not matter (seed MQ)."""
    queue = QueueName(context.queue)
    is_new = await context.broker.create_queue(queue, context.query["store"])
    return document(201 if is_new else 200, {"name": queue})


async def get_queue(context: RequestContext) -> Reply:
    """Is the queue there, and what is in it?"""
    return document(200, shown_queue(await context.broker.status(await known_queue(context.broker, context.queue))))


async def change_queue(context: RequestContext) -> Reply:
    """Change settings."""
    queue = await known_queue(context.broker, context.queue)
    await context.broker.change_settings(queue, await read_object(context.request))
    return document(200, shown_queue(await context.broker.status(queue)))


async def delete_queue(context: RequestContext) -> Reply:
    """Delete the queue and all its messages."""
    await context.broker.delete_queue(QueueName(context.queue))
    return empty(200)


async def purge(context: RequestContext) -> Reply:
    """Remove all messages that are not leased."""
    return document(200, {"purged": await context.broker.purge(QueueName(context.queue))})


async def redrive(context: RequestContext) -> Reply:
    """Move messages back from where they died."""
    queue = await known_queue(context.broker, context.queue)
    wanted = await read_object(context.request)
    to, ids = wanted.pop("to", None), wanted.pop("ids", None)
    most = check_value("max", wanted.pop("max", LARGEST_BATCH), MOST)
    if wanted:
        raise InvalidRequest(f"unknown key {shorten(next(iter(wanted)))}; known: to, max, ids")
    if ids is not None and (not isinstance(ids, list) or not all(isinstance(id, str) for id in ids)):
        raise InvalidRequest("ids must be a list of message ids")
    moved, left = await context.broker.redrive(queue, None if to is None else check_value("to", to, QUEUE), most, ids)
    return document(200, {"moved": moved, "left": left})


_NAMED: Final = as_json(record({"name": QUEUE.schema}))
_LINKS: Final = {name: {"queue": "$request.path.queue"} for name in ("publish", "fetch", "contains", "peek")}
_SHOWN: Final = as_json(reference("Queue"))

OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "GET",
        "/QUEUE",
        ANY_RIGHT,
        get_queue,
        "tells the queue's settings and what is in it",
        {200: Success("it is there", _SHOWN)},
        refusals=(404, 503),
    ),
    Operation(
        "PUT",
        "/QUEUE",
        Right.CONFIGURE,
        create_queue,
        "makes the queue; the body does not matter",
        {201: Success("made", _NAMED, links=_LINKS), 200: Success("there already", _NAMED, links=_LINKS)},
        refusals=(409, 503),
        audited={201: "queue-created"},
        query=(
            Parameter(
                "store",
                STORE,
                "where it lives: `disk`, `memory`, which ends with the process, or `cluster`, on all nodes of one",
            ),
        ),
    ),
    Operation(
        "PATCH",
        "/QUEUE",
        Right.CONFIGURE,
        change_queue,
        "changes settings",
        {200: Success("as they are now", _SHOWN)},
        refusals=(404, 408, 409, 413, 503),
        body=as_json(reference("Settings")),
        needs_body=False,
        sends_to="dead_letter_queue",
        lesser_right=Right.PAUSE,
        lesser_keys=PAUSES,
        audited={200: "queue-changed"},
    ),
    Operation(
        "DELETE",
        "/QUEUE",
        Right.CONFIGURE,
        delete_queue,
        "deletes the queue and all its messages",
        {200: Success("gone")},
        refusals=(404, 503),
        audited={200: "queue-deleted"},
    ),
    Operation(
        "POST",
        "/QUEUE/purge",
        Right.CONFIGURE,
        purge,
        "removes all messages that nobody holds",
        {200: Success("how many there were", as_json(record({"purged": COUNT})))},
        refusals=(404, 503),
        audited={200: "queue-purged"},
    ),
    Operation(
        "POST",
        "/QUEUE/redrive",
        Right.CONFIGURE,
        redrive,
        "moves messages back from where they died, or elsewhere",
        {200: Success("how many went, and how many are left", as_json(record({"moved": COUNT, "left": COUNT})))},
        refusals=(404, 408, 413, 503),
        body=as_json(reference("Redrive")),
        needs_body=False,
        sends_to="to",
        audited={200: "queue-redriven"},
    ),
)
"""Operations on a queue as a whole."""
