"""When the disk is full: what is there goes on at the reserve's cost, and what is new waits for it to be back."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from mq.errors import StorageFailed, StorageFull, StorageUnusable
from mq.lifecycle import State
from mq.storage.files.mount import Mount, mount_of
from mq.storage.files.reserve import LARGEST, SHARE
from mq.storage.interface import QUEUE, Move, Operation, Result, Sharing, Unlink, Write
from mq.storage.records import drop_record, put_record
from tests.storage.disks import LARGE, LEASE, MOUNTS, Disk, new_id, open_disk

RESERVE = "state/ballast"
BYTES = 1000
SIZED = {name: mount._replace(size=BYTES * SHARE) for name, mount in MOUNTS.items()}

every_mount = pytest.mark.parametrize("mount", SIZED)
no_room = pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT], ids=errno.errorcode.get)


def size(disk: Disk) -> int | None:
    """Of the reserve; None when it is not there."""
    found = disk.tree().get(RESERVE)
    return len(found) if isinstance(found, bytes) else None


async def chunks() -> AsyncGenerator[bytes]:
    yield b"body"


# In place


@pytest.mark.parametrize(
    ("room", "expected"),
    [(0, None), (SHARE - 1, None), (512 << 10, 8 << 10), (LARGEST * SHARE, LARGEST), (1 << 50, LARGEST)],
)
async def test_it_is_a_part_of_a_small_file_system_and_no_more_of_a_large_one(room: int, expected: int | None) -> None:
    async with open_disk(Mount("any", size=room)) as disk:
        assert size(disk) == expected


def test_the_size_of_this_file_system_is_known() -> None:
    assert mount_of("/").size > 0


@every_mount
async def test_in_place_it_costs_no_call(mount: str) -> None:
    async with open_disk(SIZED[mount]) as disk:
        disk.calls.log.clear()
        ready = await disk.bring(State.READY)
        await disk.done(Move(ready, State.DELAYED, LEASE))
        assert not [said for said in disk.calls.said() if RESERVE in said]


async def test_with_others_who_may_give_it_up_it_costs_one_look_a_batch() -> None:
    async with open_disk(SIZED["rename"], sharing=Sharing.PEERS) as disk:
        disk.calls.log.clear()
        await disk.done(Write("q", new_id(), b"body"))
        assert [said for said in disk.calls.said() if RESERVE in said] == [f"kind {RESERVE}"]


async def test_a_part_that_a_crash_left_is_filled_up() -> None:
    disk = Disk(SIZED["rename"])
    await disk.open()
    await disk.storage.aclose()
    disk.overwrite(RESERVE, b"x" * 10)
    await disk.open()
    assert size(disk) == BYTES
    await disk.check_whole()


async def test_it_is_written_however_little_the_system_takes_at_a_time() -> None:
    disk = Disk(SIZED["rename"])
    disk.calls.most_written = 7
    await disk.open()
    assert size(disk) == BYTES
    await disk.check_whole()


async def test_bytes_that_cannot_be_made_smaller() -> None:
    async with open_disk(SIZED["rename"]) as disk:
        assert len(set(disk.bytes_of(RESERVE))) > 200


# Given up


async def _lease(disk: Disk) -> Operation:
    return Move(await disk.bring(State.READY), State.DELAYED, LEASE)


async def _delivery(disk: Disk) -> Operation:
    return Move(await disk.bring(State.NEW), State.READY)


async def _reaping(disk: Disk) -> Operation:
    return Unlink(await disk.bring(State.REMOVED))


async def _reaping_of_a_queue(disk: Disk) -> Operation:
    await disk.bring(State.READY)
    await drop_record(disk.storage, QUEUE, "q")
    return Unlink((await disk.storage.scan(State.REMOVED))[0])


GOES_ON = [
    ("rename", _lease, "rename"),
    ("rename", _delivery, "rename"),
    ("rename", _reaping, "unlink"),
    ("unordered", _reaping_of_a_queue, "unlink"),
    ("link", _lease, "link"),
    ("link", _lease, "unlink"),
]


@no_room
@pytest.mark.parametrize(("mount", "make", "verb"), GOES_ON)
async def test_what_needs_no_room_for_itself_goes_on_at_its_cost(
    mount: str, make: object, verb: str, number: int
) -> None:
    async with open_disk(SIZED[mount]) as disk:
        operation = await make(disk)  # type: ignore[operator]
        disk.calls.log.clear()
        path = "remove/*" if isinstance(operation, Unlink) else "queues/*" if make is _lease else "new/*"
        disk.calls.fail(verb, number, path=path)
        assert await disk.one(operation) is Result.DONE
        assert size(disk) is None
        said = disk.calls.said(verb, "unlink")
        given_up = said.index(f"unlink {RESERVE}")
        assert said[given_up + 1] == said[given_up - 1]  # tried again


@no_room
async def test_a_queue_is_deleted_at_its_cost(number: int) -> None:
    async with open_disk(SIZED["rename"]) as disk:
        disk.calls.fail("rename", number)
        assert await drop_record(disk.storage, QUEUE, "q")
        assert size(disk) is None


async def test_a_move_that_has_no_room_even_so_is_refused_and_changes_nothing() -> None:
    async with open_disk(SIZED["rename"]) as disk:
        ready = await disk.bring(State.READY)
        disk.calls.fail("rename", errno.ENOSPC, times=None)
        for _ in range(2):
            assert await disk.one(Move(ready, State.DELAYED, LEASE)) is Result.FULL
        disk.heal()
        assert await disk.one(Move(ready, State.DELAYED, LEASE)) is Result.DONE


async def test_it_is_not_given_up_for_want_of_anything_but_room() -> None:
    async with open_disk(SIZED["rename"]) as disk:
        ready = await disk.bring(State.READY)
        disk.calls.fail("rename", errno.EACCES)
        assert await disk.one(Move(ready, State.DELAYED, LEASE)) is Result.FULL
        assert size(disk) == BYTES


async def test_a_medium_that_fails_while_it_is_given_up_fails_the_store() -> None:
    async with open_disk(SIZED["rename"]) as disk:
        ready = await disk.bring(State.READY)
        disk.calls.fail("rename", errno.ENOSPC)
        disk.calls.fail("unlink", errno.EIO, path=RESERVE)
        assert await disk.one(Move(ready, State.DELAYED, LEASE)) is Result.FAILED


async def test_where_it_is_gone_already_the_move_is_tried_again_all_the_same() -> None:
    """Another broker has just given it up."""
    async with open_disk(SIZED["rename"], sharing=Sharing.PEERS) as disk:
        ready = await disk.bring(State.READY)
        disk.inner.unlink(f"{disk.root}/{RESERVE}")
        disk.calls.fail("rename", errno.ENOSPC, path="queues/*")
        assert await disk.one(Move(ready, State.DELAYED, LEASE)) is Result.DONE


# Taken back


async def full(disk: Disk) -> None:
    """The reserve was released, and there is no room for it."""
    ready = await disk.bring(State.READY)
    disk.calls.fail("rename", errno.ENOSPC, path="queues/*")
    await disk.done(Move(ready, State.DELAYED, LEASE))
    disk.heal()
    disk.calls.fail("write", errno.ENOSPC, path=RESERVE, times=None)


async def test_what_is_new_waits_until_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "mq.storage")
    async with open_disk(SIZED["rename"]) as disk:
        staged = await disk.storage.stage(chunks())
        await full(disk)
        before = disk.tree()
        for write in (Write("q", new_id(), b"body"), Write("q", new_id(), b"", LARGE), Write("q", new_id(), staged)):
            assert await disk.one(write) is Result.FULL
        disk.calls.log.clear()
        with pytest.raises(StorageFull):
            await disk.storage.stage(chunks())
        assert disk.calls.said("open") == [f"open {RESERVE} new"]
        for kind in (QUEUE, "settings"):
            with pytest.raises(StorageFull):
                await put_record(disk.storage, kind, "new", {})
        assert disk.tree() == {**before, RESERVE: b""}
        disk.heal()
        assert await disk.body(await disk.done(Write("q", new_id(), staged))) == b"body"
        assert size(disk) == BYTES
        assert caplog.text.count("the disk is full") == caplog.text.count("the disk has free space again") == 1


async def test_a_body_that_is_arriving_waits_too() -> None:
    async with open_disk(SIZED["rename"]) as disk:

        async def arriving() -> AsyncGenerator[bytes]:
            yield b"x" * (1 << 20)
            await full(disk)
            yield b"x" * (1 << 20)

        async with aclosing(arriving()) as body:
            with pytest.raises(StorageFull):
                await disk.storage.stage(body)
        assert not disk.files("state/stage")


async def test_a_full_disk_is_tried_once_a_batch() -> None:
    async with open_disk(SIZED["rename"]) as disk:
        await full(disk)
        disk.calls.log.clear()
        outcomes = await disk.commit(*[Write("q", new_id(), b"", attributes) for attributes in ({}, {}, LARGE)])
        assert [outcome.result for outcome in outcomes] == [Result.FULL] * 3
        assert disk.calls.said("write") == [f"write {RESERVE} {BYTES}"]


async def test_what_room_there_is_it_takes_and_keeps() -> None:
    """Else somebody else might, and what goes on would have nothing."""
    async with open_disk(SIZED["rename"]) as disk:
        ready = await disk.bring(State.READY)
        await full(disk)
        disk.calls.most_written = 100
        disk.calls.faults[-1].nth = 4
        assert await disk.one(Write("q", new_id(), b"body")) is Result.FULL
        assert size(disk) == 300
        disk.calls.fail("rename", errno.ENOSPC, path="queues/*")
        assert await disk.one(Move(ready, State.DELAYED, LEASE)) is Result.DONE
        assert size(disk) is None


@pytest.mark.parametrize("kind", [QUEUE, "settings"])
async def test_what_goes_away_does_not_wait_for_it(kind: str) -> None:
    async with open_disk(SIZED["rename"]) as disk:
        await put_record(disk.storage, "settings", "q", {})
        await full(disk)
        assert await drop_record(disk.storage, kind, "q")


async def test_with_peers_one_takes_back_what_another_gave_up() -> None:
    async with open_disk(SIZED["rename"], sharing=Sharing.PEERS) as disk:
        other = disk.another()
        await other.open()
        await full(disk)
        outcome = (await other.commit([Write("q", new_id(), b"body")]))[0]
        assert outcome.result is Result.FULL
        disk.heal()
        outcome = (await other.commit([Write("q", new_id(), b"body")]))[0]
        assert outcome.result is Result.DONE
        assert size(disk) == BYTES
        await other.aclose()


# Starting


async def test_on_a_full_disk_a_root_is_opened_at_its_cost() -> None:
    disk = Disk(SIZED["rename"])
    await disk.open()
    await disk.make_queue()
    kept = await disk.bring(State.READY)
    disk.calls.fail("set_attribute", errno.ENOSPC)
    disk.calls.fail("write", errno.ENOSPC, path=RESERVE, times=None)
    await disk.open()
    assert size(disk) == 0
    assert await disk.one(Move(kept, State.DELAYED, LEASE)) is Result.DONE
    assert await disk.one(Write("q", new_id(), b"body")) is Result.FULL
    await disk.check_whole()


async def test_a_root_for_which_there_is_no_room_even_so_is_refused() -> None:
    disk = Disk(SIZED["rename"])
    await disk.open()
    disk.calls.fail("set_attribute", errno.ENOSPC, times=None)
    with pytest.raises(StorageUnusable, match="free some space first"):
        await disk.open()


async def test_a_root_whose_reserve_cannot_be_released_is_refused() -> None:
    disk = Disk(SIZED["rename"])
    await disk.open()
    disk.calls.fail("set_attribute", errno.ENOSPC)
    disk.calls.fail("unlink", errno.EIO, path=RESERVE)
    with pytest.raises(StorageUnusable, match="Input/output error"):
        await disk.open()


async def test_a_medium_that_fails_under_it_is_refused() -> None:
    disk = Disk(SIZED["rename"])
    disk.calls.fail("write", errno.EIO, path=RESERVE)
    with pytest.raises(StorageUnusable, match="Input/output error"):
        await disk.open()


async def test_one_that_fails_while_it_is_taken_back_fails_the_store() -> None:
    async with open_disk(SIZED["rename"]) as disk:
        await full(disk)
        disk.heal()
        disk.calls.fail("write", errno.EIO, path=RESERVE)
        assert await disk.one(Write("q", new_id(), b"body")) is Result.FAILED
        with pytest.raises(StorageFailed):
            await disk.storage.stage(chunks())


# Beside what takes up all room


async def test_it_is_not_released_while_something_takes_up_all_room() -> None:
    """Which would get its room, too, and not the one that it is for."""
    async with open_disk(SIZED["rename"]) as disk:
        reserve, released = disk.folders.volume.reserve, threading.Event()

        def release() -> None:
            reserve.release()
            released.set()

        with reserve.held() as is_spare:
            assert is_spare
            thread = threading.Thread(target=release)
            thread.start()
            assert not released.wait(0.05)
            assert size(disk) == BYTES
        thread.join()
        assert size(disk) is None
        with reserve.held() as is_spare:
            assert not is_spare


async def test_without_a_reserve_there_is_nothing_to_spare_for() -> None:
    async with open_disk(MOUNTS["rename"]._replace(size=0)) as disk:
        with disk.folders.volume.reserve.held() as is_spare:
            assert is_spare
