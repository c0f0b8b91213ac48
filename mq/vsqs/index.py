"""What a VSQS folder holds, in memory: which message is first, which lease ends next. It opens and changes nothing."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from mq.vsqs.names import NEW, READY


class Index:
    """Messages by number and state, as of the last look at the folder.

    A message has one name, except that a crash or a race can leave it two for a while where names are moved by links.

    Attributes:
        new: numbers of files that are being published, or were when their publisher died.
        highest: the highest number that was ever seen; -1 when none was.
        spent: no number up to this one is free: it was a message's, or may have been one's before anybody looked.
    """

    def __init__(self) -> None:
        self.new: set[int] = set()
        self.highest = -1
        self.spent = -1
        self._ready: set[int] = set()
        self._order: list[int] = []
        self._leases: dict[int, set[int]] = {}
        self._expiries: list[tuple[int, int]] = []

    def load(self, found: Iterable[tuple[int, int]]) -> None:
        """Forget everything but `highest` and `spent`, and add what a listing found: (number, state)."""
        self.new, self._ready, self._order, self._leases, self._expiries = set(), set(), [], {}, []
        for number, state in found:
            self.add(number, state)

    def add(self, number: int, state: int) -> None:
        """A name appeared. Nothing happens when it was there."""
        self.highest = max(self.highest, number)
        if state == NEW:
            self.new.add(number)
            return
        self.spent = max(self.spent, number)
        if state == READY:
            if number not in self._ready:
                self._ready.add(number)
                heapq.heappush(self._order, number)
        elif state not in self._leases.setdefault(number, set()):
            self._leases[number].add(state)
            heapq.heappush(self._expiries, (state, number))

    def discard(self, number: int, state: int) -> None:
        """A name went away. Nothing happens when it was not there."""
        if state == NEW:
            self.new.discard(number)
        elif state == READY:
            self._ready.discard(number)
        elif number in self._leases:
            self._leases[number].discard(state)
            if not self._leases[number]:
                del self._leases[number]
                if number in self._ready:
                    heapq.heappush(self._order, number)  # head() had dropped it

    def head(self) -> int | None:
        """The lowest number that is ready and not handed out under another name as well."""
        while self._order:
            number = self._order[0]
            if number in self._ready and number not in self._leases:
                return number
            heapq.heappop(self._order)
        return None

    def next_expiry(self) -> int | None:
        """When the first lease ends, in milliseconds since 1970."""
        while self._expiries:
            expiry, number = self._expiries[0]
            if expiry in self._leases.get(number, ()):
                return expiry
            heapq.heappop(self._expiries)
        return None

    def expired(self, now_ms: int) -> list[tuple[int, int]]:
        """(number, expiry) of each lease that lies in the past, the lowest number first."""
        first = self.next_expiry()
        if first is None or first >= now_ms:
            return []
        return sorted((number, expiry) for number, ends in self._leases.items() for expiry in ends if expiry < now_ms)

    def states(self, number: int) -> list[int]:
        """The states in which a message is, but for NEW: empty when it is not there."""
        return [*((READY,) if number in self._ready else ()), *self._leases.get(number, ())]

    def __len__(self) -> int:
        return len(self._ready) + sum(number not in self._ready for number in self._leases)
