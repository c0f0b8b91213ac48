"""Disks as they are after the power went, at any point of a recording."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from tests.crash.bench import run
from tests.crash.recording import Kind, Record, Recording
from tests.crash.rig import FileSystem, prepare

_CHUNK: Final = 8 << 20
_KEPT: Final = 0.5
_TORN: Final = 0.6


class Fate(enum.Enum):
    """What becomes of what was written since the last flush."""

    LOST = "lost"
    """Nothing of it is on the medium."""
    KEPT = "kept"
    """All of it is."""
    TORN = "torn"
    """Some writes are, in no order, and of some a part."""


class Cut(NamedTuple):
    """One way for the power to go.

    Attributes:
        k: before which record.
        fate: of what was not flushed.
        seed: chooses what stays of it, where that is left to chance.
    """

    k: int
    fate: Fate
    seed: int

    def __str__(self) -> str:
        return f"{self.k}:{self.fate.value}:{self.seed}"


def last_moments(recording: Recording, first: int) -> list[Cut]:
    """For every flush at or after `first`, the cut just before it that loses what was not flushed: the oldest disk that
    meets the youngest promises. All disks that can be left by losing everything are among these.
    """
    points = [k for k, record in enumerate(recording.records) if record.kind is Kind.FLUSH and k >= first]
    return [Cut(k, Fate.LOST, 0) for k in (*points, len(recording.records))]


def choose_cuts(recording: Recording, first: int, count: int, random: Random) -> list[Cut]:
    """`count` cuts at or after `first`, in order: half of them last moments, as far as there are so many, the others
    anywhere, mostly in a way that tears what was not flushed.
    """
    moments = last_moments(recording, first)
    cuts = random.sample(moments, min(len(moments), count // 2))
    while len(cuts) < count:
        fate = random.choice((Fate.TORN, Fate.TORN, Fate.TORN, Fate.KEPT, Fate.LOST))
        cuts.append(Cut(random.randint(first, len(recording.records)), fate, random.getrandbits(32)))
    return sorted(cuts, key=lambda cut: cut.k)


class CrashImages:
    """Builds images. Cheapest when asked for cuts in order.

    Args:
        atom: how many bytes of a write the disk keeps or loses together.
    """

    def __init__(self, recording: Recording, atom: int, folder: Path) -> None:
        self._recording = recording
        self._atom = atom
        self._steady = folder / "steady"
        self._settled = 0
        folder.mkdir(exist_ok=True)
        copy_sparse(recording.base, self._steady)

    def build(self, cut: Cut, image: Path) -> None:
        """Make the disk after `cut` in the file `image`."""
        settled = self._recording.flushed(cut.k)
        if settled < self._settled:
            copy_sparse(self._recording.base, self._steady)
            self._settled = 0
        records = self._recording.records
        _apply(self._steady, ((r.offset, r.data) for r in records[self._settled : settled] if r.kind is Kind.WRITE))
        self._settled = settled
        copy_sparse(self._steady, image)
        pending = [record for record in records[settled : cut.k] if record.kind is Kind.WRITE]
        _apply(image, _surviving(pending, cut.fate, Random(cut.seed), self._atom))


def _surviving(pending: list[Record], fate: Fate, random: Random, atom: int) -> Iterator[tuple[int, bytes]]:
    if fate is Fate.LOST:
        return
    for record in pending:
        drawn = 0.0 if fate is Fate.KEPT else random.random()
        if drawn < _KEPT:
            yield record.offset, record.data
        elif drawn < _TORN:
            for start in range(0, len(record.data), atom):
                if random.random() < _KEPT:
                    yield record.offset + start, record.data[start : start + atom]


def _apply(image: Path, writes: Iterator[tuple[int, bytes]]) -> None:
    with image.open("r+b", buffering=0) as disk:
        for offset, data in writes:
            os.pwrite(disk.fileno(), data, offset)


def copy_sparse(source: Path, target: Path) -> None:
    """Copy a file; its holes stay holes.

    The copy is a new file also where one of that name exists: a mount of the earlier one may be alive still. Another
    program that has its own list of mounts since then keeps it, and the kernel goes on writing to that file.
    """
    target.unlink(missing_ok=True)
    with source.open("rb", buffering=0) as old, target.open("wb", buffering=0) as new:
        size = os.fstat(old.fileno()).st_size
        new.truncate(size)
        at = 0
        while at < size:
            try:
                at = os.lseek(old.fileno(), at, os.SEEK_DATA)
            except OSError:  # ENXIO: nothing but a hole is left
                return
            end = os.lseek(old.fileno(), at, os.SEEK_HOLE)
            os.lseek(new.fileno(), at, os.SEEK_SET)
            while at < end:
                at += os.sendfile(new.fileno(), old.fileno(), at, min(end - at, _CHUNK))


@contextmanager
def mounted(system: FileSystem, image: Path, folder: Path) -> Iterator[Path]:
    """An image as the real file system sees it, repaired first where it needs that.

    Raises:
        CommandFailed: it cannot be mounted.
    """
    prepare(system, image)
    folder.mkdir(exist_ok=True)
    # A device of its own: mount's option "loop" takes the one of the image before, if somebody still has that open who
    # only lists all devices, and with it what the kernel remembers of its blocks.
    device = run("losetup", "--find", "--show", image)
    try:
        system.mount_at(device, folder)
        try:
            yield folder
        finally:
            system.unmount_at(folder)
    finally:
        run("losetup", "--detach", device)
