"""Where a benchmark ran, and what the kernel counts about its disk."""

from __future__ import annotations

import datetime
import os
import platform
from importlib.metadata import version
from importlib.util import find_spec
from typing import NamedTuple

from mq.storage.files.calls import LinuxCalls
from mq.storage.files.mount import mount_of


class DeviceCounts(NamedTuple):
    """What a block device has done since the machine started.

    Attributes:
        written_bytes: bytes in them.
        flushes: requests to empty its cache.
    """

    writes: int
    written_bytes: int
    flushes: int

    def since(self, before: DeviceCounts) -> DeviceCounts:
        """What it did after `before`."""
        return DeviceCounts(*(now - then for now, then in zip(self, before, strict=True)))


def facts(folder: str) -> dict[str, str]:
    """The machine, as a table's rows."""
    mount = mount_of(folder)
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "kernel": f"{platform.system()} {platform.release()}",
        "processors": str(os.cpu_count()),
        "file system": mount.kind,
        "how a message is moved": "rename" if mount.atomic_rename else "link, sync, unlink",
        "keeps its content without power": "yes" if mount.persistent else "no",
        "Python": platform.python_version(),
        "Trio": version("trio"),
        "mq": version("mq"),
        "mq's hot modules": "compiled by mypyc" if is_compiled() else "as they are, not compiled",
    }


def is_compiled() -> bool:
    """Whether the mq that is measured is the compiled one (docs/service.md)."""
    found = find_spec("mq.broker.index")
    return found is not None and not str(found.origin).endswith(".py")


def write_back(folder: str) -> None:
    """Write what waits on the file system of `folder`, so no later measurement pays for it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        LinuxCalls().syncfs(handle)
    finally:
        os.close(handle)


def device_counts(folder: str) -> DeviceCounts | None:
    """What the kernel says of the device below `folder`; None where there is none, or it tells nothing."""
    device = os.stat(folder).st_dev
    wanted = [str(os.major(device)), str(os.minor(device))]
    try:
        with open("/proc/diskstats", encoding="ascii") as table:
            fields = next((line.split() for line in table if line.split()[:2] == wanted), None)
    except OSError:
        return None
    if fields is None or len(fields) < 19:
        return None
    return DeviceCounts(writes=int(fields[7]), written_bytes=int(fields[9]) * 512, flushes=int(fields[18]))
