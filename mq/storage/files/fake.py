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

from mq.storage.files.calls import FileKind, Native, Ownership
from mq.storage.files.hop import inline_hop
from mq.storage.files.mount import Mount
from mq.storage.files.posix import FolderStorage
from mq.storage.options import StorageOptions

_MOUNT: Final = Mount("fake", persistent=False, atomic_rename=True, ordered=True)


def make_fake(rest: str, options: StorageOptions) -> FolderStorage:
    """A store below the root `rest` of this process's fake file system."""
    return FolderStorage(
        f"fake:{rest}", rest, _SHARED_CALLS, options, mount=lambda root: _MOUNT, hop=inline_hop, syncfs=False
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
        self._opened: dict[int, str] = {}

    def open(self, path: str, flags: int, *, mode: int = 0o600, dir_fd: int | None = None) -> int:
        path = self._whole(path, dir_fd)
        fd: int = self._os.open(path, flags, mode)
        self._opened[fd] = path
        return fd

    def close(self, fd: int) -> None:
        self._locks.pop(fd, None)
        self._opened.pop(fd, None)
        self._os.close(fd)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        written: int = self._os.write(fd, bytes(data))
        return written

    def read(self, fd: int, size: int) -> bytes:
        data: bytes = self._os.read(fd, size)
        return data

    def write_at(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        self._os.lseek(fd, offset, os.SEEK_SET)
        return self.write(fd, data)

    def read_at(self, fd: int, size: int, offset: int) -> bytes:
        self._os.lseek(fd, offset, os.SEEK_SET)
        return self.read(fd, size)

    def drop_cached(self, fd: int) -> None:
        """Nothing is cached."""

    def write_in_place(self, fd: int) -> None:
        """There is nothing to ask for."""

    def write_out(self, fd: int, *, waits: bool) -> None:
        """There is nothing to write out."""

    def touch(self, fd: int) -> None:
        """There are no times to look at."""

    def fdatasync(self, fd: int) -> None:
        """There is nothing to sync."""

    def fsync(self, fd: int) -> None:
        self._os.fsync(fd)

    def syncfs(self, fd: int) -> None:
        """There is nothing to sync."""

    def file_size(self, fd: int) -> int | None:
        status = self._os.fstat(fd)
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def changed_ns(self, path: str) -> int:
        changed: int = self._os.lstat(path).st_ctime_ns
        return changed

    def rename(self, source: str, target: str) -> None:
        if self._os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        self._os.rename(source, target)

    def link(self, source: str, target: str) -> None:
        self._os.link(source, target)

    def unlink(self, path: str, *, dir_fd: int | None = None) -> None:
        """The system call of that name on Linux: EISDIR for a folder."""
        path = self._whole(path, dir_fd)
        if self.kind(path) is FileKind.FOLDER:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self._os.unlink(path)

    def mkdir(self, path: str, mode: int = 0o700, *, dir_fd: int | None = None) -> None:
        self._os.mkdir(self._whole(path, dir_fd), mode)

    def rmdir(self, path: str) -> None:
        self._os.rmdir(path)

    def names(self, path: str | int) -> list[tuple[str, FileKind]]:
        """What is in a folder, open or not, sorted, so that tests repeat."""
        path = self._opened[path] if isinstance(path, int) else path
        listed = sorted(self._os.listdir(path))
        return [(name, self.kind(f"{path}/{name}") or FileKind.OTHER) for name in listed]

    def kind(self, path: str) -> FileKind | None:
        try:
            mode = self._os.lstat(path).st_mode
        except FileNotFoundError:
            return None
        return FileKind.FILE if stat.S_ISREG(mode) else FileKind.FOLDER if stat.S_ISDIR(mode) else FileKind.OTHER

    def ownership(self, path: str | int, *, dir_fd: int | None = None) -> Ownership:
        """Everything here is this process's."""
        return Ownership(os.geteuid(), os.getegid(), 0o700)

    def lock(self, fd: int, *, exclusive: bool) -> None:
        """The system call of that name without waiting, among the stores of this process."""
        inode = self._os.fstat(fd).st_ino
        others = [wanted for other, (node, wanted) in self._locks.items() if node == inode and other != fd]
        if others and (exclusive or any(others)):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self._locks[fd] = (inode, exclusive)

    def set_attribute(self, fd: int, name: str, value: bytes) -> None:
        self._os.setxattr(fd, name, value)

    def get_attribute(self, fd: int, name: str) -> bytes | None:
        try:
            value: bytes = self._os.getxattr(fd, name)
        except OSError as error:
            if error.errno == errno.ENODATA:
                return None
            raise
        return value

    def _whole(self, path: str, dir_fd: int | None) -> str:
        return path if dir_fd is None else f"{self._opened[dir_fd]}/{path}"


def make_calls() -> FakeCalls:
    """Calls on a fake file system of their own."""
    filesystem = FakeFilesystem(path_separator="/")
    filesystem.os = OSType.LINUX
    return FakeCalls(FakeOsModule(filesystem))


_SHARED_CALLS: Final = make_calls()
