"""What one user may have at most. Servers hold users to it (:mod:`mq.doors.quotas`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

MOST: Final = 10**9
"""The largest limit."""


@dataclass(frozen=True)
class UserLimits:
    """The limits of one user; None is no limit.

    Attributes:
        connections: that are open at a time, over all protocols of the daemon.
        queues: that the user has made and that exist.
        publish_rate: messages published a second, on average.
    """

    connections: int | None = None
    queues: int | None = None
    publish_rate: float | None = None

    def table(self) -> dict[str, float]:
        """The limits that there are, by their keys in the users file."""
        values = {key: getattr(self, name) for key, name in KEYS.items()}
        return {key: value for key, value in values.items() if value is not None}


KEYS: Final = {"max_connections": "connections", "max_queues": "queues", "max_publish_rate": "publish_rate"}
"""Keys of the users file, and the limits that they set."""
NO_LIMITS: Final = UserLimits()


def is_limit(key: str, value: object) -> bool:
    """Whether a value may stand below a key: a whole number, from 0, or for the rate any number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value > MOST:
        return False
    return value > 0 if key == "max_publish_rate" else isinstance(value, int) and value >= 0


def limits_of(table: Mapping[str, Any]) -> UserLimits:
    """The limits in a user's table, whose values :func:`is_limit` has checked."""
    return UserLimits(**{name: table[key] for key, name in KEYS.items() if key in table})
