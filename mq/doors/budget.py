"""The memory that requests may take, all doors of a daemon together.

A request reserves the whole size of something large before it reads the first byte, so that no two requests wait
half-way for each other. A reservation that does not fit is refused at once, and the bytes stay with the client. A
client that sends slowly has to give its memory up when others want it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Final

import trio

from mq.errors import BodyTooLarge, NoMemory

DEFAULT_BYTES: Final = 256 << 20
PATIENCE_SECONDS: Final = 10
"""How long a sender cannot be slow yet."""
ENOUGH_BYTES_PER_SECOND: Final = 128 * 1024
"""On average; a slower sender makes room as soon as others want it. A request that has the memory to itself may be
slower."""


class Budget:
    """Bytes of memory that requests share.

    Args:
        most: how many there are.

    Attributes:
        most: as given.
        free: how many are not reserved.
    """

    def __init__(self, most: int = DEFAULT_BYTES) -> None:
        self.most = most
        self.free = most
        self._arriving: set[PacedChunks] = set()

    def reserve(self, size: int = 0) -> Room:
        """Bytes for one request: give them back with :meth:`Room.give_back`, or at the end of the block.

        Raises:
            BodyTooLarge: more than there are.
            NoMemory: more than are free just now.
        """
        room = Room(self)
        room.cover(size)
        return room

    @contextmanager
    def arriving(self, chunks: AsyncIterator[bytes], let_go: Callable[[], None]) -> Iterator[PacedChunks]:
        """A block in which a client sends a body, after its memory was reserved.

        Args:
            chunks: what it sends.
            let_go: called at most once: the client is slow, and others want the memory. Ends the block soon.
        """
        arrival = PacedChunks(chunks, let_go)
        self._arriving.add(arrival)
        try:
            yield arrival
        finally:
            self._arriving.discard(arrival)

    def make_room(self) -> None:
        """Make slow clients give up their memory: it is free soon."""
        for arrival in [each for each in self._arriving if each.is_slow()]:
            self._arriving.discard(arrival)
            arrival.let_go()


class PacedChunks:
    """The chunks of something large, as they come from a client. The time spent waiting for them is the client's.

    Args:
        chunks: as they come.
        let_go: as given to :meth:`Budget.arriving`.
    """

    def __init__(self, chunks: AsyncIterator[bytes], let_go: Callable[[], None]) -> None:
        self.let_go = let_go
        self._chunks = chunks
        self._size = 0
        self._waited = 0.0
        self._waits_since: float | None = None

    def __aiter__(self) -> PacedChunks:
        return self

    async def __anext__(self) -> bytes:
        """The next chunk."""
        self._waits_since = trio.current_time()
        try:
            chunk = await anext(self._chunks)
        finally:
            self._waited, self._waits_since = self._waited_until_now(), None
        self._size += len(chunk)
        return chunk

    def is_slow(self) -> bool:
        """Whether it arrives so slowly that it makes room for others."""
        waited = self._waited_until_now()
        return waited > PATIENCE_SECONDS and self._size < ENOUGH_BYTES_PER_SECOND * waited

    def _waited_until_now(self) -> float:
        now_waiting = 0.0 if self._waits_since is None else trio.current_time() - self._waits_since
        return self._waited + now_waiting


class Room:
    """The part of a budget that one request has reserved.

    Attributes:
        size: how many bytes.
    """

    __slots__ = ("_budget", "size")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.size = 0

    def __enter__(self) -> Room:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.give_back()

    def cover(self, size: int) -> None:
        """Have at least `size` bytes from now on. What is refused changes nothing.

        Raises:
            BodyTooLarge: more than the whole budget.
            NoMemory: more than are free just now.
        """
        budget, more = self._budget, size - self.size
        if more <= 0:
            return
        if more > budget.free:
            if size > budget.most:
                raise BodyTooLarge(f"this takes {size} bytes of memory, requests have {budget.most}: send less at once")
            budget.make_room()
            raise NoMemory(f"{size} bytes of memory are not free just now: try again, or send less at once")
        budget.free -= more
        self.size = size

    def shrink(self, size: int) -> None:
        """Give back what is over `size` bytes."""
        if size < self.size:
            self._budget.free += self.size - size
            self.size = size

    def arriving(self, chunks: AsyncIterator[bytes], let_go: Callable[[], None]) -> AbstractContextManager[PacedChunks]:
        """As :meth:`Budget.arriving`, of what is to fill this room."""
        return self._budget.arriving(chunks, let_go)

    def give_back(self) -> None:
        """Give back all of it."""
        self.shrink(0)
