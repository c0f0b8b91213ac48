"""How much happened to a queue's messages lately: counts in a ring, by slots of five seconds and by minutes.

A ring takes 2,304 bytes however much happens: a minute in slots and an hour in minutes, for eight kinds of flow.
"""

from __future__ import annotations

from array import array
from enum import IntEnum
from typing import Final, NamedTuple

from mq.lifecycle import Kind

SLOT_SECONDS: Final = 5
"""The finest resolution of rates."""
SLOTS: Final = 12
"""Slots that a ring keeps one by one: a minute."""
MINUTES: Final = 60

_COARSE_AT: Final = 8 * SLOTS
_NOTHING: Final = array("I", bytes(4 * 8))


class Flow(IntEnum):
    """What is counted. The first six have names that clients see."""

    PUBLISH = 0
    DELIVER = 1
    ACKNOWLEDGE = 2
    REDELIVER = 3
    EXPIRE = 4
    DEAD_LETTER = 5
    LEAVE = 6
    """A message was moved to another queue by hand."""
    ARRIVE = 7
    """A message came from another queue, by hand or because it died there."""


SHOWN: Final = (Flow.PUBLISH, Flow.DELIVER, Flow.ACKNOWLEDGE, Flow.REDELIVER, Flow.EXPIRE, Flow.DEAD_LETTER)
FLOW_OF: Final = {
    Kind.PUBLISH: Flow.PUBLISH,
    Kind.LEASE: Flow.DELIVER,
    Kind.REMOVE: Flow.ACKNOWLEDGE,
    Kind.REQUEUE: Flow.REDELIVER,
    Kind.EXPIRE: Flow.EXPIRE,
    Kind.DEAD_LETTER: Flow.DEAD_LETTER,
    Kind.REROUTE: Flow.LEAVE,
}
"""Transition -> flow. A message that comes back will be delivered again, so it counts as redelivered."""

_ADDS: Final = (Flow.PUBLISH, Flow.ARRIVE)
_TAKES: Final = (Flow.ACKNOWLEDGE, Flow.EXPIRE, Flow.DEAD_LETTER, Flow.LEAVE)


class Rates(NamedTuple):
    """Averages of one flow, in messages a second.

    Attributes:
        slot: over the last whole five seconds.
        minute: over the last minute.
        hour: over the last hour.
    """

    slot: float
    minute: float
    hour: float


def places_of(slot: int, flow: Flow) -> tuple[int, int]:
    """Where a ring counts a flow of a slot: by slot, and by minute. It has to be written up to there."""
    return flow * SLOTS + slot % SLOTS, _COARSE_AT + flow * MINUTES + slot // SLOTS % MINUTES


class Ring:
    """The counts of one queue. Time is in slots since the program began.

    Attributes:
        slot: up to which it is written.
        counts: of each flow by slot, then of each flow by minute.
    """

    __slots__ = ("counts", "slot")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.counts = array("I", bytes(4 * 8 * (SLOTS + MINUTES)))

    def add(self, slot: int, flow: Flow, number: int) -> None:
        """Count `number` in a slot, never one before the last that was written."""
        if slot != self.slot:
            self.advance(slot)
        fine, coarse = places_of(slot, flow)
        self.counts[fine] += number
        self.counts[coarse] += number

    def advance(self, slot: int) -> None:
        """Note that nothing more happened up to this slot."""
        counts, last = self.counts, self.slot
        for passed in range(max(last + 1, slot - SLOTS + 1), slot + 1):
            counts[passed % SLOTS : _COARSE_AT : SLOTS] = _NOTHING
        minute = slot // SLOTS
        for passed in range(max(last // SLOTS + 1, minute - MINUTES + 1), minute + 1):
            counts[_COARSE_AT + passed % MINUTES :: MINUTES] = _NOTHING
        self.slot = slot

    def is_idle(self, slot: int) -> bool:
        """Whether nothing has happened for a minute."""
        self.advance(slot)
        return not any(self.counts[:_COARSE_AT])

    def slots(self, flow: Flow) -> list[int]:
        """The counts of the last minute's slots, the one that runs last."""
        start, at = flow * SLOTS, (self.slot + 1) % SLOTS
        return [*self.counts[start + at : start + SLOTS], *self.counts[start : start + at]]

    def minutes(self, flow: Flow) -> list[int]:
        """The counts of the last hour's minutes, the one that runs last."""
        start, at = _COARSE_AT + flow * MINUTES, (self.slot // SLOTS + 1) % MINUTES
        return [*self.counts[start + at : start + MINUTES], *self.counts[start : start + at]]

    def in_a_minute(self, flow: Flow) -> int:
        """How much happened in the last minute."""
        return sum(self.counts[flow * SLOTS : (flow + 1) * SLOTS])

    def rates(self, flow: Flow, uptime: float) -> Rates:
        """The averages of a flow: from whole slots and minutes up to now, and not back before the start.

        Args:
            uptime: seconds since the program began, in the slot up to which the ring is written.
        """
        in_slot, in_minute = uptime % SLOT_SECONDS, uptime % (SLOT_SECONDS * SLOTS)
        slots = self.slots(flow)
        is_first = self.slot == 0
        hour = self.counts[_COARSE_AT + flow * MINUTES : _COARSE_AT + (flow + 1) * MINUTES]
        return Rates(
            slots[-1] / max(in_slot, 1.0) if is_first else slots[-2] / SLOT_SECONDS,
            sum(slots) / max(min((SLOTS - 1) * SLOT_SECONDS + in_slot, uptime), 1.0),
            sum(hour) / max(min((MINUTES - 1) * 60 + in_minute, uptime), 1.0),
        )

    def messages(self, now: int) -> list[int]:
        """How many messages there were at the end of each of the last hour's minutes, reckoned back from `now`."""
        flows = [self.minutes(flow) for flow in (*_ADDS, *_TAKES)]
        found, there = [], now
        for *added, acknowledged, expired, died, left in reversed(list(zip(*flows, strict=True))):
            found.append(max(there, 0))
            there -= sum(added) - acknowledged - expired - died - left
        return found[::-1]
