"""Progress: the last firing of each schedule, durable.

A firing is *begun* before its message is published and *done* after. A crash in between leaves it in doubt: its message
may be there. The states of many schedules are one record, so a thousand that fire together cost a few writes.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from mq.broker.api import BrokerAPI

KIND: Final = "firing"
"""Of the records."""
SEGMENTS: Final = 16
"""Records. One is written when one of its schedules fires."""


class Firing(NamedTuple):
    """The last firing of a schedule.

    Attributes:
        instant_ms: for which instant, in milliseconds since 1970.
        begun_ms: when it was begun.
        is_done: whether its outcome is known.
        id: the last message of the schedule; empty without one.
    """

    instant_ms: int
    begun_ms: int
    is_done: bool = False
    id: str = ""


class Progress:
    """The last firings.

    Args:
        broker: keeps the records.
    """

    def __init__(self, broker: BrokerAPI) -> None:
        self._broker = broker
        self._segments: dict[str, dict[str, Firing]] = defaultdict(dict)

    async def load(self, names: Iterable[str]) -> None:
        """Read the last firings of schedules; what is noted of others is forgotten.

        Raises:
            StorageError: they cannot be read.
        """
        records = await self._broker.declarations.records(KIND)
        for name in names:
            value = records.get(_segment(name), {}).get(name)
            if value is not None:
                self._segments[_segment(name)][name] = Firing(*value)

    def find(self, name: str) -> Firing | None:
        """The last firing of a schedule; None without one."""
        return self._segments[_segment(name)].get(name)

    def forget(self, name: str) -> None:
        """Forget a schedule. Its name may be there again after a restart."""
        self._segments[_segment(name)].pop(name, None)

    def set(self, name: str, firing: Firing | None) -> None:
        """Let this be the last firing of a schedule until mq ends; what is durable stays."""
        if firing is None:
            self.forget(name)
        else:
            self._segments[_segment(name)][name] = firing

    async def note(self, firings: dict[str, Firing]) -> None:
        """Keep these firings by the names of their schedules; durable on return.

        Raises:
            StorageError: they may not be durable.
        """
        for name, firing in firings.items():
            self._segments[_segment(name)][name] = firing
        for segment in sorted({_segment(name) for name in firings}):
            value: dict[str, Any] = {name: list(firing) for name, firing in self._segments[segment].items()}
            await self._broker.declarations.put(KIND, segment, value)


def _segment(name: str) -> str:
    return f"{zlib.crc32(name.encode()) % SEGMENTS:x}"
