"""A schedule: what is published when, and its record in the store.

It fires by a cron line in a time zone, or every so many seconds. An instant is in milliseconds since 1970. Cron lines
are read as Debian's cron reads them: what a clock leaves out in spring comes right after the gap, what it shows twice
in autumn comes once, unless the line names every hour or every so many minutes (cron(8)).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final, NamedTuple, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from mq.broker import Draft
from mq.errors import BodyTooLarge, InvalidSetting
from mq.message import QueueName, encode_json, shorten

LONGEST_LINE: Final = 200
"""Characters of a cron line."""
SHORTEST_SECONDS: Final = 1.0
"""Between two instants."""
MINUTE_SECONDS: Final = 60
UTC_NAME: Final = "UTC"
_FIELDS: Final = 5
_ZONE: Final = re.compile(r"[A-Za-z0-9_+-]{1,32}(/[A-Za-z0-9_+-]{1,32}){0,3}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_FIRST_LOOK_MS: Final = 300_000
_WIDER: Final = 16


class Instants(Protocol):
    """When a schedule fires."""

    def following(self, after_ms: int) -> int | None:
        """The first instant later than `after_ms`; None where none comes."""

    def latest(self, after_ms: int, now_ms: int) -> int | None:
        """The last instant later than `after_ms` and not later than `now_ms`; None without one."""


class Never:
    """No instants: of a schedule that this machine cannot read."""

    def following(self, after_ms: int) -> int | None:
        """None."""
        return None

    def latest(self, after_ms: int, now_ms: int) -> int | None:
        """None."""
        return None


class Every:
    """One instant every so many seconds.

    Args:
        start_ms: from which on they are counted; they are as far before it.
    """

    def __init__(self, seconds: float, start_ms: int) -> None:
        self._period_ms = round(seconds * 1000)
        self._start_ms = start_ms

    def following(self, after_ms: int) -> int | None:
        """The first instant later than `after_ms`."""
        return self._start_ms + ((after_ms - self._start_ms) // self._period_ms + 1) * self._period_ms

    def latest(self, after_ms: int, now_ms: int) -> int | None:
        """The last instant later than `after_ms` and not later than `now_ms`; None without one."""
        last = self._start_ms + (now_ms - self._start_ms) // self._period_ms * self._period_ms
        return last if last > after_ms else None


class CronLine:
    """The instants of a cron line.

    Args:
        zone: the IANA name of its time zone.

    Raises:
        InvalidSetting: the line is none, or the zone is unknown here.
    """

    def __init__(self, line: str, zone: str) -> None:
        self._line = line
        self._zone = _zone_of(zone)
        if len(line) > LONGEST_LINE or len(line.split()) != _FIELDS:
            raise InvalidSetting(
                f"invalid cron expression {shorten(line)}. Use five fields: minute, hour, day of the month, month, day "
                "of the week"
            )
        try:
            CronSim(line, datetime(2000, 1, 1, tzinfo=self._zone))
        except CronSimError as error:
            raise InvalidSetting(f"invalid cron expression {shorten(line)}: {_lower(str(error))}") from None

    def following(self, after_ms: int) -> int | None:
        """The first instant later than `after_ms`; None where none comes within fifty years."""
        for instant_ms in self._from(after_ms):
            if instant_ms > after_ms:  # in an hour that comes twice the first one may be earlier
                return instant_ms
        return None

    def latest(self, after_ms: int, now_ms: int) -> int | None:
        """The last instant later than `after_ms` and not later than `now_ms`; None without one."""
        span_ms = _FIRST_LOOK_MS
        while True:
            start_ms = max(after_ms, now_ms - span_ms)  # years may have been missed: not each is looked at
            found = None
            for instant_ms in self._from(start_ms):
                if instant_ms > now_ms:
                    break
                if instant_ms > start_ms:
                    found = instant_ms
            if found is not None or start_ms == after_ms:
                return found
            span_ms *= _WIDER

    def _from(self, after_ms: int) -> _CronInstants:
        return _CronInstants(self._line, _EPOCH + timedelta(milliseconds=after_ms), self._zone)


class _CronInstants:
    """Iterates over a line's instants, about from a time on."""

    def __init__(self, line: str, after: datetime, zone: tzinfo) -> None:
        self._found = CronSim(line, after.astimezone(zone))

    def __iter__(self) -> _CronInstants:
        return self

    def __next__(self) -> int:
        return (next(self._found).astimezone(UTC) - _EPOCH) // _MS


def _zone_of(name: str) -> tzinfo:
    if name == UTC_NAME:  # needs no file
        return UTC
    try:
        if _ZONE.fullmatch(name) is None:
            raise ValueError
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidSetting(
            f"unknown time zone {shorten(name)}. Use a time zone that is installed on the server, such as "
            f"Europe/Berlin or {UTC_NAME}"
        ) from None


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


KIND: Final = "schedule"
"""Of the records."""
LARGEST_BODY: Final = 64 * 1024
"""Bytes. All schedules are in memory; what is larger belongs elsewhere, and its place into the body."""


class Schedule(NamedTuple):
    """A message, and the timetable by which it is published.

    Attributes:
        name: its name; as a queue's, so that patterns of rights fit.
        cron: five fields; empty where it is every so many seconds.
        zone: the time zone of these.
        every: seconds between two messages; None where there is a cron line.
        unless_waiting: whether nothing is published while the last message is still in the queue.
        start_ms: the instant from which `every` is counted, in milliseconds since 1970.
        changed_ms: when it was made or changed: it does not fire for earlier instants.
        owner: the user who made or changed it last; empty where there are no users.
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
    owner: str = ""

    @property
    def rate(self) -> float:
        """Messages a second at most. A cron line fires once a minute at most."""
        return 1 / (MINUTE_SECONDS if self.every is None else self.every)

    @property
    def bytes(self) -> int:
        """The length of its message, attributes included."""
        body = self.draft.body
        assert isinstance(body, bytes), "the body of a schedule is small"
        return len(body) + len(encode_json(dict(self.draft.attributes)))

    def instants(self) -> Instants:
        """The instants at which it fires.

        Raises:
            InvalidSetting: the cron line or the zone is none.
        """
        return CronLine(self.cron, self.zone) if self.every is None else Every(self.every, self.start_ms)

    def record(self) -> dict[str, Any]:
        """As JSON values, for the store."""
        draft, body = self.draft, self.draft.body
        assert isinstance(body, bytes), "the message body, at most a few KiB"
        message = {
            "base64": base64.b64encode(body).decode(),
            "attributes": dict(draft.attributes),
            "delay": draft.delay,
            "ttl": draft.ttl,
            "priority": draft.priority,
        }
        record = {**self._asdict(), "draft": message}
        if not self.owner:
            del record["owner"]
        return record

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
    """The instants of a schedule that is to be kept; at least one is still to come.

    Raises:
        InvalidSetting: the cron line or the zone is none, or never comes.
        BodyTooLarge: the body is over the limit.
    """
    body = schedule.draft.body
    if isinstance(body, bytes) and len(body) > LARGEST_BODY:
        raise BodyTooLarge(
            f"a schedule's message body must not exceed {LARGEST_BODY} bytes. Publish a reference to the data instead"
        )
    instants = schedule.instants()
    if instants.following(now_ms) is None:
        raise InvalidSetting(f"the cron expression {schedule.cron} does not match any time in the next fifty years")
    return instants
