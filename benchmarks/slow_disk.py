"""A disk whose flush takes its time: a FUSE folder whose file ``disk`` is a block device's content.

``python -m benchmarks.slow_disk MOUNTPOINT IMAGE SECONDS``. Writes go straight to the image, which should lie in
memory; a flush sleeps. A loop device over the file passes its flushes on one at a time, and serves nothing else
meanwhile: as a disk does that has one queue.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from typing import Any, Final

import mfusepy

DISK: Final = "/disk"


class Disk(mfusepy.Operations):
    """One disk.

    Args:
        image: the file that holds its content.
        flush_seconds: what a flush takes.
    """

    use_ns = True

    def __init__(self, image: str, flush_seconds: float) -> None:
        self._image = os.open(image, os.O_RDWR)
        self._flush_seconds = flush_seconds

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        """As FUSE asks for it."""
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o700, "st_nlink": 2}
        if path != DISK:
            raise mfusepy.FuseOSError(errno.ENOENT)
        return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": os.fstat(self._image).st_size}

    def open(self, path: str, flags: int) -> int:
        """As FUSE asks for it."""
        return 0

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        """As FUSE asks for it."""
        return os.pread(self._image, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        """As FUSE asks for it."""
        return os.pwrite(self._image, data, offset)

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        """A flush."""
        time.sleep(self._flush_seconds)
        return 0


if __name__ == "__main__":
    mountpoint, image, seconds = sys.argv[1:]
    mfusepy.FUSE(Disk(image, float(seconds)), mountpoint, foreground=True, direct_io=True, raw_fi=False)
