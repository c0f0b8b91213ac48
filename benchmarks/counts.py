"""What the kernel counts of a server: processor time, what its disk was asked for, system calls."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from benchmarks.machine import DeviceCounts, device_counts, write_back

_PATIENCE_SECONDS: Final = 20.0
_ENDED_USER, _ENDED_SYSTEM = 13, 14
"""Where cutime and cstime stand in /proc/PID/stat, behind the name."""
_PERF: Final = ("perf", "stat", "-x,", "-e", "raw_syscalls:sys_enter")


class Used:
    """What a server used during the block, written back to the disk on both sides of it.

    Attributes:
        seconds: of processor time, of all its processes.
        device: what its disk did; None where the kernel does not tell, as of tmpfs.
    """

    def __init__(self, pids: Sequence[int], folder: Path) -> None:
        self._pids = pids
        self._folder = str(folder)
        self.seconds = 0.0
        self.device: DeviceCounts | None = None

    def __enter__(self) -> Used:
        write_back(self._folder)
        self._device = device_counts(self._folder)
        self._seconds = processor_seconds(self._pids)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = processor_seconds(self._pids) - self._seconds
        write_back(self._folder)
        after = device_counts(self._folder)
        if after is not None and self._device is not None:
            self.device = after.since(self._device)


def processor_seconds(pids: Iterable[int]) -> float:
    """Processor time that these processes and those below them have used: to the nanosecond, and to the kernel's tick
    what those used that have ended."""
    total = 0.0
    for pid in with_children(pids):
        try:
            total += time.clock_gettime(~pid << 3 | 2)  # CPUCLOCK_SCHED of a process: see clock_getcpuclockid(3)
            fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        total += (int(fields[_ENDED_USER]) + int(fields[_ENDED_SYSTEM])) / os.sysconf("SC_CLK_TCK")
    return total


def with_children(pids: Iterable[int]) -> list[int]:
    """These processes and all below them."""
    found = []
    waiting = list(pids)
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        for listing in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                waiting += map(int, listing.read_text().split())
            except OSError:
                continue
    return found


class SystemCalls:
    """Counts the system calls of a server during the block, by perf.

    Attributes:
        count: how many; None where perf is missing or may not count them, and of no process.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = with_children(pids)
        self.count: int | None = None

    def __enter__(self) -> SystemCalls:
        self._output = tempfile.NamedTemporaryFile("r", suffix=".calls")
        self._counter = None
        if self._pids and _perf_counts():
            command = [*_PERF, "-o", self._output.name, "-p", ",".join(map(str, self._pids))]
            self._counter = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(0.5)  # until it has attached itself; there is nothing to wait for
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._output:
            if self._counter is not None:
                self._counter.send_signal(signal.SIGINT)
                self._counter.wait(_PATIENCE_SECONDS)
                found = re.search(r"^(\d+),+raw_syscalls", self._output.read(), re.MULTILINE)
                self.count = int(found[1]) if found else None


def _perf_counts() -> bool:
    """Whether perf is here and may count system calls."""
    if shutil.which("perf") is None:
        return False
    command = [*_PERF, "-p", str(os.getpid()), "true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_SECONDS)
    return done.returncode == 0 and "not supported" not in done.stderr
