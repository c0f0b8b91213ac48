"""The alarm: while the store has no room, whoever publishes has to wait, and is told so."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable

logger = logging.getLogger("mq.amqp")


class Alarm:
    """On while somebody's messages find no room.

    Args:
        changed: told when it goes on or off.

    Attributes:
        why: what the store says; empty while it is off.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self.why = ""
        self._changed = changed
        self._stuck: set[Hashable] = set()

    def stick(self, who: Hashable, why: str) -> None:
        """Somebody's messages find no room."""
        self._stuck.add(who)
        if not self.why:
            self.why = why or "no room"
            logger.warning("publishers over AMQP wait: %s", why)
            self._changed()

    def free(self, who: Hashable) -> None:
        """They found some, or have gone. Does nothing where they were not stuck."""
        self._stuck.discard(who)
        if self.why and not self._stuck:
            self.why = ""
            logger.warning("publishers over AMQP go on")
            self._changed()
