"""Whose turn it is to change a store: everything has it alone, in the order in which it came, but batches, which may
come in while others are inside.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class Turns:
    """The turns of one store."""

    def __init__(self) -> None:
        self._entrance = trio.Lock()
        self._inside = 0
        self._empty = trio.lowlevel.ParkingLot()

    @asynccontextmanager
    async def together(self) -> AsyncIterator[None]:
        """Inside together with others that came in so."""
        async with self._entrance:
            self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.unpark_all()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Inside when all others have left; who comes later waits."""
        async with self._entrance:
            while self._inside:
                await self._empty.park()
            yield
