"""What a look at folders told, kept until one of them has changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from mq.storage.files.calls import Calls

T = TypeVar("T")

GRANULARITY_NS: Final = 20_000_000
"""Two changes of a folder that are farther apart have different instants: the kernel's clock for them ticks at least a
hundred times a second."""


class KeptLook(Generic[T]):
    """A look at some folders of this machine. One thread looks while another one may ask for what is kept.

    Args:
        calls: the system.
        folders: a change of these contradicts what is kept.
        clock_ns: wall clock, nanoseconds since 1970.
    """

    def __init__(self, calls: Calls, folders: Sequence[str], clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._calls = calls
        self._folders = folders
        self._clock_ns = clock_ns
        self._kept: tuple[list[int], T] | None = None

    def get(self) -> T | None:
        """What the last look told; None when something may have changed since, or nothing is kept."""
        kept = self._kept
        return kept[1] if kept is not None and self._changed_ns() == kept[0] else None

    def look(self, look: Callable[[], tuple[T, bool]]) -> T:
        """Look anew.

        Args:
            look: what it tells, and whether that may be kept.
        """
        changed, began = self._changed_ns(), self._clock_ns()
        found, is_sure = look()
        # A change in the same tick as one before the look would not show.
        is_settled = all(0 <= at < began - GRANULARITY_NS for at in changed)
        self._kept = (changed, found) if is_sure and is_settled else None
        return found

    def _changed_ns(self) -> list[int]:
        """When each folder was changed; 0 for one that is not there."""
        found = []
        for folder in self._folders:
            try:
                found.append(self._calls.changed_ns(folder))
            except FileNotFoundError:
                found.append(0)
        return found
