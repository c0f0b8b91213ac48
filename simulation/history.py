"""The record of clients' requests and answers, and the promises P1 to P7 checked against it.

The checks know only what a client can know, and the transitions that the broker reports. Times are Trio's, in seconds,
and go on over restarts.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mq.lifecycle import TRANSITIONS, Kind, Transition
from mq.message import MessageId


class Deletion(NamedTuple):
    """A queue was deleted, or a client tried to.

    Attributes:
        done: when it was acknowledged; None when it was not.
    """

    begun: float
    done: float | None


class Whereabouts(enum.Enum):
    """What must be true of a message now."""

    PRESENT = "present"
    GONE = "gone"
    EITHER = "either"


class _Sent:
    __slots__ = ("body", "done", "id", "queue", "removed", "removing", "sent")

    def __init__(self, queue: str, body: bytes, sent: float) -> None:
        self.queue = queue
        self.body = body
        self.sent = sent
        self.done: float | None = None
        self.id: MessageId | None = None
        self.removing = False
        self.removed: float | None = None


class History:
    """The record of one simulated run, over all its restarts.

    Args:
        ordered: whether messages must come in order (no peers).
    """

    def __init__(self, now: Callable[[], float], lease_seconds: float, *, ordered: bool) -> None:
        self.violations: list[str] = []
        self.deliveries = 0
        self.in_order = ordered
        self.told_removed: list[tuple[str, MessageId]] = []
        self._now = now
        self._lease_seconds = lease_seconds
        self._sent: dict[bytes, _Sent] = {}
        self._by_id: dict[MessageId, _Sent] = {}
        self._deletions: dict[str, list[Deletion]] = {}
        self._queues: dict[str, bool | None] = {}
        self._leased_until: dict[MessageId, float] = {}
        self._held_until: dict[MessageId, float] = {}
        self._requeued_by_hand: set[MessageId] = set()
        self._never_leased: dict[MessageId, _Sent] = {}

    # What clients do

    def sending(self, queue: str, body: bytes) -> None:
        """Note that a publish begins; `body` is like no other."""
        self._sent[body] = _Sent(queue, body, self._now())

    def published(self, body: bytes, id: MessageId) -> None:
        """Note that a publish was acknowledged."""
        sent = self._sent[body]
        if id in self._by_id and self._by_id[id] is not sent:
            self._violate(f"P3: id {id} was given to two messages")
        sent.id, sent.done = id, self._now()
        self._by_id[id] = sent
        if id not in self._leased_until and self._fate(sent, self._now()) is Whereabouts.PRESENT:
            self._never_leased[id] = sent

    def fetched(self, queue: str, id: MessageId, body: bytes, asked: float) -> None:
        """Note that a fetch, asked for at `asked`, gave this."""
        self.deliveries += 1
        sent = self._sent.get(body)
        if sent is None:
            self._violate(f"P2/P3: {id} came with {len(body)} bytes that nobody published: {body[:40]!r}")
            return
        if sent.queue != queue:
            self._violate(f"P3: {id} of {sent.queue} came out of {queue}")
        if sent.id is None:  # its publish was never acknowledged: now its id is known
            sent.id, self._by_id[id] = id, sent
        elif sent.id != id:
            self._violate(f"P3: one message came as {sent.id} and as {id}")
        if self._fate(sent, asked) is Whereabouts.GONE:
            self._violate(f"P5: {id} came back after its removal was acknowledged")
        self._held_until[id] = self._leased_until.get(id, self._now())

    def removing(self, id: MessageId) -> None:
        """Note that a removal begins."""
        sent = self._by_id.get(id)
        if sent is None:  # it was handed out against a promise already
            return
        sent.removing = True
        self._held_until.pop(id, None)
        self._never_leased.pop(id, None)

    def removed(self, id: MessageId) -> None:
        """Note that a removal was acknowledged."""
        if id in self._by_id:
            self._by_id[id].removed = self._now()

    def requeueing(self, id: MessageId) -> None:
        """Note that a lease is given up, perhaps by one whose lease has run out and is another's now."""
        self._held_until.pop(id, None)
        self._requeued_by_hand.add(id)

    def queue_making(self, queue: str) -> None:
        """Note that a queue's creation begins."""
        self._queues[queue] = None

    def queue_made(self, queue: str) -> None:
        """Note that the making of a queue was acknowledged."""
        self._queues[queue] = True

    def queue_deleting(self, queue: str) -> int:
        """Note that a queue's deletion begins; give the result to :meth:`queue_deleted`."""
        self._queues[queue] = None
        self._deletions.setdefault(queue, []).append(Deletion(self._now(), None))
        self._never_leased = {id: sent for id, sent in self._never_leased.items() if sent.queue != queue}
        self._held_until = {id: at for id, at in self._held_until.items() if self._by_id[id].queue != queue}
        return len(self._deletions[queue]) - 1

    def queue_deleted(self, queue: str, number: int) -> None:
        """Note that the deletion of a queue was acknowledged."""
        self._deletions[queue][number] = self._deletions[queue][number]._replace(done=self._now())
        self._queues[queue] = False

    def cut_off(self) -> None:
        """Note that the brokers ended in the middle of what they did: a lease that no client was told of may stand."""
        self._never_leased.clear()

    def leases_end(self) -> None:
        """Note that the clock was set ahead while no broker served the store: leases end by it."""
        self._held_until.clear()

    # What the broker says

    def saw(self, transitions: Sequence[Transition]) -> None:
        """As :meth:`mq.lifecycle.Observer.saw`."""
        for transition in transitions:
            if (transition.source, transition.target) not in TRANSITIONS[transition.kind]:
                self._violate(f"not a legal transition: {transition}")
            if transition.kind is Kind.LEASE:
                self._lease(transition.id)
            elif transition.kind is Kind.REQUEUE:
                self._requeue(transition.id)
            elif transition.kind is Kind.REMOVE:
                self.told_removed.append((transition.queue, transition.id))

    def _lease(self, id: MessageId) -> None:
        now = self._now()
        if now < self._held_until.get(id, now):
            self._violate(f"P6: {id} is leased again {self._held_until[id] - now:.3f} s before its lease ends")
        self._leased_until[id] = now + self._lease_seconds
        sent = self._never_leased.pop(id, None)
        if sent is not None and self.in_order:
            older = [other.id for other in self._never_leased.values() if _before(other, sent)]
            if older:
                self._violate(f"order: {id} is leased before {older[0]}, which was published earlier")

    def _requeue(self, id: MessageId) -> None:
        now = self._now()
        if id in self._requeued_by_hand:
            self._held_until.pop(id, None)
            self._leased_until[id] = now  # the client of this lease may not have been told of it yet
        if now < self._held_until.get(id, now):
            self._violate(f"P6: {id} is requeued {self._held_until[id] - now:.3f} s before its lease ends")

    # What must be true in the end

    def missing(self) -> list[tuple[str, MessageId]]:
        """Messages that must exist now. Note the removal of every fetched message first."""
        now = self._now()
        return [
            (sent.queue, id) for id, sent in sorted(self._by_id.items()) if self._fate(sent, now) is Whereabouts.PRESENT
        ]

    def queue_is(self, queue: str, there: bool) -> None:
        """Check that a queue may exist, or may be missing, as it was found."""
        expected = self._queues.get(queue, False)
        if expected is not None and expected is not there:
            self._violate(f"P1: queue {queue} is {'there' if there else 'not there'}, against what was acknowledged")

    def violate(self, text: str) -> None:
        """Note another broken promise."""
        self._violate(text)

    def _fate(self, sent: _Sent, asked: float) -> Whereabouts:
        deletions = self._deletions.get(sent.queue, [])
        if sent.removed is not None and sent.removed < asked:
            return Whereabouts.GONE
        for deletion in deletions:
            acknowledged_before = (
                sent.done is not None and sent.done < deletion.begun
            )  # at one instant their order is unknown
            if deletion.done is not None and deletion.done < asked and acknowledged_before:
                return Whereabouts.GONE
        if sent.removing or sent.done is None:
            return Whereabouts.EITHER
        overlapping = any(deletion.done is None or deletion.done >= sent.sent for deletion in deletions)
        return Whereabouts.EITHER if overlapping else Whereabouts.PRESENT

    def _violate(self, text: str) -> None:
        self.violations.append(f"{self._now():.3f} s: {text}")


def _before(one: _Sent, other: _Sent) -> bool:
    """Whether one was acknowledged before the other's publish began."""
    return one.queue == other.queue and one.done is not None and one.done < other.sent
