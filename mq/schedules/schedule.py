"""A schedule: what is published when, and its record in the store."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from mq.broker import Draft
from mq.errors import BodyTooLarge, InvalidSetting
from mq.message import QueueName
from mq.schedules.instants import CronLine, Every, Instants

KIND: Final = "schedule"
"""Of the records."""
LARGEST_BODY: Final = 64 * 1024
"""Bytes. All schedules are in memory; what is larger belongs elsewhere, and its place into the body."""


class Schedule(NamedTuple):
    """A message, and the timetable by which it is published.

    Attributes:
        name: its name; as a queue's, so that patterns of rights fit.
        queue: where the message goes.
        draft: the message, without a key.
        cron: five fields; empty where it is every so many seconds.
        zone: the time zone of these.
        every: seconds between two messages; None where there is a cron line.
        unless_waiting: whether nothing is published while the last message is still in the queue.
        start_ms: the instant from which `every` is counted, in milliseconds since 1970.
        changed_ms: when it was made or changed: it does not fire for earlier instants.
    """

    name: QueueName
    queue: QueueName
    draft: Draft
    cron: str = ""
    zone: str = "UTC"
    every: float | None = None
    unless_waiting: bool = False
    start_ms: int = 0
    changed_ms: int = 0

    def instants(self) -> Instants:
        """The instants at which it fires.

        Raises:
            InvalidSetting: the cron line or the zone is none.
        """
        return CronLine(self.cron, self.zone) if self.every is None else Every(self.every, self.start_ms)

    def record(self) -> dict[str, Any]:
        """As JSON values, for the store."""
        draft, body = self.draft, self.draft.body
        assert isinstance(body, bytes), "the body of a schedule is small"
        message = {
            "base64": base64.b64encode(body).decode(),
            "attributes": dict(draft.attributes),
            "delay": draft.delay,
            "ttl": draft.ttl,
            "priority": draft.priority,
        }
        return {**self._asdict(), "draft": message}

    @classmethod
    def stored(cls, record: Mapping[str, Any]) -> Schedule:
        """The schedule of a record.

        Raises:
            ValueError, KeyError, TypeError: it is none.
        """
        message = dict(record["draft"])
        draft = Draft(base64.b64decode(message.pop("base64")), **message)
        return cls(**{**record, "name": QueueName(record["name"]), "queue": QueueName(record["queue"]), "draft": draft})


def check_schedule(schedule: Schedule, now_ms: int) -> Instants:
    """The instants of a schedule that is to be kept, at least one of which is still to come.

    Args:
        schedule: as the client gave it.
        now_ms: how late it is.

    Raises:
        InvalidSetting: the cron line or the zone is none, or never comes.
        BodyTooLarge: the body is over the limit.
    """
    body = schedule.draft.body
    if isinstance(body, bytes) and len(body) > LARGEST_BODY:
        raise BodyTooLarge(f"the body of a schedule has at most {LARGEST_BODY} bytes: publish where it lies instead")
    instants = schedule.instants()
    if instants.following(now_ms) is None:
        raise InvalidSetting(f"cron must come within the next fifty years: {schedule.cron} does not")
    return instants
