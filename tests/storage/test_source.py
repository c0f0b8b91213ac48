"""One folder, for a program that empties it beside the broker, or without one."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Final

import pytest
import trio

from mq.errors import StorageUnusable
from mq.lifecycle import State
from mq.storage.files.calls import LinuxCalls
from mq.storage.files.opening import open_root
from mq.storage.files.ownership import RootBusy
from mq.storage.files.stepwise.engine import kit_for
from mq.storage.files.stepwise.source import SourceFolder
from mq.storage.interface import Change, Entry, Move, Outcome, Result, Sharing, Unlink, Write
from simulation.calls import FaultyCalls
from tests.storage.disks import LARGE, LEASE, MOUNTS, Disk, new_id, open_disk

PATIENCE_SECONDS: Final = 20
"""Of a real clock: the kernel tells at once, and a test that hears nothing must end."""


@contextmanager
def source(state: State, folder: Path | str, destination: Path | str = "") -> Iterator[SourceFolder]:
    """A source folder for the length of a block."""
    opened = SourceFolder(state, str(folder), str(destination))
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def apart(tmp_path: Path) -> Path:
    """Folders that no broker made."""
    for name in ("in", "queues", "queues/q"):
        (tmp_path / name).mkdir()
    return tmp_path


def served(root: Path) -> AbstractAsyncContextManager[Disk]:
    """A real root that a broker serves."""
    return open_disk(MOUNTS["rename"], LinuxCalls(), str(root), sharing=Sharing.WATCHED)


async def test_messages_are_moved_between_folders_that_no_broker_made(apart: Path) -> None:
    id = new_id()
    (apart / "in" / f"q:{id}").write_bytes(b"body")
    with source(State.NEW, apart / "in", apart / "queues") as folder:
        entry = Entry("q", id, State.NEW)
        assert await folder.scan() == [entry]
        assert await folder.flaw(entry) is None
        outcome = (await folder.commit([Move(entry, State.READY, durable=False)]))[0]
        assert (outcome.result, outcome.entry) == (Result.DONE, Entry("q", id, State.READY))
        assert (await folder.commit([Move(entry, State.READY)]))[0].result is Result.GONE
        assert await folder.scan() == []
    assert (apart / "queues" / "q" / id).read_bytes() == b"body"
    assert sorted(os.listdir(apart)) == ["in", "queues"]


async def test_on_a_full_disk_the_brokers_reserve_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(tmp_path) as disk:
        entry = await disk.bring(State.NEW)
        (tmp_path / "state" / "ballast").write_bytes(b"x" * 1000)
        tried: list[str] = []

        def is_full(calls: LinuxCalls, source: str, target: str) -> None:
            tried.append(target)
            if len(tried) == 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), target)
            os.link(source, target)
            if not folder._folders.volume.mount.atomic_rename:
                return
            os.unlink(source)

        with source(State.NEW, tmp_path / "new", tmp_path / "queues") as folder:
            monkeypatch.setattr(LinuxCalls, "rename", is_full)
            monkeypatch.setattr(LinuxCalls, "link", is_full)
            assert (await folder.commit([Move(entry, State.READY)]))[0].result is Result.DONE
        assert not (tmp_path / "state" / "ballast").exists()


async def test_a_message_of_no_queue_stays(apart: Path) -> None:
    id = new_id()
    (apart / "in" / f"other:{id}").write_bytes(b"body")
    (apart / "queues" / "taken").write_bytes(b"")
    (apart / "in" / f"taken:{id}").write_bytes(b"body")
    with source(State.NEW, apart / "in", apart / "queues") as folder:
        outcomes = await folder.commit([Move(entry, State.READY) for entry in await folder.scan()])
        assert [outcome.result for outcome in outcomes] == [Result.NO_QUEUE] * 2
        assert len(await folder.scan()) == 2
        assert not folder.failure


async def test_removed_messages_are_unlinked_with_their_side_files(temp_root: Path) -> None:
    async with served(temp_root) as disk:
        await disk.bring(State.REMOVED, **LARGE)
        for end in ("", "/", "/."):
            removed = await disk.bring(State.REMOVED, **LARGE)
            with source(State.REMOVED, f"{temp_root}/remove{end}") as folder:
                assert (await folder.commit([Unlink(removed)]))[0].result is Result.DONE
            assert len(disk.files("state/properties")) == 1


async def test_nothing_is_left_in_folders_that_no_broker_made(apart: Path) -> None:
    (apart / "state").mkdir()
    with source(State.NEW, apart / "in", apart / "queues") as folder:
        await folder.commit([Move(Entry("q", new_id(), State.NEW), State.READY)])
    assert os.listdir(apart / "state") == []


@pytest.mark.parametrize(("number", "result"), [(errno.EMFILE, Result.FULL), (errno.EACCES, Result.DONE)])
async def test_without_a_handle_for_the_lock_it_is_tried_later(
    temp_root: Path, monkeypatch: pytest.MonkeyPatch, number: int, result: Result
) -> None:
    async with served(temp_root) as disk:
        entry = await disk.bring(State.NEW)
        with source(State.NEW, temp_root / "new", temp_root / "queues") as folder:
            calls = FaultyCalls(LinuxCalls(), str(temp_root))
            calls.fail("open", number, path="state/lock-moves")
            monkeypatch.setattr(folder, "_calls", calls)
            assert (await folder.commit([Move(entry, State.READY)]))[0].result is result
            assert (await folder.commit([Move(entry, State.READY)]))[0].result in (Result.DONE, Result.GONE)


async def test_a_relative_folder_will_do(temp_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(temp_root) as disk:
        removed = await disk.bring(State.REMOVED, **LARGE)
        monkeypatch.chdir(temp_root)
        with source(State.REMOVED, "remove") as folder:
            assert (await folder.commit([Unlink(removed)]))[0].result is Result.DONE
        assert disk.files() == set()


async def test_whether_a_message_is_whole_can_be_told(temp_root: Path) -> None:
    async with served(temp_root) as disk:
        entry = await disk.bring(State.NEW, b"body", a=1)
        large = await disk.bring(State.NEW, b"body", **LARGE)
        with source(State.NEW, temp_root / "new", temp_root / "queues") as folder:
            assert await folder.flaw(entry) == ""
            assert await folder.flaw(large) == ""
            assert await folder.flaw(entry._replace(id=new_id())) == "the file does not exist"
            disk.overwrite(disk.path(entry), b"bo")
            assert await folder.flaw(entry) == "2 bytes instead of 4"
            disk.overwrite(disk.path(entry), b"body")


async def test_when_a_message_arrived_is_known(temp_root: Path) -> None:
    async with served(temp_root) as disk:
        ready = await disk.bring(State.READY)
        before = time.time_ns()
        leased = await disk.done(Move(ready, State.DELAYED, LEASE))
        with source(State.DELAYED, temp_root / "delay", temp_root / "queues") as folder:
            arrived = await folder.arrived_ns(leased)
            assert arrived is not None
            assert before - 100_000_000 < arrived <= time.time_ns()  # the kernel's clock is a coarser one
            assert await folder.arrived_ns(ready) is None


async def test_what_arrives_and_leaves_is_told(temp_root: Path) -> None:
    async with served(temp_root) as disk:
        with source(State.NEW, temp_root / "new", temp_root / "queues") as folder:
            async with folder.changes() as changes:
                entry = await disk.done(Write("q", new_id(), b"body"))
                with trio.fail_after(PATIENCE_SECONDS):
                    assert await anext(changes) == Change(entry)
                await folder.commit([Move(entry, State.READY)])
                with trio.fail_after(PATIENCE_SECONDS):
                    while (told := await anext(changes)).present:
                        assert told == Change(entry), "a file that was closed since"
                assert told == Change(entry, present=False)


def test_a_folder_that_is_none_is_one_clear_line(apart: Path) -> None:
    (apart / "file").write_bytes(b"")
    for folder, destination in (
        (apart / "nowhere", apart / "queues"),
        (apart / "file", apart / "queues"),
        (apart / "in", apart / "nowhere"),
        (apart / "in", apart / "file"),
    ):
        with pytest.raises(StorageUnusable, match="cannot use") as caught:
            SourceFolder(State.NEW, str(folder), str(destination))
        assert "\n" not in str(caught.value)


def test_closing_lets_go_of_the_folder(apart: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with source(State.NEW, apart / "in", apart / "queues"):
        assert len(os.listdir("/proc/self/fd")) > before
    assert len(os.listdir("/proc/self/fd")) == before


# Beside a broker that starts


async def test_nothing_is_moved_while_the_root_is_repaired(temp_root: Path) -> None:
    async with served(temp_root) as disk:
        entry = await disk.bring(State.NEW)
        await disk.storage.aclose()
        with source(State.NEW, temp_root / "new", temp_root / "queues") as folder:
            outcomes: list[Outcome] = []
            moves = [Move(entry, State.READY)]
            disk.calls.just_before("names", "remove", lambda: outcomes.extend(folder._commit(moves)))
            await disk.open()
            assert [outcome.result for outcome in outcomes] == [Result.FULL]
            assert outcomes[0].reason
            assert (await folder.commit(moves))[0].result is Result.DONE


@pytest.mark.parametrize(
    ("sharing", "result"), [(Sharing.ALONE, Result.FULL), (Sharing.WATCHED, Result.DONE), (Sharing.PEERS, Result.DONE)]
)
async def test_nothing_is_moved_behind_a_broker_that_serves_alone(
    temp_root: Path, sharing: Sharing, result: Result
) -> None:
    """Its index would not find what others have moved, before its next start."""
    async with open_disk(MOUNTS["unordered"], LinuxCalls(), str(temp_root), sharing=sharing) as disk:
        entry = await disk.bring(State.NEW)
        with source(State.NEW, temp_root / "new", temp_root / "queues") as folder:
            [outcome] = await folder.commit([Move(entry, State.READY)])
            assert outcome.result is result
            assert ("Start that daemon with --no-mover" in outcome.reason) is (result is Result.FULL)
            await disk.storage.aclose()
            assert result is Result.DONE or (await folder.commit([Move(entry, State.READY)]))[0].result is Result.DONE
        await disk.open()


async def test_a_repair_does_not_come_between_the_two_steps_of_a_mover(temp_root: Path) -> None:
    """By links a message has two names for an instant. A repair would take one away, and then the mover the other."""
    mount = MOUNTS["link"]
    async with open_disk(mount, LinuxCalls(), str(temp_root), sharing=Sharing.WATCHED) as disk:
        entry = await disk.bring(State.NEW)
        await disk.storage.aclose()
        with source(State.NEW, temp_root / "new", temp_root / "queues") as folder:
            folder._kit = kit_for(mount)
            folder._folders.calls = calls = FaultyCalls(LinuxCalls(), str(temp_root))
            refusals: list[str] = []

            def start_a_broker() -> None:
                try:
                    open_root(LinuxCalls(), str(temp_root), mount, disk.options).close()
                except RootBusy as error:
                    refusals.append(str(error))

            assert calls.just_before("unlink", "new/*", start_a_broker) == []
            assert (await folder.commit([Move(entry, State.READY)]))[0].result is Result.DONE
            assert len(refusals) == 1
            assert "cannot be repaired while mq-mover or mq-reaper is running" in refusals[0]
        await disk.open()
        assert await disk.body(Entry("q", entry.id, State.READY)) == b"body"


async def test_a_broker_waits_until_a_mover_has_done_its_batch(
    temp_root: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with served(temp_root) as disk:
        await disk.storage.aclose()
        lock = os.open(temp_root / "state" / "lock-moves", os.O_RDWR | os.O_CREAT)
        disk.calls.lock(lock, exclusive=False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(disk.open)
            await trio.sleep(1)
            os.close(lock)
        await disk.bring(State.READY)
