"""Turns: a long loop ends its step, and long jobs share the event loop with short requests and with each other."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio._core._run import GLOBAL_RUN_CONTEXT
from trio.testing import MockClock, wait_all_tasks_blocked

from mq import turns
from mq.broker.kernel_clock import BootClock

LONG = 10 * turns.MESSAGES_A_TURN

Loop = Callable[[Callable[[], None]], Awaitable[None]]


async def by_in_turns(work: Callable[[], None]) -> None:
    async for _ in turns.in_turns(range(LONG)):
        work()


async def by_slices(work: Callable[[], None]) -> None:
    async for some in turns.slices(range(LONG)):
        for _ in some:
            work()


async def by_spend(work: Callable[[], None]) -> None:
    for _ in range(LONG):
        work()
        await turns.spend(messages=1)


async def by_bytes(work: Callable[[], None]) -> None:
    for _ in range(LONG):
        work()
        await turns.spend(size=turns.BYTES_A_TURN // turns.MESSAGES_A_TURN)


class PerStep(trio.abc.Instrument):
    """Counts calls of :meth:`work` in each step of the event loop."""

    def __init__(self) -> None:
        self.most = self.now = 0

    def work(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.now = 0


@pytest.mark.parametrize("loop", [by_in_turns, by_slices, by_spend, by_bytes])
async def test_loop_works_off_at_most_one_turn_in_a_step(loop: Loop) -> None:
    counted = PerStep()
    trio.lowlevel.add_instrument(counted)
    await loop(counted.work)
    assert turns.MESSAGES_A_TURN - 1 <= counted.most <= turns.MESSAGES_A_TURN


async def test_loops_of_one_step_share_its_turn() -> None:
    counted = PerStep()
    trio.lowlevel.add_instrument(counted)
    for _ in range(100):
        async for some in turns.slices(range(turns.MESSAGES_A_TURN // 3)):
            for _ in some:
                counted.work()
    assert counted.most <= turns.MESSAGES_A_TURN


async def test_short_loop_is_no_checkpoint() -> None:
    await trio.lowlevel.checkpoint()
    with trio.CancelScope() as scope:
        scope.cancel()
        async for _ in turns.in_turns(range(turns.MESSAGES_A_TURN)):
            pass
    assert not scope.cancelled_caught


async def test_cancelled_loop_goes_on_to_its_end() -> None:
    done = 0
    with trio.CancelScope() as scope:
        scope.cancel()
        async for _ in turns.in_turns(range(LONG)):
            done += 1
    assert done == LONG


async def test_long_jobs_run_one_turn_in_each_pass() -> None:
    """A short request meets one turn of all long jobs together in each pass of the event loop."""
    done = 0
    per_pass = []

    async def job() -> None:
        nonlocal done
        async for _ in turns.in_turns(range(LONG)):
            done += 1

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(job)
        await trio.lowlevel.checkpoint()  # the first step of each job comes before it is known to be long
        await trio.lowlevel.checkpoint()
        while done < 5 * LONG:
            before = done
            await trio.lowlevel.checkpoint()
            per_pass.append(done - before)
    assert max(per_pass) <= 2 * turns.MESSAGES_A_TURN  # one step before this task's, and in the next pass one after it
    # Each job is known to be long only after its first step, so five of them may share a pass once.
    assert sum(per_pass) <= (len(per_pass) + 5) * turns.MESSAGES_A_TURN


async def test_many_jobs_that_begin_at_once_share_a_pass() -> None:
    """The first one has a turn, and the others begin with little."""
    done = 0

    async def job() -> None:
        nonlocal done
        async for _ in turns.in_turns(range(LONG)):
            done += 1

    async with trio.open_nursery() as nursery:
        await trio.lowlevel.checkpoint()
        for _ in range(50):
            nursery.start_soon(job)
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        assert done <= 2 * turns.MESSAGES_A_TURN + 50 * turns.FIRST // turns.MESSAGE
    assert done == 50 * LONG


async def test_each_long_job_gets_its_turn() -> None:
    ended = []

    async def job(number: int) -> None:
        async for _ in turns.in_turns(range(LONG)):
            pass
        ended.append((number, trio.lowlevel.current_task()._schedule_points))

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(job, number)
    assert len({points for _, points in ended}) == 1


async def test_passes_are_counted() -> None:
    counted = turns.of_run()
    await trio.lowlevel.checkpoint()
    before = counted.passes
    for _ in range(10):
        await trio.lowlevel.checkpoint()
    assert counted.passes == before + 10


async def make_long_step() -> None:
    await trio.lowlevel.checkpoint()
    until = time.perf_counter() + turns.LONG_STEP_SECONDS * 1.1
    while time.perf_counter() < until:  # by the real clock, as the instrument measures
        pass


async def test_long_step_is_logged_once_with_its_task(caplog: pytest.LogCaptureFixture) -> None:
    counted = turns.of_run()
    caplog.set_level(logging.WARNING, "mq.turns")
    for _ in range(3):
        await make_long_step()
    await trio.lowlevel.checkpoint()
    assert sum(counted.long_passes) >= 3
    [line] = caplog.messages
    assert test_long_step_is_logged_once_with_its_task.__name__ in line


async def test_steps_of_a_busy_loop_are_measured_after_a_long_pass(caplog: pytest.LogCaptureFixture) -> None:
    counted = turns.of_run()
    caplog.set_level(logging.WARNING, "mq.turns")
    counted._measure_steps(False)  # as while the loop is busy
    await make_long_step()
    await make_long_step()
    await trio.lowlevel.checkpoint()
    first, second = caplog.messages
    assert test_steps_of_a_busy_loop_are_measured_after_a_long_pass.__name__ not in first
    assert test_steps_of_a_busy_loop_are_measured_after_a_long_pass.__name__ in second


class ManualClock:
    now = waits_since = 0.0

    def current_time(self) -> float:
        return self.now


class Hooks(turns.LoopTurns):
    """The hook of an event loop that makes its passes by a clock of the test."""

    def __init__(self) -> None:
        super().__init__()
        self._clock: ManualClock = ManualClock()
        self._now = self._clock.current_time

    def make_passes(self, seconds: float, length: float = 0.0, count: int = turns.PASSES_A_LOOK) -> None:
        clock = self._clock
        for _ in range(count):
            clock.now += length
            clock.waits_since = clock.now
            clock.now += seconds - length
            self.after_io_wait(seconds - length)

    @property
    def measures_steps(self) -> bool:
        return self._steps is not None


async def test_steps_are_measured_while_the_loop_is_not_busy() -> None:
    hooks = Hooks()
    often, seldom = 0.5 / turns.BUSY_PASSES_PER_SECOND, 2 / turns.BUSY_PASSES_PER_SECOND
    seen = []
    for seconds in (seldom, often, often, seldom, seldom):
        hooks.make_passes(seconds)
        seen.append(hooks.measures_steps)
    assert seen[1:] == [False, False, True, True]
    hooks.make_passes(seldom, 0.9 * seldom)
    assert not hooks.measures_steps  # many clients share its passes, so these are long
    hooks.make_passes(turns.LONG_STEP_SECONDS * 2, turns.LONG_STEP_SECONDS * 1.1)
    hooks.make_passes(often)
    assert hooks.measures_steps  # to name the task of the next long step


async def test_wait_after_a_pass_is_not_measured() -> None:
    hooks = Hooks()
    hooks.make_passes(60.0, 0.0, count=1)
    hooks.make_passes(60.0, 0.004, count=1)
    hooks.make_passes(0.003, 0.003, count=1)
    assert hooks.long_seconds == pytest.approx(0.007)
    assert dict(hooks.histogram()[0])["0.005"] == 3
    assert dict(hooks.histogram()[0])["0.001"] == 1


async def test_loop_is_measured_by_one_hook_under_a_clock_that_notes_waits() -> None:
    def hooks(clock: trio.abc.Clock) -> list[str]:
        async def look() -> list[str]:
            await trio.lowlevel.checkpoint()
            turns.of_run()._measure_steps(False)  # as while the loop is busy
            return sorted(name for name in GLOBAL_RUN_CONTEXT.runner.instruments if name != "_all")

        return trio.run(look, clock=clock)

    boot, mock = await trio.to_thread.run_sync(hooks, BootClock()), await trio.to_thread.run_sync(hooks, MockClock())
    assert (boot, mock) == (["after_io_wait"], ["after_io_wait", "before_io_wait"])


async def test_threads_get_python_sooner_while_jobs_wait_for_their_turn() -> None:
    usual, intervals = sys.getswitchinterval(), set()
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(by_spend, lambda: intervals.add(sys.getswitchinterval()))
    await wait_all_tasks_blocked()
    assert max(intervals) == usual
    assert min(intervals) == pytest.approx(turns.CROWDED_SWITCH_SECONDS)
    assert sys.getswitchinterval() == usual


async def test_threads_get_python_sooner_while_one_job_alone_lets_others_run() -> None:
    usual, at_work, between = sys.getswitchinterval(), set(), set()

    async def look() -> None:
        while True:
            between.add(sys.getswitchinterval())
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        await by_spend(lambda: at_work.add(sys.getswitchinterval()))
        nursery.cancel_scope.cancel()
    assert at_work == {usual}
    assert min(between) == pytest.approx(turns.CROWDED_SWITCH_SECONDS)
    assert sys.getswitchinterval() == usual


async def test_large_work_is_done_in_a_thread() -> None:
    assert await turns.apart(10, threading.get_ident) == threading.get_ident()
    assert await turns.apart(turns.BYTES_A_TURN + 1, threading.get_ident) != threading.get_ident()
