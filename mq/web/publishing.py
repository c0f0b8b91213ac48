"""Publishing: one message, many, or only the question whether it is there."""

from __future__ import annotations

from typing import Final

import trio

from mq.broker import Draft
from mq.errors import MQError
from mq.web.batches import decode_drafts, published_line, refused_line
from mq.web.exchange import Reply, document, empty
from mq.web.incoming import IN_MEMORY_BYTES, Incoming
from mq.web.operations import Answer, Asked, Operation
from mq.web.parameters import (
    ID,
    IDEMPOTENCY_KEY,
    MESSAGE_DELAY,
    MESSAGE_TTL,
    attributes_of,
    read_header,
)
from mq.web.queues import known_queue
from mq.web.replies import outcomes_reply
from mq.web.schemas import BYTES, DRAFTS, OUTCOMES, as_json, or_null, record


async def publish(asked: Asked) -> Reply:
    """Publish a message."""
    queue = await known_queue(asked.broker, asked.queue)
    headers = asked.request.headers
    said = (
        attributes_of(headers),
        read_header(headers, MESSAGE_DELAY),
        read_header(headers, MESSAGE_TTL),
        read_header(headers, IDEMPOTENCY_KEY),
    )
    body = Incoming(asked.request, asked.max_body)
    small = await body.read_small()
    # a staged body is the broker's to discard once it is given to publish
    draft = Draft(await asked.broker.stage(body) if small is None else small, *said)
    [outcome] = await asked.broker.publish_many(queue, [draft])
    if isinstance(outcome, MQError):
        raise outcome
    return empty(201 if outcome.is_new else 200, ("x-message-id", outcome.id))


async def publish_batch(asked: Asked) -> Reply:
    """Publish many."""
    queue = await known_queue(asked.broker, asked.queue)
    body = await Incoming(asked.request, asked.max_body).read()
    content_type = asked.request.headers.get("content-type", "")
    if len(body) > IN_MEMORY_BYTES:  # others must not wait while this is read
        drafts = await trio.to_thread.run_sync(decode_drafts, content_type, body)
    else:
        drafts = decode_drafts(content_type, body)
    good = [draft for draft in drafts if isinstance(draft, Draft)]
    outcomes = iter(await asked.broker.publish_many(queue, good))
    lines = []
    for draft in drafts:
        outcome = next(outcomes) if isinstance(draft, Draft) else draft
        if isinstance(outcome, MQError):
            lines.append(refused_line(outcome))
        else:
            lines.append(published_line(outcome.id, is_new=outcome.is_new))
    return outcomes_reply(lines)


async def contains(asked: Asked) -> Reply:
    """Is this body in the queue?"""
    queue = await known_queue(asked.broker, asked.queue)
    body = Incoming(asked.request, asked.max_body)
    small = await body.read_small()
    if small is not None:
        id = await asked.broker.contains(queue, small)
    else:
        upload = await asked.broker.stage(body)
        try:
            id = await asked.broker.contains(queue, upload)
        finally:
            await upload.discard()
    return document(200, {"contains": id is not None, "id": id})


_STORED: Final = {"X-Message-Id": ("the message's id", ID.schema)}
_MESSAGE: Final = {"queue": "$request.path.queue", "id": "$response.header.X-Message-Id"}
_FOUND: Final = record({"contains": {"type": "boolean"}, "id": or_null(ID.schema)})

OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "POST",
        "/QUEUE/messages",
        publish,
        "publishes a message",
        {
            201: Answer("stored", {}, _STORED, {"show": _MESSAGE, "remove": _MESSAGE}),
            200: Answer("it was there already: the same key, or in a unique queue the same body", {}, _STORED),
        },
        refusals=(404, 408, 409, 413, 429, 503),
        headers=(MESSAGE_DELAY, MESSAGE_TTL, IDEMPOTENCY_KEY),
        body=BYTES,
        needs_body=False,
    ),
    Operation(
        "POST",
        "/QUEUE/messages/batch",
        publish_batch,
        "publishes many",
        {200: Answer("one line for each entry", OUTCOMES)},
        refusals=(404, 408, 413, 503),
        body=DRAFTS,
    ),
    Operation(
        "POST",
        "/QUEUE/contains",
        contains,
        "is this body in the (unique) queue?",
        {
            200: Answer(
                "whether, and which", as_json(record({"contains": {"type": "boolean"}, "id": or_null(ID.schema)}))
            )
        },
        refusals=(404, 408, 409, 413, 503),
        body=BYTES,
        needs_body=False,
    ),
)
"""What publishers ask for."""
