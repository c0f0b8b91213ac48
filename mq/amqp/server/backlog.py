"""The bytes that all connections have published and the store has not taken."""

from __future__ import annotations

from collections.abc import Callable

import trio


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
