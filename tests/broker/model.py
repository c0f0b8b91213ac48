"""What a broker at peers = 0 has to do, in a few lines without a store: a model to hold it to.

A queue is its messages by the time of their ids; each is out of sight until its lease ends, and that is all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mq.broker.clock import AHEAD_SECONDS
from mq.broker.config import GRACE_SECONDS, LONGEST_LEASE_SECONDS, MARGIN_SECONDS
from mq.message import MessageId

LEASE_SECONDS: Final = 30.25
"""Time passes in steps of half a second, or to a quarter before or after a lease's end: nobody looks at that very
instant."""
LONGEST_SECONDS: Final = LONGEST_LEASE_SECONDS + MARGIN_SECONDS


@dataclass
class Known:
    """A message, as whoever published it knows it.

    Attributes:
        body: its bytes.
        attributes: what was said of it.
        due: when its lease ends, on the clock that only goes on, in seconds.
        deadline: when its name says so, in steady time.
    """

    body: bytes
    attributes: Mapping[str, Any]
    receives: int = 0
    due: float = 0.0
    deadline: float = 0.0


class Model:
    """Queues of messages, and the time: `now` only goes on, the wall clock is `ahead` of it, and `believed` is by how
    much the broker that ran last believed it to be. Steady time is `skipped` ahead."""

    def __init__(self) -> None:
        self.queues: dict[str, dict[MessageId, Known]] = {}
        self.now = 0.0
        self.ahead = 0.0
        self.believed = 0.0
        self.skipped = 0.0

    def ready(self, queue: str) -> list[MessageId]:
        """What can be fetched, in the order in which it will be."""
        messages = self.queues[queue]
        return sorted((id for id in messages if messages[id].due <= self.now), key=lambda id: id.key)

    def leased(self, queue: str) -> set[MessageId]:
        """What cannot be fetched now."""
        return self.queues[queue].keys() - set(self.ready(queue))

    def lease(self, queue: str, id: MessageId) -> Known:
        """Hand a message out."""
        message = self.queues[queue][id]
        message.receives += 1
        message.due = self.now + LEASE_SECONDS
        message.deadline = self.now + self.skipped + LEASE_SECONDS + MARGIN_SECONDS
        return message

    def restart(self) -> None:
        """Leases go on by what their names say, and for the grace of a start at least. A wall clock that was set ahead
        meanwhile, by less than days, is taken for time without a broker; any other is in doubt and ends no lease."""
        ahead = self.ahead - self.believed
        self.skipped += ahead if 0 <= ahead <= AHEAD_SECONDS else 0.0
        for messages in self.queues.values():
            for message in messages.values():
                if message.due > self.now:
                    left = message.deadline - self.now - self.skipped
                    message.due = self.now + min(max(left, GRACE_SECONDS), LONGEST_SECONDS)
