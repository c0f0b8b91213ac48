"""All queues, counted at most once a second for all pages that watch them: :class:`Overview`."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple

import trio

from mq import turns
from mq.access import Right, User
from mq.broker import QueueStatus
from mq.broker.api import BrokerAPI
from mq.doors.exchanges import Exchanges
from mq.web.events import EARLY_SECONDS, REUSE_FACTOR, EventFeeds

FRESH_SECONDS: Final = 1.0
"""How old a count of the queues may always be."""
TARGETS_SECONDS: Final = 15.0
"""How old the set of dead-letter queues may be where nothing else of all queues is asked for."""


PAUSE_FACTOR: Final = 4
"""The pause after a shared result, in times that it took to make."""


class SharedResult:
    """A result that takes its time, made once for all callers that want it meanwhile. After one there is a pause, so
    that callers without end use a part of a core only, and a thread of it does not keep Python from the event loop."""

    def __init__(self) -> None:
        self._making: trio.Event | None = None
        self._made: bytes | None = None
        self._next_at = -math.inf

    async def make(self, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """The result of `make`, or of another caller's that began before.

        Args:
            make: makes it. When it fails, or its caller is cancelled, another caller's is tried.
        """
        while self._making is not None:
            await self._making.wait()
            if self._made is not None:
                return self._made
        making = self._making = trio.Event()
        self._made = None
        try:
            await trio.sleep_until(self._next_at)
            begun = time.perf_counter()
            self._made = await make()
            self._next_at = trio.current_time() + PAUSE_FACTOR * (time.perf_counter() - begun)
            return self._made
        finally:
            self._making = None
            making.set()


class VisibleQueues(NamedTuple):
    """The queues that some users may see.

    Attributes:
        dead: ready messages in those to which some queue sends its dead letters.
    """

    statuses: list[QueueStatus]
    ready: int
    leased: int
    delayed: int
    dead: int


NOTHING: Final = VisibleQueues([], 0, 0, 0, 0)


class Overview:
    """The status of every queue, cached for a moment, so that ten pages cost no more than one.

    Args:
        exchanges: tells to which queues dead letters come over AMQP.

    Attributes:
        listing: held while an answer about all queues is made: each needs memory for the status of every queue.
    """

    def __init__(self, broker: BrokerAPI, exchanges: Exchanges) -> None:
        self.exchanges = exchanges
        self.scrape = SharedResult()
        self.feeds = EventFeeds()
        self.listing = trio.Lock()
        self._broker = broker
        self._dead_letter_queues: set[str] = set()
        self._looking = trio.Lock()
        self._statuses: Sequence[QueueStatus] = ()
        self._visible: dict[frozenset[str] | None, VisibleQueues] = {}
        self._good_until = -1.0

    async def queues(self) -> Sequence[QueueStatus]:
        """Every queue, by name, as it was a moment ago."""
        async with self._looking:
            if trio.current_time() >= self._good_until:
                begun = time.perf_counter()
                self._statuses, self._visible = await self._broker.queues(), {}
                targets = {status.settings.dead_letter_queue or "" for status in self._statuses}
                ways = (await self.exchanges.now()).dead_letters
                targets.update(name for way in ways for name in way.targets)
                self._dead_letter_queues = targets
                took = time.perf_counter() - begun
                self._good_until = trio.current_time() + max(FRESH_SECONDS - EARLY_SECONDS, REUSE_FACTOR * took)
        return self._statuses

    async def visible(self, user: User | None) -> VisibleQueues:
        """The queues that a user may see; all for None. Found out once for all users with the same patterns."""
        sees_all = user is None or user.may(Right.MONITOR, None)
        patterns = None if user is None or sees_all else user.patterns
        if patterns is not None and not patterns:
            return NOTHING
        everyone = await self.queues()
        found = self._visible
        if patterns not in found:
            statuses: list[QueueStatus] = []
            ready = leased = delayed = dead = 0
            async for some in turns.slices(everyone, turns.FRAME):
                mine = some if user is None or sees_all else [each for each in some if user.may_something(each.name)]
                statuses += mine
                ready += sum(status.ready for status in mine)
                leased += sum(status.leased for status in mine)
                delayed += sum(status.delayed for status in mine)
                dead += sum(status.ready for status in self.dead_letter_queues(mine))
            found[patterns] = VisibleQueues(statuses, ready, leased, delayed, dead)
        return found[patterns]

    async def is_dead_letter_queue(self, queue: str) -> bool:
        """Whether some queue sent its dead letters to this one, a moment ago. Costs next to nothing a second: a view of
        one queue must not count ten thousand others each time."""
        if trio.current_time() >= self._good_until + TARGETS_SECONDS:
            await self.queues()
        return queue in self._dead_letter_queues

    def dead_letter_queues(self, statuses: Iterable[QueueStatus]) -> list[QueueStatus]:
        """Those queues to which some queue sends its dead letters, by its settings or by its arguments over AMQP."""
        return [status for status in statuses if status.name in self._dead_letter_queues]
