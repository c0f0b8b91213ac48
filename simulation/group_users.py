"""Users of message groups: publishers that have groups of their own, and consumers of all of them.

The checks know only what clients can know, over all lives of the broker. In each group messages are handed out in the
order of their publishing, and none while an earlier one of the group is out, but for one fetch of several. While a
later one is out, only a message that was delivered before and has come back is delivered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, Final

import trio

from mq.broker import Broker, Draft, Published, Removal, UnackedMessage
from mq.message import Message
from simulation.claimants import Ask
from simulation.history import History

QUEUE: Final = "g"
PUBLISHERS: Final = 2
CONSUMERS: Final = 3
_GROUPS_EACH: Final = 2
_TOLERANCE_SECONDS: Final = 0.002


class SentInGroup:
    """A message, as its publisher knows it.

    Attributes:
        may_be_gone: whether a client tried to remove it.
        out_until: until when it is leased for certain; infinity while it is held.
        has_come: whether it was delivered before.
    """

    def __init__(self, group: str, number: int) -> None:
        self.group = group
        self.number = number
        self.body = f"{group} {number}".encode()
        self.is_stored = False
        self.may_be_gone = False
        self.out_until = -math.inf
        self.has_come = False


class GroupLedger:
    """The requests of users of groups and their answers, over all lives."""

    def __init__(self, history: History, now: Callable[[], float]) -> None:
        self._history = history
        self.now = now
        self._groups: dict[str, list[SentInGroup]] = {}
        self._by_body: dict[bytes, SentInGroup] = {}
        self.is_made = False

    def sending(self, group: str) -> SentInGroup:
        """Note that a publish begins. Nothing else is published in its group until it has ended."""
        there = self._groups.setdefault(group, [])
        sent = SentInGroup(group, len(there))
        there.append(sent)
        self._by_body[sent.body] = sent
        return sent

    def handed_out(self, bodies: Sequence[bytes], until: float, *, is_fetch: bool) -> list[SentInGroup]:
        """Note that one call gave these, in this order. They are out until then at least."""
        found = [self._by_body[body] for body in bodies if body in self._by_body]
        if len(found) < len(bodies):
            self._history.violate(f"P2/P3: {QUEUE} gave bytes that nobody published: {bodies}")
        for place, sent in enumerate(found):
            self._check(sent, found[:place], found if is_fetch else [sent])
        for sent in found:
            sent.out_until = until
            sent.has_come = True
        return found

    def leases_end(self) -> None:
        """Note that the clock was set ahead while no broker served the store."""
        for sent in self._by_body.values():
            sent.out_until = -math.inf

    def cut_off(self) -> None:
        """Note that the broker ended: what was held in memory is held no more."""
        for sent in self._by_body.values():
            if sent.out_until == math.inf:
                sent.out_until = -math.inf

    def check_lost(self) -> None:
        """Check that nothing is missing, once every message was taken out and removed."""
        for sent in self._by_body.values():
            if sent.is_stored and not sent.may_be_gone:
                self._history.violate(f"P1: {sent.body!r} of {QUEUE} was acknowledged and is not there")

    def _check(self, sent: SentInGroup, before: list[SentInGroup], together: list[SentInGroup]) -> None:
        for other in self._groups[sent.group]:
            is_there = other.is_stored and not other.may_be_gone
            if other.number < sent.number and is_there and other not in before:
                self._history.violate(f"groups: {sent.body!r} came before {other.body!r}")
            blocks = other.number < sent.number or not sent.has_come
            if blocks and other not in together and self.now() < other.out_until - _TOLERANCE_SECONDS:
                self._history.violate(f"groups: {sent.body!r} came while {other.body!r} was out")


class GroupUsers:
    """Several users of one queue with groups."""

    def __init__(self, broker: Broker, ledger: GroupLedger, ask: Ask, random: Random, lease_seconds: float) -> None:
        self._broker = broker
        self._ledger = ledger
        self._ask = ask
        self._random = random
        self._lease_seconds = lease_seconds

    async def run(self) -> None:
        """Publish and consume, until each has done what it wanted."""
        if not self._ledger.is_made:
            made = await self._ask("make g", lambda: self._broker.create_queue(QUEUE), patient=True)
            settings = {"groups": True}
            if made is None or not await self._ask("set g", lambda: self._broker.change_settings(QUEUE, settings)):
                return
            self._ledger.is_made = True
        async with trio.open_nursery() as nursery:
            for number in range(PUBLISHERS):
                nursery.start_soon(self._publish, number, self._random.randint(5, 20))
            for _ in range(CONSUMERS):
                nursery.start_soon(self._consume, self._random.randint(5, 30))

    async def drain(self) -> None:
        """Take out and remove every message."""
        if not await self._broker.has_queue(QUEUE):
            return
        while messages := await self._fetch(10, 0.0, self._lease_seconds, patient=True):
            await self._remove(messages, patient=True)

    async def _publish(self, number: int, steps: int) -> None:
        random = self._random
        for _ in range(steps):
            groups = [f"{number}.{random.randrange(_GROUPS_EACH)}" for _ in range(random.choice((1, 1, 2, 5)))]
            sent = [self._ledger.sending(group) for group in groups]
            has_keys = random.random() < 0.3
            drafts = [Draft(each.body, key=each.body.hex() if has_keys else None, group=each.group) for each in sent]
            outcomes = await self._ask("publish g", partial(self._broker.publish_many, QUEUE, drafts))
            for each, outcome in zip(sent, outcomes or [], strict=False):
                each.is_stored = isinstance(outcome, Published)
            await trio.sleep(random.choice((0.0, 0.0, 0.1, 1.0)))

    async def _consume(self, steps: int) -> None:
        for _ in range(steps):
            if self._random.random() < 0.3:
                await self._hold()
            else:
                await self._fetch_some()

    async def _fetch_some(self) -> None:
        random = self._random
        seconds = random.choice((0.2, self._lease_seconds, 2 * self._lease_seconds))
        messages = await self._fetch(random.choice((1, 1, 3)), random.choice((0.0, 0.3, 5.0)), seconds)
        await trio.sleep(random.choice((0.0, 0.0, 0.1, self._lease_seconds)))
        while messages:
            if random.random() < 0.25:
                await self._requeue(*messages.pop(random.randrange(len(messages))))
            elif random.random() < 0.1:
                return  # its lease ends
            else:
                await self._remove([messages.pop(random.randrange(len(messages)))])

    async def _fetch(
        self, most: int, wait: float, seconds: float, *, patient: bool = False
    ) -> list[tuple[Message, SentInGroup]]:
        asked = trio.current_time()
        messages: list[Message] | None = await self._ask(
            "fetch g",
            lambda: self._broker.fetch_many(QUEUE, most, wait=wait, visibility=seconds),
            patient=patient,
        )
        bodies = [await _read(message) for message in messages or []]
        found = self._ledger.handed_out(bodies, asked + seconds, is_fetch=True)
        return list(zip(messages or [], found, strict=False))

    async def _remove(self, some: list[tuple[Message, SentInGroup]], *, patient: bool = False) -> None:
        for _, sent in some:
            sent.may_be_gone, sent.out_until = True, -math.inf
        removals = [Removal(message.id, message.receipt) for message, _ in some]
        await self._ask("remove g", lambda: self._broker.remove_many(QUEUE, removals), patient=patient)

    async def _requeue(self, message: Message, sent: SentInGroup) -> None:
        delay = self._random.choice((0.0, 0.0, 1.0))
        sent.out_until = -math.inf
        await self._ask(
            "requeue g",
            lambda: self._broker.requeue(QUEUE, message.id, receipt=message.receipt, delay=delay),
        )

    async def _hold(self) -> None:
        random = self._random
        most, wait = random.choice((1, 4)), random.choice((0.0, 1.0))
        held: list[UnackedMessage] | None = await self._ask("hold g", lambda: self._broker.hold(QUEUE, most, wait=wait))
        if not held:
            return
        bodies = [await _read(each.message) for each in held]
        found = self._ledger.handed_out(bodies, math.inf, is_fetch=False)
        await trio.sleep(random.choice((0.0, 0.1, 1.0)))
        goes = random.random() < 0.6
        for sent in found:
            sent.may_be_gone, sent.out_until = sent.may_be_gone or goes, -math.inf
        settle: Any = self._broker.acknowledge if goes else self._broker.put_back
        await self._ask("settle g", lambda: settle(held), patient=True)


async def _read(message: Message) -> bytes:
    body = await message.body.read()
    await message.body.aclose()
    return body
