"""Claimants of a simulated broker: they take batches, read them again, acknowledge them, and shut each other out.

Each consumer keeps the answers that it got, as a stream processor keeps its checkpoint, over all lives of the broker.
Others fetch from the same queue in the plain way. The checks here know only what clients can know.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple, Protocol

import trio

from mq.broker import Broker, Draft, Published, Removal
from mq.broker.batch_consumers import ConsumerPosition
from mq.broker.config import MARGIN_SECONDS
from mq.errors import CorruptMessage
from simulation.history import History

QUEUE: Final = "b"
DEAD: Final = "b.dead"
"""The dead-letter queue of the consumers' queue."""
CONSUMERS: Final = ("s", "t")
_TOLERANCE_SECONDS: Final = 0.002
_RENEWED: Final = 0.75
"""A lease that is asked for again may end earlier than a new one: docs/http.md."""
_LATE_SHARE: Final = 0.4
"""The share of acknowledgements that come when the leases end."""


class Ask(Protocol):
    """Calls a broker; None when it refused, or when the caller was gone."""

    async def __call__(self, what: str, call: Callable[[], Awaitable[Any]], *, patient: bool = False) -> Any:
        """The answer."""


class _Hold(NamedTuple):
    holder: str
    until: float


class _Checkpoint:
    """What one consumer knows.

    Attributes:
        confirmed: the last batch with an answered acknowledgement.
        asked: the last batch with an acknowledgement that was begun.
        planned: the messages of the batch after `confirmed`, once they were read.
        is_sure: whether it still has all of them: it may have lost some since, and have been told.
        ends: between when and when the leases of the claim end, if they are not renewed.
        epochs: all that were told, the latest last.
    """

    def __init__(self) -> None:
        self.confirmed = 0
        self.asked = 0
        self.planned: list[str] | None = None
        self.is_sure = True
        self.ends: tuple[float, float] | None = None
        self.epochs: list[int] = []


class ConsumerLedger:
    """The requests of claimants and their answers, over all lives."""

    def __init__(self, history: History, now: Callable[[], float]) -> None:
        self._history = history
        self._now = now
        self.checkpoints = {name: _Checkpoint() for name in CONSUMERS}
        self.is_made = False
        self._numbers = itertools.count()
        self._bodies: dict[bytes, str | None] = {}
        self._stored: set[str] = set()
        self._may_be_gone: set[str] = set()
        self._gone: dict[str, float] = {}
        self._holds: dict[str, _Hold] = {}

    def violate(self, text: str) -> None:
        """Note a broken promise."""
        self._history.violate(text)

    def sending(self) -> bytes:
        """Note that a body like no other is about to be published."""
        body = b"%d" % next(self._numbers)
        self._bodies[body] = None
        return body

    def stored(self, body: bytes, id: str) -> None:
        """Note that its publish was acknowledged."""
        self._learn(body, id)
        self._stored.add(id)

    def seen(self, holder: str, id: str, body: bytes, asked: float) -> None:
        """Note that a claimant was handed this, by a call that was begun at `asked`."""
        if body not in self._bodies:
            self.violate(f"P2/P3: {id} of {QUEUE} came with bytes that nobody published")
            return
        self._learn(body, id)
        if self._gone.get(id, asked) < asked:
            self.violate(f"P5: {id} came to {holder} after its batch was acknowledged")
        hold = self._holds.get(id)
        if hold is not None and hold.holder != holder and self._now() < hold.until - _TOLERANCE_SECONDS:
            self.violate(
                f"P6: {id} came to {holder} {hold.until - self._now():.3f} s before the lease of {hold.holder} ends"
            )

    def holding(self, holder: str, ids: list[str], until: float) -> None:
        """Note that a holder has these until then at least."""
        self._holds.update(dict.fromkeys(ids, _Hold(holder, until)))

    def leases_end(self) -> None:
        """Note that the clock was set ahead while no broker served the store: leases end by it."""
        self._holds.clear()

    def letting_go(self, holder: str, ids: list[str]) -> None:
        """Note that from now on it may have them, or not."""
        for id in ids:
            if id in self._holds and self._holds[id].holder == holder:
                del self._holds[id]

    def holds(self, holder: str, id: str) -> bool:
        """Whether a lease of it is running for certain."""
        hold = self._holds.get(id)
        return hold is not None and hold.holder == holder and self._now() < hold.until - _TOLERANCE_SECONDS

    def removing(self, ids: list[str]) -> None:
        """Note that these are about to be removed."""
        self._may_be_gone.update(ids)

    def removed(self, holder: str, ids: list[str]) -> None:
        """Note that these are gone for good."""
        self._gone |= dict.fromkeys(ids, self._now())
        self.letting_go(holder, ids)

    def missing(self) -> list[tuple[str, str]]:
        """Messages that must be there now: everyone that is taken out is to be noted first."""
        return [(QUEUE, id) for id in sorted(self._stored - self._may_be_gone)]

    def near_an_end(self, now: float, random: Random) -> float:
        """An instant, not before `now`, close to the ends of leases as the store's names have them."""
        ends = {hold.until + MARGIN_SECONDS for hold in self._holds.values()}
        near = random.choice(sorted(end for end in ends if end > now) or [now])
        return max(now, near + random.uniform(-0.2, 0.1))

    def may_be_gone(self, ids: list[str]) -> int:
        """How many of them were removed, or may have been."""
        return len(self._may_be_gone.intersection(ids))

    def check_lost(self) -> None:
        """Check that nothing is missing, once every message was taken out."""
        for queue, id in self.missing():
            self.violate(f"P1: {id} of {queue} was acknowledged and is not there")

    def _learn(self, body: bytes, id: str) -> None:
        known = self._bodies[body]
        self._bodies[body] = id
        if known not in (None, id):
            self.violate(f"P3: one message came as {known} and as {id}")


class Claimants:
    """Several consumers at work on one broker."""

    def __init__(self, broker: Broker, ledger: ConsumerLedger, ask: Ask, random: Random, lease_seconds: float) -> None:
        self._broker = broker
        self._ledger = ledger
        self._ask = ask
        self._random = random
        self._lease_seconds = lease_seconds

    async def run(self) -> None:
        """Let all of them work until each has done what it wanted."""
        if not self._ledger.is_made and not await self._make():
            return
        self._ledger.is_made = True
        for name in CONSUMERS:
            await self._look(name)
        async with trio.open_nursery() as nursery:
            for name in CONSUMERS:
                nursery.start_soon(self._work, name, self._random.randint(10, 40))
            nursery.start_soon(self._others, self._random.randint(5, 20))

    async def drain(self) -> None:
        """Take out every message. Call it while no other claimant works."""
        if not self._ledger.is_made:
            return
        for name in CONSUMERS:
            await self._start(name, patient=True)
            while await self._claim(name, patient=True):
                await self._acknowledge(name, patient=True)
        for queue in (QUEUE, DEAD):
            while await self._fetch(queue, patient=True, visibility=None):
                pass

    async def _make(self) -> bool:
        most = self._random.choice((None, None, 2, 5))
        settings = {"max_receives": most, "dead_letter_queue": DEAD}
        for queue in (DEAD, QUEUE):
            if not await self._ask(f"make {queue}", partial(self._broker.create_queue, queue)):
                return False
        return await self._ask(f"set {QUEUE}", lambda: self._broker.change_settings(QUEUE, settings)) is not None

    async def _work(self, name: str, steps: int) -> None:
        await trio.sleep(self._random.choice((0.0, 0.0, 3.0, self._lease_seconds)))
        await self._start(name)
        actions = (self._claim, self._read, self._acknowledge, self._start, self._haunt)
        for _ in range(steps):
            [action] = self._random.choices(actions, (5, 3, 4, 1, 1))
            await action(name)
            await trio.sleep(self._random.choice((0.0, 0.0, 0.1, self._lease_seconds / 3)))

    async def _others(self, steps: int) -> None:
        for _ in range(steps):
            if self._random.random() < 0.4:
                queue = self._random.choice((QUEUE, QUEUE, QUEUE, DEAD))
                await self._fetch(queue, patient=False, visibility=self._random.choice((0.2, self._lease_seconds)))
            await self._publish(self._random.choice((1, 4, 9)))
            await trio.sleep(self._random.choice((0.0, 0.1, self._lease_seconds / 3)))

    async def _publish(self, count: int) -> None:
        bodies = [self._ledger.sending() for _ in range(count)]
        drafts = [Draft(body) for body in bodies]
        outcomes = await self._ask("publish for batches", lambda: self._broker.publish_many(QUEUE, drafts))
        for body, outcome in zip(bodies, outcomes or [], strict=False):
            if isinstance(outcome, Published):
                self._ledger.stored(body, outcome.id)

    # Consumers

    async def _start(self, name: str, *, patient: bool = False) -> None:
        known = self._ledger.checkpoints[name]
        standing = await self._ask(f"start {name}", lambda: self._broker.claims.start(QUEUE, name), patient=patient)
        if standing is None:
            return
        if known.epochs and standing.epoch <= known.epochs[-1]:
            self._ledger.violate(f"epoch: {name} was told {standing.epoch} after {known.epochs[-1]}")
        known.epochs.append(standing.epoch)
        self._learn(name, standing)
        known.asked = known.confirmed

    async def _look(self, name: str) -> None:
        """Ask for the consumer's position, for an earlier answer may have been lost."""
        standing = await self._ask(f"look at {name}", lambda: self._broker.claims.consumer(QUEUE, name))
        if standing is not None:
            self._learn(name, standing)

    def _learn(self, name: str, standing: ConsumerPosition) -> None:
        known = self._ledger.checkpoints[name]
        if standing.acknowledged not in (known.confirmed, known.asked):
            told = f"{known.confirmed} was, {known.asked} was asked for"
            self._ledger.violate(f"P1: batch {standing.acknowledged} of {name} is said to be acknowledged: {told}")
        elif standing.acknowledged > known.confirmed:
            self._confirm(name)
        elif known.planned is not None and standing.batch is None:
            self._ledger.violate(f"P1: batch {known.confirmed + 1} of {name} was claimed, and is not there")

    async def _claim(self, name: str, *, patient: bool = False) -> bool:
        known = self._ledger.checkpoints[name]
        if not known.epochs or known.asked != known.confirmed:
            return False
        batch, epoch, before = known.confirmed + 1, known.epochs[-1], known.planned
        seconds = self._random.choice((0.3, self._lease_seconds, 10 * self._lease_seconds))
        most, most_bytes = self._random.choice((1, 3, 1000)), self._random.choice((None, None, 5))
        asked, was_sure = trio.current_time(), known.is_sure
        known.is_sure = False  # what it lost may be written down, and the power fail before the answer
        held = await self._ask(
            f"claim {batch} for {name}",
            lambda: self._broker.claims.claim(
                QUEUE, name, batch, epoch, most=most, most_bytes=most_bytes, lease=seconds
            ),
            patient=patient,
        )
        was_held = before is not None and all(self._ledger.holds(name, id) for id in before)
        self._ledger.letting_go(name, before or [])
        known.is_sure = was_sure and held is not None and not held.lost
        if held is None:
            if before is not None and patient:
                self._ledger.violate(f"P1: batch {batch} of {name} was claimed, and there is nothing")
            return False
        if was_held and held.lost > self._ledger.may_be_gone(before or []):
            self._ledger.violate(f"P6: batch {batch} of {name} lost {held.lost} messages while its lease ran")
        until = asked + seconds * (1.0 if held.is_new else _RENEWED)
        known.ends = (until, trio.current_time() + seconds)
        return await self._read(name, until=until, count=held.messages, patient=patient)

    async def _read(
        self, name: str, *, until: float | None = None, count: int | None = None, patient: bool = False
    ) -> bool:
        known = self._ledger.checkpoints[name]
        if not known.epochs or (until is None and known.planned is None) or known.asked != known.confirmed:
            return False
        batch, epoch, asked = known.confirmed + 1, known.epochs[-1], trio.current_time()
        messages = await self._ask(
            f"read {batch} for {name}",
            lambda: self._broker.claims.read(QUEUE, name, batch, epoch, 0, 1000),
            patient=patient,
        )
        if messages is None:
            return False
        ids = []
        for _, message in messages:
            try:
                self._ledger.seen(name, message.id, await message.body.read(), asked)
            except CorruptMessage as error:
                self._ledger.violate(f"P2: {message.id} of a claim of {name} cannot be read: {error}")
            await message.body.aclose()
            ids.append(message.id)
        if count is not None and len(ids) != count:
            self._ledger.violate(f"claims: batch {batch} of {name} has {len(ids)} messages, and said {count}")
        if known.planned is not None and [id for id in known.planned if id in ids] != ids:
            self._ledger.violate(f"claims: batch {batch} of {name} was {known.planned}, and is {ids}")
        if until is None and known.is_sure and ids != known.planned:
            self._ledger.violate(f"claims: batch {batch} of {name} lost messages without being told")
        known.planned, known.is_sure = ids, True
        if until is not None:
            self._ledger.holding(name, ids, until)
        return True

    async def _acknowledge(self, name: str, *, patient: bool = False) -> None:
        known = self._ledger.checkpoints[name]
        if not known.epochs or known.planned is None or not known.is_sure:
            return
        if not patient and known.ends is not None and self._random.random() < _LATE_SHARE:
            await trio.sleep_until(self._random.uniform(known.ends[0] - 0.1, known.ends[1] + 0.1))
        known.asked, epoch = known.confirmed + 1, known.epochs[-1]
        self._ledger.removing(known.planned)

        async def acknowledge() -> bool:
            await self._broker.claims.acknowledge(QUEUE, name, known.asked, epoch)
            return True

        if await self._ask(f"acknowledge {known.asked} for {name}", acknowledge, patient=patient):
            self._confirm(name)

    def _confirm(self, name: str) -> None:
        known = self._ledger.checkpoints[name]
        known.confirmed = known.asked
        self._ledger.removed(name, known.planned or [])
        known.planned, known.is_sure = None, True

    async def _haunt(self, name: str) -> None:
        """Go on as a consumer that was shut out and does not know it."""
        known = self._ledger.checkpoints[name]
        if len(known.epochs) < 2:
            return
        epoch, batch = known.epochs[-2], known.confirmed + 1
        read = await self._ask("read as before", lambda: self._broker.claims.read(QUEUE, name, batch, epoch, 0, 1))
        held = await self._ask("claim as before", lambda: self._broker.claims.claim(QUEUE, name, batch, epoch))
        if read is not None or held is not None:
            self._ledger.violate(f"epoch: {name} was not shut out")

    # Others

    async def _fetch(self, queue: str, *, patient: bool, visibility: float | None) -> bool:
        holder, asked = f"fetch {self._random.getrandbits(64):016x}", trio.current_time()
        messages = await self._ask(
            f"fetch {queue}", lambda: self._broker.fetch_many(queue, 3, visibility=visibility), patient=patient
        )
        for message in messages or []:
            body = await message.body.read()
            await message.body.aclose()
            self._ledger.seen(holder, message.id, body, asked)
            seconds = self._lease_seconds if visibility is None else visibility
            self._ledger.holding(holder, [message.id], asked + seconds)
            if patient or self._random.random() < 0.5:
                self._ledger.removing([message.id])
                await self._remove(queue, holder, Removal(message.id, message.receipt), patient=patient)
        return bool(messages)

    async def _remove(self, queue: str, holder: str, removal: Removal, *, patient: bool) -> None:
        outcome = await self._ask("remove", lambda: self._broker.remove_many(queue, [removal]), patient=patient)
        if outcome == [None]:
            self._ledger.removed(holder, [removal.id])
