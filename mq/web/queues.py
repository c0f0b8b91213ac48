"""Queues: made, looked at, set, emptied, deleted."""

from __future__ import annotations

from typing import Final

from mq.broker.api import BrokerAPI
from mq.broker.queue_settings import QUEUE, check_value
from mq.errors import InvalidRequest, NoSuchQueue
from mq.message import QueueName, shorten
from mq.web.exchange import Reply, document, empty
from mq.web.incoming import read_object
from mq.web.operations import Answer, Asked, Operation, Parameter
from mq.web.parameters import LARGEST_BATCH, MOST, STORE
from mq.web.replies import shown_queue
from mq.web.schemas import COUNT, as_json, record, reference


async def known_queue(broker: BrokerAPI, name: str) -> QueueName:
    """The queue of that name, before anything of the request is read.

    Raises:
        InvalidName: no queue can have that name.
        NoSuchQueue: there is none.
    """
    queue = QueueName(name)
    if not await broker.has_queue(queue):
        raise NoSuchQueue(f"no queue named {queue}: create it with PUT /{queue}")
    return queue


async def create_queue(asked: Asked) -> Reply:
    """Make the queue. The body does not matter (seed MQ)."""
    queue = QueueName(asked.queue)
    is_new = await asked.broker.create_queue(queue, asked.query["store"])
    return document(201 if is_new else 200, {"name": queue})


async def get_queue(asked: Asked) -> Reply:
    """Is the queue there, and what is in it?"""
    return document(200, shown_queue(await asked.broker.status(await known_queue(asked.broker, asked.queue))))


async def change_queue(asked: Asked) -> Reply:
    """Change settings."""
    queue = await known_queue(asked.broker, asked.queue)
    await asked.broker.change_settings(queue, await read_object(asked.request))
    return document(200, shown_queue(await asked.broker.status(queue)))


async def delete_queue(asked: Asked) -> Reply:
    """Delete the queue and all its messages."""
    await asked.broker.delete_queue(QueueName(asked.queue))
    return empty(200)


async def purge(asked: Asked) -> Reply:
    """Remove all messages that nobody holds."""
    return document(200, {"purged": await asked.broker.purge(QueueName(asked.queue))})


async def redrive(asked: Asked) -> Reply:
    """Move messages back from where they died."""
    queue = await known_queue(asked.broker, asked.queue)
    wanted = await read_object(asked.request)
    to, ids = wanted.pop("to", None), wanted.pop("ids", None)
    most = check_value("max", wanted.pop("max", LARGEST_BATCH), MOST)
    if wanted:
        raise InvalidRequest(f"unknown key {shorten(next(iter(wanted)))}; known: to, max, ids")
    if ids is not None and (not isinstance(ids, list) or not all(isinstance(id, str) for id in ids)):
        raise InvalidRequest("ids must be a list of message ids")
    moved, left = await asked.broker.redrive(queue, None if to is None else check_value("to", to, QUEUE), most, ids)
    return document(200, {"moved": moved, "left": left})


_NAMED: Final = as_json(record({"name": QUEUE.schema}))
_LINKS: Final = {name: {"queue": "$request.path.queue"} for name in ("publish", "fetch", "contains", "peek")}
_SHOWN: Final = as_json(reference("Queue"))

OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "GET",
        "/QUEUE",
        get_queue,
        "tells the queue's settings and what is in it",
        {200: Answer("it is there", _SHOWN)},
        refusals=(404, 503),
    ),
    Operation(
        "PUT",
        "/QUEUE",
        create_queue,
        "makes the queue; the body does not matter",
        {201: Answer("made", _NAMED, links=_LINKS), 200: Answer("there already", _NAMED, links=_LINKS)},
        refusals=(409, 503),
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
        change_queue,
        "changes settings",
        {200: Answer("as they are now", _SHOWN)},
        refusals=(404, 408, 409, 413, 503),
        body=as_json(reference("Settings")),
        needs_body=False,
    ),
    Operation(
        "DELETE",
        "/QUEUE",
        delete_queue,
        "deletes the queue and all its messages",
        {200: Answer("gone")},
        refusals=(404, 503),
    ),
    Operation(
        "POST",
        "/QUEUE/purge",
        purge,
        "removes all messages that nobody holds",
        {200: Answer("how many there were", as_json(record({"purged": COUNT})))},
        refusals=(404, 503),
    ),
    Operation(
        "POST",
        "/QUEUE/redrive",
        redrive,
        "moves messages back from where they died, or elsewhere",
        {200: Answer("how many went, and how many are left", as_json(record({"moved": COUNT, "left": COUNT})))},
        refusals=(404, 408, 413, 503),
        body=as_json(reference("Redrive")),
        needs_body=False,
    ),
)
"""What can be asked of a queue."""
