"""A start with very many messages in the store takes many steps: a daemon that stands by answers meanwhile."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from mq.broker import Draft, open_broker
from mq.storage.memory import MemoryStorage
from tests.fair.steps import Steps, measured
from tests.fair.test_jobs import MOST_SECONDS
from tests.fair.world import BODY

QUEUES = {"ready": {}, "expiring": {"ttl": 600}, "delayed": {"delay": 60}, "far off": {"delay": 80_000}, "leased": {}}
FEW, MANY = 500, 20_000
_AT_ONCE = 500


async def start(count: int, *, counts: bool = False) -> Steps:
    """The steps of a start, with so many messages in each of some queues."""
    store = MemoryStorage()
    await store.open()
    async with open_broker(store) as broker:
        for number, more in enumerate(QUEUES.values()):
            await broker.create_queue(f"q{number}")
            for _ in range(0, count, _AT_ONCE):
                await broker.publish_many(f"q{number}", [Draft(BODY, **more)] * _AT_ONCE)
        for _ in range(0, count, _AT_ONCE):
            await broker.fetch_many(f"q{len(QUEUES) - 1}", _AT_ONCE, visibility=600)

    async def job() -> None:
        async with open_broker(store):
            await trio.sleep(1)

    with measured(counts=counts) as steps:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(job, name="job")
    await store.aclose()
    return steps


@pytest.mark.slow
async def test_steps_of_a_start_do_not_grow_with_the_store(autojump_clock: MockClock) -> None:
    steps = await start(FEW, counts=True)
    assert steps.calls_of["job"] <= 6000


@pytest.mark.proof
async def test_steps_of_a_start_with_100_000_messages(autojump_clock: MockClock) -> None:
    steps = await start(MANY)
    assert steps.longest <= MOST_SECONDS, steps.task
