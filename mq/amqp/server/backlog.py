"""Messages that connections have published and the store has not taken: their bytes, and the log's warning that
publishers are blocked because the store has no room."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable

import trio

logger = logging.getLogger("mq.amqp")


class Backlog:
    """Bytes that all connections have published and the store has not taken.

    Attributes:
        value: how many.
        is_awaited: whether tasks wait for a change. Call :meth:`wake` after one then.
    """

    def __init__(self) -> None:
        self.value = 0
        self.is_awaited = False
        self._waiting: dict[Callable[[], bool], trio.lowlevel.ParkingLot] = {}
        self._changed = trio.lowlevel.ParkingLot()

    def wake(self) -> None:
        """Wake tasks that wait for what is true now."""
        for is_met, lot in tuple(self._waiting.items()):
            if is_met():
                lot.unpark()
        self._changed.unpark_all()
        self.is_awaited = bool(self._waiting)

    async def wait_for_change(self) -> None:
        """Wait for the next change."""
        self.is_awaited = True
        await self._changed.park()

    async def wait_until(self, is_met: Callable[[], bool]) -> None:
        """Wait until a condition is true, which is looked at after each change. No two tasks wait for the same one."""
        while not is_met():
            lot = self._waiting[is_met] = trio.lowlevel.ParkingLot()
            self.is_awaited = True
            try:
                await lot.park()
            finally:
                del self._waiting[is_met]


class FullStoreAlarm:
    """Logs when publishers find no room in the store, and when all of them find room again.

    Attributes:
        why: what the store said to the first of them; empty while all find room.
    """

    def __init__(self) -> None:
        self.why = ""
        self._stuck: set[Hashable] = set()

    def raise_alarm(self, who: Hashable, why: str) -> None:
        """The messages of `who` find no room."""
        self._stuck.add(who)
        if not self.why:
            self.why = why
            logger.warning("AMQP publishers are blocked: %s", why)

    def clear(self, who: Hashable) -> None:
        """The messages of `who` found room, or are gone."""
        self._stuck.discard(who)
        if self.why and not self._stuck:
            self.why = ""
            logger.warning("AMQP publishers are no longer blocked")
