"""Fairness between connections: whose operations the next batch takes (:class:`FairLine`), and how many fit into a
batch that ends soon (:class:`Pace`)."""

from __future__ import annotations

from collections import deque
from contextvars import ContextVar
from typing import Final, Generic, TypeVar

T = TypeVar("T")

BATCH_SECONDS: Final = 0.05
"""How long a batch may take, so that operations behind it do not wait for long."""
MEMORY_SECONDS: Final = 0.01
"""The same for a batch in memory, which shares no flush: a smaller one costs nothing."""
FEWEST: Final = 4
"""Operations that a batch may always have."""
FIRST: Final = 16
"""Operations in a batch while it is not known whether more of them take longer."""
SLOW_SECONDS: Final = 0.001
"""An operation that takes less needs no guess: even the largest batch ends soon."""
NEW_TURNS: Final = 3
"""Turns of sources that are new in the line, before one that has had a turn gets the next."""
GROWTH: Final = 4
"""The limit grows by this factor from batch to batch, at most: one quick batch may be chance."""
_MEMORY: Final = 0.9
"""What a measurement still counts after the next one."""
_SPREAD: Final = 0.05
"""Relative variance of sizes from which the times of batches tell what one more operation takes."""

SOURCE: ContextVar[object | None] = ContextVar("source", default=None)
"""The connection for which the current work is done; None for the broker's own work. A server sets it in the task that
serves the connection."""


class FairLine(Generic[T]):
    """Items of many sources in line. Sources take turns, one item each; the items of one source keep their order.

    A source that comes into the line goes ahead of those that have had a turn, which get every fourth turn all the
    same. So one that wants little does not wait for those that want much, and cannot starve them. The broker's own work
    always counts as new.

    Attributes:
        items: those of each source that has some, in order. Read only: an empty line is told by it without a call.
    """

    def __init__(self) -> None:
        self.items: dict[object | None, deque[T]] = {}
        self._new: deque[object | None] = deque()
        self._served: deque[object | None] = deque()
        self._new_turns = 0  # since the last one of a source that had one

    def __bool__(self) -> bool:
        return bool(self.items)

    def put(self, source: object | None, item: T) -> None:
        """Add an item at the end of its source's line."""
        line = self.items.get(source)
        if line is None:
            self.items[source] = line = deque()
            self._new.append(source)
        line.append(item)

    def put_first(self, source: object | None, item: T) -> None:
        """Add an item at the head of its source's line: the rest of one that was taken."""
        line = self.items.get(source)
        if line is None:
            self.items[source] = line = deque()
            self._wait_again(source)
        line.appendleft(item)

    def take(self) -> tuple[object | None, bool, T]:
        """Take the next item. Call this only while the line is true.

        Returns:
            Its source, whether this is its first turn since it came into the line, and the item.
        """
        takes_new = bool(self._new) and not (self._served and self._new_turns >= NEW_TURNS)
        self._new_turns = self._new_turns + 1 if takes_new else 0
        source = (self._new if takes_new else self._served).popleft()
        line = self.items[source]
        item = line.popleft()
        if not line:
            del self.items[source]
        else:
            self._wait_again(source)
        return source, takes_new, item

    def _wait_again(self, source: object | None) -> None:
        (self._new if source is None else self._served).append(source)


class Pace:
    """Learns from batches how many operations a store does within :data:`BATCH_SECONDS`, or other seconds.

    A batch takes a fixed time, such as one flush, and a time for each operation, which is nearly nothing where a log is
    flushed once, and a flush or more where each file is. Only in the second case do smaller batches end sooner. Both
    times follow from the sizes and times of recent batches by linear regression. Where the fixed time alone is long,
    operations may take as long again: smaller batches would cost throughput, and shorten waits by less than half.

    Args:
        most: operations in a batch, at most.
        is_cheap: whether an operation is expected to take next to no time beside the batch's one flush.
        seconds: how long a batch may take.

    Attributes:
        limit: operations that the next batch may have.
    """

    def __init__(self, most: int, *, is_cheap: bool = True, seconds: float = BATCH_SECONDS) -> None:
        self.limit = most if is_cheap else min(most, FIRST)
        self._most = most
        self._limit_seconds = seconds
        self._count = self._sizes = self._seconds = self._squares = self._products = 0.0
        self._each: float | None = None  # seconds for one more operation, once that is known

    def note(self, size: int, seconds: float) -> None:
        """Learn from a batch of so many operations that took so long. One without any teaches nothing."""
        if not size:
            return
        self._count = count = _MEMORY * self._count + 1
        self._sizes = sizes = _MEMORY * self._sizes + size
        self._seconds = total = _MEMORY * self._seconds + seconds
        self._squares = squares = _MEMORY * self._squares + size * size
        self._products = products = _MEMORY * self._products + size * seconds
        average, each = total / sizes, self._each
        variance = count * squares - sizes * sizes
        if variance > _SPREAD * sizes * sizes:
            covariance = count * products - sizes * total
            each = min(average, max(0.0, covariance / variance))
        elif each is None:
            if sizes * 2 <= FIRST * count:
                self.limit = min(self._most, FIRST) if average >= SLOW_SECONDS else self._most
                return
            each = average  # a smaller batch will tell
        elif each > average:
            each = average
        self._each = each
        fixed = max(0.0, (total - each * sizes) / count)
        limit = max(self._limit_seconds - fixed, fixed) / each if each else self._most
        self.limit = max(FEWEST, min(self._most, GROWTH * self.limit, int(min(limit, self._most))))
