"""What the kernel knows of time, and a machine that sleeps: its clocks are injected, and its timer is a fake."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
import trio

from mq.broker import Broker, Draft, kernel_clock, open_broker
from mq.broker.clock import LOOK_SECONDS, Clock, ClockRecord
from mq.broker.kernel_clock import BootClock, StepNotice, boot_seconds, heed_steps, is_synchronised, this_boot

START_NS: Final = 1_700_000_000 * 10**9
HOUR: Final = 3600.0


def test_seconds_since_the_boot_go_on() -> None:
    before = boot_seconds()
    assert 0 < before <= boot_seconds()


def test_this_boot_has_one_name() -> None:
    one, other = this_boot(), this_boot()
    assert one is not None
    assert other is not None
    assert one.name == other.name
    assert one.seconds <= other.seconds


def test_the_kernel_tells_whether_it_is_synchronised() -> None:
    assert is_synchronised() in (False, True)


def test_step_notice_waits_while_nothing_steps() -> None:
    async def wait() -> bool:
        notice = StepNotice()
        try:
            with trio.move_on_after(0.1) as patience:
                await notice.wait()
            return patience.cancelled_caught
        finally:
            notice.close()

    assert trio.run(wait)


class Machine:
    """A machine whose monotonic clock stands still while it sleeps, as the kernel's does while a program waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.boot = 1000.0
        self.wall_ahead = 0.0
        monkeypatch.setattr(kernel_clock, "boot_seconds", lambda: self.boot)
        get_events = lambda manager, timeout: self._get_events(manager, timeout)  # noqa: E731 - a method of the manager
        monkeypatch.setattr(trio._core._io_epoll.EpollIOManager, "get_events", get_events)
        self._notices: list[int] = []
        self._sleeps: list[tuple[float, float]] = []
        self.has_notice = True
        monkeypatch.setattr(kernel_clock, "StepNotice", self._notice)

    def wall_ns(self) -> int:
        return START_NS + round((self.boot - 1000.0 + self.wall_ahead) * 1e9)

    def set_clock(self, ahead: float) -> None:
        """Set the wall clock, which the kernel reports."""
        self.wall_ahead = ahead
        for fd in self._notices:
            os.write(fd, b"x")

    def sleep_at(self, seconds: float, lasts: float) -> None:
        """Sleep once the machine was awake for so long."""
        self._sleeps.append((self.boot + seconds, lasts))

    def _get_events(self, manager: Any, timeout: float) -> Any:
        """Wait in the kernel: awake time passes, and a sleep counts for no timeout."""
        if timeout > 0 and (events := manager._epoll.poll(0, 1000)):
            return events
        end = self.boot + timeout
        if self._sleeps and self._sleeps[0][0] <= end:
            at, lasts = self._sleeps.pop(0)
            self.boot = at + lasts
            for fd in self._notices:
                os.write(fd, b"x")
            if self._notices:
                return manager._epoll.poll(0, 1000)
            self.boot += end - at  # only then is the rest of the timeout over
        elif timeout > 0:
            self.boot = end
        return manager._epoll.poll(0, 1000)

    def _notice(self) -> FakeNotice:
        if not self.has_notice:
            raise OSError(errno.ENOSYS, "none here")
        hearing, telling = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._notices.append(telling)
        return FakeNotice(hearing, telling)


class FakeNotice:
    """In place of a timerfd."""

    def __init__(self, hearing: int, telling: int) -> None:
        self._hearing, self._telling = hearing, telling

    async def wait(self) -> None:
        await trio.lowlevel.wait_readable(self._hearing)
        os.read(self._hearing, 100)

    def close(self) -> None:
        os.close(self._hearing)
        os.close(self._telling)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@asynccontextmanager
async def served(machine: Machine) -> AsyncIterator[Broker]:
    """A broker with a queue ``q`` on that machine, whose clock heeds the kernel's notices."""
    clock = Clock(machine.wall_ns, kernel_clock.boot_seconds)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(heed_steps, clock)
        async with open_broker("memory:", clock=clock) as broker:
            await broker.create_queue("q")
            yield broker
        nursery.cancel_scope.cancel()


async def late_by(machine: Machine, draft: Callable[[], Draft], due: float) -> float:
    """Seconds after it was due, or after the machine woke up, at which a message came; it slept for an hour."""
    async with served(machine) as broker:
        began = machine.boot
        await broker.publish_many("q", [draft()])
        machine.sleep_at(30, HOUR)
        [message] = await broker.fetch_many("q", 1, wait=3 * HOUR)
        late = machine.boot - max(began + due, began + 30 + HOUR)
        await message.body.aclose()
    return late


def run(function: Callable[..., Awaitable[float]], *args: Any) -> float:
    found: float = trio.run(function, *args, clock=BootClock())
    return found


@pytest.mark.parametrize("due", [60.0, 600.0])
def test_delay_is_over_as_the_machine_wakes_up(machine: Machine, due: float) -> None:
    assert run(late_by, machine, lambda: Draft(b"x", delay=due), due) <= 1


@pytest.mark.parametrize("due", [60.0, 600.0])
def test_given_instant_has_come_as_the_machine_wakes_up(machine: Machine, due: float) -> None:
    def draft() -> Draft:
        return Draft(b"x", at_ms=machine.wall_ns() // 1_000_000 + round(due * 1000))

    assert run(late_by, machine, draft, due) <= 60


@pytest.mark.parametrize("due", [60.0, 600.0])
def test_without_notice_of_the_kernel_timers_are_looked_at_within_a_minute(machine: Machine, due: float) -> None:
    machine.has_notice = False
    assert run(late_by, machine, lambda: Draft(b"x", delay=due), due) <= LOOK_SECONDS + 1


def test_lease_is_over_as_the_machine_wakes_up(machine: Machine) -> None:
    async def wait() -> float:
        async with served(machine) as broker:
            await broker.publish("q", b"x")
            [first] = await broker.fetch_many("q", 1, visibility=600)
            await first.body.aclose()
            began = machine.boot
            machine.sleep_at(30, HOUR)
            [again] = await broker.fetch_many("q", 1, wait=3 * HOUR)
            late = machine.boot - (began + 30 + HOUR)
            await again.body.aclose()
        return late

    assert run(wait) <= 1


DAY: Final = 86_400.0


async def records_after_a_step(machine: Machine, seconds: float) -> list[ClockRecord]:
    """The records that an idle broker's clock has written so long after the clock was set a day ahead."""
    clock = Clock(machine.wall_ns, kernel_clock.boot_seconds)
    clock.begin(None)
    records: list[ClockRecord] = []

    async def keep(record: ClockRecord) -> None:
        records.append(record)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(heed_steps, clock)
        nursery.start_soon(clock.run, keep)
        await trio.sleep(100)
        machine.set_clock(DAY)
        await trio.sleep(seconds)
        nursery.cancel_scope.cancel()
    return records


def test_idle_broker_records_a_step_at_once_so_that_no_start_takes_it_for_downtime(machine: Machine) -> None:
    [record] = trio.run(records_after_a_step, machine, 1.0, clock=BootClock())
    machine.boot += 5.0
    other = Clock(machine.wall_ns, kernel_clock.boot_seconds)
    other.begin(record)
    assert other.doubt
    assert abs(other.steady_ms() - record.steady_ms) < 10


def test_idle_broker_records_the_new_time_and_that_it_has_settled_and_then_sleeps(machine: Machine) -> None:
    records = trio.run(records_after_a_step, machine, DAY / 2, clock=BootClock())
    ahead = [round((each.wall_ms - each.steady_ms) / 1000) for each in records]
    assert list(zip(ahead, [each.is_settled for each in records], strict=True)) == [
        (0, False),
        (DAY, False),
        (DAY, True),
    ]
    dates = [round((each.date_ms - each.steady_ms) / 1000) for each in records]
    assert dates == [0, 0, DAY]
