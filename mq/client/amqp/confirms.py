"""Publishes of a channel that wait for their confirm. Pure: no channel, no clock."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Confirms(Generic[T]):
    """What was published on one channel and not confirmed, by its number there: 1, 2, 3, ..."""

    def __init__(self) -> None:
        self._last = 0
        self._waiting: dict[int, T] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def published(self, item: T) -> None:
        """The next message went out, and `item` waits for it."""
        self._last += 1
        self._waiting[self._last] = item

    def settle(self, sequence: int, *, multiple: bool) -> Iterator[T]:
        """Whom a confirm is for: nobody, where the number is not one that waits."""
        if not multiple:
            numbers = [sequence] if sequence in self._waiting else []
        else:
            numbers = list(itertools.takewhile(lambda number: number <= sequence, self._waiting))
        for number in numbers:
            yield self._waiting.pop(number)

    def drain(self) -> list[T]:
        """All who wait, who then wait no longer."""
        waiting = list(self._waiting.values())
        self._waiting.clear()
        return waiting

    def __iter__(self) -> Iterator[T]:
        return iter(self._waiting.values())
