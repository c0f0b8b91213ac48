"""What a million messages cost a broker: the time to take them up at a start, and memory for each.

Ready ones are files below ``queues/``, leased and delayed ones names below ``delay/``: delayed for hours, or over the
days of a year, which no lease is. Each is measured in a process of its own,
against one that serves an empty root.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import trio

from benchmarks.figures import Figure, at_least, at_most
from mq.broker import open_broker
from mq.message import MessageIds
from mq.storage.registry import open_storage

MANY: Final = 1_000_000
YEAR: Final = "delayed over a year"
KINDS: Final = ("ready", "leased", "delayed", YEAR)
WANTED_RATE: Final = 100_000
WANTED_BYTES: Final = 300
_LEASED_FOR_MS: Final = 36_000_000
_FAR_OFF_MS: Final = 50_000_000
_YEAR_MS: Final = 365 * 86_400_000


def measure(folder: str, messages: int = MANY, kinds: Sequence[str] = KINDS) -> list[Figure]:
    """Entries a second at a start, and bytes a message, of ready, leased and delayed ones.

    Args:
        folder: where the roots are made.
        messages: how many.
        kinds: which of KINDS.
    """
    empty = _start(f"{folder}/many-empty", iter(()))
    figures = []
    for what in kinds:
        wanted = WANTED_BYTES if what in ("ready", YEAR) else None
        seen = _start(f"{folder}/many-{what.replace(' ', '-')}", _names(what, messages))
        bytes_each = (seen["bytes"] - empty["bytes"]) / messages
        rate = messages / seen["scan_seconds"]
        note = f"{seen['open_seconds']:.1f} s to open the store, {seen['scan_seconds']:.1f} s to take it up"
        if wanted is None:
            figures.append(Figure(f"{messages:,} {what}: taken up at a start", rate, "a second", note=note))
            figures.append(Figure(f"{messages:,} {what}: memory", bytes_each, "bytes a message"))
        else:
            figures.append(at_least(f"{messages:,} {what}: taken up at a start, a second", rate, WANTED_RATE, note))
            figures.append(at_most(f"{messages:,} {what}: memory", bytes_each, wanted, "bytes a message"))
        figures.append(
            at_most(
                f"{messages:,} {what}: tasks more than without",
                seen["tasks"] - empty["tasks"],
                int(what == YEAR),  # the calendar's, as long as something is far off
                "tasks",
            )
        )
    return figures


def _names(what: str, messages: int) -> Iterator[str]:
    ids = MessageIds()
    due = time.time_ns() // 1_000_000 + _LEASED_FOR_MS
    for number in range(messages):
        if what == "ready":
            yield f"queues/q/{ids.new()}"
        elif what == "leased":
            yield f"delay/q:{ids.new()},d{due + number},r1,c{number:016x}"
        elif what == YEAR:
            yield f"delay/q:{ids.new()},d{due - _LEASED_FOR_MS + _FAR_OFF_MS + number * _YEAR_MS // messages}"
        else:
            yield f"delay/q:{ids.new()},d{due + number}"


def _start(root: str, names: Iterator[str]) -> dict[str, float]:
    """Make a root with these files, and start a broker on it in another process."""
    try:
        for folder in ("queues/q", "delay"):
            Path(root, folder).mkdir(parents=True)
        for name in names:
            os.close(os.open(f"{root}/{name}", os.O_CREAT | os.O_WRONLY))
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.many", root], capture_output=True, text=True, check=True, timeout=900
        )
        found: dict[str, float] = json.loads(done.stdout)
        return found
    finally:
        shutil.rmtree(root, ignore_errors=True)


async def _serve(root: str) -> dict[str, float]:
    started = time.perf_counter()
    async with open_storage(f"posix:{root}") as storage:
        opened = time.perf_counter()
        async with open_broker(storage):
            taken_up = time.perf_counter()
            await trio.sleep(0.1)
            return {
                "open_seconds": opened - started,
                "scan_seconds": taken_up - opened,
                "bytes": _resident_bytes(),
                "tasks": trio.lowlevel.current_statistics().tasks_living,
            }


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


if __name__ == "__main__":
    print(json.dumps(trio.run(_serve, sys.argv[1])))
