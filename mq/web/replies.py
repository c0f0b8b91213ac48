"""Replies that several endpoints give."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import trio

from mq.broker import QueueStatus, Seen
from mq.broker.closing import close
from mq.errors import CorruptMessage
from mq.message import BytesBody, Message
from mq.web.batches import FORMATS, JSON_LINES, Entry, encode_entries, preferred
from mq.web.columns import COLUMNS, encode_columns
from mq.web.exchange import Reply, Request
from mq.web.incoming import IN_MEMORY_BYTES
from mq.web.operations import Schema
from mq.web.parameters import ID, headers_of

logger = logging.getLogger("mq.web")

NOT_CACHED: Final = ("cache-control", "no-store")
"""A fetch leases: no cache may answer for it."""

MESSAGE_HEADERS: Final[Mapping[str, tuple[str, Schema]]] = {
    "X-Message-Id": ("the message's id", ID.schema),
    "ETag": ("the receipt of the delivery that holds it, in quotes", {"type": "string"}),
    "X-Message-Receives": ("how often it has been handed out", {"type": "integer", "minimum": 0}),
    "X-Message-Deaths": ("how it came from queue to queue as a dead letter: JSON", {"type": "string"}),
}
"""What stands in the headers of a message; not in those of a batch."""


def batch_reply(
    request: Request, entries: Sequence[Entry], *headers: tuple[str, str], offers_columns: bool = False
) -> Reply:
    """A batch of messages, in the format that the client would rather have."""
    accept = request.headers.get("accept", "")
    if offers_columns and preferred(accept, (*FORMATS, COLUMNS)) == COLUMNS:
        content_type, body = COLUMNS, encode_columns(entries)
    else:
        content_type, body = encode_entries(accept, entries)
    length = ("content-length", str(len(body)))
    return Reply(200, (("content-type", content_type), length, NOT_CACHED, *headers), body)


def outcomes_reply(lines: Sequence[str]) -> Reply:
    """A line for each entry of a batch."""
    body = "".join(lines).encode("ascii")
    return Reply(200, (("content-type", JSON_LINES[0]), ("content-length", str(len(body)))), body)


async def message_reply(message: Message) -> Reply:
    """One message as its body; a large one is streamed."""
    headers = (*headers_of(message), NOT_CACHED)
    if message.body.size > IN_MEMORY_BYTES:
        return Reply(200, headers, message.body)
    return Reply(200, headers, await read_body(message))


async def read_body(message: Message) -> bytes:
    """A message's body, closed whatever happens."""
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


async def fitting(seen: Sequence[Seen], limit: int, *, is_first: bool = True) -> tuple[list[Entry], Sequence[Seen]]:
    """Those of the first whose bodies have together at most `limit` bytes, or else the very first if nothing comes
    before it; and the rest, closed. What is damaged stays where it is."""
    entries: list[Entry] = []
    left = limit
    for position, (message, state, sequence) in enumerate(seen):
        left -= message.body.size
        if left < 0 and (entries or not is_first):
            rest = seen[position:]
            await close([each.message for each in rest])
            return entries, rest
        try:
            body = message.body.data if type(message.body) is BytesBody else await read_body(message)
        except CorruptMessage as error:
            logger.error("message %s of %s is not handed out: %s", message.id, message.queue, error)
        else:
            entries.append(Entry(message, body, state, sequence))
    return entries, ()


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
