"""A broker's configuration: its numbers, and which others work on its store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mq.errors import InvalidSetting
from mq.storage.interface import Sharing

MARGIN_SECONDS: Final = 2.0
"""A lease's deadline is named before its barrier and counted from after it. The name allows this much for the
barrier; a slower one gives no lease. So a lease outlives a restart, too, for as long as was said."""
LONGEST_LEASE_SECONDS: Final = 43200.0
"""No lease is longer; a deadline further off than that is a clock's mistake."""
KEY_BYTES: Final = 64
"""About what an idempotency key takes in memory."""
MOST_KEYS: Final = (256 << 20) // KEY_BYTES
GRACE_SECONDS: Final = 5.0
"""How long after a start leases from before the start are kept at the least. Their holders could not extend them while
no broker ran, and a start may take longer than a short lease."""
RETRY_SECONDS: Final = 1.0
"""How long the mover and the reaper wait before they try again what the medium refused for now."""
POLL_SECONDS: Final = 1.0
"""How often the broker looks at a shared store that gives no notice of changes."""
GLANCE_SECONDS: Final = 0.1
"""How often it looks there for messages of the queues that requests wait for."""
STRANDED_SECONDS: Final = 10.0
"""How old a message in NEW of a shared store must be before it is taken for a dead broker's and delivered."""


@dataclass(frozen=True)
class BrokerConfig:
    """How a broker works.

    Attributes:
        peers: how many *other* brokers work on the same store.
        mover: deliver and requeue here; False when a separate mover does it.
        reaper: unlink removed messages here; False when a separate reaper does it.
        max_body: the longest body in bytes.
        strict: each step of a message is a move of its own, as the seed MQ has it: NEW, READY, DELAYED, REMOVED.
            No message goes from NEW to a waiting request, and none is unlinked before it was moved to REMOVED.
        store: where queues live that outlast the process, as listings call it: ``disk``, ``node``, ``cluster``.
        awaits_sink: dead letters wait until a server has set its sink for them
            (:meth:`mq.broker.queues.Declarations.set_sink`). Without it they go as if there were none.
        counts_returns: each message that a connection has had, and that comes back, counts as received, also when the
            connection ends. Quorum queues count so.
        verify_seconds: how long a pass over all stored messages takes that compares them with their checksums; 0 for
            no such passes.
        most_keys: idempotency keys that are remembered at a time, of all queues together.

    Raises:
        InvalidSetting: a number out of its range.
    """

    workers: int = 8
    peers: int = 0
    visibility_seconds: float = 30.0
    mover: bool = True
    reaper: bool = True
    max_body: int = 64 * 1024 * 1024
    strict: bool = False
    store: str = "disk"
    awaits_sink: bool = False
    counts_returns: bool = False
    verify_seconds: float = 0.0
    most_keys: int = MOST_KEYS

    def __post_init__(self) -> None:
        for name, low, high in (
            ("workers", 1, 1024),
            ("peers", 0, 1024),
            ("visibility_seconds", 0.001, LONGEST_LEASE_SECONDS),
            ("max_body", 0, 1 << 40),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise InvalidSetting(f"{name} must be between {low} and {high}, not {value!r}")

    @property
    def sharing(self) -> Sharing:
        """Who else works on the store."""
        if self.peers:
            return Sharing.PEERS
        return Sharing.ALONE if self.mover and self.reaper else Sharing.WATCHED

    @property
    def others_move(self) -> bool:
        """Whether others move messages, too, so that what the broker knows of the store are hints. A reaper elsewhere
        only unlinks what was removed."""
        return self.sharing is Sharing.PEERS or not self.mover

    @property
    def skips_steps(self) -> bool:
        """Whether a message may be written where it rests, or be handed to a request that waits for it: not where
        others move messages, too."""
        return not self.others_move and not self.strict

    @property
    def joins_reaping(self) -> bool:
        """Whether a removal and its unlink are one batch, of which a store may make one step."""
        return self.reaper and not self.strict
