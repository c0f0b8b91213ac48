"""What goes wrong with a disk, and when: decided by a seed, call by call."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Final, NamedTuple

WRITING: Final = frozenset({"create", "write", "setxattr", "rename", "link", "mkdir"})
"""Calls that need room. An unlink does not; refused between a link and its unlink, it would fail the store."""


class PowerCut(BaseException):
    """The power fails at this call. Nothing catches it."""


class DiskFault(NamedTuple):
    """One way to fail.

    Attributes:
        where: only calls on a path with this in it.
    """

    number: int
    verbs: frozenset[str]
    odds: float
    passes: bool
    where: str = ""


KINDS: Final[Mapping[str, DiskFault]] = {
    "write error": DiskFault(
        errno.EIO, frozenset({"write", "write_at", "rename", "link", "unlink", "setxattr", "touch"}), 0.01, passes=False
    ),
    "sync error": DiskFault(errno.EIO, frozenset({"fsync", "fdatasync", "syncfs", "write_out"}), 0.03, passes=False),
    "full": DiskFault(errno.ENOSPC, WRITING, 0.2, passes=True),
    "no handles": DiskFault(errno.EMFILE, frozenset({"open", "create"}), 0.2, passes=True),
    "read-only": DiskFault(errno.EROFS, WRITING, 0.5, passes=False),
}

REFUSALS: Final[Mapping[str, DiskFault]] = {
    "no room for records": DiskFault(errno.ENOSPC, frozenset({"create"}), 0.7, passes=True, where="/state/records/"),
    "no handles for records": DiskFault(errno.EMFILE, frozenset({"create"}), 0.7, passes=True, where="/state/records/"),
    "no quota for moves": DiskFault(errno.EDQUOT, frozenset({"rename", "link"}), 0.9, passes=True),
    "no right to move": DiskFault(errno.EACCES, frozenset({"rename", "link"}), 0.5, passes=True),
}
"""Refusals that pass, where ledgers, deliveries, deaths and claims write: too many for the reserve to help."""


class Faults:
    """Faults at the calls of one disk. None at first."""

    def __init__(self, random: Random, note: Callable[[str], None]) -> None:
        self.calls = 0
        self.seen: Counter[str] = Counter()
        self.cut_at: int | None = None
        self.active: dict[str, DiskFault] = {}
        self.short_writes = 0.0
        self._dead = False
        self._random = random
        self._note = note

    def enter(self, verb: str, what: str) -> None:
        """Decide the fate of a call that begins.

        Raises:
            PowerCut: the power fails just before it.
            OSError: it fails.
        """
        self.calls += 1
        if self._dead or self.calls == self.cut_at:
            self._dead = True
            self._note(f"power cut before {verb} {what}")
            raise PowerCut
        for name, fault in self.active.items():
            if verb in fault.verbs and fault.where in what and self._random.random() < fault.odds:
                self.seen[name] += 1
                self._note(f"{name}: {verb} {what}")
                raise OSError(fault.number, os.strerror(fault.number), what)

    def shorten(self, size: int) -> int:
        """How many bytes of a write are taken."""
        if size > 1 and self._random.random() < self.short_writes:
            return self._random.randint(1, size - 1)
        return size

    def lift(self) -> None:
        """End all faults, after a restart or a cut."""
        self.active.clear()
        self.short_writes = 0.0
        self.cut_at = None
        self._dead = False

    @property
    def broken(self) -> bool:
        """Whether a fault happened that does not pass."""
        return any(self.seen[name] for name, fault in KINDS.items() if not fault.passes)
