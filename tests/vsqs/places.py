"""Folders for VSQS, and the ways in which it can use them: each test of the protocol runs in all four."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mq.storage.files.calls import Calls
from mq.storage.files.mount import Mount
from mq.vsqs import Queue
from mq.vsqs.system import LinuxFolderCalls, System
from simulation.calls import FaultyCalls

WAYS: Final = {
    "heard, renames": (True, True),
    "heard, links": (True, False),
    "listed, renames": (False, True),
    "listed, links": (False, False),
}
"""Whether the kernel tells what changes, and whether a rename survives a crash whole."""


class FaultyFolderCalls(FaultyCalls):
    """The kernel, of whose calls chosen ones fail."""

    def __init__(self, root: str) -> None:
        self._linux = LinuxFolderCalls()
        super().__init__(self._linux, root)

    def is_at(self, fd: int, path: str) -> bool:
        return self._linux.is_at(fd, path)


@dataclass
class Clock:
    """A wall clock that a test sets. Whoever sleeps moves it."""

    ns: int = field(default_factory=time.time_ns)
    slept: int = 0

    def now_ns(self) -> int:
        return self.ns

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        self.ns += round(seconds * 1e9)

    @property
    def ms(self) -> int:
        return self.ns // 1_000_000


class Place:
    """One folder, a clock, calls that can fail, and queues on it."""

    def __init__(self, folder: Path, *, heard: bool, renames: bool) -> None:
        self.folder = folder
        self.clock = Clock()
        self.calls = FaultyFolderCalls(str(folder))
        self.renames = renames
        self.system = self.system_with(heard=heard)
        self._queues: list[Queue] = []

    def system_with(self, *, heard: bool, calls: Calls | None = None) -> System:
        return System(
            calls=calls or self.calls,
            now_ns=self.clock.now_ns,
            sleep=self.clock.sleep,
            mount=lambda path: Mount("test", atomic_rename=self.renames),
            heard=frozenset(["test"]) if heard else frozenset(),
        )

    def open(self, **options: object) -> Queue:
        """A queue on the folder, as another process would have one, that has looked around for a millisecond."""
        queue = Queue(self.folder, **{"system": self.system, **options})
        self._queues.append(queue)
        queue.size()
        self.clock.ns += 10**6
        return queue

    def close(self) -> None:
        for queue in self._queues:
            queue.close()

    def names(self) -> list[str]:
        return sorted(os.listdir(self.folder))

    def put(self, name: str, body: bytes = b"") -> Path:
        path = self.folder / name
        path.write_bytes(body)
        return path


@contextmanager
def place(folder: Path, way: str) -> Iterator[Place]:
    heard, renames = WAYS[way]
    made = Place(folder, heard=heard, renames=renames)
    try:
        yield made
    finally:
        made.close()
