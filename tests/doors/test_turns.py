"""Turns: some in each step of the event loop, first come, first served."""

from __future__ import annotations

from collections import Counter

import pytest
import trio
from trio.testing import assert_no_checkpoints, wait_all_tasks_blocked

from mq.doors.connections import HEARD_IN_A_STEP, Turns


class Steps(trio.abc.Instrument):
    """Counts the steps of the event loop."""

    number = 0

    def before_io_wait(self, timeout: float) -> None:
        self.number += 1


@pytest.fixture
async def turns(nursery: trio.Nursery) -> Turns:
    turns = Turns()
    nursery.start_soon(turns.run)
    await wait_all_tasks_blocked()
    return turns


async def test_of_a_crowd_some_are_heard_in_each_step(turns: Turns) -> None:
    steps, heard = Steps(), list[tuple[int, int]]()
    trio.lowlevel.add_instrument(steps)
    count = 5 * HEARD_IN_A_STEP + 1

    async def come(number: int) -> None:
        await turns.wait()
        heard.append((steps.number, number))

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(come, number)
    trio.lowlevel.remove_instrument(steps)
    assert sorted(number for _, number in heard) == list(range(count))
    assert max(Counter(step for step, _ in heard).values()) <= HEARD_IN_A_STEP


async def test_who_comes_alone_waits_for_nobody(turns: Turns) -> None:
    for _ in range(HEARD_IN_A_STEP):
        with assert_no_checkpoints():
            await turns.wait()
    await turns.wait()  # nobody else has come, but that is not known before the next step
    await wait_all_tasks_blocked()
    with assert_no_checkpoints():
        await turns.wait()


async def test_who_goes_while_waiting_keeps_nobody_waiting(turns: Turns) -> None:
    heard = 0

    async def come() -> None:
        nonlocal heard
        await turns.wait()
        heard += 1

    async with trio.open_nursery() as nursery:
        for _ in range(HEARD_IN_A_STEP):
            nursery.start_soon(come)
        await wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            scope.cancel()
            await turns.wait()
        await wait_all_tasks_blocked()
        for _ in range(3 * HEARD_IN_A_STEP):
            nursery.start_soon(come)
    assert heard == 4 * HEARD_IN_A_STEP
