"""Where work waits for a task that takes all of it at once."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Mailbox(Generic[T]):
    """A queue in memory whose readers drain it. Its length is bounded by those who wait for its items' replies."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._readers = trio.lowlevel.ParkingLot()

    def put(self, item: T) -> None:
        """Leave an item, and wake one reader."""
        self._items.append(item)
        self._readers.unpark()

    async def drain(self, limit: int) -> list[T]:
        """Wait until there is something, then take all of it, at most `limit`."""
        await trio.lowlevel.checkpoint()
        while not self._items:
            await self._readers.park()
        if len(self._items) > limit:
            taken = [self._items.popleft() for _ in range(limit)]
            self._readers.unpark()
            return taken
        taken = list(self._items)
        self._items.clear()
        return taken


class Reply(Generic[T]):
    """The answer to one request, given once by a worker, awaited once by whoever asked."""

    __slots__ = ("_done", "_error", "abandoned", "value")

    def __init__(self) -> None:
        self._done = trio.Event()
        self.value: T | None = None
        self._error: Exception | None = None
        self.abandoned = False

    @property
    def answered(self) -> bool:
        """Whether the answer is there."""
        return self._done.is_set()

    def set(self, value: T) -> None:
        """Answer."""
        self.value = value
        self._done.set()

    def fail(self, error: Exception) -> None:
        """Answer with an error."""
        self._error = error
        self._done.set()

    async def get(self) -> T:
        """Wait for the answer. Whoever is cancelled here leaves the mark `abandoned`."""
        try:
            await self._done.wait()
        except trio.Cancelled:
            self.abandoned = True
            raise
        if self._error is not None:
            raise self._error
        return self.value  # type: ignore[return-value]
