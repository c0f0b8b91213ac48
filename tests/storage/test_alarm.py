"""What one broker learns of a failing medium, the others on its root must know before they believe a sync."""

from __future__ import annotations

import errno

import pytest

from mq.errors import StorageFailed, StorageUnusable
from mq.lifecycle import State
from mq.storage.interface import QUEUE, Drop, Move, Put, Result, Sharing, Write
from mq.storage.records import put_record
from tests.storage.disks import MOUNTS, Disk, new_id, open_disk

CARELESS_KERNELS = ["unordered", "link"]


async def fail(disk: Disk) -> None:
    """One broker's sync fails, and everybody else's works."""
    disk.calls.fail("fsync", errno.EIO)
    assert await disk.one(Write("q", new_id(), b"lost")) is Result.FAILED
    disk.heal()


@pytest.mark.parametrize("mount", CARELESS_KERNELS)
async def test_nobody_believes_a_sync_after_another_one_failed(mount: str) -> None:
    async with open_disk(MOUNTS[mount], sharing=Sharing.PEERS) as disk:
        peer = disk.another()
        await peer.open()
        ready = await disk.bring(State.READY)
        await fail(disk)
        [outcome] = await peer.commit([Move(ready, State.REMOVED)])
        assert outcome.result is Result.FAILED
        assert "another daemon that serves this root" in outcome.reason
        with pytest.raises(StorageFailed, match="another daemon that serves this root"):
            await put_record(peer, QUEUE, "new", {"created": 1})
        await peer.aclose()


@pytest.mark.parametrize("operation", [Put(QUEUE, "q", {"created": 1}), Drop(QUEUE, "q")])
async def test_a_queue_is_not_made_or_deleted_on_a_failed_medium(operation: Put | Drop) -> None:
    async with open_disk(MOUNTS["link"], sharing=Sharing.PEERS) as disk:
        peer = disk.another()
        await peer.open()
        await fail(disk)
        [outcome] = await peer.commit([operation])
        assert outcome.result is Result.FAILED
        assert "another daemon that serves this root" in outcome.reason
        await peer.aclose()


async def test_a_store_is_not_opened_beside_one_that_has_failed_and_is_once_all_are_gone() -> None:
    async with open_disk(MOUNTS["link"], sharing=Sharing.PEERS) as disk:
        await fail(disk)
        with pytest.raises(StorageUnusable, match="Stop all daemons"):
            await disk.another().open()
        await disk.open()
        assert "state/failed" not in disk.tree()
        await disk.bring(State.READY)


async def test_where_a_journal_keeps_the_order_nobody_has_to_ask() -> None:
    """There a failure of what others share stops the file system for all."""
    async with open_disk(MOUNTS["rename"], sharing=Sharing.PEERS) as disk:
        await fail(disk)
        assert "state/failed" not in disk.tree()
