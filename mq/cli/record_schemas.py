"""The schemas of records, for ``mq doctor``: whether a record makes sense to the part of mq that reads it.

A kind that is not in the table belongs to a plugin, and is not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from mq.amqp.model import declared
from mq.broker import background_check, batch_consumers, clock, dead_letters, keys, write_jobs
from mq.broker.settings import QueueSettings
from mq.errors import MQError
from mq.schedules import schedule, scheduler
from mq.sqs import move_tasks
from mq.storage import groups
from mq.storage.files.inventory import INVENTORY
from mq.storage.interface import QUEUE

Value = Mapping[str, Any]
Check = Callable[[Value], object]
"""Raises ValueError, KeyError, TypeError or an :class:`~mq.errors.MQError` for a value that makes no sense."""


def flaw_of(kind: str, value: Value) -> str:
    """Why the value of a record makes no sense; empty if it does, or if its kind is unknown."""
    check = _SCHEMAS.get(kind)
    if check is None:
        return ""
    try:
        check(value)
    except (ValueError, KeyError, TypeError, AttributeError, MQError) as error:
        return f"the value is not valid for a record of kind {kind}: {error!r}"
    return ""


def _fields(**types: type | tuple[type, ...]) -> Check:
    """A check of fields by their types; one whose type includes None may be missing."""

    def check(value: Value) -> None:
        for name, type in types.items():
            if not isinstance(value.get(name), type):
                raise ValueError(f"the field {name} has an invalid value: {value.get(name)!r}")

    return check


def _entries(fits: Callable[[Any], bool]) -> Check:
    def check(value: Value) -> None:
        for key, kept in value.get("entries", {}).items():
            if not fits(kept):
                raise ValueError(f"the entry {key} has an invalid value: {kept!r}")

    return check


_NONE: Final = type(None)
_ID_TIME_STORED_INCARNATION: Final = (str, int, int, int)


def _is_key(kept: Any) -> bool:
    return len(kept) == len(_ID_TIME_STORED_INCARNATION) and all(map(isinstance, kept, _ID_TIME_STORED_INCARNATION))


def _check_queue(value: Value) -> None:
    _fields(created=(int, _NONE), incarnation=(int, _NONE), transient=(bool, _NONE))(value)
    QueueSettings.stored(value.get("settings", {}))
    if value.get("declared") is not None:
        declared.Queue.stored(value["declared"])


def _check_clock(value: Value) -> None:
    if clock.ClockRecord.stored(value) is None:
        raise ValueError("the stored clock state has no timestamps")


def _check_firings(value: Value) -> None:
    for firing in value.values():
        scheduler.Firing(*firing)


def _check_shared(value: Value) -> None:
    _fields(kind=str, key=str, value=dict)(value)
    {declared.EXCHANGE: declared.Exchange.stored, declared.BINDING: declared.Binding.stored}[value["kind"]](
        value["value"]
    )


_SCHEMAS: Final[dict[str, Check]] = {
    QUEUE: _check_queue,
    keys.KIND: _entries(_is_key),
    dead_letters.KIND: _entries(lambda kept: isinstance(kept, list)),
    batch_consumers.KIND: _fields(
        incarnation=int, epoch=int, acknowledged=int, checkpoint=(str, _NONE), claim=(list, _NONE)
    ),
    write_jobs.KIND: lambda value: write_jobs.JobState(value["state"]),
    schedule.KIND: schedule.Schedule.stored,
    scheduler.FIRINGS: _check_firings,
    declared.EXCHANGE: declared.Exchange.stored,
    declared.BINDING: declared.Binding.stored,
    declared.SHARED: _check_shared,
    declared.ELSEWHERE: _fields(number=int, declared=(dict, _NONE)),
    move_tasks.KIND: lambda value: move_tasks.MoveTask.restored("queue", value),
    groups.INTENT: _fields(),
    clock.KIND: _check_clock,
    background_check.KIND: _fields(began_ms=int, queue=str, after=int, checked=int, total=int, ended_ms=int),
    INVENTORY: _fields(kinds=dict),
}
