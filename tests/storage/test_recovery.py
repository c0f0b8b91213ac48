"""Every state that a crash can leave is brought back to one that the rest of mq knows, however often it takes."""

from __future__ import annotations

import errno
import itertools
from typing import Final

import pytest

from mq.errors import CorruptMessage, StorageUnusable
from mq.lifecycle import State
from mq.message import MessageIds, checksum
from mq.storage.files import recovery
from mq.storage.files.calls import FileKind
from mq.storage.files.folders import READ_AT_ONCE
from mq.storage.files.layout import SUM, Sum
from mq.storage.interface import QUEUE, Entry, Meta, Move, Result, Unlink, Write
from mq.storage.records import drop_record, put_record
from tests.storage.disks import LARGE, LEASE, MOUNTS, Disk, new_id, open_disk

ORDER: Final = (State.NEW, State.DELAYED, State.READY, State.REMOVED)
"""Of two names of a message the one whose state stands later here counts."""


every_mount = pytest.mark.parametrize("mount", MOUNTS)


def meta(state: State) -> Meta:
    return LEASE if state is State.DELAYED else Meta()


def also(disk: Disk, entry: Entry, other: Entry) -> None:
    """Let a message have a second name, as a crash in the middle of a move does."""
    disk.inner.link(f"/root/{disk.path(entry)}", f"/root/{disk.path(other)}")


async def repaired(disk: Disk, caplog: pytest.LogCaptureFixture) -> str:
    """Start again. What it says it repaired; empty for nothing."""
    caplog.clear()
    await disk.open()
    said = [
        record.getMessage() for record in caplog.records if "repaired the root after a crash" in record.getMessage()
    ]
    assert len(said) <= 1
    return "".join(said)


# Several names


@every_mount
@pytest.mark.parametrize("pair", [*itertools.permutations(State, 2)], ids=lambda pair: f"{pair[0].name}-{pair[1].name}")
async def test_of_two_names_one_stays(mount: str, pair: tuple[State, State], caplog: pytest.LogCaptureFixture) -> None:
    async with open_disk(MOUNTS[mount]) as disk:
        first = await disk.bring(pair[0])
        second = Entry("q", first.id, pair[1], meta(pair[1]))
        also(disk, first, second)
        assert "1 doubled" in await repaired(disk, caplog)
        assert await disk.everything() == {max(first, second, key=lambda entry: ORDER.index(entry.state))}
        assert not await repaired(disk, caplog)


@every_mount
@pytest.mark.parametrize("then", [State.READY, State.DELAYED, State.REMOVED])
@pytest.mark.parametrize("before", [State.READY, State.DELAYED])
async def test_a_message_stands_in_the_queue_that_it_joined_last(
    mount: str, before: State, then: State, caplog: pytest.LogCaptureFixture
) -> None:
    """A move to another queue was cut off: both came out, and the broker ended on the second."""
    async with open_disk(MOUNTS[mount], queues=("a", "q", "z")) as disk:
        for other in ("a", "z"):
            left = await disk.bring(before, queue="q")
            order = None if then is State.REMOVED else new_id().time
            joined = Entry(other, left.id, then, meta(then)._replace(order=order))
            also(disk, left, joined)
            assert "1 doubled" in await repaired(disk, caplog)
            assert {entry for entry in await disk.everything("a", "q", "z") if entry.id == left.id} == {joined}
            assert not await repaired(disk, caplog)


@every_mount
async def test_of_all_names_one_stays(mount: str, caplog: pytest.LogCaptureFixture) -> None:
    async with open_disk(MOUNTS[mount]) as disk:
        first = await disk.bring(State.NEW)
        for state in (State.DELAYED, State.READY, State.REMOVED):
            also(disk, first, Entry("q", first.id, state, meta(state)))
        assert "3 doubled" in await repaired(disk, caplog)
        assert await disk.everything() == {Entry("q", first.id, State.REMOVED)}
        assert not await repaired(disk, caplog)


LEASES: Final = {
    "more receives": (Meta(2000, 1, "f" * 16), Meta(1000, 2, "0" * 16)),
    "a later deadline": (Meta(1000, 1, "f" * 16), Meta(2000, 1, "0" * 16)),
    "no deadline": (Meta(None, 1, "f" * 16), Meta(1, 1, "0" * 16)),
}


@pytest.mark.parametrize(("earlier", "later"), LEASES.values(), ids=LEASES)
@pytest.mark.parametrize("turned", [False, True])
async def test_of_several_leases_the_latest_stays(
    earlier: Meta, later: Meta, turned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_disk(MOUNTS["link"]) as disk:
        new = await disk.bring(State.NEW)
        metas = (later, earlier) if turned else (earlier, later)
        first = await disk.done(Move(new, State.DELAYED, metas[0]))
        also(disk, first, Entry("q", first.id, State.DELAYED, metas[1]))
        assert "1 doubled" in await repaired(disk, caplog)
        assert await disk.everything() == {Entry("q", first.id, State.DELAYED, later)}


@pytest.mark.parametrize("among", [(), (State.NEW,), (State.READY,), (State.REMOVED,), (State.NEW, State.READY)])
async def test_of_leases_that_are_equally_late_one_stays(
    among: tuple[State, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Racers of one batch name the same deadline and count; only their receipts differ."""
    async with open_disk(MOUNTS["link"]) as disk:
        first = await disk.bring(State.DELAYED)
        places = [Entry("q", first.id, State.DELAYED, LEASE._replace(receipt=digit * 16)) for digit in "fa5"]
        places += [Entry("q", first.id, state) for state in among]
        for place in places:
            also(disk, first, place)
        assert f"{len(places)} doubled" in await repaired(disk, caplog)
        left = await disk.everything()
        assert len(left) == 1
        best = max([State.DELAYED, *among], key=ORDER.index)
        assert left.pop().state is best
        assert not await repaired(disk, caplog)


@pytest.mark.parametrize("receives", [(0, 1), (1, 2), (0, 1, 2)], ids=str)
async def test_of_counts_of_one_message_in_a_queue_the_highest_stays(
    receives: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """A message that is given back is counted by another name in the same folder, which is no atomic move there."""
    async with open_disk(MOUNTS["link"]) as disk:
        first = await disk.bring(State.READY)
        names = [Entry("q", first.id, State.READY, Meta(receives=count)) for count in receives]
        for name in names:
            if name != first:
                also(disk, first, name)
        if first not in names:
            disk.inner.unlink(f"/root/{disk.path(first)}")
        other = await disk.bring(State.READY)
        assert f"{len(names) - 1} doubled" in await repaired(disk, caplog)
        assert await disk.everything() == {names[-1], other}
        assert not await repaired(disk, caplog)


async def test_a_message_between_two_queues_stays_in_one(caplog: pytest.LogCaptureFixture) -> None:
    async with open_disk(MOUNTS["link"], queues=("q", "other")) as disk:
        held = await disk.bring(State.DELAYED)
        joined = Entry("other", held.id, State.READY, Meta(order=new_id().time))
        also(disk, held, joined)
        assert "1 doubled" in await repaired(disk, caplog)
        assert await disk.everything("q", "other") == {joined}


# Torn ones


async def lay(disk: Disk, content: bytes, noted: Sum | None = None, queue: str = "q") -> Entry:
    """A file in new/, as a crash may leave it."""
    entry = Entry(queue, new_id(), State.NEW)
    disk.put(disk.path(entry), content, {SUM: noted.encode()} if noted else None)
    return entry


BIG: Final = b"x" * (READ_AT_ONCE + 10)

TORN: Final = {
    "without its bytes": (b"", Sum(4, checksum(b"body"))),
    "with a part of them": (b"bo", Sum(4, checksum(b"body"))),
    "with nothing in them": (b"\0\0\0\0", Sum(4, checksum(b"body"))),
    "with other bytes": (b"b0dy", Sum(4, checksum(b"body"))),
    "with more bytes": (b"bodybody", Sum(4, checksum(b"body"))),
    "large, cut": (BIG[:-1], Sum(len(BIG), checksum(BIG))),
    "large, with other bytes": (BIG[:-1] + b"y", Sum(len(BIG), checksum(BIG))),
    "empty, without a checksum": (b"", None),
    "unfinished": (b"a part", Sum(0, 0)),
}

WHOLE: Final = {
    "with its checksum": (b"body", Sum(4, checksum(b"body"))),
    "empty, with its checksum": (b"", Sum(0, 0)),
    "large": (BIG, Sum(len(BIG), checksum(BIG))),
    "foreign": (b"body", None),
    "large and foreign": (BIG, None),
}


@pytest.mark.parametrize(("content", "noted"), TORN.values(), ids=TORN)
async def test_a_torn_message_goes(content: bytes, noted: Sum | None, caplog: pytest.LogCaptureFixture) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        kept = await disk.bring(State.NEW)
        torn = await lay(disk, content, noted)
        assert "1 torn" in await repaired(disk, caplog)
        assert str(torn.id) in caplog.text
        assert await disk.everything() == {kept}
        assert not await repaired(disk, caplog)


@pytest.mark.parametrize(("content", "noted"), TORN.values(), ids=TORN)
async def test_one_that_was_to_be_leased_by_the_batch_that_wrote_it_goes(
    content: bytes, noted: Sum | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        kept = await disk.bring(State.DELAYED)
        torn = await lay(disk, content, noted)
        await disk.done(Move(torn, State.DELAYED, LEASE))
        assert "1 torn" in await repaired(disk, caplog)
        assert await disk.everything() == {kept}


@pytest.mark.parametrize(
    "meta", [LEASE._replace(receives=2), LEASE._replace(receives=0, receipt=None)], ids=["again", "held back"]
)
async def test_one_that_was_leased_again_or_held_back_was_acknowledged(
    meta: Meta, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        entry = await disk.done(Move(await disk.bring(State.NEW), State.DELAYED, meta))
        disk.overwrite(disk.path(entry), b"bo")
        assert not await repaired(disk, caplog)
        disk.overwrite(disk.path(entry), b"body")


async def test_so_was_one_that_is_older_than_all_that_can_have_been_under_way(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "MOST_MOVED_ON", 3)
    async with open_disk(MOUNTS["rename"]) as disk:
        leased = [await disk.done(Move(await disk.bring(State.NEW), State.DELAYED, LEASE)) for _ in range(4)]
        for entry in leased[:2]:
            disk.overwrite(disk.path(entry), b"bo")
        assert "1 torn" in await repaired(disk, caplog)
        assert await disk.everything() == {leased[0], *leased[2:]}
        disk.overwrite(disk.path(leased[0]), b"body")


@pytest.mark.parametrize(("content", "noted"), WHOLE.values(), ids=WHOLE)
async def test_a_whole_message_stays(content: bytes, noted: Sum | None, caplog: pytest.LogCaptureFixture) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        entry = await lay(disk, content, noted)
        assert not await repaired(disk, caplog)
        ready = await disk.done(Move(entry, State.READY))
        assert await disk.body(ready) == content
        assert await disk.attributes(ready) == {}


@pytest.mark.parametrize(("verb", "number"), [("open", errno.EACCES), ("open", errno.EIO), ("read", errno.EIO)])
@pytest.mark.parametrize("content", [b"body", BIG], ids=["small", "large"])
async def test_what_cannot_be_read_is_not_taken_for_torn(
    verb: str, number: int, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_disk(MOUNTS["rename"], syncfs=True) as disk:
        entry = await lay(disk, content, Sum(len(content), checksum(content)))
        disk.calls.fail(verb, number, path="new/*", times=None)
        assert not await repaired(disk, caplog)
        disk.heal()
        assert await disk.body(entry) == content


async def test_a_new_message_of_which_nonsense_is_noted_stays_and_is_not_given_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No crash leaves that: somebody wrote it, and its bytes may be the only copy of what was acknowledged."""
    async with open_disk(MOUNTS["rename"]) as disk:
        entry = await disk.bring(State.NEW)
        disk.note(disk.path(entry), {SUM: b"nonsense"})
        assert not await repaired(disk, caplog)
        with pytest.raises(CorruptMessage, match=r"the message file's extended attribute user\.mq\.sum is invalid"):
            await disk.body(entry)
        assert await disk.one(Unlink(await disk.done(Move(entry, State.REMOVED)))) is Result.DONE


async def test_a_damaged_message_of_a_queue_stays_and_is_not_given_out(caplog: pytest.LogCaptureFixture) -> None:
    """It was acknowledged: what is left of it is somebody's only copy."""
    async with open_disk(MOUNTS["rename"]) as disk:
        entry = await disk.bring(State.READY)
        disk.overwrite(disk.path(entry), b"bo")
        assert not await repaired(disk, caplog)
        with pytest.raises(CorruptMessage, match="2 bytes instead of 4"):
            await disk.body(entry)
        disk.overwrite(disk.path(entry), b"body")


async def test_a_torn_message_that_is_also_ready_leaves_the_ready_one(caplog: pytest.LogCaptureFixture) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        ready = await disk.bring(State.READY)
        disk.put(f"new/q:{ready.id}")
        assert "1 doubled" in await repaired(disk, caplog)
        assert await disk.everything() == {ready}


# Deleted queues


@pytest.mark.parametrize("state", [State.NEW, State.DELAYED])
async def test_what_a_deleted_queue_left_goes(state: State, caplog: pytest.LogCaptureFixture) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        await disk.make_queue("gone")
        await disk.bring(state, queue="gone")
        await drop_record(disk.storage, QUEUE, "gone")
        own = {await disk.bring(State.NEW), await disk.bring(State.DELAYED), await disk.bring(State.READY)}
        assert "1 orphaned" in await repaired(disk, caplog)
        assert {entry for entry in await disk.everything() if entry.state is not State.REMOVED} == own
        assert not await repaired(disk, caplog)


@pytest.mark.parametrize("state", [State.NEW, State.DELAYED])
async def test_what_is_older_than_its_queue_stays(state: State, caplog: pytest.LogCaptureFixture) -> None:
    """The clock was wrong when the one was made, or the other. A queue is not made before the leftovers of those of its
    name are gone (:meth:`mq.broker.queues.Queues.create`), also while one of them waits for the reaper."""
    async with open_disk(MOUNTS["rename"]) as disk:
        await drop_record(disk.storage, QUEUE, "q")
        await disk.make_queue()
        old = MessageIds(lambda: 1_000_000_000).new()
        written = await disk.done(Write("q", old, b"x"))
        entry = written if state is State.NEW else await disk.done(Move(written, state, LEASE))
        assert not await repaired(disk, caplog)
        assert entry in await disk.everything()


@pytest.mark.parametrize("state", [State.READY, State.DELAYED])
async def test_what_joined_a_younger_queue_stays(state: State, caplog: pytest.LogCaptureFixture) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        ready = await disk.bring(State.READY)
        await disk.make_queue("young")
        joined = await disk.done(Move(ready, State.READY, Meta(order=new_id().time), "young"))
        if state is State.DELAYED:
            joined = await disk.done(Move(joined, state, LEASE._replace(order=joined.meta.order)))
        assert not await repaired(disk, caplog)
        assert await disk.everything("q", "young") == {joined}


async def test_a_message_of_no_queue_stays(caplog: pytest.LogCaptureFixture) -> None:
    """Somebody may make the queue yet."""
    async with open_disk(MOUNTS["rename"]) as disk:
        entries = {await disk.bring(State.NEW, queue="nowhere"), await disk.bring(State.DELAYED, queue="nowhere")}
        assert not await repaired(disk, caplog)
        assert await disk.everything() == entries


async def test_a_queue_whose_record_is_damaged_keeps_its_messages(caplog: pytest.LogCaptureFixture) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        entries = {await disk.bring(state) for state in State}
        record = next(path for path in disk.tree() if path.startswith("state/records/queue/"))
        disk.overwrite(record, b"{")
        assert not await repaired(disk, caplog)
        assert await disk.everything() == entries
        assert await disk.storage.records(QUEUE) == {"q": {}}


async def test_a_record_without_a_folder_goes(caplog: pytest.LogCaptureFixture) -> None:
    """The crash came between the two steps of making a queue, or of deleting one."""
    async with open_disk(MOUNTS["rename"]) as disk:
        disk.inner.rmdir("/root/queues/q")
        await disk.open()
        assert not [path for path in disk.tree() if path.startswith("state/records/queue/")]
        assert await disk.storage.records(QUEUE) == {}
        await disk.make_queue()


async def test_a_folder_without_a_record_is_a_queue(caplog: pytest.LogCaptureFixture) -> None:
    """Somebody made it by hand."""
    async with open_disk(MOUNTS["rename"]) as disk:
        disk.inner.mkdir("/root/queues/by-hand")
        assert not await repaired(disk, caplog)
        assert (await disk.storage.records(QUEUE))["by-hand"] == {}
        await disk.bring(State.READY, queue="by-hand")


async def test_a_deleted_queue_is_reaped_after_a_restart(caplog: pytest.LogCaptureFixture) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        await disk.bring(State.READY)
        await drop_record(disk.storage, QUEUE, "q")
        assert not await repaired(disk, caplog)
        assert [await disk.one(Unlink(entry)) for entry in await disk.storage.scan(State.REMOVED)] == [Result.DONE]


# Leftovers


async def test_bodies_that_were_still_arriving_go(caplog: pytest.LogCaptureFixture) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        disk.put(f"state/stage/{new_id()}", b"a part")
        disk.put("state/stage/probe-1", b"")
        assert "2 leftovers" in await repaired(disk, caplog)
        assert disk.files() == set()


async def test_side_files_without_a_message_go(caplog: pytest.LogCaptureFixture) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        kept = {await disk.bring(state, **LARGE) for state in State}
        disk.put(f"state/properties/{new_id()}", b"{}")
        assert "1 leftovers" in await repaired(disk, caplog)
        assert disk.files("state/properties") == {f"state/properties/{entry.id}" for entry in kept}
        for entry in kept:
            assert await disk.attributes(entry) == LARGE
        for entry in await disk.storage.scan(State.REMOVED):
            assert await disk.one(Unlink(entry)) is Result.DONE
        assert len(disk.files("state/properties")) == 3


async def test_a_message_without_its_side_file_is_torn_where_there_are_no_attributes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        disk.calls.fail("set_attribute", errno.ENOTSUP, times=None)
        await disk.open()
        kept = await disk.bring(State.NEW, b"body", a=1)
        torn = await disk.bring(State.NEW, b"body", a=1)
        disk.overwrite(disk.path(torn), b"bo")
        assert "1 torn" in await repaired(disk, caplog)
        assert "leftovers" in caplog.text  # its side file
        assert disk.files("state/properties") == {f"state/properties/{kept.id}"}
        assert await disk.attributes(kept) == {"a": 1}


# What is not mq's


async def test_what_is_foreign_stays(caplog: pytest.LogCaptureFixture) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        foreign = {}
        for folder in ("new", "queues", "queues/q", "delay", "remove"):
            for name in ("README", f"{new_id()}.part", ".hidden"):
                foreign[f"{folder}/{name}"] = f"kept in {folder}".encode()
            disk.inner.mkdir(f"/root/{folder}/lost+found,")
        for path, content in foreign.items():
            disk.put(path, content)
        assert not await repaired(disk, caplog)
        for path, content in foreign.items():
            assert disk.bytes_of(path) == content
        assert sum(what is FileKind.FOLDER and path.endswith(",") for path, what in disk.tree().items()) == 5


# Interrupted


async def _a_bit_of_everything(disk: Disk) -> None:
    """Two orphans, two doubles, one torn, two leftovers and a record of no queue; four entries are to stay."""
    await disk.make_queue("gone")
    await disk.bring(State.NEW, queue="gone")
    await disk.bring(State.DELAYED, queue="gone")
    await drop_record(disk.storage, QUEUE, "gone")
    doubled = await disk.bring(State.DELAYED)
    also(disk, doubled, Entry("q", doubled.id, State.READY))
    also(disk, doubled, Entry("q", doubled.id, State.DELAYED, LEASE._replace(receipt="f" * 16)))
    await disk.bring(State.READY, **LARGE)
    await disk.bring(State.NEW)
    await lay(disk, b"bo", Sum(4, checksum(b"body")))
    disk.put(f"state/stage/{new_id()}", b"a part")
    disk.put(f"state/properties/{new_id()}", b"{}")
    disk.inner.mkdir("/root/queues/other")
    await put_record(disk.storage, QUEUE, "other", {"created": 1})
    disk.inner.rmdir("/root/queues/other")


@pytest.mark.slow
@pytest.mark.parametrize("syncfs", [False, True])
async def test_interrupted_anywhere_it_does_the_same_again(syncfs: bool) -> None:
    """The n-th call of a recovery fails, for every n; the next start finishes it."""
    struck, nth = True, 0
    while struck:
        nth += 1
        async with open_disk(MOUNTS["link"], syncfs=syncfs) as disk:
            await _a_bit_of_everything(disk)
            expected = {entry.id for entry in await disk.everything()}
            disk.calls.fail("*", errno.EIO, nth=nth)
            try:
                await disk.open()
                struck = False
            except StorageUnusable:
                struck = True
            disk.heal()
            await disk.open()
            found = await disk.everything()
            assert {entry.id for entry in found} < expected
            assert len(found) == 4, f"after a fault in call {nth}"
            assert disk.files("state/stage") == set()
            assert len(disk.files("state/properties")) == 1
            assert set(await disk.storage.records(QUEUE)) == {"q"}
    assert nth > 40


@pytest.mark.parametrize("syncfs", [False, True])
async def test_what_a_killed_process_left_is_durable_before_anything_is_taken_away(syncfs: bool) -> None:
    """The name that stays may be in the kernel's memory only, while the one that goes is on the medium."""
    async with open_disk(MOUNTS["link"], syncfs=syncfs) as disk:
        held = await disk.bring(State.DELAYED)
        also(disk, held, Entry("q", held.id, State.READY))
        disk.calls.log.clear()
        await disk.open()
        said = disk.calls.said("fsync", "syncfs", "unlink")
        first = next(i for i, line in enumerate(said) if line.startswith("unlink delay/"))
        before, after = said[:first], said[first + 1 :]
        for part in (before, after):
            assert ("syncfs ." if syncfs else "fsync queues/q") in part
            assert syncfs or "fsync delay" in part


@pytest.mark.parametrize("syncfs", [False, True])
async def test_what_a_killed_process_left_of_records_is_durable_before_they_are_read(syncfs: bool) -> None:
    """A key that is read as sure, and is not so on the medium, stands for nothing after a power cut."""
    async with open_disk(MOUNTS["rename"], syncfs=syncfs) as disk:
        await put_record(disk.storage, "key", "ledger", {"sure": True})
        disk.calls.log.clear()
        await disk.open()
        await disk.storage.records("key")
        said = disk.calls.said("fsync", "syncfs", "read", "open")
        read = max(i for i, line in enumerate(said) if line.startswith("open state/records/key/kledger.1"))
        for synced in ["syncfs ."] if syncfs else ["fsync state/records/key/kledger.1", "fsync state/records/key"]:
            assert synced in said[:read]


async def test_where_nothing_is_wrong_nothing_is_changed() -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        for state in State:
            await disk.bring(state, **LARGE)
        before = disk.tree()
        disk.calls.log.clear()
        await disk.open()
        assert disk.tree() == before
        changed = [line for line in disk.calls.said("unlink", "rename", "link", "rmdir") if "stage/probe" not in line]
        assert changed == []


async def test_no_handles_while_repairing_is_one_clear_line(caplog: pytest.LogCaptureFixture) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        await disk.bring(State.NEW)
        disk.folders.volume.failure = "killed"
        await disk.storage.aclose()
        disk.calls.fail("open", errno.EMFILE, path="new/*")
        with pytest.raises(StorageUnusable, match=r"cannot serve root .*Too many open files") as caught:
            await disk.open()
        assert "\n" not in str(caught.value)
        assert disk.calls.opened == {}, "handles are left open, the lock's among them"
        await disk.open()
