"""What a root must be to be served, and the one clear line of each that is not."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Any, Final, NamedTuple

import pytest
import trio

from mq.errors import StorageUnusable
from mq.lifecycle import State
from mq.storage.conformance import check_whole
from mq.storage.files.calls import FileKind
from mq.storage.files.layout import NO_ATTRIBUTES
from mq.storage.files.mount import Mount
from mq.storage.files.posix import FolderStorage, make_posix
from mq.storage.interface import Sharing, Storage, Write
from mq.storage.options import StorageOptions
from mq.storage.registry import open_storage
from tests.cases import for_each
from tests.storage.disks import MOUNTS, Disk, new_id, open_disk

FOLDERS: Final = ("new", "queues", "delay", "remove", "state", "state/records", "state/stage", "state/properties")


async def line(disk: Disk, storage: FolderStorage | None = None) -> str:
    """How it is refused: in one line, and nothing is left open."""
    before = dict(disk.calls.opened)
    with pytest.raises(StorageUnusable) as caught:
        await (storage or disk.another()).open()
    assert disk.calls.opened == before, "handles are left open"
    text = str(caught.value)
    assert "\n" not in text
    assert disk.root in text or "/root" in text
    return text


@asynccontextmanager
async def opened(storage: Storage) -> AsyncIterator[Storage]:
    """The store, open; looked over at the end."""
    await storage.open()
    try:
        yield storage
        await check_whole(storage)
    finally:
        await storage.aclose()


# What it says of the medium


async def test_a_medium_without_barriers_is_served_and_loudly_said_not_to_be_durable(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_disk(MOUNTS["rename"]._replace(flushes=False)) as disk:
        assert not disk.storage.description.durable
        [line] = [record.getMessage() for record in caplog.records]
        assert re.match(
            r'NOT DURABLE: "/root" is on rename, which is mounted without write barriers, .* Mount the file', line
        )
        await disk.bring(State.READY)
    caplog.clear()
    async with open_disk(MOUNTS["rename"]) as disk:
        assert disk.storage.description.durable
    assert not caplog.records


# What opening makes


@pytest.mark.parametrize("mount", MOUNTS)
async def test_folders_are_made_and_durable(mount: str) -> None:
    disk = Disk(MOUNTS[mount], root="/a/b/root")
    await disk.open()
    assert {path for path, what in disk.tree().items() if what is FileKind.FOLDER} == set(FOLDERS)
    synced = [call.path for call in disk.calls.log if call.verb == "fsync"]
    assert {".", "state", "/a/b", "/a", "/"} <= set(synced)
    await disk.check_whole()


async def test_a_folder_is_synced_after_what_is_made_in_it() -> None:
    disk = Disk(MOUNTS["rename"], root="/a/root")
    await disk.open()
    said = disk.calls.said("mkdir", "fsync")
    assert said.index("mkdir /a") < said.index("fsync /")
    assert said.index("mkdir .") < said.index("fsync /a")
    assert said.index("mkdir remove") < said.index("fsync .")
    assert said.index("mkdir state/properties") < said.index("fsync state")
    await disk.check_whole()


async def test_opening_again_makes_nothing() -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        before = disk.tree()
        await disk.open()
        assert disk.tree() == before


async def test_nothing_is_left_of_what_was_tried() -> None:
    async with open_disk(MOUNTS["link"]) as disk:
        assert disk.files("state/stage") == set()


async def test_closing_lets_go_of_everything() -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        await disk.bring(State.READY)
        await disk.storage.aclose()
        await disk.storage.aclose()
        assert disk.calls.opened == {}
        with pytest.raises(StorageUnusable, match="not open"):
            await disk.storage.scan(State.NEW)
        await disk.open()


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.ENOSYS])
async def test_attributes_are_tried_and_not_assumed(number: int) -> None:
    disk = Disk(MOUNTS["rename"])
    disk.calls.fail("set_attribute", number, times=None)
    await disk.open()
    assert disk.folders.largest_attributes == NO_ATTRIBUTES
    disk.heal()
    await disk.open()
    assert disk.folders.largest_attributes >= 0
    await disk.check_whole()


# What is refused


async def test_a_file_is_no_root() -> None:
    disk = Disk(MOUNTS["rename"])
    disk.inner.close(disk.inner.open("/root", os.O_CREAT | os.O_WRONLY))
    assert "Not a directory; choose a folder as --root" in await line(disk)


async def test_a_link_is_no_root(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    with pytest.raises(StorageUnusable, match="is not a folder, but a symbolic link or a special file"):
        await make_posix(str(tmp_path / "link"), StorageOptions()).open()
    assert os.listdir(tmp_path / "folder") == []


async def test_no_root_below_a_file() -> None:
    disk = Disk(MOUNTS["rename"], root="/file/root")
    disk.inner.close(disk.inner.open("/file", os.O_CREAT | os.O_WRONLY))
    assert "cannot serve root" in await line(disk)


@pytest.mark.parametrize("folder", FOLDERS)
async def test_something_else_in_the_place_of_a_folder_is_named(folder: str) -> None:
    disk = Disk(MOUNTS["rename"])
    for parent in ("", "/state"):
        disk.inner.mkdir(f"/root{parent}")
        if folder == "state":
            break
    disk.put(folder, b"kept")
    assert f'"/root/{folder}" is not a folder: move it elsewhere' in await line(disk)
    assert disk.bytes_of(folder) == b"kept"


async def test_a_folder_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "new").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageUnusable, match="is not a folder: move it elsewhere"):
        await make_posix(str(tmp_path / "root"), StorageOptions()).open()


@for_each(
    "verb, number, advice",
    [
        ("mkdir", errno.EACCES, "Permission denied; grant this user write permission"),
        ("mkdir", errno.EROFS, "Read-only file system; choose a --root on a writable file system"),
        ("mkdir", errno.ENOSPC, "No space left on device; free some space first"),
        ("open", errno.EROFS, "Read-only file system; choose"),
        ("open", errno.EACCES, "Permission denied; grant"),
        ("open", errno.EMFILE, "Too many open files"),
        ("fsync", errno.EIO, "Input/output error"),
        ("set_attribute", errno.ENOSPC, "No space left on device; free some space first"),
        ("set_attribute", errno.EIO, "Input/output error"),
        ("names", errno.EIO, "Input/output error"),
    ],
)
async def test_what_the_system_refuses_is_told_with_advice(verb: str, number: int, advice: str) -> None:
    disk = Disk(MOUNTS["rename"])
    disk.calls.fail(verb, number)
    assert f'cannot serve root "/root": {advice}' in await line(disk)
    disk.heal()
    await disk.open()
    await disk.check_whole()


async def test_every_call_of_an_opening_can_fail_and_leaves_nothing_open() -> None:
    struck, nth = True, 0
    while struck:
        nth += 1
        disk = Disk(MOUNTS["link"], sharing=Sharing.PEERS)
        disk.calls.fail("*", errno.EIO, nth=nth)
        storage = disk.another()
        try:
            await storage.open()
            struck = False
        except StorageUnusable:
            assert disk.calls.opened == {}, f"after a fault in call {nth}"
            disk.heal()
            await storage.open()
        await check_whole(storage)
        await storage.aclose()
    assert nth > 40


async def test_a_flaw_of_the_file_system_is_told_before_anything_is_made() -> None:
    disk = Disk(
        Mount("overlay", flaw='is on an overlay mounted with "volatile", which ignores every sync. Mount it without')
    )
    disk.inner.mkdir("/root")
    assert 'root "/root" is on an overlay mounted with "volatile"' in await line(disk)
    assert disk.tree() == {}


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
async def test_where_moves_are_links_links_must_be_possible(number: int) -> None:
    disk = Disk(Mount("vfat"))
    disk.calls.fail("link", number, times=None)
    assert "is on vfat, which may not support hard links" in await line(disk)
    assert disk.files("state/stage") == set()


async def test_where_moves_are_renames_links_need_not_be_possible() -> None:
    disk = Disk(MOUNTS["rename"])
    disk.calls.fail("link", errno.EPERM, times=None)
    await disk.open()
    await disk.check_whole()


FAR: Final = Mount("fuse.far", atomic_rename=True, remote=True)


@for_each("number", [errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EBADF])
@for_each("verb, call", [("fsync", "fsync"), ("rename", "rename"), ("lock", "flock")])
async def test_what_a_file_system_cannot_do_is_named(verb: str, call: str, number: int) -> None:
    disk = Disk(FAR)
    disk.calls.fail(verb, number, path="state/stage/probe-*" if verb != "lock" else "state/lock", times=None)
    told = await line(disk)
    assert f"is on fuse.far, where the call {call} fails ({os.strerror(number)}" in told
    assert disk.files("state/stage") == set()


async def test_a_file_system_that_locks_only_what_is_open_for_writing_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """As NFS does: it was refused with "Bad file descriptor"."""
    disk = Disk(FAR)
    open_, lock, writable = disk.calls.open, disk.calls.lock, {}

    def opened(path: str, flags: int, *rest: Any, **options: Any) -> int:
        fd = open_(path, flags, *rest, **options)
        writable[fd] = bool(flags & (os.O_WRONLY | os.O_RDWR))
        return fd

    def locked(fd: int, *, exclusive: bool) -> None:
        if exclusive and not writable[fd]:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        lock(fd, exclusive=exclusive)

    monkeypatch.setattr(disk.calls, "open", opened)
    monkeypatch.setattr(disk.calls, "lock", locked)
    await disk.open()
    await disk.check_whole()


@pytest.mark.parametrize("lie", ["rename", "lock"])
async def test_a_file_system_that_only_says_that_it_can_is_found_out(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(FAR)
    monkeypatch.setattr(disk.calls, lie, lambda *_, **__: None)
    told = await line(disk)
    why = "rename does not remove the old name" if lie == "rename" else "grants the same lock (flock) to two processes"
    assert why in told
    assert disk.files("state/stage") == set()


async def test_where_nothing_was_measured_a_root_is_served_only_when_asked_for() -> None:
    disk = Disk(FAR._replace(kind="nfs4", assumed=True))
    disk.inner.mkdir("/root")
    assert "is on nfs4. mq has not been tested on this file system" in await line(disk)
    assert "--untested-fs" in await line(disk)
    assert disk.tree() == {}
    async with opened(disk.another(untested=True)):
        pass


async def test_tmpfs_is_for_memory_alone(tmp_path: Path) -> None:
    with pytest.raises(StorageUnusable, match=r"not in memory\. Use posix:") as caught:
        async with open_storage(f"tmpfs:{tmp_path}/root"):
            pass
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["posix", "tmpfs", "fake"])
async def test_an_address_names_a_folder(name: str) -> None:
    with pytest.raises(StorageUnusable, match=r"the storage address .* does not contain the path of a folder"):
        async with open_storage(f"{name}:"):
            pass


# Several daemons


async def test_a_second_daemon_is_refused_and_the_first_goes_on() -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        said = await line(disk)
        assert 'root "/root" is already served by another daemon: stop that daemon' in said
        assert "--standby" in said
        assert "--peers" not in said
        await disk.bring(State.READY)
        await disk.storage.aclose()
        await disk.open()


async def test_a_daemon_with_peers_beside_one_without_waits_and_is_refused(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        said = await line(disk, disk.another(sharing=Sharing.PEERS))
        assert "is in use by a daemon that does not share it with other processes (--peers=0). Restart" in said
        assert 1 < trio.current_time() < 60


async def test_a_daemon_without_peers_beside_one_with_peers_is_refused() -> None:
    async with open_disk(MOUNTS["rename"], sharing=Sharing.PEERS) as disk:
        said = await line(disk, disk.another(sharing=Sharing.ALONE))
        assert "already served by another daemon" in said


async def test_a_daemon_that_repairs_the_root_is_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        peer = disk.another(sharing=Sharing.PEERS)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.open)
            await trio.sleep(1)
            await disk.storage.aclose()
        await peer.aclose()
        await disk.open()


async def test_a_peer_that_starts_at_the_same_instant_is_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    """Between an exclusive and a shared lock there is an instant without any."""
    async with open_disk(MOUNTS["rename"], sharing=Sharing.PEERS) as disk:
        await disk.storage.aclose()
        disk.calls.fail("lock", errno.EAGAIN, nth=2)
        await disk.open()
        await disk.bring(State.READY)


async def test_peers_serve_one_root_and_only_the_first_repairs_it() -> None:
    async with open_disk(MOUNTS["rename"], sharing=Sharing.PEERS) as disk:
        disk.put(f"state/stage/{new_id()}", b"a part, still arriving")
        async with opened(disk.another(sharing=Sharing.PEERS)) as peer:
            assert len(disk.files("state/stage")) == 1
            written = await peer.commit([Write("q", new_id(), b"body")])
            assert await disk.storage.scan(State.NEW) == [outcome.entry for outcome in written]
        await disk.storage.aclose()
        await disk.open()
        assert disk.files("state/stage") == set()


HOLDER: Final = """
import sys, trio
from mq.storage.registry import open_storage

async def main():
    async with open_storage(sys.argv[1]):
        print("open", end="", flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


async def test_the_lock_of_a_killed_process_is_gone_with_it(temp_root: Path) -> None:
    address = f"posix:{temp_root}"
    async with trio.open_nursery() as nursery:
        command = [sys.executable, "-c", HOLDER, address]
        process: trio.Process = await nursery.start(partial(trio.run_process, command, stdout=PIPE, check=False))
        assert process.stdout is not None
        assert await process.stdout.receive_some() == b"open"
        with pytest.raises(StorageUnusable, match="already served by another daemon"):
            async with open_storage(address):
                pass
        process.kill()
    async with open_storage(address) as storage:
        await check_whole(storage)


# Real media that cannot be written


class Mounted(NamedTuple):
    """A file system of its own."""

    folder: Path

    def remount(self, options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", self.folder], check=True)


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Mounted]:
    """A file system that is mounted read-only."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "ro,mode=755", "none", folder], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount here: {mounted.stderr.decode().strip()}")
    try:
        yield Mounted(folder)
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.root
async def test_a_read_only_file_system_is_refused(read_only: Mounted) -> None:
    for root in (read_only.folder, read_only.folder / "deeper" / "root"):
        with pytest.raises(
            StorageUnusable, match="Read-only file system; choose a --root on a writable file system"
        ) as caught:
            await make_posix(str(root), StorageOptions()).open()
        assert "\n" not in str(caught.value)


@pytest.mark.root
async def test_a_root_that_became_read_only_is_refused(read_only: Mounted) -> None:
    address = f"posix:{read_only.folder}/root"
    read_only.remount("rw")
    async with open_storage(address) as storage:
        await check_whole(storage)
    read_only.remount("ro")
    with pytest.raises(StorageUnusable, match="Read-only file system"):
        async with open_storage(address):
            pass


@pytest.fixture
def no_right(tmp_path: Path) -> Iterator[Path]:
    """A folder that this user may not write."""
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere; the read-only file system stands in for it")
    tmp_path.chmod(0o500)
    yield tmp_path
    tmp_path.chmod(0o700)


async def test_a_root_that_may_not_be_written_is_refused(no_right: Path) -> None:
    with pytest.raises(StorageUnusable, match="Permission denied; grant this user write permission"):
        async with open_storage(f"posix:{no_right}/root"):
            pass
