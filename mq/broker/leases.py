"""What a lease is called, and how long it lasts."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from mq.broker.config import MARGIN_SECONDS
from mq.broker.fetches import FetchRequest
from mq.lifecycle import State
from mq.storage.interface import Entry, Meta, Move


class Leases:
    """How a lease is named: when it falls due, and by whom it is held.

    Args:
        seconds: how long it lasts where nobody says otherwise.
        clock_ns: wall clock, nanoseconds since 1970.
        random: makes claims that nobody else makes.
    """

    def __init__(self, seconds: float, clock_ns: Callable[[], int], random: Random) -> None:
        self._seconds = seconds
        self._clock_ns = clock_ns
        self._claims = random.getrandbits(64)

    def seconds(self, request: FetchRequest) -> float:
        """How long the lease that a fetch asks for lasts."""
        if request.seconds is not None:
            return request.seconds
        visibility = request.index.settings.visibility
        return self._seconds if visibility is None else visibility

    def meta(self, entry: Entry, seconds: float) -> Meta:
        """The meta of `entry` once it is leased."""
        self._claims = (self._claims + 1) % (1 << 64)
        _, receives, _, order, expires_ms = entry.meta
        return Meta(self.deadline_ms(seconds), receives + 1, f"{self._claims:016x}", order, expires_ms)

    def move(self, request: FetchRequest, entry: Entry, *, reads: bool = False) -> Move:
        """What brings a message to whoever asked for it: its lease, or its removal."""
        if request.takes:
            return Move(entry, State.REMOVED)
        return Move(entry, State.DELAYED, self.meta(entry, self.seconds(request)), reads=reads)

    def deadline_ms(self, seconds: float) -> int:
        """What the name says of a lease that ends so many seconds after its barrier."""
        return self._clock_ns() // 1_000_000 + round((seconds + MARGIN_SECONDS) * 1000)
