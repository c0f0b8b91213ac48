"""The broker's clock: three readings, of which a step of the wall clock moves one.

* *Steady time* counts elapsed time. Leases, delays, times to live, retention, windows of keys and `every` schedules are
  compared with it, in memory and in the names on disk. No step of the wall clock changes it, and it goes on over
  restarts: the store keeps which steady time belonged to which wall time (:class:`ClockRecord`).
* *Wall time* is what the wall clock shows, once it has shown it for :data:`SETTLE_SECONDS`. Only instants that a user
  gave (``X-Message-At``, cron lines) are compared with it.
* *Dates* are for ids and for time stamps that people read. They follow a wall clock that was set only after
  :data:`DATE_SECONDS`, so that a wrong answer of a time server does not date messages years ahead.

At a start the wall clock is all that tells how long the daemon was down, but on the same boot of the machine. One that
is behind the last recorded time, or far ahead of it, is *in doubt*: nothing expires and no schedule fires until
:meth:`Clock.look` sees the doubt end or an operator ends it (:meth:`Clock.trust`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import trio

from mq.broker.index import sequence_of
from mq.message import MessageId
from mq.storage.interface import GIVEN_MS, Entry

KIND: Final = "clock"
"""The kind of the record that a store keeps of its clock."""
KEY: Final = "steady"
"""Its key."""
AHEAD_SECONDS: Final = 3.5 * 86_400.0
"""A wall clock that is further ahead of the last recorded time is in doubt. A shorter time is taken for one in which no
daemon ran: a weekend is, and what SQS keeps for four days outlives a clock that is believed."""
BEHIND_SECONDS: Final = 60.0
"""A wall clock that is further behind the last recorded time is in doubt. Less is a correction by a time server."""
EARLIEST_NS: Final = 1_609_459_200 * 10**9
"""2021: no wall clock that shows an earlier time is right. A machine without a battery starts in 1970, or in 2000."""
TRUST_SECONDS: Final = 900.0
"""A doubt ends by itself once the kernel has called its clock synchronised for so long, without a step."""
PATIENCE_SECONDS: Final = 86_400.0
"""A doubt ends by itself, too, once the wall clock has gone on for so long without a step: there may be no time server
here, and the daemon may have been down for long."""
SETTLE_SECONDS: Final = 20.0
"""For so long a wall clock that was set has to go on without another step before instants that users gave follow it."""
DATE_SECONDS: Final = 900.0
"""Likewise before dates follow it."""
LOOK_SECONDS: Final = 20.0
"""How often the wall clock is looked at while instants wait for it, or a step or a doubt is under way. With
:data:`SETTLE_SECONDS` instants are right within a minute, also where the kernel reports no steps."""
WORK_SECONDS: Final = 60.0
"""How often a store records the time while it works."""
RECORD_SECONDS: Final = 3600.0
"""How often it does while it only waits for instants. An idle broker sleeps, and records nothing."""
FIRST_SECONDS: Final = 10.0
"""The time is recorded so many seconds after a start at the earliest. Where the boot of the machine is known it is with
the first batch: the next start on this boot needs no other clock then."""
STEP_NS: Final = 10**9
"""A smaller difference is no step."""
MOST_AGED: Final = 8
"""Doubts of which a store keeps how long no daemon ran before them."""
_SNAP_NS: Final = 60 * 10**9
"""Steady time begins anew with the wall clock, on another boot, where it is ahead by less."""

Aged: TypeAlias = tuple[int, int, bool]
"""Time without a daemon that was not counted, as the clock was in doubt: for messages that joined their queue until an
instant, in UUID ticks; how many milliseconds; whether of their delays, too."""

logger = logging.getLogger("mq.broker")


class ClockRecord(NamedTuple):
    """Which steady time belonged to which wall time, as a store keeps it.

    Attributes:
        steady_ms: steady time, in milliseconds since 1970.
        wall_ms: what the wall clock showed then, in milliseconds since 1970.
        date_ms: the date then, which shows another time for a while after the wall clock was set.
        boot: names the boot of the machine; empty where that is not known.
        boot_ms: milliseconds since that boot, with those in which the machine slept.
        aged: what was not counted while a clock was in doubt, and turned out to be time without a daemon: for messages
            that joined their queue by an instant (UUID ticks), so many milliseconds, of times to live and, where it
            says so, of delays.
        doubted: when the youngest message joined that is older than the doubt in which this was recorded, in UUID
            ticks; 0 where the clock was not in doubt.
        is_settled: whether the wall clock had gone on for :data:`DATE_SECONDS` without a step, as far as was seen.
    """

    steady_ms: int
    wall_ms: int
    date_ms: int
    boot: str = ""
    boot_ms: int = 0
    aged: Sequence[Aged] = ()
    doubted: int = 0
    is_settled: bool = True

    def is_plausible(self, ahead_ns: int) -> bool:
        """Whether a wall clock that is so much ahead of this may be right."""
        limit = AHEAD_SECONDS if self.is_settled else BEHIND_SECONDS
        return -BEHIND_SECONDS * 1e9 <= ahead_ns <= limit * 1e9

    @classmethod
    def stored(cls, value: Mapping[str, Any]) -> ClockRecord | None:
        """The record that :meth:`_asdict` gave; None where it cannot be read."""
        try:
            aged = [(int(joined), int(ms), bool(of_delays)) for joined, ms, of_delays in value["aged"]]
            steady_ms, wall_ms, date_ms = (int(value[name]) for name in ("steady_ms", "wall_ms", "date_ms"))
            boot_ms, doubted = int(value["boot_ms"]), int(value["doubted"])
            is_settled = bool(value["is_settled"])
            return cls(steady_ms, wall_ms, date_ms, str(value["boot"]), boot_ms, aged, doubted, is_settled)
        except (KeyError, TypeError, ValueError):
            return None


class Boot(NamedTuple):
    """A boot of the machine, and how long ago it was.

    Attributes:
        name: unique to the boot.
        seconds: since then, with those in which the machine slept.
    """

    name: str
    seconds: float


class Kernel(NamedTuple):
    """What the kernel knows of time.

    Attributes:
        boot: returns this boot; None where the kernel does not tell.
        is_synchronised: returns whether a time server keeps the kernel's clock right.
    """

    boot: Callable[[], Boot | None] = lambda: None
    is_synchronised: Callable[[], bool] = lambda: False


class ClockStatus(NamedTuple):
    """What an operator sees of a clock.

    Attributes:
        wall_ns: what the wall clock shows, in nanoseconds since 1970.
        steady_ns: steady time.
        doubt: why the wall clock is in doubt; empty where it is not.
        is_synchronised: whether the kernel calls its clock synchronised.
    """

    wall_ns: int
    steady_ns: int
    date_ns: int
    doubt: str
    is_synchronised: bool


class Clock:
    """The clock of one broker.

    Args:
        wall_ns: wall clock, nanoseconds since 1970.
        elapsed: seconds that go on while the wall clock is set; Trio's clock by default. Those of a daemon also go on
            while the machine sleeps.

    Attributes:
        elapsed: as given.
        date_offset_ns: :meth:`date_ns` is this and the time that has elapsed. A hot path adds it up itself.
        doubt: why the wall clock is in doubt, in words; empty where it is not.
        is_anew: whether steady time began with the wall clock at this start, so that deadlines from before may be those
            of a clock that showed something else.
    """

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        elapsed: Callable[[], float] = trio.current_time,
        kernel: Kernel = Kernel(),  # noqa: B008 - frozen
    ) -> None:
        self.doubt = ""
        self.is_anew = False
        self._read_wall_ns = wall_ns
        self.elapsed = elapsed
        self._kernel = kernel
        # Each reading is elapsed time and an offset. Steady time's offset never changes while no doubt ends.
        offset = wall_ns() - round(elapsed() * 1e9)
        self._steady = self.date_offset_ns = self._wall = offset
        self._seen = offset  # the wall clock's offset at the last look
        self._stepped = elapsed()  # when that changed last
        self._synchronised: float | None = None  # since when the kernel has called its clock so
        self._changed = -math.inf  # when that changed last which a record is to say besides the time
        self._has_worked = False  # since the last record
        self._aged: list[Aged] = []
        self._youngest = 0  # when the youngest message of before this start came, in UUID ticks
        self._is_down_known = False  # how long no daemon ran before this start
        self._last = ClockRecord(0, 0, 0)  # the last record; its wall times are without the time that has elapsed since
        self._is_settled = True  # as ClockRecord has it
        self._is_new = False  # the store has neither a record nor messages
        self._waiting: set[str] = set()
        self._told: list[Callable[[], object]] = []
        self._trusted = trio.Event()  # set when a doubt ends
        self._woken = trio.Event()

    # Readings

    def steady_ns(self) -> int:
        """Steady time, in nanoseconds since 1970: of leases, delays, times to live, windows."""
        return self._steady + int(self.elapsed() * 1e9)

    def steady_ms(self) -> int:
        """Steady time, in milliseconds since 1970."""
        return (self._steady + int(self.elapsed() * 1e9)) // 1_000_000

    def date_ns(self) -> int:
        """The date, in nanoseconds since 1970: of ids and time stamps."""
        return self.date_offset_ns + int(self.elapsed() * 1e9)

    def date_seconds(self) -> float:
        """The date, in seconds since 1970."""
        return self.date_ns() / 1e9

    def wall_ns(self) -> int:
        """Wall time, in nanoseconds since 1970: of instants that users gave."""
        return self._wall + int(self.elapsed() * 1e9)

    def wall_ms(self) -> int:
        """Wall time, in milliseconds since 1970."""
        return self.wall_ns() // 1_000_000

    def delay_age_ms(self, entry: Entry) -> int:
        """By how much a message's delay is over sooner than steady time says: time without a daemon that was not
        counted at a start, because the wall clock was in doubt. Leases have no age: they last as they were given."""
        return delay_age_by(self._aged, entry)

    @property
    def aged(self) -> Sequence[Aged]:
        """What ages go by now, as :class:`ClockRecord` has it. It never changes: another one follows it."""
        return self._aged

    def ttl_age_ms(self, entry: Entry) -> int:
        """Likewise for a message's time to live."""
        if not self._aged:
            return 0
        joined = sequence_of(entry)
        return sum(ms for until, ms, _ in self._aged if joined <= until)

    def delayed_ms(self, entry: Entry, seconds: float) -> int:
        """The deadline, as a message's name has it, of a delay that ends in so many seconds."""
        age_ms = self.delay_age_ms(entry._replace(meta=entry.meta.at_rest())) if self._aged else 0
        return self.steady_ms() + age_ms + max(1, round(seconds * 1000))

    def is_expired(self, entry: Entry) -> bool:
        """Whether a message's time to live is over. None is, while the wall clock is in doubt."""
        expires_ms = entry.meta.expires_ms
        return expires_ms is not None and not self.doubt and expires_ms - self.ttl_age_ms(entry) <= self.steady_ms()

    def is_over(self, at_ms: int) -> bool:
        """Whether an instant that a user gives now is over. A step that has not lasted makes none over."""
        return at_ms <= min(self.wall_ns(), self._read_wall_ns()) // 1_000_000

    def seconds_until_due(self, entry: Entry) -> float:
        """Seconds until a message's deadline, which it has; less than 0 where it is over."""
        deadline_ms = entry.meta.deadline_ms or 0
        if deadline_ms < GIVEN_MS:
            return (deadline_ms - self.delay_age_ms(entry)) / 1e3 - self.steady_ns() / 1e9
        return (deadline_ms - GIVEN_MS) / 1e3 - self.wall_ns() / 1e9

    def shown_ms(self, deadline_ms: int) -> int:
        """An instant of steady time, or one that a user gave, in milliseconds since 1970 as the wall clock will show it
        if it is not set until then."""
        if deadline_ms < GIVEN_MS:
            return deadline_ms + (self._wall - self._steady) // 1_000_000
        return deadline_ms - GIVEN_MS

    def status(self) -> ClockStatus:
        """What an operator sees."""
        is_synchronised = self._kernel.is_synchronised()
        return ClockStatus(self._read_wall_ns(), self.steady_ns(), self.date_ns(), self.doubt, is_synchronised)

    # A start

    def begin(self, record: ClockRecord | None, youngest: int = 0, *, is_shared: bool = False) -> None:
        """Go on from the time that a store knows. Call it once, before its deadlines are looked at.

        Args:
            record: what the store has recorded last; None without that.
            youngest: when its youngest message joined its queue, in UUID ticks; 0 without messages. That stands in for
                a record.
            is_shared: whether other processes go by its deadlines, too. They know the wall clock alone, so steady time
                begins with that.
        """
        elapsed, shown_ns = round(self.elapsed() * 1e9), self._read_wall_ns()
        self._youngest = youngest
        self.is_anew = is_shared or record is None
        if record is None:
            last_ns = MessageId.time_ns(youngest) if youngest else max(shown_ns, EARLIEST_NS)
            last_ms = last_ns // 1_000_000
            record = ClockRecord(last_ms, last_ms, last_ms)
            self._is_new = not youngest
        down_ns = _down_ns(record, self._kernel.boot())
        ahead_ns = _ahead_ns(record, shown_ns - (down_ns or 0))
        expected_ns = shown_ns - ahead_ns
        self._aged = list(record.aged)
        # One that had been set shortly before may have been wrong then, or may be now.
        since_ms = (elapsed - (down_ns or 0)) // 1_000_000
        self._last = record._replace(wall_ms=record.wall_ms - since_ms, date_ms=record.date_ms - since_ms)
        if shown_ns < EARLIEST_NS or not record.is_plausible(ahead_ns):
            self._wall = expected_ns - elapsed
            self.date_offset_ns = self.date_offset_ns if is_shared else self._wall
            self._doubt(ahead_ns)
        self._is_settled = record.is_settled
        self._is_down_known = is_shared or down_ns is not None
        if is_shared:
            return
        self._youngest = record.doubted or youngest
        if not (self.doubt or record.is_settled):
            self.date_offset_ns = record.date_ms * 1_000_000 + (down_ns or 0) + max(0, ahead_ns) - elapsed
        steady_ns = record.steady_ms * 1_000_000 + (down_ns or 0)
        if down_ns is None and not self.doubt:  # else the time without a daemon is known, or not counted yet
            if record.doubted:
                # Delays that were given meanwhile cannot be told from others: rather all of them are late.
                self._age(max(0, ahead_ns), is_of_delays=False)
            else:
                steady_ns += max(0, ahead_ns)
        if self.is_anew and not self._is_new:
            steady_ns = min(steady_ns, shown_ns)  # a clock that shows the same may have named the deadlines
        snap_ns = _SNAP_NS if down_ns is None else STEP_NS
        if self.doubt or not 0 <= steady_ns - shown_ns <= snap_ns:
            self._steady = steady_ns - elapsed

    def _doubt(self, ahead_ns: int) -> None:
        behind_or_ahead = "ahead of" if ahead_ns > 0 else "behind"
        self.doubt = (
            f"the wall clock is {_span(abs(ahead_ns) / 1e9)} {behind_or_ahead} the last time recorded in this store"
        )
        logger.warning(
            "%s. No messages expire and no schedules run until the clock has been set, has been synchronized "
            "for %.0f minutes, or has run for %.0f hours without a jump. If the clock is correct, run mq "
            "clock --trust",
            self.doubt,
            TRUST_SECONDS / 60,
            PATIENCE_SECONDS / 3600,
        )

    def trust(self) -> None:
        """End a doubt, as an operator who knows that the wall clock is right."""
        if self.doubt:
            self._end_doubt("an operator confirmed it")

    def _end_doubt(self, why: str, *, is_settled: bool = True) -> None:
        elapsed = self.elapsed()
        shown = self._read_wall_ns() - round(elapsed * 1e9)
        if not self._is_down_known:
            down_ns = shown - self._steady if self.is_anew else _ahead_ns(self._last, shown)
            self._age(down_ns, is_of_delays=True)
        self.doubt, self._changed, self._is_settled = "", elapsed, is_settled
        self._wall = self.date_offset_ns = self._seen = shown
        logger.warning("mq trusts the wall clock again: %s", why)
        self._trusted.set()
        self.wake()
        self._tell()

    def _age(self, down_ns: int, *, is_of_delays: bool) -> None:
        """Count time without a daemon that was not counted, as the clock was in doubt, for messages from before.

        Steady time does not jump: it would end what was given meanwhile.
        """
        if down_ns >= STEP_NS and self._youngest:
            self._aged = [*self._aged, (self._youngest, down_ns // 1_000_000, is_of_delays)][-MOST_AGED:]

    # Looks at the wall clock

    def look(self) -> None:
        """Compare the wall clock with elapsed time, and believe a step that has lasted."""
        now = self.elapsed()
        seen = self._read_wall_ns() - round(now * 1e9)
        if abs(seen - self._seen) > STEP_NS:
            self._stepped, self._is_settled = now, False
        self._seen = seen
        is_synchronised = bool(self.doubt) and self._kernel.is_synchronised()
        self._synchronised = (self._synchronised or now) if is_synchronised else None
        lasted = now - self._stepped
        if self.doubt:
            self._reconsider(now, lasted)
            return
        is_small = abs(seen - self._wall) <= STEP_NS
        if is_small or lasted >= SETTLE_SECONDS:
            step, self._wall = (seen - self._wall) / 1e9, seen
            if not is_small:
                self._changed = now
                logger.warning(
                    "the wall clock was set %s by %s. Delivery times and cron schedules follow the new time; leases "
                    "and delays do not change",
                    "ahead" if step > 0 else "back",
                    _span(abs(step)),
                )
                self._tell()
        if abs(seen - self.date_offset_ns) <= STEP_NS or lasted >= DATE_SECONDS:
            self.date_offset_ns = seen
        if lasted >= DATE_SECONDS and not self._is_settled:
            self._changed, self._is_settled = now, True

    def _reconsider(self, now: float, lasted: float) -> None:
        is_plausible = self._is_new or self._last.is_plausible(_ahead_ns(self._last, self._seen))
        if is_plausible and self._seen + round(now * 1e9) >= EARLIEST_NS:
            if lasted >= SETTLE_SECONDS:
                self._end_doubt("the clock was set", is_settled=False)
        elif self._synchronised is not None and min(lasted, now - self._synchronised) >= TRUST_SECONDS:
            self._end_doubt(f"the kernel has reported it as synchronized for {TRUST_SECONDS / 60:.0f} minutes")
        elif lasted >= PATIENCE_SECONDS:
            self._end_doubt(f"the clock has run for {PATIENCE_SECONDS / 3600:.0f} hours without a jump")

    def record(self) -> ClockRecord:
        """What a store is to keep of the clock now."""
        boot = self._kernel.boot() or Boot("", 0.0)
        if self.doubt:  # the next start doubts the same clock: the time in which no daemon ran is still to be counted
            elapsed_ms = int(self.elapsed() * 1000)
            wall_ms, date_ms = self._last.wall_ms + elapsed_ms, self._last.date_ms + elapsed_ms
            doubted = 0 if self._is_down_known else self._youngest
            is_settled = self._last.is_settled
            return ClockRecord(self.steady_ms(), wall_ms, date_ms, "", 0, self._aged, doubted, is_settled)
        boot_ms = round(boot.seconds * 1000)
        date_ms = self.date_ns() // 1_000_000
        aged, is_settled = self._aged, self._is_settled
        return ClockRecord(self.steady_ms(), self.wall_ms(), date_ms, boot.name, boot_ms, aged, is_settled=is_settled)

    # Those who wait for it

    @property
    def is_settled(self) -> bool:
        """Whether the wall clock has gone on for :data:`DATE_SECONDS` without a step, as far as was seen."""
        return self._is_settled

    def set_waiting(self, name: str, *, is_waiting: bool) -> None:
        """Look at the wall clock often while something of that name waits for an instant that a user gave."""
        if is_waiting and name not in self._waiting:
            self._waiting.add(name)
            self.wake()
        elif not is_waiting:
            self._waiting.discard(name)

    def on_change(self, told: Callable[[], object]) -> None:
        """Call `told` whenever wall time steps or a doubt ends."""
        self._told.append(told)

    def wake(self) -> None:
        """Look at the wall clock soon."""
        self._woken.set()

    def note_step(self) -> None:
        """Look at the wall clock, and record a step: the kernel reports that it was set, or that the machine has slept.

        A power cut may come before the step is believed. The next start must not take it for time without a daemon.
        """
        self.look()
        if not self._is_settled:
            self._changed = self.elapsed()
        self.wake()

    async def trusted(self) -> None:
        """Wait while the wall clock is in doubt."""
        while self.doubt:
            await self._trusted.wait()

    def note_work(self) -> None:
        """Note that a batch was committed: the time is to be recorded soon. Costs an idle broker no wake-up."""
        self._has_worked = True
        self._woken.set()

    async def run(self, keep: Callable[[ClockRecord], Awaitable[None]]) -> None:
        """Look at the wall clock for ever, and record the time.

        Args:
            keep: keeps a record in the store; a call that fails is repeated later.
        """
        first = FIRST_SECONDS if self._kernel.boot() is None else 0.0
        recorded = self.elapsed() + first - WORK_SECONDS
        while True:
            self._woken = trio.Event()
            with trio.move_on_after(self._pause()):
                await self._woken.wait()
            self.look()
            now = self.elapsed()
            if now - recorded >= (WORK_SECONDS if self._has_worked else RECORD_SECONDS) or self._changed > recorded:
                recorded, self._has_worked = now, False
                await keep(self.record())

    def _pause(self) -> float:
        return LOOK_SECONDS if self._waiting or self.doubt else math.inf

    def _tell(self) -> None:
        for told in self._told:
            told()


def delay_age_by(aged: Sequence[Aged], entry: Entry) -> int:
    """As :meth:`Clock.delay_age_ms`, by what a clock went by at some time."""
    if not aged or entry.meta.receipt is not None:
        return 0  # nearly always
    joined = sequence_of(entry)
    return sum(ms for until, ms, is_of_delays in aged if is_of_delays and joined <= until)


def _down_ns(record: ClockRecord, boot: Boot | None) -> int | None:
    """How long ago a record was written, where the machine has not been booted since; else None."""
    if boot is None or not record.boot or record.boot != boot.name:
        return None
    down_ns = round(boot.seconds * 1e9) - record.boot_ms * 1_000_000
    return down_ns if down_ns >= -STEP_NS else None


def _ahead_ns(record: ClockRecord, shown_ns: int) -> int:
    """By how much a wall clock is ahead of a record; less than 0 where it is behind.

    A clock that had been set shortly before is compared with both of its times: the one that needs less time without a
    daemon is taken, for the other may have been wrong.
    """
    found = [shown_ns - ms * 1_000_000 for ms in (record.wall_ms, record.date_ms)]
    return min((each for each in found if each >= -BEHIND_SECONDS * 1e9), default=max(found))


def _span(seconds: float) -> str:
    """A span of time in words."""
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} seconds"
