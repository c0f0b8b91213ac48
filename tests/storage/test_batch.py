"""What one commit does to the four folders: in which order, what it leaves when it is refused, and when it fails."""

from __future__ import annotations

import errno
import re
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from mq.lifecycle import State
from mq.storage.files.calls import TRANSIENT, LinuxCalls
from mq.storage.files.layout import LARGEST_ATTRIBUTES
from mq.storage.files.mount import Mount, mount_of
from mq.storage.files.sync import MOST_OPEN
from mq.storage.files.unlinks import FILES_PER_UNLINK
from mq.storage.interface import QUEUE, Entry, Meta, Move, Operation, Result, Sharing, Unlink, Write
from mq.storage.records import drop_record
from tests.cases import for_each
from tests.storage.disks import LARGE, LEASE, MOUNTS, Disk, new_id, open_disk

HELD: Final = frozenset({"new", "delay", "remove"})
SHOWN: Final = ("open", "set_attribute", "write", "fsync", "syncfs", "rename", "link", "unlink", "rmdir")
_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-1[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_LEASE: Final = re.compile(r",d[0-9]+,r[0-9]+,c[0-9a-f]{16}")

Maker = Callable[[Disk], Awaitable[Operation]]

every_mount = pytest.mark.parametrize("mount", MOUNTS)
renaming_mounts = pytest.mark.parametrize("mount", ["rename", "unordered"])


def shown(disk: Disk) -> list[str]:
    """What was done to the medium, with ID for an id and +lease for a lease's suffix; then forget it."""
    said = [_LEASE.sub("+lease", _ID.sub("ID", line)) for line in disk.calls.said(*SHOWN)]
    disk.calls.log.clear()
    return said


def syncing(folder: str) -> list[str]:
    """How a folder is synced: some are held open."""
    return [f"fsync {folder}"] if folder in HELD else [f"open {folder}", f"fsync {folder}"]


def naming(mount: str, *folders: str) -> list[str]:
    """How names in these folders are synced that were changed together: where names are ordered, by one of them."""
    return syncing(folders[0]) if MOUNTS[mount].ordered else [line for folder in folders for line in syncing(folder)]


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


@asynccontextmanager
async def no_attributes(mount: str) -> AsyncIterator[Disk]:
    """A disk whose file system has no extended attributes."""
    disk = Disk(MOUNTS[mount])
    disk.calls.fail("set_attribute", errno.ENOTSUP, times=None)
    await disk.open()
    await disk.make_queue()
    disk.calls.log.clear()
    yield disk
    await disk.check_whole()


# The order of calls


@renaming_mounts
@pytest.mark.parametrize("sharing", Sharing)
async def test_a_write_is_staged_completed_named_and_synced(mount: str, sharing: Sharing) -> None:
    """The sum comes after the attributes: where a cut leaves the one, it leaves the others."""
    async with open_disk(MOUNTS[mount], sharing=sharing) as disk:
        await disk.done(Write("q", new_id(), b"body", {"a": 1}))
        assert shown(disk) == [
            "open state/stage/ID new",
            "set_attribute state/stage/ID user.mq.attributes",
            "set_attribute state/stage/ID user.mq.sum",
            "write state/stage/ID 4",
            "rename state/stage/ID new/q:ID",
            "fsync state/stage/ID",
            *([] if MOUNTS[mount].ordered else syncing("new")),
        ]


@renaming_mounts
async def test_several_writes_share_one_barrier(mount: str) -> None:
    async with open_disk(MOUNTS[mount]) as disk:
        await disk.commit(*(Write("q", new_id(), b"body") for _ in range(3)))
        syncs = [line for line in shown(disk) if "sync" in line]
        assert syncs == (
            ["fsync state/stage/ID"] if MOUNTS[mount].ordered else [*["fsync state/stage/ID"] * 3, "fsync new"]
        )


async def test_where_names_are_ordered_all_bytes_are_written_out_and_then_the_last_file_is_changed_and_synced() -> None:
    """Its sync brings what was changed before its own last change, and of bytes what was written out."""
    async with open_disk(MOUNTS["rename"]) as disk:
        first, second, third = [Write("q", new_id(), b"body") for _ in range(3)]
        other = await disk.bring(State.READY)
        disk.calls.log.clear()
        await disk.commit(first, second, third, Move(other, State.REMOVED))
        assert disk.calls.said("rename", "write_out", "touch", "fsync", "syncfs") == [
            f"rename state/stage/{first.id} new/q:{first.id}",
            f"rename state/stage/{second.id} new/q:{second.id}",
            f"write_out state/stage/{second.id} begin",
            f"rename state/stage/{third.id} new/q:{third.id}",
            f"write_out state/stage/{third.id} begin",
            f"rename queues/q/{other.id} remove/q:{other.id}",
            *(f"write_out state/stage/{write.id} wait" for write in (first, second, third)),
            f"touch state/stage/{third.id}",
            f"fsync state/stage/{third.id}",
        ]


async def test_where_names_are_ordered_few_files_of_a_large_batch_are_open_at_a_time() -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        await disk.commit(*(Write("q", new_id(), b"body") for _ in range(3 * MOST_OPEN)))
        opened = most = 0
        for call in disk.calls.log:
            opened += (call.verb == "open") - (call.verb == "close")
            most = max(most, opened)
        assert most == MOST_OPEN + 1
        waited = {call.path for call in disk.calls.log if call.verb == "write_out" and call.detail == "wait"}
        assert len(waited) == 3 * MOST_OPEN
        assert [call.verb for call in disk.calls.log if call.verb in ("touch", "fsync")] == ["touch", "fsync"]


async def test_where_everything_is_synced_at_once_no_file_is_held_open() -> None:
    async with open_disk(MOUNTS["unordered"], syncfs=True) as disk:
        await disk.commit(*(Write("q", new_id(), b"body") for _ in range(20)))
        assert disk.calls.said("fsync", "syncfs") == ["syncfs ."]
        opened = 0
        for call in disk.calls.log:
            opened += (call.verb == "open") - (call.verb == "close")
            assert opened <= 1
        assert disk.calls.log[-1].verb == "syncfs"


@renaming_mounts
async def test_a_durable_move_is_a_rename_and_both_folders_are_synced(mount: str) -> None:
    async with open_disk(MOUNTS[mount]) as disk:
        entry = await disk.bring(State.READY)
        shown(disk)
        await disk.done(Move(entry, State.DELAYED, LEASE))
        first, *rest = shown(disk)
        assert first == "rename queues/q/ID delay/q:ID+lease"
        assert rest == naming(mount, "delay", "queues/q")


@pytest.mark.parametrize(
    ("order", "synced"),
    [
        ("MMW", ["fsync state/stage/ID"]),
        ("WMM", ["fsync state/stage/ID"]),
        ("MWM", ["fsync state/stage/ID"]),
        ("MM", ["fsync remove"]),
    ],
)
async def test_where_names_are_ordered_the_last_change_of_a_batch_brings_the_others(
    order: str, synced: list[str]
) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        first, second = [await disk.bring(State.READY) for _ in range(2)]
        moves: list[Operation] = [Move(second, State.REMOVED), Move(first, State.DELAYED, LEASE)]
        shown(disk)
        await disk.commit(*(Write("q", new_id(), b"body") if what == "W" else moves.pop() for what in order))
        assert [line for line in shown(disk) if "sync" in line] == synced


@pytest.mark.parametrize(
    ("order", "synced"),
    [
        ("WL", ["fsync state/stage/ID"]),
        ("WML", ["fsync state/stage/ID"]),
        ("WLM", ["fsync state/stage/ID"]),
        ("ML", ["fsync delay"]),
    ],
)
async def test_where_names_are_ordered_the_sync_of_what_was_written_brings_its_lease(
    order: str, synced: list[str]
) -> None:
    """L is the lease of the message that is written, or of one that was written before."""
    async with open_disk(MOUNTS["rename"]) as disk:
        other, id = await disk.bring(State.READY), new_id()
        new = Entry("q", id, State.NEW) if "W" in order else await disk.bring(State.NEW)
        each = {
            "W": Write("q", id, b"body"),
            "M": Move(other, State.DELAYED, LEASE),
            "L": Move(new, State.DELAYED, LEASE),
        }
        shown(disk)
        await disk.commit(*(each[what] for what in order))
        assert [line for line in shown(disk) if "sync" in line] == synced


async def test_a_lease_behind_a_refused_write_is_brought_by_the_write_before() -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        new = await disk.bring(State.NEW)
        shown(disk)
        outcomes = await disk.commit(
            Write("q", new_id(), b"body"), Write("q", new.id, b"body"), Move(new, State.DELAYED, LEASE)
        )
        assert [outcome.result for outcome in outcomes] == [Result.DONE, Result.EXISTS, Result.DONE]
        assert [line for line in shown(disk) if "sync" in line] == ["fsync state/stage/ID"]


async def test_where_names_are_ordered_a_move_between_queues_syncs_both() -> None:
    """Neither is held, and either may be deleted by a peer."""
    async with open_disk(MOUNTS["rename"], queues=("q", "other")) as disk:
        entry = await disk.bring(State.READY)
        shown(disk)
        await disk.done(Move(entry, State.READY, Meta(order=new_id().time), queue="other"))
        assert shown(disk)[1:] == [*syncing("queues/other"), *syncing("queues/q")]


async def test_a_durable_move_by_links_is_never_without_a_durable_name() -> None:
    async with open_disk(MOUNTS["link"]) as disk:
        entry = await disk.bring(State.READY)
        shown(disk)
        await disk.done(Move(entry, State.DELAYED, LEASE))
        assert shown(disk) == [
            "link queues/q/ID delay/q:ID+lease",
            *syncing("delay"),
            "unlink queues/q/ID",
            *syncing("queues/q"),
        ]


@every_mount
@pytest.mark.parametrize("state", [State.NEW, State.READY, State.DELAYED])
async def test_a_removal_is_durable_in_both_folders(mount: str, state: State) -> None:
    async with open_disk(MOUNTS[mount]) as disk:
        entry = await disk.bring(state)
        left = disk.path(entry).rpartition("/")[0]
        shown(disk)
        await disk.done(Move(entry, State.REMOVED))
        said = shown(disk)
        named = next(i for i, line in enumerate(said) if line.split()[0] in ("rename", "link"))
        assert said.index("fsync remove") > named
        vanished = next((i for i, line in enumerate(said) if line.startswith("unlink")), named)
        if not MOUNTS[mount].ordered:
            assert said.index(f"fsync {left}") > vanished


@renaming_mounts
async def test_a_move_that_may_wait_is_a_rename_and_no_more(mount: str) -> None:
    async with open_disk(MOUNTS[mount]) as disk:
        entry = await disk.bring(State.NEW)
        shown(disk)
        await disk.done(Move(entry, State.READY, durable=False))
        assert shown(disk) == ["rename new/q:ID queues/q/ID"]


async def test_a_move_that_may_wait_has_a_barrier_of_its_own_where_names_are_links() -> None:
    async with open_disk(MOUNTS["link"]) as disk:
        entry = await disk.bring(State.NEW)
        shown(disk)
        await disk.done(Move(entry, State.READY, durable=False))
        assert shown(disk) == ["link new/q:ID queues/q/ID", *syncing("queues/q"), "unlink new/q:ID"]


@pytest.mark.parametrize("mount", ["unordered", "link"])
async def test_where_others_unlink_no_move_may_wait(mount: str) -> None:
    async with open_disk(MOUNTS[mount], sharing=Sharing.PEERS) as disk:
        entry = await disk.bring(State.NEW)
        shown(disk)
        await disk.done(Move(entry, State.READY, durable=False))
        assert {"fsync new", "fsync queues/q"} <= set(shown(disk))


async def test_where_names_are_ordered_an_unlink_needs_no_sync() -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        entry = await disk.bring(State.NEW)
        ready = await disk.done(Move(entry, State.READY, durable=False))
        removed = await disk.done(Move(ready, State.REMOVED))
        shown(disk)
        assert await disk.one(Unlink(removed)) is Result.DONE
        assert shown(disk) == ["unlink remove/q:ID"]


async def test_a_durable_unlink_syncs_its_folder() -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        removed = await disk.bring(State.REMOVED)
        shown(disk)
        assert await disk.one(Unlink(removed, durable=True)) is Result.DONE
        assert shown(disk) == ["unlink remove/q:ID", *syncing("remove")]


@pytest.mark.parametrize("mount", ["unordered", "link"])
async def test_elsewhere_what_could_come_back_is_synced_before_an_unlink(mount: str) -> None:
    async with open_disk(MOUNTS[mount]) as disk:
        entry = await disk.bring(State.NEW)
        ready = await disk.done(Move(entry, State.READY, durable=False))  # the name in new/ may come back
        removed = await disk.done(Move(ready, State.REMOVED))
        shown(disk)
        assert await disk.one(Unlink(removed)) is Result.DONE
        assert shown(disk) == [*syncing("new"), "unlink remove/q:ID"]
        other = await disk.bring(State.REMOVED)
        shown(disk)
        assert await disk.one(Unlink(other)) is Result.DONE
        assert shown(disk) == ["unlink remove/q:ID"]


@pytest.mark.parametrize("mount", ["unordered", "link"])
@pytest.mark.parametrize("syncfs", [False, True])
async def test_a_name_that_left_after_the_barrier_of_its_batch_can_come_back(mount: str, syncfs: bool) -> None:
    """The requeue's old name in delay/ goes after the lease of another message has synced that folder."""
    async with open_disk(MOUNTS[mount], syncfs=syncfs) as disk:
        leased, waiting = await disk.bring(State.DELAYED), await disk.bring(State.READY)
        outcomes = await disk.commit(Move(leased, State.READY, durable=False), Move(waiting, State.DELAYED, LEASE))
        ready = outcomes[0].entry
        assert ready is not None
        removed = await disk.done(Move(ready, State.REMOVED))
        shown(disk)
        assert await disk.one(Unlink(removed)) is Result.DONE
        expected = [] if mount == "unordered" else syncing("delay")  # one barrier there, after both renames
        assert shown(disk) == [*expected, "unlink remove/q:ID"]


async def test_a_staged_body_appears_by_one_rename() -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        staged = await disk.storage.stage(chunks(b"one", b"two"))
        disk.calls.log.clear()
        entry = await disk.done(Write("q", new_id(), staged))
        assert shown(disk) == [
            "set_attribute state/stage/ID user.mq.sum",
            "rename state/stage/ID new/q:ID",
            "fsync state/stage/ID",
        ]
        assert await disk.body(entry) == b"onetwo"


async def test_a_staged_body_can_be_told_from_a_torn_one_from_its_first_byte_on() -> None:
    """Where a name can be durable before what its file holds, a part of a body must not pass for a foreign file."""
    async with open_disk(MOUNTS["link"]) as disk:
        staged = await disk.storage.stage(chunks(b"one", b"two"))
        said = shown(disk)
        assert said.index("set_attribute state/stage/ID user.mq.sum") < said.index("write state/stage/ID 6")
        await staged.discard()


@every_mount
async def test_a_write_goes_on_until_every_byte_is_taken(mount: str) -> None:
    async with open_disk(MOUNTS[mount]) as disk:
        disk.calls.most_written = 3
        entry = await disk.done(Write("q", new_id(), b"0123456789", LARGE))
        staged = await disk.storage.stage(chunks(b"abcdefg"))
        other = await disk.done(Write("q", new_id(), staged))
        disk.heal()
        assert await disk.body(entry) == b"0123456789"
        assert await disk.attributes(entry) == LARGE
        assert await disk.body(other) == b"abcdefg"


# Refused: one operation, and nothing is left behind


async def _write(disk: Disk) -> Operation:
    return Write("q", new_id(), b"0123456789", {"a": 1})


async def _large_write(disk: Disk) -> Operation:
    return Write("q", new_id(), b"0123456789", LARGE)


async def _move(disk: Disk) -> Operation:
    return Move(await disk.bring(State.READY), State.DELAYED, LEASE)


async def _unlink(disk: Disk) -> Operation:
    return Unlink(await disk.bring(State.REMOVED))


THAT_PASS: Final = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EACCES,
    errno.EPERM,
)

REFUSALS: Final = [
    ("rename", _write, "open", 1),
    ("rename", _write, "set_attribute", 1),
    ("rename", _write, "set_attribute", 2),
    ("rename", _write, "write", 1),
    ("rename", _write, "write", 2),
    ("rename", _write, "write", 4),
    ("rename", _large_write, "open", 1),
    ("rename", _large_write, "open", 2),  # after the side file
    ("unordered", _large_write, "open", 3),  # after the side file and the sync of its folder
    ("rename", _large_write, "write", 2),
    ("rename", _move, "rename", 1),
    ("rename", _unlink, "unlink", 1),
    ("link", _write, "write", 2),
    ("link", _move, "link", 1),
]


@pytest.mark.slow
@for_each("mount, make, verb, nth", REFUSALS)
@for_each("number", THAT_PASS)
async def test_an_error_that_can_pass_refuses_one_operation(
    mount: str, make: Maker, verb: str, nth: int, number: int
) -> None:
    async with open_disk(MOUNTS[mount]) as disk:
        operation = await make(disk)
        before = disk.tree()
        disk.calls.most_written = 3
        disk.calls.fail(verb, number, nth=nth)
        outcome = (await disk.commit(operation))[0]
        assert outcome.result is Result.FULL
        assert outcome.reason
        assert disk.tree() == before
        disk.heal()
        assert await disk.one(operation) is Result.DONE


def test_the_errors_that_can_pass_are_these() -> None:
    assert frozenset(THAT_PASS) == TRANSIENT


@pytest.mark.parametrize(("mount", "verb"), [("rename", "rename"), ("link", "link")])
@pytest.mark.parametrize("body", ["bytes", "staged"])
async def test_a_refused_appearance_leaves_nothing_but_a_staged_body(mount: str, verb: str, body: str) -> None:
    async with open_disk(MOUNTS[mount], sharing=Sharing.PEERS) as disk:
        staged = await disk.storage.stage(chunks(b"body")) if body == "staged" else b"body"
        before = disk.tree()
        disk.calls.fail(verb, errno.ENOSPC)
        assert await disk.one(Write("q", new_id(), staged, LARGE)) is Result.FULL
        assert disk.tree() == before
        assert await disk.body(await disk.done(Write("q", new_id(), staged))) == b"body"


async def test_a_name_that_is_taken_leaves_no_side_file() -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        entry = await disk.bring(State.NEW)
        before = disk.tree()
        assert await disk.one(Write("q", entry.id, b"other", LARGE)) is Result.EXISTS
        assert disk.tree() == before


@every_mount
async def test_one_that_is_refused_does_not_disturb_the_others(mount: str) -> None:
    async with open_disk(MOUNTS[mount]) as disk:
        writes = [Write("q", new_id(), b"body") for _ in range(3)]
        disk.calls.fail("write", errno.ENOSPC, nth=2)
        results = [outcome.result for outcome in await disk.commit(*writes)]
        assert results == [Result.DONE, Result.FULL, Result.DONE]
        assert {entry.id for entry in await disk.everything()} == {writes[0].id, writes[2].id}


async def test_no_handles_for_a_folder_are_no_failure_where_the_whole_file_system_can_be_synced() -> None:
    async with open_disk(MOUNTS["unordered"], syncfs=True) as disk:
        ready = await disk.bring(State.READY)
        disk.calls.log.clear()
        disk.calls.fail("open", errno.EMFILE, path="queues/q", times=None)
        assert await disk.one(Move(ready, State.DELAYED, LEASE)) is Result.DONE
        assert disk.calls.said("fsync", "syncfs") == ["fsync delay", "syncfs ."]


async def test_no_handles_for_a_folder_are_a_failure_where_it_cannot() -> None:
    """The move is made and cannot be made durable: neither DONE nor refused."""
    async with open_disk(MOUNTS["unordered"]) as disk:
        kept, ready = await disk.bring(State.READY, b"kept"), await disk.bring(State.READY)
        disk.calls.fail("open", errno.EMFILE, path="queues/q", times=None)
        assert await disk.one(Move(ready, State.DELAYED, LEASE)) is Result.FAILED
        await assert_failed(disk, kept)


async def test_a_queue_deleted_by_hand_is_no_failure() -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        entry = await disk.bring(State.NEW)
        disk.calls.fail("open", errno.ENOENT, path="queues/q")
        assert await disk.one(Move(entry, State.READY)) is Result.DONE


# Failed: nothing more is changed until the store is opened anew

FAILURES: Final = [
    ("rename", _write, "open", 1, errno.EIO),
    ("rename", _write, "open", 1, errno.EROFS),
    ("rename", _write, "set_attribute", 1, errno.EIO),
    ("rename", _write, "write", 1, errno.EIO),
    ("rename", _write, "fsync", 1, errno.EIO),
    ("rename", _write, "fsync", 1, errno.ENOSPC),
    ("rename", _write, "write_out", 1, errno.ENOSPC),
    ("rename", _write, "write_out", 2, errno.EIO),
    ("rename", _write, "touch", 1, errno.EIO),
    ("unordered", _write, "fsync", 2, errno.EIO),
    ("rename", _write, "open", 2, errno.EIO),
    ("rename", _large_write, "fsync", 1, errno.EIO),
    ("rename", _large_write, "fsync", 2, errno.EDQUOT),
    ("rename", _move, "rename", 1, errno.EIO),
    ("rename", _move, "rename", 1, errno.EROFS),
    ("rename", _move, "fsync", 1, errno.EIO),
    ("unordered", _move, "fsync", 2, errno.EROFS),
    ("rename", _unlink, "unlink", 1, errno.EIO),
    ("link", _move, "link", 1, errno.EIO),
    ("link", _move, "fsync", 1, errno.EIO),
    ("link", _move, "unlink", 1, errno.EIO),
    (
        "link",
        _move,
        "unlink",
        2,
        errno.EACCES,
    ),  # after the write's; the message has two durable names: neither done nor not
    ("link", _move, "fsync", 2, errno.EIO),
]


@for_each("mount, make, verb, nth, number", FAILURES)
async def test_any_other_error_fails_the_store(
    mount: str, make: Maker, verb: str, nth: int, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    async with open_disk(MOUNTS[mount]) as disk:
        kept = await disk.bring(State.READY, b"kept")
        operation = await make(disk)
        disk.calls.fail(verb, number, nth=nth)
        bystander = Write("q", new_id(), b"body")
        first = await disk.commit(operation, bystander)
        assert [outcome.result for outcome in first] == [Result.FAILED] * 2
        await assert_failed(disk, kept)
        assert len([record for record in caplog.records if "the disk failed" in record.message]) == 1


@pytest.mark.parametrize("nth", [1, 2])
async def test_what_could_not_be_written_out_is_taken_away(nth: int) -> None:
    """The kernel shows its bytes, and they never reach the disk: a restart would believe them."""
    async with open_disk(MOUNTS["rename"]) as disk:
        disk.calls.fail("write_out", errno.EIO, nth=nth)
        outcomes = await disk.commit(*(Write("q", new_id(), b"body") for _ in range(3)))
        assert {outcome.result for outcome in outcomes} == {Result.FAILED}
        assert await disk.everything() == set()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
async def test_a_failed_sync_of_everything_fails_the_store(number: int) -> None:
    async with open_disk(MOUNTS["unordered"], syncfs=True) as disk:
        kept = await disk.bring(State.READY, b"kept")
        disk.calls.fail("syncfs", number)
        outcomes = await disk.commit(*(Write("q", new_id(), b"body") for _ in range(5)))
        assert {outcome.result for outcome in outcomes} == {Result.FAILED}
        await assert_failed(disk, kept)


async def assert_failed(disk: Disk, kept: Entry) -> None:
    """The store changes nothing more, and can be read. Nobody tried a sync again."""
    struck = max(i for i, call in enumerate(disk.calls.log) if call.verb in {f.verb for f in disk.calls.faults})
    assert not {"fsync", "syncfs"} & {call.verb for call in disk.calls.log[struck + 1 :]}
    disk.heal()
    before = disk.tree()
    disk.calls.log.clear()
    operations = [
        Write("q", new_id(), b"b"),
        Move(kept, State.DELAYED, LEASE),
        Unlink(kept._replace(state=State.REMOVED)),
    ]
    outcomes = await disk.commit(*operations)
    assert {outcome.result for outcome in outcomes} == {Result.FAILED}
    assert all(outcome.reason for outcome in outcomes)
    assert disk.calls.log == []
    assert disk.tree() == before
    assert await disk.body(kept) == b"kept"
    assert kept in await disk.storage.scan(State.READY, "q")
    assert await disk.storage.find("q", kept.id) == kept


# Side files


@pytest.mark.parametrize("attributes", [{}, {"a": 1}, LARGE], ids=["none", "few", "many"])
@pytest.mark.parametrize(
    ("mount", "appears"),
    [
        (
            "rename",
            [
                "open state/stage/ID new",
                "write state/stage/ID 4",
                "rename state/stage/ID new/q:ID",
                "fsync state/stage/ID",
            ],
        ),
        (
            "link",
            [
                "open state/stage/ID new",
                "write state/stage/ID 4",
                "fsync state/stage/ID",
                "link state/stage/ID new/q:ID",
                "unlink state/stage/ID",
            ],
        ),
    ],
)
async def test_without_extended_attributes_a_side_file_is_durable_before_its_message_appears(
    mount: str, appears: list[str], attributes: dict[str, object]
) -> None:
    async with no_attributes(mount) as disk:
        entry = await disk.done(Write("q", new_id(), b"body", attributes))
        said = shown(disk)
        assert said[0] == "open state/properties/ID new"
        assert said[1].startswith("write state/properties/ID ")
        side, new = ([], []) if MOUNTS[mount].ordered else (syncing("state/properties"), syncing("new"))
        assert said[2:] == ["fsync state/properties/ID", *side, *appears, *new]
        assert await disk.attributes(entry) == attributes
        disk.overwrite(disk.path(entry), b"b0dy")
        found = (await disk.storage.read([entry]))[0]
        assert found is not None
        with pytest.raises(Exception, match="checksum"):
            await found.body.read()
        disk.overwrite(disk.path(entry), b"body")


async def test_attributes_that_are_many_stand_in_a_side_file() -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        entry = await disk.done(Write("q", new_id(), b"body", LARGE))
        assert disk.files("state/properties") == {f"state/properties/{entry.id}"}
        for move in (State.READY, State.DELAYED, State.READY):
            entry = await disk.done(Move(entry, move, LEASE if move is State.DELAYED else Meta()))
            assert await disk.attributes(entry) == LARGE
        await disk.open()
        assert await disk.attributes(entry) == LARGE


@pytest.mark.parametrize("size", [LARGEST_ATTRIBUTES - 1, LARGEST_ATTRIBUTES, LARGEST_ATTRIBUTES + 1])
async def test_attributes_come_back_around_the_limit(size: int) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        attributes = {"a": "x" * (size - len('{"a":""}'))}
        entry = await disk.done(Write("q", new_id(), b"body", attributes))
        assert bool(disk.files("state/properties")) == (size > LARGEST_ATTRIBUTES)
        assert await disk.attributes(entry) == attributes


@for_each("text", ["\udcff", "\ud800x", "\0", "\U0001f600", '"\\'])
@for_each("size", [1, 3000])
async def test_attributes_may_hold_any_text(text: str, size: int) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        entry = await disk.done(Write("q", new_id(), b"body", {"a": text * size, text: 1}))
        assert await disk.attributes(entry) == {"a": text * size, text: 1}


@every_mount
async def test_a_side_file_vanishes_with_its_message(mount: str) -> None:
    async with open_disk(MOUNTS[mount]) as disk:
        entry = await disk.bring(State.READY, **LARGE)
        kept = await disk.bring(State.READY, **LARGE)
        removed = await disk.done(Move(entry, State.REMOVED))
        assert await disk.one(Unlink(removed)) is Result.DONE
        assert disk.files("state/properties") == {f"state/properties/{kept.id}"}
        assert await disk.attributes(kept) == LARGE


async def test_side_files_vanish_with_their_queue() -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        for _ in range(3):
            await disk.bring(State.READY, **LARGE)
        await drop_record(disk.storage, QUEUE, "q")
        assert [await disk.one(Unlink(entry)) for entry in await disk.storage.scan(State.REMOVED)] == [Result.DONE]
        assert disk.files("state/properties") == set()


# Others on the same root


async def test_who_finds_the_old_name_gone_has_lost_and_takes_the_new_one_back() -> None:
    async with open_disk(MOUNTS["link"], sharing=Sharing.PEERS) as disk:
        entry = await disk.bring(State.READY)
        source, target = f"/root/queues/q/{entry.id}", f"/root/delay/q:{entry.id},d1,r1,c{'f' * 16}"
        other = Meta(1, 1, "f" * 16)

        def lease() -> None:
            disk.inner.link(source, target)
            disk.inner.unlink(source)

        came = disk.calls.just_before("unlink", "queues/q/*", lease)
        assert await disk.one(Move(entry, State.DELAYED, LEASE)) is Result.GONE
        assert came
        assert await disk.everything() == {Entry("q", entry.id, State.DELAYED, other)}


async def test_whoever_took_the_new_name_further_does_no_harm() -> None:
    """A removal that lost its race: its name in remove/ is already reaped when it is taken back."""
    async with open_disk(MOUNTS["link"], sharing=Sharing.PEERS) as disk:
        entry = await disk.bring(State.READY)
        source, target = f"/root/queues/q/{entry.id}", f"/root/delay/q:{entry.id},d1,r1,c{'f' * 16}"

        def lease_and_reap() -> None:
            disk.inner.link(source, target)
            disk.inner.unlink(source)
            disk.inner.unlink(f"/root/remove/q:{entry.id}")

        disk.calls.just_before("unlink", "queues/q/*", lease_and_reap)
        assert await disk.one(Move(entry, State.REMOVED)) is Result.GONE
        assert not disk.folders.volume.failure
        assert await disk.one(Write("q", new_id(), b"body")) is Result.DONE


@pytest.mark.parametrize(
    ("verb", "path"),
    [("unlink", "remove/q:*/*"), ("names", "remove/q:*"), ("rmdir", "remove/q:*")],
    ids=lambda value: value,
)
async def test_two_reapers_of_a_deleted_queue_do_no_harm(verb: str, path: str) -> None:
    async with open_disk(MOUNTS["rename"], sharing=Sharing.PEERS) as disk:
        for _ in range(3):
            await disk.bring(State.READY)
        await drop_record(disk.storage, QUEUE, "q")
        removed = (await disk.storage.scan(State.REMOVED))[0]
        folder = f"/root/{disk.path(removed)}"

        def reap() -> None:
            for name, _ in disk.inner.names(folder):
                disk.inner.unlink(f"{folder}/{name}")
            disk.inner.rmdir(folder)

        came = disk.calls.just_before(verb, path, reap)
        assert await disk.one(Unlink(removed)) in (Result.GONE, Result.DONE)
        assert came
        assert not disk.folders.volume.failure
        assert await disk.storage.scan(State.REMOVED) == []


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "ext4"])
async def test_a_rename_that_nfs_asked_for_twice_is_done(kind: str) -> None:
    """Its answer was lost, and the second one says that the source is gone."""
    mount = Mount(kind, atomic_rename=True, ordered=kind == "ext4")
    async with open_disk(mount, sharing=Sharing.PEERS) as disk:
        ready = await disk.bring(State.READY)
        leased = ready._replace(state=State.DELAYED, meta=LEASE)

        def answer_lost() -> None:
            disk.inner.rename(f"/root/{disk.path(ready)}", f"/root/{disk.path(leased)}")

        disk.calls.just_before("rename", "queues/q/*", answer_lost)
        disk.calls.fail("rename", errno.ENOENT, path="queues/q/*")
        result = await disk.one(Move(ready, State.DELAYED, LEASE))
        assert result is (Result.GONE if kind == "ext4" else Result.DONE)
        assert await disk.one(Move(ready, State.DELAYED, LEASE._replace(receipt="f" * 16))) is Result.GONE
        assert await disk.everything() == {leased}


# What is not mq's


async def test_a_deleted_queue_is_unlinked_a_part_at_a_time() -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        await disk.commit(*(Write("q", new_id(), b"") for _ in range(FILES_PER_UNLINK + 1)))
        await disk.commit(*(Move(entry, State.READY) for entry in await disk.everything()))
        await drop_record(disk.storage, QUEUE, "q")
        removed = (await disk.storage.scan(State.REMOVED))[0]
        assert [await disk.one(Unlink(removed)) for _ in range(3)] == [Result.MORE, Result.DONE, Result.GONE]
        assert disk.files() == set()


async def test_what_is_foreign_in_a_deleted_queue_stays() -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        await disk.bring(State.READY)
        disk.put("queues/q/README", b"kept")
        disk.inner.mkdir("/root/queues/q/folder")
        await drop_record(disk.storage, QUEUE, "q")
        removed = (await disk.storage.scan(State.REMOVED))[0]
        assert await disk.one(Unlink(removed)) is Result.EXISTS
        assert await disk.one(Unlink(removed)) is Result.EXISTS
        assert disk.files() == {f"{disk.path(removed)}/README"}
        assert disk.bytes_of(f"{disk.path(removed)}/README") == b"kept"
        disk.inner.unlink(f"/root/{disk.path(removed)}/README")
        disk.inner.rmdir(f"/root/{disk.path(removed)}/folder")
        assert await disk.one(Unlink(removed)) is Result.DONE


@every_mount
async def test_what_lies_where_a_queue_should_be_is_no_queue(mount: str) -> None:
    async with open_disk(MOUNTS[mount]) as disk:
        disk.put("queues/other", b"kept")
        entry = await disk.bring(State.NEW, queue="other")
        assert await disk.one(Move(entry, State.READY)) is Result.NO_QUEUE
        assert disk.bytes_of("queues/other") == b"kept"
        assert not disk.folders.volume.failure
        assert await disk.one(Move(entry, State.REMOVED)) is Result.DONE


@pytest.mark.parametrize(("number", "result"), [(errno.EACCES, Result.FULL), (errno.EIO, Result.FAILED)])
async def test_a_deleted_queue_that_cannot_be_taken_away(number: int, result: Result) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        await drop_record(disk.storage, QUEUE, "q")
        removed = (await disk.storage.scan(State.REMOVED))[0]
        disk.calls.fail("rmdir", number)
        assert await disk.one(Unlink(removed)) is result


@every_mount
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
async def test_a_message_whose_sync_failed_is_not_there_after_a_restart(mount: str, number: int) -> None:
    """The kernel shows its bytes, and may be the only one that has them: no sync that comes later would say so."""
    async with open_disk(MOUNTS[mount]) as disk:
        kept = await disk.bring(State.NEW, b"kept")
        disk.calls.fail("fsync", number)
        write, move = Write("q", new_id(), b"body", {"a": 1}), Move(kept, State.READY)
        assert {outcome.result for outcome in await disk.commit(write, move)} == {Result.FAILED}
        disk.heal()
        await disk.open()
        assert {entry.id for entry in await disk.everything()} == {kept.id}


@every_mount
async def test_nor_is_one_that_was_moved_on_in_that_batch(mount: str) -> None:
    async with open_disk(MOUNTS[mount]) as disk:
        ids = [new_id(), new_id()]
        new = [Entry("q", id, State.NEW) for id in ids]
        disk.calls.fail("fsync", errno.EIO)
        moves = [Move(new[0], State.DELAYED, LEASE), Move(new[1], State.REMOVED)]
        outcomes = await disk.commit(*(Write("q", id, b"body") for id in ids), *moves)
        assert {outcome.result for outcome in outcomes} == {Result.FAILED}
        disk.heal()
        await disk.open()
        assert await disk.everything() == set()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
async def test_a_failed_sync_before_a_move_in_the_same_batch_fails_the_store(number: int) -> None:
    async with open_disk(MOUNTS["link"]) as disk:
        kept = await disk.bring(State.READY, b"kept")
        id = new_id()
        disk.calls.fail("fsync", number)
        outcomes = await disk.commit(Write("q", id, b"body"), Move(Entry("q", id, State.NEW), State.READY))
        assert {outcome.result for outcome in outcomes} == {Result.FAILED}
        await assert_failed(disk, kept)


async def test_a_failed_batch_takes_nothing_away_that_was_there_before() -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        kept = await disk.bring(State.NEW, b"kept")
        disk.calls.fail("fsync", errno.EIO)
        outcomes = await disk.commit(Write("q", kept.id, b"again"), Write("q", new_id(), b"body"))
        assert [outcome.result for outcome in outcomes] == [Result.FAILED] * 2
        disk.heal()
        assert await disk.body(kept) == b"kept"


@pytest.fixture
def small_ext4(tmp_path: Path) -> Iterator[Path]:
    """A real file system whose blocks have 1 KiB, as mkfs makes them on small disks."""
    image, folder = tmp_path / "image", tmp_path / "mounted"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(16 << 20)
    for command in (["mkfs.ext4", "-q", "-b", "1024", image], ["mount", "-o", "loop", image, folder]):
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"cannot {command[0]} here: {done.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.root
async def test_attributes_of_any_size_fit_a_file_system_of_small_blocks(small_ext4: Path) -> None:
    mount = mount_of(str(small_ext4))
    async with open_disk(mount, LinuxCalls(), str(small_ext4 / "root"), syncfs=mount.syncfs) as disk:
        for size in range(0, 3000, 100):
            entry = await disk.bring(State.READY, b"body", a="x" * size)
            assert await disk.attributes(entry) == {"a": "x" * size}


async def test_among_peers_a_name_appears_in_new_only_when_its_file_is_whole() -> None:
    """A peer may take a message up that has lain there for long: also one that is being written."""
    async with open_disk(MOUNTS["rename"], sharing=Sharing.PEERS) as disk:
        stage = disk.storage._root_open.engine.stage.removeprefix(f"{disk.root}/")
        await disk.make_queue()
        disk.calls.log.clear()
        id = new_id()
        await disk.done(Write("q", id, b"body"))
        assert [call for call in disk.calls.said("write", "rename") if str(id) in call] == [
            f"write {stage}/{id} 4",
            f"rename {stage}/{id} new/q:{id}",
        ]
        disk.put(f"new/q:{(taken := new_id())}", b"another's")
        assert await disk.one(Write("q", taken, b"body")) is Result.EXISTS
        assert disk.files(stage) == set()
        await drop_record(disk.storage, QUEUE, "q")
        assert await disk.one(Write("q", new_id(), b"body")) is Result.NO_QUEUE


@pytest.mark.parametrize("is_mine", [True, False])
async def test_what_another_process_wrote_is_synced_when_it_is_delivered(is_mine: bool) -> None:
    """Its writer may have been killed before its barrier."""
    async with open_disk(MOUNTS["rename"], sharing=Sharing.PEERS) as disk:
        peer = disk.another()
        await peer.open()
        [outcome] = await (disk.storage if is_mine else peer).commit([Write("q", new_id(), b"body")])
        assert outcome.entry is not None
        disk.calls.log.clear()
        await disk.done(Move(outcome.entry, State.READY, durable=False))
        synced = disk.calls.said("fdatasync", "fsync")
        assert any(call.endswith(f" new/q:{outcome.entry.id}") for call in synced) != is_mine, synced
        await peer.aclose()
