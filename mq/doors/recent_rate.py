"""How often something happens, as one consumer or connection counts it."""

from __future__ import annotations

from typing import Final

SLOT_SECONDS: Final = 5
SLOTS: Final = 12
"""A minute, as the rates of queues have it."""


class RecentRate:
    """Something a second, on average over the last minute. It takes 13 numbers, however much happens.

    Args:
        now: when counting begins, in seconds of the clock that all calls use.
    """

    __slots__ = ("_began", "_counts", "_slot")

    def __init__(self, now: float) -> None:
        self._began = now
        self._slot = 0
        self._counts = [0] * SLOTS

    def add(self, now: float, number: int) -> None:
        """It has happened so many times."""
        self._advance(now)
        self._counts[self._slot % SLOTS] += number

    def per_second(self, now: float) -> float:
        """From whole slots up to now, and not back before the beginning."""
        self._advance(now)
        uptime = now - self._began
        in_slot = uptime % SLOT_SECONDS
        return sum(self._counts) / max(min((SLOTS - 1) * SLOT_SECONDS + in_slot, uptime), 1.0)

    def _advance(self, now: float) -> None:
        slot = int((now - self._began) // SLOT_SECONDS)
        for passed in range(max(self._slot + 1, slot - SLOTS + 1), slot + 1):
            self._counts[passed % SLOTS] = 0
        self._slot = slot
