"""The POSIX store as its callers see it: bodies, queues, and what lies in its folders that is not mq's."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from mq.errors import CorruptMessage, StorageError, StorageFailed, StorageFull
from mq.lifecycle import State
from mq.message import MessageId, checksum
from mq.storage.files.calls import FileKind, LinuxCalls
from mq.storage.files.folders import READ_AT_ONCE
from mq.storage.files.layout import ATTRIBUTES, SUM, Sum
from mq.storage.files.mount import Mount
from mq.storage.files.staging import FileBody
from mq.storage.interface import QUEUE, Entry, Meta, Move, Result, Stored, Unlink, Write
from mq.storage.records import drop_record, put_record
from simulation.calls import StepByStep
from tests.storage.disks import LARGE, LEASE, MOUNTS, Disk, new_id, open_disk

BIG: Final = b"".join(number.to_bytes(8, "big") for number in range(READ_AT_ONCE // 4))
"""Twice what is read at once."""


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def stored(disk: Disk, entry: Entry) -> Stored:
    """A message that must be there; its body is open."""
    found = (await disk.storage.read([entry]))[0]
    assert found is not None
    return found


async def collect(found: Stored, got: list[bytes]) -> None:
    """Read a body chunk by chunk."""
    async for chunk in found.body:
        got.append(chunk)  # noqa: PERF401 - what came before an error counts


# Large bodies


@pytest.fixture
async def disk() -> AsyncIterator[Disk]:
    async with open_disk(MOUNTS["rename"]) as disk:
        yield disk


@pytest.mark.parametrize("size", [READ_AT_ONCE + more for more in (-1, 0, 1, READ_AT_ONCE, 2 * READ_AT_ONCE + 7)])
async def test_a_body_is_streamed_from_a_size_on(disk: Disk, size: int) -> None:
    body = (BIG * 2)[:size]
    entry = await disk.bring(State.NEW, body)
    held = dict(disk.calls.opened)
    found = await stored(disk, entry)
    assert isinstance(found.body, FileBody) == (size > READ_AT_ONCE)
    assert found.body.size == found.properties.size == size
    assert b"".join([chunk async for chunk in found.body]) == body
    await found.body.aclose()
    found = await stored(disk, entry)
    assert await found.body.read() == body
    await found.body.aclose()
    assert disk.calls.opened == held


async def test_a_streamed_body_comes_in_chunks(disk: Disk) -> None:
    found = await stored(disk, await disk.bring(State.NEW, BIG))
    assert [len(chunk) async for chunk in found.body] == [READ_AT_ONCE, READ_AT_ONCE]
    await found.body.aclose()


async def test_a_streamed_body_stays_readable_wherever_its_message_goes(disk: Disk) -> None:
    entry = await disk.bring(State.READY, BIG)
    found = await stored(disk, entry)
    removed = await disk.done(Move(entry, State.REMOVED))
    assert await disk.one(Unlink(removed)) is Result.DONE
    assert await found.body.read() == BIG
    await found.body.aclose()


DAMAGES: Final = {
    "first byte": b"x" + BIG[1:],
    "last byte": BIG[:-1] + b"x",
    "two bytes swapped": BIG[:14] + BIG[15:16] + BIG[14:15] + BIG[16:],
}


@pytest.mark.parametrize("content", DAMAGES.values(), ids=DAMAGES)
async def test_a_damaged_large_body_raises_before_its_last_chunk(disk: Disk, content: bytes) -> None:
    entry = await disk.bring(State.READY, BIG)
    disk.overwrite(disk.path(entry), content)
    found = await stored(disk, entry)
    got: list[bytes] = []
    with pytest.raises(CorruptMessage, match="do not match the checksum"):
        await collect(found, got)
    assert len(b"".join(got)) < len(BIG)
    await found.body.aclose()
    found = await stored(disk, entry)
    with pytest.raises(CorruptMessage):
        await found.body.read()
    await found.body.aclose()
    disk.overwrite(disk.path(entry), BIG)


@pytest.mark.parametrize("content", [BIG[:-1], BIG + b"x", b"", BIG[: READ_AT_ONCE // 2]])
async def test_a_large_body_of_another_size_is_damaged_at_once(disk: Disk, content: bytes) -> None:
    entry = await disk.bring(State.READY, BIG)
    disk.overwrite(disk.path(entry), content)
    found = await stored(disk, entry)
    assert found.properties.size == found.body.size == len(BIG)
    with pytest.raises(CorruptMessage, match=f"{len(content)} bytes instead of {len(BIG)}"):
        await found.body.read()
    disk.overwrite(disk.path(entry), BIG)


SENSELESS: Final[dict[str, tuple[dict[str, bytes], dict[str, object]]]] = {
    "a sum of mq's, and more": ({SUM: b"4:d1f2ab00:"}, {}),
    "an empty sum": ({SUM: b""}, {}),
    "a sum that is none": ({SUM: b"nonsense"}, {}),
    "a sum that begins with a length": ({SUM: b"4:nonsense"}, {}),
    "a sum without end": ({SUM: b"9" * 5000}, {}),
    "attributes that are no JSON": ({ATTRIBUTES: b"{"}, {"a": 1}),
    "attributes that are no object": ({ATTRIBUTES: b"[1]"}, {"a": 1}),
    "no attributes, though the sum says so": ({SUM: Sum(4, checksum(b"body"), "a").encode()}, {}),
    "no side file, though the sum says so": ({SUM: Sum(4, checksum(b"body"), "f").encode()}, {}),
}
"""What is written over what mq has noted of a message with these attributes."""


@pytest.mark.parametrize("is_native", [False, True])
@pytest.mark.parametrize(("noted", "attributes"), SENSELESS.values(), ids=SENSELESS)
async def test_a_message_of_which_nonsense_is_noted_is_damaged(
    disk: Disk, noted: dict[str, bytes], attributes: dict[str, Any], is_native: bool
) -> None:
    disk.folders.native = StepByStep(disk.calls) if is_native else None
    entry = await disk.bring(State.READY, **attributes)
    disk.note(disk.path(entry), noted)
    found = await stored(disk, entry)
    with pytest.raises(CorruptMessage, match=r"is invalid|is missing"):
        await found.body.read()
    assert disk.folders.flaw(entry)
    assert disk.folders.tear(entry) is None
    assert await disk.one(Unlink(await disk.done(Move(entry, State.REMOVED)))) is Result.DONE


@pytest.mark.parametrize("side", [b"{", b"{}", b'{"size":4,"crc32":0,"attributes":{}}', b'{"size":5,"crc32":0}'])
async def test_a_message_whose_side_file_is_not_its_own_is_damaged(disk: Disk, side: bytes) -> None:
    entry = await disk.bring(State.READY, **LARGE)
    disk.overwrite(f"state/properties/{entry.id}", side)
    with pytest.raises(CorruptMessage, match="the message's attributes file"):
        await disk.body(entry)
    assert await disk.one(Unlink(await disk.done(Move(entry, State.REMOVED)))) is Result.DONE


async def test_a_large_body_that_shrinks_while_it_is_read_raises(disk: Disk) -> None:
    entry = await disk.bring(State.READY, BIG)
    found = await stored(disk, entry)
    disk.overwrite(disk.path(entry), BIG[:100])
    with pytest.raises(CorruptMessage):
        [chunk async for chunk in found.body]
    await found.body.aclose()
    disk.overwrite(disk.path(entry), BIG)


async def test_a_large_body_that_cannot_be_read_raises(disk: Disk) -> None:
    found = await stored(disk, await disk.bring(State.READY, BIG))
    disk.calls.fail("read", errno.EIO)
    with pytest.raises(CorruptMessage, match="cannot read the body: Input/output error") as caught:
        await found.body.read()
    assert isinstance(caught.value.__cause__, OSError)
    await found.body.aclose()


async def test_a_large_foreign_body_is_given_as_it_is(disk: Disk) -> None:
    entry = Entry("q", new_id(), State.NEW)
    disk.put(disk.path(entry), BIG)
    found = await stored(disk, entry)
    assert (found.properties.checksum, found.properties.attributes) == (None, {})
    assert await found.body.read() == BIG
    await found.body.aclose()


async def test_closing_a_body_closes_its_file_once(disk: Disk) -> None:
    found = await stored(disk, await disk.bring(State.READY, BIG))
    opened = len(disk.calls.opened)
    await found.body.aclose()
    assert len(disk.calls.opened) == opened - 1
    disk.calls.log.clear()
    await found.body.aclose()
    assert disk.calls.log == []


async def test_a_body_that_nobody_closes_is_closed_all_the_same(disk: Disk) -> None:
    found = await stored(disk, await disk.bring(State.READY, BIG))
    opened = len(disk.calls.opened)
    del found
    assert len(disk.calls.opened) == opened - 1


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
async def test_reading_many_without_handles_leaves_none_of_them_open(disk: Disk, number: int) -> None:
    """Else the handles that are missing would be missing for ever."""
    entries = [await disk.bring(State.READY, BIG) for _ in range(5)]
    opened = dict(disk.calls.opened)
    disk.calls.fail("open", number, path="queues/*", nth=4, times=None)
    with pytest.raises(StorageFull, match="Try again later"):
        await disk.storage.read(entries)
    disk.heal()
    assert sorted(disk.calls.opened.values()) == sorted(opened.values())
    assert await disk.body(entries[0]) == BIG


async def test_a_read_that_is_cancelled_leaves_nothing_open(disk: Disk) -> None:
    entry = await disk.bring(State.READY, BIG)
    opened = dict(disk.calls.opened)
    with trio.CancelScope() as scope:
        scope.cancel()
        await disk.storage.read([entry])
    assert disk.calls.opened == opened


# Staging


@pytest.mark.parametrize(("verb", "nth"), [("open", 1), ("set_attribute", 1), ("write", 1), ("write", 2)])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE])
async def test_a_body_that_cannot_be_staged_leaves_nothing(disk: Disk, verb: str, nth: int, number: int) -> None:
    opened = dict(disk.calls.opened)
    disk.calls.fail(verb, number, nth=nth)
    disk.calls.most_written = 5
    with pytest.raises(StorageFull, match="Try again later"):
        await disk.storage.stage(chunks(b"0123456789"))
    assert disk.files("state/stage") == set()
    assert disk.calls.opened == opened
    disk.heal()
    await disk.done(Write("q", new_id(), await disk.storage.stage(chunks(b"0123456789"))))


async def test_a_medium_that_fails_while_a_body_arrives_fails_the_store(disk: Disk) -> None:
    disk.calls.fail("write", errno.EIO)
    with pytest.raises(StorageFailed, match="Input/output error"):
        await disk.storage.stage(chunks(b"body"))
    with pytest.raises(StorageFailed):
        await disk.storage.stage(chunks(b"body"))
    assert await disk.one(Write("q", new_id(), b"body")) is Result.FAILED


async def test_discarding_twice_and_after_the_write_does_nothing(disk: Disk) -> None:
    staged = await disk.storage.stage(chunks(b"body"))
    await staged.discard()
    await staged.discard()
    assert await disk.one(Write("q", new_id(), staged)) is Result.GONE
    assert disk.files() == set()


# Queues


async def test_a_queue_is_durable_record_first(disk: Disk) -> None:
    disk.calls.log.clear()
    await put_record(disk.storage, QUEUE, "new", {"created": 1})
    said = disk.calls.said("mkdir", "fsync")
    assert said.index("fsync state/records/queue") < said.index("mkdir queues/new") < said.index("fsync queues")


async def test_deleting_a_queue_is_one_rename_and_both_folders_are_synced(disk: Disk) -> None:
    await disk.bring(State.READY)
    disk.calls.log.clear()
    assert await drop_record(disk.storage, QUEUE, "q")
    said = disk.calls.said("rename", "fsync", "unlink")
    assert said[0].startswith("rename queues/q remove/q:")
    assert set(said[1:3]) == {"fsync remove", "fsync queues"}
    assert said[3].startswith("unlink state/records/queue/")


@pytest.mark.parametrize(("verb", "path"), [("fsync", "queues"), ("fsync", "remove"), ("rename", "queues/q")])
async def test_a_deletion_that_fails_is_not_answered(disk: Disk, verb: str, path: str) -> None:
    disk.calls.fail(verb, errno.EIO, path=path)
    with pytest.raises(StorageFailed):
        await drop_record(disk.storage, QUEUE, "q")
    with pytest.raises(StorageFailed):
        await put_record(disk.storage, QUEUE, "other", {"created": 1})


@pytest.mark.parametrize("verb", ["mkdir", "open", "write"])
@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_a_queue_that_cannot_be_made_now_can_be_made_later(disk: Disk, verb: str, nth: int) -> None:
    disk.calls.most_written = 5
    fault = disk.calls.fail(verb, errno.ENOSPC, nth=nth)
    try:
        await put_record(disk.storage, QUEUE, "new", {"created": 1})
    except StorageFull:
        assert "new" not in await disk.storage.records(QUEUE)
    else:
        assert fault.met < nth, "the fault was not noticed"
    disk.heal()
    await put_record(disk.storage, QUEUE, "new", {"created": 2})
    assert (await disk.storage.records(QUEUE))["new"]["created"] in (1, 2)
    await disk.bring(State.READY, queue="new")


@pytest.mark.parametrize("kind", ["file", "link"])
async def test_what_lies_in_the_place_of_a_queue_refuses_it_and_fails_nothing(temp_root: Path, kind: str) -> None:
    async with open_disk(Mount("real", atomic_rename=True, ordered=True), LinuxCalls(), str(temp_root)) as disk:
        if kind == "file":
            disk.put("queues/taken", b"kept")
        else:
            os.symlink("q", temp_root / "queues" / "taken")
        with pytest.raises(StorageError, match=r"queues/taken.*move it elsewhere"):
            await put_record(disk.storage, QUEUE, "taken", {"created": 1})
        assert set(await disk.storage.records(QUEUE)) == {"q"}
        assert not await drop_record(disk.storage, QUEUE, "taken")
        assert "taken" in os.listdir(temp_root / "queues")
        await disk.bring(State.READY)


async def test_a_queue_that_two_brokers_make_at_once_was_made_by_the_first(disk: Disk) -> None:
    """Else what was published to it in between would count as a deleted queue's."""
    assert await put_record(disk.storage, QUEUE, "new", {"created": 100})
    assert not await put_record(disk.storage, QUEUE, "new", {"created": 200, "limit": 5})
    assert (await disk.storage.records(QUEUE))["new"] == {"created": 100, "limit": 5}


async def test_a_queue_that_another_broker_makes_just_now_is_there(disk: Disk) -> None:
    disk.calls.just_before("mkdir", "queues/new", lambda: disk.inner.mkdir("/root/queues/new"))
    assert not await put_record(disk.storage, QUEUE, "new", {"created": 100})
    await disk.bring(State.READY, queue="new")


async def test_a_queue_that_another_broker_deletes_just_now_is_gone(disk: Disk) -> None:
    removed = f"/root/remove/q:{new_id()}"
    disk.calls.just_before("rename", "queues/q", lambda: disk.inner.rename("/root/queues/q", removed))
    assert not await drop_record(disk.storage, QUEUE, "q")
    assert await disk.storage.records(QUEUE) == {}
    await disk.make_queue()


async def test_a_queue_made_again_was_made_anew(disk: Disk) -> None:
    await put_record(disk.storage, QUEUE, "new", {"created": 100})
    await drop_record(disk.storage, QUEUE, "new")
    assert await put_record(disk.storage, QUEUE, "new", {"created": 200})
    assert (await disk.storage.records(QUEUE))["new"] == {"created": 200}


async def test_a_queue_made_by_hand_is_one_and_gets_its_settings(disk: Disk) -> None:
    disk.inner.mkdir("/root/queues/by-hand")
    assert (await disk.storage.records(QUEUE))["by-hand"] == {}
    assert not await put_record(disk.storage, QUEUE, "by-hand", {"created": 100, "limit": 5})
    assert (await disk.storage.records(QUEUE))["by-hand"] == {"created": 0, "limit": 5}, "what was in it before stays"


# What is not mq's

FOREIGN: Final = ("README", "q", ".hidden", "q:", "Q:x", "4ad814ab-213e-11e3-a9a3-0025904f6e08.part")


class Littered:
    """A real root in which everything lies that a folder can hold."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ids: dict[str, MessageId] = {}
        self._sockets: list[socket.socket] = []

    def litter(self, folder: str, state: State) -> int:
        """Lay things there. How many that mq must skip."""
        count = 0
        for name in FOREIGN:
            if not (self.root / folder / name).exists():
                (self.root / folder / name).write_bytes(b"kept")
                count += 1
        for kind in ("folder", "fifo", "link", "dangling", "socket"):
            path = self.root / folder / self.name(state, new_id())
            if kind == "folder":
                path.mkdir()
                (path / "inside").write_bytes(b"kept")
            elif kind == "fifo":
                os.mkfifo(path)
            elif kind == "link":
                target = self.root.parent / "outside"
                target.write_bytes(b"kept outside")
                path.symlink_to(target)
            elif kind == "dangling":
                path.symlink_to("nowhere")
            else:
                with_name = socket.socket(socket.AF_UNIX)
                with_name.bind(str(path))
                self._sockets.append(with_name)
            count += not (kind == "folder" and state is State.REMOVED)  # there it is a deleted queue
        return count

    def name(self, state: State, id: MessageId) -> str:
        return id if state is State.READY else f"q:{id}"

    def everything(self) -> set[str]:
        return {str(path) for path in self.root.rglob("*") if "state" not in path.parts}

    def close(self) -> None:
        for item in self._sockets:
            item.close()


PLACES: Final = {State.NEW: "new", State.READY: "queues/q", State.DELAYED: "delay", State.REMOVED: "remove"}


@pytest.fixture
def littered(temp_root: Path) -> Iterator[Littered]:
    littered = Littered(temp_root)
    yield littered
    littered.close()


@pytest.mark.parametrize("state", State)
async def test_what_is_foreign_is_skipped_counted_and_told_once(
    littered: Littered, state: State, caplog: pytest.LogCaptureFixture
) -> None:
    mount = Mount("real", atomic_rename=True, ordered=True)
    async with open_disk(mount, LinuxCalls(), str(littered.root)) as disk:
        own = await disk.bring(state)
        skipped = littered.litter(PLACES[state], state)
        before = littered.everything()
        for _ in range(3):
            found = [entry for entry in await disk.storage.scan(state, "q") if entry.id == own.id]
            assert found == [own]
            await disk.storage.find("q", own.id)
        assert disk.folders.health.skipped == skipped
        told = [record for record in caplog.records if "ignored, " in record.getMessage()]
        assert len(told) == skipped
        assert all(record.levelno == logging.WARNING and "\n" not in record.getMessage() for record in told)
        assert littered.everything() == before
        await disk.open()
        assert littered.everything() == before
        if state is State.REMOVED:  # the folder there is taken for a deleted queue, and what is in it is not mq's
            for entry in await disk.storage.scan(state):
                if entry.id != own.id:
                    assert await disk.one(Unlink(entry)) is Result.EXISTS
            assert littered.everything() == before


async def test_what_is_foreign_in_a_deleted_queue_is_told(temp_root: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with open_disk(Mount("real", atomic_rename=True), LinuxCalls(), str(temp_root)) as disk:
        await disk.bring(State.READY)
        (temp_root / "queues" / "q" / "notes.txt").touch()
        assert await drop_record(disk.storage, QUEUE, "q")
        [queue] = await disk.storage.scan(State.REMOVED)
        assert await disk.one(Unlink(queue)) is Result.EXISTS
        assert "notes.txt" in caplog.text


async def test_what_is_foreign_among_the_queues_is_skipped(
    littered: Littered, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_disk(Mount("real", atomic_rename=True), LinuxCalls(), str(littered.root)) as disk:
        root = littered.root / "queues"
        (root / "file").write_bytes(b"kept")
        os.mkfifo(root / "fifo")
        (root / "link").symlink_to(root / "q")
        (root / ".hidden").mkdir()
        (root / "not a name").mkdir()
        (root / ("q" * 101)).mkdir()
        before = littered.everything()
        for _ in range(3):
            assert set(await disk.storage.records(QUEUE)) == {"q"}
        assert disk.folders.health.skipped == 6
        assert len([record for record in caplog.records if "ignored, " in record.getMessage()]) == 6
        await disk.open()
        assert littered.everything() == before


@pytest.mark.slow
@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("kind", ["fifo", "folder", "link", "dangling", "socket"])
async def test_a_message_that_is_no_plain_file_is_not_read_nor_waited_for(
    littered: Littered, state: State, kind: str
) -> None:
    async with open_disk(Mount("real", atomic_rename=True), LinuxCalls(), str(littered.root)) as disk:
        entry = Entry("q", new_id(), state)
        path = littered.root / disk.path(entry)
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "socket":
            with socket.socket(socket.AF_UNIX) as item:
                item.bind(str(path))
        else:
            path.symlink_to(littered.root / "state" / "lock" if kind == "link" else "nowhere")
        with trio.fail_after(20):  # a real clock: what must not happen is to wait for ever
            assert await disk.storage.read([entry]) == [None]
            assert await disk.storage.find("q", entry.id) is None
        assert path.name in os.listdir(path.parent)
        if kind == "folder":
            path.rmdir()


async def test_a_file_that_somebody_moved_in_is_a_message(littered: Littered) -> None:
    async with open_disk(MOUNTS["rename"], LinuxCalls(), str(littered.root)) as disk:
        entry = Entry("q", new_id(), State.NEW)
        outside = littered.root.parent / "outside"
        outside.write_bytes(b"by hand")
        outside.rename(littered.root / disk.path(entry))
        ready = await disk.done(Move(entry, State.READY))
        assert await disk.body(ready) == b"by hand"


async def test_thousands_of_foreign_names_are_not_remembered(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(1100):
        disk.put(f"new/{number}")
    for _ in range(2):
        await disk.storage.scan(State.NEW)
    assert disk.folders.health.skipped == 1000
    assert len(caplog.records) == 1001
    assert caplog.records[-1].getMessage() == "ignored 1000 files so far; further ignored files will not be logged"


# Errors of reading


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES])
async def test_a_folder_that_cannot_be_listed_now_is_told_so(disk: Disk, number: int) -> None:
    disk.calls.fail("names", number, times=None)
    with pytest.raises(StorageFull, match="temporarily unable to read from the store"):
        await disk.storage.scan(State.NEW)
    with pytest.raises(StorageFull, match="temporarily unable to read from the store"):
        await disk.storage.records(QUEUE)
    disk.heal()
    await disk.bring(State.READY)


async def test_a_folder_that_cannot_be_listed_is_told_so_and_fails_nothing(disk: Disk) -> None:
    disk.calls.fail("names", errno.EIO)
    with pytest.raises(StorageFailed, match="cannot read from the store: Input/output error"):
        await disk.storage.scan(State.NEW)
    assert await disk.one(Write("q", new_id(), b"body")) is Result.DONE


@pytest.mark.parametrize(("verb", "number"), [("open", errno.EACCES), ("open", errno.EIO), ("read", errno.EIO)])
async def test_a_message_that_cannot_be_read_is_damaged_for_now(disk: Disk, verb: str, number: int) -> None:
    entry = await disk.bring(State.READY)
    disk.calls.fail(verb, number, path="queues/*", times=2)  # it looks closer before it says so
    found = await stored(disk, entry)
    with pytest.raises(CorruptMessage):
        await found.body.read()
    assert await disk.body(entry) == b"body"


async def test_properties_come_with_the_body(disk: Disk) -> None:
    entry = await disk.bring(State.READY, b"body", a=1)
    found = await stored(disk, entry)
    assert found.properties == (4, checksum(b"body"), {"a": 1})
    fd = disk.inner.open(f"/root/{disk.path(entry)}", os.O_RDONLY)
    assert disk.inner.get_attribute(fd, SUM) == Sum(4, checksum(b"body"), "a").encode()
    disk.inner.close(fd)
    assert await disk.attributes(await disk.bring(State.READY, b"body", **LARGE)) == LARGE


async def test_meta_is_in_the_name_alone(disk: Disk) -> None:
    ready = await disk.bring(State.READY)
    leased = await disk.done(Move(ready, State.DELAYED, LEASE))
    assert disk.files("delay") == {f"delay/q:{ready.id},d1700000000000,r1,c0123456789abcdef"}
    again = await disk.done(Move(leased, State.READY, Meta(receives=1)))
    assert disk.files("queues") == {f"queues/q/{ready.id},r1"}
    assert await disk.storage.find("q", ready.id) == again
    assert disk.tree()["delay"] is FileKind.FOLDER


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM, errno.EIO])
def test_what_cannot_be_written_out_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    calls = LinuxCalls()
    synced: list[int] = []

    def refuse(*_: object) -> int:
        ctypes.set_errno(number)
        return -1

    with (tmp_path / "file").open("wb", buffering=0) as file:
        file.write(b"bytes")
        calls.write_out(file.fileno(), waits=False)
        calls.write_out(file.fileno(), waits=True)
        monkeypatch.setattr(os, "fsync", synced.append)
        monkeypatch.setattr(calls, "_sync_file_range", refuse)
        if number == errno.EIO:
            with pytest.raises(OSError, match="sync_file_range"):
                calls.write_out(file.fileno(), waits=True)
        else:
            calls.write_out(file.fileno(), waits=False)
            assert synced == []
            calls.write_out(file.fileno(), waits=True)
            assert synced == [file.fileno()]


def test_touching_a_file_changes_its_inode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    os.utime(path, ns=(0, 0))
    with path.open("rb") as file:
        LinuxCalls().touch(file.fileno())
    assert path.stat().st_mtime_ns > 0
