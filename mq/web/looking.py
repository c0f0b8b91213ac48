"""Looking at messages without taking them."""

from __future__ import annotations

from typing import Final

from mq.broker.looking import READY
from mq.message import MessageId, QueueName
from mq.web.exchange import Reply
from mq.web.operations import Answer, Asked, Operation, Parameter
from mq.web.parameters import ID, MOST, STATE
from mq.web.queues import known_queue
from mq.web.replies import MESSAGE_HEADERS, batch_reply, fitting, message_reply
from mq.web.schemas import BYTES, MESSAGES

_PAGE: Final = 100


async def show(asked: Asked) -> Reply:
    """A message, left where it is."""
    seen = await asked.broker.show(QueueName(asked.queue), MessageId(asked.id))
    reply = await message_reply(seen.message)
    return reply._replace(headers=(*reply.headers, ("x-message-state", seen.state)))


async def peek(asked: Asked) -> Reply:
    """Messages, page by page."""
    queue = await known_queue(asked.broker, asked.queue)
    most, after, state = asked.query["max"], asked.query["after"], asked.query["state"]
    seen = await asked.broker.peek(queue, state=state, after=after, most=most)
    entries, rest = await fitting(seen, asked.max_body)
    if not rest and len(seen) < most:
        return batch_reply(asked.request, entries)
    last = seen[-len(rest) - 1].message.id
    following = f"</{queue}/peek?state={state}&max={most}&after={last}>"
    return batch_reply(asked.request, entries, ("link", f'{following}; rel="next"'))


_STATE: Final = {"X-Message-State": ("where it is", STATE.schema)}

OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "GET",
        "/QUEUE/messages/ID",
        show,
        "shows a message and leaves it where it is",
        {200: Answer("the message as its body", BYTES, {**MESSAGE_HEADERS, **_STATE})},
        refusals=(404, 500, 503),
    ),
    Operation(
        "GET",
        "/QUEUE/peek",
        peek,
        "shows messages, page by page",
        {200: Answer("a batch", MESSAGES, {"Link": ("leads to the next page", {"type": "string"})})},
        refusals=(404, 503),
        query=(
            Parameter("max", MOST, "messages on a page", _PAGE),
            Parameter("after", ID, "the id of the last message of the page before"),
            Parameter("state", STATE, "which messages", READY),
        ),
    ),
)
"""What people ask for who look after a queue."""
