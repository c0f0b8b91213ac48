"""What passes and what does not: a handle can be missing for a moment, a sync that failed has failed for good."""

from __future__ import annotations

import errno

import pytest

from mq.errors import StorageFailed, StorageFull
from mq.lifecycle import State
from mq.storage.interface import QUEUE, Entry, Move, Result, Write
from mq.storage.records import drop_record
from tests.storage.disks import LARGE, LEASE, MOUNTS, new_id, open_disk


@pytest.mark.parametrize("mount", ["unordered", "link"])
async def test_the_spare_handle_serves_when_there_is_no_other(mount: str) -> None:
    async with open_disk(MOUNTS[mount], syncfs=False) as disk:
        ready = await disk.bring(State.READY)
        disk.calls.log.clear()
        disk.calls.fail("open", errno.EMFILE, path="queues/q")
        assert await disk.one(Move(ready, State.DELAYED, LEASE)) is Result.DONE
        said = disk.calls.said("open", "close", "fsync")
        again = said.index("close .") + 1
        assert "open queues/q" in said[:again]
        assert said[again:][said[again:].index("open queues/q") + 1] == "fsync queues/q"
        assert "open ." in said[again:]  # it is kept again


async def test_a_spare_handle_that_somebody_else_took_is_taken_back_later() -> None:
    async with open_disk(MOUNTS["unordered"], syncfs=False) as disk:
        first, second = [await disk.bring(State.READY) for _ in range(2)]
        disk.calls.fail("open", errno.EMFILE, path="queues/q")
        disk.calls.fail("open", errno.EMFILE, path=".")
        assert await disk.one(Move(first, State.DELAYED, LEASE)) is Result.DONE
        disk.heal()
        disk.calls.log.clear()
        assert await disk.one(Move(second, State.DELAYED, LEASE)) is Result.DONE
        assert disk.calls.said("open")[0] == "open ."


@pytest.mark.parametrize("nth", range(1, 5))
async def test_a_failed_sync_does_not_pass_whatever_it_says(nth: int) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        disk.calls.fail("fsync", errno.ENOSPC, nth=nth)
        with pytest.raises(StorageFailed):
            await disk.make_queue("other")
        with pytest.raises(StorageFailed):
            await disk.make_queue("another")


@pytest.mark.parametrize("path", ["state/records/queue", "state/records/queue/kq.1"])
async def test_a_queue_whose_record_cannot_go_now_is_deleted_all_the_same(path: str) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        disk.calls.fail("unlink" if path.endswith(".1") else "names", errno.ENOMEM, path=path, times=None)
        assert await drop_record(disk.storage, QUEUE, "q")
        disk.heal()
        assert await disk.storage.records(QUEUE) == {}
        await disk.open()
        assert not disk.files("state/records")


async def test_a_queue_that_cannot_be_deleted_now_is_there_as_before() -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        ready = await disk.bring(State.READY)
        for path in ("remove", "queues"):
            disk.calls.fail("open", errno.EMFILE, path=path)
            with pytest.raises(StorageFull):
                await drop_record(disk.storage, QUEUE, "q")
        assert await disk.body(ready) == b"body"


async def test_closing_does_not_fail() -> None:
    async with open_disk(MOUNTS["rename"], syncfs=False) as disk:
        large = await disk.bring(State.READY, b"x" * 300_000)
        found = (await disk.storage.read([large]))[0]
        assert found is not None
        disk.calls.fail("close", errno.EIO, times=None)
        await found.body.aclose()
        assert await disk.one(Move(large, State.DELAYED, LEASE)) is Result.DONE


async def test_messages_of_a_queue_on_its_way_out_go_with_it() -> None:
    async with open_disk(MOUNTS["rename"], queues=("q", "moved_away")) as disk:
        kept = await disk.bring(State.DELAYED, queue="moved_away")
        for state in (State.NEW, State.READY, State.DELAYED):
            await disk.bring(state)
        await drop_record(disk.storage, QUEUE, "q")
        disk.inner.rename(f"{disk.root}/queues/moved_away", f"{disk.root}/elsewhere")
        await disk.open()
        assert disk.files("new", "delay") == {disk.path(kept)}


@pytest.mark.parametrize("path", ["queues/*", "state/properties/*"])
async def test_a_message_that_cannot_be_opened_for_want_of_handles_is_not_damaged(path: str) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        ready = await disk.bring(State.READY, **LARGE)
        disk.calls.fail("open", errno.EMFILE, path=path, times=None)
        with pytest.raises(StorageFull):
            await disk.storage.read([ready])
        disk.heal()
        assert await disk.attributes(ready) == LARGE


@pytest.mark.parametrize("syncfs", [False, True])
@pytest.mark.parametrize(("path", "times"), [("queues/*", 2), ("state/properties/*", 1)])
async def test_a_message_is_read_with_a_spare_handle_when_there_is_no_other(
    path: str, times: int, syncfs: bool
) -> None:
    """Else a fetch would lease it and hand out nothing."""
    async with open_disk(MOUNTS["rename"], syncfs=syncfs) as disk:
        ready = await disk.bring(State.READY, **LARGE)
        opened = sorted(disk.calls.opened.values())
        disk.calls.fail("open", errno.EMFILE, path=path, times=times)  # a plain look, and a closer one
        disk.calls.log.clear()
        assert await disk.attributes(ready) == LARGE
        assert disk.calls.said("open")[-1] == "open ."  # it is kept again
        assert sorted(disk.calls.opened.values()) == opened


async def test_a_file_system_that_cannot_be_synced_does_not_pass_whatever_it_says() -> None:
    """Where a file gets its name when it is durable, and a message of the same batch is moved on."""
    async with open_disk(MOUNTS["link"]) as disk:
        writes = [Write("q", new_id(), b"body") for _ in range(3)]
        disk.calls.fail("fsync", errno.ENOSPC)
        delivery = Move(Entry("q", writes[0].id, State.NEW), State.READY)
        outcomes = await disk.commit(*writes, delivery)
        assert {outcome.result for outcome in outcomes} == {Result.FAILED}
