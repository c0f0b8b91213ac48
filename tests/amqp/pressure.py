"""Seeded lives of a daemon with little memory for transient messages, whose clients never vanish.

Publishers fill the memory over and over, directly and through a fanout, with messages that last and messages that do
not; consumers are slow, put back, and reject into a dead-letter queue that has no more room than the others. What is
held to account:

* each message is confirmed once, and acknowledged once by a consumer of each of its queues, or of the dead-letter
  queue;
* a consumer that has a queue alone gets the messages of a publisher in the order in which they were published;
* no channel is closed, and nothing stays stuck.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any, Final

import trio
from pamqp import commands

from mq.storage.layered import LayeredStorage
from mq.storage.memory import MemoryStorage
from simulation.run import seeded_clock
from tests.amqp.dialling import Client, House, open_house

Basic, Confirm, Queue = commands.Basic, commands.Confirm, commands.Queue
QUEUES: Final = ("a", "b", "mortal")
DEAD: Final = "dead"
PUBLISHERS: Final = 3
PATIENCE_SECONDS: Final = 3000.0
SIZES: Final = (0, 10, 10, 200, 200, 1000, 8000, 15_000)

Name = tuple[int, int]
"""A message: its publisher, and its number there."""


class Pressure:
    """One seed.

    Attributes:
        violations: what broke a promise, in words.
        blocked: how often a publisher was told to wait.
    """

    def __init__(self, seed: int) -> None:
        self.violations: list[str] = []
        self.blocked = 0
        self._random = Random(seed)
        self._targets: dict[Name, tuple[str, ...]] = {}
        self._confirmed: Counter[Name] = Counter()
        self._acknowledged: Counter[tuple[str, Name]] = Counter()
        self._delivered: dict[str, list[Name]] = {}
        self._left = PUBLISHERS

    def run(self) -> Pressure:
        trio.run(self._live, clock=seeded_clock(self._random.getrandbits(64), 0.0))
        for name, targets in self._targets.items():
            if self._confirmed[name] != 1:
                self.violations.append(f"{name} was confirmed {self._confirmed[name]} times")
            for queue in targets:
                count = self._acknowledged[queue, name]
                count += self._acknowledged[DEAD, name] if queue == "mortal" else 0
                if count != 1:
                    self.violations.append(f"{name} was acknowledged {count} times in queue {queue}")
        for queue, names in self._delivered.items():
            latest: dict[int, int] = {}
            for publisher, number in names:
                if number < latest.get(publisher, 0):
                    self.violations.append(f"{publisher, number} came after {latest[publisher]} in queue {queue}")
                latest[publisher] = number
        return self

    async def _live(self) -> None:
        store = LayeredStorage(MemoryStorage(), self._random.choice((100_000, 300_000)))
        async with open_house(store) as house, trio.open_nursery() as nursery:
            await self._declare(await house.connect())
            for number in range(PUBLISHERS):
                nursery.start_soon(self._publish, house, number)
            for queue in (*QUEUES, DEAD):
                await trio.sleep(self._random.choice((0, 0.5, 5)))
                consumers = self._random.choice((1, 1, 2))
                if consumers == 1:
                    self._delivered[queue] = []
                for _ in range(consumers):
                    nursery.start_soon(self._consume, house, queue)
            with trio.move_on_after(PATIENCE_SECONDS) as scope:
                while self._left or any(house.broker.declarations.ready(queue) for queue in (*QUEUES, DEAD)):
                    await trio.sleep(1)
                await trio.sleep(30)  # what was delivered last is settled
            if scope.cancelled_caught:
                self.violations.append("it is stuck")
            nursery.cancel_scope.cancel()

    async def _declare(self, client: Client) -> None:
        for queue in (*QUEUES, DEAD):
            arguments: dict[str, Any] = {}
            if queue == "mortal":
                ttl = self._random.choice((500, 3000))
                arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD, "x-message-ttl": ttl}
            await client.declare(queue, arguments, durable=self._random.random() < 0.5)
            if queue != DEAD:
                await client.call(Queue.Bind(queue=queue, exchange="amq.fanout"))

    async def _publish(self, house: House, publisher: int) -> None:
        client = await house.connect()
        await client.call(Confirm.Select())
        total = self._random.choice((20, 100, 200))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write, client, publisher, total)
            nursery.start_soon(self._read_confirms, client, publisher, total)
        await client.close()
        self._left -= 1

    async def _write(self, client: Client, publisher: int, total: int) -> None:
        for number in range(1, total + 1):
            exchange, key = self._random.choice((("amq.fanout", ""), *(("", queue) for queue in QUEUES)))
            self._targets[publisher, number] = QUEUES if exchange else (key,)
            body = b"%d %d " % (publisher, number) + bytes(self._random.choice(SIZES))
            await client.publish(key, body, exchange=exchange, delivery_mode=self._random.choice((1, 1, 2)))
            if self._random.random() < 0.2:
                await trio.sleep(self._random.choice((0.01, 0.3, 1)))

    async def _read_confirms(self, client: Client, publisher: int, total: int) -> None:
        waiting = set(range(1, total + 1))
        while waiting:
            said = await client.hear()
            name = getattr(said, "name", "the end")
            if name == "Basic.Ack":
                tag = said.delivery_tag
                done = {each for each in waiting if each <= tag} if said.multiple else {tag}
                self._confirmed.update((publisher, each) for each in done)
                waiting -= done
            elif name == "Connection.Blocked":
                self.blocked += 1
            elif name != "Connection.Unblocked":
                self.violations.append(f"publisher {publisher} heard {name} {getattr(said, 'reply_text', '')}")
                return

    async def _consume(self, house: House, queue: str) -> None:
        client = await house.connect()
        await client.call(Basic.Qos(prefetch_count=self._random.choice((1, 5, 50))))
        await client.consume(queue)
        while True:
            said = await client.hear()
            if getattr(said, "name", "the end") != "Basic.Deliver":
                self.violations.append(f"a consumer of {queue} heard {getattr(said, 'reply_text', said)}")
                return
            client.said.appendleft((1, said))
            method, _, body = await client.delivery()
            publisher, number, _ = body.split(b" ", 2)
            name = int(publisher), int(number)
            if not method.redelivered and queue in self._delivered and queue != DEAD:
                self._delivered[queue].append(name)
            if self._random.random() < 0.3:
                await trio.sleep(self._random.choice((0.01, 0.1, 2)))
            await self._settle(client, queue, name, method.delivery_tag)

    async def _settle(self, client: Client, queue: str, name: Name, tag: int) -> None:
        choice = self._random.random()
        if choice < 0.15:
            await client.say(Basic.Nack(tag, requeue=True))
        elif choice < 0.3 and queue == "mortal":
            await client.say(Basic.Reject(tag, requeue=False))
        else:
            self._acknowledged[queue, name] += 1
            await client.say(Basic.Ack(tag))
