"""Operations of durable batch consumers (used by the Spark source): claims, and browsing by sequence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from itertools import starmap
from typing import Any, Final
from urllib.parse import quote

from mq import turns
from mq.access import Right
from mq.broker import LARGEST_CLAIM, ConsumerPosition, QueueStatus, Seen
from mq.broker.batch_consumers import CLAIM_MESSAGES, CLAIM_SECONDS
from mq.broker.columns import BrowsedColumns, ColumnReader
from mq.broker.peek import Browsed
from mq.broker.settings import QUEUE, VISIBILITY, SettingKind, check_value, count, seconds, size
from mq.errors import InvalidId, InvalidName, NoSuchQueue
from mq.message import MESSAGE_ID_PATTERN, QUEUE_NAME_PATTERN, MessageId, QueueName
from mq.web.batches import preferred
from mq.web.columns import COLUMNS
from mq.web.exchange import NOT_CACHED, Reply, document, empty
from mq.web.json_answer import JsonAnswer
from mq.web.operations import KNOWN, Operation, Parameter, RequestContext, Success
from mq.web.parameters import GROUP, KEY, SWITCH
from mq.web.replies import OFFERED, QUEUE_BYTES, SHORTEST_SLICE, MessagePage, age_of, all_queues
from mq.web.schemas import COUNT, MESSAGES, as_json, list_of, record, reference

LONGEST_PAGE: Final = 10_000
"""Messages of one answer at the most."""
MOST_PARTS: Final = 10_000
MOST_IDS: Final = 100
"""Messages that a page may be asked for by their ids."""
_POSITION_BYTES: Final = 256
"""What the position of a consumer takes in memory."""


def _parse_names(value: Any) -> frozenset[str]:
    try:
        return frozenset(map(QueueName, value.split(",")))
    except InvalidName as error:
        raise ValueError from error


_NAMES: Final = SettingKind(
    _parse_names,
    "queue names, separated by commas",
    {"type": "string", "pattern": f"^{QUEUE_NAME_PATTERN}(,{QUEUE_NAME_PATTERN})*$"},
)


def _parse_ids(value: Any) -> tuple[MessageId, ...]:
    try:
        ids = tuple(map(MessageId, value.split(",")))
    except InvalidId as error:
        raise ValueError from error
    if len(ids) > MOST_IDS:
        raise ValueError
    return ids


_IDS: Final = SettingKind(
    _parse_ids,
    f"up to {MOST_IDS} message ids, separated by commas",
    {"type": "string", "pattern": f"^{MESSAGE_ID_PATTERN}(,{MESSAGE_ID_PATTERN}){{0,{MOST_IDS - 1}}}$"},
)
_INT64_MAX: Final = (1 << 63) - 1
_NUMBER: Final = count(_INT64_MAX, 0)
_BATCH: Final = Parameter("batch", count(_INT64_MAX), "the batch number of the claim", is_needed=True)
_EPOCH: Final = Parameter("epoch", _NUMBER, "the epoch that the consumer's start returned", is_needed=True)
_WITHIN: Final = Parameter(
    "timeout", seconds(0, 3600), "maximum seconds to wait for the removal; the response counts the remaining messages"
)
_CHECKPOINT: Final = Parameter("checkpoint", KEY, "name of the external checkpoint that stores the consumer's position")


async def consumers(context: RequestContext) -> Reply:
    """All consumers of a queue."""
    standing = await context.broker.claims.consumers(QueueName(context.queue))
    with JsonAnswer(context.memory) as answer:
        await answer.write({"consumers": (each._asdict() for each in standing)})
        return answer.reply()


async def consumer(context: RequestContext) -> Reply:
    """How far a consumer is."""
    return document(200, (await context.broker.claims.consumer(QueueName(context.queue), context.id))._asdict())


async def batch_consumers(context: RequestContext) -> Reply:
    """The consumers of batches, in every queue that the user may consume."""
    async with context.overview.listing:
        found: list[tuple[QueueStatus, ConsumerPosition]] = []
        with JsonAnswer(context.memory) as answer:
            statuses = await all_queues(context, answer)
            async for status in turns.in_turns(statuses, turns.LIGHT // 2):
                if context.may(Right.CONSUME, status.name):
                    with suppress(NoSuchQueue):
                        found += [(status, each) for each in await context.broker.claims.consumers(status.name)]
                        answer.cover(QUEUE_BYTES * len(statuses) + _POSITION_BYTES * len(found))
            await answer.write({"consumers": starmap(_with_counts, found)})
            return answer.reply(NOT_CACHED)


async def positions(context: RequestContext) -> Reply:
    """How far a consumer is in each queue, and what waits there: one request for all."""
    names = context.query["queues"]
    if names is not None:
        return await _positions(context, names)
    async with context.overview.listing:
        return await _positions(context, None)


async def _positions(context: RequestContext, names: Collection[QueueName] | None) -> Reply:
    name = check_value("consumer", context.id, QUEUE)
    found: list[tuple[QueueStatus, ConsumerPosition]] = []
    with JsonAnswer(context.memory) as answer:
        statuses = await (all_queues(context, answer) if names is None else _named_queues(context, names))
        async for status in turns.in_turns(statuses, turns.LIGHT // 2):
            if context.may(Right.CONSUME, status.name):
                with suppress(NoSuchQueue):  # it was deleted just now
                    found.append((status, await context.broker.claims.consumer(status.name, name)))
        answer.cover(QUEUE_BYTES * len(statuses) + _POSITION_BYTES * len(found))
        await answer.write({"queues": starmap(_with_counts, found)})
        return answer.reply(NOT_CACHED)


async def _named_queues(context: RequestContext, names: Collection[QueueName]) -> Sequence[QueueStatus]:
    """Those of the queues that exist, by name. A daemon may have thousands of others, which cost nothing here."""
    found = []
    async for name in turns.in_turns(sorted(names), turns.LIGHT // 2):
        with suppress(NoSuchQueue):
            found.append(await context.broker.status(name))
    return found


def _with_counts(status: QueueStatus, position: ConsumerPosition) -> dict[str, Any]:
    counts = {"ready": status.ready, "leased": status.leased, "delayed": status.delayed}
    return {"queue": status.name, **counts, "oldest_seconds": age_of(status), **position._asdict()}


async def start_consumer(context: RequestContext) -> Reply:
    """Begin a new epoch."""
    checkpoint, take_over = context.query["checkpoint"] or "", bool(context.query["take_over"])
    standing = await context.broker.claims.start(
        QueueName(context.queue), context.id, checkpoint, take_over=take_over, **_within(context)
    )
    return document(200, standing._asdict())


async def forget_consumer(context: RequestContext) -> Reply:
    """Let go of a consumer."""
    await context.broker.claims.forget(QueueName(context.queue), context.id)
    return empty(200)


async def claim(context: RequestContext) -> Reply:
    """Make a claim, or renew it."""
    query = context.query
    held = await context.broker.claims.claim(
        QueueName(context.queue),
        context.id,
        query["batch"],
        query["epoch"],
        most=query["max"],
        most_bytes=query["max_bytes"],
        up_to=query["up_to"],
        lease=query["lease"],
        regain=bool(query["reclaim"]),
    )
    if held is None:
        return empty(204, NOT_CACHED)
    dead_letters = [each._asdict() for each in held.dead_letters]
    shown = {**held._asdict(), "missing": dict(held.missing), "dead_letters": dead_letters}
    return document(201 if shown.pop("is_new") else 200, shown)


async def read_claim(context: RequestContext) -> Reply:
    """Messages of a claim, which stay as they are."""
    queue, batch, epoch = QueueName(context.queue), context.query["batch"], context.query["epoch"]
    start, stop, of = context.query["from"], context.query["to"], context.query["expected"]

    async def read(start: int, most: int) -> Browsed:
        messages = await context.broker.claims.read(queue, context.id, batch, epoch, start, min(stop, start + most), of)
        seen = [Seen(message, "", sequence) for sequence, message in messages]
        return Browsed(seen, start + len(seen) if seen else None)

    async def read_columns(
        columns: ColumnReader, start: int, most: int, base: int, most_bytes: int
    ) -> BrowsedColumns | None:
        return await columns.read_claim(
            queue, context.id, batch, epoch, start, stop, of, most=most, base=base, most_bytes=most_bytes
        )

    here = f"/{queue}/consumers/{context.id}/claim?batch={batch}&epoch={epoch}" + (
        "" if of is None else f"&expected={of}"
    )
    with MessagePage(context.memory, context.max_body) as page:
        after = await _gather(context, page, read, read_columns, start, lambda place, sequences: place + len(sequences))
        return _reply(context, page, f"{here}&from={after}&to={stop}" if after is not None and after < stop else None)


async def note_read(context: RequestContext) -> Reply:
    """Note that messages of a claim were read."""
    query = context.query
    await context.broker.claims.note_read(
        QueueName(context.queue),
        context.id,
        query["batch"],
        query["epoch"],
        query["from"],
        query["to"],
        query["expected"],
        query["checkpoint"] or "",
    )
    return empty(200)


async def acknowledge_claim(context: RequestContext) -> Reply:
    """Remove what a claim has."""
    query = context.query
    left = await context.broker.claims.acknowledge(
        QueueName(context.queue),
        context.id,
        query["batch"],
        query["epoch"],
        if_read=bool(query["if_read"]),
        **_within(context),
    )
    return document(202, {"remaining": left})


def _within(context: RequestContext) -> dict[str, float]:
    """How long a removal may take, if the request says so."""
    within = context.query["timeout"]
    return {} if within is None else {"within": within}


async def browse(context: RequestContext) -> Reply:
    """Messages by sequence."""
    queue, up_to, most = QueueName(context.queue), context.query["up_to"], context.query["max"]
    ids, group = context.query["ids"], context.query["group"]
    reads_columns, bodies = ids is None and group is None, context.query["bodies"] is not False

    async def read(after: int, most: int) -> Browsed:
        return await context.broker.browsing.browse(queue, after=after, up_to=up_to, most=most, ids=ids, group=group)

    async def read_columns(
        columns: ColumnReader, after: int, most: int, base: int, most_bytes: int
    ) -> BrowsedColumns | None:
        if not reads_columns:
            return None
        return await columns.browse(
            queue, after=after, up_to=up_to, most=most, base=base, most_bytes=most_bytes, bodies=bodies
        )

    limits = {"up_to": up_to, "ids": None if ids is None else ",".join(ids), "group": group}
    limits["bodies"] = None if bodies else "false"
    limit = "".join(f"&{name}={quote(str(value))}" for name, value in limits.items() if value is not None)
    with MessagePage(context.memory, context.max_body) as page:
        start, following = context.query["after"], lambda _, sequences: sequences[-1]
        after = await _gather(context, page, read, read_columns, start, following)
        return _reply(context, page, None if after is None else f"/{queue}/browse?max={most}&after={after}{limit}")


async def ranges(context: RequestContext) -> Reply:
    """A queue cut into parts."""
    found = await context.broker.browsing.ranges(QueueName(context.queue), context.query["parts"])
    with JsonAnswer(context.memory) as answer:
        await answer.write(
            {"messages": found.messages, "high_watermark": found.high_watermark, "bounds": iter(found.bounds)}
        )
        return answer.reply()


async def _gather(
    context: RequestContext,
    page: MessagePage,
    read: Callable[[int, int], Awaitable[Browsed]],
    read_columns: Callable[[ColumnReader, int, int, int, int], Awaitable[BrowsedColumns | None]],
    place: int,
    following: Callable[[int, Sequence[int]], int],
) -> int | None:
    """Add messages to an answer slice by slice, until there are as many as requested or no more fit.

    For a client that prefers columns the store reads as many as it can together, and what it leaves out is read as for
    any other. Returns where to go on; None when nothing is left."""
    left, few = context.query["max"], SHORTEST_SLICE
    columns = context.broker.columns if _prefers_columns(context) else None
    while left > 0 and not page.is_full:
        browsed = None if columns is None else await read_columns(columns, place, left, *page.room_for_columns())
        if browsed is None:
            columns = None
        else:
            page.add_columns(browsed)
            if browsed.is_end:
                return None
            if browsed.sequences:
                place = following(place, browsed.sequences)
                left, few = left - len(browsed.sequences), SHORTEST_SLICE
                continue
        seen, after = await read(place, page.slice(left if columns is None else min(left, few)))
        few *= 2  # where columns bring nothing again, what follows is likely of the same kind
        rest = await page.add(seen)
        if rest:
            taken = [each.sequence or 0 for each in seen[: len(seen) - len(rest)]]
            return following(place, taken) if taken else place
        if after is None:
            return None
        place = after
        left -= len(seen)
    return place


def _reply(context: RequestContext, page: MessagePage, following: str | None) -> Reply:
    link = () if following is None else (("link", f'<{following}>; rel="next"'),)
    return page.reply(_accept(context), *link, offers_columns=True)


def _prefers_columns(context: RequestContext) -> bool:
    return preferred(_accept(context), OFFERED) == COLUMNS


def _accept(context: RequestContext) -> str:
    return context.request.headers.get("accept", "")


_PAGE: Final = Parameter("max", count(LONGEST_PAGE), "maximum number of messages in a response", 1000)
_MESSAGES: Final = {**MESSAGES, COLUMNS: {"type": "string", "description": "Columns of numbers and bytes."}}
_POSITION: Final = as_json(reference("Consumer"))
_LINK: Final[dict[str, Any]] = {"Link": ("the URL of the next page", {"type": "string"})}
_CLAIM: Final = as_json(reference("Claim"))

OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "GET",
        "/-/batch-consumers",
        KNOWN,
        batch_consumers,
        "lists the batch consumers of all queues that the user may consume",
        {
            200: Success(
                "sorted by queue and consumer",
                as_json(record({"consumers": list_of(reference("ConsumerInQueue"))})),
            )
        },
    ),
    Operation(
        "GET",
        "/-/consumers/CONSUMER",
        KNOWN,
        positions,
        "shows a batch consumer's position and the message counts in each queue",
        {
            200: Success(
                "sorted by queue",
                as_json(record({"queues": list_of(reference("ConsumerInQueue"))})),
            )
        },
        query=(Parameter("queues", _NAMES, "only these queues"),),
    ),
    Operation(
        "GET",
        "/QUEUE/browse",
        Right.CONSUME,
        browse,
        "reads ready messages in sequence order, without leasing them",
        {200: Success("a batch", _MESSAGES, _LINK)},
        refusals=(404, 503),
        query=(
            Parameter("after", _NUMBER, "only messages with a larger sequence", 0),
            Parameter("up_to", _NUMBER, "only messages with a sequence up to this one"),
            Parameter("ids", _IDS, "only messages with these ids"),
            Parameter("group", GROUP, "only messages of this group; rarely also of a group with the same hash"),
            Parameter("bodies", SWITCH, "`false`: columns may omit bodies and attributes"),
            _PAGE,
        ),
    ),
    Operation(
        "GET",
        "/QUEUE/ranges",
        Right.CONSUME,
        ranges,
        "splits the ready messages into ranges that can be browsed in parallel",
        {
            200: Success(
                "the largest sequence of each range",
                as_json(record({"messages": COUNT, "high_watermark": COUNT, "bounds": list_of(COUNT)})),
            )
        },
        refusals=(404,),
        query=(Parameter("parts", count(MOST_PARTS), "maximum number of entries", 1),),
    ),
    Operation(
        "GET",
        "/QUEUE/consumers",
        Right.CONSUME,
        consumers,
        "lists the batch consumers of a queue",
        {200: Success("all", as_json(record({"consumers": list_of(reference("Consumer"))})))},
        refusals=(404,),
    ),
    Operation(
        "GET",
        "/QUEUE/consumers/CONSUMER",
        Right.CONSUME,
        consumer,
        "shows a batch consumer's position",
        {200: Success("the position; a consumer that never started is at the beginning", _POSITION)},
        refusals=(404,),
    ),
    Operation(
        "POST",
        "/QUEUE/consumers/CONSUMER",
        Right.CONSUME,
        start_consumer,
        "starts a batch consumer in a new epoch; requests of earlier epochs are refused",
        {200: Success("started", _POSITION)},
        refusals=(404, 409, 503),
        query=(
            _CHECKPOINT,
            Parameter("take_over", SWITCH, "`true`: accept a checkpoint other than the consumer's own"),
            _WITHIN,
        ),
        audited={200: "consumer-started"},
    ),
    Operation(
        "DELETE",
        "/QUEUE/consumers/CONSUMER",
        Right.CONSUME,
        forget_consumer,
        "deletes a batch consumer and releases its claimed messages",
        {200: Success("forgotten")},
        refusals=(404, 503),
        audited={200: "consumer-deleted"},
    ),
    Operation(
        "PUT",
        "/QUEUE/consumers/CONSUMER/claim",
        Right.CONSUME,
        claim,
        "claims the next batch, or renews the open claim",
        {
            200: Success("the claim that was made before", _CLAIM),
            201: Success("a new claim", _CLAIM),
            204: Success("no message is ready"),
        },
        refusals=(404, 409, 423, 503),
        query=(
            _BATCH,
            _EPOCH,
            Parameter("max", count(LARGEST_CLAIM), "maximum number of messages in a new claim", CLAIM_MESSAGES),
            Parameter(
                "max_bytes",
                size(_INT64_MAX, 1),
                "maximum bytes of all bodies together; a single longer body is allowed",
            ),
            Parameter("up_to", _NUMBER, "the largest sequence that a new claim may contain"),
            Parameter("lease", VISIBILITY, "length of the claim's lease in seconds", CLAIM_SECONDS),
            Parameter("reclaim", SWITCH, "`true`: add lost messages to the claim again if they are ready"),
        ),
        is_of_messages=True,
    ),
    Operation(
        "GET",
        "/QUEUE/consumers/CONSUMER/claim",
        Right.CONSUME,
        read_claim,
        "reads messages of the open claim, always in the same order",
        {200: Success("a batch", _MESSAGES, _LINK)},
        refusals=(404, 409, 412, 503),
        query=(
            _BATCH,
            _EPOCH,
            Parameter("from", _NUMBER, "position of the first message", 0),
            Parameter("to", _NUMBER, "position after the last message", LARGEST_CLAIM),
            Parameter("expected", _NUMBER, "expected number of messages in the claim"),
            _PAGE,
        ),
    ),
    Operation(
        "POST",
        "/QUEUE/consumers/CONSUMER/claim",
        Right.CONSUME,
        note_read,
        "records that messages of the open claim were read",
        {200: Success("noted")},
        refusals=(404, 409, 412, 503),
        query=(
            _BATCH,
            _EPOCH,
            Parameter("from", _NUMBER, "position of the first message", is_needed=True),
            Parameter("to", _NUMBER, "position after the last message", is_needed=True),
            Parameter("expected", _NUMBER, "number of messages in the claim when it was read", is_needed=True),
            _CHECKPOINT,
        ),
        is_of_messages=True,
    ),
    Operation(
        "DELETE",
        "/QUEUE/consumers/CONSUMER/claim",
        Right.CONSUME,
        acknowledge_claim,
        "acknowledges a claim and removes its messages",
        {202: Success("the number of messages still to be removed", as_json(record({"remaining": COUNT})))},
        refusals=(404, 409, 503),
        query=(
            _BATCH,
            _EPOCH,
            Parameter("if_read", SWITCH, "`true`: only if all messages are marked as read"),
            _WITHIN,
        ),
        is_of_messages=True,
    ),
)
"""Operations of durable batch consumers."""
