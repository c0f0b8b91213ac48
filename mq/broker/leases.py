"""Leases: how they are named on disk, and how long they last."""

from __future__ import annotations

import math
from random import Random
from typing import Final

import trio

from mq.broker.clock import Clock
from mq.broker.config import MARGIN_SECONDS
from mq.broker.settings import SHORTEST_SECONDS
from mq.broker.waiters import FetchRequest
from mq.lifecycle import State
from mq.storage.interface import GIVEN_MS, Entry, Meta, Move

_DELAYED: Final = State.DELAYED  # quicker than an attribute of the enumeration
STEPS_TO_HAND_OUT: Final = 8
"""Steps of the event loop from the naming of a lease to the answer with its message, and a few more."""
CALM_SECONDS: Final = 1.0
"""For so long after a measurement the event loop counts as calm, if its allowance is no longer than that."""
MOST_ALLOWED_SECONDS: Final = 10.0
"""The greatest allowance; if the event loop needs more, no lease is given."""


class Leases:
    """Names leases, each with its deadline and its receipt.

    Args:
        clock: steady time, in which deadlines are named.
        random: seeds receipts that no other broker makes.
        mover: whether this broker ends its leases itself, by their timers.

    Attributes:
        allowance: seconds by which the deadline is later than the lease's end. Where the event loop is late, the lease
            is not over before its holder gets the message.
        come_too_late: whether the event loop is too late to give leases.
    """

    def __init__(self, seconds: float, clock: Clock, random: Random, *, mover: bool) -> None:
        self._seconds = seconds
        self._clock = clock
        self._mover = mover
        self._receipts = random.getrandbits(64)
        self.allowance = 0.0
        self.come_too_late = False
        self._noted = 0.0
        self._measured = -math.inf
        self._now = trio.lowlevel.current_clock().current_time  # two calls less than by trio.current_time

    @property
    def is_calm(self) -> bool:
        """Whether leases may be given without a measurement of the event loop: the last one is recent, and was good."""
        return self.allowance <= CALM_SECONDS and self._now() - self._measured <= CALM_SECONDS

    def note_step(self, seconds: float) -> None:
        """Note how long a step of the event loop took. The longest of the last ones sets the allowance."""
        now = self._measured = self._now()
        allowed = STEPS_TO_HAND_OUT * seconds
        self.come_too_late = allowed > MOST_ALLOWED_SECONDS
        if allowed >= self.allowance or now - self._noted > self.allowance:
            self.allowance, self._noted = min(allowed, MOST_ALLOWED_SECONDS), now

    def seconds(self, request: FetchRequest) -> float:
        """The length of the lease that a fetch request gets."""
        if request.seconds is not None:
            return request.seconds
        visibility = request.index.settings.visibility
        return self._seconds if visibility is None else visibility

    def is_momentary(self, seconds: float) -> bool:
        """Whether a lease of that length is over as soon as its message was handed out. Its end has to be set then."""
        # Where others end leases, they go by the name: that is not much longer than the lease.
        return seconds <= SHORTEST_SECONDS and self._mover

    def standing_seconds(self, seconds: float) -> float:
        """How long a lease of that length lasts until its message is handed out. A momentary one stands for as long as
        any other, or else it would end while the body is read."""
        return max(seconds, self._seconds) if seconds <= SHORTEST_SECONDS and self._mover else seconds

    def meta(self, entry: Entry, seconds: float) -> Meta:
        """The meta of `entry` once it is leased, with a receipt of its own."""
        self._receipts = (self._receipts + 1) % (1 << 64)
        _, receives, _, order, expires_ms = entry.meta
        return Meta(self.deadline_ms(seconds), receives + 1, f"{self._receipts:016x}", order, expires_ms)

    def move(self, request: FetchRequest, entry: Entry, allowance: float = 0.0, reads: bool = False) -> Move:
        """The move that gives a message to a request: a lease, named longer by `allowance`, or a removal."""
        if request.takes:
            return Move(entry, State.REMOVED)
        seconds = self.standing_seconds(self.seconds(request)) + allowance
        return Move(entry, _DELAYED, self.meta(entry, seconds), reads=reads)

    def delayed(self, entry: Entry, seconds: float, receives: int, at_ms: int | None = None) -> Move:
        """The move that ends a message's lease, or a hold, and holds the message back for so many seconds, or until
        `at_ms`."""
        deadline_ms = self._clock.delayed_ms(entry, seconds) if at_ms is None else GIVEN_MS + at_ms
        meta = entry.meta.at_rest()._replace(deadline_ms=deadline_ms, receives=receives)
        return Move(entry, State.DELAYED, meta)

    def deadline_ms(self, seconds: float) -> int:
        """The deadline, as the name has it, of a lease that ends so many seconds after its barrier."""
        return self._clock.steady_ms() + round((seconds + MARGIN_SECONDS) * 1000)
