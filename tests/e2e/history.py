"""What clients saw of a queue, and whether mq kept its promises. Pure: events in, verdict out.

A client notes an event when it has the answer, with the instants at which it asked and was answered, all of one clock.
What happened between two clients is judged only where their instants leave no doubt.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple


class Published(NamedTuple):
    """A publish. Without an id its answer never came: the message may be there or not."""

    digest: str
    id: str | None
    asked: float
    answered: float


class Delivered(NamedTuple):
    """A fetch that brought a whole body."""

    id: str
    digest: str
    asked: float
    answered: float


class Removed(NamedTuple):
    """A removal. Without `known` the answer was that there is no such message; without an answer both are possible."""

    id: str
    known: bool | None
    asked: float
    answered: float


Event = Published | Delivered | Removed


class Verdict(NamedTuple):
    """What is wrong, one line each, and what may be but is worth knowing.

    Attributes:
        missing: acknowledged, and never delivered (P1).
        damaged: delivered with another body than was published under its id (P2).
        invented: delivered, though nobody published it (P3).
        resurrected: delivered to somebody who asked after its removal was acknowledged (P5).
        overlapping: delivered while an earlier lease was running (P6); no fault where there are peers.
        vanished: a removal said "not there", though nobody had tried to remove it.
        twice: messages that are another one's double, because its publisher was left without an answer.
        again: deliveries after the first one of their message.
    """

    missing: list[str]
    damaged: list[str]
    invented: list[str]
    resurrected: list[str]
    overlapping: list[str]
    vanished: list[str]
    left: list[str]
    messages: int
    twice: int
    again: int
    unanswered: int

    def faults(self, *, peers: int) -> list[str]:
        """Every promise that was broken, with up to three examples."""
        kinds = ["missing", "damaged", "invented", "resurrected", "vanished", "left"]
        if not peers:
            kinds.append("overlapping")
        found = {kind: getattr(self, kind) for kind in kinds}
        return [f"{len(lines)} {kind}: {'; '.join(lines[:3])}" for kind, lines in found.items() if lines]

    def summary(self) -> str:
        """One line of what was not wrong."""
        return (
            f"{self.messages} messages delivered; {self.unanswered} publishes without an answer left "
            f"{self.twice} doubles; {self.again} deliveries were repeated, {len(self.overlapping)} during a lease"
        )


def judge(events: Iterable[Event], lease_seconds: float) -> Verdict:
    """The verdict on a history that has ended with an empty queue.

    Args:
        events: in any order.
        lease_seconds: how long nobody else gets a message that was handed out.
    """
    published: list[Published] = []
    delivered: dict[str, list[Delivered]] = defaultdict(list)
    removed: dict[str, list[Removed]] = defaultdict(list)
    for event in events:
        if isinstance(event, Published):
            published.append(event)
        elif isinstance(event, Delivered):
            delivered[event.id].append(event)
        else:
            removed[event.id].append(event)
    for deliveries in delivered.values():
        deliveries.sort(key=lambda delivery: delivery.asked)
    promised = {event.id: event.digest for event in published if event.id is not None}
    damaged, invented, twice = _compare(promised, published, delivered)
    return Verdict(
        missing=[f"{id} with {digest:.12}" for id, digest in promised.items() if id not in delivered],
        damaged=damaged,
        invented=invented,
        resurrected=[line for id in delivered for line in _resurrected(delivered[id], removed[id])],
        overlapping=[line for id in delivered for line in _overlapping(delivered[id], lease_seconds)],
        vanished=[line for id in list(removed) for line in _vanished(removed[id])],
        left=[id for id in delivered if not any(removal.known is not None for removal in removed[id])],
        messages=len(delivered),
        twice=twice,
        again=sum(len(deliveries) - 1 for deliveries in delivered.values()),
        unanswered=sum(event.id is None for event in published),
    )


def _compare(
    promised: dict[str, str], published: list[Published], delivered: dict[str, list[Delivered]]
) -> tuple[list[str], list[str], int]:
    """Every delivered body against what was published: under its id, or, that not being known, without an answer."""
    unanswered = Counter(event.digest for event in published if event.id is None)
    damaged, invented = [], []
    twice = 0
    for id, deliveries in delivered.items():
        digests = {delivery.digest for delivery in deliveries}
        if id in promised:
            damaged += [f"{id} with {digest:.12}" for digest in digests - {promised[id]}]
            continue
        digest = min(digests)
        if len(digests) > 1 or not unanswered[digest]:
            invented.append(f"{id} with {', '.join(f'{each:.12}' for each in digests)}")
        else:
            unanswered[digest] -= 1
            twice += 1
    return damaged, invented, twice


def _resurrected(deliveries: list[Delivered], removals: list[Removed]) -> list[str]:
    ends = [removal.answered for removal in removals if removal.known is not None]
    if not ends:
        return []
    end = min(ends)
    late = [delivery for delivery in deliveries if delivery.asked > end]
    return [f"{each.id}, asked for {each.asked - end:.3f} s after its removal was answered" for each in late]


def _overlapping(deliveries: list[Delivered], lease_seconds: float) -> list[str]:
    """A lease begins after its fetch was asked for: whoever is answered within its length of that got in between."""
    found = []
    for earlier, later in itertools.pairwise(deliveries):
        apart = later.answered - earlier.asked
        if apart < lease_seconds:
            found.append(f"{later.id}, {apart:.3f} s after a fetch that got it for {lease_seconds} s")
    return found


def _vanished(removals: list[Removed]) -> list[str]:
    """Somebody else must have asked for the removal before, or at the same time."""
    found = []
    for removal in removals:
        others = [other for other in removals if other is not removal and other.known is not False]
        if removal.known is False and not any(other.asked < removal.answered for other in others):
            found.append(f"{removal.id}, which nobody had removed")
    return found
