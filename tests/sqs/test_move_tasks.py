"""Message move tasks over a restart. Time is virtual: they move some messages a second."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from mq.broker import Broker, Draft
from mq.errors import StorageFull
from mq.sqs.move_tasks import CANCELLED, COMPLETED, FAILED, KIND, RUNNING, MoveTask, MoveTasks


@asynccontextmanager
async def daemon(broker: Broker) -> AsyncIterator[MoveTasks]:
    async with trio.open_nursery() as nursery:
        tasks = MoveTasks(broker, nursery)
        await tasks.resume()
        yield tasks
        tasks.end()


@pytest.fixture
async def dead(broker: Broker) -> None:
    """Ten messages, to be moved from one queue to another."""
    for queue in ("dead", "q"):
        await broker.create_queue(queue)
    await broker.publish_many("dead", [Draft(b"%d" % number) for number in range(10)])


async def ready(broker: Broker) -> tuple[int, int]:
    return (await broker.status("dead")).ready, (await broker.status("q")).ready


async def test_a_task_goes_on_after_a_restart(autojump_clock: MockClock, broker: Broker, dead: None) -> None:
    async with daemon(broker) as tasks:
        await tasks.start(MoveTask("dead", "q", 2, 10))
        [before] = tasks.of_queue("dead")
        await trio.sleep(1.5)
    assert await ready(broker) == (6, 4)
    async with daemon(broker) as tasks:
        [task] = tasks.of_queue("dead")
        assert (task.handle, task.status, task.started_ms) == (before.handle, RUNNING, before.started_ms)
        await trio.sleep(10)
        assert (task.status, task.moved) == (COMPLETED, 10)
    assert await ready(broker) == (0, 10)
    assert not await broker.declarations.records(KIND)


async def test_a_cancelled_task_stays_so(autojump_clock: MockClock, broker: Broker, dead: None) -> None:
    async with daemon(broker) as tasks:
        await tasks.start(MoveTask("dead", "q", 1, 10))
        [task] = tasks.of_queue("dead")
        await tasks.cancel(task)
        await trio.sleep(0.1)
        assert task.status == CANCELLED
    async with daemon(broker) as tasks:
        assert tasks.of_queue("dead") == []


async def test_a_task_without_its_queue_fails(autojump_clock: MockClock, broker: Broker, dead: None) -> None:
    async with daemon(broker) as tasks:
        await tasks.start(MoveTask("dead", "q", 1, 10))
        await trio.sleep(0.1)
    await broker.delete_queue("dead")
    async with daemon(broker) as tasks:
        [task] = tasks.of_queue("dead")
        await trio.sleep(0.1)
        assert (task.status, "does not exist" in task.reason) == (FAILED, True)
    assert not await broker.declarations.records(KIND)


async def test_a_task_that_cannot_be_kept_does_not_begin(
    autojump_clock: MockClock, broker: Broker, dead: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*given: object) -> None:
        raise StorageFull("no room")

    async with daemon(broker) as tasks:
        with monkeypatch.context() as patch:
            patch.setattr(broker.declarations, "put", full)
            with pytest.raises(StorageFull):
                await tasks.start(MoveTask("dead", "q", 1, 10))
        await trio.sleep(5)
        assert await ready(broker) == (10, 0)
        await tasks.start(MoveTask("dead", "q", None, 10))
        await trio.sleep(1)
    assert await ready(broker) == (0, 10)


async def test_a_task_fails_where_its_queue_is_full(broker: Broker, dead: None) -> None:
    await broker.change_settings("q", {"max_messages": 4})
    async with daemon(broker) as tasks:
        task = MoveTask("dead", "q", None, 10)
        await tasks.start(task)
        while task.status == RUNNING:
            await trio.sleep(1)
        assert (task.status, task.moved) == (FAILED, 4)
        assert task.shown()["FailureReason"].startswith("6 messages could not be moved")
