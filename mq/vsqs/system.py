"""What VSQS needs of an operating system: system calls and a clock that tests can replace, inotify, and errors.

:class:`FolderWatch` follows the names in one folder by inotify(7), with nothing but the standard library. The kernel
queues an event while it holds the folder's lock. So a process finds, among the events, everything that happened before
its own change of a name there.

:func:`told` translates the system's errors into mq's, by whose fault they are, with what to do.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import struct
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

from mq.errors import MQError, NoSuchQueue, StorageFailed, StorageFull, StorageUnusable
from mq.storage.files.calls import Calls, LinuxCalls
from mq.storage.files.mount import Mount, mount_of

HEARD: Final = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"}
)
"""File systems of one machine, where the kernel tells every change. On others it tells nothing of other machines'."""
NO_FILE: Final = frozenset({errno.ELOOP, errno.ENXIO, errno.EISDIR})
"""How opening something that is no plain file is refused: a symbolic link, a socket, a folder."""

_MOVED_FROM: Final = 0x40
_MOVED_TO: Final = 0x80
_CREATE: Final = 0x100
_DELETE: Final = 0x200
_DELETE_SELF: Final = 0x400
_MOVE_SELF: Final = 0x800
_UNMOUNT: Final = 0x2000
_OVERFLOW: Final = 0x4000
_IGNORED: Final = 0x8000
_ISDIR: Final = 0x40000000
_ONLYDIR: Final = 0x1000000

_WANTED: Final = _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF | _ONLYDIR
_LEFT: Final = _DELETE_SELF | _MOVE_SELF | _UNMOUNT | _IGNORED
_HEAD: Final = struct.Struct("iIII")
_BUFFER_BYTES: Final = 1 << 16

_TRANSIENT: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_REFUSED: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP, errno.EISDIR, errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}
)


class FolderCalls(Calls, Protocol):
    """The system calls of a store's folder, and one more."""

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
    """The system that a queue runs on.

    Attributes:
        now_ns: wall clock, nanoseconds since 1970.
        sleep: for so many seconds.
        heard: file systems whose changes the kernel tells; elsewhere the folder is listed.
    """

    calls: FolderCalls = LinuxFolderCalls()
    now_ns: Callable[[], int] = time.time_ns
    sleep: Callable[[float], None] = time.sleep
    mount: Callable[[str], Mount] = mount_of
    heard: frozenset[str] = HEARD


class Event(NamedTuple):
    """One name came or went."""

    name: str
    present: bool


class FolderLeft(Exception):
    """The folder was removed, moved or unmounted."""


class FolderWatch:
    """Follows one folder.

    Raises:
        OSError: it cannot be watched: not there, not on this system, or too many watch already.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "inotify_init1"):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        self._fd = _checked(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        try:
            _checked(libc.inotify_add_watch(self._fd, os.fsencode(path), _WANTED))
        except OSError:
            os.close(self._fd)
            raise

    def fileno(self) -> int:
        """Readable when there is something to tell."""
        return self._fd

    def close(self) -> None:
        """Stop following."""
        os.close(self._fd)

    def wait(self, seconds: float) -> None:
        """Wait until events can be read, or for `seconds`."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.poll(max(0.0, seconds) * 1000)

    def events(self) -> list[Event] | None:
        """The events since the last call, in their order; None when some were lost.

        Raises:
            FolderLeft: the path leads to that folder no longer.
        """
        found: list[Event] = []
        lost, half_moved, waited = False, False, False
        while True:
            try:
                buffer = os.read(self._fd, _BUFFER_BYTES)
            except BlockingIOError:
                if waited or not half_moved:
                    return None if lost else found
                self._wait_for_move()
                waited = True
                continue
            for mask, name in _unpack(buffer):
                if mask & _LEFT:
                    raise FolderLeft
                lost = lost or bool(mask & _OVERFLOW)
                half_moved = bool(mask & _MOVED_FROM)
                if not mask & (_ISDIR | _OVERFLOW):
                    found.append(Event(name, bool(mask & (_CREATE | _MOVED_TO))))

    def _wait_for_move(self) -> None:
        """Wait for the second half of a rename."""
        # Reading a folder waits for its lock, which a rename holds until it has told of both names.
        with os.scandir(self._path) as names:
            next(names, None)


def _unpack(buffer: bytes) -> list[tuple[int, str]]:
    found, position = [], 0
    while position < len(buffer):
        _, mask, _, length = _HEAD.unpack_from(buffer, position)
        position += _HEAD.size
        found.append((mask, os.fsdecode(buffer[position : position + length].rstrip(b"\0"))))
        position += length
    return found


def _checked(returned: int) -> int:
    if returned < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return returned


@contextlib.contextmanager
def told(path: str) -> Iterator[None]:
    """Translate the errors of a block that uses the folder `path` from the operating system's to mq's.

    Raises:
        NoSuchQueue: the folder is not there.
        StorageFull: no room or no handles just now.
        StorageUnusable: not permitted, or not possible there.
        StorageFailed: anything else.
    """
    try:
        yield
    except FolderLeft as error:
        raise _no_queue(path) from error
    except OSError as error:
        raise _translated(path, error) from error


def failed(path: str, error: OSError) -> StorageFailed:
    """The error for a disk that does not do its work."""
    return StorageFailed(
        f"{path}: {error.strerror}. The state of the disk is unknown: repair and remount the disk, then open "
        "the queue again"
    )


def _translated(path: str, error: OSError) -> MQError:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return _no_queue(path)
    if error.errno in _TRANSIENT:
        return StorageFull(f"{path}: {error.strerror}. Try again later")
    if error.errno in _REFUSED:
        return StorageUnusable(f"{path}: {error.strerror}. A queue folder must be readable, writable and lockable")
    return failed(path, error)


def _no_queue(path: str) -> NoSuchQueue:
    return NoSuchQueue(
        f"the folder {path} does not exist, or has been replaced since it was opened. If it is missing, create it "
        "with mkdir; otherwise open the queue again"
    )
