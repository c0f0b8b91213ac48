"""Replies with messages and with the state of queues, shared by several operations."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import trio

from mq.broker import QueueStatus
from mq.broker.bodies import close
from mq.broker.settings import VISIBILITY
from mq.message import BytesBody, Message
from mq.web.batches import JSON_LINES
from mq.web.exchange import Reply
from mq.web.operations import Schema
from mq.web.parameters import GROUP, ID, headers_of
from mq.web.request_body import IN_MEMORY_BYTES

NOT_CACHED: Final = ("cache-control", "no-store")
"""A fetch leases: no cache may answer for it."""

STORED: Final = (
    NOT_CACHED,
    ("x-content-type-options", "nosniff"),
    ("content-security-policy", "sandbox; default-src 'none'"),
)
"""Headers of published bodies. A browser takes such a body for nothing but its content type, and runs no script of it
in our origin."""

MESSAGE_HEADERS: Final[Mapping[str, tuple[str, Schema]]] = {
    "X-Message-Id": ("the message's id", ID.schema),
    "ETag": ("the receipt of the delivery that holds it, in quotes", {"type": "string"}),
    "X-Message-Receives": ("how often it has been handed out", {"type": "integer", "minimum": 0}),
    "X-Message-Lease": ("seconds for which that delivery holds it", VISIBILITY.schema),
    "X-Message-Group": ("its message group, where its publisher named one", GROUP.schema),
    "X-Message-Deaths": ("how it came from queue to queue as a dead letter: JSON", {"type": "string"}),
    "traceparent": ("the trace that it belongs to, where it was published in one", {"type": "string"}),
    "tracestate": ("what tracing systems add to it", {"type": "string"}),
}
"""The headers of a reply with one message; a batch has none of them."""


def outcomes_reply(lines: Sequence[str]) -> Reply:
    """A line for each entry of a batch."""
    body = "".join(lines).encode("ascii")
    return Reply(200, (("content-type", JSON_LINES[0]), ("content-length", str(len(body)))), body)


async def message_reply(message: Message) -> Reply:
    """One message as its body; a large one is streamed."""
    headers = (*headers_of(message), *STORED)
    if message.body.size > IN_MEMORY_BYTES:
        return Reply(200, headers, message.body)
    return Reply(200, headers, await read_body(message))


async def read_body(message: Message) -> bytes:
    """A message's body, which is closed in any case."""
    if type(message.body) is BytesBody:
        return message.body.data  # there is nothing to close
    try:
        return await message.body.read()
    finally:
        await close([message])


async def without_body(reply: Reply) -> Reply:
    """A reply to HEAD: the same, with nothing left to send or to close."""
    if not isinstance(reply.body, bytes):
        with trio.CancelScope(shield=True):
            await reply.body.aclose()
    return reply._replace(body=b"")


def shown_queue(status: QueueStatus) -> dict[str, Any]:
    """What a queue is and holds, by its JSON names."""
    return {
        "name": status.name,
        **status.settings.values(),
        "ready": status.ready,
        "leased": status.leased,
        "delayed": status.delayed,
        "oldest_seconds": age_of(status),
    }


def age_of(status: QueueStatus) -> float | None:
    """How long its oldest ready message has been in a queue, in seconds."""
    return None if status.oldest_ns is None else round(max(0.0, (time.time_ns() - status.oldest_ns) / 1e9), 3)
