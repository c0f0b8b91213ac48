"""Operations of write jobs (used by the Spark sink): rows that come into their queues together, or not at all."""

from __future__ import annotations

from typing import Any, Final

from mq.access import Right
from mq.broker import Draft
from mq.broker.settings import QUEUE, count
from mq.broker.write_jobs import MOST_PARTS
from mq.doors.budget import Use
from mq.errors import InvalidRequest, MQError
from mq.message import QueueName
from mq.web.batches import draft_entries, longest_batch, read_entries, refused_line
from mq.web.exchange import Reply, document, empty
from mq.web.json_answer import JsonAnswer
from mq.web.operations import Operation, Parameter, RequestContext, Success
from mq.web.replies import outcomes_reply
from mq.web.request_body import read_object
from mq.web.schemas import COUNT, DRAFTS, OUTCOMES, as_json, list_of, record, reference

_INT64_MAX: Final = (1 << 63) - 1
_HELD_LINE: Final = '{"status": 202}\n'
"""The outcome line of an entry that is held back."""


async def write_jobs(context: RequestContext) -> Reply:
    """The jobs with rows for a queue."""
    found = await context.broker.writes.of(QueueName(context.queue))
    with JsonAnswer(context.memory) as answer:
        await answer.write({"writes": (each._asdict() for each in found)})
        return answer.reply()


async def hold_back(context: RequestContext) -> Reply:
    """Keep messages for a job."""
    entries = draft_entries(context.request.headers.get("content-type", ""))
    part, number = context.query["part"], context.query["number"]
    with context.memory.reserve(Use.BODY) as room:
        longest = longest_batch(context.broker, context.queue, context.max_body)
        drafts = await read_entries(context.request, entries, longest, room)
        good = [draft for draft in drafts if isinstance(draft, Draft)]
        context.check_publish(len(good))
        outcomes = iter(await context.broker.writes.add(context.queue, context.id, part, number, good, _asker(context)))
    errors = [draft if isinstance(draft, MQError) else next(outcomes) for draft in drafts]
    return outcomes_reply([_HELD_LINE if error is None else refused_line(error) for error in errors])


async def commit_writes(context: RequestContext) -> Reply:
    """Let the rows of a job come."""
    wanted = await read_object(context.request)
    parts, rows = wanted.get("parts"), wanted.get("rows")
    if (
        wanted.keys() != {"parts", "rows"}
        or not isinstance(parts, list)
        or not all(isinstance(part, str) for part in parts)
        or type(rows) is not int
        or rows < 0
    ):
        raise InvalidRequest('the request body must be {"parts": [NAME, ...], "rows": NUMBER}')
    job = await context.broker.writes.commit(context.queue, context.id, parts, rows, _asker(context))
    return document(200, job._asdict())


async def abort_writes(context: RequestContext) -> Reply:
    """End a job, so that nothing of it comes."""
    await context.broker.writes.abort(context.queue, context.id, _asker(context))
    return empty(200)


def _asker(context: RequestContext) -> str | None:
    """The user's name; None for an administrator, who may do with every job what its owner may."""
    user = context.request.user
    return None if user is None or user.may(Right.ADMINISTER, None) else user.name


_JOB: Final = as_json(reference("WriteJob"))
_COMMIT: Final[dict[str, Any]] = record(
    {"parts": {"type": "array", "items": QUEUE.schema, "maxItems": MOST_PARTS}, "rows": COUNT}
)

OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "GET",
        "/QUEUE/writes",
        Right.PUBLISH,
        write_jobs,
        "lists the write jobs that stage messages for a queue",
        {200: Success("all", as_json(record({"writes": list_of(reference("WriteJob"))})))},
        refusals=(404, 409),
    ),
    Operation(
        "POST",
        "/QUEUE/writes/JOB",
        Right.PUBLISH,
        hold_back,
        "stages messages until their write job is committed",
        {200: Success("one line for each entry of the batch", OUTCOMES)},
        refusals=(404, 408, 409, 413, 503),
        query=(
            Parameter("part", QUEUE, "name of a task, or of one run of a task", is_needed=True),
            Parameter("number", count(_INT64_MAX, 0), "number of the request within its part", is_needed=True),
        ),
        body=DRAFTS,
        needs_queue=True,
        is_of_messages=True,
    ),
    Operation(
        "PUT",
        "/QUEUE/writes/JOB",
        Right.PUBLISH,
        commit_writes,
        "commits a write job: publishes all its messages, or none",
        {200: Success("the messages are published", _JOB)},
        refusals=(404, 408, 409, 413, 429, 503),
        body=as_json(_COMMIT),
        needs_queue=True,
        audited={200: "writes-committed"},
    ),
    Operation(
        "DELETE",
        "/QUEUE/writes/JOB",
        Right.PUBLISH,
        abort_writes,
        "aborts a write job, or deletes a finished one",
        {200: Success("the write job is gone")},
        refusals=(404, 409, 503),
        needs_queue=True,
        audited={200: "writes-aborted"},
    ),
)
"""Operations of write jobs."""
