"""The broker as a whole: is it there, what is in it, what has it done?"""

from __future__ import annotations

from typing import Final

from mq.web.errors import retry_after
from mq.web.exchange import Reply, document, problem
from mq.web.operations import Answer, Asked, Operation
from mq.web.replies import age_of, shown_queue
from mq.web.schemas import as_json, record, reference


async def live(asked: Asked) -> Reply:
    """The process answers."""
    return document(200, {"live": True})


async def ready(asked: Asked) -> Reply:
    """The store takes changes."""
    if asked.broker.ready:
        return document(200, {"ready": True})
    return problem(503, "the store has failed: see the log, then start mq anew", retry_after())


async def queues(asked: Asked) -> Reply:
    """All queues, with what is in them."""
    return document(200, {"queues": [shown_queue(status) for status in await asked.broker.queues()]})


async def stats(asked: Asked) -> Reply:
    """Counts and rates."""
    statuses = await asked.broker.queues()
    report = asked.metrics.report({status.name for status in statuses})
    for status in statuses:
        report["queues"][status.name] |= {
            "ready": status.ready,
            "leased": status.leased,
            "delayed": status.delayed,
            "oldest_seconds": age_of(status),
        }
    return document(200, report)


async def cluster(asked: Asked) -> Reply:
    """Who is in the cluster, and who is master."""
    found = asked.broker.membership
    return document(200, {**found._asdict(), "nodes": [node._asdict() for node in found.nodes]})


OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "GET",
        "/-/live",
        live,
        "does the process answer?",
        {200: Answer("it does", as_json(record({"live": {"const": True}})))},
    ),
    Operation(
        "GET",
        "/-/ready",
        ready,
        "does the store take changes?",
        {200: Answer("it does", as_json(record({"ready": {"const": True}})))},
        refusals=(503,),
    ),
    Operation(
        "GET",
        "/-/queues",
        queues,
        "all queues, with what is in them",
        {200: Answer("by name", as_json(record({"queues": {"type": "array", "items": reference("Queue")}})))},
        refusals=(503,),
    ),
    Operation(
        "GET",
        "/-/stats",
        stats,
        "counts and rates",
        {200: Answer("since the start, and over the last minute", as_json(reference("Stats")))},
        refusals=(503,),
    ),
    Operation(
        "GET",
        "/-/cluster",
        cluster,
        "the nodes of the cluster, and which of them is master",
        {200: Answer("as this node sees it", as_json(reference("Cluster")))},
    ),
)
"""What is under ``/-/``, but for the description of it all."""
