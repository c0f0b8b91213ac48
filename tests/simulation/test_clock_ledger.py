"""The checker's rule for a start with a wrong wall clock, on histories of which the right answer is known."""

from __future__ import annotations

from typing import Final

import pytest

from mq.broker.clock import AHEAD_SECONDS, DATE_SECONDS, PATIENCE_SECONDS, Boot, Clock, ClockRecord, Kernel
from simulation.clock_ledger import ClockLedger, NotedClock
from tests.cases import for_each

DAY: Final = 86_400.0
START_NS: Final = 1_700_000_000 * 10**9


class Machine:
    """A machine on which a broker's clock is started again and again.

    Attributes:
        elapsed: true time, in seconds.
        ends: how often leases were said to end.
    """

    def __init__(self) -> None:
        self.elapsed = 100.0
        self.ahead = 0.0
        self.boot = "first"
        self.ends = 0
        self.record: ClockRecord | None = None
        self.ledger = ClockLedger(lambda: self.elapsed, lambda: self.ahead, self._end)

    def start(self, seconds: float = 0.0) -> Clock:
        """Start a broker's clock, and let it run for so long."""
        kernel = Kernel(lambda: Boot(self.boot, self.elapsed))
        wall_ns = lambda: START_NS + round((self.elapsed + self.ahead) * 1e9)  # noqa: E731 - as Clock asks for it
        clock = NotedClock(self.ledger, wall_ns, lambda: self.elapsed, kernel)
        clock.begin(self.record)
        self.run(clock, seconds)
        return clock

    def run(self, clock: Clock, seconds: float) -> None:
        """Let time pass, then look and record."""
        self.elapsed += seconds
        clock.look()
        self.record = clock.record()

    def set_and_boot(self, ahead: float) -> Clock:
        """Set the clock, boot the machine, and start."""
        self.ahead, self.boot = ahead, f"boot at {self.elapsed}"
        return self.start()

    def _end(self) -> None:
        self.ends += 1


@pytest.fixture
def machine() -> Machine:
    return Machine()


@for_each("ahead", [1.0, DAY, AHEAD_SECONDS], machine=Machine)
def test_start_may_believe_a_clock_that_is_ahead_by_half_a_week(machine: Machine, ahead: float) -> None:
    machine.start(1000)
    assert not machine.set_and_boot(ahead).doubt
    assert machine.ledger.believed == ahead
    assert machine.ends == 1


@for_each("ahead", [-100 * DAY, -61.0, -60.0, 0.0, AHEAD_SECONDS + 1, 100 * DAY], machine=Machine)
def test_start_may_count_nothing_by_a_clock_in_doubt_or_behind(machine: Machine, ahead: float) -> None:
    machine.start(1000)
    machine.set_and_boot(ahead)
    assert (machine.ledger.believed, machine.ends) == (0.0, 0)


def test_start_on_the_same_boot_may_count_nothing(machine: Machine) -> None:
    machine.start(1000)
    machine.ahead = DAY
    machine.start(1000)
    assert (machine.ledger.believed, machine.ends) == (0.0, 0)


@for_each("seconds", [1.0, DATE_SECONDS - 1], machine=Machine)
def test_start_may_count_less_than_a_minute_by_a_clock_that_was_set_before_the_record(
    machine: Machine, seconds: float
) -> None:
    clock = machine.start(1000)
    machine.ahead = -2 * DAY
    machine.run(clock, 1)
    machine.run(clock, seconds)
    machine.set_and_boot(-DAY)
    assert machine.ledger.believed == 0.0
    machine.set_and_boot(50.0)
    assert machine.ledger.believed == 50.0


def test_start_may_believe_a_clock_once_it_has_settled(machine: Machine) -> None:
    clock = machine.start(1000)
    machine.ahead = -2 * DAY
    machine.run(clock, 1)
    machine.run(clock, 30)
    machine.run(clock, DATE_SECONDS)
    machine.set_and_boot(-DAY)
    assert machine.ledger.believed == DAY


def test_wrong_clock_that_was_set_back_may_be_believed_though_it_had_been_in_doubt(machine: Machine) -> None:
    """Steps that no broker saw are no steps: what counts is the time that was recorded."""
    machine.start(1000)
    clock = machine.set_and_boot(5 * DAY)
    assert clock.doubt
    machine.run(clock, 10)
    assert machine.ledger.believed == 0.0
    machine.ahead = 2 * DAY
    machine.run(clock, 30)
    machine.run(clock, 30)
    assert not clock.doubt
    assert machine.ledger.believed == 2 * DAY


def test_any_clock_may_be_believed_after_a_day_of_doubt(machine: Machine) -> None:
    machine.start(1000)
    clock = machine.set_and_boot(500 * DAY)
    machine.run(clock, PATIENCE_SECONDS)
    assert not clock.doubt
    assert machine.ledger.believed == 500 * DAY


def test_doubt_that_goes_on_over_a_restart_counts_nothing_twice(machine: Machine) -> None:
    machine.start(1000)
    machine.run(machine.set_and_boot(5 * DAY), 100)
    machine.elapsed += 300
    machine.run(machine.set_and_boot(5 * DAY), 100)
    assert machine.ledger.believed == 0.0
    machine.set_and_boot(3 * DAY)
    assert machine.ledger.believed == 3 * DAY
