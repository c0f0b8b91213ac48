"""Replies that several endpoints give."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import trio

from mq.broker import QueueStatus
from mq.broker.fetching import close
from mq.errors import MQError
from mq.message import Message
from mq.web.batches import JSON_LINES, Entry, encode_entries, encode_outcomes
from mq.web.exchange import Reply, Request
from mq.web.incoming import IN_MEMORY_BYTES
from mq.web.parameters import headers_of

NOT_CACHED: Final = ("cache-control", "no-store")
"""A fetch leases: no cache may answer for it."""

_T = TypeVar("_T")


def batch_reply(request: Request, entries: list[Entry], *headers: tuple[str, str]) -> Reply:
    """A batch of messages, in the format that the client would rather have."""
    content_type, body = encode_entries(request.headers.get("accept", ""), entries)
    length = ("content-length", str(len(body)))
    return Reply(200, (("content-type", content_type), length, NOT_CACHED, *headers), body)


def outcomes_reply(answers: Sequence[Mapping[str, Any]]) -> Reply:
    """A line for each entry of a batch."""
    body = encode_outcomes(answers)
    return Reply(200, (("content-type", JSON_LINES[0]), ("content-length", str(len(body)))), body)


async def message_reply(message: Message) -> Reply:
    """One message as its body; a large one is streamed."""
    headers = (*headers_of(message), NOT_CACHED)
    if message.body.size > IN_MEMORY_BYTES:
        return Reply(200, headers, message.body)
    return Reply(200, headers, await read_body(message))


async def read_body(message: Message) -> bytes:
    """A message's body, closed whatever happens."""
    try:
        return await message.body.read()
    finally:
        await close([message])


async def unless_gone(gone: Callable[[], Awaitable[object]], work: Callable[[], Awaitable[_T]]) -> _T | None:
    """What `work` gives; None when the client hung up first: then it is given up."""
    done: _T | None = None
    failed: MQError | None = None

    async def watch() -> None:
        await gone()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        try:
            done = await work()
        except MQError as error:
            failed = error
        nursery.cancel_scope.cancel()
    if failed is not None:
        raise failed
    return done


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
