"""A disk that remembers: a FUSE folder whose file ``disk`` is a block device's content.

Every write and every flush that the device is asked for goes into a log, in the order in which it completed, and so
does whatever is written to the file ``mark``. The file ``control`` makes the device fail.

A program of its own: ``python -m tests.crash.device MOUNTPOINT IMAGE LOG``. What the log looks like, and how it is
read, is in :mod:`tests.crash.recording`.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from typing import Any, Final

import mfusepy

from tests.crash.recording import HEADER, Kind

DISK: Final = "/disk"
MARK: Final = "/mark"
CONTROL: Final = "/control"


class Device(mfusepy.Operations):
    """One disk."""

    use_ns = True

    def __init__(self, image: str, log: str) -> None:
        self._image = os.open(image, os.O_RDWR)
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND)
        self._failing = ""
        self._failures_left = 0

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o700, "st_nlink": 2}
        if path not in (DISK, MARK, CONTROL):
            raise mfusepy.FuseOSError(errno.ENOENT)
        size = os.fstat(self._image).st_size if path == DISK else 0
        return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": size}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *(name[1:] for name in (DISK, MARK, CONTROL))]

    def open(self, path: str, flags: int) -> int:
        return 0

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        return 0  # whoever opens a mark to write it

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(self._image, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        if path == CONTROL:
            what, _, times = data.decode().partition(" ")
            self._failing, self._failures_left = what, int(times or sys.maxsize)
            self._note(Kind.MARK, 0, b"device " + data)
        elif path == MARK:
            self._note(Kind.MARK, 0, data)
        else:
            self._fail_if_told("write")
            os.pwrite(self._image, data, offset)
            self._note(Kind.WRITE, offset, data)
        return len(data)

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        if path == DISK:
            self._fail_if_told("flush")
            self._note(Kind.FLUSH, 0, b"")
        return 0

    def _fail_if_told(self, what: str) -> None:
        if self._failing == what and self._failures_left:
            self._failures_left -= 1
            raise mfusepy.FuseOSError(errno.EIO)

    def _note(self, kind: Kind, offset: int, data: bytes) -> None:
        record = HEADER.pack(kind.value, time.time_ns(), offset, len(data)) + data
        written = os.write(self._log, record)
        assert written == len(record), "no room for the log"


if __name__ == "__main__":
    mountpoint, image, log = sys.argv[1:]
    # one thread, and nothing cached: the log's order is the device's
    mfusepy.FUSE(Device(image, log), mountpoint, foreground=True, nothreads=True, direct_io=True, raw_fi=False)
