"""How far a start may believe a wall clock that is wrong, by `docs/on-disk.md`: what the clock showed whenever a broker
looked at it or recorded it, checked against true time.

Times are Trio's, in seconds, and go on over restarts. An offset says by how much the wall clock was ahead of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from mq.broker.clock import (
    AHEAD_SECONDS,
    BEHIND_SECONDS,
    DATE_SECONDS,
    PATIENCE_SECONDS,
    STEP_NS,
    Clock,
    ClockRecord,
    Kernel,
)

_TOLERANCE_SECONDS: Final = 1e-6


class Recorded(NamedTuple):
    """A record of the time.

    Attributes:
        at: until then time is counted.
        offsets: those that the wall clock had since it had settled; one, if it had.
        is_settled: whether the broker saw no step in the 15 minutes before.
        believed: by how much steady time was ahead at the most.
    """

    at: float
    offsets: tuple[float, ...]
    is_settled: bool
    believed: float

    def plausible(self, shown: float, longest: float = AHEAD_SECONDS) -> list[float]:
        """The offsets that fit a wall clock which shows that. Without one a start has to doubt it."""
        limit = longest if self.is_settled else BEHIND_SECONDS
        return [each for each in self.offsets if -BEHIND_SECONDS <= shown - (self.at + each) <= limit]


class ClockLedger:
    """The record of one broker's clock over all its restarts.

    Args:
        believe: called when a start may count time that has not passed: by it leases, delays and key windows end.

    Attributes:
        believed: by so many seconds steady time may be ahead.
    """

    def __init__(self, now: Callable[[], float], offset: Callable[[], float], believe: Callable[[], None]) -> None:
        self.believed = 0.0
        self._now = now
        self._offset = offset
        self._believe = believe
        self._records: dict[ClockRecord, Recorded] = {}
        self._first: Recorded | None = None
        self._base: Recorded | None = None  # while the clock is in doubt: the record that it does not fit
        self._is_counted = False  # the kernel has counted the time before this start
        self._begun = self._seen = 0.0
        self._stepped = -math.inf
        self._offsets: tuple[float, ...] = ()

    def began(self, record: ClockRecord | None, boot: str, *, in_doubt: bool) -> None:
        """Note that a start has read a record, on that boot of the machine."""
        self._begun, self._seen = self._now(), self._offset()
        longest = AHEAD_SECONDS
        if record is None:
            base = self._first = self._first or Recorded(self._begun, (self._seen,), is_settled=True, believed=0.0)
            longest += self._begun - base.at  # the youngest message stands in for the record
        else:
            base = self._records[_key(record)]
        self._is_counted = record is not None and record.boot == boot
        if self._is_counted:
            base = base._replace(at=self._begun)
        self._stepped = -math.inf if base.is_settled else self._begun
        self._base = base if in_doubt else None
        plausible = base.plausible(self._begun + self._seen, longest)
        if not in_doubt:
            self._count(base, plausible)
        # The date keeps its distance from the wall clock until that has settled.
        dates = {date + self._seen - each for each in plausible for date in base.offsets}
        self._offsets = (self._seen,) if base.is_settled else tuple(dates | {self._seen})

    def looked(self, *, in_doubt: bool) -> None:
        """Note that a broker has looked at the wall clock."""
        now, offset = self._now(), self._offset()
        if abs(offset - self._seen) > STEP_NS / 1e9:
            self._stepped = now
        self._seen = offset
        if self._base is not None and not in_doubt:
            base = self._base_at(now)
            is_over = now - self._begun >= PATIENCE_SECONDS
            self._count(base, base.offsets if is_over else base.plausible(now + offset))
            self._base, self._offsets = None, (offset,)
        elif now - self._stepped >= DATE_SECONDS:
            self._offsets = (offset,)
        elif offset not in self._offsets:
            self._offsets = (*self._offsets, offset)

    def recorded(self, record: ClockRecord) -> None:
        """Note a record that a later start may read."""
        now = self._now()
        if self._base is None:
            noted = Recorded(now, self._offsets, now - self._stepped >= DATE_SECONDS, self.believed)
        else:
            noted = self._base_at(now)._replace(believed=self.believed)
        self._records[_key(record)] = noted

    def _base_at(self, now: float) -> Recorded:
        """The record that a doubt is about, with the time since the start."""
        assert self._base is not None
        return self._base._replace(at=self._base.at + now - self._begun)

    def _count(self, base: Recorded, offsets: Sequence[float]) -> None:
        """Count time that has not passed: the wall clock may be believed by any of these offsets."""
        ahead = max((self._seen - each for each in offsets), default=0.0)
        if ahead > _TOLERANCE_SECONDS and not self._is_counted:
            self.believed = max(self.believed, base.believed + ahead)
            self._believe()


class NotedClock(Clock):
    """A broker's clock that writes down what it reads and when.

    Args:
        wall_ns: as of :class:`mq.broker.clock.Clock`, and so are the others.
    """

    def __init__(
        self, ledger: ClockLedger, wall_ns: Callable[[], int], elapsed: Callable[[], float], kernel: Kernel
    ) -> None:
        super().__init__(wall_ns, elapsed, kernel)
        self._ledger = ledger

    def begin(self, record: ClockRecord | None, youngest: int = 0, *, is_shared: bool = False) -> None:
        """As :meth:`mq.broker.clock.Clock.begin`."""
        super().begin(record, youngest, is_shared=is_shared)
        boot = self._kernel.boot()
        if not is_shared:
            self._ledger.began(record, boot.name if boot else "", in_doubt=bool(self.doubt))

    def look(self) -> None:
        """As :meth:`mq.broker.clock.Clock.look`."""
        super().look()
        self._ledger.looked(in_doubt=bool(self.doubt))

    def record(self) -> ClockRecord:
        """As :meth:`mq.broker.clock.Clock.record`."""
        record = super().record()
        self._ledger.recorded(record)
        return record


def _key(record: ClockRecord) -> ClockRecord:
    return record._replace(aged=tuple((joined, ms, of_delays) for joined, ms, of_delays in record.aged))
