"""A file system of its own on a disk that remembers (:mod:`tests.crash.device`)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

from tests.crash.bench import TREE, CommandFailed, run, sweep, unmount_when_free
from tests.crash.recording import Recording

START_SECONDS: Final = 20.0
STOP_SECONDS: Final = 20.0
_POLL_SECONDS: Final = 0.005
_CAP_SYS_ADMIN: Final = 21


class FileSystem(NamedTuple):
    """One that promises are tried on.

    Attributes:
        atom: how many bytes of a write the disk keeps or loses together, in bytes.
        repair: the command that has to run after a cut and before the mount, without the disk.
        overlay: promises are tried on an overlay above it, with nothing in the layer below.
    """

    name: str
    kind: str
    megabytes: int
    make: tuple[str, ...]
    atom: int = 512
    repair: tuple[str, ...] = ()
    mount: str = "defaults"
    overlay: bool = False

    def mount_at(self, device: str, point: Path) -> None:
        """Mount a device.

        Raises:
            CommandFailed: that is not possible, and nothing is mounted.
        """
        if not self.overlay:
            run("mount", "-t", self.kind, "-o", self.mount, device, point)
            return
        below = _below(point)
        below.mkdir(exist_ok=True)
        run("mount", "-t", self.kind, "-o", self.mount, device, below)
        try:
            layers = {name: below / name for name in ("lowerdir", "upperdir", "workdir")}
            for layer in layers.values():
                layer.mkdir(exist_ok=True)
            options = ",".join(f"{name}={layer}" for name, layer in layers.items())
            run("mount", "-t", "overlay", "-o", options, "overlay", point)
        except CommandFailed:
            run("umount", below)
            raise

    def unmount_at(self, point: Path) -> None:
        """Unmount what :meth:`mount_at` has mounted."""
        run("umount", point)
        if self.overlay:
            run("umount", _below(point))


def _below(point: Path) -> Path:
    return point.with_name(f"{point.name}-below")


_MAKE_EXT4: Final = ("mkfs.ext4", "-q", "-F", "-b", "4096", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0")
_REPAIR_EXT4: Final = ("e2fsck", "-fy")

FILE_SYSTEMS: Final = {
    system.name: system
    for system in (
        FileSystem("ext4", "ext4", 96, _MAKE_EXT4),
        FileSystem("xfs", "xfs", 320, ("mkfs.xfs", "-q", "-f", "-K"), mount="nouuid"),
        FileSystem("btrfs", "btrfs", 192, ("mkfs.btrfs", "-q", "-f", "-K", "-M"), atom=4096),
        FileSystem("ext4-nojournal", "ext4", 96, (*_MAKE_EXT4, "-O", "^has_journal,^dir_index"), repair=_REPAIR_EXT4),
        FileSystem("overlay", "ext4", 96, _MAKE_EXT4, overlay=True),
        FileSystem("ext4-indexed", "ext4", 96, (*_MAKE_EXT4, "-b", "1024", "-O", "^has_journal"), repair=_REPAIR_EXT4),
    )
}
"""By name. btrfs asks of a disk that it writes 4 KiB, its superblock, all or not at all.

"ext4-indexed" has no journal either, and indexes large folders. When such an index grows, the kernel takes half of
the names out of one block and into another: a power cut between the two takes away what was durable before, and no
program can help it. Blocks of 1 KiB bring that about sooner.
"""


def missing(*systems: str) -> str:
    """Why no disk can be recorded here, in a few words; empty when it can."""
    if not may_mount():
        return "it takes root, with the right to mount"
    for node in ("/dev/fuse", "/dev/loop-control"):
        if not os.path.exists(node):
            return f"there is no {node}"
    commands = {FILE_SYSTEMS[name].make[0] for name in systems}
    if any(FILE_SYSTEMS[name].overlay for name in systems) and "overlay" not in Path("/proc/filesystems").read_text():
        return "this kernel has no overlay"
    for command in sorted(commands | {"mount", "losetup"}):
        if shutil.which(command) is None:
            return f"there is no {command}"
    probe = subprocess.run([sys.executable, "-c", "import mfusepy"], capture_output=True, timeout=START_SECONDS)
    return "there is no mfusepy, or no libfuse for it" if probe.returncode else ""


def may_mount() -> bool:
    """Whether this process has the right to mount."""
    lines = Path("/proc/self/status").read_text().splitlines()
    effective = next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff"))
    return os.geteuid() == 0 and bool(effective >> _CAP_SYS_ADMIN & 1)


class Rig:
    """A mounted file system on a recorded disk, for the length of the block.

    Args:
        image: the disk's content at the beginning; an empty file system when not given.
    """

    def __init__(self, folder: Path, system: FileSystem, image: Path | None = None) -> None:
        self.folder = folder
        self.system = system
        self.mountpoint = folder / "mounted"
        self.base = folder / "base"
        self._image = image
        self._live = folder / "live"
        self._log = folder / "log"
        self._fuse = folder / "fuse"
        self._device: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Rig:
        for new in (self.folder, self.mountpoint, self._fuse):
            new.mkdir()
        try:
            self._set_up()
        except BaseException:
            sweep(self.folder)
            self._end_device()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._marks)
        try:
            self.unmount()
            run("losetup", "--detach", self._loop)
            unmount_when_free(self._fuse)
            self._end_device(STOP_SECONDS)
        except CommandFailed:
            if error is None:
                raise
        finally:
            if error is not None:
                sweep(self.folder)
            self._end_device()

    def mark(self, text: str) -> None:
        """Note that something has happened by now."""
        os.write(self._marks, text.encode())

    def fail(self, what: str, times: int | None = None) -> None:
        """Let every ``write`` or ``flush`` from now on fail with EIO, or only the next `times`."""
        self._control(what if times is None else f"{what} {times}")

    def heal(self) -> None:
        """Let the disk work again."""
        self._control("nothing")

    def mount(self) -> None:
        """Mount it, repaired first where it needs that."""
        prepare(self.system, Path(self._loop))
        self.system.mount_at(self._loop, self.mountpoint)

    def unmount(self) -> None:
        """Unmount it."""
        self.system.unmount_at(self.mountpoint)

    def remount(self) -> None:
        """As a restart of the machine does: what the kernel had in memory only is gone, with the errors that it has
        noted of the device."""
        self.unmount()
        run("losetup", "--detach", self._loop)
        self._loop = run("losetup", "--find", "--show", self._fuse / "disk")
        self.mount()

    def recording(self) -> Recording:
        """What has happened up to now."""
        return Recording.read(self.base, self._log)

    def _set_up(self) -> None:
        if self._image is None:
            with self._live.open("wb") as empty:
                empty.truncate(self.system.megabytes << 20)
            run(*self.system.make, self._live)
        for source, target in ((self._image or self._live, self.base), (self.base, self._live)):
            run("cp", "--sparse=always", source, target)
        self._log.touch()
        files = map(str, (self._fuse, self._live, self._log))
        command = [sys.executable, "-m", "tests.crash.device", *files]
        self._device = subprocess.Popen(command, cwd=TREE, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS
        while not (self._fuse / "disk").exists():
            if self._device.poll() is not None or time.monotonic() > deadline:
                raise CommandFailed("the recording device does not start")
            time.sleep(_POLL_SECONDS)
        self._loop = run("losetup", "--find", "--show", self._fuse / "disk")
        self.mount()
        self._marks = os.open(self._fuse / "mark", os.O_WRONLY | os.O_CLOEXEC)

    def _end_device(self, patience_seconds: float = 0) -> None:
        """It ends when it is unmounted; after that time it is made to."""
        if self._device is not None:
            try:
                self._device.wait(patience_seconds)
            except subprocess.TimeoutExpired:
                self._device.kill()
                self._device.wait()

    def _control(self, text: str) -> None:
        control = os.open(self._fuse / "control", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(control, text.encode())
        finally:
            os.close(control)


def prepare(system: FileSystem, disk: Path) -> None:
    """Do what a machine does before it mounts such a disk after a cut.

    Raises:
        CommandFailed: the file system is beyond repair.
    """
    if not system.repair:
        return
    done = subprocess.run([*system.repair, disk], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    repaired = 3  # e2fsck(8): 1 is "errors corrected", 2 is "reboot", together 3
    if done.returncode > repaired:
        raise CommandFailed(f"{system.repair[0]}: {done.returncode}: {done.stdout.strip()[-200:]}")
