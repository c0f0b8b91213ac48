"""Backup and restore: what they bring back, what ends them half-way, and what they refuse. That a backup of a root in
motion is what a power cut would have left is in tests/simulation/test_saved_lives.py."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mq.errors import StorageUnusable
from mq.lifecycle import State
from mq.storage.files import backup
from mq.storage.files.backup import BackupReport, back_up, save, servable
from mq.storage.files.backup_folder import open_backups
from mq.storage.files.calls import OPEN_NEW, OPEN_READ, Calls, LinuxCalls
from mq.storage.files.fake import make_calls
from mq.storage.files.format import RootUse, note_use, open_moves_lock, read_use
from mq.storage.files.layout import Layout
from mq.storage.files.live_names import NameEvent, Overflowed
from mq.storage.files.logged.segments import Record
from mq.storage.files.mount import Mount
from mq.storage.files.restore import RestoreReport, bring_back, restore
from mq.storage.interface import WRITE_JOBS, Entry, Meta, Move, Write
from mq.storage.options import StorageOptions
from mq.storage.records import put_record
from simulation.calls import FaultyCalls
from simulation.disk import Disk as CutDisk
from simulation.disk import Medium
from simulation.faults import Faults, PowerCut
from tests.cases import for_each
from tests.commit import commit_number
from tests.storage.disks import LARGE, MOUNTS, Disk, new_id, open_disk

BACKUPS, RESTORED = "/backups", "/restored"
BODY = b"some bytes of a body"


class Still:
    """A notifier of folders in which nothing happens but what a test says."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.told: list[NameEvent] = []
        self.overflows = 0

    def watch(self, path: str) -> int:
        self.paths.append(path)
        return len(self.paths)

    def forget(self, watch: int) -> None:
        pass

    def changes(self) -> list[NameEvent]:
        if self.overflows:
            self.overflows -= 1
            raise Overflowed
        told, self.told = self.told, []
        return told

    def close(self) -> None:
        pass

    def tell(self, folder: str, name: str, *, appeared: bool) -> None:
        watch = max(number for number, path in enumerate(self.paths, 1) if path.endswith(f"/{folder}"))
        self.told.append(NameEvent(watch, name, appeared))


@pytest.fixture(params=sorted(MOUNTS))
async def disk(request: pytest.FixtureRequest) -> AsyncIterator[Disk]:
    async with open_disk(MOUNTS[request.param]) as disk:
        yield disk


def backed_up(disk: Disk, target: Calls, keep: int = 7, still: Still | None = None, **more: Any) -> BackupReport:
    with open_backups(target, BACKUPS, make=True) as backups:
        return save(disk.calls, disk.root, backups, still or Still(), keep=keep, **more)


def restored(source: Calls, calls: Calls, number: int | None = None) -> RestoreReport:
    with open_backups(source, BACKUPS, make=False) as backups:
        found = backups.newest() if number is None else backups.read(number)
        assert found is not None
        return bring_back(calls, backups, found, RESTORED, syncfs=False)


@contextlib.asynccontextmanager
async def served(calls: Calls, mount: Mount) -> AsyncIterator[Disk]:
    """The restored root, as a daemon opens it."""
    disk = Disk(mount, calls, RESTORED)
    await disk.open()
    yield disk
    await disk.check_whole()


async def fill(disk: Disk) -> dict[Entry, bytes]:
    """One of each kind; what is there, removed messages left out."""
    bodies = {
        await disk.bring(State.NEW): b"body",
        await disk.bring(State.READY, BODY * 100_000, note="é \ud800"): BODY * 100_000,
        await disk.bring(State.READY, b"", **LARGE): b"",
        await disk.bring(State.DELAYED, BODY, **LARGE): BODY,
    }
    later = await disk.done(Write("q", new_id(), BODY, {}, Meta(deadline_ms=1_800_000_000_000, expires_ms=1)))
    bodies[await disk.done(Move(later, State.DELAYED, later.meta))] = BODY
    await disk.bring(State.REMOVED)
    return bodies


async def test_what_is_restored_is_what_was_there(disk: Disk) -> None:
    bodies = await fill(disk)
    target, elsewhere = make_calls(), make_calls()
    report = backed_up(disk, target)
    assert (report.header.messages, report.header.queues, report.copied) == (5, 1, 5)
    assert report.header.bytes == sum(map(len, bodies.values()))
    assert restored(target, elsewhere).restored == 5
    async with served(elsewhere, disk.mount) as again:
        assert await again.everything() == set(bodies)
        for entry, body in bodies.items():
            assert await again.body(entry) == body
            assert await again.attributes(entry) == await disk.attributes(entry)
        assert await again.storage.records("queue") == await disk.storage.records("queue")


async def test_what_write_jobs_hold_back_is_there_too(disk: Disk) -> None:
    """It belongs to no queue that there is."""
    held = await disk.done(Write(WRITE_JOBS, new_id(), b"rows", {"job": "j"}))
    await put_record(disk.storage, "write_job", "j", {"state": "open"})
    target, elsewhere = make_calls(), make_calls()
    backed_up(disk, target)
    restored(target, elsewhere)
    async with served(elsewhere, disk.mount) as again:
        assert await again.storage.scan(State.NEW, WRITE_JOBS) == [held]
        assert (await again.body(held), await again.attributes(held)) == (b"rows", {"job": "j"})
        assert await again.storage.records("write_job") == {"j": {"state": "open"}}


async def test_properties_survive_where_there_are_no_extended_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        entry = await disk.bring(State.READY, BODY, note="kept")
        target, elsewhere = make_calls(), make_calls()
        backed_up(disk, target)

        def refused(*given: object) -> None:
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

        monkeypatch.setattr(elsewhere, "set_attribute", refused)
        monkeypatch.setattr(elsewhere, "get_attribute", lambda fd, name: None)
        restored(target, elsewhere)
        async with served(elsewhere, disk.mount) as again:
            assert await again.attributes(entry) == {"note": "kept"}
            assert again.folders.flaw(entry) == ""


@pytest.mark.slow
async def test_the_next_one_copies_what_is_new(disk: Disk) -> None:
    target = make_calls()
    bodies = await fill(disk)
    backed_up(disk, target)
    disk.calls.log.clear()
    gone = next(entry for entry in bodies if entry.state is State.READY)
    await disk.done(Move(gone, State.REMOVED, gone.meta))
    new = await disk.bring(State.READY, b"new")
    disk.calls.log.clear()
    assert backed_up(disk, target).copied == 1
    opened = [line for line in disk.calls.said("open") if "records" not in line]
    assert opened == [f"open {disk.path(new)}"]
    second, first = make_calls(), make_calls()
    restored(target, second)
    restored(target, first, number=1)
    async with served(second, disk.mount) as again:
        assert await again.everything() == {*bodies, new} - {gone}
    async with served(first, disk.mount) as again:
        assert await again.everything() == set(bodies)


async def test_of_many_the_last_are_kept_with_their_bodies(disk: Disk) -> None:
    target = make_calls()
    entries = []
    for number in range(4):
        entries.append(await disk.bring(State.READY, b"%d" % number))
        backed_up(disk, target, keep=2)
        await disk.done(Move(entries[-1], State.REMOVED, entries[-1].meta))
    with open_backups(target, BACKUPS, make=False) as backups:
        assert backups.numbers() == [3, 4]
        assert [list(backups.body(entry.id)) for entry in entries] == [[], [], [b"2"], [b"3"]]


async def test_a_body_that_an_older_backup_names_is_not_written_again(disk: Disk) -> None:
    """As after that one was restored: the newest does not have the message, and the root does."""
    target = FaultyCalls(make_calls(), BACKUPS)
    entry, empty = await disk.bring(State.READY, BODY), f"{disk.root}/kept"
    backed_up(disk, target)
    disk.inner.rename(f"{disk.root}/{disk.path(entry)}", empty)
    assert backed_up(disk, target).header.messages == 0
    disk.inner.rename(empty, f"{disk.root}/{disk.path(entry)}")
    target.log.clear()
    assert backed_up(disk, target).header.messages == 1
    assert target.said("unlink") == []


async def test_a_backup_without_its_last_line_is_none(disk: Disk) -> None:
    target = make_calls()
    await disk.bring(State.READY)
    backed_up(disk, target)
    path = f"{BACKUPS}/backups/000002.jsonl"
    backed_up(disk, target)
    fd = target.open(path, OPEN_READ)
    lines = target.read(fd, 1 << 20).splitlines(keepends=True)
    for end in (0, 1, len(lines) - 1):
        target.unlink(path)
        target.write(target.open(path, OPEN_NEW), b"".join(lines[:end]))
        with open_backups(target, BACKUPS, make=False) as backups:
            newest = backups.newest()
            assert newest is not None
            assert (newest.header.number, backups.has_end(2)) == (1, False)


# In motion


async def test_a_message_half_written_when_it_was_read_is_read_again(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was acknowledged between that and the instant."""
    monkeypatch.setattr(backup, "MOST_HELD", 1)  # so that it is copied at once
    entry = await disk.bring(State.NEW, BODY)
    path, target = disk.path(entry), make_calls()
    disk.overwrite(path, BODY[:7])
    backed_up(disk, target, instant=lambda: disk.overwrite(path, BODY))
    restored(target, elsewhere := make_calls())
    async with served(elsewhere, disk.mount) as again:
        assert await again.body(entry) == BODY


async def test_a_record_half_written_when_it_was_read_is_read_again(disk: Disk) -> None:
    """It took the place of the one before it between that and the instant, and went itself after it."""
    [record] = [path for path in disk.tree() if path.startswith("state/records/queue/")]
    whole, records = disk.bytes_of(record), await disk.storage.records("queue")
    disk.overwrite(record, whole[:9])

    def instant() -> None:
        disk.overwrite(record, whole)
        disk.inner.unlink(f"{disk.root}/{record}")

    target = make_calls()
    backed_up(disk, target, instant=instant)
    restored(target, elsewhere := make_calls())
    async with served(elsewhere, disk.mount) as again:
        assert await again.storage.records("queue") == records
    disk.put(record, whole)


async def test_a_record_that_is_being_written_at_the_instant_is_not_taken_for_damaged(disk: Disk) -> None:
    """A power cut at that instant would have left the same torn files, and the start after it removes them."""
    await put_record(disk.storage, "consumer", "c", {"epoch": 1})
    [record] = [path for path in disk.tree() if path.startswith("state/records/consumer/")]
    later, new = f"{record.removesuffix('.1')}.2", f"{os.path.dirname(record)}/kd.1"
    disk.put(later, disk.bytes_of(record)[:9])
    disk.put(new, b"")
    target, elsewhere = make_calls(), make_calls()
    backed_up(disk, target)
    disk.inner.unlink(f"{disk.root}/{later}")
    disk.inner.unlink(f"{disk.root}/{new}")
    restored(target, elsewhere)
    async with served(elsewhere, disk.mount) as again:
        assert await again.storage.records("consumer") == {"c": {"epoch": 1}}
        assert again.folders.health.damages == []


async def test_what_is_removed_before_it_is_read_is_not_there(disk: Disk) -> None:
    entry, other = await disk.bring(State.READY), await disk.bring(State.READY)
    still, target = Still(), make_calls()

    def gone() -> None:
        disk.inner.unlink(f"{disk.root}/{disk.path(entry)}")
        still.tell("queues/q", entry.id, appeared=False)

    disk.calls.just_before("open", disk.path(entry), gone)
    backed_up(disk, target, still=still)
    restored(target, elsewhere := make_calls())
    async with served(elsewhere, disk.mount) as again:
        assert await again.everything() == {other}


async def test_of_two_names_the_later_place_counts(disk: Disk) -> None:
    entry = await disk.bring(State.READY)
    disk.inner.link(f"{disk.root}/{disk.path(entry)}", f"{disk.root}/new/q:{entry.id}")
    removed = await disk.bring(State.READY)
    disk.inner.link(f"{disk.root}/{disk.path(removed)}", f"{disk.root}/remove/q:{removed.id}")
    target = make_calls()
    assert backed_up(disk, target).header.messages == 1
    disk.inner.unlink(f"{disk.root}/new/q:{entry.id}")
    disk.inner.unlink(f"{disk.root}/remove/q:{removed.id}")
    restored(target, elsewhere := make_calls())
    async with served(elsewhere, disk.mount) as again:
        assert await again.everything() == {entry}


async def test_changes_that_were_lost_are_looked_for(disk: Disk) -> None:
    await fill(disk)
    still, target = Still(), make_calls()
    still.overflows = 3
    assert backed_up(disk, target, still=still).header.messages == 5
    still.overflows = 1000
    with pytest.raises(StorageUnusable, match="max_queued_events"):
        backed_up(disk, target, still=still)


async def test_a_group_that_is_half_done_is_waited_for(disk: Disk) -> None:
    """Its record is there, and its message comes last."""
    disk.inner.mkdir(f"{disk.root}/state/log")
    disk.put("state/log/half", b"")
    still, target, pauses = Still(), make_calls(), []
    entries: list[Entry] = [await disk.bring(State.READY)]
    path = disk.path(entries[0])
    disk.inner.rename(f"{disk.root}/{path}", f"{disk.root}/aside")

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            disk.inner.rename(f"{disk.root}/aside", f"{disk.root}/{path}")
            still.tell("queues/q", entries[0].id, appeared=True)
            disk.inner.unlink(f"{disk.root}/state/log/half")
            still.tell("state/log", "half", appeared=False)

    assert backed_up(disk, target, still=still, pause=pause).header.messages == 1
    assert len(pauses) == 3


async def test_a_group_that_stays_half_done_is_refused(disk: Disk) -> None:
    disk.inner.mkdir(f"{disk.root}/state/log")
    disk.put("state/log/half", b"")
    target, pauses = make_calls(), []
    with pytest.raises(StorageUnusable, match="Restart the daemon, then create the backup"):
        backed_up(disk, target, pause=pauses.append)
    assert sum(pauses) == pytest.approx(30)
    disk.inner.unlink(f"{disk.root}/state/log/half")
    assert backed_up(disk, target).header.number == 1


async def test_what_is_foreign_is_left_out(disk: Disk) -> None:
    entry = await disk.bring(State.READY)
    disk.put("queues/q/foreign", b"x")
    disk.put("new/none")
    target = make_calls()
    backed_up(disk, target)
    restored(target, elsewhere := make_calls())
    async with served(elsewhere, disk.mount) as again:
        assert await again.everything() == {entry}


# Ended half-way


def cut_disk(medium: Medium, random: Random) -> tuple[CutDisk, Faults]:
    faults = Faults(random, lambda text: None)
    return CutDisk(medium, random, faults), faults


each_cut = pytest.mark.parametrize("step", [16, pytest.param(1, marks=pytest.mark.proof)])
"""At every call, or at some, others with each commit."""


@pytest.mark.slow
@each_cut
@pytest.mark.parametrize("medium", Medium)
async def test_a_backup_that_is_cut_off_harms_none_before_it(medium: Medium, step: int) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        first = await disk.bring(State.READY, b"first")

        async def look(target: Calls, number: int, entries: set[Entry]) -> None:
            restored(target, elsewhere := make_calls(), number)
            async with served(elsewhere, disk.mount) as again:
                assert await again.everything() == entries
                assert [await again.body(entry) for entry in entries]

        random, at, is_over = Random(medium.value), -(commit_number() % step), False
        while not is_over:
            at += step
            target, faults = cut_disk(medium, random)
            backed_up(disk, target)
            target.crash()  # it has said that it is done
            second = await disk.bring(State.READY, b"second")
            faults.cut_at = faults.calls + at
            with contextlib.suppress(PowerCut):
                backed_up(disk, target, keep=2)
                is_over = True
            target.crash()
            faults.lift()
            await look(target, 1, {first})
            report = backed_up(disk, target, keep=2)
            target.crash()
            await look(target, report.header.number, {first, second})
            await disk.done(Move(second, State.REMOVED, second.meta))
        assert at > 10


@each_cut
@pytest.mark.parametrize("medium", Medium)
async def test_a_first_backup_that_is_cut_off_is_begun_anew(medium: Medium, step: int) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        entry = await disk.bring(State.READY, b"first")
        random, at, is_over = Random(medium.value), -(commit_number() % step), False
        while not is_over:
            at += step
            target, faults = cut_disk(medium, random)
            faults.cut_at = at
            with contextlib.suppress(PowerCut):
                backed_up(disk, target)
                is_over = True
            target.crash()
            faults.lift()
            backed_up(disk, target)
            target.crash()
            restored(target, elsewhere := make_calls())
            async with served(elsewhere, disk.mount) as again:
                assert await again.everything() == {entry}


@each_cut
@pytest.mark.parametrize("medium", Medium)
async def test_a_restore_that_is_cut_off_is_served_by_none_and_begun_anew(medium: Medium, step: int) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        bodies = {await disk.bring(State.READY, b"one", **LARGE): b"one", await disk.bring(State.DELAYED): b"body"}
        source = make_calls()
        backed_up(disk, source)
        random, at, is_over = Random(medium.value), -(commit_number() % step), False
        while not is_over:
            at += step
            target, faults = cut_disk(medium, random)
            faults.cut_at = at
            with contextlib.suppress(PowerCut):
                restored(source, target)
                is_over = True
            target.crash()
            faults.lift()
            if not is_over and await everything_in(target) != set(bodies):
                restored(source, target)
                target.crash()
            assert await everything_in(target) == set(bodies), at


async def everything_in(calls: Calls) -> set[Entry] | None:
    """What a daemon finds that is started there; None when it refuses, or there is nothing."""
    layout = Layout.under(RESTORED)
    if calls.kind(layout.new) is None:
        return None  # a daemon would begin with an empty root: nothing was restored, and nobody was told otherwise
    if read_use(calls, layout) is RootUse.RESTORING:
        return None
    disk = Disk(MOUNTS["link"], calls, RESTORED)
    await disk.open()
    found = await disk.everything()
    for entry in found:
        await disk.body(entry)
    await disk.storage.aclose()
    return found


# What is refused, and what goes wrong

on_one_disk = pytest.mark.parametrize("disk", ["rename"], indirect=True)


@on_one_disk
async def test_a_body_that_was_damaged_in_the_backup_is_named_and_left_out(disk: Disk) -> None:
    whole, broken, gone = [await disk.bring(State.READY, body) for body in (b"whole", b"broken", b"gone")]
    target = make_calls()
    backed_up(disk, target)
    target.unlink(f"{BACKUPS}/bodies/{broken.id[6:8]}/{broken.id}")
    fd = target.open(f"{BACKUPS}/bodies/{broken.id[6:8]}/{broken.id}", OPEN_NEW)
    target.write(fd, b"BROKEN")
    target.unlink(f"{BACKUPS}/bodies/{gone.id[6:8]}/{gone.id}")
    report = restored(target, elsewhere := make_calls())
    assert (report.restored, set(report.damaged)) == (1, {broken.id, gone.id})
    async with served(elsewhere, disk.mount) as again:
        assert await again.everything() == {whole}


@on_one_disk
async def test_a_body_that_is_gone_from_the_backup_is_copied_by_the_next_one(disk: Disk) -> None:
    """As after a copy of the folder that was broken off, or where a damaged body was taken away."""
    kept, gone, empty = [await disk.bring(State.READY, body) for body in (b"kept", b"gone", b"")]
    target = make_calls()
    backed_up(disk, target)
    target.unlink(f"{BACKUPS}/bodies/{gone.id[6:8]}/{gone.id}")
    assert backed_up(disk, target).copied == 1
    elsewhere = make_calls()
    assert restored(target, elsewhere).damaged == ()
    async with served(elsewhere, disk.mount) as again:
        assert await again.everything() == {kept, gone, empty}


def take_in_use(disk: Disk) -> None:
    """Let the root look as if its daemon had a log: then none holds the lock of movers."""
    layout = Layout.under(disk.root)
    disk.inner.unlink(layout.moves_lock)
    note_use(disk.inner, layout, RootUse.LOG)


@on_one_disk
async def test_a_root_whose_log_may_have_more_is_refused(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout.under(disk.root)
    await disk.storage.aclose()
    take_in_use(disk)
    monkeypatch.setattr(backup, "read_log", lambda calls, folder: [])
    with servable(disk.calls, disk.root, is_remote=False):
        pass  # the log has nothing to say, and mq doctor --repair nothing to do
    monkeypatch.setattr(backup, "read_log", lambda calls, folder: [Record(1, b"", 0)])
    with (
        pytest.raises(
            StorageUnusable, match="its write-ahead log may contain changes that are missing from the message files"
        ),
        servable(disk.calls, disk.root, is_remote=False),
    ):
        pass
    note_use(disk.inner, layout, RootUse.FILES)
    await disk.open()


@on_one_disk
async def test_a_root_with_a_log_that_is_served_is_not_refused(disk: Disk) -> None:
    take_in_use(disk)
    with servable(disk.calls, disk.root, is_remote=False):
        pass
    note_use(disk.inner, Layout.under(disk.root), RootUse.FILES)


@on_one_disk
@pytest.mark.parametrize(("life", "is_refused"), [("another-boot:7", True), ("this-boot:7", False), ("", False)])
async def test_a_log_of_before_is_not_yet_in_the_files(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, life: str, is_refused: bool
) -> None:
    """The daemon holds the root, and has not begun to repair it."""
    monkeypatch.setattr(backup, "lives_of", lambda calls, folder: {life})
    monkeypatch.setattr(backup, "is_of_this_boot", lambda life: not life or life.startswith("this-boot:"))
    monkeypatch.setattr(backup, "life_of", lambda fd: "this-boot:8")  # seen from another container
    take_in_use(disk)
    expected = (
        pytest.raises(StorageUnusable, match="a daemon that is starting up is repairing")
        if is_refused
        else contextlib.nullcontext()
    )
    with expected, servable(disk.calls, disk.root, is_remote=False):
        pass
    note_use(disk.inner, Layout.under(disk.root), RootUse.FILES)


@on_one_disk
async def test_no_lock_is_tried_that_a_start_could_meet(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that finds its root locked says that it is served, and stays down."""
    monkeypatch.setattr(backup, "lives_of", lambda calls, folder: {"this-boot:8"})
    monkeypatch.setattr(backup, "life_of", lambda fd: "this-boot:8")
    disk.calls.log.clear()
    with servable(disk.calls, disk.root, is_remote=False):
        pass
    take_in_use(disk)
    with servable(disk.calls, disk.root, is_remote=False):
        pass
    assert disk.calls.said("lock") == []
    note_use(disk.inner, Layout.under(disk.root), RootUse.FILES)


@on_one_disk
async def test_what_other_machines_could_change_is_kept_from_them(disk: Disk) -> None:
    await disk.storage.aclose()
    with (
        servable(disk.calls, disk.root, is_remote=True),
        pytest.raises(StorageUnusable, match="already served"),
    ):
        await disk.another().open()
    await disk.open()


@on_one_disk
async def test_a_root_that_is_shared_by_machines_is_refused_while_it_is_served(disk: Disk) -> None:
    with (
        pytest.raises(StorageUnusable, match="stop all daemons during the backup"),
        servable(disk.calls, disk.root, is_remote=True),
    ):
        pass


@on_one_disk
async def test_a_root_under_repair_is_refused(disk: Disk) -> None:
    layout = Layout.under(disk.root)
    take_in_use(disk)
    fd = open_moves_lock(disk.inner, layout, make=True)
    disk.inner.lock(fd, exclusive=True)
    with (
        pytest.raises(StorageUnusable, match="a daemon that is starting up is repairing"),
        servable(disk.calls, disk.root, is_remote=False),
    ):
        pass
    disk.inner.close(fd)
    note_use(disk.inner, layout, RootUse.FILES)


@on_one_disk
async def test_a_half_restored_root_is_refused(disk: Disk) -> None:
    calls = make_calls()
    for folder in ("/restored", *Layout.under(RESTORED).all()):
        calls.mkdir(folder)
    note_use(calls, Layout.under(RESTORED), RootUse.RESTORING)
    with pytest.raises(StorageUnusable, match="run mq restore again"), servable(calls, RESTORED, is_remote=False):
        pass


@on_one_disk
async def test_backups_of_two_roots_are_not_mixed(disk: Disk) -> None:
    target = make_calls()
    backed_up(disk, target)
    with (
        open_backups(target, BACKUPS, make=True) as backups,
        pytest.raises(StorageUnusable, match="another backup folder"),
    ):
        save(disk.calls, "/elsewhere", backups, Still(), keep=1)


@on_one_disk
async def test_two_at_a_time_are_refused(disk: Disk) -> None:
    target = make_calls()
    with open_backups(target, BACKUPS, make=True):
        with pytest.raises(StorageUnusable, match="wait for that operation to finish"):
            backed_up(disk, target)
        with (
            pytest.raises(StorageUnusable, match="wait for that operation to finish"),
            open_backups(target, BACKUPS, make=False),
        ):
            pass
    backed_up(disk, target)


@on_one_disk
async def test_a_full_disk_leaves_the_backups_before_it(disk: Disk) -> None:
    target = FaultyCalls(make_calls(), BACKUPS)
    first = await disk.bring(State.READY)
    backed_up(disk, target)
    second = await disk.bring(State.READY, BODY)
    target.fail("write", errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        backed_up(disk, target)
    restored(target, elsewhere := make_calls())
    async with served(elsewhere, disk.mount) as again:
        assert await again.everything() == {first}
    assert backed_up(disk, target).header.messages == 2
    assert await disk.everything() == {first, second}


@pytest.mark.parametrize("made", [["other"], ["backups", "backups/000001.jsonl"], ["state", "new"]])
def test_a_foreign_folder_is_no_place_for_backups(tmp_path: Path, made: list[str]) -> None:
    for name in made:
        (tmp_path / name).mkdir()
    with (
        pytest.raises(StorageUnusable, match="choose an empty folder, a new one, or one with earlier backups"),
        open_backups(LinuxCalls(), str(tmp_path), make=True),
    ):
        pass
    with (
        pytest.raises(StorageUnusable, match="is not a backup folder"),
        open_backups(LinuxCalls(), str(tmp_path), make=False),
    ):
        pass


@on_one_disk
@pytest.mark.parametrize("made", [["other"], ["new", "queues", "state"], ["state", "state/records"]])
async def test_a_place_that_is_taken_is_no_root(disk: Disk, made: list[str]) -> None:
    target, calls = make_calls(), make_calls()
    backed_up(disk, target)
    calls.mkdir(RESTORED)
    for name in made:
        calls.mkdir(f"{RESTORED}/{name}")
    with pytest.raises(StorageUnusable, match="is not empty"):
        restored(target, calls)
    assert sorted(name for name, _ in calls.names(RESTORED)) == sorted(name for name in made if "/" not in name)


@on_one_disk
async def test_a_mount_point_is_empty_enough(disk: Disk) -> None:
    target, calls = make_calls(), make_calls()
    backed_up(disk, target)
    calls.mkdir(RESTORED)
    calls.mkdir(f"{RESTORED}/lost+found")
    restored(target, calls)
    assert calls.kind(f"{RESTORED}/lost+found") is not None


@for_each(
    "line",
    [
        ["r", "../../../evil", "x"],
        ["r", "key/../../../../evil", "x"],
        ["r", "/evil", "x"],
        ["q", "../../evil"],
        ["q", ".."],
        ["x", "../evil"],
        ["m", "../evil", 0, 0, None, None, None],
        ["m", "queues/../../evil", 0, 0, None, None, None],
        ["m", "state/evil", 0, 0, None, None, None],
        ["m", "remove/q:evil", 0, 0, None, None, None],
        ["m", "new/e\0vil", 0, 0, None, None, None],
        ["q", 7],
    ],
)
def test_a_backup_that_leads_out_of_its_root_is_refused(tmp_path: Path, line: list[Any]) -> None:
    """It may come from somebody else, and be restored by one who may write everywhere."""
    root, folder = tmp_path / "root", tmp_path / "backups"
    for place in ("new", "queues/q", "delay", "remove", "state"):
        (root / place).mkdir(parents=True)
    root.chmod(0o700)
    back_up(str(root), str(folder), keep=1)
    file = folder / "backups" / "000001.jsonl"
    whole = "".join(file.read_text().splitlines(keepends=True)[:-1]) + json.dumps(line) + "\n"
    file.write_text(f'{whole}["end",{zlib.crc32(whole.encode())}]\n')
    with pytest.raises(
        StorageUnusable, match=r"backup 1 .* is damaged .*which is not a valid path inside an mq root.* Restore another"
    ):
        restore(str(folder), str(tmp_path / "restored"), StorageOptions(), number=1)
    assert not list(tmp_path.rglob("*evil*"))
