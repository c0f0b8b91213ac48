"""The POSIX store over pyfakefs's fake operating system: for tests of programs that embed mq.

Address: ``fake:/any/root``; each process has one fake file system, so two stores of one root see each other. The fake
module is injected, never patched in globally. Not durable, and not for production.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Any, Final

from pyfakefs.fake_filesystem import FakeFilesystem, OSType
from pyfakefs.fake_os import FakeOsModule

from mq.storage.calls import FileKind, Native
from mq.storage.mount import Mount
from mq.storage.options import StorageOptions
from mq.storage.posix import FolderStorage, at_once

_MOUNT: Final = Mount("fake", persistent=False, atomic_rename=True, ordered=True)


def make_fake(rest: str, options: StorageOptions) -> FolderStorage:
    """A store below the root `rest` of this process's fake file system."""
    return FolderStorage(
        f"fake:{rest}", rest, _SHARED_CALLS, options, mount=lambda root: _MOUNT, hop=at_once, syncfs=False
    )


class FakeCalls:
    """A fake operating system's calls.

    Args:
        module: pyfakefs's stand-in for :mod:`os`.
    """

    native: Native | None = None

    def __init__(self, module: FakeOsModule) -> None:
        self._os: Any = module
        self._locks: dict[int, tuple[int, bool]] = {}

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        """The system call of that name."""
        fd: int = self._os.open(path, flags, mode)
        return fd

    def close(self, fd: int) -> None:
        """The system call of that name; gives its lock back."""
        self._locks.pop(fd, None)
        self._os.close(fd)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """The system call of that name."""
        written: int = self._os.write(fd, bytes(data))
        return written

    def read(self, fd: int, size: int) -> bytes:
        """The system call of that name."""
        data: bytes = self._os.read(fd, size)
        return data

    def fsync(self, fd: int) -> None:
        """The system call of that name."""
        self._os.fsync(fd)

    def syncfs(self, fd: int) -> None:
        """There is nothing to sync."""

    def file_size(self, fd: int) -> int | None:
        """Size in bytes of an open plain file; None when it is anything else."""
        status = self._os.fstat(fd)
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def changed_ns(self, path: str) -> int:
        """When the name was last changed, nanoseconds since 1970."""
        changed: int = self._os.lstat(path).st_ctime_ns
        return changed

    def rename(self, source: str, target: str) -> None:
        """Move a name; EEXIST where the target is taken."""
        if self._os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        self._os.rename(source, target)

    def link(self, source: str, target: str) -> None:
        """The system call of that name."""
        self._os.link(source, target)

    def unlink(self, path: str) -> None:
        """The system call of that name on Linux: EISDIR for a folder."""
        if self.kind(path) is FileKind.FOLDER:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self._os.unlink(path)

    def mkdir(self, path: str, mode: int = 0o700) -> None:
        """The system call of that name."""
        self._os.mkdir(path, mode)

    def rmdir(self, path: str) -> None:
        """The system call of that name."""
        self._os.rmdir(path)

    def names(self, path: str) -> list[tuple[str, FileKind]]:
        """What is in a folder, sorted, so that tests repeat."""
        listed = sorted(self._os.listdir(path))
        return [(name, self.kind(f"{path}/{name}") or FileKind.OTHER) for name in listed]

    def kind(self, path: str) -> FileKind | None:
        """What a name stands for; None when it is not there."""
        try:
            mode = self._os.lstat(path).st_mode
        except FileNotFoundError:
            return None
        return FileKind.FILE if stat.S_ISREG(mode) else FileKind.FOLDER if stat.S_ISDIR(mode) else FileKind.OTHER

    def lock(self, fd: int, *, exclusive: bool) -> None:
        """The system call of that name without waiting, among the stores of this process."""
        inode = self._os.fstat(fd).st_ino
        others = [wanted for other, (node, wanted) in self._locks.items() if node == inode and other != fd]
        if others and (exclusive or any(others)):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self._locks[fd] = (inode, exclusive)

    def set_attribute(self, fd: int, name: str, value: bytes) -> None:
        """The system call of that name."""
        self._os.setxattr(fd, name, value)

    def get_attribute(self, fd: int, name: str) -> bytes | None:
        """The system call of that name; None when there is none."""
        try:
            value: bytes = self._os.getxattr(fd, name)
        except OSError as error:
            if error.errno == errno.ENODATA:
                return None
            raise
        return value


def make_calls() -> FakeCalls:
    """Calls on a fake file system of their own."""
    filesystem = FakeFilesystem(path_separator="/")
    filesystem.os = OSType.LINUX
    return FakeCalls(FakeOsModule(filesystem))


_SHARED_CALLS: Final = make_calls()
