"""The calendar: delayed messages that have no timer yet.

A delay of more than twelve hours gets its timer once it is due within them, so that a million far-off messages take
little memory. An instant that a user gave (``X-Message-At``) follows the wall clock, which may be set: its message gets
a timer shortly before, and waits here until then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from mq import turns
from mq.broker.catalog import Catalog
from mq.broker.clock import Clock
from mq.broker.config import LONGEST_LEASE_SECONDS, MARGIN_SECONDS
from mq.broker.index import QueueIndex, sequence_of
from mq.message import MessageId
from mq.storage.interface import GIVEN_MS, Entry

LOOK_SECONDS: Final = 30.0
"""How often the calendar looks for messages that are due soon; besides, it does when the wall clock was set."""
NEAR_SECONDS: Final = LONGEST_LEASE_SECONDS + MARGIN_SECONDS
"""A delay that ends sooner has a timer."""
GIVEN_SECONDS: Final = 1.5 * LOOK_SECONDS
"""Likewise for an instant that a user gave."""
_MOST_TAKEN: Final = turns.JOB // turns.LIGHT
"""Messages that get their timers before other tasks run."""


class Calendar:
    """Keeps far-off messages in the indexes of the queues until they are near. Has a task only while there are some.

    Args:
        is_near: called with each message that falls due soon.
    """

    def __init__(self, catalog: Catalog, clock: Clock, is_near: Callable[[QueueIndex, Entry], None]) -> None:
        self._catalog = catalog
        self._clock = clock
        self._is_near = is_near
        self._is_watching = False
        self._changed = trio.Event()
        self._nursery: trio.Nursery | None = None

    def start(self, nursery: trio.Nursery | None) -> None:
        """Start watching.

        Args:
            nursery: gets the task; None where others move what is due.
        """
        self._nursery = nursery
        self._clock.on_change(self._look_soon)
        if any(index.far_off for index in self._catalog.queues.values()):
            self._watch()

    def add(self, index: QueueIndex, entry: Entry) -> bool:
        """Take a delayed message of the index that is far off; False for any other."""
        deadline_ms, _, receipt, _, _ = entry.meta
        if receipt is not None or deadline_ms is None:
            return False  # a lease: no clock makes one longer than the longest
        if self._clock.is_anew and deadline_ms < GIVEN_MS:
            # A delay that was short from the beginning lasts no longer than a lease, whatever a clock did meanwhile.
            joined = MessageId.time_ns(sequence_of(entry)) / 1e9
            if deadline_ms / 1e3 - joined <= NEAR_SECONDS:
                return False
        near = NEAR_SECONDS if deadline_ms < GIVEN_MS else GIVEN_SECONDS
        if self._clock.seconds_until_due(entry) <= near:
            return False
        index.put_off(entry, entry.id.key, self._clock.delay_age_ms(entry))
        self._watch()
        if deadline_ms >= GIVEN_MS:
            self._clock.set_waiting("calendar", is_waiting=True)
        return True

    def _watch(self) -> None:
        if self._nursery is not None and not self._is_watching:
            self._is_watching = True
            self._nursery.start_soon(self._run)

    async def _run(self) -> None:
        """Watch until nothing is far off any more."""
        # Without an await between the look at the queues and the end: a message that comes then begins anew.
        while any(index.far_off for index in self._catalog.queues.values()):
            self._changed = trio.Event()
            await self._look()
            has_given = any(index.far_off.has_given for index in self._catalog.queues.values())
            self._clock.set_waiting("calendar", is_waiting=has_given)
            with trio.move_on_after(LOOK_SECONDS):
                await self._changed.wait()
        self._is_watching = False
        self._clock.set_waiting("calendar", is_waiting=False)

    def set_ages(self) -> None:
        """Go by the ages of messages anew: a doubt of the clock has ended."""
        for index in self._catalog.queues.values():
            index.far_off.set_ages(self._clock.delay_age_ms)

    def _look_soon(self) -> None:
        self._changed.set()

    async def _look(self) -> None:
        """Hand over what is near by now."""
        for index in list(self._catalog.queues.values()):
            await self._take(index, self._clock.steady_ms() + round(NEAR_SECONDS * 1000))
            await self._take(index, GIVEN_MS + self._clock.wall_ms() + round(GIVEN_SECONDS * 1000))

    async def _take(self, index: QueueIndex, up_to_ms: int) -> None:
        while not index.deleted and (taken := index.far_off.take(up_to_ms, _MOST_TAKEN)):
            for entry in taken:
                index.add(entry)
                self._is_near(index, entry)
            await turns.of_run().end()
