"""Seeded lives of the AMQP door over a disk that forgets: clients publish, consume, get, vanish; the power goes.

A seed decides all, as in :mod:`mq.testing.simulation`, whose disk and faults these are. What is held to account:

* what was confirmed is there until somebody has acknowledged it (P1, P4);
* what was never published is not delivered (P3), and nobody gets what somebody else holds (P6);
* what was acknowledged in a transaction never comes back, and anything else that was not while the process lives (P5);
* a message that somebody has had comes back marked as redelivered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Final

import trio
from pamqp import commands
from trio.testing import MockClock

from mq.amqp.door import Door
from mq.broker import BrokerConfig, open_broker
from mq.message import MessageIds
from mq.storage.layered import LayeredStorage
from mq.storage.options import StorageOptions
from mq.storage.posix import FolderStorage
from mq.testing.disk import Disk, Medium
from mq.testing.faults import Faults, PowerCut
from mq.testing.simulation import MOUNTS, START_NS
from tests.amqp.dialling import Client, House

Basic, Confirm, Tx = commands.Basic, commands.Confirm, commands.Tx
STUCK_SECONDS: Final = 7200.0
GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError, EOFError)


class Lives:
    """One seed.

    Attributes:
        violations: promises that were broken, in words.
        deliveries: how many there were.
    """

    def __init__(self, seed: int) -> None:
        self.violations: list[str] = []
        self.deliveries = 0
        self._random = Random(seed)
        self._faults = Faults(self._random, lambda text: None)
        self._medium = self._random.choice(list(Medium))
        self._slow = self._random.choice((0.0, 0.01, 0.3))
        self._disk = Disk(self._medium, self._random, self._faults)
        self._elapsed = 0.0
        self._last = 0
        self._published: set[bytes] = set()
        self._confirmed: set[bytes] = set()
        self._settled: set[bytes] = set()  # somebody has said so, whatever came of it
        self._committed: set[bytes] = set()
        self._forget_process()

    def run(self) -> Lives:
        """To its end."""
        for _ in range(self._random.choice((1, 2, 3))):
            self._serve(self._live)
            self._disk.crash()
            self._faults.lift()
            self._forget_process()
            self._elapsed += self._random.choice((0.0, 1.0, 100.0))
        self._serve(self._last_look)
        return self

    def _forget_process(self) -> None:
        self._held: dict[bytes, int] = {}
        self._seen: set[bytes] = set()
        self._gone: set[bytes] = set()
        self._said: defaultdict[int, set[bytes]] = defaultdict(set)

    def _serve(self, phase: Callable[[], Awaitable[None]]) -> None:
        clock = MockClock(autojump_threshold=0)
        clock.jump(self._elapsed)
        trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
        trio._core._run._r.seed(self._random.getrandbits(64))
        try:
            trio.run(self._bounded, phase, clock=clock)
        except PowerCut:
            pass
        except BaseExceptionGroup as group:
            rest = group.split(PowerCut)[1]
            if rest is not None:
                raise rest from None
        self._elapsed = clock.current_time()

    async def _bounded(self, phase: Callable[[], Awaitable[None]]) -> None:
        with trio.move_on_after(STUCK_SECONDS) as scope:
            await phase()
        if scope.cancelled_caught:
            self._violate("P9: it is stuck")

    def _clock_ns(self) -> int:
        return START_NS + round(trio.current_time() * 1e9)

    async def _hop(self, verb: Callable[..., Any], *args: object) -> Any:
        with trio.CancelScope(shield=True):
            await trio.sleep(self._random.uniform(0, self._slow))
            return verb(*args)

    @asynccontextmanager
    async def _house(self) -> AsyncIterator[House]:
        ids = MessageIds(self._clock_ns, self._random.getrandbits(48))
        mount = MOUNTS[self._medium]
        below = FolderStorage(
            "simulated:", "/mq", self._disk, StorageOptions(), mount=lambda root: mount, hop=self._hop, ids=ids
        )
        store = LayeredStorage(below, 1 << 20)
        await store.open()
        config = BrokerConfig(workers=self._random.choice((1, 2, 8)))
        random = Random(self._random.random())
        async with open_broker(store, config, clock_ns=self._clock_ns, random=random) as broker:
            door = Door(broker, clock_ns=self._clock_ns)
            await door.load()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(door.run)
                yield House(broker, door, nursery)
                nursery.cancel_scope.cancel()

    # A life

    async def _live(self) -> None:
        async with self._house() as house:
            client = await house.connect()
            await client.declare(durable=True)
            await client.close()
            if self._random.random() < 0.8:
                self._faults.cut_at = self._faults.calls + self._random.randint(1, 600)
            async with trio.open_nursery() as people:
                for number in range(self._random.randint(2, 5)):
                    people.start_soon(self._person, house, number)
            await self._take_all(house)  # what nobody holds any more is there, in this very process
            raise PowerCut

    async def _person(self, house: House, number: int) -> None:
        for _ in range(self._random.randint(1, 6)):
            client = await house.connect()
            role = self._random.choice((self._publish, self._publish, self._consume, self._get))
            try:
                with trio.move_on_after(self._random.uniform(0.1, 20)):
                    await role(client, number)
                    if self._random.random() < 0.5:
                        self._let_go(number)  # the server may hand on what it held before it answers
                        await client.close()
                        self._gone |= self._said[number]  # the server has heard of it: it has answered something since
            except GONE:
                pass
            self._said[number].clear()
            self._let_go(number)
            await client.stream.aclose()

    def _let_go(self, number: int) -> None:
        for body in [body for body, who in self._held.items() if who == number]:
            del self._held[body]

    async def _publish(self, client: Client, number: int) -> None:
        await client.call(Confirm.Select())
        tag, waiting = 0, dict[int, bytes]()
        for _ in range(self._random.randint(1, 4)):
            bodies = [self._new_body() for _ in range(self._random.randint(1, 4))]
            waiting |= dict(enumerate(bodies, tag + 1))
            tag += len(bodies)
            await client.publish("q", *bodies, delivery_mode=2)
            while waiting:
                answer = await self._hear(client)
                confirmed = [each for each in waiting if each <= answer.delivery_tag] if answer.multiple else []
                for each in confirmed or [answer.delivery_tag]:
                    self._confirmed.add(waiting.pop(each))

    async def _consume(self, client: Client, number: int) -> None:
        await client.call(Basic.Qos(prefetch_count=self._random.randint(1, 5)))
        await client.consume()
        for _ in range(self._random.randint(1, 10)):
            method, _, body = await client.delivery()
            self._check(body, redelivered=method.redelivered, who=number)
            await self._settle(client, method.delivery_tag, body, number)

    async def _settle(self, client: Client, tag: int, body: bytes, number: int) -> None:
        choice = self._random.choice(("ack", "ack", "nack", "reject", "keep"))
        if choice == "keep":
            return
        del self._held[body]
        if choice == "nack":
            await client.say(Basic.Nack(tag, requeue=True))
            return
        self._settled.add(body)
        self._said[number].add(body)
        await client.say(Basic.Ack(tag) if choice == "ack" else Basic.Reject(tag, requeue=False))

    async def _get(self, client: Client, number: int) -> None:
        await client.call(Tx.Select())
        for _ in range(self._random.randint(1, 4)):
            got = await client.get()
            if got is None:
                return
            method, _, body = got
            self._check(body, redelivered=method.redelivered, who=number)
            await client.say(Basic.Ack(method.delivery_tag))
            self._settled.add(body)
            answer = await client.call(Tx.Commit())
            if answer is None or answer.name != "Tx.CommitOk":
                raise EOFError
            del self._held[body]
            self._gone.add(body)
            self._committed.add(body)

    async def _hear(self, client: Client) -> Any:
        found = await client.hear()
        if found is None:
            raise EOFError
        assert found.name == "Basic.Ack", found.name
        return found

    def _new_body(self) -> bytes:
        self._last += 1
        body = b"%d" % self._last
        self._published.add(body)
        return body

    # What is held to account

    def _check(self, body: bytes, *, redelivered: bool, who: int) -> None:
        self.deliveries += 1
        if body not in self._published:
            self._violate(f"P3: {body!r} was never published")
        if body in self._held:
            self._violate(f"P6: {who} got {body!r}, which {self._held[body]} holds")
        if body in self._committed:
            self._violate(f"P5: {body!r} was acknowledged in a transaction, and came back")
        elif body in self._gone:
            self._violate(f"P5: {body!r} was acknowledged in this very process, and came back")
        if body in self._seen and not redelivered:
            self._violate(f"{body!r} came back without a mark")
        self._seen.add(body)
        self._held[body] = who

    async def _take_all(self, house: House) -> None:
        await trio.sleep(30)
        client = await house.connect()
        found = set()
        while (got := await client.get()) is not None:
            self._check(got[2], redelivered=got[0].redelivered, who=-1)
            found.add(got[2])
        for body in sorted(self._confirmed - self._settled - found):
            self._violate(f"P1: {body!r} was confirmed, and is not there")

    async def _last_look(self) -> None:
        self._slow = 0.0
        async with self._house() as house:
            if await house.broker.has_queue("q"):
                await self._take_all(house)
            elif self._confirmed:
                self._violate("P1: the queue is not there")

    def _violate(self, text: str) -> None:
        self.violations.append(text)
