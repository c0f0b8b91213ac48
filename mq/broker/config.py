"""How a broker works: numbers, and who else is at work on its store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mq.errors import InvalidSetting

MARGIN_SECONDS: Final = 2.0
"""A lease's deadline is named before its barrier and counted from after it. The name allows this much for the
barrier; a slower one gives no lease. So a lease outlives a restart, too, for as long as was said."""
LONGEST_LEASE_SECONDS: Final = 43200.0
"""No lease is longer; a deadline further off than that is a clock's mistake."""
RETRY_SECONDS: Final = 1.0
"""How long the mover and the reaper wait before they try again what the medium refused for now."""
POLL_SECONDS: Final = 1.0
"""How often a store is looked at that others change and that cannot tell."""
GLANCE_SECONDS: Final = 0.1
"""How often such a store is looked at for messages of the queues that somebody waits for."""
STRANDED_SECONDS: Final = 10.0
"""How old a message in NEW of a shared store must be before it is taken for a dead broker's and delivered."""


@dataclass(frozen=True)
class BrokerConfig:
    """How a broker works.

    Attributes:
        workers: pairs of a fetch worker and a save worker.
        peers: how many *other* brokers work on the same store.
        delay_seconds: how long a lease lasts.
        mover: deliver and requeue here; False when a separate mover does it.
        reaper: unlink removed messages here; False when a separate reaper does it.
        max_body: the longest body in bytes.

    Raises:
        InvalidSetting: a number out of its range.
    """

    workers: int = 8
    peers: int = 0
    delay_seconds: float = 30.0
    mover: bool = True
    reaper: bool = True
    max_body: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        for name, low, high in (
            ("workers", 1, 1024),
            ("peers", 0, 1024),
            ("delay_seconds", 0.001, LONGEST_LEASE_SECONDS),
            ("max_body", 0, 1 << 40),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise InvalidSetting(f"{name} must be from {low} to {high}, got {value!r}")

    @property
    def followed(self) -> bool:
        """Whether others change the store too, so that what the broker knows of it are hints."""
        return self.peers > 0 or not self.mover
