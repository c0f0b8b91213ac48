"""Users of a simulated broker: they wait, publish in batches, with keys, delays and times to live, change what is
delayed, and vanish.

They speak to the broker itself, as a program that embeds it. :mod:`simulation.expected` checks what they see.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any, Final

import trio

from mq.broker import Broker, Draft, Published, Removal
from mq.broker.peek import DELAYED
from mq.errors import MQError, NoSuchMessage, NotLeased
from mq.message import Message
from simulation.clients import PATIENCE_SECONDS
from simulation.expected import DEAD, LIMITED, MAX_MESSAGES, MAX_RECEIVES, UNIQUE, WORK, Expected, SeenDelivery, Sent
from simulation.history import History

_SETTINGS: Final[dict[str, dict[str, Any]]] = {
    DEAD: {},
    WORK: {"max_receives": MAX_RECEIVES, "dead_letter_queue": DEAD},
    UNIQUE: {"unique": True},
    LIMITED: {"max_messages": MAX_MESSAGES},
}
_ALONE: Final = frozenset({UNIQUE, LIMITED})
"""Queues with promises that hold only where no other broker works on the store."""
_LATER_SECONDS: Final = (3.0, 60.0, 47_000.0, 260_000.0)
"""Delays: two that have a timer, and two that the calendar keeps."""
_WINDOW_SECONDS: Final = 40_000.0
"""How long a queue certainly knows its keys, even when the clock is set."""


class Users:
    """Several users at work on one or more brokers.

    Args:
        purges: whether they purge queues now and then, and extend most of their leases.
        reschedules: whether they delay messages for days, too, and change when delayed ones come, or cancel them.
    """

    def __init__(
        self,
        brokers: list[Broker],
        expected: Expected,
        history: History,
        random: Random,
        note: Callable[[str], None],
        lease_seconds: float,
        *,
        purges: bool = False,
        reschedules: bool = False,
    ) -> None:
        self._brokers = brokers
        self._expected = expected
        self._history = history
        self._random = random
        self._note = note
        self._lease_seconds = lease_seconds
        self._purges = purges
        self._reschedules = reschedules
        self._changing: set[str] = set()
        self._held: list[SeenDelivery] = []
        self._queues = [queue for queue in _SETTINGS if len(brokers) == 1 or queue not in _ALONE]

    async def run(self, count: int, pairs: int) -> None:
        """Let so many users work, and so many pairs of a publisher and a consumer, until each has done what it
        wanted."""
        for queue in self._queues:
            if not await self._make(queue):
                return
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(self._work, self._random.randint(5, 40))
            for _ in range(pairs):
                nursery.start_soon(self._consume, self._random.randint(5, 40))
                nursery.start_soon(self._produce, self._random.randint(5, 40))

    async def drain(self) -> None:
        """Take out and remove every message, until none comes any more."""
        for queue in sorted(_SETTINGS, key=lambda queue: queue == DEAD):  # the dead last: they come from another
            if await self._brokers[0].has_queue(queue):
                if self._reschedules and queue == WORK:
                    await self._hurry()
                while await self._fetch(queue, patient=True):
                    while self._held:
                        await self._remove(self._held.pop(), patient=True)

    async def _make(self, queue: str) -> bool:
        """Whether the queue is there, and has the settings that it was once said to have."""
        broker = self._random.choice(self._brokers)
        wanted = _SETTINGS[queue]
        if queue in self._expected.settings:
            status = await self.ask(f"status {queue}", lambda: broker.status(queue))
            kept = None if status is None else {name: status.settings.values()[name] for name in wanted}
            if kept not in (None, wanted):
                self._history.violate(f"P1: the settings of {queue} are {kept}")
            return status is not None
        made = await self.ask(f"make {queue}", lambda: broker.create_queue(queue))
        changed = made is not None and await self.ask(f"set {queue}", lambda: broker.change_settings(queue, wanted))
        if changed:
            self._expected.settings[queue] = dict(wanted)
        return bool(changed)

    async def _work(self, steps: int) -> None:
        odds = {
            self._publish: 5,
            self._publish_again: 2,
            self._fetch_some: 6,
            self._remove_one: 4,
            self._extend: 6 if self._purges else 1,
            self._requeue: 1,
            **({self._purge: 1} if self._purges else {}),
            **({self._publish_for_later: 3, self._reschedule: 5, self._cancel: 1} if self._reschedules else {}),
        }
        for _ in range(steps):
            [action] = self._random.choices(list(odds), list(odds.values()))
            await action()
            await trio.sleep(self._random.choice((0.0, 0.0, 0.1, self._lease_seconds / 3)))

    async def _consume(self, rounds: int) -> None:
        """Wait for messages and remove most of them at once, so that there is none and the next is waited for."""
        for _ in range(rounds):
            await self._fetch(LIMITED, wait=self._random.choice((0.3, 5.0)))
            if self._random.random() < 0.9:
                await self._remove_one()

    async def _produce(self, rounds: int) -> None:
        """Publish one message now and then, or several."""
        for _ in range(rounds):
            count = self._random.choice((1, 2, 4))
            bodies = [f"{self._random.getrandbits(64):016x}".encode() for _ in range(count)]
            await self._send([self._expected.sending(LIMITED, body, None) for body in bodies])
            await trio.sleep(self._random.choice((0.0, 0.1, 1.0)))

    # Publishing

    async def _publish(self) -> None:
        """Publish several messages at a time, of all kinds."""
        queue = self._random.choice(self._queues)
        if queue == UNIQUE:
            await self._publish_unique()
        elif queue != DEAD:
            await self._send([self._new(queue) for _ in range(self._random.choice((1, 1, 3, 12)))])

    def _new(self, queue: str) -> Sent:
        random = self._random
        body = f"{random.getrandbits(64):016x}".encode()
        key = f"{random.getrandbits(32):08x}" if len(self._brokers) == 1 and random.random() < 0.4 else None
        if queue != WORK:
            return self._expected.sending(queue, body, key)
        return self._expected.sending(
            queue,
            body,
            key,
            delay=random.choice((0.0, 0.0, 0.0, 0.2, 3.0)),
            ttl=random.choice((None, None, None, 0.1, 2.0, 40.0)),
        )

    async def _publish_again(self) -> None:
        """Publish again with the same key: there was no answer, or it was lost on the way."""
        keyed = [sent for sent in self._expected.sent if sent.key is not None]
        if keyed and len(self._brokers) == 1:
            await self._send([self._random.choice(keyed[-10:])] * self._random.choice((1, 2)))

    async def publish_all_again(self) -> None:
        """Publish again everything that was stored with a key a short while ago: nothing is stored, even where the
        message is gone."""
        for sent in self._expected.sent:
            if sent.key is not None and sent.is_stored and trio.current_time() < sent.not_before + _WINDOW_SECONDS:
                await self._send([sent])

    async def _send(self, sent: list[Sent]) -> None:
        now = trio.current_time()
        drafts = [Draft(each.body, {}, max(0.0, each.not_before - now), each.ttl, each.key) for each in sent]
        broker, queue = self._random.choice(self._brokers), sent[0].queue
        outcomes = await self.ask(f"publish {len(sent)}", lambda: broker.publish_many(queue, drafts))
        for each, outcome in zip(sent, outcomes or [], strict=False):
            if isinstance(outcome, Published):
                self._expected.stored(each, outcome.id)

    async def _publish_unique(self) -> None:
        bodies = [b"%d" % self._random.randrange(4) for _ in range(self._random.choice((1, 3)))]
        broker = self._random.choice(self._brokers)
        drafts = [Draft(body) for body in bodies]
        outcomes = await self.ask("publish unique", lambda: broker.publish_many(UNIQUE, drafts))
        for body, outcome in zip(bodies, outcomes or [], strict=False):
            if isinstance(outcome, Published):
                self._expected.found(body, outcome.id)

    # Consuming

    async def _fetch_some(self) -> None:
        await self._fetch(self._random.choice(self._queues))

    async def _fetch(self, queue: str, *, wait: float | None = None, patient: bool = False) -> bool:
        random = self._random
        broker, most = random.choice(self._brokers), random.choice((1, 1, 4))
        if wait is None:
            wait = float(queue == DEAD) if patient else random.choice((0.0, 0.0, 0.3, 5.0, self._lease_seconds))
        visibility = random.choice((None, None, 0.2, 2 * self._lease_seconds))
        asked, steady_asked = trio.current_time(), self._expected.steady()
        messages = await self.ask(
            f"fetch {queue}",
            lambda: broker.fetch_many(queue, most, wait=wait, visibility=visibility),
            patient=patient,
            longest=wait + PATIENCE_SECONDS,
        )
        for message in messages or []:
            await self._take(queue, message, asked, steady_asked, visibility)
        return bool(messages)

    async def _take(
        self, queue: str, message: Message, asked: float, steady_asked: float | None, visibility: float | None
    ) -> None:
        body = await message.body.read()
        await message.body.aclose()
        delivery = self._expected.fetched(queue, message, body, asked, steady_asked)
        if delivery is not None:
            self._expected.holding(delivery, asked, self._lease_seconds if visibility is None else visibility)
            self._held.append(delivery)

    def _pick(self) -> SeenDelivery | None:
        return self._held.pop(self._random.randrange(len(self._held))) if self._held else None

    async def _remove_one(self) -> None:
        """Remove a message, perhaps long after the lease has ended."""
        delivery = self._pick()
        if delivery is not None:
            await self._remove(delivery)

    async def _remove(self, delivery: SeenDelivery, *, patient: bool = False) -> None:
        broker, message = self._random.choice(self._brokers), delivery.message
        is_late = self._expected.removing(delivery)
        outcome = await self.ask(
            "remove",
            lambda: broker.remove_many(delivery.queue, [Removal(message.id, message.receipt)]),
            patient=patient,
        )
        if outcome == [None]:
            self._expected.removed(delivery, is_late=is_late)

    async def _extend(self) -> None:
        delivery = self._pick()
        if delivery is None:
            return
        broker, message = self._random.choice(self._brokers), delivery.message
        longest = (60.0,) if self._purges else ()  # it lasts over a cut, and what there was before does not
        seconds, begun = self._random.choice((0.1, 7.0, self._lease_seconds, *longest)), trio.current_time()
        self._expected.letting_go(delivery)

        async def extend() -> bool:
            await broker.extend(delivery.queue, message.id, seconds, receipt=message.receipt)
            return True

        if await self.ask("extend", extend):
            self._expected.holding(delivery, begun, seconds)
        self._held.append(delivery)

    async def _purge(self) -> None:
        """Purge a queue."""
        queue = self._random.choice(self._queues)
        if queue == DEAD:  # those of another queue are there, too: it would be unknown of which it is true
            return
        broker, held, before = (
            self._random.choice(self._brokers),
            self._expected.held(),
            len(self._history.told_removed),
        )
        self._expected.purging(queue, held)  # what is published meanwhile may have room by it before it is answered
        try:
            count = await self.ask(f"purge {queue}", lambda: broker.purge(queue))
        finally:
            self._expected.purging(queue, held)
        if count is not None:
            told = self._history.told_removed[before:]
            self._expected.purged(queue, [id for where, id in told if where == queue], count)

    async def _requeue(self) -> None:
        delivery = self._pick()
        if delivery is not None:
            broker, message = self._random.choice(self._brokers), delivery.message
            self._expected.letting_go(delivery)
            await self.ask("requeue", lambda: broker.requeue(delivery.queue, message.id, receipt=message.receipt))

    # Later

    async def _publish_for_later(self) -> None:
        body = f"{self._random.getrandbits(64):016x}".encode()
        await self._send([self._expected.sending(WORK, body, None, delay=self._random.choice(_LATER_SECONDS))])

    async def _reschedule(self) -> None:
        sent = self._waiting()
        if sent is None or sent.id is None:
            return
        broker, id, begun = self._random.choice(self._brokers), sent.id, trio.current_time()
        delay = self._random.choice((0.0, 0.2, *_LATER_SECONDS))
        self._changing.add(id)
        sent.not_before = min(sent.not_before, begun + delay)

        async def reschedule() -> bool:
            await broker.reschedule(WORK, id, delay=delay)
            return True

        if await self.ask(f"reschedule to {delay:.1f}", reschedule):
            sent.not_before = begun + delay
            self._changing.discard(id)  # one that was not answered may still be changed: no other user tries

    async def _cancel(self) -> None:
        sent = self._waiting()
        if sent is None or sent.id is None:
            return
        broker, id = self._random.choice(self._brokers), sent.id
        sent.may_be_gone = True

        async def remove() -> bool:
            await broker.remove(WORK, id)
            return True

        if await self.ask("cancel", remove):
            sent.is_gone = trio.current_time()

    def _waiting(self) -> Sent | None:
        """A message that is delayed, as far as its publisher knows, while no other user changes it."""
        now = trio.current_time()
        waiting = [
            sent
            for sent in self._expected.sent
            if sent.queue == WORK and sent.is_stored and sent.not_before > now and sent.id not in self._changing
            if not sent.may_be_gone
        ]
        return self._random.choice(waiting) if waiting else None

    async def _hurry(self) -> None:
        """Make every delayed message come now."""
        broker = self._brokers[0]
        for sent in self._expected.sent:
            sent.not_before = min(sent.not_before, trio.current_time())
        while seen := await broker.peek(WORK, state=DELAYED):
            for each in seen:
                await each.message.body.aclose()
                with suppress(NotLeased, NoSuchMessage):  # it has come just now
                    await broker.reschedule(WORK, each.message.id)

    async def ask(
        self,
        what: str,
        call: Callable[[], Awaitable[Any]],
        *,
        patient: bool = False,
        longest: float = PATIENCE_SECONDS,
    ) -> Any:
        """The answer, or None when it was refused, or when this user did not wait for it."""
        answer: Any = None
        with trio.move_on_after(longest) as stuck, trio.move_on_after(math.inf if patient else self._patience()):
            try:
                answer = await call()
            except MQError as error:
                self._note(f"{what}: {error}")
        if stuck.cancelled_caught:
            self._history.violate(f"P9: {what} was not answered in {longest:.0f} s")
        self._note(f"{what} -> {'nothing' if answer is None else 'answered'}")
        return answer

    def _patience(self) -> float:
        """After how long this user vanishes: mostly never."""
        return self._random.choice((0.0, 0.001, 0.1, 1.0)) if self._random.random() < 0.1 else math.inf
