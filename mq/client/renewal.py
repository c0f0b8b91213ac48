"""When the lease of a message at hand is extended, and when it is lost. No I/O: the clients sleep and ask."""

from __future__ import annotations

import math
from typing import Final

from mq.client.errors import ClientError, LeaseLost, Refused
from mq.client.values import Head

MAX_HANDLING_SECONDS: Final = 43_200.0
"""For how long a message is renewed unless the caller says otherwise: as long as the longest lease. A block that hangs
holds its message no longer."""

_PARTS: Final = 3
"""A lease is extended so often that two tries may fail."""
_SHORTEST_SECONDS: Final = 1.0
"""A shorter lease is extended by this: each extension is a write."""
_UNKNOWN_SECONDS: Final = 30.0
"""Stands in for a lease that the daemon did not tell; such a lease is extended at once."""
_LONGEST_PAUSE_SECONDS: Final = 1.0
_GRACE_SECONDS: Final = 2.0
"""For how long after its lease a message counts as ours while no daemon answers: a daemon that restarts prolongs leases
by as much, and hands out nothing before that."""
_PAUSES: Final = 20
"""How often a daemon that is away is asked within one lease."""
_LOST: Final = frozenset({404, 409, 412})
"""Refusals after which the message is not ours any more."""


class Renewal:
    """The lease of one message, from the instant at which its handling begins. Seconds are those of the client's clock.

    Args:
        message: as it was fetched. One without a receipt has no lease, and is only bounded.
        now: the instant.
        max_handling: seconds after which the lease is renewed no more.

    Attributes:
        seconds: what each extension asks for.
    """

    def __init__(self, message: Head, now: float, max_handling: float) -> None:
        self.seconds = max(message.lease or _UNKNOWN_SECONDS, _SHORTEST_SECONDS)
        self._id = message.id
        self._max_handling = max_handling
        self._stops = now + max_handling
        if not message.receipt:
            self._due = self._ends = math.inf
        elif 0 <= now - message.fetched <= message.lease:
            self._due = message.fetched + message.lease / _PARTS
            self._ends = message.fetched + message.lease + _GRACE_SECONDS
        else:  # it is not known how much of the lease is left; the daemon knows
            self._due, self._ends = now, now + self.seconds + _GRACE_SECONDS

    @property
    def next(self) -> float:
        """When there is something to do: :meth:`overrun`, then an extension."""
        return min(self._due, self._stops)

    def limit(self, now: float) -> float:
        """How many seconds an extension that is begun now may take: others have to fit into the lease, too."""
        return min(self.seconds / _PARTS, max(self._ends - now, self.seconds / _PAUSES))

    def overrun(self, now: float) -> LeaseLost | None:
        """What ends the renewal; None while the message may be handled."""
        if now < self._stops:
            return None
        return LeaseLost(
            412, f"message {self._id} was handled for more than max_handling={self._max_handling:g} seconds"
        )

    def extended(self, sent: float) -> None:
        """Note that an extension succeeded that was sent at this instant."""
        self._due, self._ends = sent + self.seconds / _PARTS, sent + self.seconds + _GRACE_SECONDS

    def failed(self, error: ClientError, now: float) -> LeaseLost | None:
        """Note that an extension failed. The loss of the lease; None when there is time for another try."""
        if isinstance(error, LeaseLost):
            return error
        if isinstance(error, Refused) and error.status in _LOST:
            return LeaseLost(error.status, error.detail)
        if now >= self._ends:
            return LeaseLost(412, f"message {self._id}: its lease ended before it could be extended: {error}")
        self._due = now + min(_LONGEST_PAUSE_SECONDS, self.seconds / _PAUSES)
        return None
