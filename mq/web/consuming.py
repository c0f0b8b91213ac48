"""Consuming: fetch, take, remove, and what becomes of a lease."""

from __future__ import annotations

from typing import Final

from mq.broker import Removal, Seen
from mq.broker.queue_settings import VISIBILITY, check_value
from mq.errors import InvalidRequest, MQError, StorageError
from mq.message import Message, MessageId, QueueName
from mq.web.batches import REMOVED_LINE, decode_removals, refused_line
from mq.web.exchange import Reply, document, empty
from mq.web.incoming import Incoming, read_object
from mq.web.operations import Answer, Asked, Operation, Parameter
from mq.web.parameters import IF_MATCH, LARGEST_BATCH, MOST, WAIT, read_header
from mq.web.queues import known_queue
from mq.web.replies import (
    MESSAGE_HEADERS,
    NOT_CACHED,
    batch_reply,
    fitting,
    message_reply,
    outcomes_reply,
)
from mq.web.schemas import BYTES, MESSAGES, OUTCOMES, as_json, lines_of, record, reference


async def fetch(asked: Asked) -> Reply:
    """Lease a message, or several."""
    queue, most = QueueName(asked.queue), asked.query["max"]

    async def fetch() -> list[Message]:
        query = asked.query
        return await asked.broker.fetch_many(queue, most or 1, wait=query["wait"], visibility=query["visibility"])

    if asked.query["wait"]:
        messages = await asked.waits.unless_gone(asked.request.on_hang_up, fetch, asked.broker.give_back) or []
    else:
        messages = await fetch()
    if not messages:
        return empty(204, NOT_CACHED)
    return await message_reply(messages[0]) if most is None else await _batch(asked, messages)


async def take(asked: Asked) -> Reply:
    """Fetch and remove a message in one step."""
    queue, wait = QueueName(asked.queue), asked.query["wait"]

    async def take() -> Message | None:
        return await asked.broker.take(queue, wait=wait)

    message = await asked.waits.unless_gone(asked.request.on_hang_up, take) if wait else await take()
    return empty(204, NOT_CACHED) if message is None else await message_reply(message)


async def _batch(asked: Asked, messages: list[Message]) -> Reply:
    """Leased messages. Those that do not fit are given back as if they had not been handed out."""
    try:
        entries, rest = await fitting([Seen(message, "") for message in messages], asked.max_body)
    except StorageError:
        await asked.broker.give_back(messages)
        raise
    await asked.broker.give_back([seen.message for seen in rest])
    return batch_reply(asked.request, entries) if entries else empty(204, NOT_CACHED)


async def remove(asked: Asked) -> Reply:
    """Remove a message."""
    receipt = read_header(asked.request.headers, IF_MATCH)
    await asked.broker.remove(QueueName(asked.queue), MessageId(asked.id), receipt=receipt)
    return empty(202)


async def remove_batch(asked: Asked) -> Reply:
    """Remove many."""
    queue = await known_queue(asked.broker, asked.queue)
    body = await Incoming(asked.request, asked.max_body).read()
    removals = decode_removals(asked.request.headers.get("content-type", ""), body)
    good = [removal for removal in removals if isinstance(removal, Removal)]
    errors = iter(await asked.broker.remove_many(queue, good))
    lines = []
    for removal in removals:
        error = removal if isinstance(removal, MQError) else next(errors)
        lines.append(REMOVED_LINE if error is None else refused_line(error))
    return outcomes_reply(lines)


async def change_message(asked: Asked) -> Reply:
    """End or extend a lease."""
    queue, id, receipt = QueueName(asked.queue), MessageId(asked.id), read_header(asked.request.headers, IF_MATCH)
    wanted = await read_object(asked.request)
    if wanted.keys() != {"visibility"}:
        raise InvalidRequest('say how long the lease has to go on: {"visibility": seconds}, 0 to end it')
    seconds = wanted["visibility"]
    if seconds == 0 and not isinstance(seconds, bool):
        await asked.broker.requeue(queue, id, receipt=receipt)
    else:
        check_value("visibility", seconds, VISIBILITY)
        await asked.broker.extend(queue, id, seconds, receipt=receipt)
    return document(200, {"id": id, "visibility": seconds})


_WAIT: Final = Parameter("wait", WAIT, "seconds to wait for a message", 0)
_NOTHING: Final = Answer("nothing is there")

OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "GET",
        "/QUEUE/messages",
        fetch,
        "fetches a message, or several with `max`",
        {
            200: Answer("the message as its body; with `max`, a batch", {**MESSAGES, **BYTES}, MESSAGE_HEADERS),
            204: _NOTHING,
        },
        refusals=(404, 423, 500, 503),
        query=(
            _WAIT,
            Parameter("visibility", VISIBILITY, "length of the lease in seconds; else the queue's visibility"),
            Parameter("max", MOST, f"fetch up to so many at once, at most {LARGEST_BATCH}: the answer is a batch"),
        ),
    ),
    Operation(
        "POST",
        "/QUEUE/take",
        take,
        "fetches and removes a message in one step",
        {200: Answer("the message as its body", BYTES, MESSAGE_HEADERS), 204: _NOTHING},
        refusals=(404, 423, 500, 503),
        query=(_WAIT,),
    ),
    Operation(
        "POST",
        "/QUEUE/messages/delete",
        remove_batch,
        "removes many",
        {200: Answer("one line for each entry", OUTCOMES)},
        refusals=(404, 408, 413, 503),
        body=lines_of(reference("Removal")),
    ),
    Operation(
        "PATCH",
        "/QUEUE/messages/ID",
        change_message,
        "ends or extends a lease",
        {200: Answer("done", as_json(record({"id": {"type": "string"}, "visibility": {"type": "number"}})))},
        refusals=(404, 408, 409, 412, 413, 503),
        headers=(IF_MATCH,),
        body=as_json(reference("Visibility")),
    ),
    Operation(
        "DELETE",
        "/QUEUE/messages/ID",
        remove,
        "removes a message",
        {202: Answer("removed for good")},
        refusals=(404, 412, 503),
        headers=(IF_MATCH,),
    ),
)
"""What consumers ask for."""
