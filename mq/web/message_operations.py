"""Operations on messages: publish, fetch, take, remove, extend a lease, show, peek."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from mq.access import Right
from mq.broker import Draft, Published, Removal, Seen, Upload
from mq.broker.commit import Future
from mq.broker.peek import READY
from mq.broker.settings import DELAY, RETRY, VISIBILITY, check_value
from mq.doors.budget import Use
from mq.errors import InvalidRequest, MQError, NotLeased
from mq.message import Message, MessageId, QueueName
from mq.web.batches import (
    MOST_BESIDE,
    REMOVED_LINE,
    draft_entries,
    longest_batch,
    published_line,
    read_entries,
    refused_line,
    removal_entries,
)
from mq.web.exchange import (
    NO_LENGTH,
    NOT_CACHED,
    Abandon,
    Answer,
    Later,
    Reply,
    Request,
    SharedHeaders,
    document,
    empty,
    nothing_to_take_back,
)
from mq.web.http_connection import waiting_for
from mq.web.operations import HeadContext, Operation, Parameter, RequestContext, Success
from mq.web.parameters import (
    AMOUNT,
    ID,
    IDEMPOTENCY_KEY,
    IF_MATCH,
    IF_NONE_MATCH,
    LARGEST_BATCH,
    MESSAGE_GROUP,
    MESSAGE_PRIORITY,
    MESSAGE_TIMES,
    REASON,
    STATE,
    TIME,
    TRACE_HEADERS,
    WAIT,
    draft_of,
    in_trace,
    read_header,
    refuse_message_headers,
    state_headers,
)
from mq.web.replies import MESSAGE_HEADERS, MessagePage, message_reply, message_reply_now, outcomes_reply
from mq.web.request_body import Limit, LimitedBody, read_object
from mq.web.schemas import BYTES, DRAFTS, MESSAGES, OUTCOMES, array_of, as_json, lines_of, or_null, record, reference


async def publish(context: RequestContext) -> Reply:
    """Publish a message."""
    draft = draft_of(context.request.headers)
    context.check_publish()
    is_announced = context.request.content_length is not None and not isinstance(context.request.body, bytes)
    limit = _limit(context, draft.key) if is_announced else context.max_body
    body = await LimitedBody.begun(context.request, limit)
    if isinstance(body, bytes):
        outcomes = await context.broker.publish_many(context.queue, [draft._replace(body=body)])
    else:
        body.narrow(_limit(context, draft.key))
        async with _staged(context, body) as upload:
            # it is the broker's to discard from here on
            outcomes = await context.broker.publish_many(context.queue, [draft._replace(body=upload)])
    return _published(outcomes)


def begin_publish(head: HeadContext, request: Request, answer: Answer) -> Reply | Abandon | None:
    """As :func:`publish`, of a small body without a key."""
    broker, headers, body = head.broker, request.headers, request.body
    draft: Draft = (headers.read if isinstance(headers, SharedHeaders) else None) or draft_of(headers)
    if not isinstance(body, bytes) or len(body) > head.max_body or draft.key is not None:
        return None
    if request.quotas is not None:
        if not broker.publishes_now(head.queue):
            return None
        request.quotas.check_publish(request.user)
    has_begun = broker.publish_now(head.queue, [Draft(body, *draft[1:])], partial(answer, _published))
    return nothing_to_take_back if has_begun else None


def _published(outcomes: Sequence[Published | MQError]) -> Reply:
    [outcome] = outcomes
    if isinstance(outcome, MQError):
        raise outcome
    return Reply(201 if outcome.is_new else 200, (NO_LENGTH, ("x-message-id", outcome.id)))


def _limit(context: RequestContext, key: str | None) -> Limit | int:
    """The longest body that the queue takes."""
    size = context.broker.longest_body(context.queue, key)
    if size >= context.max_body:
        return context.max_body
    return Limit(size, f"max_bytes of queue {context.queue}, or the maximum of its store")


async def publish_batch(context: RequestContext) -> Reply:
    """Publish many."""
    refuse_message_headers(context.request.headers)
    entries = draft_entries(context.request.headers.get("content-type", ""))
    with context.memory.reserve(Use.BODY) as room:
        drafts = in_trace(
            context.request.headers,
            await read_entries(
                context.request, entries, longest_batch(context.broker, context.queue, context.max_body), room
            ),
        )
        good = [draft for draft in drafts if isinstance(draft, Draft)]
        context.check_publish(len(good))
        outcomes = iter(await context.broker.publish_many(context.queue, good))
    lines = []
    for draft in drafts:
        outcome = next(outcomes) if isinstance(draft, Draft) else draft
        if isinstance(outcome, MQError):
            lines.append(refused_line(outcome))
        else:
            lines.append(published_line(outcome.id, is_new=outcome.is_new))
    return outcomes_reply(lines)


async def contains(context: RequestContext) -> Reply:
    """Is this body in the queue?"""
    body = await LimitedBody.begun(context.request, context.max_body)
    if isinstance(body, bytes):
        id = await context.broker.contains(context.queue, body)
    else:
        async with _staged(context, body) as upload:
            try:
                id = await context.broker.contains(context.queue, upload)
            finally:
                await upload.discard()
    return document(200, {"contains": id is not None, "id": id})


@asynccontextmanager
async def _staged(context: RequestContext, body: LimitedBody) -> AsyncIterator[Upload]:
    """A long body in the store. The block publishes or discards it; until then it counts as disk of its client."""
    with context.memory.reserve(Use.STAGED) as room:
        async with body.on_disk(room) as chunks:
            upload = await context.broker.stage(chunks, context.queue)
        yield upload


_EMPTY: Final = empty(204, NOT_CACHED)
_REMOVED: Final = empty(202)
_STORED: Final = {"X-Message-Id": ("the message's id", ID.schema)}
_MESSAGE: Final = {"queue": "$request.path.queue", "id": "$response.header.X-Message-Id"}
_FOUND: Final = as_json(record({"contains": {"type": "boolean"}, "id": or_null(ID.schema)}))


async def fetch(context: RequestContext) -> Reply:
    """Lease a message, or several."""
    queue, most, wait = QueueName(context.queue), context.query["max"], context.query["wait"]

    async def fetch(wait: float) -> list[Message]:
        return await context.broker.fetch_many(queue, most or 1, wait=wait, visibility=context.query["visibility"])

    messages = await context.waits.fetch(context.broker, queue, wait, context.request.on_hang_up, fetch)
    if not messages:
        return _EMPTY
    return await message_reply(messages[0]) if most is None else await _batch(context, messages)


def begin_fetch(head: HeadContext, request: Request, answer: Answer) -> Reply | Abandon | None:
    """As :func:`fetch`, of one message that is there, or without a wait."""
    broker, queue, query = head.broker, head.queue, head.query
    if query["max"] is not None:
        return None
    future = broker.fetch_now(queue, 1, visibility=query["visibility"])
    if not isinstance(future, Future):
        return None if future is None or query["wait"] else _EMPTY
    future.then(partial(answer, _fetched, head, request, future))
    return future.abandon


def _fetched(
    head: HeadContext, request: Request, future: Future[list[Message]], error: Exception | None
) -> Reply | Later:
    if error is not None:
        raise error
    if not future.value:
        return partial(fetch, RequestContext.of(head, request)) if head.query["wait"] else _EMPTY
    [message] = future.value
    return message_reply_now(message) or partial(message_reply, message)


async def take(context: RequestContext) -> Reply:
    """Fetch and remove a message in one step."""
    queue, wait = QueueName(context.queue), context.query["wait"]

    async def take() -> Message | None:
        return await context.broker.take(queue, wait=wait)

    if wait:
        with waiting_for(queue):
            message = await context.waits.unless_gone(context.request.on_hang_up, take)
    else:
        message = await take()
    return _EMPTY if message is None else await message_reply(message)


async def _batch(context: RequestContext, messages: list[Message]) -> Reply:
    """Leased messages. Messages that do not fit are given back as if they had not been handed out."""
    with MessagePage(context.memory, context.max_body) as page:
        try:
            rest = await page.add([Seen(message, "") for message in messages])
        except MQError:
            await context.broker.give_back(messages)
            raise
        await context.broker.give_back([seen.message for seen in rest])
        return page.reply(context.request.headers.get("accept", "")) if page.entries else _EMPTY


async def remove(context: RequestContext) -> Reply:
    """Remove a message."""
    receipt = read_header(context.request.headers, IF_MATCH)
    await context.broker.remove(QueueName(context.queue), MessageId(context.id), receipt=receipt)
    return _REMOVED


def begin_remove(head: HeadContext, request: Request, answer: Answer) -> Reply | Abandon | None:
    """As :func:`remove`."""
    receipt = read_header(request.headers, IF_MATCH) if "if-match" in request.headers else None
    has_begun = head.broker.remove_now(head.queue, request.id or head.id, partial(answer, _removed), receipt=receipt)
    return nothing_to_take_back if has_begun else None


def _removed(error: Exception | None) -> Reply:
    if error is not None:
        raise error
    return _REMOVED


async def remove_batch(context: RequestContext) -> Reply:
    """Remove many."""
    entries = removal_entries(context.request.headers.get("content-type", ""))
    longest = min(context.max_body, MOST_BESIDE)  # there are no bodies
    with context.memory.reserve(Use.BODY) as room:
        removals = await read_entries(context.request, entries, longest, room)
    good = [removal for removal in removals if isinstance(removal, Removal)]
    errors = iter(await context.broker.remove_many(context.queue, good))
    lines = []
    for removal in removals:
        error = removal if isinstance(removal, MQError) else next(errors)
        lines.append(REMOVED_LINE if error is None else refused_line(error))
    return outcomes_reply(lines)


async def change_message(context: RequestContext) -> Reply:
    """End or extend a lease, or change when a delayed message can be fetched."""
    queue, id, receipt = QueueName(context.queue), MessageId(context.id), read_header(context.request.headers, IF_MATCH)
    is_free = read_header(context.request.headers, IF_NONE_MATCH) is not None
    wanted = await read_object(context.request)
    if is_free and wanted.keys() == {"delay"}:
        seconds = check_value("delay", wanted["delay"], DELAY)
        await context.broker.reschedule(queue, id, receipt=receipt, delay=seconds)
        return document(200, {"id": id, "delay": seconds})
    if is_free and wanted.keys() != {"at"}:
        raise InvalidRequest(
            'a message without a lease can only be rescheduled, with {"delay": seconds} or {"at": time}'
        )
    if "delay" in wanted and wanted.keys() <= {"delay", "reason"}:
        delay = None if wanted["delay"] is None else check_value("delay", wanted["delay"], DELAY)
        reason = check_value("reason", wanted.get("reason", ""), REASON)
        try:
            await context.broker.requeue(queue, id, receipt=receipt, delay=delay, reason=reason)
        except NotLeased:
            if delay is None or reason:
                raise  # a consumer's, and it comes too late
            await context.broker.reschedule(queue, id, receipt=receipt, delay=delay)
        return document(200, {"id": id, "delay": delay})
    if wanted.keys() == {"at"}:
        await context.broker.reschedule(queue, id, receipt=receipt, at_ms=check_value("at", wanted["at"], TIME))
        return document(200, {"id": id, "at": wanted["at"]})
    if wanted.keys() != {"visibility"}:
        raise InvalidRequest(
            'the request body must be one of: {"visibility": seconds} to extend the lease (0 ends '
            'it); {"delay": seconds, "reason": text} to requeue the message ("delay": null uses the queue\'s '
            'own delay); {"delay": seconds} or {"at": time} to reschedule a delayed message'
        )
    seconds = check_value("visibility", wanted["visibility"], RETRY)
    if seconds == 0:
        await context.broker.requeue(queue, id, receipt=receipt)
    else:
        await context.broker.extend(queue, id, seconds, receipt=receipt)
    return document(200, {"id": id, "visibility": seconds})


_WAIT: Final = Parameter("wait", WAIT, "maximum seconds to wait for a message", 0)
_NOTHING: Final = Success("no message is ready")


_PAGE: Final = 100


async def show(context: RequestContext) -> Reply:
    """A message, left where it is."""
    seen = await context.broker.show(QueueName(context.queue), MessageId(context.id))
    reply = await message_reply(seen.message)
    return reply._replace(headers=(*reply.headers, *state_headers(seen.state, seen.at_ms)))


async def peek(context: RequestContext) -> Reply:
    """Messages, page by page."""
    most, after, state = context.query["max"], context.query["after"], context.query["state"]
    accept, left = context.request.headers.get("accept", ""), most
    with MessagePage(context.memory, context.max_body) as page:
        while left and not page.is_full:
            wanted = page.slice(left)
            seen = await context.broker.peek(context.queue, state=state, after=after, most=wanted)
            rest = await page.add(seen)
            taken = len(seen) - len(rest)
            if taken:
                after = seen[taken - 1].message.id
            left -= taken
            if not rest and len(seen) < wanted:
                return page.reply(accept)
        following = f"</{context.queue}/peek?state={state}&max={most}&after={after}>"
        return page.reply(accept, ("link", f'{following}; rel="next"'))


_STATE: Final = {
    "X-Message-State": ("state of the message", STATE.schema),
    "X-Message-At": ("the time at which its delay or lease ends", TIME.schema),
}


OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "POST",
        "/QUEUE/messages",
        Right.PUBLISH,
        publish,
        "publishes a message",
        {
            201: Success("stored", {}, _STORED, {"show": _MESSAGE, "remove": _MESSAGE}),
            200: Success("the message was already stored: same key or, in a unique queue, same body", {}, _STORED),
        },
        refusals=(404, 408, 409, 413, 429, 503),
        headers=(*MESSAGE_TIMES, MESSAGE_PRIORITY, MESSAGE_GROUP, IDEMPOTENCY_KEY, *TRACE_HEADERS),
        body=BYTES,
        needs_body=False,
        needs_queue=True,
        is_of_messages=True,
        begin=begin_publish,
    ),
    Operation(
        "POST",
        "/QUEUE/messages/batch",
        Right.PUBLISH,
        publish_batch,
        "publishes a batch of messages",
        {200: Success("one line for each entry of the batch", OUTCOMES)},
        refusals=(404, 408, 413, 503),
        headers=TRACE_HEADERS,
        body=DRAFTS,
        needs_queue=True,
        is_of_messages=True,
    ),
    Operation(
        "POST",
        "/QUEUE/contains",
        Right.CONSUME,
        contains,
        "checks whether a unique queue contains a body",
        {200: Success("the result, and the id of the message", _FOUND)},
        refusals=(404, 408, 409, 413, 503),
        body=BYTES,
        needs_body=False,
        needs_queue=True,
        is_of_messages=True,
    ),
    Operation(
        "GET",
        "/QUEUE/messages",
        Right.CONSUME,
        fetch,
        "fetches and leases a message, or several with `max`",
        {
            200: Success(
                "the message in the response body; with `max`, a batch", {**MESSAGES, **BYTES}, MESSAGE_HEADERS
            ),
            204: _NOTHING,
        },
        refusals=(404, 423, 500, 503),
        query=(
            _WAIT,
            Parameter("visibility", VISIBILITY, "length of the lease in seconds; else the queue's visibility"),
            Parameter("max", AMOUNT, f"maximum number of messages, up to {LARGEST_BATCH}; the response is a batch"),
        ),
        begin=begin_fetch,
    ),
    Operation(
        "POST",
        "/QUEUE/take",
        Right.CONSUME,
        take,
        "fetches and removes a message in one request",
        {200: Success("the message in the response body", BYTES, MESSAGE_HEADERS), 204: _NOTHING},
        refusals=(404, 423, 500, 503),
        query=(_WAIT,),
        is_of_messages=True,
    ),
    Operation(
        "POST",
        "/QUEUE/messages/delete",
        Right.CONSUME,
        remove_batch,
        "removes a batch of messages",
        {200: Success("one line for each entry of the batch", OUTCOMES)},
        refusals=(404, 408, 413, 503),
        body={**lines_of(reference("Removal")), **array_of(reference("Removal"))},
        needs_queue=True,
        is_of_messages=True,
    ),
    Operation(
        "PATCH",
        "/QUEUE/messages/ID",
        Right.CONSUME,
        change_message,
        "ends or extends a lease, or reschedules a delayed message",
        {200: Success("done", as_json(reference("Leased")))},
        refusals=(404, 408, 409, 412, 413, 503),
        headers=(IF_MATCH, IF_NONE_MATCH),
        body=as_json(reference("Lease")),
        is_of_messages=True,
    ),
    Operation(
        "DELETE",
        "/QUEUE/messages/ID",
        Right.CONSUME,
        remove,
        "acknowledges or removes a message",
        {202: Success("removed permanently")},
        refusals=(404, 412, 503),
        headers=(IF_MATCH,),
        is_of_messages=True,
        begin=begin_remove,
    ),
    Operation(
        "GET",
        "/QUEUE/messages/ID",
        Right.CONSUME,
        show,
        "reads a message without leasing it",
        {200: Success("the message in the response body", BYTES, {**MESSAGE_HEADERS, **_STATE})},
        refusals=(404, 500, 503),
    ),
    Operation(
        "GET",
        "/QUEUE/peek",
        Right.CONSUME,
        peek,
        "lists messages in pages, without leasing them",
        {200: Success("a batch", MESSAGES, {"Link": ("the URL of the next page", {"type": "string"})})},
        refusals=(404, 503),
        query=(
            Parameter("max", AMOUNT, "maximum number of messages in a page", _PAGE),
            Parameter("after", ID, "the id of the last message on the previous page"),
            Parameter("state", STATE, "state of the messages to list", READY),
        ),
        needs_queue=True,
    ),
)
"""Operations on messages."""
