"""Operations that show how much happens: every queue with its rates, sorted and cut here; and the last hour of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from mq.access import Right
from mq.broker import QueueStatus
from mq.observers.metrics import Metrics
from mq.observers.rates import MINUTES, SHOWN, SLOT_SECONDS, SLOTS, Flow, Ring
from mq.web.exchange import Reply, document
from mq.web.operations import Operation, Parameter, RequestContext, Success, known_queue
from mq.web.parameters import FILTER, MOST, SKIP, SWITCH, one_of
from mq.web.replies import NOT_CACHED, age_of, shown_queue
from mq.web.schemas import as_json, reference

USUAL_MOST: Final = 100
_FLOWS: Final = {flow.name.lower(): flow for flow in SHOWN}
_DEPTHS: Final = ("ready", "leased", "delayed")


async def rates(context: RequestContext) -> Reply:
    """The queues, some of them, with their rates."""
    query, metrics = context.query, context.metrics
    everyone = await context.broker.queues()
    metrics.catch_up()
    matching = [status for status in everyone if query["filter"] in status.name.lower()]
    sort_queues(matching, query["sort"], metrics)
    dead_letter_queues = {status.settings.dead_letter_queue for status in everyone}
    start = query["skip"]
    rows = [
        _row(status, metrics, takes_dead_letters=status.name in dead_letter_queues, has_history=bool(query["history"]))
        for status in matching[start : start + query["max"]]
    ]
    uptime = metrics.uptime
    totals = {name: sum(getattr(status, name) for status in matching) for name in _DEPTHS}
    document_of_all = {
        "queues": rows,
        "there": len(everyone),
        "matching": len(matching),
        **totals,
        "per_second": _per_second(metrics.all(), uptime),
        "uptime_seconds": round(uptime, 3),
    }
    return document(200, document_of_all, NOT_CACHED)


async def queue_rates(context: RequestContext) -> Reply:
    """One queue's last hour."""
    queue = await known_queue(context.broker, context.queue)
    status = await context.broker.status(queue)
    context.metrics.catch_up()
    ring, uptime = context.metrics.ring(queue), context.metrics.uptime
    shown = {
        **shown_queue(status),
        "per_second": _per_second(ring, uptime),
        "slots": {"seconds": SLOT_SECONDS, **_counts(ring, Ring.slots, SLOTS)},
        "minutes": {"seconds": 60, **_counts(ring, Ring.minutes, MINUTES), "messages": _history(ring, status)},
        "uptime_seconds": round(uptime, 3),
    }
    return document(200, shown, NOT_CACHED)


SORTS: Final = ("name", *_DEPTHS, "oldest", *_FLOWS)
"""By what queues may be sorted: what a reader looks for comes first."""


def sort_queues(statuses: list[QueueStatus], by: str, metrics: Metrics) -> None:
    """The most first, and of equals by name, as they came.

    Args:
        statuses: of the queues, by name.
        by: one of :data:`SORTS`.
        metrics: has caught up.
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
    elif by in _DEPTHS:
        statuses.sort(key=lambda status: getattr(status, by), reverse=True)


def _row(status: QueueStatus, metrics: Metrics, *, takes_dead_letters: bool, has_history: bool) -> dict[str, Any]:
    ring = metrics.ring(status.name)
    row: dict[str, Any] = {
        "name": status.name,
        **{name: getattr(status, name) for name in _DEPTHS},
        "oldest_seconds": age_of(status),
        "paused": status.settings.paused,
        "publish_paused": status.settings.publish_paused,
        "dead_letter_queue": status.settings.dead_letter_queue,
        "takes_dead_letters": takes_dead_letters,
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
        "/-/rates",
        Right.MONITOR,
        rates,
        "queues with what is in them and how much happens to them, sorted, page by page",
        {200: Success("those that were asked for, and the sums of all", as_json(reference("Rates")))},
        refusals=(503,),
        query=(
            Parameter("sort", one_of(*SORTS), "the most first", "name"),
            Parameter("filter", FILTER, "what the queues' names have in them", ""),
            Parameter("skip", SKIP, "queues to pass over", 0),
            Parameter("max", MOST, "how many at the most", USUAL_MOST),
            Parameter("history", SWITCH, "whether to tell the number of messages, minute by minute"),
        ),
    ),
    Operation(
        "GET",
        "/QUEUE/rates",
        Right.MONITOR,
        queue_rates,
        "how much happens to a queue, and has in the last hour",
        {200: Success("now, and minute by minute", as_json(reference("QueueRates")))},
        refusals=(404, 503),
    ),
)
"""What happens lately."""
