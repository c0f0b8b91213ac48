"""Users' expectations of a queue, checked against the requests of clients and their answers.

For queues that are never deleted. Times are Trio's, in seconds, and go on over restarts. A message must not expire
before its time to live has elapsed, whatever the wall clock shows; it must be gone by the broker's steady time, which
may be behind. The checks know only what clients can know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from mq.message import Message
from simulation.history import History

WORK: Final = "w"
"""A queue whose messages die after some receives, or when they expire."""
DEAD: Final = "x"
"""Where they go then."""
UNIQUE: Final = "u"
LIMITED: Final = "l"
MAX_RECEIVES: Final = 3
MAX_MESSAGES: Final = 5
_TOLERANCE_SECONDS: Final = 0.002


class Sent:
    """A message, as its publisher knows it.

    Attributes:
        not_before: the earliest time at which it may be handed out.
        id: as it was told; None until then.
        expires: when it expires at the latest, by steady time, where that is known.
        is_stored: whether its publish was acknowledged.
        may_be_gone: whether a client tried to remove it.
        is_gone: when that was acknowledged.
    """

    def __init__(self, queue: str, body: bytes, key: str | None, not_before: float, ttl: float | None) -> None:
        self.queue = queue
        self.body = body
        self.key = key
        self.not_before = not_before
        self.ttl = ttl
        self.sent_at = 0.0
        self.id: str | None = None
        self.expires: float | None = None
        self.is_stored = False
        self.may_be_gone = False
        self.is_gone: float | None = None


class SeenDelivery:
    """A message that was handed out."""

    def __init__(self, sent: Sent, queue: str, message: Message, asked: float) -> None:
        self.sent = sent
        self.queue = queue
        self.message = message
        self.asked = asked


class Expected:
    """The record of one simulated run, over all its restarts.

    Args:
        steady: the steady time of a broker, in seconds; None while its clock is in doubt.
        ahead: by how much steady time may be ahead at the most, in seconds, as a wrong clock was believed at a start.
        scarce: whether handles can be scarce: then a history cannot always be read.

    Attributes:
        started_at: when the broker that gives steady time was started (Trio's clock).
    """

    def __init__(
        self,
        history: History,
        now: Callable[[], float],
        steady: Callable[[], float | None],
        ahead: Callable[[], float],
        *,
        scarce: bool,
    ) -> None:
        self._scarce = scarce
        self.started_at = 0.0
        self.sent: list[Sent] = []
        self.settings: dict[str, dict[str, object]] = {}
        self._history = history
        self._now = now
        self.steady = steady
        self._ahead = ahead
        self._by_body: dict[bytes, Sent] = {}
        self._by_id: dict[str, Sent] = {}
        self._held_until: dict[str, float] = {}
        self._holder: dict[str, str] = {}

    def sending(
        self, queue: str, body: bytes, key: str | None = None, delay: float = 0.0, ttl: float | None = None
    ) -> Sent:
        """Note that a publish begins."""
        sent = Sent(queue, body, key, self._now() + delay, ttl)
        sent.sent_at = self._now()
        self.sent.append(sent)
        if queue != UNIQUE:
            self._by_body[body] = sent
        return sent

    def stored(self, sent: Sent, id: str) -> None:
        """Note that a publish was acknowledged, perhaps once more."""
        self._learn(sent, id)
        sent.is_stored = True
        # Steady time may go back to the last record of it at a start, so that an earlier publish expires later.
        if sent.ttl is not None and sent.expires is None and sent.sent_at >= self.started_at:
            steady = self.steady()
            sent.expires = None if steady is None else steady + sent.ttl
        limited = [each for each in self.sent if each.queue == LIMITED and each.is_stored and not each.may_be_gone]
        if len(limited) > MAX_MESSAGES:
            self._history.violate(f"limit: {LIMITED} holds {len(limited)} messages, more than {MAX_MESSAGES}")

    def found(self, body: bytes, id: str) -> None:
        """Note that a publish into the unique queue was answered with a message that is there, or was stored."""
        before = [each for each in self.sent if each.body == body and each.id not in (None, id)]
        for other in before:
            if other.is_stored and not other.may_be_gone:
                self._history.violate(f"unique: {body!r} is there as {other.id}, and was stored as {id}")
        if id not in self._by_id:
            self.stored(self.sending(UNIQUE, body), id)

    def fetched(
        self, queue: str, message: Message, body: bytes, asked: float, steady_asked: float | None
    ) -> SeenDelivery | None:
        """Note that a fetch, asked for at `asked`, gave this. `steady_asked` is steady time then, if known."""
        sent = self._by_id.get(message.id) or self._by_body.get(body)
        if sent is None and queue == UNIQUE:
            sent = self.sending(UNIQUE, body)
        if sent is None or sent.body != body:
            self._history.violate(f"P2/P3: {message.id} of {queue} came with bytes that nobody published")
            return None
        self._learn(sent, message.id)
        delivery = SeenDelivery(sent, queue, message, asked)
        self._check_times(delivery, steady_asked)
        self._check_place(delivery)
        self._held_until.pop(message.id, None)
        self._holder[message.id] = message.receipt
        return delivery

    def holding(self, delivery: SeenDelivery, begun: float, seconds: float) -> None:
        """Note that a delivery is held for so long, from `begun` on at the earliest."""
        self._held_until[delivery.message.id] = begun + seconds

    def leases_end(self) -> None:
        """Note that the clock was set ahead while no broker served the store: leases, delays and key windows end by
        it."""
        self._held_until.clear()
        for sent in self.sent:
            sent.not_before, sent.key = 0.0, None

    def letting_go(self, delivery: SeenDelivery) -> None:
        """Note that its lease is about to be changed by its holder, or by one whose lease is over."""
        if self._holder.get(delivery.message.id) == delivery.message.receipt:
            self._held_until.pop(delivery.message.id, None)

    def removing(self, delivery: SeenDelivery) -> bool:
        """Note that a removal by receipt begins; whether another delivery of the message is known."""
        is_late = self._holder.get(delivery.message.id) != delivery.message.receipt
        if not is_late:
            delivery.sent.may_be_gone = True
            self.letting_go(delivery)
        return is_late

    def removed(self, delivery: SeenDelivery, *, is_late: bool) -> None:
        """Note that a removal was acknowledged."""
        delivery.sent.may_be_gone = True
        delivery.sent.is_gone = self._now()
        if is_late:
            self._history.violate(f"receipt: {delivery.message.id} was removed by one whose lease was over")

    def held(self) -> frozenset[str]:
        """The messages whose leases run now for certain."""
        return frozenset(id for id, until in self._held_until.items() if until > self._now())

    def purging(self, queue: str, held: frozenset[str]) -> None:
        """Note a purge, answered or not: of that queue only messages that were `held` before, and still are, must
        exist."""
        still = held & self.held()
        for sent in self.sent:
            sent.may_be_gone = sent.may_be_gone or (sent.queue == queue and sent.id not in still)

    def purged(self, queue: str, ids: Sequence[str], count: int) -> None:
        """Note that a purge was answered with `count`; meanwhile the removal of these was reported."""
        if len(ids) < count:
            self._history.violate(f"purge: {count} messages of {queue} are said to be gone, and {len(ids)} are")
        for id in ids:
            sent = self._by_id.get(id)
            if sent is not None and sent.is_gone is None:
                sent.is_gone = self._now()

    def missing(self) -> list[tuple[str, str]]:
        """Messages that must exist now, here or among the dead letters."""
        return [(sent.queue, sent.id or "") for sent in self.sent if sent.is_stored and not sent.may_be_gone]

    def check_lost(self) -> None:
        """Check that nothing is missing, once every message was taken out and its removal noted."""
        for queue, id in self.missing():
            self._history.violate(f"P1: {id} of {queue} was acknowledged and is in no queue")

    def _learn(self, sent: Sent, id: str) -> None:
        if sent.id is None and id not in self._by_id:
            sent.id, self._by_id[id] = id, sent
        elif sent.id != id:
            self._history.violate(f"key: {sent.body!r} with the key {sent.key} was stored as {sent.id} and as {id}")

    def _check_times(self, delivery: SeenDelivery, steady_asked: float | None) -> None:
        id, sent, now = delivery.message.id, delivery.sent, self._now()
        if sent.is_gone is not None and sent.is_gone < delivery.asked:
            self._history.violate(f"P5: {id} came back after its removal was acknowledged")
        if now < self._held_until.get(id, now) - _TOLERANCE_SECONDS:
            self._history.violate(f"P6: {id} is handed out {self._held_until[id] - now:.3f} s before its lease ends")
        if delivery.queue != DEAD and now < sent.not_before - _TOLERANCE_SECONDS:
            self._history.violate(f"delay: {id} came {sent.not_before - now:.3f} s too early")
        # A fetch waits, and is leased before it is answered: what counts is when it was asked for.
        if steady_asked is not None and sent.expires is not None and delivery.queue != DEAD:
            over = steady_asked - sent.expires
            if over > _TOLERANCE_SECONDS:
                self._history.violate(f"ttl: {id} was handed out {over:.3f} s after it had expired")

    def _check_place(self, delivery: SeenDelivery) -> None:
        message, sent = delivery.message, delivery.sent
        if delivery.queue not in (sent.queue, DEAD if sent.queue == WORK else sent.queue):
            self._history.violate(f"P3: {message.id} of {sent.queue} came out of {delivery.queue}")
        if delivery.queue == WORK and message.receives > MAX_RECEIVES:
            self._history.violate(f"deaths: {message.id} was received {message.receives} times, and is not dead")
        told = [(death["queue"], death["reason"]) for death in message.dead_letter_history]
        known = [[(WORK, "receives")], [(WORK, "expired")], *([[]] if self._scarce else [])]
        if delivery.queue == DEAD and told not in known:
            self._history.violate(f"deaths: {message.id} is dead and tells {told}")
        if delivery.queue == DEAD and told == [(WORK, "expired")]:
            early = sent.sent_at + (sent.ttl or math.inf) - self._ahead() - self._now()
            if early > _TOLERANCE_SECONDS:
                self._history.violate(f"ttl: {message.id} has expired {early:.3f} s too early")
        if delivery.queue != DEAD and told:
            self._history.violate(f"deaths: {message.id} is not dead and tells {told}")
