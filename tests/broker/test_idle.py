"""An idle broker sleeps: nothing runs but a timer that is due. Over an hour of virtual time, so it is exact."""

from __future__ import annotations

import itertools
from typing import Final

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mq.broker import Broker, BrokerConfig, open_broker

HOUR_SECONDS: Final = 3600.0
LEASE_SECONDS: Final = 600.0

_fake_roots: Final = itertools.count()


class WakeUps(trio.abc.Instrument):
    """Notes when a task other than its maker runs, and how often the event loop turns."""

    def __init__(self) -> None:
        self._maker = trio.lowlevel.current_task()
        self.steps: list[tuple[float, str]] = []
        self.turns = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is not self._maker:
            self.steps.append((trio.current_time(), task.name))

    def before_io_wait(self, timeout: float) -> None:
        self.turns += 1


@pytest.fixture(params=["memory", "fake"])
def address(request: pytest.FixtureRequest) -> str:
    return "memory:" if request.param == "memory" else f"fake:/idle/{next(_fake_roots)}"


async def wake_ups_of_an_hour() -> WakeUps:
    """Everything that runs while this task alone sleeps for an hour."""
    await wait_all_tasks_blocked()
    seen = WakeUps()
    trio.lowlevel.add_instrument(seen)
    try:
        await trio.sleep(HOUR_SECONDS)
    finally:
        trio.lowlevel.remove_instrument(seen)
    return seen


async def use(broker: Broker) -> None:
    """One message all the way, so that every task has had something to do."""
    await broker.create_queue("q")
    await broker.publish("q", b"body")
    await wait_all_tasks_blocked()
    message = await broker.fetch("q")
    assert message is not None
    await message.body.aclose()
    await broker.remove("q", message.id)
    assert await broker.fetch("q") is None


async def test_idle_broker_makes_no_wake_ups(address: str, autojump_clock: MockClock) -> None:
    turns_without_broker = (await wake_ups_of_an_hour()).turns
    async with open_broker(address, BrokerConfig(visibility_seconds=LEASE_SECONDS)) as broker:
        await use(broker)
        await trio.sleep(LEASE_SECONDS + 1)  # the timer of the lease that was ended early may still run out
        seen = await wake_ups_of_an_hour()
    assert seen.steps == []
    assert seen.turns == turns_without_broker


async def test_ready_messages_need_no_wake_ups(address: str, autojump_clock: MockClock) -> None:
    async with open_broker(address) as broker:
        await broker.create_queue("q")
        for _ in range(10):
            await broker.publish("q", b"body")
        seen = await wake_ups_of_an_hour()
    assert seen.steps == []


async def test_with_one_lease_only_its_timer_wakes(address: str, autojump_clock: MockClock) -> None:
    async with open_broker(address, BrokerConfig(visibility_seconds=LEASE_SECONDS)) as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"body")
        await wait_all_tasks_blocked()
        message = await broker.fetch("q")
        assert message is not None
        ends = trio.current_time() + LEASE_SECONDS
        seen = await wake_ups_of_an_hour()
        again = await broker.fetch("q")
    assert again is not None
    assert again.id == message.id
    assert sorted({time for time, _ in seen.steps}) == [pytest.approx(ends)]
    assert {name.rpartition(".")[2] for _, name in seen.steps} == {"run"}
