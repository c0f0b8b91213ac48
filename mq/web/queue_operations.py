"""Operations on queues: create, show, change settings, purge, redrive, delete; and how much happens in them.

Every queue with its rates is sorted and cut here; of one there is the last hour.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from mq.access import Right, owner_of
from mq.broker import QueueStatus
from mq.broker.settings import PAUSES, QUEUE, check_shared, check_value
from mq.errors import InvalidRequest
from mq.lifecycle import made_for
from mq.message import QueueName, shorten
from mq.observers.metrics import Metrics
from mq.observers.rates import MINUTES, SHOWN, SLOT_SECONDS, SLOTS, Flow, Ring
from mq.web.exchange import NOT_CACHED, Reply, document, empty
from mq.web.json_answer import JsonAnswer
from mq.web.operations import ANY_RIGHT, Operation, Parameter, RequestContext, Success
from mq.web.parameters import AMOUNT, FILTER, LARGEST_BATCH, SKIP, STORE, SWITCH, one_of
from mq.web.replies import age_of, all_queues, shown_queue
from mq.web.request_body import read_object
from mq.web.schemas import COUNT, as_json, record, reference


async def create_queue(context: RequestContext) -> Reply:
    """Make the queue. The body does not matter (seed MQ)."""
    queue = QueueName(context.queue)
    with made_for(owner_of(context.request.user)):
        is_new = await context.broker.create_queue(queue, context.query["store"])
    return document(201 if is_new else 200, {"name": queue})


async def get_queue(context: RequestContext) -> Reply:
    """Is the queue there, and what is in it?"""
    return await _shown(context)


async def _shown(context: RequestContext) -> Reply:
    status = await context.broker.status(context.queue)
    return document(200, shown_queue(status, context.connections.consumers(status.name)))


async def change_queue(context: RequestContext) -> Reply:
    """Change settings."""
    patch = await read_object(context.request)
    check_shared(patch)
    await context.broker.change_settings(context.queue, patch)
    return await _shown(context)


async def delete_queue(context: RequestContext) -> Reply:
    """Delete the queue and all its messages."""
    await context.broker.delete_queue(QueueName(context.queue))
    return empty(200)


async def purge(context: RequestContext) -> Reply:
    """Remove all messages that are not leased."""
    return document(200, {"purged": await context.broker.purge(QueueName(context.queue))})


async def redrive(context: RequestContext) -> Reply:
    """Move messages back from where they died."""
    wanted = await read_object(context.request)
    to, ids = wanted.pop("to", None), wanted.pop("ids", None)
    most = check_value("max", wanted.pop("max", LARGEST_BATCH), AMOUNT)
    if wanted:
        raise InvalidRequest(f"unknown key {shorten(next(iter(wanted)))}. Valid keys: to, max, ids")
    if ids is not None and (not isinstance(ids, list) or not all(isinstance(id, str) for id in ids)):
        raise InvalidRequest('"ids" must be a list of message IDs')
    target = None if to is None else check_value("to", to, QUEUE)
    moved, left = await context.broker.redrive(context.queue, target, most, ids)
    return document(200, {"moved": moved, "remaining": left})


_NAMED: Final = as_json(record({"name": QUEUE.schema}))
_LINKS: Final = {name: {"queue": "$request.path.queue"} for name in ("publish", "fetch", "contains", "peek")}
_SHOWN: Final = as_json(reference("Queue"))


# Rates


USUAL_MOST: Final = 100
_FLOWS: Final = {flow.name.lower(): flow for flow in SHOWN}
_DEPTHS: Final = ("ready", "leased", "delayed")


async def rates(context: RequestContext) -> Reply:
    """The queues, some of them, with their rates."""
    async with context.overview.listing:
        return await _rates(context)


async def _rates(context: RequestContext) -> Reply:
    with JsonAnswer(context.memory) as answer:
        await _write_rates(context, await all_queues(context, answer), answer)
        return answer.reply(NOT_CACHED)


async def _write_rates(context: RequestContext, everyone: Sequence[QueueStatus], answer: JsonAnswer) -> None:
    query, metrics = context.query, context.metrics
    metrics.catch_up()
    matching = [status for status in everyone if query["filter"] in status.name.lower()]
    consumers = context.connections.consumers
    sort_queues(matching, query["sort"], metrics, consumers)
    dead_letter_queues = {status.settings.dead_letter_queue for status in everyone}
    start = query["skip"]
    rows = (
        {
            **_row(status, metrics, has_history=bool(query["history"])),
            "consumers": consumers(status.name),
            "is_dead_letter_queue": status.name in dead_letter_queues,
        }
        for status in matching[start : start + query["max"]]
    )
    uptime = metrics.uptime
    totals = {name: sum(getattr(status, name) for status in matching) for name in _DEPTHS}
    document_of_all = {
        "queues": rows,
        "total": len(everyone),
        "matching": len(matching),
        **totals,
        "per_second": _per_second(metrics.all(), uptime),
        "uptime_seconds": round(uptime, 3),
    }
    await answer.write(document_of_all)


async def queue_rates(context: RequestContext) -> Reply:
    """One queue's last hour."""
    status = await context.broker.status(context.queue)
    context.metrics.catch_up()
    ring, uptime = context.metrics.ring(context.queue), context.metrics.uptime
    shown = {
        **shown_queue(status, context.connections.consumers(status.name)),
        "per_second": _per_second(ring, uptime),
        "slots": {"seconds": SLOT_SECONDS, **_counts(ring, Ring.slots, SLOTS)},
        "minutes": {"seconds": 60, **_counts(ring, Ring.minutes, MINUTES), "messages": _history(ring, status)},
        "uptime_seconds": round(uptime, 3),
    }
    return document(200, shown, NOT_CACHED)


SORTS: Final = ("name", *_DEPTHS, "oldest", "consumers", *_FLOWS)
"""By what queues may be sorted: what a reader looks for comes first."""


def sort_queues(statuses: list[QueueStatus], by: str, metrics: Metrics, consumers: Callable[[str], int]) -> None:
    """The most first, and of equals by name, as they came.

    Args:
        by: one of :data:`SORTS`.
    """
    if by in _FLOWS:
        flow = _FLOWS[by]

        def happened(status: QueueStatus) -> int:
            ring = metrics.ring(status.name)
            return 0 if ring is None else ring.in_a_minute(flow)

        statuses.sort(key=happened, reverse=True)
    elif by == "oldest":
        newest = max((status.oldest_ns or 0 for status in statuses), default=0) + 1
        statuses.sort(key=lambda status: newest if status.oldest_ns is None else status.oldest_ns)
    elif by == "consumers":
        statuses.sort(key=lambda status: consumers(status.name), reverse=True)
    elif by in _DEPTHS:
        statuses.sort(key=lambda status: getattr(status, by), reverse=True)


def _row(status: QueueStatus, metrics: Metrics, *, has_history: bool) -> dict[str, Any]:
    ring = metrics.ring(status.name)
    row: dict[str, Any] = {
        "name": status.name,
        **{name: getattr(status, name) for name in _DEPTHS},
        "oldest_seconds": age_of(status),
        "store": status.store,
        "paused": status.settings.paused,
        "publish_paused": status.settings.publish_paused,
        "dead_letter_queue": status.settings.dead_letter_queue,
        "per_second": _per_second(ring, metrics.uptime),
    }
    return {**row, "messages": _history(ring, status)} if has_history else row


def _per_second(ring: Ring | None, uptime: float) -> dict[str, list[float]]:
    if ring is None:
        return {name: [0.0, 0.0, 0.0] for name in _FLOWS}
    return {name: [round(rate, 3) for rate in ring.rates(flow, uptime)] for name, flow in _FLOWS.items()}


def _counts(ring: Ring | None, of: Callable[[Ring, Flow], Sequence[int]], length: int) -> dict[str, Sequence[int]]:
    return {name: [0] * length if ring is None else of(ring, flow) for name, flow in _FLOWS.items()}


def _history(ring: Ring | None, status: QueueStatus) -> list[int]:
    there = status.ready + status.leased + status.delayed
    return [there] * MINUTES if ring is None else ring.messages(there)


OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "GET",
        "/QUEUE",
        ANY_RIGHT,
        get_queue,
        "shows a queue's settings and message counts",
        {200: Success("the queue exists", _SHOWN)},
        refusals=(404, 503),
        needs_queue=True,
    ),
    Operation(
        "PUT",
        "/QUEUE",
        Right.CONFIGURE,
        create_queue,
        "creates a queue; the request body is ignored",
        {201: Success("made", _NAMED, links=_LINKS), 200: Success("the queue already exists", _NAMED, links=_LINKS)},
        refusals=(409, 503),
        audited={201: "queue-created"},
        query=(
            Parameter(
                "store",
                STORE,
                "where messages are stored: `disk`, `memory` (lost when the process ends) or `cluster` (on every node)",
            ),
        ),
    ),
    Operation(
        "PATCH",
        "/QUEUE",
        Right.CONFIGURE,
        change_queue,
        "changes a queue's settings",
        {200: Success("the settings after the change", _SHOWN)},
        refusals=(404, 408, 409, 413, 503),
        body=as_json(reference("Settings")),
        needs_body=False,
        sends_to="dead_letter_queue",
        lesser_right=Right.PAUSE,
        lesser_keys=PAUSES,
        audited={200: "queue-changed"},
        needs_queue=True,
    ),
    Operation(
        "DELETE",
        "/QUEUE",
        Right.CONFIGURE,
        delete_queue,
        "deletes the queue and all its messages",
        {200: Success("gone")},
        refusals=(404, 503),
        audited={200: "queue-deleted"},
    ),
    Operation(
        "POST",
        "/QUEUE/purge",
        Right.CONFIGURE,
        purge,
        "removes all messages that are not leased",
        {200: Success("the number of removed messages", as_json(record({"purged": COUNT})))},
        refusals=(404, 503),
        audited={200: "queue-purged"},
    ),
    Operation(
        "POST",
        "/QUEUE/redrive",
        Right.CONFIGURE,
        redrive,
        "moves dead letters back to the queues they came from, or to another queue",
        {
            200: Success(
                "the numbers of moved and remaining messages", as_json(record({"moved": COUNT, "remaining": COUNT}))
            )
        },
        refusals=(404, 408, 413, 503),
        body=as_json(reference("Redrive")),
        needs_body=False,
        sends_to="to",
        audited={200: "queue-redriven"},
        needs_queue=True,
    ),
    Operation(
        "GET",
        "/-/rates",
        Right.MONITOR,
        rates,
        "lists queues with their message counts and rates, sorted and in pages",
        {200: Success("the requested queues, and totals over all queues", as_json(reference("Rates")))},
        refusals=(503,),
        query=(
            Parameter(
                "sort", one_of(*SORTS), "sort key; the largest value comes first, names in alphabetical order", "name"
            ),
            Parameter("filter", FILTER, "text that the queue's name contains", ""),
            Parameter("skip", SKIP, "number of queues to skip", 0),
            Parameter("max", AMOUNT, "maximum number of entries", USUAL_MOST),
            Parameter("history", SWITCH, "`true`: add the message count of each minute"),
        ),
    ),
    Operation(
        "GET",
        "/QUEUE/rates",
        Right.MONITOR,
        queue_rates,
        "shows a queue's message rates of the last hour",
        {200: Success("current rates, and counts by minute", as_json(reference("QueueRates")))},
        refusals=(404, 503),
        needs_queue=True,
    ),
)
"""What happens lately."""
