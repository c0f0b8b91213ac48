"""Messages that have been published and that the store has not taken: of all connections, and of one.

Connections whose backlog is too large are not read from, so their publishers have to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import trio

from mq.broker.commit import StoreProgress
from mq.doors.budget import UNCOUNTED_BYTES, Room
from mq.errors import MQError

OWN_RESERVE: Final = 16
"""While less than this part of the memory is free for a client, nothing more is read from its connections that have a
backlog: the client may need the memory for other things."""
COMMON_RESERVE: Final = 3
"""The same for all clients together: others may need the memory."""
EARLY_PART: Final = 16
"""A connection whose backlog takes this part of the memory is told that it publishes too fast."""
EARLY_SECONDS: Final = 2.0
"""So is one with this much work for the store."""
MOST_SECONDS: Final = 10.0
"""The most work in one connection's backlog while other connections wait for the store; beyond it nothing is read."""
RATE_SECONDS: Final = 0.5
"""How long messages are counted before they tell how fast the store takes them."""
FEWEST_AHEAD: Final = 128
"""A backlog of no more messages is never too much work."""


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


class ConnectionBacklog:
    """Messages that one connection has published and the store has not taken.

    Args:
        everything: the backlog of all connections.
        room: the memory for these messages.

    Attributes:
        size: bytes. Call :meth:`settle` after each change.
        messages: how many.
        stored: how many the store has taken, or refused, since the last :meth:`settle` that measured its pace.
        is_ahead: whether the client publishes faster than the store takes it.
        why_full: why messages find no room in the store; empty while they find some.
        failure: the error of the store with which all of them were given up; None while it works.
    """

    def __init__(self, everything: Backlog, progress: StoreProgress, room: Room) -> None:
        self.size = 0
        self.messages = 0
        self.is_ahead = False
        self.why_full = ""
        self.failure: MQError | None = None
        self._everything = everything
        self._progress = progress
        self._room = room
        self._counted = 0  # bytes, without messages that were stored in the step that brought them
        self._idle = trio.lowlevel.ParkingLot()  # tasks that wait until everything is stored
        self._waiting_tasks = 0
        self._per_second = 0.0  # messages that the store takes while some wait; 0 while that is not known
        self.stored = 0  # messages since that was measured
        self._since = 0.0
        self._now = trio.lowlevel.current_clock().current_time  # two calls less than by trio.current_time

    def settle(self) -> None:
        """Reserve memory for the backlog as it is, and let other connections know of it."""
        own, before = self.size, self._counted
        if own == before:
            return
        if not before:
            self._begin_measuring()
        else:
            self._measure()
        if own <= UNCOUNTED_BYTES:
            if self._room.size:
                self._room.shrink(0)
        elif own < before:
            self._room.shrink(own)
        else:
            self._room.cover_if_free(own)  # if it is not, nothing more is read until it is less
        part = 2 if self.is_ahead else 1  # what is ahead stays so until half of that is left
        is_early = part * own > self._room.client.budget.most // EARLY_PART
        self.is_ahead = is_early or self._has_work_for(EARLY_SECONDS / part)
        self._counted = own
        self._everything.value += own - before
        if self._everything.is_awaited:
            self._everything.wake()
        if not own and self._idle:
            self._idle.unpark_all()

    def clear(self) -> int:
        """Give up what is not stored. Returns how many messages that are."""
        lost, self.messages, self.size = self.messages, 0, 0
        self.settle()
        self._room.give_back()
        return lost

    @property
    def is_empty(self) -> bool:
        """Whether everything is stored, or refused."""
        return not self.size and self.failure is None

    @property
    def has_room(self) -> bool:
        """Whether more may be read from the connection."""
        own = self.size
        if own <= UNCOUNTED_BYTES:
            return True
        budget, room = self._room.client.budget, self._room
        if self.why_full and own > budget.most // EARLY_PART:
            return False
        if self.is_memory_scarce or room.free < budget.most // OWN_RESERVE or room.size < own:
            return False
        return not (self._progress.others_wait and self._has_work_for(MOST_SECONDS))

    @property
    def is_memory_scarce(self) -> bool:
        """Whether little memory is left for all clients."""
        budget = self._room.client.budget
        return budget.free < budget.most // COMMON_RESERVE

    @property
    def is_awaited(self) -> bool:
        """Whether the connection waits for the store, so that nothing is read from its client."""
        return self._waiting_tasks > 0

    async def wait_for_room(self) -> None:
        """Wait until more may be read from the connection."""
        with self.awaited():
            await self._everything.wait_until(self._may_read)

    async def wait_until_empty(self) -> None:
        """Wait until everything is stored, or refused.

        Raises:
            MQError: the store has failed, or the broker ends; the rest is not stored.
        """
        with self.awaited():
            while self._counted:
                await self._idle.park()
        if self.failure is not None:
            raise self.failure

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """A block in which the connection waits for the store."""
        self._waiting_tasks += 1
        try:
            yield
        finally:
            self._waiting_tasks -= 1

    def _may_read(self) -> bool:
        return self.has_room

    def _has_work_for(self, seconds: float) -> bool:
        rate = self._per_second
        return bool(rate) and self.messages > max(FEWEST_AHEAD, rate * seconds)

    def _begin_measuring(self) -> None:
        self.stored, self._since = 0, self._now()

    def _measure(self) -> None:
        seconds = self._now() - self._since
        if seconds >= RATE_SECONDS:
            latest = self.stored / seconds
            self._per_second = (self._per_second + latest) / 2 if self._per_second else latest
            self._begin_measuring()
