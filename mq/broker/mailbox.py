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

    def take(self, limit: int) -> list[T]:
        """What is there now, at most `limit`."""
        return [self._items.popleft() for _ in range(min(limit, len(self._items)))]

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
    """The answer to one request, given once by a worker, awaited by whoever wants to know.

    Attributes:
        value: the answer, when it is there.
        answered: whether it is, or an error.
        abandoned: whether whoever asked has gone.
    """

    __slots__ = ("_error", "_waiters", "abandoned", "answered", "value")

    def __init__(self) -> None:
        self.value: T | None = None
        self.answered = False
        self.abandoned = False
        self._error: Exception | None = None
        self._waiters: list[trio.lowlevel.Task] = []

    def set(self, value: T) -> None:
        """Answer."""
        self.value = value
        self._answer()

    def fail(self, error: Exception) -> None:
        """Answer with an error."""
        self._error = error
        self._answer()

    async def get(self) -> T:
        """Wait for the answer. Whoever is cancelled here leaves the mark `abandoned`."""
        if not self.answered:
            await self._wait()
        if self._error is not None:
            raise self._error
        return self.value  # type: ignore[return-value]

    async def _wait(self) -> None:
        task = trio.lowlevel.current_task()

        def leave(_: object) -> trio.lowlevel.Abort:
            self._waiters.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        self._waiters.append(task)
        try:
            await trio.lowlevel.wait_task_rescheduled(leave)
        except trio.Cancelled:
            self.abandoned = True  # not before: until it knows of it itself, whoever waits may go on to
            raise

    def _answer(self) -> None:
        self.answered = True
        for task in self._waiters:
            trio.lowlevel.reschedule(task)
        self._waiters.clear()
