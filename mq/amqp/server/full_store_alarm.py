"""The log's warning that publishers are blocked because the store has no room."""

from __future__ import annotations

import logging
from collections.abc import Hashable

logger = logging.getLogger("mq.amqp")


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
