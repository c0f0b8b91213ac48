"""Operations on the broker as a whole, under ``/-/``: health, queues, stats, cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Sequence, Set
from typing import Final

import trio

from mq import log_lines
from mq.access import Right
from mq.broker import QueueStatus
from mq.broker.api import BrokerAPI
from mq.broker.settings import SWITCH, check_value
from mq.errors import InvalidRequest
from mq.message import shorten
from mq.schedules.scheduler import Fate
from mq.web.exchange import Reply, document, problem
from mq.web.operations import NO_RIGHT, Operation, RequestContext, Success
from mq.web.parameters import LEVEL
from mq.web.prometheus import CONTENT_TYPE, MOST_QUEUES, Scrape, page
from mq.web.refusals import retry_after
from mq.web.replies import NOT_CACHED, age_of, shown_queue
from mq.web.request_body import read_object
from mq.web.schemas import as_json, record, reference


async def live(context: RequestContext) -> Reply:
    """The process answers."""
    return document(200, {"live": True})


async def ready(context: RequestContext) -> Reply:
    """The store takes changes."""
    if context.broker.node_control.is_draining:
        return problem(503, "this node is about to be stopped: use another node of the cluster", retry_after())
    if context.broker.ready:
        return document(200, {"ready": True})
    return problem(503, "the store has failed: see the log, then start mq anew", retry_after())


async def queues(context: RequestContext) -> Reply:
    """All queues, with what is in them."""
    return document(200, {"queues": [shown_queue(status) for status in await context.broker.queues()]})


async def stats(context: RequestContext) -> Reply:
    """Counts and rates."""
    statuses = await context.broker.queues()
    report = context.metrics.report({status.name for status in statuses})
    for status in statuses:
        report["queues"][status.name] |= {
            "ready": status.ready,
            "leased": status.leased,
            "delayed": status.delayed,
            "oldest_seconds": age_of(status),
        }
    return document(200, report)


async def metrics(context: RequestContext) -> Reply:
    """What Prometheus asks for."""
    queues = await context.broker.queues()
    totals = context.metrics.totals({status.name for status in queues}, MOST_QUEUES)
    ready = context.broker.ready
    durations = context.metrics.durations()
    now_ns, connections = time.time_ns(), {"http": 0, "amqp": 0} | context.connections.by_door()
    elsewhere = _led_elsewhere(context.broker, queues)
    snapshot = Scrape(context.metrics.version, totals, queues, ready, None, now_ns, durations, connections, elsewhere)
    fates = {fate.value: context.schedules.fates[fate] for fate in Fate}
    snapshot = snapshot._replace(cluster=context.broker.membership, schedules=len(context.schedules), firings=fates)
    body = await trio.to_thread.run_sync(_metrics_page, snapshot, context.metrics.folder, abandon_on_cancel=True)
    return Reply(200, (("content-type", CONTENT_TYPE), ("content-length", str(len(body))), NOT_CACHED), body)


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
        raise InvalidRequest(f"unknown key {shorten(next(iter(wanted)))}; known: level, requests")
    log_lines.change(
        level=None if level is None else check_value("level", level, LEVEL),
        requests=None if requests is None else check_value("requests", requests, SWITCH),
    )
    return await logging_now(context)


async def cluster(context: RequestContext) -> Reply:
    """The nodes of the cluster, and which is master."""
    found = context.broker.membership
    nodes, links = ([each._asdict() for each in some] for some in (found.nodes, found.links))
    return document(200, {**found._asdict(), "nodes": nodes, "links": links})


async def drain_node(context: RequestContext) -> Reply:
    """Hand over mastership, and take no new clients."""
    await context.broker.node_control.drain()
    return await cluster(context)


async def resume_node(context: RequestContext) -> Reply:
    """Take clients again."""
    await context.broker.node_control.resume()
    return await cluster(context)


async def replace_node(context: RequestContext) -> Reply:
    """Look for a neighbour elsewhere."""
    wanted = await read_object(context.request)
    values = [wanted.pop(key, None) for key in ("node", "address")]
    if wanted or not all(isinstance(value, str) for value in values):
        raise InvalidRequest('this takes {"node": NAME, "address": "ADDRESS:PORT"}')
    await context.broker.node_control.replace(*map(str, values))
    return await cluster(context)


OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "GET",
        "/-/live",
        NO_RIGHT,
        live,
        "does the process answer?",
        {200: Success("it does", as_json(record({"live": {"const": True}})))},
    ),
    Operation(
        "GET",
        "/-/ready",
        NO_RIGHT,
        ready,
        "does the store take changes?",
        {200: Success("it does", as_json(record({"ready": {"const": True}})))},
        refusals=(503,),
    ),
    Operation(
        "GET",
        "/-/queues",
        Right.MONITOR,
        queues,
        "all queues, with what is in them",
        {200: Success("by name", as_json(record({"queues": {"type": "array", "items": reference("Queue")}})))},
        refusals=(503,),
    ),
    Operation(
        "GET",
        "/-/stats",
        Right.MONITOR,
        stats,
        "counts and rates",
        {200: Success("since the start, and over the last minute", as_json(reference("Stats")))},
        refusals=(503,),
    ),
    Operation(
        "GET",
        "/-/metrics",
        Right.MONITOR,
        metrics,
        "counts, depths and room, for Prometheus",
        {200: Success("in Prometheus' text format", {"text/plain": {"type": "string"}})},
        refusals=(503,),
    ),
    Operation(
        "GET",
        "/-/logging",
        Right.MONITOR,
        logging_now,
        "how much is logged",
        {200: Success("now", as_json(reference("Logging")))},
    ),
    Operation(
        "PATCH",
        "/-/logging",
        Right.ADMINISTER,
        change_logging,
        "logs more, or less, until the daemon ends",
        {200: Success("from now on", as_json(reference("Logging")))},
        refusals=(408, 413),
        body=as_json(reference("LoggingChange")),
        needs_body=False,
        audited={200: "logging-changed"},
    ),
    Operation(
        "GET",
        "/-/cluster",
        Right.MONITOR,
        cluster,
        "the nodes of the cluster, and which of them is master",
        {200: Success("as this node sees it", as_json(reference("Cluster")))},
    ),
    Operation(
        "POST",
        "/-/cluster/drain",
        Right.ADMINISTER,
        drain_node,
        "this node hands over mastership and takes no new clients, until it is stopped",
        {200: Success("it does", as_json(reference("Cluster")))},
        refusals=(409, 503),
        audited={200: "node-drained"},
    ),
    Operation(
        "DELETE",
        "/-/cluster/drain",
        Right.ADMINISTER,
        resume_node,
        "this node takes clients again",
        {200: Success("it does", as_json(reference("Cluster")))},
        refusals=(409, 503),
        audited={200: "node-resumed"},
    ),
    Operation(
        "POST",
        "/-/cluster/replace",
        Right.ADMINISTER,
        replace_node,
        "this node looks for a neighbor at another address, also after a start",
        {200: Success("from now on", as_json(reference("Cluster")))},
        refusals=(408, 409, 413, 503),
        body=as_json(reference("NodeMove")),
        audited={200: "node-replaced"},
    ),
)
"""What is under ``/-/``, but for the description of it all."""
