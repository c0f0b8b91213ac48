"""What the file system under a root keeps over a power cut, read from the kernel's own tables.

Measured, not assumed: docs/on-disk.md has the table. An unknown file system gets the protocol that needs the least of
it.
"""

from __future__ import annotations

import os
import platform
import re
from typing import Final, NamedTuple


class Mount(NamedTuple):
    """A file system's traits.

    Attributes:
        kind: its name as in /proc/mounts.
        persistent: its content is still there after a power cut.
        atomic_rename: after a crash a rename has happened or has not, never half (both names, or none).
        ordered: name changes reach the disk in the order in which they were made, across folders; the sync of a file or
            folder brings the last one that concerns it, and so all earlier ones, with all bytes written out.
        syncfs: syncfs(2) brings everything to the disk. Not so without a journal: there Linux flushes the disk's cache
            first and writes the last of the inodes and folders after that.
        size: how many bytes it holds; 0 where that is unknown.
        flushes: a sync makes the disk write its cache to the medium, too. Not so where it is mounted without barriers.
        remote: other machines can change it at the same time: their changes are found by looking only, and an answer
            may come very late.
        logged: whether batches are made durable by a log here: only where that was tested by power cuts, and where a
            full disk shows at the call. On btrfs it shows at the sync: then a checkpoint fails, and with it the store.
        assumed: these traits were read, not measured: no power was cut there, no server lost.
        folder_syncs: the sync of a folder brings its names to the medium. Not so on GlusterFS, which does not even ask
            its servers: there a name is as durable as the last sync of its file.
        flaw: why mq must not use it at all; empty when it may.
    """

    kind: str
    persistent: bool = True
    atomic_rename: bool = False
    ordered: bool = False
    syncfs: bool = False
    size: int = 0
    flushes: bool = True
    remote: bool = False
    logged: bool = False
    assumed: bool = False
    folder_syncs: bool = True
    flaw: str = ""

    def can_syncfs(self) -> bool:
        """Whether syncfs(2) may be used: it brings everything, and this kernel reports its errors."""
        return self.syncfs and syncfs_reports_errors()

    @property
    def durable(self) -> bool:
        """Whether synced bytes survive the loss of power."""
        return self.persistent and self.flushes


_KNOWN: Final = {
    "xfs": Mount("xfs", atomic_rename=True, ordered=True, syncfs=True, logged=True),
    "btrfs": Mount("btrfs", atomic_rename=True, syncfs=True),
    "zfs": Mount("zfs", atomic_rename=True, assumed=True),
    "tmpfs": Mount("tmpfs", persistent=False, atomic_rename=True, ordered=True, syncfs=True),
    "ramfs": Mount("ramfs", persistent=False, atomic_rename=True, ordered=True, syncfs=True),
    "nfs": Mount("nfs", atomic_rename=True, remote=True, assumed=True),
    "nfs4": Mount("nfs4", atomic_rename=True, remote=True),
    "ceph": Mount("ceph", atomic_rename=True, remote=True, assumed=True),
    "fuse.ceph-fuse": Mount("fuse.ceph-fuse", atomic_rename=True, remote=True),
    "fuse.glusterfs": Mount("fuse.glusterfs", atomic_rename=True, remote=True, folder_syncs=False),
    "fuse.mfs": Mount("fuse.mfs", atomic_rename=True, remote=True, assumed=True),
}

_LOCAL: Final = frozenset(
    (
        *(
            "aufs",
            "bcachefs",
            "btrfs",
            "ecryptfs",
            "exfat",
            "ext2",
            "ext3",
            "ext4",
            "f2fs",
            "fuseblk",
            "hfs",
            "hfsplus",
        ),
        *(
            "jffs2",
            "jfs",
            "minix",
            "msdos",
            "nilfs2",
            "ntfs",
            "ntfs3",
            "overlay",
            "ramfs",
            "reiserfs",
            "tmpfs",
            "ubifs",
        ),
        *("udf", "vfat", "xfs", "zfs"),
    )
)
"""File systems that only this machine can change while they are mounted here. Any other may be shared: a FUSE file
system can be anything, and the next network file system has a name that is not known yet."""

_UNFLUSHED: Final = frozenset(
    ("nobarrier", "nobarriers", "barrier=0", "barrier=none", "barrier=off", "fsync_mode=nobarrier", "nostrictsync")
)
"""Mount options by which a sync ends while its bytes are in a cache that needs power: the disk's, or a server's."""

_LOCAL_LOCKS: Final = frozenset(("local_lock=all", "local_lock=flock"))
"""How NFS shows that no other machine hears of a lock; with ``nolock``, too."""

_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
"""How the kernel writes space, tab, newline and backslash in a path."""


def mount_of(path: str, mounts: str = "/proc/self/mountinfo", journals: str = "/proc/fs/jbd2") -> Mount:
    """The traits of the file system that holds `path`.

    Args:
        path: an existing file or folder.
        journals: where the kernel lists the journals of ext3 and ext4.
    """
    device = os.lstat(path).st_dev
    room = os.statvfs(path)
    size = room.f_frsize * room.f_blocks
    kind, source, options = _find(f"{os.major(device)}:{os.minor(device)}", path, mounts)
    if kind == "overlay" and "volatile" in options:
        return Mount(
            kind, flaw='is on an overlay mounted with "volatile", which ignores every sync. Mount it without "volatile"'
        )
    if not _LOCAL_LOCKS.isdisjoint(options):
        return Mount(
            kind,
            remote=True,
            flaw=(
                "is on NFS mounted with local locks, so another machine could serve the root at the same "
                'time. Mount it without "nolock" and "local_lock"'
            ),
        )
    is_strange = kind not in _LOCAL
    found = _KNOWN.get(kind, Mount(kind, remote=is_strange, assumed=is_strange))
    if kind in ("ext3", "ext4"):
        journaled = os.path.isdir(f"{journals}/{os.path.basename(os.path.realpath(source))}-8")
        logged = journaled and kind == "ext4"
        found = found._replace(atomic_rename=journaled, ordered=journaled, syncfs=journaled, logged=logged)
    return found._replace(size=size, flushes=_UNFLUSHED.isdisjoint(options))


def mount_of_root(root: str) -> Mount:
    """The traits of the file system that holds, or will hold, a root."""
    while not os.path.lexists(root):
        root = os.path.dirname(root.rstrip("/")) or "."
    return mount_of(root)


def syncfs_reports_errors(release: str | None = None) -> bool:
    """Whether syncfs(2) tells of write errors: since Linux 5.8."""
    parts = (release or platform.release()).split(".")
    try:
        return (int(parts[0]), int(parts[1])) >= (5, 8)
    except (IndexError, ValueError):
        return False


def _find(device: str, path: str, mounts: str) -> tuple[str, str, set[str]]:
    """(file system, source, options) of the mount: by device number, else by the longest mount point, the last one
    where there are several."""
    best: tuple[int, str, str, set[str]] = (-1, "unknown", "", set())
    real = os.path.realpath(path)
    with open(mounts, encoding="utf-8", errors="surrogateescape", newline="\n") as table:
        for line in table:
            left, _, right = line.rstrip("\n").partition(" - ")
            fields, tail = left.split(" "), right.split(" ")  # a source may be empty
            point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4])
            rank = len(point) + (1 << 20 if fields[2] == device else 0)
            inside = real == point or real.startswith(point.rstrip("/") + "/")
            if inside and rank >= best[0]:
                best = (rank, tail[0], tail[1], set(fields[5].split(",")) | set(tail[2].split(",")))
    return best[1:]
