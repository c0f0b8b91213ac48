"""Batches that can be read again: consumers, their claims, and browsing by sequence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from mq.broker import LARGEST_CLAIM, Seen
from mq.broker.browsing import Browsed
from mq.broker.claimed import LONGEST_SLICE
from mq.broker.claiming import CLAIM_SECONDS
from mq.broker.queue_settings import VISIBILITY, count
from mq.message import QueueName
from mq.web.batches import Entry
from mq.web.columns import COLUMNS
from mq.web.exchange import Reply, document, empty
from mq.web.operations import Answer, Asked, Operation, Parameter
from mq.web.replies import NOT_CACHED, batch_reply, fitting
from mq.web.schemas import COUNT, MESSAGES, as_json, record, reference

LONGEST_PAGE: Final = 10_000
"""Messages of one answer at the most; their bodies have together no more bytes than one message may have."""
MOST_PARTS: Final = 10_000

_LARGEST: Final = (1 << 63) - 1
_NUMBER: Final = count(_LARGEST, 0)
_BATCH: Final = Parameter("batch", count(_LARGEST), "the claim's number", is_needed=True)
_EPOCH: Final = Parameter("epoch", _NUMBER, "as the start of the consumer told it", is_needed=True)


async def consumers(asked: Asked) -> Reply:
    """All consumers of a queue."""
    standing = await asked.broker.claims.consumers(QueueName(asked.queue))
    return document(200, {"consumers": [each._asdict() for each in standing]})


async def consumer(asked: Asked) -> Reply:
    """How far a consumer is."""
    return document(200, (await asked.broker.claims.consumer(QueueName(asked.queue), asked.id))._asdict())


async def start_consumer(asked: Asked) -> Reply:
    """Begin a new epoch."""
    return document(200, (await asked.broker.claims.start(QueueName(asked.queue), asked.id))._asdict())


async def forget_consumer(asked: Asked) -> Reply:
    """Let go of a consumer."""
    await asked.broker.claims.forget(QueueName(asked.queue), asked.id)
    return empty(200)


async def claim(asked: Asked) -> Reply:
    """Make a claim, or renew it."""
    query = asked.query
    held = await asked.broker.claims.claim(
        QueueName(asked.queue),
        asked.id,
        query["batch"],
        query["epoch"],
        most=query["max"],
        most_bytes=query["max_bytes"],
        up_to=query["up_to"],
        lease=query["lease"],
    )
    if held is None:
        return empty(204, NOT_CACHED)
    shown = held._asdict()
    return document(201 if shown.pop("is_new") else 200, shown)


async def read_claim(asked: Asked) -> Reply:
    """Messages of a claim, which stay as they are."""
    queue, batch, epoch = QueueName(asked.queue), asked.query["batch"], asked.query["epoch"]
    start, stop = asked.query["from"], asked.query["to"]

    async def read(start: int, most: int) -> Browsed:
        messages = await asked.broker.claims.read(queue, asked.id, batch, epoch, start, min(stop, start + most))
        seen = [Seen(message, "", sequence) for sequence, message in messages]
        return Browsed(seen, start + len(seen) if seen else None)

    entries, after = await _gather(asked, read, start, lambda place, slice: place + len(slice))
    here = f"/{queue}/consumers/{asked.id}/claim?batch={batch}&epoch={epoch}"
    return _page(asked, entries, f"{here}&from={after}&to={stop}" if after is not None and after < stop else None)


async def acknowledge_claim(asked: Asked) -> Reply:
    """Remove what a claim has."""
    query = asked.query
    await asked.broker.claims.acknowledge(QueueName(asked.queue), asked.id, query["batch"], query["epoch"])
    return empty(202)


async def browse(asked: Asked) -> Reply:
    """Messages by sequence."""
    queue, up_to, most = QueueName(asked.queue), asked.query["up_to"], asked.query["max"]

    async def read(after: int, most: int) -> Browsed:
        return await asked.broker.browsing.browse(queue, after=after, up_to=up_to, most=most)

    entries, after = await _gather(asked, read, asked.query["after"], lambda after, slice: slice[-1].sequence or after)
    limit = "" if up_to is None else f"&up_to={up_to}"
    return _page(asked, entries, None if after is None else f"/{queue}/browse?max={most}&after={after}{limit}")


async def ranges(asked: Asked) -> Reply:
    """A queue cut into parts."""
    found = await asked.broker.browsing.ranges(QueueName(asked.queue), asked.query["parts"])
    return document(200, {"messages": found.messages, "high": found.high, "bounds": list(found.bounds)})


async def _gather(
    asked: Asked,
    read: Callable[[int, int], Awaitable[Browsed]],
    place: int,
    following: Callable[[int, Sequence[Seen]], int],
) -> tuple[list[Entry], int | None]:
    """Messages slice by slice, until there are as many as was asked for or their bodies are too long for one answer;
    and from where to go on, None when nothing is left."""
    entries: list[Entry] = []
    left, most = asked.max_body, asked.query["max"]
    while len(entries) < most and left > 0:
        seen, after = await read(place, min(LONGEST_SLICE, most - len(entries)))
        found, rest = await fitting(seen, left, is_first=not entries)
        entries += found
        if rest:
            taken = seen[: len(seen) - len(rest)]
            return entries, following(place, taken) if taken else place
        if after is None:
            return entries, None
        place = after
        left -= sum(len(entry.body) for entry in found)
    return entries, place


def _page(asked: Asked, entries: Sequence[Entry], following: str | None) -> Reply:
    link = () if following is None else (("link", f'<{following}>; rel="next"'),)
    return batch_reply(asked.request, entries, *link, offers_columns=True)


_PAGE: Final = Parameter("max", count(LONGEST_PAGE), "messages of one answer", 1000)
_MESSAGES: Final = {**MESSAGES, COLUMNS: {"type": "string", "description": "Columns of numbers and bytes."}}
_STANDING: Final = as_json(reference("Consumer"))
_LINK: Final[dict[str, Any]] = {"Link": ("leads to what comes next", {"type": "string"})}
_CLAIM: Final = as_json(reference("Claim"))

OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "GET",
        "/QUEUE/browse",
        browse,
        "shows ready messages by their sequence, and takes none",
        {200: Answer("a batch", _MESSAGES, _LINK)},
        refusals=(404, 503),
        query=(
            Parameter("after", _NUMBER, "only those with a greater sequence", 0),
            Parameter("up_to", _NUMBER, "and none with a greater one than this"),
            _PAGE,
        ),
    ),
    Operation(
        "GET",
        "/QUEUE/ranges",
        ranges,
        "cuts the ready messages into parts that can be browsed side by side",
        {
            200: Answer(
                "the greatest sequence of each part",
                as_json(record({"messages": COUNT, "high": COUNT, "bounds": {"type": "array", "items": COUNT}})),
            )
        },
        refusals=(404,),
        query=(Parameter("parts", count(MOST_PARTS), "how many at the most", 1),),
    ),
    Operation(
        "GET",
        "/QUEUE/consumers",
        consumers,
        "shows all consumers that take batches",
        {200: Answer("all", as_json(record({"consumers": {"type": "array", "items": reference("Consumer")}})))},
        refusals=(404,),
    ),
    Operation(
        "GET",
        "/QUEUE/consumers/CONSUMER",
        consumer,
        "shows how far a consumer is",
        {200: Answer("one that was never started is at the beginning", _STANDING)},
        refusals=(404,),
    ),
    Operation(
        "POST",
        "/QUEUE/consumers/CONSUMER",
        start_consumer,
        "starts a consumer: an epoch begins, and who has an earlier one is shut out",
        {200: Answer("started", _STANDING)},
        refusals=(404, 409, 503),
    ),
    Operation(
        "DELETE",
        "/QUEUE/consumers/CONSUMER",
        forget_consumer,
        "forgets a consumer, and gives back what it has claimed",
        {200: Answer("forgotten")},
        refusals=(404, 503),
    ),
    Operation(
        "PUT",
        "/QUEUE/consumers/CONSUMER/claim",
        claim,
        "claims the next batch; asked for again, renews it, and gets again what had come back",
        {
            200: Answer("the claim as it was made", _CLAIM),
            201: Answer("a new one", _CLAIM),
            204: Answer("nothing is there"),
        },
        refusals=(404, 409, 423, 503),
        query=(
            _BATCH,
            _EPOCH,
            Parameter("max", count(LARGEST_CLAIM), "messages of a new claim at the most", LARGEST_CLAIM),
            Parameter("max_bytes", count(_LARGEST), "bytes of their bodies together, but for a single longer one"),
            Parameter("up_to", _NUMBER, "the greatest sequence that a new claim may have"),
            Parameter("lease", VISIBILITY, "seconds until its messages are there for others", CLAIM_SECONDS),
        ),
    ),
    Operation(
        "GET",
        "/QUEUE/consumers/CONSUMER/claim",
        read_claim,
        "shows messages of the open claim, in an order that does not change",
        {200: Answer("a batch", _MESSAGES, _LINK)},
        refusals=(404, 409, 412, 503),
        query=(
            _BATCH,
            _EPOCH,
            Parameter("from", _NUMBER, "the first place", 0),
            Parameter("to", _NUMBER, "the place after the last", LARGEST_CLAIM),
            _PAGE,
        ),
    ),
    Operation(
        "DELETE",
        "/QUEUE/consumers/CONSUMER/claim",
        acknowledge_claim,
        "acknowledges a claim: all its messages are removed",
        {202: Answer("removed for good")},
        refusals=(404, 409, 503),
        query=(_BATCH, _EPOCH),
    ),
)
"""What is asked for by who takes batches."""
