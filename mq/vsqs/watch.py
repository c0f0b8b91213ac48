"""What happens to the names in one folder, told by the kernel: inotify(7), with nothing but the standard library.

The kernel queues an event while it holds the folder's lock. So whoever has created, moved or taken away a name there
finds everything that happened before it among the events.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct
from typing import Final, NamedTuple

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


class Event(NamedTuple):
    """One name came or went.

    Attributes:
        name: in the folder.
        present: whether it is there now.
    """

    name: str
    present: bool


class FolderLeft(Exception):
    """The folder was removed, moved or unmounted."""


class Watch:
    """Follows one folder.

    Args:
        path: of the folder.

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
        """Until there is something to tell, or for so long."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.poll(max(0.0, seconds) * 1000)

    def events(self) -> list[Event] | None:
        """What happened since the last call, in its order; None when some of it was lost.

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
        """Reading a folder waits for its lock, which a rename holds until it has told of both names."""
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
