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


class Expiry:
    """Tells of READY messages whose time is over.

    Args:
        expire: told the queue and id of each; it may not be there any more.
        clock_ns: wall clock, nanoseconds since 1970.
    """

    def __init__(self, expire: Callable[[str, MessageId], None], clock_ns: Callable[[], int]) -> None:
        self._expire = expire
        self._clock_ns = clock_ns
        self._heap: list[tuple[int, MessageId, str]] = []
        self._changed = trio.Event()

    def add(self, entry: Entry) -> None:
        """Mind this message, which is READY; one that does not expire is passed over."""
        if entry.meta.expires_ms is None:
            return
        heapq.heappush(self._heap, (entry.meta.expires_ms, entry.id, entry.queue))
        if self._heap[0][1] == entry.id:
            self._changed.set()

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
                _, id, queue = heapq.heappop(self._heap)
                self._expire(queue, id)

    def _seconds_left(self) -> float:
        if not self._heap:
            return math.inf
        return max(0.0, self._heap[0][0] / 1000 - self._clock_ns() / 1e9)
