"""Holds users to the limits that the users file sets: connections, queues, messages published a second.

All protocols of a daemon count together. There is no limit where the file has none (:mod:`mq.access.user_limits`). The
broker counts queues, for it knows who made them (:data:`mq.lifecycle.OWNER`).
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import trio

from mq.access import User
from mq.doors.connections import Refusals
from mq.doors.open_connections import OpenConnections
from mq.errors import OverLimit

BURST_SECONDS: Final = 1.0
"""Messages of so much time may come at once."""
_AT_ONCE_SECONDS: Final = 0.001
"""Waits that are not worth one: sums of fractions never come out even."""
CONNECTIONS: Final = "connections"
PUBLISH_RATE: Final = "publish_rate"
"""Kinds of limits, as the metric names them."""


class Quotas:
    """What users have of each thing that is limited.

    Args:
        connections: of all protocols; None where none are counted.

    Attributes:
        refused: how often a limit was in the way, by its kind.
    """

    def __init__(self, connections: OpenConnections | None = None) -> None:
        self.refused: Counter[str] = Counter()
        self._connections = connections or OpenConnections()
        self._rates: dict[str, _Bucket] = {}
        self._lines = {
            CONNECTIONS: Refusals(
                "refused a connection of user %s, who already has the maximum number of connections: %d "
                "(max_connections)"
            ),
            PUBLISH_RATE: Refusals(
                "delayed or refused messages of user %s, who may publish at most %g messages per second "
                "(max_publish_rate)"
            ),
        }

    def check_connection(self, user: User) -> None:
        """Refuse one more connection of a user who has as many as the limit allows.

        Raises:
            OverLimit: there are as many.
        """
        most = user.limits.connections
        if most is None or self._connections.count(user.name) < most:
            return
        self.refused[CONNECTIONS] += 1
        self._lines[CONNECTIONS].add(user.name, most)
        raise OverLimit(
            f"user {user.name} has reached the maximum of {most} connections (max_connections). Close unused "
            "connections or share connections"
        )

    def check_publish(self, user: User | None, count: int = 1) -> None:
        """Count messages that a user publishes. What is refused does not count.

        Raises:
            OverLimit: the user has published too many of late. The error says when to try again.
        """
        if user is None or user.limits.publish_rate is None:
            return
        bucket = self._bucket(user, user.limits.publish_rate)
        seconds = bucket.seconds_until(count)
        if seconds > 0:
            self._note_rate(user)
            raise OverLimit(
                f"user {user.name} may publish at most {user.limits.publish_rate:g} messages per "
                "second (max_publish_rate). Publish more slowly, or try again later",
                seconds,
            )
        bucket.take(count)

    def count_publishes(self, user: User | None, count: int) -> None:
        """Count messages that a user has published, however many they are. :meth:`pause_seconds` tells for how long
        nothing more is to be taken."""
        if user is not None and user.limits.publish_rate is not None:
            self._bucket(user, user.limits.publish_rate).take(count)

    def pause_seconds(self, user: User | None) -> float:
        """For how long nothing more is to be taken from a user that has published too fast."""
        if user is None or user.limits.publish_rate is None:
            return 0.0
        seconds = self._bucket(user, user.limits.publish_rate).seconds_until(0)
        if seconds > 0:
            self._note_rate(user)
        return seconds

    def _note_rate(self, user: User) -> None:
        self.refused[PUBLISH_RATE] += 1
        self._lines[PUBLISH_RATE].add(user.name, user.limits.publish_rate)

    def _bucket(self, user: User, rate: float) -> _Bucket:
        bucket = self._rates.get(user.name)
        if bucket is None:
            bucket = self._rates[user.name] = _Bucket(rate)
        bucket.set_rate(rate)
        return bucket


class _Bucket:
    """Messages that may come now (a token bucket). It may be overdrawn, and then takes its time to fill.

    Args:
        rate: messages a second.
    """

    __slots__ = ("_free", "_rate", "_since")

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free = self._most
        self._since = trio.current_time()

    @property
    def _most(self) -> float:
        return max(1.0, self._rate * BURST_SECONDS)

    def set_rate(self, rate: float) -> None:
        """Fill it up to now, and from now on at this rate."""
        now = trio.current_time()
        self._free = min(self._free + (now - self._since) * self._rate, max(1.0, rate * BURST_SECONDS))
        self._rate, self._since = rate, now

    def take(self, count: int) -> None:
        """Take out so many, though there may be fewer."""
        self._free -= count

    def seconds_until(self, count: int) -> float:
        """Seconds until so many are there, or as many as there may be."""
        seconds = (min(count, self._most) - self._free) / self._rate
        return seconds if seconds > _AT_ONCE_SECONDS else 0.0
