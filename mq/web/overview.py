"""All queues, counted at most once a second for all pages that watch them: :class:`Overview`."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import trio

from mq.broker import QueueStatus
from mq.broker.api import BrokerAPI
from mq.doors.exchanges import Exchanges

FRESH_SECONDS: Final = 1.0
"""How old a count of the queues may always be."""
REUSE_FACTOR: Final = 20
"""A count that takes long is used for so many times as long, so counting takes a twentieth of a core at the most."""
_EARLY_SECONDS: Final = 0.1
"""Seconds by which a count expires before :data:`FRESH_SECONDS`: a page that asks every second always gets a new
one."""


class SharedResult:
    """A result that takes its time, made once for all callers that want it meanwhile."""

    def __init__(self) -> None:
        self._making: trio.Event | None = None
        self._made: bytes | None = None

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
            self._made = await make()
            return self._made
        finally:
            self._making = None
            making.set()


class Overview:
    """The status of every queue, cached for a moment, so that ten pages cost no more than one.

    Args:
        broker: has them.
        exchanges: tells to which queues dead letters come over AMQP.

    Attributes:
        exchanges: as given.
        scrape: the page for Prometheus.
    """

    def __init__(self, broker: BrokerAPI, exchanges: Exchanges) -> None:
        self.exchanges = exchanges
        self.scrape = SharedResult()
        self._broker = broker
        self._dead_letter_queues: set[str] = set()
        self._looking = trio.Lock()
        self._statuses: Sequence[QueueStatus] = ()
        self._good_until = -1.0

    async def queues(self) -> Sequence[QueueStatus]:
        """Every queue, by name, as it was a moment ago."""
        async with self._looking:
            if trio.current_time() >= self._good_until:
                begun = time.perf_counter()
                self._statuses = await self._broker.queues()
                targets = {status.settings.dead_letter_queue or "" for status in self._statuses}
                targets.update(name for way in self.exchanges.now().dead_letters for name in way.targets)
                self._dead_letter_queues = targets
                took = time.perf_counter() - begun
                self._good_until = trio.current_time() + max(FRESH_SECONDS - _EARLY_SECONDS, REUSE_FACTOR * took)
        return self._statuses

    def dead_letter_queues(self, statuses: Iterable[QueueStatus]) -> list[QueueStatus]:
        """Those queues to which some queue sends its dead letters, by its settings or by its arguments over AMQP."""
        return [status for status in statuses if status.name in self._dead_letter_queues]
