"""The power is cut under the real daemon, and nothing that it acknowledged is lost. `make powercut` does more of it."""

from __future__ import annotations

import filecmp
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from mq.storage.files.calls import LinuxCalls
from mq.storage.files.mount import mount_of
from mq.storage.files.posix import FolderStorage
from mq.storage.interface import QUEUE, Sharing
from mq.storage.options import StorageOptions
from mq.storage.records import drop_record, put_record
from tests.crash.bench import TREE, Bench
from tests.crash.conftest import Report, need_disks
from tests.crash.failing import fail_disk
from tests.crash.images import CrashImages, Cut, Fate, copy_sparse, mounted
from tests.crash.matrix import SECOND_CUT, hunt, try_cell
from tests.crash.mutants import MUTANTS
from tests.crash.rig import FILE_SYSTEMS, Rig
from tests.crash.trial import serve

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(300)]

SEED = 20
CLEARED_SECONDS = 30.0


@pytest.mark.parametrize(
    ("system", "workload", "points"),
    [
        ("ext4", "everything", 30),
        *(
            pytest.param(*cell, marks=pytest.mark.in_turn(2))
            for cell in (
                ("ext4", "two peers", 15),
                ("ext4", SECOND_CUT, 10),
                ("ext4", "log large", 15),
                ("ext4-nojournal", "everything", 20),
                ("overlay", "everything", 15),
            )
        ),
    ],
)
def test_nothing_acknowledged_is_lost(system: str, workload: str, points: int, report: Report) -> None:
    need_disks(system)
    cell = try_cell(system, workload, points, SEED)
    report(f"{system}, {workload}: {cell.bad} bad of {cell.points} points; {cell.cost.alone:.1f} flushes a message")
    assert not cell.examples
    # a disk that tears sectors while the kernel replays its journal can ruin the file system itself
    assert cell.unmountable <= (points // 5 if workload == SECOND_CUT else 0)
    assert cell.points >= points


class _ReapsBeforeMkdir(LinuxCalls):
    """Lets another process take a deleted queue's folder away just before a folder is made."""

    reaped = ""

    def mkdir(self, path: str, mode: int = 0o700, *, dir_fd: int | None = None) -> None:
        if self.reaped:
            os.rmdir(self.reaped)
        super().mkdir(path, mode, dir_fd=dir_fd)


async def _replace_a_queue(root: Path) -> None:
    """Delete a queue, and make another one, which gets the inode of its folder."""
    calls = _ReapsBeforeMkdir()
    storage = FolderStorage("test", str(root), calls, StorageOptions(sharing=Sharing.PEERS), mount=mount_of)
    await storage.open()
    try:
        await put_record(storage, QUEUE, "old", {"created": 1})
        old = (root / "queues" / "old").stat().st_ino
        await drop_record(storage, QUEUE, "old")
        (deleted,) = (root / "remove").iterdir()
        calls.reaped = str(deleted)
        await put_record(storage, QUEUE, "new", {"created": 2})
        calls.reaped = ""
        assert (root / "queues" / "new").stat().st_ino == old
    finally:
        await storage.aclose()


def test_without_a_journal_a_queue_is_there_although_a_peer_has_just_freed_its_inode(bench: Bench) -> None:
    """The repair after a cut finds two names of one folder otherwise, and may take away that of the queue."""
    system = FILE_SYSTEMS["ext4-nojournal"]
    need_disks(system.name)
    with Rig(bench.folder / "rig", system) as rig:
        root = rig.mountpoint / "root"
        root.mkdir(0o700)
        trio.run(_replace_a_queue, root)
        rig.mark("answered")
        recording = rig.recording()
        images = CrashImages(recording, system.atom, bench.folder / "cuts")
    for fate in Fate:
        images.build(Cut(recording.point("answered"), fate, SEED), image := bench.folder / "image")
        with mounted(system, image, bench.folder / "mounted") as place:
            assert [each.name for each in (place / "root" / "queues").iterdir()] == ["new"]


@pytest.mark.skipif(shutil.which("unshare") is None, reason="there is no unshare: apt install util-linux")
def test_a_mount_that_another_program_keeps_does_not_write_to_the_next_image(bench: Bench) -> None:
    """Programs in a mount namespace of their own keep what was mounted when they began."""
    system, image, place = FILE_SYSTEMS["ext4-nojournal"], bench.folder / "image", bench.folder / "mounted"
    empty = bench.folder / "empty"
    with empty.open("wb") as disk:
        disk.truncate(system.megabytes << 20)
    subprocess.run([*system.make, empty], check=True, timeout=60)
    copy_sparse(empty, image)
    with ExitStack() as ended:
        with mounted(system, image, place):
            (place / "file").write_bytes(b"not synced")
            keeper = subprocess.Popen(["unshare", "--mount", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            ended.callback(keeper.communicate, timeout=60)
            assert keeper.stdin is not None
            assert keeper.stdout is not None
            keeper.stdin.write(b"it has begun\n")
            keeper.stdin.flush()
            assert keeper.stdout.readline() == b"it has begun\n"
        copy_sparse(empty, image)
    # with the keeper's end, the first image is unmounted: the kernel writes what was not synced
    assert filecmp.cmp(image, empty, shallow=False)


@pytest.mark.in_turn(len(MUTANTS))
@pytest.mark.parametrize(
    "mutant",
    [
        # this one shows where a cut finds a leased message before it is removed: the hunt is a matter of luck
        pytest.param(name, marks=[pytest.mark.proof] if name == "hand over without a sync" else [])
        for name in MUTANTS
    ],
)
def test_a_planted_bug_is_found(mutant: str, report: Report) -> None:
    need_disks(MUTANTS[mutant].system)
    found = hunt(mutant, SEED)
    report(f"planted: {mutant}: {found.how} after {found.points} points")
    assert found.how


@pytest.mark.parametrize(("what", "times"), [("write", 1), ("flush", None)], ids=["write-once", "flush-for-good"])
def test_what_a_disk_fails_at_is_refused_until_a_restart(bench: Bench, what: str, times: int | None) -> None:
    assert fail_disk(bench, FILE_SYSTEMS["ext4"], what, times) == []


def test_nothing_is_left_behind_even_when_the_test_is_killed() -> None:
    need_disks("ext4")
    holder = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.test_powercut"], cwd=TREE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        folder = Path(holder.stdout.readline().strip())
        assert (folder / "rig" / "mounted").is_mount()
        holder.send_signal(signal.SIGKILL)
    finally:
        holder.kill()
        holder.communicate()
    deadline = time.monotonic() + CLEARED_SECONDS
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not folder.exists()
    for table in (Path("/proc/self/mountinfo").read_text(), _loops()):
        assert str(folder) not in table


def _loops() -> str:
    return subprocess.run(["losetup", "--list"], capture_output=True, text=True, check=True).stdout


def _hold() -> None:
    """Hold a mounted disk with a daemon on it, until killed."""
    with Bench() as bench, Rig(bench.folder / "rig", FILE_SYSTEMS["ext4"]) as rig, serve(bench, rig):
        os.write(1, f"{bench.folder}\n".encode())
        signal.pause()


if __name__ == "__main__":
    _hold()
