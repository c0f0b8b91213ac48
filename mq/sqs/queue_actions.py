"""Actions on queues: make, find, list, set, tag, purge, delete; and move dead letters back."""

from __future__ import annotations

import base64
import binascii
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mq.access import Right, owner_of
from mq.broker.settings import SQS
from mq.errors import Conflict, InvalidSetting, OverLimit
from mq.lifecycle import made_for
from mq.message import QueueName, shorten
from mq.sqs.actions import ANY_RIGHT, Action, ActionCall, Members
from mq.sqs.attributes import (
    AttributeChange,
    allows_source,
    check_new,
    check_throughput,
    noted,
    read_change,
    shown_attributes,
    wanted_attributes,
    with_defaults,
)
from mq.sqs.errors import SqsError
from mq.sqs.move_tasks import MOST_SHOWN, MoveTask
from mq.sqs.names import is_fifo, known_name, new_name, queue_of_arn
from mq.sqs.notes import Notes
from mq.sqs.shapes import TEXT, WHOLE, ListOf, MapOf, Shape, Struct

LONGEST_LIST: Final = 1000
MOST_TAGS: Final = 50
MOST_PER_SECOND: Final = 500
_TAG_KEY: Final = re.compile(r"(?!(?i:aws:))[\w\s+\-=.:/@]{1,128}")
_TAG_VALUE: Final = re.compile(r"[\w\s+\-=.:/@]{0,256}")
_DEAD_LETTERS: Final = "dead_letter_queue"


# Made, found, deleted


async def create_queue(call: ActionCall) -> Members:
    """Make a queue, or find it with the same attributes."""
    name = new_name(call.needed("QueueName"))
    call.allow(Right.CONFIGURE, name)
    given = call.wanted.get("Attributes", {})
    check_new(name, given, is_fifo=is_fifo(name))
    change = read_change(given, is_fifo=is_fifo(name))
    check_throughput(change.notes)
    tags = _checked_tags(call.wanted.get("tags", {}))
    async with call.desk.changing:
        if await call.desk.broker.has_queue(name):
            await _check_same(call, name, change)
            call.demanded.clear()
        else:
            await _create(call, name, with_defaults(change, is_fifo=is_fifo(name)), tags)
    return {"QueueUrl": call.names.url(name)}


async def _create(call: ActionCall, name: QueueName, change: AttributeChange, tags: Mapping[str, str]) -> None:
    target = change.settings.get(_DEAD_LETTERS)
    if target is not None:
        await _check_target(call, name, target)
    settings = {**change.settings, **Notes(change.notes, tags).setting()}
    try:
        with made_for(owner_of(call.user)):
            await call.desk.broker.declarations.create(name, settings, None, is_transient=False)
    except OverLimit as error:
        raise SqsError("OverLimit", str(error)) from error


async def _check_same(call: ActionCall, name: QueueName, change: AttributeChange) -> None:
    """Check that a queue has the attributes with which a client would make it.

    Raises:
        SqsError: it has others.
    """
    status = await call.desk.broker.status(name)
    settings, notes = status.settings.values(), await call.desk.notes.read(name)
    if settings["visibility"] is None:
        settings["visibility"] = call.desk.lease_seconds
    same = all(settings[key] == value for key, value in change.settings.items())
    if not same or any(noted(notes, key) != text for key, text in change.notes.items()):
        raise SqsError(
            "QueueNameExists",
            "A queue already exists with the same name and a different value for an attribute. Use the values of the "
            "existing queue, or change its attributes with SetQueueAttributes",
        )


async def _check_target(call: ActionCall, queue: QueueName, target: str) -> None:
    """Check that a queue may use another one as its dead-letter queue.

    Raises:
        SqsError: there is no such queue, it refuses this source, letters would go round, or the user lacks a right.
    """
    call.allow(Right.CONSUME, queue)  # a user that sends them elsewhere can read them there
    call.allow(Right.PUBLISH, target)
    broker = call.desk.broker
    path: list[str] = [queue]
    name: str | None = target
    while name is not None:
        if name in path:
            raise _wrong_policy(f"Dead letters would move in a loop: {' -> '.join([*path, name])}.")
        path.append(name)
        name = (await broker.status(name)).settings.dead_letter_queue if await broker.has_queue(name) else None
    if not await broker.has_queue(target):
        raise _wrong_policy("The dead-letter queue does not exist. Create it first.")
    if is_fifo(target) != is_fifo(queue):
        raise _wrong_policy(
            "The dead-letter queue of a FIFO queue must be a FIFO queue, and the dead-letter queue of a "
            "standard queue must be a standard queue."
        )
    if (await broker.status(target)).settings.unique:
        raise _wrong_policy(
            f"queue {target} has unique=true, so it would refuse dead letters that duplicate one of its messages."
        )
    if not allows_source(await call.desk.notes.read(target), queue):
        raise _wrong_policy(f"The RedriveAllowPolicy of {target} does not allow this source queue.")


def _wrong_policy(reason: str) -> SqsError:
    return SqsError("InvalidParameterValue", f"Value for parameter RedrivePolicy is invalid. Reason: {reason}")


async def get_queue_url(call: ActionCall) -> Members:
    """The URL of a queue that is there."""
    name = known_name(call.needed("QueueName"))
    call.allow(ANY_RIGHT, name)
    await call.check_known(name)
    return {"QueueUrl": call.names.url(name)}


async def list_queues(call: ActionCall) -> Members:
    """A page of queues, filtered by the beginning of their names."""
    prefix = call.wanted.get("QueueNamePrefix", "")
    found = [status.name for status in await call.desk.broker.queues()]
    return _page(call, "QueueUrls", [name for name in found if name.startswith(prefix) and call.sees(name)])


async def list_sources(call: ActionCall) -> Members:
    """Queues whose dead messages go to this one."""
    target = await call.known_queue(ANY_RIGHT)
    found = [each.name for each in await call.desk.broker.queues() if each.settings.dead_letter_queue == target]
    return _page(call, "queueUrls", [name for name in found if call.sees(name)])


def _page(call: ActionCall, member: str, queues: Sequence[str]) -> dict[str, Any]:
    """A page of sorted queues; of the greatest length unless the client asked for another."""
    most = call.number("MaxResults", 1, LONGEST_LIST)
    token = call.wanted.get("NextToken")
    after = "" if token is None else _after(token)
    left = [name for name in queues if name > after]
    page = left[: most or LONGEST_LIST]
    answer: dict[str, Any] = {member: [call.names.url(name) for name in page]} if page else {}
    if most is not None and len(left) > most:
        answer["NextToken"] = base64.urlsafe_b64encode(page[-1].encode()).decode()
    return answer


def _after(token: str) -> str:
    try:
        return base64.urlsafe_b64decode(token.encode("ascii")).decode()
    except (binascii.Error, ValueError):
        raise SqsError("InvalidParameterValue", "NextToken must be a value returned by this action") from None


async def delete_queue(call: ActionCall) -> Members:
    """Delete a queue and all its messages."""
    async with call.desk.changing:
        queue = await call.known_queue(Right.CONFIGURE)
        await call.desk.broker.delete_queue(queue)
        call.desk.notes.forget(queue)
    return {}


async def purge_queue(call: ActionCall) -> Members:
    """Remove all messages that are not leased."""
    queue = await call.known_queue(Right.CONFIGURE)
    await call.desk.broker.purge(queue)
    return {}


# Attributes and tags


async def get_attributes(call: ActionCall) -> Members:
    """The attributes that were asked for."""
    queue = await call.known_queue(ANY_RIGHT)
    is_wanted = wanted_attributes(call.wanted.get("AttributeNames", ()))
    notes, status = await call.desk.notes.read(queue), await call.desk.broker.status(queue)
    shown = shown_attributes(status, notes, call.names, call.desk.lease_seconds)
    found = {name: text for name, text in shown.items() if is_wanted(name)}
    return {"Attributes": found} if found else {}


async def set_attributes(call: ActionCall) -> Members:
    """Change attributes: all of them, or none."""
    given = call.needed("Attributes")
    change = read_change(given, is_fifo=is_fifo(call.queue(Right.CONFIGURE)))
    async with call.desk.changing:
        queue = await call.known_queue(Right.CONFIGURE)
        old = await call.desk.notes.read(queue)
        check_throughput({**old.attributes, **change.notes})
        target = change.settings.get(_DEAD_LETTERS)
        if target is not None:
            await _check_target(call, queue, target)
        try:
            noted = Notes(change.notes, modified=int(time.time()))
            await call.desk.notes.change(queue, {**change.settings, **noted.setting()})
        except (InvalidSetting, Conflict) as error:
            raise SqsError("InvalidAttributeValue", str(error)) from error
    return {}


async def tag_queue(call: ActionCall) -> Members:
    """Set tags."""
    tags = _checked_tags(call.needed("Tags"))
    async with call.desk.changing:
        queue = await call.known_queue(Right.CONFIGURE)
        old = await call.desk.notes.read(queue)
        _checked_tags({**old.tags, **tags})
        await call.desk.notes.change(queue, Notes(tags=tags).setting())
    return {}


async def untag_queue(call: ActionCall) -> Members:
    """Remove tags."""
    gone = call.needed("TagKeys")
    async with call.desk.changing:
        queue = await call.known_queue(Right.CONFIGURE)
        old = await call.desk.notes.read(queue)
        there = [key for key in gone if key in old.tags]
        if there:
            await call.desk.notes.change(queue, {SQS: {"tags": dict.fromkeys(there)}})
        else:
            call.demanded.clear()
    return {}


async def list_tags(call: ActionCall) -> Members:
    """All tags."""
    notes = await call.desk.notes.read(await call.known_queue(ANY_RIGHT))
    return {"Tags": dict(notes.tags)} if notes.tags else {}


def _checked_tags(tags: Mapping[str, str]) -> Mapping[str, str]:
    if len(tags) > MOST_TAGS:
        raise SqsError("InvalidParameterValue", f"a queue can have at most {MOST_TAGS} tags")
    for key, text in tags.items():
        if _TAG_KEY.fullmatch(key) is None or _TAG_VALUE.fullmatch(text) is None:
            raise SqsError(
                "InvalidParameterValue",
                f"The tag {shorten(key)} is invalid. Keys must have 1 to 128 characters and values at most 256; "
                "both may contain letters, digits, spaces and _ . : / = + - @. Keys must not begin with aws:",
            )
    return tags


async def no_permissions(call: ActionCall) -> Members:
    """Refuse: rights stand in mq's users file."""
    call.queue(Right.CONFIGURE)
    raise SqsError(
        "UnsupportedOperation",
        "Permissions cannot be changed through the SQS API. Set user rights in mq's users file (see docs/access.md)",
    )


# Dead letters


async def start_move(call: ActionCall) -> Members:
    """Begin to move the messages of a dead-letter queue."""
    source = queue_of_arn(call.needed("SourceArn"), "SourceArn")
    call.allow(Right.CONFIGURE, source)
    target = None
    if "DestinationArn" in call.wanted:
        target = queue_of_arn(call.wanted["DestinationArn"], "DestinationArn")
        call.allow(Right.CONSUME, source)
        call.allow(Right.PUBLISH, target)
    per_second = call.number("MaxNumberOfMessagesPerSecond", 1, MOST_PER_SECOND)
    await _check_move(call, source, target)
    status = await call.desk.broker.status(source)
    task = MoveTask(source, target, per_second, status.ready)
    await call.desk.tasks.start(task)
    return {"TaskHandle": task.handle}


async def _check_move(call: ActionCall, source: QueueName, target: QueueName | None) -> None:
    broker = call.desk.broker
    for queue in (source, target):
        if queue is not None and not await broker.has_queue(queue):
            raise SqsError("ResourceNotFoundException", "The resource that you specified does not exist.")
    if source == target:
        raise SqsError("InvalidParameterValue", "DestinationArn and SourceArn must not refer to the same queue.")
    if not any(status.settings.dead_letter_queue == source for status in await broker.queues()):
        raise SqsError("InvalidParameterValue", "The source queue must be configured as a dead-letter queue.")


async def list_moves(call: ActionCall) -> Members:
    """The latest tasks of a queue."""
    source = queue_of_arn(call.needed("SourceArn"), "SourceArn")
    call.allow(ANY_RIGHT, source)
    most = call.number("MaxResults", 1, MOST_SHOWN) or 1
    if not await call.desk.broker.has_queue(source):
        raise SqsError("ResourceNotFoundException", "The resource that you specified does not exist.")
    tasks = call.desk.tasks.of_queue(source)[:most]
    return {"Results": [_shown_task(call, task) for task in tasks]} if tasks else {}


def _shown_task(call: ActionCall, task: MoveTask) -> dict[str, Any]:
    target = {} if task.target is None else {"DestinationArn": call.names.arn(task.target)}
    return {**task.shown(), "SourceArn": call.names.arn(task.source), **target}


async def cancel_move(call: ActionCall) -> Members:
    """Cancel a task; messages that it has moved stay where they are."""
    task = call.desk.tasks.running(call.needed("TaskHandle"))
    call.allow(Right.CONFIGURE, task.source)
    await call.desk.tasks.cancel(task)
    return {"ApproximateNumberOfMessagesMoved": task.moved}


_URL: Final[Mapping[str, Shape]] = {"QueueUrl": TEXT}
_ATTRIBUTES: Final = MapOf(TEXT, "Attribute")
_TAGS: Final = MapOf(TEXT, "Tag", "Key")
_PAGES: Final[Mapping[str, Shape]] = {"MaxResults": WHOLE, "NextToken": TEXT}
_NOTHING: Final = Struct({})
_URLS: Final = ListOf(TEXT, "QueueUrl")
_TASK: Final = Struct(
    {
        "TaskHandle": TEXT,
        "Status": TEXT,
        "SourceArn": TEXT,
        "DestinationArn": TEXT,
        "MaxNumberOfMessagesPerSecond": WHOLE,
        "ApproximateNumberOfMessagesMoved": WHOLE,
        "ApproximateNumberOfMessagesToMove": WHOLE,
        "FailureReason": TEXT,
        "StartedTimestamp": WHOLE,
    }
)

ACTIONS: Final[tuple[Action, ...]] = (
    Action(
        "CreateQueue",
        Struct({"QueueName": TEXT, "Attributes": _ATTRIBUTES, "tags": _TAGS}),
        Struct(_URL),
        create_queue,
        "queue-created",
    ),
    Action("GetQueueUrl", Struct({"QueueName": TEXT, "QueueOwnerAWSAccountId": TEXT}), Struct(_URL), get_queue_url),
    Action(
        "ListQueues",
        Struct({"QueueNamePrefix": TEXT, **_PAGES}),
        Struct({"QueueUrls": _URLS, "NextToken": TEXT}),
        list_queues,
    ),
    Action("DeleteQueue", Struct(_URL), _NOTHING, delete_queue, "queue-deleted"),
    Action("PurgeQueue", Struct(_URL), _NOTHING, purge_queue, "queue-purged"),
    Action(
        "GetQueueAttributes",
        Struct({**_URL, "AttributeNames": ListOf(TEXT, "AttributeName")}),
        Struct({"Attributes": _ATTRIBUTES}),
        get_attributes,
    ),
    Action(
        "SetQueueAttributes", Struct({**_URL, "Attributes": _ATTRIBUTES}), _NOTHING, set_attributes, "queue-changed"
    ),
    Action("TagQueue", Struct({**_URL, "Tags": _TAGS}), _NOTHING, tag_queue, "queue-tagged"),
    Action("UntagQueue", Struct({**_URL, "TagKeys": ListOf(TEXT, "TagKey")}), _NOTHING, untag_queue, "queue-untagged"),
    Action("ListQueueTags", Struct(_URL), Struct({"Tags": _TAGS}), list_tags),
    Action("AddPermission", Struct(_URL), _NOTHING, no_permissions),
    Action("RemovePermission", Struct(_URL), _NOTHING, no_permissions),
    Action(
        "ListDeadLetterSourceQueues",
        Struct({**_URL, **_PAGES}),
        Struct({"queueUrls": _URLS, "NextToken": TEXT}),
        list_sources,
    ),
    Action(
        "StartMessageMoveTask",
        Struct({"SourceArn": TEXT, "DestinationArn": TEXT, "MaxNumberOfMessagesPerSecond": WHOLE}),
        Struct({"TaskHandle": TEXT}),
        start_move,
        "queue-redriven",
    ),
    Action(
        "ListMessageMoveTasks",
        Struct({"SourceArn": TEXT, "MaxResults": WHOLE}),
        Struct({"Results": ListOf(_TASK, "ListMessageMoveTasksResultEntry")}),
        list_moves,
    ),
    Action(
        "CancelMessageMoveTask",
        Struct({"TaskHandle": TEXT}),
        Struct({"ApproximateNumberOfMessagesMoved": WHOLE}),
        cancel_move,
        "redrive-cancelled",
    ),
)
"""Actions on queues."""
