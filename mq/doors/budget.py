"""The memory that requests may take, all doors of a daemon together.

A request reserves the whole size of something large before it reads the first byte of it, so that no two requests wait
half-way for each other. What is not free is refused at once: then the bytes stay with the client.
"""

from __future__ import annotations

from types import TracebackType
from typing import Final

from mq.errors import BodyTooLarge, NoMemory

DEFAULT_BYTES: Final = 256 << 20


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

    def reserve(self, size: int = 0) -> Room:
        """Bytes for one request: give them back with :meth:`Room.give_back`, or at the end of the block.

        Raises:
            BodyTooLarge: more than there are.
            NoMemory: more than are free just now.
        """
        room = Room(self)
        room.cover(size)
        return room


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
            raise NoMemory(f"{size} bytes of memory are not free just now: try again, or send less at once")
        budget.free -= more
        self.size = size

    def shrink(self, size: int) -> None:
        """Give back what is over `size` bytes."""
        if size < self.size:
            self._budget.free += self.size - size
            self.size = size

    def give_back(self) -> None:
        """Give back all of it."""
        self.shrink(0)
