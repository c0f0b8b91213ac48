"""Operations on the broker as a whole, under ``/-/``: health, queues, stats, connections."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from typing import Any, Final

import trio

from mq import log_lines, turns
from mq.access import Right
from mq.broker import QueueStatus
from mq.broker.api import BrokerAPI
from mq.broker.settings import SWITCH, SettingKind, check_value
from mq.doors.budget import ON_DISK, Use
from mq.doors.open_connections import OpenConnection
from mq.doors.quotas import CONNECTIONS, PUBLISH_RATE, Quotas
from mq.errors import InvalidRequest
from mq.message import shorten
from mq.observers.metrics import Durations
from mq.schedules.scheduler import Fate, shown_instant
from mq.web.columns import cut
from mq.web.exchange import NOT_CACHED, Reply, document, empty, problem
from mq.web.http_connection import CONNECTION
from mq.web.json_answer import PART_BYTES, Entries, JsonAnswer, Members, SentParts
from mq.web.operations import NO_RIGHT, Operation, Parameter, RequestContext, Success
from mq.web.parameters import AMOUNT, LARGEST_BATCH, LEVEL
from mq.web.prometheus import CONTENT_TYPE, MOST_QUEUES, STEP, Scrape, page
from mq.web.refusals import retry_after
from mq.web.replies import age_of, all_queues, shown_queue
from mq.web.request_body import read_object
from mq.web.schemas import COUNT, TEXT, as_json, list_of, or_null, record, reference


async def live(context: RequestContext) -> Reply:
    """The process answers."""
    return document(200, {"live": True})


async def ready(context: RequestContext) -> Reply:
    """The store takes changes."""
    if context.broker.node_control.is_draining:
        return problem(503, "this node is draining and will be stopped. Use another node of the cluster", retry_after())
    if context.broker.ready:
        doubt = _doubt(context.broker)
        return document(200, {"ready": True} | ({"clock": doubt} if doubt else {}))
    return problem(503, "the store has failed. Read the log, then restart mq", retry_after())


async def queues(context: RequestContext) -> Reply:
    """All queues, with what is in them."""
    async with context.overview.listing:
        return await _queues(context)


async def _queues(context: RequestContext) -> Reply:
    with JsonAnswer(context.memory) as answer:
        statuses = await all_queues(context, answer)
        consumers = context.connections.consumers
        await answer.write({"queues": (shown_queue(status, consumers(status.name)) for status in statuses)})
        return answer.reply()


async def stats(context: RequestContext) -> Reply:
    """Counts and rates."""
    async with context.overview.listing:
        return await _stats(context)


async def _stats(context: RequestContext) -> Reply:
    with JsonAnswer(context.memory) as answer:
        statuses = await all_queues(context, answer)
        summary = context.metrics.summary({status.name for status in statuses})
        await answer.write({**summary, "queues": Entries(_reports(context, statuses))})
        return answer.reply()


def _reports(context: RequestContext, statuses: Sequence[QueueStatus]) -> Iterator[tuple[str, dict[str, Any]]]:
    for status in statuses:
        depths = {"ready": status.ready, "leased": status.leased, "delayed": status.delayed}
        report = context.metrics.report_of(status.name)
        yield status.name, {**report, **depths, "oldest_seconds": age_of(status)}


async def metrics(context: RequestContext) -> Reply:
    """What Prometheus asks for."""
    room = context.memory.reserve(Use.ANSWER)
    body = await context.overview.scrape.make(partial(_scrape, context))
    headers = (("content-type", CONTENT_TYPE), ("content-length", str(len(body))), NOT_CACHED)
    if len(body) <= PART_BYTES:
        return Reply(200, headers, body)
    room.cover(len(body))  # a client that does not read has one of its own, once the next is made
    return Reply(200, headers, SentParts(deque(cut(body)), room))


async def _scrape(context: RequestContext) -> bytes:
    queues = await context.broker.queues()
    totals = context.metrics.totals({status.name for status in queues}, MOST_QUEUES)
    ready = context.broker.ready
    durations = {**context.metrics.durations(), STEP: Durations(*turns.of_run().histogram())}
    now_ns, connections = context.broker.clock.date_ns(), {"http": 0, "amqp": 0} | context.connections.by_door()
    elsewhere = _led_elsewhere(context.broker, queues)
    snapshot = Scrape(context.metrics.version, totals, queues, ready, None, now_ns, durations, connections, elsewhere)
    fates = {fate.value: context.schedules.fates[fate] for fate in Fate}
    snapshot = snapshot._replace(cluster=context.broker.membership, schedules=len(context.schedules), firings=fates)
    snapshot = snapshot._replace(is_clock_untrusted=bool(_doubt(context.broker)))
    budget = context.budget
    refused = {use.value: budget.refused[use] for use in Use if use not in ON_DISK}
    ended = {use.value: budget.ended[use] for use in Use}
    snapshot = snapshot._replace(memory=(budget.used, budget.most), staged=(budget.staged, budget.disk.most))
    disk_refused = sum(budget.refused[use] for use in ON_DISK)
    snapshot = snapshot._replace(memory_refused=refused, disk_refused=disk_refused, slow_ended=ended)
    quotas = context.request.quotas or Quotas()
    snapshot = snapshot._replace(limit_refused={kind: quotas.refused[kind] for kind in (CONNECTIONS, PUBLISH_RATE)})
    snapshot = snapshot._replace(health=context.broker.health)
    return await trio.to_thread.run_sync(_metrics_page, snapshot, context.metrics.folder, abandon_on_cancel=True)


def _led_elsewhere(broker: BrokerAPI, queues: Sequence[QueueStatus]) -> Set[str]:
    """The cluster's queues, at a node that is not their master: it counts nothing of what happens to them."""
    if broker.membership.role != "mirror":
        return frozenset()
    return {status.name for status in queues} - {each.queue for each in broker.inventory()}


def _metrics_page(snapshot: Scrape, folder: str) -> bytes:
    """The page for Prometheus. Call it in a thread, for a file system that does not answer blocks the caller."""
    if folder:
        with contextlib.suppress(OSError):  # it tells the rest all the same
            snapshot = snapshot._replace(room=os.statvfs(folder))
    return page(snapshot)


async def logging_now(context: RequestContext) -> Reply:
    """How much is logged."""
    is_on = log_lines.REQUESTS.isEnabledFor(logging.INFO)
    return document(200, {"level": log_lines.level(), "requests": is_on})


async def change_logging(context: RequestContext) -> Reply:
    """Log more, or less, until the daemon ends."""
    wanted = await read_object(context.request)
    level, requests = wanted.pop("level", None), wanted.pop("requests", None)
    if wanted:
        raise InvalidRequest(f"unknown key {shorten(next(iter(wanted)))}. Valid keys: level, requests")
    log_lines.change(
        level=None if level is None else check_value("level", level, LEVEL),
        requests=None if requests is None else check_value("requests", requests, SWITCH),
    )
    return await logging_now(context)


async def clock(context: RequestContext) -> Reply:
    """What the daemon makes of the wall clock."""
    status = context.broker.clock.status()
    return document(
        200,
        {
            "wall_time": shown_instant(status.wall_ns // 1_000_000),
            "message_time": shown_instant(status.date_ns // 1_000_000),
            "steady_seconds_ahead": round((status.steady_ns - status.wall_ns) / 1e9, 3),
            "synchronised": status.is_synchronised,
            "problem": _doubt(context.broker) or None,
        },
    )


async def trust_clock(context: RequestContext) -> Reply:
    """End a doubt: an operator knows that the wall clock is right."""
    wanted = await read_object(context.request)
    trusted = wanted.pop("trusted", None)
    if wanted:
        raise InvalidRequest(f"unknown key {shorten(next(iter(wanted)))}. The only valid key is 'trusted'")
    if trusted is not None and check_value("trusted", trusted, SWITCH):
        for each in context.broker.clocks:
            each.trust()
    return await clock(context)


def _doubt(broker: BrokerAPI) -> str:
    return next((each.doubt for each in broker.clocks if each.doubt), "")


# Connections


LOOKED_AT_TOGETHER: Final = 64
"""Connections that are looked at in one step of the event loop: a look takes about 10 µs."""
MOST_DECLARED: Final = 1000
"""Exchanges, bindings and ways of dead letters that are shown, of each."""
_CONNECTION_BYTES: Final = 64
"""What a connection takes in a list of connections."""
CLOSED: Final = "an operator closed the connection"


async def connections(context: RequestContext) -> Reply:
    """The open connections."""

    def shown(id: str, connection: OpenConnection) -> Iterator[Members]:
        status = connection.status()
        channels = (channel._asdict() for channel in status.channels)
        yield Members({"id": id, **_rounded(status._asdict()), "channels": channels})

    return await _page(context, "connections", shown)


async def consumers_at_work(context: RequestContext) -> Reply:
    """The consumers, and the requests that wait for messages."""

    def shown(id: str, connection: OpenConnection) -> Iterator[dict[str, Any]]:
        whose: dict[str, Any] = {}
        for consumer in connection.consumers():
            if not whose:
                status = connection.status()
                whose = {"connection": id, "protocol": status.protocol, "user": status.user, "address": status.address}
            yield {**whose, **_rounded(consumer._asdict())}

    return await _page(context, "consumers", shown)


async def close_connection(context: RequestContext) -> Reply:
    """End a connection. The connection of this request ends with the answer."""
    found = context.connections.find(context.id)
    if found is None:
        return problem(
            404, f"connection {shorten(context.id)} does not exist. GET /-/connections lists the open connections"
        )
    if found is CONNECTION.get():
        return empty(200)._replace(is_last=True)
    found.close(CLOSED)
    return empty(200)


async def exchanges(context: RequestContext) -> Reply:
    """What is declared over AMQP."""
    found = await context.overview.exchanges.now()
    total = {name: len(told) for name, told in found._asdict().items()}
    with JsonAnswer(context.memory) as answer:
        shown = {name: (each._asdict() for each in told[:MOST_DECLARED]) for name, told in found._asdict().items()}
        await answer.write({"total": total, **shown})
        return answer.reply(NOT_CACHED)


async def _page(
    context: RequestContext, name: str, shown: Callable[[str, OpenConnection], Iterator[dict[str, Any] | Members]]
) -> Reply:
    """One page of what connections show; those of one connection stay together."""
    after, most = context.query["after"], context.query["max"]
    next_after: str | None = None
    open_now = [each for each in context.connections.all() if after is None or _number(each[0]) > _number(after)]

    def rows() -> Iterator[dict[str, Any] | Members | None]:
        nonlocal next_after
        last: str | None = None
        found = 0
        for count, (id, connection) in enumerate(open_now, 1):
            if found >= most:
                next_after = last
                return
            for row in shown(id, connection):
                found += 1
                yield row
            last = id
            if count % LOOKED_AT_TOGETHER == 0:
                yield None

    with JsonAnswer(context.memory) as answer:
        answer.cover(_CONNECTION_BYTES * len(open_now))
        await answer.write({"open": len(context.connections.all()), name: rows(), "next": lambda: next_after})
        return answer.reply(NOT_CACHED)


def _number(id: str) -> int:
    return int(id.rpartition("-")[2])


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in values.items()}


def _parse_connection(value: Any) -> str:
    prefix, dash, number = str(value).partition("-")
    if not (prefix and dash and number.isascii() and number.isdigit() and len(number) < 19):
        raise ValueError
    return str(value)


_PAGING: Final = (
    Parameter("max", AMOUNT, "maximum number of entries", LARGEST_BATCH),
    Parameter(
        "after",
        SettingKind(_parse_connection, "id of a connection", {"type": "string", "pattern": "^[^-]+-[0-9]{1,18}$"}),
        "continue after this connection",
    ),
)


def _listed(name: str, schema: str) -> Any:
    items = list_of(reference(schema))
    return as_json(record({"open": COUNT, name: items, "next": or_null(TEXT)}))


OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "GET",
        "/-/live",
        NO_RIGHT,
        live,
        "reports whether the process responds",
        {200: Success("it does", as_json(record({"live": {"const": True}})))},
    ),
    Operation(
        "GET",
        "/-/ready",
        NO_RIGHT,
        ready,
        "reports whether the store accepts writes",
        {200: Success("it does", as_json(record({"ready": {"const": True}}, {"clock": TEXT})))},
        refusals=(503,),
    ),
    Operation(
        "GET",
        "/-/queues",
        Right.MONITOR,
        queues,
        "lists all queues with their settings and message counts",
        {200: Success("by name", as_json(record({"queues": list_of(reference("Queue"))})))},
        refusals=(503,),
    ),
    Operation(
        "GET",
        "/-/stats",
        Right.MONITOR,
        stats,
        "shows message counts and rates",
        {200: Success("counts since the start, and rates over the last minute", as_json(reference("Stats")))},
        refusals=(503,),
    ),
    Operation(
        "GET",
        "/-/metrics",
        Right.MONITOR,
        metrics,
        "exports metrics for Prometheus",
        {200: Success("metrics in the Prometheus text format", {"text/plain": {"type": "string"}})},
        refusals=(503,),
    ),
    Operation(
        "GET",
        "/-/logging",
        Right.MONITOR,
        logging_now,
        "shows the log level",
        {200: Success("now", as_json(reference("Logging")))},
    ),
    Operation(
        "PATCH",
        "/-/logging",
        Right.ADMINISTER,
        change_logging,
        "changes the log level until the daemon restarts",
        {200: Success("from now on", as_json(reference("Logging")))},
        refusals=(408, 413),
        body=as_json(reference("LoggingChange")),
        needs_body=False,
        audited={200: "logging-changed"},
    ),
    Operation(
        "GET",
        "/-/clock",
        Right.MONITOR,
        clock,
        "shows the state of the wall clock",
        {200: Success("now", as_json(reference("Clock")))},
    ),
    Operation(
        "PATCH",
        "/-/clock",
        Right.ADMINISTER,
        trust_clock,
        "confirms that the wall clock is right",
        {200: Success("from now on", as_json(reference("Clock")))},
        refusals=(408, 413),
        body=as_json(reference("ClockChange")),
        needs_body=False,
        audited={200: "clock-trusted"},
    ),
    Operation(
        "GET",
        "/-/connections",
        Right.MONITOR,
        connections,
        "lists the client connections of all protocols",
        {200: Success("sorted by age, oldest first", _listed("connections", "Connection"))},
        query=_PAGING,
    ),
    Operation(
        "DELETE",
        "/-/connections/CONNECTION",
        Right.ADMINISTER,
        close_connection,
        "closes a client connection",
        {200: Success("it ends")},
        refusals=(404,),
        audited={200: "connection-closed"},
    ),
    Operation(
        "GET",
        "/-/consumers",
        Right.MONITOR,
        consumers_at_work,
        "lists AMQP consumers and HTTP requests that wait for messages",
        {200: Success("sorted by connection, oldest first", _listed("consumers", "ActiveConsumer"))},
        query=_PAGING,
    ),
    Operation(
        "GET",
        "/-/exchanges",
        Right.MONITOR,
        exchanges,
        "lists AMQP exchanges, bindings and dead-letter targets",
        {200: Success("at most 1,000 entries of each kind", as_json(reference("Declared")))},
    ),
)
"""What there is to see of connections."""
