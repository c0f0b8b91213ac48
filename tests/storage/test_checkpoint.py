"""A checkpoint: file by file where few were written, so that nobody waits for others; else one syncfs."""

from __future__ import annotations

import errno
import os

import pytest

from mq.lifecycle import State
from mq.message import MessageId
from mq.storage.files.layout import LARGEST_ATTRIBUTES
from mq.storage.files.logged.segments import PAGE
from mq.storage.interface import Entry, Group, Move, Put, Result, Unlink, Write
from mq.storage.records import drop_record, put_record
from simulation.faults import DiskFault, PowerCut
from tests.cases import for_each
from tests.storage.disks import new_id
from tests.storage.test_logged import LARGE, SEEDS, CutDisk, begun

MOST = 8
"""Files that a segment of the tests' length brings one by one."""
LONG = "x" * LARGEST_ATTRIBUTES


def checkpoint(disk: CutDisk) -> list[str]:
    """Make one. The calls that bring something to the medium, in order; the last two are the segment's own header."""
    disk.calls.log.clear()
    disk.log.empty()
    calls = [each for each in disk.calls.log if each.verb in ("write_out", "touch", "fsync", "fdatasync", "syncfs")]
    told = [f"{each.verb} {each.path.rpartition('/')[0] or each.path}" for each in calls if each.detail != "begin"]
    assert told.pop() == "fdatasync state/log"  # the header, when all else is done
    return told[told[0] == "fdatasync state/log" :]  # what was not flushed yet is, before the segment is left


async def test_few_files_are_written_out_and_one_change_brings_them() -> None:
    async with begun() as disk:
        disk.log.empty()
        for state in (State.READY, State.DELAYED):
            await disk.bring(state)
        assert sorted(checkpoint(disk)) == sorted(
            ["write_out delay", "write_out queues/q", "touch state/log", "fsync state/log"]
        )
        assert disk.calls.log[-2].verb == "write_at"


async def test_nothing_is_written_out_of_what_is_gone() -> None:
    async with begun() as disk:
        disk.log.empty()
        entries = [await disk.bring(State.READY) for _ in range(MOST + 1)]
        for entry in entries:
            await disk.one(Unlink(entry))
        assert checkpoint(disk) == ["touch state/log", "fsync state/log"]


@for_each("seed", SEEDS)
async def test_a_message_whose_removal_was_refused_is_written_out_though_the_refusal_is_in_the_next_segment(
    seed: int,
) -> None:
    async with begun(seed) as disk:
        disk.log.empty()
        entry = await disk.bring(State.READY, b"stays")
        while disk.log._offset < disk.log._current.size - PAGE:
            await put_record(disk.storage, "kind", "key", {})
        with pytest.MonkeyPatch.context() as patch:

            def refuse(*_: object, **__: object) -> None:
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

            patch.setattr(disk.folders.calls, "unlink", refuse)
            patch.setattr(disk.folders.calls, "rename", refuse)
            before = disk.log.epoch
            assert await disk.one(Unlink(entry)) is not Result.DONE
            assert disk.log.epoch > before
        disk.log.empty()
        await disk.cut()
        assert await disk.body(entry) == b"stays"


async def test_many_files_are_one_syncfs() -> None:
    async with begun() as disk:
        disk.log.empty()
        await disk.commit(*(Write("q", new_id(), b"b") for _ in range(MOST)))
        assert "syncfs /root" not in checkpoint(disk)
        await disk.commit(*(Write("q", new_id(), b"b") for _ in range(MOST + 1)))
        assert [each.partition(" ")[0] for each in checkpoint(disk)] == ["syncfs"]


async def test_where_names_have_no_order_it_is_one_syncfs() -> None:
    async with begun(ordered=False) as disk:
        disk.log.empty()
        await disk.bring(State.READY)
        assert [each.partition(" ")[0] for each in checkpoint(disk)] == ["syncfs"]


async def test_a_file_that_is_not_where_the_log_says_is_brought_by_a_syncfs() -> None:
    """Moved by hand, it may be anywhere; and what was moved stays whole over a cut."""
    async with begun() as disk:
        await disk.make_queue("other")
        disk.log.empty()
        entry = await disk.bring(State.READY, b"moved by hand")
        disk.calls.rename(f"/root/queues/q/{entry.id}", f"/root/queues/other/{entry.id}")
        assert [each.partition(" ")[0] for each in checkpoint(disk)] == ["syncfs"]
        await disk.cut()
        moved = entry._replace(queue="other")
        assert await disk.everything("q", "other") == {moved}
        assert await disk.body(moved) == b"moved by hand"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES, errno.EIO], ids=errno.errorcode.get)
async def test_a_file_that_cannot_be_opened_is_brought_by_a_syncfs(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No handle may be left, a hand may have closed it to this user."""
    async with begun() as disk:
        disk.log.empty()
        await disk.bring(State.READY)
        await put_record(disk.storage, "kind", "key", {})

        def refuse(*_: object, **__: object) -> int:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch:
            patch.setattr(disk.folders.calls, "open", refuse)
            assert [each.partition(" ")[0] for each in checkpoint(disk)] == ["syncfs"]


@for_each("seed", SEEDS)
async def test_a_cut_after_it_takes_nothing(seed: int) -> None:
    async with begun(seed) as disk:
        await disk.make_queue("other")
        disk.log.empty()
        ready = await disk.bring(State.READY, b"ready", note="n")
        large = await disk.bring(State.READY, b"l" * LARGE)
        long = await disk.bring(State.DELAYED, b"long", note=LONG)
        moved = await disk.done(Move(await disk.bring(State.READY, b"moved"), State.READY, queue="other"))
        gone = await disk.bring(State.READY, b"gone")
        assert await disk.one(Unlink(gone)) is Result.DONE
        for number in range(3):
            await put_record(disk.storage, "kind", "key", {"number": number})
        await put_record(disk.storage, "kind", "dropped", {})
        await drop_record(disk.storage, "kind", "dropped")
        id = new_id()
        [grouped] = await disk.storage.commit(
            [Group((Put("kind", "of a group", {"a": 1}), Write("q", id, b"grouped")))]
        )
        assert grouped.result is Result.DONE
        assert "syncfs" not in " ".join(checkpoint(disk))
        assert disk.pending() == 0
        await disk.cut()
        bodies = {entry: await disk.body(entry) for entry in await disk.everything("q", "other")}
        assert bodies == {
            ready: b"ready",
            large: b"l" * LARGE,
            long: b"long",
            moved: b"moved",
            _found(bodies, id): b"grouped",
        }
        assert await disk.attributes(ready) == {"note": "n"}
        assert await disk.attributes(long) == {"note": LONG}
        assert await disk.storage.records("kind") == {"key": {"number": 2}, "of a group": {"a": 1}}


def _found(entries: dict[Entry, bytes], id: MessageId) -> Entry:
    return next(entry for entry in entries if entry.id == id)


async def test_a_cut_at_any_of_its_calls_takes_nothing() -> None:
    for after in range(1, 100):
        async with begun(after) as disk:
            disk.log.empty()
            entries = {await disk.bring(State.READY, b"body") for _ in range(3)}
            await put_record(disk.storage, "kind", "key", {"a": 1})
            disk.odds.cut_at = disk.odds.calls + after
            try:
                disk.log.empty()
                is_over = True
            except PowerCut:
                is_over = False
            await disk.cut()
            assert await disk.everything() == entries
            assert {await disk.body(entry) for entry in entries} == {b"body"}
            assert await disk.storage.records("kind") == {"key": {"a": 1}}
        if is_over:
            assert after > 10
            return
    pytest.fail("a checkpoint makes more calls than there were cuts")


@for_each("seed", SEEDS)
@for_each("verb", ["write_out", "fsync"])
async def test_an_error_ends_all_changes_and_frees_nothing(verb: str, seed: int) -> None:
    """The kernel takes for written what it could not write; the next start has it from the log."""
    async with begun(seed) as disk:
        disk.log.empty()
        entries = {await disk.done(Write("q", new_id(), b"body")) for _ in range(3)}
        disk.odds.active["failed"] = DiskFault(errno.EIO, frozenset({verb}), 1.0, passes=False)
        with pytest.raises(OSError, match="log has failed"):
            disk.log.empty()
        disk.odds.lift()
        assert [each.result for each in await disk.commit(Write("q", new_id(), b"b"))] == [Result.FAILED]
        assert disk.pending() == 3
        disk.power.forget_handles()
        disk._storage = None
        await disk.open()
        await disk.cut()
        assert await disk.everything() == entries
        assert {await disk.body(entry) for entry in entries} == {b"body"}


async def test_an_empty_batch_leaves_no_record() -> None:
    async with begun() as disk:
        disk.log.empty()
        assert await disk.commit() == []
        assert [each.result for each in await disk.storage.commit([Group(())])] == [Result.DONE]
        assert disk.pending() == 0
