"""On a disk the next batch begins the moment the one before ends, though the event loop is busy."""

from __future__ import annotations

import threading
from pathlib import Path

import trio
from trio.testing import wait_all_tasks_blocked

from mq.storage.files.calls import LinuxCalls
from mq.storage.files.mount import Mount
from mq.storage.files.posix import FolderStorage
from mq.storage.interface import QUEUE, Result, Write
from mq.storage.options import StorageOptions
from tests.storage.disks import new_id

PATIENCE_SECONDS = 30


class Stopped(LinuxCalls):
    """Its first sync waits until it is let go; then somebody can wait for the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on, self.is_next = threading.Event(), threading.Event()
        self.is_armed = False
        self.synced = 0

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        if self.is_armed:
            self.synced += 1
            if self.synced == 1:
                assert self.go_on.wait(PATIENCE_SECONDS)
            else:
                self.is_next.set()
        super().fsync(fd)


async def test_a_batch_that_was_handed_over_needs_nobody_to_begin(temp_root: Path) -> None:
    calls = Stopped()
    disk = Mount("ext4", persistent=True, atomic_rename=True, ordered=True)
    store = FolderStorage("test:", str(temp_root), calls, StorageOptions(), mount=lambda root: disk, syncfs=False)
    await store.open()
    await store.put_record(QUEUE, "q", {})
    results: list[Result] = []

    async def write() -> None:
        [outcome] = await store.commit([Write("q", new_id(), b"body")])
        results.append(outcome.result)

    calls.is_armed = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await wait_all_tasks_blocked()
        nursery.start_soon(write)
        await wait_all_tasks_blocked()
        calls.go_on.set()
        assert calls.is_next.wait(PATIENCE_SECONDS), "the second batch waited for the event loop"
    assert results == [Result.DONE, Result.DONE]
    await store.aclose()
