"""How long things took: counts by size, as Prometheus wants them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

SHORT: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds, for what a disk does."""
LONG: Final = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 21_600.0, 86_400.0, 604_800.0)
"""Seconds, for how long a message waits."""


class Histogram:
    """Counts of values, each up to a bound and over the one before.

    Args:
        bounds: in ascending order.

    Attributes:
        bounds: as given.
        total: the sum of all values.
    """

    __slots__ = ("_counts", "bounds", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.total = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, int]]:
        """For each bound, and at last for none: how many values are not greater."""
        found, so_far = [], 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self._counts, strict=True):
            so_far += count
            found.append((bound, so_far))
        return found
