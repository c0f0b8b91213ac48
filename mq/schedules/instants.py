"""The instants at which a schedule fires: cron lines in a time zone, or every so many seconds.

An instant is in milliseconds since 1970. Cron lines are read as Debian's cron reads them: what a clock leaves out in
spring comes right after the gap, what it shows twice in autumn comes once, unless the line names every hour or every
so many minutes (cron(8)).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from mq.errors import InvalidSetting
from mq.message import shorten

LONGEST_LINE: Final = 200
"""Characters of a cron line."""
SHORTEST_SECONDS: Final = 1.0
"""Between two instants."""
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
        seconds: between two of them.
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
        line: its five fields.
        zone: the IANA name of its time zone.

    Raises:
        InvalidSetting: the line is none, or the zone is unknown here.
    """

    def __init__(self, line: str, zone: str) -> None:
        self._line = line
        self._zone = _zone_of(zone)
        if len(line) > LONGEST_LINE or len(line.split()) != _FIELDS:
            raise InvalidSetting(
                f"cron must be five fields (minute, hour, day of the month, month, day of the week), "
                f"got {shorten(line)}"
            )
        try:
            CronSim(line, datetime(2000, 1, 1, tzinfo=self._zone))
        except CronSimError as error:
            raise InvalidSetting(f"cron is wrong, {_lower(str(error))}: {shorten(line)}") from None

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
            f"zone must be the name of a time zone that this machine knows, such as Europe/Berlin or {UTC_NAME}, "
            f"got {shorten(name)}"
        ) from None


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
