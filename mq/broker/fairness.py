"""Fairness between connections: whose operations the next batch takes."""

from __future__ import annotations

from collections import deque
from contextvars import ContextVar
from typing import Final, Generic, TypeVar

T = TypeVar("T")

NEW_TURNS: Final = 3
"""Turns of sources that are new in the line, before one that has had a turn gets the next."""
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
