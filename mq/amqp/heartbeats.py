"""When a heartbeat is due, and when the peer counts as dead (AMQP 0-9-1, section 4.2.7). Nothing here waits."""

from __future__ import annotations

import math
from collections.abc import Callable


class Heartbeats:
    """The heartbeats of one connection.

    Args:
        interval_seconds: as negotiated; 0 for none.
        clock: seconds, on any clock that only goes on.

    Attributes:
        send_at: when one is due, by that clock. Half the interval after something was sent last: it has to
            arrive in time.
        dead_at: when the peer counts as dead. Two intervals after something came from it last.
    """

    def __init__(self, interval_seconds: float, clock: Callable[[], float]) -> None:
        self._interval = interval_seconds or math.inf
        self._clock = clock
        self.send_at = self.dead_at = math.inf
        self.sent()
        self.received()

    def sent(self) -> None:
        """Something was sent, whatever it was."""
        self.send_at = self._clock() + self._interval / 2

    def received(self) -> None:
        """Something came, whatever it was."""
        self.dead_at = self._clock() + self._interval * 2
