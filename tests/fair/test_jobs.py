"""No job stops the others: no step of the event loop grows with the number of messages that a client's job has.

A sample of the jobs runs with each commit, and counts the work of each step. Before a release each job runs with
100,000 messages in memory, and with 20,000 on disk, and each step is bounded by its processor time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import trio
from trio.testing import MockClock

from tests.cases import proof
from tests.fair import jobs, requests
from tests.fair.jobs import Prepare
from tests.fair.steps import Steps, measured
from tests.fair.world import open_world

JOBS: Final = jobs.JOBS | requests.REQUESTS
SAMPLE: Final = (
    "acknowledge_with_multiple",
    "disconnect_a_consumer",
    "purge",
    "claim_and_acknowledge",
    "fetch_what_was_received_too_often",
    *map(proof, ("requeue_with_multiple", "reject_with_multiple", "expire", "delete_a_queue_of_expiring_messages")),
)
REQUESTS: Final = {
    "browse_over_http": 30_000,
    "deliver_to_many_consumers": 25_000,
    "delete_a_queue_of_many_consumers": 10_000,
    "fetch_and_delete_batches": 45_000,
    "list_consumers": 6000,
    "list_exchanges": 4000,
    "load_schedules": 15_000,
    "preview": 30_000,
    "publish_by_headers": 5000,
    "publish_json_array": 25_000,
    "publish_json_lines": 25_000,
    "publish_multipart": 25_000,
    "publish_to_many_queues": 30_000,
    "schedules_that_missed_many_runs": 70_000,
    "sqs_batches": 3000,
}
"""Requests, with the calls that a step of them may make: a third more than it does. One of a batch of 1,000 messages is
as long as one of many batches, so these are not compared with each other."""
QUICK: Final = (
    "browse_over_http",
    "list_exchanges",
    "load_schedules",
    "publish_json_lines",
    "publish_to_many_queues",
    "sqs_batches",
)
"""Requests of each kind that each commit runs: a read, a list, records, a body of many messages, one message for
many queues, a batch."""
SOME: Final = 2000
FEW, MANY = 3000, 12_000
"""Both are more than a step does: so the steps of a job of MANY are as long as those of a job of FEW."""
TURN_CALLS: Final = 6000
"""Calls of a step that says nothing: acknowledging 12,000 messages or 48,000 makes 4,629 in the longest step. A loop
over MANY messages without turns makes at least one for each."""
MOST_SECONDS: Final = 0.020
"""Processor time of a step, at the most, whatever a client asks for."""

ON_DISK: Final = {name: prepare for name, prepare in JOBS.items() if name not in jobs.WAITING | requests.WAITING}

each_job = pytest.mark.parametrize("prepare", JOBS.values(), ids=JOBS)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """A test that measures does not want the lines about long steps of its own preparations."""
    logger = logging.getLogger("mq.turns")
    logger.disabled = True
    yield
    logger.disabled = False


async def run(prepare: Prepare, count: int, store: str = "layered:memory:", *, counts: bool = False) -> Steps:
    async with open_world(store, is_durable="posix" in store) as world:
        job = await prepare(world, count)
        await trio.sleep(0.5)
        with measured(counts=counts) as steps:
            await job()
    return steps


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
async def test_steps_do_not_grow_with_the_job(name: str, autojump_clock: MockClock) -> None:
    few = await run(JOBS[name], FEW, counts=True)
    many = await run(JOBS[name], MANY, counts=True)
    for task, calls in many.calls_of.items():
        # A loop without turns makes four times as many calls. Less than a turn's worth says nothing.
        assert calls <= max(1.3 * few.calls_of[task], TURN_CALLS), task


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "most"), [item if item[0] in QUICK else proof(*item) for item in REQUESTS.items()], ids=REQUESTS
)
async def test_steps_of_requests_are_bounded(name: str, most: int, autojump_clock: MockClock) -> None:
    steps = await run(JOBS[name], SOME, counts=True)
    [(task, calls)] = steps.calls_of.most_common(1)
    assert calls <= most, task


async def test_a_loop_that_forgot_its_turns_is_found(autojump_clock: MockClock) -> None:
    async def prepare(count: int) -> Steps:
        async def forgetful() -> None:
            for number in range(count):
                abs(number)

        with measured(counts=True) as steps:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(forgetful, name="job")
        return steps

    few, many = await prepare(FEW), await prepare(MANY)
    assert many.calls_of["job"] > max(1.3 * few.calls_of["job"], TURN_CALLS)


@pytest.mark.proof
@each_job
async def test_steps_with_100_000_messages_in_memory(prepare: Prepare, autojump_clock: MockClock) -> None:
    steps = await run(prepare, 100_000)
    assert steps.longest <= MOST_SECONDS, steps.task


@pytest.mark.proof
@pytest.mark.parametrize("prepare", ON_DISK.values(), ids=ON_DISK)
async def test_steps_with_20_000_durable_messages(prepare: Prepare, tmp_path: Path) -> None:
    """By the real clock: a virtual one would jump while a thread waits for the disk."""
    steps = await run(prepare, 20_000, f"layered:posix:{tmp_path}")
    assert steps.longest <= MOST_SECONDS, steps.task
