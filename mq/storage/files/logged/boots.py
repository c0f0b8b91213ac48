"""The boot and the mount in which a log was begun: they tell whether the kernel still has what was written."""

from __future__ import annotations

import contextlib
import ctypes
import struct
from typing import Final

from mq.storage.files.calls import OPEN_READ, Calls, opened
from mq.storage.files.logged.segments import LIFE_BYTES, LogDamaged, read_header

_LOOKS: Final = 100
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


def life_of(root_fd: int, boot_id: str = _BOOT_ID) -> str:
    """What tells this boot and this mount from every other: empty where the kernel has no such number of a mount
    (before 6.8), so that all of a log is done again.

    Args:
        boot_id: where the kernel tells its own.
    """
    mount, boot = _unique_mount_id(root_fd), _boot(boot_id)
    return "" if mount is None or not boot else f"{boot}:{mount}"[:LIFE_BYTES]


def _boot(boot_id: str) -> str:
    """What tells this boot of the machine from every other; empty where nothing does."""
    try:
        with open(boot_id, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


_STATX_MNT_ID_UNIQUE: Final = 0x4000
_AT_EMPTY_PATH: Final = 0x1000
_STATX_BYTES: Final = 256
_MNT_ID_AT: Final = 0x90


def _unique_mount_id(fd: int) -> int | None:
    """The mount's number, which no other mount has or had since the machine was started."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    if not hasattr(libc, "statx") or libc.statx(fd, b"", _AT_EMPTY_PATH, _STATX_MNT_ID_UNIQUE, buffer) != 0:
        return None
    (mask,) = struct.unpack_from("<I", buffer.raw)
    (number,) = struct.unpack_from("<Q", buffer.raw, _MNT_ID_AT)
    return int(number) if mask & _STATX_MNT_ID_UNIQUE else None


def lives_of(calls: Calls, folder: str) -> set[str]:
    """The lives (:func:`life_of`) in which the segments of a log were begun; its daemon may be using it.

    Raises:
        LogDamaged: a header cannot be read.
    """
    return {_life_in(calls, f"{folder}/{number}") for number in range(2)}


def is_of_this_boot(life: str, boot_id: str = _BOOT_ID) -> bool:
    """Whether the machine was not started anew since a life began; True where that is not known, too."""
    return not life or life.partition(":")[0] == _boot(boot_id)


def _life_in(calls: Calls, path: str) -> str:
    with opened(calls, path, OPEN_READ) as fd:
        for _ in range(_LOOKS):
            with contextlib.suppress(LogDamaged):  # half of it may be what a checkpoint writes just now
                return read_header(calls, fd, path).life
        return read_header(calls, fd, path).life
