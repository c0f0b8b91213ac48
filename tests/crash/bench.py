"""Where disks are made and broken: one folder, of which nothing is left behind.

Not even when the process that made it is killed: a guard, a process of its own, waits for the end of its standard
input, which comes with the end of whoever holds the other side, and clears away what is still there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final

TREE: Final = Path(__file__).resolve().parents[2]
IN_MEMORY: Final = Path("/dev/shm")
COMMAND_SECONDS: Final = 60.0
_LOOKS_EVERY_SECONDS: Final = 0.05


class Bench:
    """A folder for disks, in memory where there is room, and its guard."""

    def __enter__(self) -> Bench:
        place = IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="mq-powercut-", dir=place)).resolve()
        self._guard = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.bench", str(self.folder)],
            cwd=TREE,
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the one who is guarded
        )
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        try:
            status = self._guard.wait(COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            status = self._guard.wait()
        assert status == 0, f"something is left of {self.folder}"

    def end_with(self, pid: int) -> None:
        """That process works below the folder, and is not to outlive it."""
        assert self._guard.stdin is not None
        self._guard.stdin.write(f"{pid} {_began(pid)}\n".encode())
        self._guard.stdin.flush()


def run(*command: str | Path) -> str:
    """What a command prints.

    Raises:
        CommandFailed: it said no; the text is what it said.
    """
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise CommandFailed(f"{' '.join(map(str, command))}: {done.stderr.strip() or done.returncode}")
    return done.stdout.strip()


def unmount_when_free(point: Path) -> None:
    """Unmount. A loop device is detached when the last program has closed it, which may just be listing all of them.

    Raises:
        CommandFailed: it is not free after a minute.
    """
    deadline = time.monotonic() + COMMAND_SECONDS
    while True:
        try:
            run("umount", point)
        except CommandFailed as error:
            if "busy" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(_LOOKS_EVERY_SECONDS)
        else:
            return


class CommandFailed(Exception):
    """A system command said no."""


def sweep(folder: Path) -> None:
    """Unmount and detach whatever lies below `folder`, then remove it. Does nothing when nothing is there.

    Raises:
        CommandFailed: the system does not let go of it.
    """
    inside = [(point, kind) for point, kind in _mounts() if point.startswith(f"{folder}/")]
    disks_first = sorted(inside, key=lambda mount: mount[1].startswith("fuse"))
    for point, kind in disks_first:
        if kind.startswith("fuse"):
            _detach_loops(folder)
        try:
            run("umount", point)
        except CommandFailed:
            run("umount", "--lazy", point)
    _detach_loops(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _detach_loops(folder: Path) -> None:
    for line in run("losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE").splitlines():
        device, _, file = line.partition(" ")
        if file.strip().startswith(f"{folder}/"):
            with contextlib.suppress(CommandFailed):  # mounted ones go with their mount
                run("losetup", "--detach", device)


def _mounts() -> list[tuple[str, str]]:
    """(where, what kind) of every mount, the newest first."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        found.append((left.split()[4], right.split()[0]))
    return found[::-1]


def _began(pid: int) -> str:
    """When a process began, in ticks of the kernel: another one of its number began at another time."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def _end(pid: int, began: str) -> None:
    """End a process, if it is still the one that was meant."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        if _began(pid) == began:
            os.kill(pid, signal.SIGKILL)


def _guard(folder: Path) -> None:
    """Wait for the end of the input, then clear away."""
    for pid, began in [line.split() for line in sys.stdin]:
        _end(int(pid), began)
    sweep(folder)


if __name__ == "__main__":
    _guard(Path(sys.argv[1]))
    sys.exit(Path(sys.argv[1]).exists())
