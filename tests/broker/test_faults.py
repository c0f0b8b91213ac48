"""A broker on a medium that fails when a test says so. Every call site is in tests/faults/; here are the finds."""

from __future__ import annotations

import errno

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mq.broker import BrokerConfig, open_broker
from mq.errors import StorageFailed, StorageFull, StorageUnusable
from tests.broker.conftest import WallClock
from tests.storage.disks import MOUNTS, open_disk


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
async def test_a_store_that_cannot_be_read_is_refused_in_one_line(wall_clock: WallClock, number: int) -> None:
    """Not as a group of errors, which no program expects."""
    async with open_disk(MOUNTS["rename"]) as disk:
        disk.calls.fail("names", number, path="delay")
        with pytest.raises(StorageUnusable, match="cannot take up what is in the store"):
            async with open_broker(disk.storage):
                pytest.fail("it opened")


@pytest.mark.parametrize(("number", "error"), [(errno.EMFILE, StorageFull), (errno.EIO, StorageFailed)])
async def test_a_fetch_among_peers_that_cannot_look_is_refused_and_the_broker_lives_on(
    wall_clock: WallClock, number: int, error: type[Exception]
) -> None:
    async with (
        open_disk(MOUNTS["rename"], shared=True) as disk,
        open_broker(disk.storage, BrokerConfig(peers=1)) as broker,
    ):
        id = await broker.publish("q", b"x")
        disk.calls.fail("names", number, path="queues/q")
        with pytest.raises(error):
            await broker.fetch("q")
        message = await broker.fetch("q")
        assert message is not None
        assert message.id == id


async def test_what_was_in_a_deleted_queue_is_unlinked_at_once(wall_clock: WallClock) -> None:
    """Not after the next start: a full disk may wait for that room."""
    async with open_disk(MOUNTS["rename"]) as disk, open_broker(disk.storage) as broker:
        for _ in range(3):
            await broker.publish("q", b"x")
        await broker.fetch("q")
        await broker.delete_queue("q")
        await wait_all_tasks_blocked()
        assert not [path for path in disk.tree() if path.startswith(("remove/", "queues/", "new/", "delay/"))]


async def test_a_queue_is_deleted_though_its_rest_cannot_be_listed(wall_clock: WallClock) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        async with open_broker(disk.storage) as broker:
            disk.calls.fail("names", errno.EMFILE, path="remove")
            await broker.delete_queue("q")
            assert not await broker.has_queue("q")
        async with open_broker(await disk.open()):
            await wait_all_tasks_blocked()
        assert disk.inner.names(f"{disk.root}/remove") == []


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
async def test_what_a_deleted_queue_left_is_tried_again_in_a_while_not_at_once(
    wall_clock: WallClock, number: int
) -> None:
    """The broker did nothing else any more."""
    async with open_disk(MOUNTS["rename"]) as disk, open_broker(disk.storage) as broker:
        await broker.publish("q", b"x")
        await broker.fetch("q")
        disk.calls.fail("rename", number, path="delay/*", times=None)
        await broker.delete_queue("q")
        await trio.sleep(10.5)
        tries = [call for call in disk.calls.said("rename") if call.startswith("rename delay/")]
        assert len(tries) == (1 if number == errno.EIO else 11)
        disk.heal()
        await trio.sleep(10)
        assert not disk.folders.failure or number == errno.EIO
        assert bool(disk.files("delay")) is (number == errno.EIO)
