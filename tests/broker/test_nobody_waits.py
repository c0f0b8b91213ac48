"""Promise P9: whatever becomes of a queue or of who asked, nobody waits for ever, and nobody holds a message."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mq.broker import Broker, BrokerConfig, open_broker
from mq.broker.commit import Future
from mq.broker.mover import LARGEST_ROUND
from mq.errors import NoSuchQueue, StorageSlow
from mq.lifecycle import State
from mq.message import MessageIds
from mq.storage.interface import QUEUE, Operation, Outcome, Sharing, Write
from mq.storage.memory import MemoryStorage
from mq.storage.records import drop_record, put_record
from mq.storage.registry import open_storage
from tests.broker.conftest import Opener, WallClock
from tests.broker.test_broker import take
from tests.storage.disks import MOUNTS, open_disk


class _SlowStorage(MemoryStorage):
    seconds = 0.0

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        await trio.sleep(self.seconds)
        return await super().commit(operations)


@pytest.mark.parametrize("count", [LARGEST_ROUND - 1, LARGEST_ROUND, LARGEST_ROUND + 1, 2 * LARGEST_ROUND])
async def test_a_start_with_any_backlog_ends(wall_clock: WallClock, count: int) -> None:
    """It waited for one round of moves too many when the backlog filled the last one."""
    ids = MessageIds(wall_clock)
    async with open_storage("memory:") as storage:
        await put_record(storage, QUEUE, "q", {"created": 1})
        await storage.commit([Write("q", ids.new(), b"") for _ in range(count)])
        with trio.fail_after(1):
            async with open_broker(storage, clock_ns=wall_clock):
                assert len(await storage.scan(State.READY, "q")) == count


@pytest.mark.parametrize("steps", range(40))
async def test_a_fetch_ends_when_its_queue_is_deleted_while_it_waits_for_a_delivery(
    wall_clock: WallClock, opened: Opener, steps: int
) -> None:
    """And so do the fetches of other queues that the same worker serves."""
    ended = []

    async def fetch(broker: Broker, queue: str) -> None:
        try:
            ended.append(await broker.fetch(queue))
        except NoSuchQueue as error:
            ended.append(error)

    async def delete(broker: Broker) -> None:
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        await broker.delete_queue("q")

    async with opened("memory:", workers=1) as broker:
        await broker.create_queue("q")
        await broker.create_queue("other")
        with trio.fail_after(1):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_publish, broker)
                nursery.start_soon(delete, broker)
                for _ in range(6):
                    nursery.start_soon(fetch, broker, "q")
                    await trio.lowlevel.checkpoint()
                nursery.start_soon(fetch, broker, "other")
    assert len(ended) == 7


async def _publish(broker: Broker) -> None:
    with suppress(NoSuchQueue):  # deleted meanwhile
        await broker.publish("q", b"x")


async def test_a_queue_whose_folder_was_removed_by_hand_holds_nobody_up(wall_clock: WallClock) -> None:
    async with open_disk(MOUNTS["rename"]) as disk, open_broker(disk.storage, BrokerConfig(workers=1)) as broker:
        await broker.create_queue("other")
        disk.inner.rmdir(f"{disk.root}/queues/q")
        await broker.publish("q", b"x")
        with trio.fail_after(1):
            with pytest.raises(NoSuchQueue):
                await broker.fetch("q")
            assert await broker.fetch("other") is None


async def test_a_lease_that_a_slow_disk_gave_too_late_is_given_back(wall_clock: WallClock) -> None:
    storage = _SlowStorage()
    await storage.open()
    async with open_broker(storage, BrokerConfig(visibility_seconds=3600), clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"x")
        await wait_all_tasks_blocked()
        storage.seconds = 3
        with pytest.raises(StorageSlow):
            await broker.fetch("q")
        storage.seconds = 0
        await trio.sleep(10)
        assert await take(broker) == b"x"


@pytest.mark.slow
@pytest.mark.parametrize("steps", range(30))
async def test_a_fetch_that_is_cancelled_in_any_step_keeps_no_message(broker: Broker, steps: int) -> None:
    """Not even in the step in which it is answered."""

    async def hang_up() -> None:
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        scope.cancel()

    await broker.publish("q", b"x")
    await wait_all_tasks_blocked()
    message = None
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hang_up)
            message = await broker.fetch("q")
    await wait_all_tasks_blocked()
    assert (message is None) == (await take(broker) is not None)


async def test_what_a_dead_peer_left_of_a_deleted_queue_is_unlinked_by_another(wall_clock: WallClock) -> None:
    async with open_disk(MOUNTS["rename"], sharing=Sharing.PEERS) as disk:

        def real_clock() -> int:  # as the store's own
            return time.time_ns() + round(trio.current_time() * 1e9)

        dying = disk.another()
        await dying.open()
        async with open_broker(disk.storage, BrokerConfig(peers=1), clock_ns=real_clock):
            await drop_record(dying, QUEUE, "q")
            assert disk.inner.names(f"{disk.root}/remove")
            await trio.sleep(60)
            assert disk.inner.names(f"{disk.root}/remove") == []


async def test_whoever_asked_has_gone_only_when_it_knows_of_that_itself() -> None:
    """A fetch whose time was over was taken for one that had hung up, before it had gone on: nobody answered it, and it
    waited for ever. Found with four brokers on one memcached."""
    reply: Future[int] = Future()
    scope = trio.CancelScope()

    async def ask() -> None:
        with scope:
            await reply.get()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        scope.cancel()
        assert not reply.abandoned
    assert reply.abandoned
