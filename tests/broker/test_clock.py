"""The broker's clock by itself: what a step, a start and the kernel's word do to its three readings."""

from __future__ import annotations

from typing import Final

import pytest

from mq.broker.clock import (
    AHEAD_SECONDS,
    DATE_SECONDS,
    LOOK_SECONDS,
    PATIENCE_SECONDS,
    SETTLE_SECONDS,
    TRUST_SECONDS,
    Boot,
    Clock,
    ClockRecord,
    Kernel,
)
from mq.lifecycle import State
from mq.message import MessageIds
from mq.storage.interface import GIVEN_MS, Entry, Meta

NOW: Final = 1_700_000_000.0
DAY: Final = 86_400.0
YEAR: Final = 365 * DAY


class Machine:
    """A machine whose clocks a test sets."""

    def __init__(self) -> None:
        self.elapsed = 500.0
        self.ahead = 0.0
        self.boot: Boot | None = None
        self.is_synchronised = False

    def clock(self) -> Clock:
        kernel = Kernel(lambda: self.boot, lambda: self.is_synchronised)
        return Clock(lambda: round(self.wall * 1e9), lambda: self.elapsed, kernel)

    @property
    def wall(self) -> float:
        return NOW + self.elapsed - 500.0 + self.ahead

    def go(self, clock: Clock, seconds: float) -> None:
        """Let time pass, with looks at the wall clock."""
        end = self.elapsed + seconds
        while self.elapsed < end:
            self.elapsed = min(end, self.elapsed + LOOK_SECONDS)
            clock.look()

    def reboot(self) -> None:
        """Let another boot of the machine begin."""
        self.boot = Boot(f"{self.elapsed}", 0.0)


@pytest.fixture
def machine() -> Machine:
    return Machine()


def readings(clock: Clock) -> tuple[float, float, float]:
    return tuple(round(each / 1e9 - NOW, 3) for each in (clock.steady_ns(), clock.wall_ns(), clock.date_ns()))  # type: ignore[return-value]


@pytest.mark.parametrize("step", [-30 * YEAR, -10.0, 10.0, 2 * YEAR])
def test_a_step_changes_wall_time_then_dates_and_never_steady_time(machine: Machine, step: float) -> None:
    clock = machine.clock()
    clock.begin(None)
    machine.go(clock, 100)
    machine.ahead = step
    machine.go(clock, SETTLE_SECONDS)
    assert readings(clock) == (120, 120, 120)
    machine.go(clock, 2 * LOOK_SECONDS)
    assert readings(clock) == (160, 160 + step, 160)
    machine.go(clock, DATE_SECONDS)
    assert readings(clock) == (1060, 1060 + step, 1060 + step)


def test_a_clock_that_is_wrong_for_some_seconds_changes_no_reading(machine: Machine) -> None:
    clock = machine.clock()
    clock.begin(None)
    machine.ahead = 2 * YEAR
    machine.go(clock, SETTLE_SECONDS - 1)
    machine.ahead = 0.0
    machine.go(clock, 100)
    assert readings(clock) == (119, 119, 119)


def test_a_small_difference_is_followed_at_once(machine: Machine) -> None:
    clock = machine.clock()
    machine.ahead = 0.5
    clock.look()
    assert readings(clock) == (0, 0.5, 0.5)


# Starts


def record_of(steady: float = 0.0, wall: float = 0.0, date: float | None = None, **more: object) -> ClockRecord:
    times = (steady, wall, wall if date is None else date)
    return ClockRecord(*(round((NOW + each) * 1000) for each in times), **more)  # type: ignore[arg-type]


def test_a_start_counts_the_time_without_a_daemon_by_the_wall_clock(machine: Machine) -> None:
    machine.elapsed += 1000
    clock = machine.clock()
    clock.begin(record_of(steady=-5000, wall=0))
    assert readings(clock)[0] == -4000
    assert not clock.doubt


@pytest.mark.parametrize("ahead", [-2 * YEAR, -61.0, AHEAD_SECONDS + 1, 30 * YEAR])
def test_a_start_with_a_clock_that_does_not_fit_is_in_doubt(machine: Machine, ahead: float) -> None:
    clock = machine.clock()
    clock.begin(record_of(steady=-ahead, wall=-ahead))
    assert clock.doubt
    assert readings(clock) == (-ahead, -ahead, -ahead)
    entry = Entry("q", MessageIds().new(), State.READY, Meta(expires_ms=1))
    assert not clock.is_expired(entry)
    clock.trust()
    assert not clock.doubt
    assert clock.is_expired(entry)


@pytest.mark.parametrize("ahead", [-60.0, 0.0, AHEAD_SECONDS])
def test_a_start_with_a_clock_that_fits_is_not_in_doubt(machine: Machine, ahead: float) -> None:
    clock = machine.clock()
    clock.begin(record_of(steady=-ahead, wall=-ahead))
    assert not clock.doubt


def test_a_clock_from_before_2021_is_in_doubt_also_without_messages(machine: Machine) -> None:
    machine.ahead = -53 * YEAR
    clock = machine.clock()
    clock.begin(None)
    assert clock.doubt
    machine.ahead = 0.0
    machine.go(clock, 100)
    assert not clock.doubt
    assert readings(clock)[1:] == (100, 100)


@pytest.mark.parametrize("ahead", [0.0, 5 * DAY, -2 * YEAR, 30 * YEAR])
def test_on_one_boot_steady_time_needs_no_wall_clock(machine: Machine, ahead: float) -> None:
    machine.boot = Boot("a", 5000.0)
    machine.ahead = ahead
    clock = machine.clock()
    clock.begin(record_of(steady=-77_000, wall=-1000, boot="a", boot_ms=4_000_000))
    assert readings(clock)[0] == -76_000
    assert bool(clock.doubt) == (ahead != 0)
    clock.trust()
    assert readings(clock)[0] == -76_000


def test_steady_time_goes_on_over_a_clock_that_was_wrong_from_the_first_start(machine: Machine) -> None:
    """It started years behind, a time server set it, and a restart goes on: nothing is over early."""
    machine.ahead = -2 * YEAR
    clock = machine.clock()
    clock.begin(None)
    machine.ahead = 0.0
    machine.go(clock, 2000)
    record = clock.record()
    machine.elapsed += 100
    other = machine.clock()
    other.begin(record)
    assert not other.doubt
    assert readings(other) == (2100 - 2 * YEAR, 2100, 2100)


@pytest.mark.parametrize("steady", [0.0, 1.0, 59.0])
def test_steady_time_begins_anew_with_the_wall_clock_where_they_differ_little(machine: Machine, steady: float) -> None:
    clock = machine.clock()
    clock.begin(record_of(steady=steady, wall=0))
    assert readings(clock)[0] == 0


@pytest.mark.parametrize("wrong", [-3 * DAY, 3 * DAY, 2 * YEAR])
@pytest.mark.parametrize("lasts", [1.0, 60.0, 600.0])
def test_a_start_believes_no_clock_that_was_wrong_when_it_was_recorded(
    machine: Machine, wrong: float, lasts: float
) -> None:
    """Wherever the power was cut, and whether the clock is right or wrong then."""
    for ahead in (0.0, wrong):
        machine.ahead = 0.0
        clock = machine.clock()
        clock.begin(None)
        machine.go(clock, 100)
        machine.ahead = wrong
        machine.go(clock, lasts)
        before, record = clock.steady_ns(), clock.record()
        machine.elapsed += 5
        machine.ahead = ahead
        other = machine.clock()
        other.begin(record)
        assert 0 <= other.steady_ns() - before <= 5.1e9


def test_a_start_believes_no_clock_that_had_just_ended_a_doubt(machine: Machine) -> None:
    """A doubt ends once the clock is set, and that may have been wrong, too."""
    clock = doubted(machine, 2 * YEAR)
    machine.ahead = 0.0
    machine.go(clock, 60)
    assert not clock.doubt
    before, record = clock.steady_ns(), clock.record()
    machine.ahead = 2 * DAY
    other = machine.clock()
    other.begin(record)
    assert other.doubt
    assert other.steady_ns() == before
    machine.ahead = 0.0
    machine.go(other, 1000)
    assert other.record().is_settled


@pytest.mark.parametrize("wall", [-2 * DAY, 2 * DAY])
def test_a_doubt_keeps_both_times_of_a_clock_that_had_just_been_set(machine: Machine, wall: float) -> None:
    machine.ahead = 2 * YEAR
    clock = machine.clock()
    clock.begin(record_of(steady=0, wall=wall)._replace(date_ms=_ms(0), is_settled=False))
    assert clock.doubt
    machine.elapsed += 100
    record = clock.record()
    assert (record.wall_ms, record.date_ms, record.is_settled) == (_ms(wall + 100), _ms(100), False)


@pytest.mark.parametrize("ahead", [-2 * YEAR, 2 * YEAR])
def test_without_a_record_steady_time_is_the_earlier_of_the_youngest_message_and_the_clock(
    machine: Machine, ahead: float
) -> None:
    machine.ahead = ahead
    clock = machine.clock()
    clock.begin(None, MessageIds(lambda: round(NOW * 1e9)).new().time)
    assert clock.doubt
    assert readings(clock)[0] == min(ahead, 0)
    entry = Entry("q", MessageIds(lambda: round((NOW - 100) * 1e9)).new(), State.DELAYED, Meta(_ms(DAY)))
    machine.ahead = 0.0
    machine.go(clock, 100)
    assert not clock.doubt
    assert round(clock.seconds_until_due(entry)) == DAY - 100


@pytest.mark.parametrize("steady", [-59.0, -0.5, 61.0])
def test_steady_time_goes_on_where_that_would_end_something_early(machine: Machine, steady: float) -> None:
    clock = machine.clock()
    clock.begin(record_of(steady=steady, wall=0))
    assert readings(clock)[0] == steady


def test_a_lease_has_no_age(machine: Machine) -> None:
    clock = doubted(machine)
    entry = Entry("q", MessageIds(lambda: round((NOW - 100) * 1e9)).new(), State.DELAYED, Meta(_ms(30), 1, "0" * 16))
    clock.trust()
    assert round(clock.seconds_until_due(entry)) == 30


# The end of a doubt


def doubted(machine: Machine, ahead: float = 10 * DAY) -> Clock:
    machine.ahead = ahead
    clock = machine.clock()
    clock.begin(record_of(), MessageIds(lambda: round(NOW * 1e9)).new().time)
    assert clock.doubt
    return clock


def test_a_doubt_ends_once_the_clock_is_set(machine: Machine) -> None:
    clock = doubted(machine)
    machine.go(clock, 1000)
    machine.ahead = 0.0
    machine.go(clock, 2 * LOOK_SECONDS)
    assert not clock.doubt


def test_a_doubt_ends_once_the_kernel_is_synchronised_for_long_without_a_step(machine: Machine) -> None:
    clock = doubted(machine)
    machine.go(clock, 3600)
    machine.is_synchronised = True
    machine.go(clock, TRUST_SECONDS - LOOK_SECONDS)
    assert clock.doubt
    machine.ahead += 5
    machine.go(clock, TRUST_SECONDS - LOOK_SECONDS)
    assert clock.doubt, "it has stepped"
    machine.go(clock, 2 * LOOK_SECONDS)
    assert not clock.doubt


def test_a_doubt_ends_after_a_day_without_a_step(machine: Machine) -> None:
    clock = doubted(machine)
    machine.go(clock, PATIENCE_SECONDS - LOOK_SECONDS)
    assert clock.doubt
    machine.go(clock, 2 * LOOK_SECONDS)
    assert not clock.doubt


def test_after_a_doubt_messages_from_before_it_are_older_and_others_are_not(machine: Machine) -> None:
    clock = doubted(machine)
    old = Entry(
        "q", MessageIds(lambda: round((NOW - 100) * 1e9)).new(), State.DELAYED, Meta(_ms(DAY), expires_ms=_ms(DAY))
    )
    new = old._replace(id=MessageIds(lambda: round((NOW + 100) * 1e9)).new())
    given = old._replace(meta=Meta(GIVEN_MS + _ms(11 * DAY)))
    assert [round(clock.seconds_until_due(entry)) for entry in (old, new, given)] == [DAY, DAY, 11 * DAY]
    clock.trust()
    assert [round(clock.seconds_until_due(entry)) for entry in (old, new, given)] == [-9 * DAY, DAY, DAY]
    assert (clock.is_expired(old), clock.is_expired(new)) == (True, False)
    assert clock.delayed_ms(old, 30) - clock.delayed_ms(new, 30) == round(10 * DAY * 1000)


def test_a_doubt_goes_on_over_a_restart_and_counts_the_time_before_it_once(machine: Machine) -> None:
    clock = doubted(machine)
    machine.go(clock, 600)
    other = machine.clock()
    other.begin(clock.record(), MessageIds(lambda: round((NOW + 500) * 1e9)).new().time)
    assert other.doubt
    assert readings(other)[0] == 600
    old = Entry("q", MessageIds(lambda: round((NOW - 100) * 1e9)).new(), State.DELAYED, Meta(_ms(DAY)))
    meanwhile = old._replace(id=MessageIds(lambda: round((NOW + 300) * 1e9)).new())
    other.trust()
    assert round(other.seconds_until_due(old)) == round(-9 * DAY - 600)
    assert round(other.seconds_until_due(meanwhile)) == DAY - 600


def test_a_record_is_read_as_it_was_written_and_garbage_is_none() -> None:
    record = ClockRecord(1, 2, 3, "boot", 4, [(5, 6, True)], 7)
    assert ClockRecord.stored(record._asdict()) == record
    for garbage in ({}, {**record._asdict(), "wall_ms": None}, {**record._asdict(), "aged": [1]}):
        assert ClockRecord.stored(garbage) is None


def _ms(seconds: float) -> int:
    return round((NOW + seconds) * 1000)
