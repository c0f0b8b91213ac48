"""Small file systems of a test's own, and how to fill them to the brim."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from tests.crash.bench import COMMAND_SECONDS, Bench, CommandFailed, run
from tests.crash.rig import may_mount


class Place(NamedTuple):
    """A file system.

    Attributes:
        kind: how mount calls it.
        megabytes: how large its disk is.
        make: the command that makes it, without the disk; nothing for one in memory.
        options: for mounting.
    """

    kind: str
    megabytes: int = 0
    make: tuple[str, ...] = ()
    options: str = "defaults"


_EXT4: Final = ("mkfs.ext4", "-q", "-F", "-b", "1024")
"""Small blocks, so that folders have to grow."""

PLACES: Final = {
    "tmpfs": Place("tmpfs", options="size=6m,mode=755"),
    "tiny tmpfs": Place("tmpfs", options="size=512k,mode=755"),
    "ext4": Place("ext4", 16, _EXT4),
    "ext4, each move a link": Place("ext4", 16, (*_EXT4, "-O", "^has_journal")),
    "xfs": Place("xfs", 320, ("mkfs.xfs", "-q", "-f")),
    "btrfs": Place("btrfs", 128, ("mkfs.btrfs", "-q", "-f", "-M")),
}
FEW_INODES: Final = {
    "tmpfs": Place("tmpfs", options="size=16m,nr_inodes=200,mode=755"),
    "ext4": Place("ext4", 16, (*_EXT4, "-N", "200")),
}


def missing(place: Place) -> str:
    """Why there can be no such file system here, in a few words; empty when there can."""
    if not may_mount():
        return "it takes root, with the right to mount"
    if place.make and shutil.which(place.make[0]) is None:
        return f"there is no {place.make[0]}"
    return ""


@contextmanager
def mounted(bench: Bench, place: Place) -> Iterator[Path]:
    """Where it is mounted, for the length of the block."""
    point = bench.folder / "mounted"
    point.mkdir()
    if place.make:
        image = bench.folder / "image"
        with image.open("wb") as empty:
            empty.truncate(place.megabytes << 20)
        run(*place.make, image)
        mount(image, place, point)
    else:
        run("mount", "-t", place.kind, "-o", place.options, "none", point)
    try:
        yield point
    finally:
        with contextlib.suppress(CommandFailed):  # the bench sweeps what is left
            run("umount", point)


def mount(image: Path, place: Place, point: Path) -> None:
    """Mount a disk."""
    run("mount", "-t", place.kind, "-o", f"loop,{place.options}", image, point)


def repair(bench: Bench, place: Place, point: Path) -> None:
    """What an operator does with an ext4 that the kernel gave up: unmount, repair, mount."""
    run("umount", point)
    subprocess.run(["e2fsck", "-fy", bench.folder / "image"], capture_output=True, timeout=COMMAND_SECONDS)
    mount(bench.folder / "image", place, point)


def fill(file: Path, leave: int = 0) -> None:
    """Let a file of somebody else's take whatever room there is, to the last byte or but for so many."""
    with file.open("ab", buffering=0) as taker:
        if leave:
            room = os.statvfs(file)
            for _ in range((room.f_bavail * room.f_frsize - leave) >> 20):
                taker.write(os.urandom(1 << 20))
            return
        for size in (1 << 20, 1 << 16, 1 << 10, 1):
            with contextlib.suppress(OSError):
                while True:
                    taker.write(os.urandom(size))
        with contextlib.suppress(OSError):
            os.fsync(taker.fileno())
