"""What syncing costs here and now: a file by itself, or everything at once. Measured, since nobody can know it.

Everything is cheap where the root has its file system for itself, and dear where somebody copies a film to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

MOST_FILES: Final = 64
"""So many are synced one by one at the most: each is an open file until then."""
RETRY: Final = 20
"""What was too dear is tried again after so many times what it cost, so it takes at most a twentieth of the time."""
_WEIGHT: Final = 0.2
"""Of the latest measurement."""


class Costs:
    """What each of the two ways has cost lately.

    Args:
        clock: tells the time, in seconds from anywhere.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._file: float | None = None
        self._everything: float | None = None
        self._measured = 0.0
        self._operation: float | None = None
        self._barrier: float | None = None
        self._waited = 0.0

    @property
    def overlap_from(self) -> int | None:
        """Operations whose doing takes as long as their barrier; None as long as nothing is known."""
        if self._operation is None or self._barrier is None:
            return None
        return max(1, math.ceil(self._barrier / self._operation)) if self._operation > 0 else None

    def prefer_everything(self, files: int) -> bool:
        """Whether so many files are better synced with everything else than one by one."""
        if not 1 < files <= MOST_FILES:
            return files > 1
        if self._file is None or self._everything is None or self._everything <= files * self._file:
            return True
        return self._clock() - self._measured > RETRY * self._everything

    @contextmanager
    def of_batch(self, operations: int) -> Iterator[None]:
        """So many operations, one at least, are done in the block, barriers included."""
        start, waited = self._clock(), self._waited
        yield
        barrier = self._waited - waited
        self._barrier = _smoothed(self._barrier, barrier)
        self._operation = _smoothed(self._operation, (self._clock() - start - barrier) / operations)

    @contextmanager
    def of_barrier(self) -> Iterator[None]:
        """A barrier is waited for in the block."""
        start = self._clock()
        yield
        self._waited += self._clock() - start

    @contextmanager
    def of_files(self, files: int) -> Iterator[None]:
        """So many files are synced one by one in the block."""
        start = self._clock()
        yield
        if files:
            self._file = _smoothed(self._file, (self._clock() - start) / files)

    @contextmanager
    def of_everything(self) -> Iterator[None]:
        """Everything is synced in the block."""
        start = self._clock()
        yield
        self._measured = self._clock()
        self._everything = _smoothed(self._everything, self._measured - start)


def _smoothed(before: float | None, latest: float) -> float:
    return latest if before is None else before + _WEIGHT * (latest - before)
