"""When messages expire: one heap of timers, one task, no polling."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Final

import trio

from mq.message import MessageId
from mq.storage.interface import Entry

_LARGEST_ROUND: Final = 512
_SHORTEST_SECONDS: Final = 0.001
"""Expiry is told in milliseconds: less is not waited for."""


class Expiry:
    """Tells of READY messages whose time is over.

    Args:
        expire: told the queue and id of each; it may not be there any more.
        clock_ns: wall clock, nanoseconds since 1970.
    """

    def __init__(self, expire: Callable[[str, MessageId], None], clock_ns: Callable[[], int]) -> None:
        self._expire = expire
        self._clock_ns = clock_ns
        self._due: dict[MessageId, tuple[int, MessageId, str]] = {}
        self._heap: list[tuple[int, MessageId, str]] = []
        self._changed = trio.Event()

    def add(self, entry: Entry) -> None:
        """Mind this message, which is READY; one that does not expire is passed over."""
        if entry.meta.expires_ms is None:
            self.forget(entry.id)
            return
        timer = (entry.meta.expires_ms, entry.id, entry.queue)
        if self._due.get(entry.id) == timer:
            return  # it was leased, and is back
        self._due[entry.id] = timer
        heapq.heappush(self._heap, timer)
        if self._heap[0] == timer:
            self._changed.set()

    def forget(self, id: MessageId) -> None:
        """It is not there any more: its timer goes before such timers outnumber the rest."""
        if self._due.pop(id, None) is not None and len(self._heap) > 2 * len(self._due) + 64:
            self._heap = list(self._due.values())
            heapq.heapify(self._heap)

    async def run(self) -> None:
        """Tell for ever."""
        while True:
            await trio.lowlevel.checkpoint()
            self._changed = trio.Event()
            with trio.move_on_after(self._seconds_left()):
                await self._changed.wait()
            now_ms = self._clock_ns() // 1_000_000
            for _ in range(_LARGEST_ROUND):
                if not self._heap or self._heap[0][0] > now_ms:
                    break
                timer = heapq.heappop(self._heap)
                if self._due.get(timer[1]) == timer:
                    del self._due[timer[1]]
                    self._expire(timer[2], timer[1])

    def _seconds_left(self) -> float:
        if not self._heap:
            return math.inf
        left_ns = self._heap[0][0] * 1_000_000 - self._clock_ns()
        return max(_SHORTEST_SECONDS, left_ns / 1e9) if left_ns > 0 else 0.0
