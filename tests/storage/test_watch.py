"""What others do to the four folders is told as it happens; what cannot be told is "look again"."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import inotify_simple
import pytest
import trio

from mq.errors import StorageUnusable
from mq.lifecycle import State
from mq.storage.files.calls import FileKind, LinuxCalls
from mq.storage.files.fake import make_fake
from mq.storage.files.posix import FolderStorage
from mq.storage.files.stepwise.watch import watch_folders
from mq.storage.interface import QUEUE, Change, Entry, Meta, Move, Result, Sharing, Unlink, Write
from mq.storage.options import StorageOptions
from mq.storage.records import drop_record
from tests.storage.disks import LEASE, MOUNTS, Disk, new_id, open_disk

AGAIN: Final = Change(None)
GONE: Final = Result.GONE
PATIENCE_SECONDS: Final = 20
"""Of a real clock: the kernel tells at once, and a test that hears nothing must end."""


class Watched:
    """A real root that somebody changes, and a store that is told."""

    def __init__(self, disk: Disk, eyes: FolderStorage, changes: AsyncIterator[Change], root: Path) -> None:
        self.disk = disk
        self.eyes = eyes
        self.root = root
        self._changes = changes

    async def told(self) -> list[Change]:
        """All that is told of what was done so far, each once: a file that is renamed and then closed is told twice."""
        marker = Entry("marker", new_id(), State.DELAYED)
        found: list[Change] = []
        (self.root / "mark").touch()
        (self.root / "mark").rename(self.root / "delay" / f"marker:{marker.id}")
        with trio.fail_after(PATIENCE_SECONDS):
            async for change in self._changes:
                if change == Change(marker):
                    break
                found.append(change)
        (self.root / "delay" / f"marker:{marker.id}").unlink()
        return [change for change in dict.fromkeys(found) if change.entry is None or change.entry.queue != "marker"]


@asynccontextmanager
async def watching(root: Path, mount: str = "rename", **options: Any) -> AsyncIterator[Watched]:
    async with open_disk(MOUNTS[mount], LinuxCalls(), str(root), **(options or {"sharing": Sharing.PEERS})) as disk:
        eyes = FolderStorage(
            "eyes:", str(root), LinuxCalls(), StorageOptions(sharing=Sharing.PEERS), mount=lambda root: MOUNTS[mount]
        )
        await eyes.open()
        async with watch_folders(eyes._root_open.folders, frozenset(State), eyes._own_changes) as changes:
            yield Watched(disk, eyes, changes, root)
        await eyes.aclose()


def appeared(*entries: Entry) -> list[Change]:
    return [Change(entry) for entry in entries]


def vanished(*entries: Entry) -> list[Change]:
    return [Change(entry, present=False) for entry in entries]


@pytest.mark.parametrize("mount", MOUNTS)
async def test_a_message_is_told_on_its_whole_way(temp_root: Path, mount: str) -> None:
    async with watching(temp_root, mount) as watched:
        disk = watched.disk
        place = await disk.done(Write("q", new_id(), b"body"))
        assert await watched.told() == appeared(place)
        for state, meta in (
            (State.READY, Meta()),
            (State.DELAYED, LEASE),
            (State.DELAYED, LEASE._replace(deadline_ms=2)),
            (State.READY, Meta(receives=1)),
            (State.REMOVED, Meta()),
        ):
            left, place = place, await disk.done(Move(place, state, meta))
            assert set(await watched.told()) == {Change(left, present=False), Change(place)}
        assert await disk.one(Unlink(place)) is Result.DONE
        assert await watched.told() == vanished(place)


@pytest.mark.parametrize("mount", MOUNTS)
async def test_what_came_and_went_before_a_look_is_not_told(temp_root: Path, mount: str) -> None:
    async with watching(temp_root, mount) as watched:
        disk = watched.disk
        known = await disk.bring(State.READY)
        await watched.told()
        leased = await disk.done(Move(known, State.DELAYED, LEASE))
        assert (await disk.done(Move(leased, State.READY))).state is State.READY
        last = await disk.done(Move(known, State.DELAYED, LEASE._replace(deadline_ms=2)))
        passing = await disk.bring(State.READY)
        await disk.one(Unlink(await disk.done(Move(passing, State.REMOVED))))
        assert set(await watched.told()) == {Change(known, present=False), Change(last)}


async def test_what_is_here_already_and_leaves_is_told_though_it_was_changed_before(temp_root: Path) -> None:
    """A file that was closed anew, and one that this process brought."""
    async with watching(temp_root) as watched:
        known = await watched.disk.bring(State.READY)
        await watched.told()
        path = watched.root / "queues" / "q" / known.id
        os.close(os.open(path, os.O_WRONLY))
        path.unlink()
        assert await watched.told() == vanished(known)
        [mine] = await watched.eyes.commit([Write("q", new_id(), b"body")])
        assert mine.entry is not None
        [ready] = await watched.eyes.commit([Move(mine.entry, State.READY)])
        assert ready.entry is not None
        left = await watched.disk.done(Move(ready.entry, State.DELAYED, LEASE))
        assert Change(ready.entry, present=False) in (told := await watched.told())
        assert Change(left) in told


@pytest.mark.parametrize("mount", MOUNTS)
async def test_what_it_does_itself_is_not_told_and_what_others_do_in_between_is(temp_root: Path, mount: str) -> None:
    async with watching(temp_root, mount) as watched:
        mine, disk = watched.eyes, watched.disk
        [written] = await mine.commit([Write("q", new_id(), b"body")])
        theirs = await disk.bring(State.READY)
        place = written.entry
        for move in (State.READY, State.DELAYED, State.READY):
            assert place is not None
            [moved] = await mine.commit([Move(place, move, LEASE if move is State.DELAYED else Meta())])
            place = moved.entry
        assert place is not None
        left = await disk.done(Move(place, State.DELAYED, LEASE))
        assert (await mine.commit([Move(place, State.DELAYED, LEASE), Move(theirs, State.REMOVED)]))[0].result is GONE
        told = [change for change in await watched.told() if change.entry is not None]
        assert {change.entry.id for change in told if change.entry.id != theirs.id} == {left.id}
        # In NEW, into which no broker looks, its file is told once more, when it is closed.
        here = [change for change in told if change.entry.id == left.id and change.entry.state is not State.NEW]
        assert set(here) == {Change(left), Change(place, present=False)}, "of two moves of a name the second"
        assert theirs.id not in {change.entry.id for change in told}, "it was brought by others, and left by this one"
        assert watched.eyes._own_changes._noted == {}, "what failed is noted no more"


async def test_a_broker_hears_of_queues_and_leases_only(temp_root: Path) -> None:
    async with watching(temp_root) as watched:
        told = watched.eyes.changes()
        assert told is not None
        async with told as changes:
            removed = await watched.disk.bring(State.REMOVED)
            await watched.disk.bring(State.NEW)
            ready = await watched.disk.bring(State.READY)
            heard = []
            while ready not in [change.entry for change in heard]:
                with trio.fail_after(PATIENCE_SECONDS):
                    heard.append(await anext(changes))
        assert {change.entry.state for change in heard if change.entry} == {State.READY}
        assert Change(removed) not in heard


async def test_a_file_that_is_written_in_place_is_told_when_it_is_closed(temp_root: Path) -> None:
    async with watching(temp_root) as watched:
        entry = Entry("q", new_id(), State.READY)
        fd = os.open(watched.root / "queues" / "q" / entry.id, os.O_CREAT | os.O_WRONLY)
        os.write(fd, b"a part")
        assert await watched.told() == []
        os.close(fd)
        assert await watched.told() == appeared(entry)


async def test_a_message_moved_in_by_hand_is_told(temp_root: Path) -> None:
    async with watching(temp_root) as watched:
        entry = Entry("q", new_id(), State.READY)
        (watched.root.parent / "outside").write_bytes(b"by hand")
        (watched.root.parent / "outside").rename(watched.root / "queues" / "q" / entry.id)
        assert await watched.told() == appeared(entry)
        (watched.root / "queues" / "q" / entry.id).unlink()
        assert await watched.told() == vanished(entry)


@pytest.mark.parametrize("way", ["made", "moved in"])
async def test_a_new_queue_is_looked_at_and_then_watched(temp_root: Path, way: str) -> None:
    async with watching(temp_root) as watched:
        made = watched.root / "queues" / "by-hand"
        if way == "made":
            made.mkdir()
        else:
            (watched.root.parent / "by-hand").mkdir()
            (watched.root.parent / "by-hand").rename(made)
        assert await watched.told() == [AGAIN]
        ready = await watched.disk.bring(State.READY, queue="by-hand")
        assert Change(ready) in await watched.told()


async def test_what_came_into_a_new_queue_before_it_was_watched_is_looked_for(temp_root: Path) -> None:
    async with watching(temp_root) as watched:
        await watched.disk.make_queue("new")
        early = await watched.disk.bring(State.READY, queue="new")
        told = await watched.told()
        assert AGAIN in told or Change(early) in told
        late = await watched.disk.bring(State.READY, queue="new")
        assert Change(late) in await watched.told()


async def test_a_deleted_queue_is_looked_at_and_watched_no_more(temp_root: Path) -> None:
    async with watching(temp_root) as watched:
        ready = await watched.disk.bring(State.READY)
        await watched.told()
        await drop_record(watched.disk.storage, QUEUE, "q")
        removed = (await watched.disk.storage.scan(State.REMOVED))[0]
        assert set(await watched.told()) == {AGAIN, Change(removed)}
        assert await watched.disk.one(Unlink(removed)) is Result.DONE
        told = await watched.told()
        assert told == vanished(removed)
        assert Change(ready, present=False) not in told


@pytest.mark.parametrize("reaped", [False, True])
async def test_a_queue_made_again_is_watched_again(temp_root: Path, reaped: bool) -> None:
    async with watching(temp_root) as watched:
        disk = watched.disk
        for _ in range(3):
            await disk.bring(State.READY)
            await drop_record(disk.storage, QUEUE, "q")
            if reaped:
                for entry in await disk.storage.scan(State.REMOVED):
                    await disk.one(Unlink(entry))
            await disk.make_queue()
            assert AGAIN in await watched.told()
            ready = await disk.bring(State.READY)
            assert Change(ready) in await watched.told()


async def test_a_queue_that_vanishes_while_it_is_found_is_no_error(
    temp_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_watch = inotify_simple.INotify.add_watch

    def too_late(notifier: inotify_simple.INotify, path: str, mask: int) -> int:
        if str(path).endswith("queues/fleeting"):
            os.rmdir(path)
        return add_watch(notifier, path, mask)

    monkeypatch.setattr(inotify_simple.INotify, "add_watch", too_late)
    async with watching(temp_root) as watched:
        (watched.root / "queues" / "fleeting").mkdir()
        assert AGAIN in await watched.told()
        ready = await watched.disk.bring(State.READY)
        assert Change(ready) in await watched.told()


@pytest.fixture
def overflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Put something in, and the kernel says once that it dropped every event that waits."""
    wanted: list[bool] = []
    read = inotify_simple.INotify.read

    def overflowing(notifier: inotify_simple.INotify, **options: int) -> list[inotify_simple.Event]:
        events = read(notifier, **options)
        if wanted and events:
            wanted.clear()
            return [inotify_simple.Event(-1, inotify_simple.flags.Q_OVERFLOW, 0, ""), *events[-2:]]
        return events

    monkeypatch.setattr(inotify_simple.INotify, "read", overflowing)
    yield wanted
    assert not wanted


async def test_when_the_kernel_drops_events_everything_is_looked_at(temp_root: Path, overflow: list[bool]) -> None:
    async with watching(temp_root) as watched:
        overflow.append(True)
        await watched.disk.bring(State.READY)
        assert (await watched.told())[0] == AGAIN
        ready = await watched.disk.bring(State.READY)
        assert Change(ready) in await watched.told()


async def test_queues_that_came_and_went_in_dropped_events_are_watched(temp_root: Path, overflow: list[bool]) -> None:
    async with watching(temp_root) as watched:
        overflow.append(True)
        await watched.disk.make_queue("new")
        await drop_record(watched.disk.storage, QUEUE, "q")
        await watched.disk.make_queue("q")
        assert (await watched.told())[0] == AGAIN
        for queue in ("new", "q"):
            ready = await watched.disk.bring(State.READY, queue=queue)
            assert Change(ready) in await watched.told()


@pytest.mark.parametrize("mount", ["rename", "link"])
@pytest.mark.parametrize("kind", ["folder", "fifo", "link", "name"])
async def test_what_is_foreign_is_not_told(temp_root: Path, kind: str, mount: str) -> None:
    async with watching(temp_root, mount) as watched:
        outside = watched.root.parent / "outside"
        for folder, name in (("queues/q", new_id()), ("new", f"q:{new_id()}"), ("delay", f"q:{new_id()}")):
            inside = watched.root / folder / (name if kind != "name" else "README")
            if kind == "folder":
                outside.mkdir()
            elif kind == "fifo":
                os.mkfifo(outside)
            elif kind == "link":
                outside.symlink_to(watched.root / "state" / "lock")
            else:
                outside.write_bytes(b"foreign")
            outside.rename(inside)
        assert await watched.told() == []
        shutil.rmtree(watched.root / "queues" / "q")
        (watched.root / "queues" / "q").mkdir()


async def test_a_deleted_queue_in_remove_is_told_for_a_reaper(temp_root: Path) -> None:
    async with watching(temp_root) as watched:
        await watched.disk.make_queue("other")
        await watched.told()
        await drop_record(watched.disk.storage, QUEUE, "other")
        told = await watched.told()
        assert [change.entry.state for change in told if change.entry is not None] == [State.REMOVED]


async def test_waiting_can_be_cancelled_and_the_watch_ends_with_its_block(temp_root: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    async with watching(temp_root) as watched:
        with trio.move_on_after(0.01) as scope:
            await anext(watched._changes)
        assert scope.cancelled_caught
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("verb", "number"), [("__init__", errno.EMFILE), ("add_watch", errno.ENOSPC)])
async def test_a_machine_without_watches_is_one_clear_line(
    temp_root: Path, monkeypatch: pytest.MonkeyPatch, verb: str, number: int
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    async with open_disk(MOUNTS["rename"], LinuxCalls(), str(temp_root), sharing=Sharing.PEERS) as disk:
        store = FolderStorage("x:", str(temp_root), LinuxCalls(), disk.options, mount=lambda root: MOUNTS["rename"])
        await store.open()
        with monkeypatch.context() as patched:
            patched.setattr(inotify_simple.INotify, verb, refuse)
            told = store.changes()
            assert told is not None
            with pytest.raises(StorageUnusable, match=r"cannot watch the folders: .*max_user_watches") as caught:
                await told.__aenter__()
            assert "\n" not in str(caught.value)
        await store.aclose()


async def test_a_new_queue_is_watched_once_there_are_file_handles_again(
    temp_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Being out of them for a moment ended the daemon."""
    failures = iter(range(2))
    names = LinuxCalls().names

    def scarce(path: str | int) -> list[tuple[str, FileKind]]:
        if str(path).endswith("/queues") and next(failures, None) is not None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        listed: list[tuple[str, FileKind]] = names(path)
        return listed

    async with watching(temp_root) as watched:
        monkeypatch.setattr(watched.eyes._root_open.folders.calls, "names", scarce)
        monkeypatch.setattr("mq.storage.files.stepwise.watch._PAUSE_SECONDS", 0.01)
        (watched.root / "queues" / "by-hand").mkdir()
        assert await watched.told() == [AGAIN]
        ready = await watched.disk.bring(State.READY, queue="by-hand")
        assert Change(ready) in await watched.told()
        assert next(failures, None) is None


def test_a_store_without_a_kernel_cannot_tell() -> None:
    assert make_fake("/anywhere", StorageOptions()).changes() is None
