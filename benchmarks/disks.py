"""The disks that servers are measured on.

A file system of its own has its own counters of writes and flushes, and mq may sync it as a whole. It is ext4 on a
loop device over a file, and takes root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

MEBIBYTES: Final = 2048
_PATIENCE_SECONDS: Final = 120.0
_UNMOUNT_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.02
_CAP_SYS_ADMIN: Final = 21


@contextmanager
def plain(parent: str | None) -> Iterator[Path]:
    """A folder of a file system that is shared with everything else on it."""
    with tempfile.TemporaryDirectory(prefix="mq-bench-", dir=parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def own(parent: str | None) -> Iterator[Path]:
    """A file system of its own, over a file in `parent`. The file is written once before, so its blocks are really
    there."""
    with plain(parent) as folder:
        image = folder / "image"
        _run("dd", "if=/dev/zero", f"of={image}", "bs=1M", f"count={MEBIBYTES}", "conv=fsync", "status=none")
        with _mounted(image, folder / "mounted") as mounted:
            yield mounted


def why_not_own() -> str:
    """Why a file system of its own cannot be had; empty when it can."""
    status = Path("/proc/self/status").read_text()
    effective = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff"))
    if os.geteuid() != 0 or not effective >> _CAP_SYS_ADMIN & 1:
        return "it takes root, with the right to mount"
    if not os.path.exists("/dev/loop-control"):
        return "there is no /dev/loop-control"
    missing = [name for name in ("mkfs.ext4", "losetup", "mount") if shutil.which(name) is None]
    return f"there is no {missing[0]}" if missing else ""


@contextmanager
def _mounted(image: Path, target: Path) -> Iterator[Path]:
    target.mkdir()
    _run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(image))
    device = _run("losetup", "--find", "--show", str(image))
    try:
        _run("mount", "-t", "ext4", device, str(target))
        try:
            yield target
        finally:
            _unmount(target)
    finally:
        _run("losetup", "--detach", device)


def _unmount(target: Path) -> None:
    """What servers leave behind may hold it for another moment."""
    deadline = time.monotonic() + _UNMOUNT_SECONDS
    while time.monotonic() < deadline:
        if subprocess.run(["umount", str(target)], capture_output=True, timeout=_PATIENCE_SECONDS).returncode == 0:
            return
        time.sleep(_POLL_SECONDS)
    _run("umount", "--lazy", str(target))


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_SECONDS)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[-300:]}")
    return done.stdout.strip()
