"""Operations on exchanges, which are declared over AMQP: publishing there."""

from __future__ import annotations

import json
from typing import Any, Final

from mq.access import Right
from mq.broker import Draft
from mq.broker.settings import SettingKind
from mq.doors.budget import Use
from mq.doors.exchanges import ExchangePublisher, InternalExchange, NoSuchExchange
from mq.errors import MQError
from mq.message import shorten
from mq.web.batches import draft_entries, read_entries, refused_line
from mq.web.exchange import Reply, document, problem
from mq.web.operations import KNOWN, Operation, Parameter, RequestContext, Success
from mq.web.parameters import (
    IDEMPOTENCY_KEY,
    MESSAGE_GROUP,
    MESSAGE_PRIORITY,
    MESSAGE_TIMES,
    TRACE_HEADERS,
    draft_of,
    in_trace,
    refuse_message_headers,
)
from mq.web.refusals import refusal_of
from mq.web.replies import outcomes_reply
from mq.web.request_body import LimitedBody, making_room
from mq.web.schemas import BYTES, DRAFTS, OUTCOMES, as_json, record

LONGEST_NAME: Final = 255
"""Bytes of a name, or a key, of AMQP."""


async def publish_to_exchange(context: RequestContext) -> Reply:
    """Publish a message to an exchange."""
    publisher, refusal = _publisher(context)
    if publisher is None:
        return refusal
    draft = draft_of(context.request.headers)
    context.check_publish()
    body = LimitedBody(context.request, context.max_body)
    with context.memory.reserve(Use.BODY) as room:
        announced = context.request.content_length or 0
        room.cover(announced)
        whole = bytearray()
        with making_room(body, room) as chunks:
            async for chunk in chunks:
                room.cover(max(announced, len(whole) + len(chunk)))
                whole += chunk
        found = await _publish(context, publisher, [draft._replace(body=bytes(whole))])
    if isinstance(found, Reply):
        return found
    [outcome] = found
    if isinstance(outcome, MQError):
        raise outcome
    return document(201 if outcome else 200, {"routed": outcome})


async def publish_batch_to_exchange(context: RequestContext) -> Reply:
    """Publish many to an exchange."""
    publisher, refusal = _publisher(context)
    if publisher is None:
        return refusal
    headers = context.request.headers
    refuse_message_headers(headers)
    entries = draft_entries(headers.get("content-type", ""))
    with context.memory.reserve(Use.BODY) as room:
        drafts = in_trace(headers, await read_entries(context.request, entries, context.max_body, room))
        good = [draft for draft in drafts if isinstance(draft, Draft)]
        context.check_publish(len(good))
        found = await _publish(context, publisher, good)
    if isinstance(found, Reply):
        return found
    outcomes = iter(found)
    lines = []
    for draft in drafts:
        outcome = next(outcomes) if isinstance(draft, Draft) else draft
        lines.append(refused_line(outcome) if isinstance(outcome, MQError) else _routed_line(is_routed=outcome))
    return outcomes_reply(lines)


def _publisher(context: RequestContext) -> tuple[ExchangePublisher | None, Reply]:
    """The publisher; or None, and the reply that says why. A user without a right on an exchange gets the same reply
    whether it exists or not."""
    missing = refusal_of(NoSuchExchange(f"exchange {shorten(context.id)} does not exist. Declare it over AMQP"))
    publisher = context.overview.exchanges.publisher
    try:
        is_name = 0 < len(context.id.encode()) <= LONGEST_NAME
    except UnicodeEncodeError:
        is_name = False
    if publisher is None or not is_name:
        return None, missing
    if not context.may(Right.PUBLISH, publisher.name_of(context.query["vhost"], context.id)):
        text = f"this requires the right to {Right.PUBLISH} on exchange {shorten(context.id)}"
        return None, problem(403, text)
    return publisher, missing


async def _publish(
    context: RequestContext, publisher: ExchangePublisher, drafts: list[Draft]
) -> list[bool | MQError] | Reply:
    query = context.query
    try:
        return await publisher.publish(query["vhost"], context.id, query["routing_key"], drafts)
    except InternalExchange as error:
        return problem(403, str(error))


def _routed_line(*, is_routed: bool) -> str:
    return f"{json.dumps({'status': 201 if is_routed else 200, 'routed': is_routed})}\n"


def _parse_name(value: Any) -> str:
    if not isinstance(value, str) or len(value.encode()) > LONGEST_NAME:  # UnicodeEncodeError is a ValueError
        raise ValueError
    return value


_NAME: Final = SettingKind(
    _parse_name, f"text of at most {LONGEST_NAME} bytes", {"type": "string", "maxLength": LONGEST_NAME}
)
_WHERE: Final = (
    Parameter("routing_key", _NAME, "routing key of the message", ""),
    Parameter("vhost", _NAME, "vhost of the exchange", "/"),
)
_ROUTED: Final = as_json(record({"routed": {"type": "boolean"}}))

OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "POST",
        "/-/exchanges/EXCHANGE/messages",
        KNOWN,
        publish_to_exchange,
        "publishes a message to an AMQP exchange",
        {
            201: Success("stored in every bound queue", _ROUTED),
            200: Success("no queue is bound: the message was dropped", _ROUTED),
        },
        refusals=(404, 408, 409, 413, 429, 503),
        query=_WHERE,
        headers=(*MESSAGE_TIMES, MESSAGE_PRIORITY, MESSAGE_GROUP, IDEMPOTENCY_KEY, *TRACE_HEADERS),
        body=BYTES,
        needs_body=False,
        is_of_messages=True,
    ),
    Operation(
        "POST",
        "/-/exchanges/EXCHANGE/messages/batch",
        KNOWN,
        publish_batch_to_exchange,
        "publishes a batch of messages to an AMQP exchange",
        {200: Success("one line for each entry of the batch", OUTCOMES)},
        refusals=(404, 408, 413, 503),
        query=_WHERE,
        headers=TRACE_HEADERS,
        body=DRAFTS,
        is_of_messages=True,
    ),
)
"""Publishing to exchanges."""
