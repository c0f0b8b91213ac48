"""All queues as of late, for everybody who looks on.

Ten people who watch a page would else have ten times the queues counted, each second.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final

import trio

from mq.broker import QueueStatus
from mq.broker.api import BrokerAPI
from mq.doors.exchanges import Exchanges

FRESH_SECONDS: Final = 1.0
"""How old a look may be, at the least."""
SHARE: Final = 20
"""A look that takes long is good for so many times as long: looking on takes a twentieth of a core at the most."""


class Overview:
    """The queues, looked at as seldom as will do.

    Args:
        broker: has them.
        exchanges: tells to which of them dead letters come over AMQP.

    Attributes:
        exchanges: as given.
    """

    def __init__(self, broker: BrokerAPI, exchanges: Exchanges) -> None:
        self.exchanges = exchanges
        self._broker = broker
        self._graves: set[str] = set()
        self._looking = trio.Lock()
        self._statuses: Sequence[QueueStatus] = ()
        self._good_until = -1.0

    async def queues(self) -> Sequence[QueueStatus]:
        """Every queue, by name, as it was a moment ago."""
        async with self._looking:
            if trio.current_time() >= self._good_until:
                begun = time.perf_counter()
                self._statuses = await self._broker.queues()
                self._graves = {status.settings.dead_letter_queue or "" for status in self._statuses}
                self._graves.update(name for way in self.exchanges.now().dead_letters for name in way.targets)
                took = time.perf_counter() - begun
                self._good_until = trio.current_time() + max(FRESH_SECONDS - _EARLY, SHARE * took)
        return self._statuses

    def dead_letter_queues(self, statuses: Iterable[QueueStatus]) -> list[QueueStatus]:
        """Those of them to which some queue sends its dead, by its settings or by its arguments over AMQP."""
        return [status for status in statuses if status.name in self._graves]


_EARLY: Final = 0.1
"""Seconds: what comes every second must not find the last look by a hair's breadth."""
