"""The POSIX store on a file system in memory: fast, gone with the power, and described as not durable.

Address: ``tmpfs:/dev/shm/mq``. Anything else below the root is refused: ``posix:`` is for disks.
"""

from __future__ import annotations

from mq.storage.files.mount import Mount, mount_of_root
from mq.storage.files.posix import FolderStorage, linux_calls
from mq.storage.options import StorageOptions


def make_tmpfs(rest: str, options: StorageOptions) -> FolderStorage:
    """A store in the folders below the root `rest`, on a tmpfs or ramfs."""
    return FolderStorage(f"tmpfs:{rest}", rest, linux_calls(options), options, mount=_mount_in_memory)


def _mount_in_memory(root: str) -> Mount:
    mount = mount_of_root(root)
    if mount.persistent and not mount.flaw:
        return mount._replace(
            flaw=f"is on {mount.kind}, not in memory. Use posix: for a disk, or choose a folder on a tmpfs"
        )
    return mount
