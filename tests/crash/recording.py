"""What a recorded disk went through: writes, flushes and marks, in order."""

from __future__ import annotations

import enum
import struct
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

HEADER: Final = struct.Struct("<cQQQ")
"""Before each record of a log: kind, time in nanoseconds since 1970, offset, length of what follows."""


class Kind(enum.Enum):
    """What a record tells."""

    WRITE = b"W"
    FLUSH = b"F"
    MARK = b"M"


class Record(NamedTuple):
    """One thing that happened.

    Attributes:
        time_ns: when, in nanoseconds since 1970.
        offset: of a write, in bytes.
    """

    kind: Kind
    time_ns: int
    offset: int
    data: bytes


class Recording:
    """A disk's content at the beginning, and all that happened to it since.

    A cut at point `k` takes the power away after record ``k - 1`` and before record `k`.

    Args:
        base: the image at the beginning.
    """

    def __init__(self, base: Path, records: list[Record]) -> None:
        self.base = base
        self.records = records
        self._marks = [(k, record.data.decode()) for k, record in enumerate(records) if record.kind is Kind.MARK]
        self._marked = [k for k, _ in self._marks]
        self._flushes = [k for k, record in enumerate(records) if record.kind is Kind.FLUSH]

    @classmethod
    def read(cls, base: Path, log: Path) -> Recording:
        return cls(base, list(_records(log.read_bytes())))

    def marks(self, k: int | None = None) -> list[str]:
        """Every mark before the cut at `k`."""
        return [mark for _, mark in self._marks[: None if k is None else bisect_left(self._marked, k)]]

    def point(self, mark: str) -> int:
        """The cut point straight after that mark."""
        return next(k + 1 for k, text in self._marks if text == mark)

    def flushed(self, k: int) -> int:
        """How many records a cut at `k` finds before the last flush: what they wrote is on the medium for certain."""
        before = bisect_left(self._flushes, k)
        return self._flushes[before - 1] if before else 0

    def flushes(self, first: int, last: int) -> int:
        """How many flushes there were from one cut point to another."""
        return bisect_left(self._flushes, last) - bisect_left(self._flushes, first)

    def time_ns(self, k: int) -> int:
        """When the power went, for a cut at `k`."""
        return self.records[k - 1].time_ns


def _records(log: bytes) -> Iterator[Record]:
    at = 0
    while at + HEADER.size <= len(log):
        kind, time_ns, offset, length = HEADER.unpack_from(log, at)
        at += HEADER.size
        yield Record(Kind(kind), time_ns, offset, log[at : at + length])
        at += length
