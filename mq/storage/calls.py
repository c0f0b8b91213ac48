"""The system calls that a folder store is built from, as an object that can be replaced.

:class:`LinuxCalls` is the real thing. The fake backend and the simulator put others in its place; nothing
above this file calls :mod:`os` on a message's behalf. Errors are :class:`OSError`, as the kernel gives them.
"""

from __future__ import annotations

import ctypes
import enum
import errno
import fcntl
import os
import stat
from typing import Final, Protocol

AT_FDCWD: Final = -100
RENAME_NOREPLACE: Final = 1

OPEN_NEW: Final = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
OPEN_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""O_NONBLOCK, so that a FIFO lying in a folder cannot hold us; it means nothing for a plain file."""
OPEN_FOLDER: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW


Step = tuple[str, bytes, bytes, bytes] | tuple[str, str] | tuple[str]
"""Write (path, data, sum, attributes), move (path, target), unlink (path,)."""


class FileKind(enum.Enum):
    """What a name in a folder stands for."""

    FILE = "file"
    FOLDER = "folder"
    OTHER = "other"
    """A symbolic link, FIFO, socket or device."""


class Native(Protocol):
    """Many calls in one: what the package mq-native is (:mod:`mq.storage.native`)."""

    def do_steps(self, steps: list[Step], keep: bool, /) -> list[int]:
        """Do them in order. For each -errno, and nothing of it done; or 0; or the file that was written, open, where
        `keep` is true."""

    def read_files(self, paths: list[str], largest: int, /) -> list[tuple[bytes, bytes, bytes] | int]:
        """Data, sum and attributes of each file that has at most `largest` bytes and a sum; else an errno."""


class Calls(Protocol):
    """What a folder store needs of an operating system.

    Attributes:
        native: does many of these calls in one; None where there is no such thing.
    """

    native: Native | None

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        """The system call of that name."""

    def close(self, fd: int) -> None:
        """The system call of that name."""

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """The system call of that name: may write less than asked."""

    def read(self, fd: int, size: int) -> bytes:
        """The system call of that name."""

    def fsync(self, fd: int) -> None:
        """The system call of that name, on a file or a folder."""

    def syncfs(self, fd: int) -> None:
        """The system call of that name; an error on any file of the mount since `fd` was opened is reported."""

    def file_size(self, fd: int) -> int | None:
        """Size in bytes of an open plain file; None when it is anything else."""

    def changed_ns(self, path: str) -> int:
        """When the name was last moved or changed (ctime), nanoseconds since 1970."""

    def rename(self, source: str, target: str) -> None:
        """Move a name; EEXIST, and nothing done, where the target is taken."""

    def link(self, source: str, target: str) -> None:
        """The system call of that name."""

    def unlink(self, path: str) -> None:
        """The system call of that name."""

    def mkdir(self, path: str, mode: int = 0o700) -> None:
        """The system call of that name."""

    def rmdir(self, path: str) -> None:
        """The system call of that name."""

    def names(self, path: str) -> list[tuple[str, FileKind]]:
        """What is in a folder, in no order."""

    def kind(self, path: str) -> FileKind | None:
        """What a name stands for; None when it is not there. Links are not followed."""

    def lock(self, fd: int, *, exclusive: bool) -> None:
        """The system call of that name without waiting: BlockingIOError when somebody else holds it."""

    def set_attribute(self, fd: int, name: str, value: bytes) -> None:
        """The system call of that name."""

    def get_attribute(self, fd: int, name: str) -> bytes | None:
        """The system call of that name; None when there is none."""


class LinuxCalls:
    """The kernel itself.

    Args:
        native: does many calls in one, where it is installed.
    """

    close = staticmethod(os.close)
    write = staticmethod(os.write)
    read = staticmethod(os.read)
    fsync = staticmethod(os.fsync)
    unlink = staticmethod(os.unlink)
    rmdir = staticmethod(os.rmdir)

    def __init__(self, native: Native | None = None) -> None:
        self.native = native
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._rename_noreplace = hasattr(self._libc, "renameat2")

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        """The system call of that name."""
        return os.open(path, flags, mode)

    def mkdir(self, path: str, mode: int = 0o700) -> None:
        """The system call of that name."""
        os.mkdir(path, mode)

    def syncfs(self, fd: int) -> None:
        """The system call of that name."""
        self._check(self._libc.syncfs(fd), "syncfs")

    def file_size(self, fd: int) -> int | None:
        """Size in bytes of an open plain file; None when it is anything else."""
        status = os.fstat(fd)
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def changed_ns(self, path: str) -> int:
        """When the name was last moved or changed (ctime), nanoseconds since 1970."""
        return os.lstat(path).st_ctime_ns

    def rename(self, source: str, target: str) -> None:
        """Move a name; EEXIST where the target is taken.

        Where the file system does not know RENAME_NOREPLACE the target is looked at first: what could slip in
        between needs two writers of one target name, and target names are unique to their writer.
        """
        if self._rename_noreplace:
            try:
                names = (AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(target))
                self._check(self._libc.renameat2(*names, RENAME_NOREPLACE), source)
                return
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOSYS):
                    raise
                self._rename_noreplace = False
        if os.path.lexists(target) and os.path.lexists(source):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        os.rename(source, target)

    def link(self, source: str, target: str) -> None:
        """The system call of that name, without following a symbolic link."""
        os.link(source, target, follow_symlinks=False)

    def names(self, path: str) -> list[tuple[str, FileKind]]:
        """What is in a folder, in no order."""
        with os.scandir(path) as found:
            return [(item.name, _kind_of(item)) for item in found]

    def kind(self, path: str) -> FileKind | None:
        """What a name stands for; None when it is not there."""
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            return None
        return FileKind.FILE if stat.S_ISREG(mode) else FileKind.FOLDER if stat.S_ISDIR(mode) else FileKind.OTHER

    def lock(self, fd: int, *, exclusive: bool) -> None:
        """The system call of that name without waiting: BlockingIOError when somebody else holds it."""
        fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)

    def set_attribute(self, fd: int, name: str, value: bytes) -> None:
        """The system call of that name."""
        os.setxattr(fd, name, value)

    def get_attribute(self, fd: int, name: str) -> bytes | None:
        """The system call of that name; None when there is none, or the file system has no such thing."""
        try:
            return os.getxattr(fd, name)
        except OSError as error:
            if error.errno in (errno.ENODATA, errno.ENOTSUP):
                return None
            raise

    def _check(self, returned: int, what: str) -> None:
        if returned != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), what)


def _kind_of(item: os.DirEntry[str]) -> FileKind:
    if item.is_file(follow_symlinks=False):
        return FileKind.FILE
    return FileKind.FOLDER if item.is_dir(follow_symlinks=False) else FileKind.OTHER
