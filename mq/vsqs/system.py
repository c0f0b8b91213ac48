"""What VSQS needs of an operating system, as values that a test can replace: calls, clock, the kind of file system."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from mq.storage.calls import Calls, LinuxCalls
from mq.storage.mount import Mount, mount_of

HEARD: Final = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"}
)
"""File systems of one machine, whose every change its kernel tells. On others somebody else's changes are not told."""


NO_FILE: Final = frozenset({errno.ELOOP, errno.ENXIO, errno.EISDIR})
"""How opening something that is no plain file is refused: a symbolic link, a socket, a folder."""


class FolderCalls(Calls, Protocol):
    """System calls, with one question more."""

    def is_at(self, fd: int, path: str) -> bool:
        """Whether `path` leads to the open file."""


class LinuxFolderCalls(LinuxCalls):
    """The kernel itself."""

    def is_at(self, fd: int, path: str) -> bool:
        """Whether `path` leads to the open file."""
        try:
            return os.path.samestat(os.fstat(fd), os.lstat(path))
        except FileNotFoundError:
            return False


class System(NamedTuple):
    """Where a queue lives.

    Attributes:
        calls: the system calls.
        now_ns: wall clock, nanoseconds since 1970.
        sleep: for so many seconds.
        mount: what the file system that holds a path is.
        heard: file systems whose changes the kernel tells; elsewhere the folder is listed.
    """

    calls: FolderCalls = LinuxFolderCalls()
    now_ns: Callable[[], int] = time.time_ns
    sleep: Callable[[float], None] = time.sleep
    mount: Callable[[str], Mount] = mount_of
    heard: frozenset[str] = HEARD
