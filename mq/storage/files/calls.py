"""The system calls that a folder store is built from, as an object that can be replaced.

:class:`LinuxCalls` is the real thing. The fake backend and the simulator put others in its place; nothing
above this file calls :mod:`os` on a message's behalf. Errors are :class:`OSError`, as the kernel gives them.

:func:`is_transient` says which errors pass by themselves. :class:`RetryingCalls` repeats calls on a file system with
servers that may be out of reach for a moment.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import errno
import fcntl
import os
import stat
import struct
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple, ParamSpec, Protocol, TypeVar

AT_FDCWD: Final = -100
RENAME_NOREPLACE: Final = 1
FS_IOC_SETFLAGS: Final = 0x40086602
FS_NOCOW_FL: Final = 0x00800000
_RANGE_WAIT_BEFORE: Final = 1
_RANGE_WRITE: Final = 2
_RANGE_WAIT_AFTER: Final = 4
_NO_SUCH_CALL: Final = frozenset({errno.ENOSYS, errno.EPERM})
"""The kernel does not know a call, or a filter of system calls does not let it through."""

OPEN_NEW: Final = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
OPEN_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""O_NONBLOCK, so that a FIFO lying in a folder cannot hold us; it means nothing for a plain file."""
OPEN_WRITE: Final = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
OPEN_FOLDER: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""No room on the file system, or none left for this user."""

NO_HANDLES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""This process has too many files open, or the machine has, or the kernel could not allocate."""

NO_PERMISSION: Final = frozenset({errno.EACCES, errno.EPERM})
"""Permissions were taken away."""

UNREACHABLE: Final = frozenset({errno.ENOTCONN})
"""The servers of a network file system cannot be reached, or too few of them. The call may have been done."""

STALE: Final = frozenset({errno.ESTALE})
"""Another machine has taken the file away while it was open here. GlusterFS says so when a file is synced, for it opens
it on its servers only then."""

TRANSIENT: Final = NO_ROOM | NO_HANDLES | NO_PERMISSION
"""Errors after which nothing was changed, and which can pass: the caller tries again later.

EROFS is none of them: no operator can mount a file system read-only while mq has a file of it open for writing. The
kernel does, when it has met an error there.
"""

RETRY_SECONDS: Final = 5.0
"""How long after the first call without an answer calls are still repeated. From then on each is made once, until
one is answered: an error is worth more to the caller than a longer wait."""
_PAUSE_SECONDS: Final = 0.1

_P = ParamSpec("_P")
_T = TypeVar("_T")

Step = tuple[str, bytes, bytes, bytes] | tuple[str, str] | tuple[str]
"""Write (path, data, sum, attributes), move (path, target), unlink (path,)."""


NativeColumns = tuple[int, bytes, bytes, bytes, bytes, dict[int, bytes]]
"""As :class:`~mq.storage.interface.MessageColumns`, with the attributes as their files have them."""


class SyncFailed(OSError):
    """A sync failed. Whatever its errno, that does not pass: the contents of the medium are unknown."""


def is_transient(error: OSError) -> bool:
    """Whether the caller may try again later: nothing was changed, or nothing relies on what was."""
    return is_unsure(error) or (error.errno in TRANSIENT and not isinstance(error, SyncFailed))


def is_unsure(error: OSError) -> bool:
    """Whether the call may have been done, and the medium may well answer again."""
    # A sync that failed so counts, too: its caller gets an error, and nothing relies on it.
    return error.errno in UNREACHABLE | STALE


class FileKind(enum.Enum):
    """What a name in a folder stands for."""

    FILE = "file"
    FOLDER = "folder"
    OTHER = "other"
    """A symbolic link, FIFO, socket or device."""


class Ownership(NamedTuple):
    """The owner of a folder, and the rights to write in it.

    Attributes:
        mode: what each of them may do: permissions and the sticky bit.
    """

    user: int
    group: int
    mode: int


class Native(Protocol):
    """Many calls in one: what the package mq-native is (:func:`mq.storage.files.posix.load_native`)."""

    def do_steps(self, steps: list[Step], keep: bool, /) -> list[int]:
        """Do steps in order. Returns for each 0; or -errno, when nothing of it was done; or the written file, open,
        where `keep` is true."""

    def do_steps_telling(self, steps: list[Step], fd: int, every: int, before: int, /) -> list[int]:
        """As :meth:`do_steps`. After `every` so many steps, as long as none was refused, it tells a
        :class:`~mq.storage.files.hop.EarlyResults` how many are done, `before` more than that."""

    def read_files(self, paths: list[str], largest: int, /) -> list[tuple[bytes, bytes, bytes] | int]:
        """Data, sum and attributes of each file that has at most `largest` bytes and a sum; else an errno."""

    def read_columns(
        self, folder: str, names: list[bytes | str], base: int, most: int, largest: int, /
    ) -> NativeColumns:
        """The messages of these names in a folder, up to the first that is not whole or has no room. A name is the 16
        bytes of an id's key, or begins with an id."""


class Calls(Protocol):
    """What a folder store needs of an operating system. A method without a text is the system call of its name.

    A `path` is below the open folder `dir_fd`, where that is given: replacing a folder above it then has no effect.

    Attributes:
        native: does many of these calls in one; None where there is no such thing.
    """

    native: Native | None

    def open(self, path: str, flags: int, *, mode: int = 0o600, dir_fd: int | None = None) -> int: ...

    def close(self, fd: int) -> None: ...

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """The system call of that name: may write less than asked."""

    def read(self, fd: int, size: int) -> bytes: ...

    def write_at(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        """The system call pwrite(2): may write less than asked."""

    def read_at(self, fd: int, size: int, offset: int) -> bytes:
        """The system call pread(2)."""

    def drop_cached(self, fd: int) -> None:
        """As posix_fadvise(2) with POSIX_FADV_DONTNEED: what is read next of the file comes from the disk. Bytes that
        are not there yet stay in memory."""

    def write_in_place(self, fd: int) -> None:
        """Ask the file system to overwrite this empty file where it will stand, instead of writing a copy each time.
        Nothing is done where it does so anyway, or cannot."""

    def write_out(self, fd: int, *, waits: bool) -> None:
        """As sync_file_range(2) for all of a file: its bytes go to the disk, which may keep them in its cache.

        Args:
            waits: until they are there, else that is only begun.
        """

    def touch(self, fd: int) -> None:
        """Set a file's times to now. Takes no room on the disk."""

    def fdatasync(self, fd: int) -> None:
        """The system call of that name, on a file."""

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

    def link(self, source: str, target: str) -> None: ...

    def unlink(self, path: str, *, dir_fd: int | None = None) -> None: ...

    def mkdir(self, path: str, mode: int = 0o700, *, dir_fd: int | None = None) -> None: ...

    def rmdir(self, path: str) -> None: ...

    def names(self, path: str | int) -> list[tuple[str, FileKind]]:
        """What is in a folder, open or not, in no order."""

    def kind(self, path: str) -> FileKind | None:
        """What a name stands for; None when it is not there. Links are not followed."""

    def ownership(self, path: str | int, *, dir_fd: int | None = None) -> Ownership:
        """The owner of a folder, open or not. Links are not followed."""

    def lock(self, fd: int, *, exclusive: bool) -> None:
        """The system call of that name without waiting: BlockingIOError when another process holds it."""

    def set_attribute(self, fd: int, name: str, value: bytes) -> None: ...

    def get_attribute(self, fd: int, name: str) -> bytes | None:
        """The system call of that name; None when there is none."""


class LinuxCalls:
    """The kernel itself.

    Args:
        native: does many calls in one, where it is installed.
    """

    open = staticmethod(partial(os.open, mode=0o600))
    link = staticmethod(partial(os.link, follow_symlinks=False))
    close = staticmethod(os.close)
    write = staticmethod(os.write)
    read = staticmethod(os.read)
    fdatasync = staticmethod(os.fdatasync)
    fsync = staticmethod(os.fsync)
    unlink = staticmethod(os.unlink)
    rmdir = staticmethod(os.rmdir)
    write_at = staticmethod(os.pwrite)
    read_at = staticmethod(os.pread)
    set_attribute = staticmethod(os.setxattr)

    def __init__(self, native: Native | None = None) -> None:
        self.native = native
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._rename_noreplace = hasattr(self._libc, "renameat2")
        self._sync_file_range = self._libc.sync_file_range
        self._sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)

    def mkdir(self, path: str, mode: int = 0o700, *, dir_fd: int | None = None) -> None:
        os.mkdir(path, mode, dir_fd=dir_fd)

    def drop_cached(self, fd: int) -> None:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def write_in_place(self, fd: int) -> None:
        """Set the flag by which btrfs does not copy on write; elsewhere it means nothing, or is refused."""
        with contextlib.suppress(OSError):
            fcntl.ioctl(fd, FS_IOC_SETFLAGS, struct.pack("l", FS_NOCOW_FL))

    def write_out(self, fd: int, *, waits: bool) -> None:
        """The system call sync_file_range(2) for all of a file. Where it is not to be had, what waits is synced."""
        flags = _RANGE_WAIT_BEFORE | _RANGE_WRITE | _RANGE_WAIT_AFTER if waits else _RANGE_WRITE
        try:
            self._check(self._sync_file_range(fd, 0, 0, flags), "sync_file_range")
        except OSError as error:
            if error.errno not in _NO_SUCH_CALL:
                raise
            if waits:
                os.fsync(fd)

    def touch(self, fd: int) -> None:
        os.utime(fd)

    def syncfs(self, fd: int) -> None:
        self._check(self._libc.syncfs(fd), "syncfs")

    def file_size(self, fd: int) -> int | None:
        status = os.fstat(fd)
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def changed_ns(self, path: str) -> int:
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

    def names(self, path: str | int) -> list[tuple[str, FileKind]]:
        with os.scandir(path) as found:
            return [(item.name, _kind_of(item)) for item in found]

    def kind(self, path: str) -> FileKind | None:
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            return None
        return FileKind.FILE if stat.S_ISREG(mode) else FileKind.FOLDER if stat.S_ISDIR(mode) else FileKind.OTHER

    def ownership(self, path: str | int, *, dir_fd: int | None = None) -> Ownership:
        found = os.fstat(path) if isinstance(path, int) else os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
        return Ownership(found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode))

    def lock(self, fd: int, *, exclusive: bool) -> None:
        fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)

    def get_attribute(self, fd: int, name: str) -> bytes | None:
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


@contextlib.contextmanager
def opened(calls: Calls, path: str, flags: int) -> Iterator[int]:
    """Open a file or a folder for the length of the block."""
    fd = calls.open(path, flags)
    try:
        yield fd
    finally:
        calls.close(fd)


def write_all(calls: Calls, fd: int, data: bytes) -> None:
    """Write every byte of `data`."""
    written = calls.write(fd, data)
    rest = memoryview(data)[written:]
    while rest:
        rest = rest[calls.write(fd, rest) :]


def write_all_at(calls: Calls, fd: int, data: bytes, offset: int) -> None:
    """Write every byte of `data` from `offset` on."""
    written = calls.write_at(fd, data, offset)
    while written < len(data):
        written += calls.write_at(fd, data[written:], offset + written)


class ForwardedCalls:
    """The calls of another object. A subclass replaces some of them, when it is made."""

    def __init__(self, inner: Calls) -> None:
        self.native = inner.native
        self.open, self.close = inner.open, inner.close
        self.read, self.write = inner.read, inner.write
        self.read_at, self.write_at, self.write_in_place = inner.read_at, inner.write_at, inner.write_in_place
        self.write_out, self.drop_cached, self.touch = inner.write_out, inner.drop_cached, inner.touch
        self.fsync, self.fdatasync, self.syncfs = inner.fsync, inner.fdatasync, inner.syncfs
        self.file_size, self.changed_ns, self.kind = inner.file_size, inner.changed_ns, inner.kind
        self.rename, self.link, self.unlink = inner.rename, inner.link, inner.unlink
        self.mkdir, self.rmdir, self.names = inner.mkdir, inner.rmdir, inner.names
        self.ownership, self.lock = inner.ownership, inner.lock
        self.set_attribute, self.get_attribute = inner.set_attribute, inner.get_attribute


class UnsyncedCalls(ForwardedCalls):
    """Calls without syncs, for changes that a log has brought to the medium before."""

    def __init__(self, inner: Calls) -> None:
        super().__init__(inner)
        self.fsync = self.fdatasync = self.syncfs = self._nothing
        self.write_out = self._nothing_out

    def _nothing(self, fd: int) -> None:
        pass

    def _nothing_out(self, fd: int, *, waits: bool) -> None:
        pass


class RetryingCalls(ForwardedCalls):
    """Calls to a file system with servers that may be out of reach: repeated for :data:`RETRY_SECONDS`, and no longer.

    Only calls that may be done twice are repeated. A call without an answer may have been carried out, so a repeated
    rename may find its own work. A write or a sync is never repeated: its caller gives up instead.

    Args:
        clock: seconds, for how long servers are out of reach.
        pause: waits so many seconds.
    """

    def __init__(
        self, inner: Calls, clock: Callable[[], float] = time.monotonic, pause: Callable[[float], object] = time.sleep
    ) -> None:
        super().__init__(inner)
        self._inner = inner
        self._clock = clock
        self._pause = pause
        self._unreachable_since: float | None = None
        self.native = None  # it would not repeat a call
        self.open, self.rename, self.unlink = self._open, self._rename, self._unlink
        # whose answer does not depend on the first try
        self.read, self.file_size = self._repeating(inner.read), self._repeating(inner.file_size)
        self.changed_ns, self.kind = self._repeating(inner.changed_ns), self._repeating(inner.kind)
        self.link, self.names = self._repeating(inner.link), self._repeating(inner.names)
        self.mkdir, self.rmdir = self._repeating(inner.mkdir), self._repeating(inner.rmdir)
        self.ownership, self.lock = self._repeating(inner.ownership), self._repeating(inner.lock)
        self.set_attribute = self._repeating(inner.set_attribute)
        self.get_attribute = self._repeating(inner.get_attribute)

    def _open(self, path: str, flags: int, *, mode: int = 0o600, dir_fd: int | None = None) -> int:
        try:
            return self._ask(self._inner.open, path, flags, mode=mode, dir_fd=dir_fd)
        except _ErrorOnRetry as again:
            if isinstance(again.error, FileExistsError):  # ours by the first call, or another's: no answer either
                raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN), path) from again.error
            raise again.error from None

    def _rename(self, source: str, target: str) -> None:
        # Target names are unique to their writer: a target that a repeated call finds is the work of the first one.
        try:
            self._ask(self._inner.rename, source, target)
        except _ErrorOnRetry as again:
            if not isinstance(again.error, FileNotFoundError | FileExistsError):
                raise again.error from None
            if self.kind(source) is not None or self.kind(target) is not FileKind.FILE:
                raise again.error from None

    def _unlink(self, path: str, *, dir_fd: int | None = None) -> None:
        try:
            self._ask(self._inner.unlink, path, dir_fd=dir_fd)
        except _ErrorOnRetry as again:
            if not isinstance(again.error, FileNotFoundError):
                raise again.error from None

    def _repeating(self, verb: Callable[_P, _T]) -> Callable[_P, _T]:
        def answer(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            try:
                return self._ask(verb, *args, **kwargs)
            except _ErrorOnRetry as again:
                raise again.error from None

        return answer

    def _ask(self, verb: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Make a call until it is answered, or the time to repeat it is over.

        Raises:
            _ErrorOnRetry: the answer to a repeated call is an error.
            OSError: of the first call, or no answer came.
        """
        asked_again = False
        while True:
            try:
                result = verb(*args, **kwargs)
            except OSError as error:
                if error.errno in UNREACHABLE and self._may_retry():
                    asked_again = True
                    self._pause(_PAUSE_SECONDS)
                    continue
                if error.errno not in UNREACHABLE:
                    self._unreachable_since = None
                    if asked_again:
                        raise _ErrorOnRetry(error) from error
                raise
            self._unreachable_since = None
            return result

    def _may_retry(self) -> bool:
        now = self._clock()
        if self._unreachable_since is None:
            self._unreachable_since = now
        return now - self._unreachable_since < RETRY_SECONDS


class _ErrorOnRetry(Exception):
    """An error in answer to a repeated call, which may have been carried out the first time."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error
