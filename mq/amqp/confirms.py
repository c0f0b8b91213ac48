"""Publisher confirms: numbers, and which of them can be told of together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Confirm(NamedTuple):
    """What a publisher is told: `tag`, with all before it if `multiple`, is stored, or is not."""

    tag: int
    multiple: bool
    is_stored: bool


class Confirms:
    """The confirms of one channel."""

    def __init__(self) -> None:
        self._last = 0
        self._open: dict[int, None] = {}  # in the order of their numbers
        self._stored: set[int] = set()
        self._refused: set[int] = set()

    def next(self) -> int:
        """The number of the next message; the first is 1."""
        self._last += 1
        self._open[self._last] = None
        return self._last

    def settle(self, numbers: Iterable[int], *, is_stored: bool) -> None:
        """These are stored, or they are not. A number that is not open is not heard."""
        for number in numbers:
            if number in self._open:
                del self._open[number]
                (self._stored if is_stored else self._refused).add(number)

    def take(self) -> list[Confirm]:
        """What is to be told now. What is refused comes first, so that `multiple` never takes it for stored; then all
        before which nothing is open, together; then the rest."""
        told = [Confirm(number, False, False) for number in sorted(self._refused)]
        floor = next(iter(self._open), self._last + 1)
        stored = sorted(self._stored)
        whole = sum(number < floor for number in stored)
        if whole:
            told.append(Confirm(stored[whole - 1], whole > 1, True))
        told += [Confirm(number, False, True) for number in stored[whole:]]
        self._stored, self._refused = set(), set()
        return told
