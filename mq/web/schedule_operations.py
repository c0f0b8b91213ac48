"""Operations on schedules, under ``/-/schedules``.

Making a schedule needs the right to configure its name, as if it were a queue's, and to publish to its queue. Only
users with the right to configure it see it, for it contains its message.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

from mq import turns
from mq.access import Right
from mq.broker import Draft
from mq.broker.settings import LONGEST_TTL_SECONDS, QUEUE, SWITCH, SettingKind, check_value, seconds
from mq.errors import InvalidName, InvalidRequest
from mq.message import QueueName, shorten
from mq.schedules.schedule import LONGEST_LINE, SHORTEST_SECONDS, UTC_NAME, Schedule
from mq.schedules.scheduler import ScheduleStatus, shown_instant
from mq.web.batches import draft_of_line
from mq.web.exchange import NOT_CACHED, Reply, document, empty, problem
from mq.web.json_answer import JsonAnswer
from mq.web.operations import KNOWN, Operation, Parameter, RequestContext, Success
from mq.web.parameters import AMOUNT, LARGEST_BATCH
from mq.web.request_body import read_object
from mq.web.schemas import TEXT, as_json, list_of, or_null, record, reference


async def put_schedule(context: RequestContext) -> Reply:
    """Make a schedule, or change it."""
    name, refusal = _named(context)
    if refusal is not None:
        return refusal
    user = context.request.user
    schedule = _schedule_of(name, await read_object(context.request))._replace(owner="" if user is None else user.name)
    if not context.may(Right.PUBLISH, schedule.queue):
        return _forbidden(Right.PUBLISH, f"queue {schedule.queue}")
    is_new = await context.schedules.put(schedule)
    return document(201 if is_new else 200, _shown(context.schedules.status(name)))


async def get_schedule(context: RequestContext) -> Reply:
    """A schedule, with its message."""
    name, refusal = _named(context)
    if refusal is not None:
        return refusal
    await context.schedules.look()
    status = context.schedules.status(name)
    return document(200, _shown(status) | {"message": _message(status.schedule.draft)}, NOT_CACHED)


async def delete_schedule(context: RequestContext) -> Reply:
    """Delete a schedule."""
    name, refusal = _named(context)
    if refusal is not None:
        return refusal
    await context.schedules.drop(name)
    return empty(200)


async def schedules(context: RequestContext) -> Reply:
    """The schedules that the user may configure, page by page."""
    after, most = context.query["after"] or "", context.query["max"]
    await context.schedules.look()
    found = turns.in_turns(context.schedules.names(), turns.LIGHT)
    names = [name async for name in found if name > after and context.may(Right.CONFIGURE, name)]
    with JsonAnswer(context.memory) as answer:
        statuses = [context.schedules.status(name) for name in names[:most]]  # before one of them is deleted
        await answer.write({"schedules": map(_shown, statuses), "next": names[most - 1] if len(names) > most else None})
        return answer.reply(NOT_CACHED)


def _named(context: RequestContext) -> tuple[QueueName, Reply | None]:
    """The name in the path, and the reply to a user who has no right on it, whether it is there or not.

    Raises:
        InvalidName: no schedule can have it.
    """
    try:
        name = QueueName(context.id)
    except InvalidName:
        raise InvalidName(
            f"invalid schedule name: {shorten(context.id)}. Use 1 to 100 characters: letters, digits and any of . _ "
            "@ - (the first must be a letter, a digit or _)"
        ) from None
    return name, None if context.may(Right.CONFIGURE, name) else _forbidden(Right.CONFIGURE, f"schedule {name}")


def _forbidden(right: Right, what: str) -> Reply:
    return problem(403, f"this requires the right to {right} on {what}")


def _schedule_of(name: QueueName, wanted: Mapping[str, Any]) -> Schedule:
    """The schedule that JSON describes.

    Raises:
        InvalidRequest, InvalidSetting: it describes none.
    """
    for key in wanted:
        if key not in _KEYS:
            raise InvalidRequest(f"unknown key {shorten(key)}. Valid keys: {', '.join(_KEYS)}")
    cron, every = wanted.get("cron"), wanted.get("every")
    if (cron is None) == (every is None):
        raise InvalidRequest(
            'a schedule must have either "cron" (such as "0 3 * * *") or "every" (a number of seconds)'
        )
    if every is not None and wanted.get("zone") is not None:
        raise InvalidRequest('"zone" is only supported together with "cron". Remove "zone"')
    message = wanted.get("message")
    if not isinstance(message, Mapping):
        raise InvalidRequest('"message" must be an object, such as {"body": "text"}')
    for key in ("key", "at"):
        if message.get(key) is not None:
            raise InvalidRequest(
                f'the message in a schedule must not contain "{key}", because the schedule determines when the message '
                "is published"
            )
    return Schedule(
        name,
        QueueName(check_value("queue", wanted.get("queue"), QUEUE)),
        draft_of_line(message),
        cron="" if cron is None else check_value("cron", cron, _CRON),
        zone=check_value("zone", UTC_NAME if wanted.get("zone") is None else wanted["zone"], _ZONE),
        every=None if every is None else check_value("every", every, _EVERY),
        unless_waiting=check_value("unless_waiting", wanted.get("unless_waiting", False), SWITCH),
    )


def _shown(status: ScheduleStatus) -> dict[str, Any]:
    schedule = status.schedule
    return {
        "name": schedule.name,
        "queue": schedule.queue,
        "cron": schedule.cron or None,
        "zone": schedule.zone if schedule.cron else None,
        "every": schedule.every,
        "unless_waiting": schedule.unless_waiting,
        "next": None if status.next_ms is None else shown_instant(status.next_ms),
        "last": None if status.last_ms is None else shown_instant(status.last_ms),
        "error": status.error or None,
    }


def _message(draft: Draft) -> dict[str, Any]:
    """A message as a line of a batch has it."""
    beside = {"delay": draft.delay, "ttl": draft.ttl, "priority": draft.priority or None}
    said = {**draft.attributes, **{name: value for name, value in beside.items() if value is not None}}
    body = draft.body
    assert isinstance(body, bytes), "the message body, at most 64 KiB"
    try:
        return {**said, "body": body.decode()}
    except UnicodeDecodeError:
        return {**said, "base64": base64.b64encode(body).decode()}


def _parse_text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_LINE:
        raise ValueError
    return value


_TEXT: Final[dict[str, Any]] = {"type": "string", "maxLength": LONGEST_LINE}
_CRON: Final = SettingKind(_parse_text, f"a cron expression of five fields, at most {LONGEST_LINE} characters", _TEXT)
_ZONE: Final = SettingKind(_parse_text, "the name of a time zone, such as Europe/Berlin", _TEXT)
_EVERY: Final = seconds(SHORTEST_SECONDS, LONGEST_TTL_SECONDS)
_KEYS: Final = ("cron", "zone", "every", "queue", "message", "unless_waiting")
_WANTED: Final = as_json(
    record(
        {"queue": QUEUE.schema, "message": reference("Draft")},
        {
            "cron": or_null(_TEXT),
            "zone": or_null(_TEXT),
            "every": or_null(_EVERY.schema),
            "unless_waiting": SWITCH.schema,
        },
    )
)
_SHOWN: Final = as_json(reference("Schedule"))
_LISTED: Final = as_json(record({"schedules": list_of(reference("Schedule")), "next": or_null(TEXT)}))

OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "GET",
        "/-/schedules",
        KNOWN,
        schedules,
        "lists the schedules that the user may configure, in pages",
        {200: Success("sorted by name, without their messages", _LISTED)},
        refusals=(503,),
        query=(
            Parameter("max", AMOUNT, "maximum number of entries", LARGEST_BATCH),
            Parameter("after", QUEUE, "continue after this schedule"),
        ),
    ),
    Operation(
        "PUT",
        "/-/schedules/SCHEDULE",
        KNOWN,
        put_schedule,
        "creates or replaces a schedule that publishes a message regularly",
        {201: Success("the schedule is new", _SHOWN), 200: Success("the schedule was replaced", _SHOWN)},
        refusals=(404, 408, 409, 413, 503),
        body=_WANTED,
        audited={201: "schedule-created", 200: "schedule-changed"},
    ),
    Operation(
        "GET",
        "/-/schedules/SCHEDULE",
        KNOWN,
        get_schedule,
        "shows a schedule and its message",
        {200: Success("the schedule, with its last and next run", _SHOWN)},
        refusals=(404, 503),
    ),
    Operation(
        "DELETE",
        "/-/schedules/SCHEDULE",
        KNOWN,
        delete_schedule,
        "deletes a schedule; published messages stay",
        {200: Success("the schedule no longer runs")},
        refusals=(404, 503),
        audited={200: "schedule-deleted"},
    ),
)
"""Operations on schedules."""
