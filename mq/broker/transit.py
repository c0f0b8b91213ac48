"""All work on one message is under one lock: while it is on its way from one place to another, others wait."""

from __future__ import annotations

import trio

from mq.message import MessageId


class Transit:
    """The messages that are on their way just now."""

    def __init__(self) -> None:
        self._moving: dict[MessageId, trio.lowlevel.ParkingLot | None] = {}

    def __contains__(self, id: MessageId) -> bool:
        return id in self._moving

    def begin(self, id: MessageId) -> None:
        """`id` sets out. Whoever begins, ends."""
        assert id not in self._moving, "two moves of one message at a time"
        self._moving[id] = None

    def end(self, id: MessageId) -> None:
        """`id` has arrived, or is back."""
        lot = self._moving.pop(id)
        if lot is not None:
            lot.unpark_all()

    async def wait(self, id: MessageId) -> None:
        """Until nobody moves `id`."""
        while id in self._moving:
            lot = self._moving[id]
            if lot is None:
                lot = self._moving[id] = trio.lowlevel.ParkingLot()
            await lot.park()
