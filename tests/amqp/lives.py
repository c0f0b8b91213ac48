"""Seeded lives of the AMQP door over a disk that forgets: clients publish, consume, get, vanish; the power goes.

A seed decides all, as in :mod:`simulation.run`, whose disk and faults these are. What is held to account:

* what was confirmed, or was published with confirms before a close that was answered, is there until it is
  acknowledged (P1, P4);
* what was never published is not delivered (P3), and nobody gets what somebody else holds (P6);
* what was acknowledged in a transaction never comes back, and anything else that was not while the process lives (P5);
* a message that somebody has had comes back marked as redelivered;
* nothing that clients do ends the daemon, and queues that come and go with their consumers leave nothing behind (P9).
"""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Final
from zlib import crc32

import trio
from pamqp import commands

from mq.amqp.server.state import AmqpState
from mq.broker import BrokerConfig, open_broker
from mq.message import MessageIds
from mq.storage.files.posix import FolderStorage
from mq.storage.layered import LayeredStorage
from mq.storage.options import StorageOptions
from simulation.disk import Disk, Medium
from simulation.faults import Faults, PowerCut
from simulation.run import MOUNTS, START_NS, run_until_cut, seeded_clock
from tests.amqp.dialling import Client, House

Basic, Confirm, Queue, Tx = commands.Basic, commands.Confirm, commands.Queue, commands.Tx
PASSING: Final = ("x", "y")
STUCK_SECONDS: Final = 7200.0
GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError, EOFError)


class Lives:
    """One seed.

    Args:
        tell: told of every call to the disk and of every frame that a client hears, in a line.
    """

    def __init__(self, seed: int, tell: Callable[[str], None] | None = None) -> None:
        self.violations: list[str] = []
        self.deliveries = 0
        self._random = Random(seed)
        self._faults = Faults(self._random, lambda text: None)
        self._medium = self._random.choice(list(Medium))
        self._slow = self._random.choice((0.0, 0.01, 0.3))
        self._disk = Disk(self._medium, self._random, self._faults, tell)
        self._tell = tell
        self._elapsed = 0.0
        self._last = 0
        self._published: set[bytes] = set()
        self._confirmed: set[bytes] = set()
        self._settled: set[bytes] = set()  # somebody has said so, whatever came of it
        self._committed: set[bytes] = set()
        self._forget_process()

    def run(self) -> Lives:
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
        clock = seeded_clock(self._random.getrandbits(64), self._elapsed)
        try:
            run_until_cut(self._bounded, phase, clock=clock)
        except BaseExceptionGroup as group:
            self._violate(f"P9: the daemon died: {''.join(traceback.format_exception(group))}")
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
            "simulated:",
            "/mq",
            self._disk,
            StorageOptions(),
            mount=lambda root: mount,
            hop=self._hop,
            ids=ids,
        )
        store = LayeredStorage(below, 1 << 20)
        await store.open()
        config = BrokerConfig(workers=self._random.choice((1, 2, 8)))
        random = Random(self._random.random())
        async with open_broker(store, config, clock_ns=self._clock_ns, random=random) as broker:
            door = AmqpState(broker)
            await door.load()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(door.run)
                yield House(broker, door, nursery, self._heard if self._tell is not None else None)
                nursery.cancel_scope.cancel()

    def _heard(self, channel: int, name: str, data: bytes) -> None:
        if self._tell is not None:
            self._tell(f"frame {channel} {name} {len(data)} {crc32(data):08x}")

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
            role = self._random.choice((self._publish, self._pour, self._consume, self._get, self._pass))
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

    async def _pour(self, client: Client, number: int) -> None:
        """Without a look at the confirms: what counts is that the close is answered, of the channel or of the
        connection."""
        await client.call(Confirm.Select())
        bodies = [self._new_body() for _ in range(self._random.randint(1, 8))]
        await client.publish("q", *bodies, delivery_mode=2)
        end, channel = self._random.choice(
            ((commands.Channel.Close(200, "", 0, 0), 1), (commands.Connection.Close(200, "", 0, 0), 0))
        )
        answer = await client.call(end, channel)
        if answer is None or answer.name not in ("Channel.CloseOk", "Connection.CloseOk"):
            raise EOFError
        self._confirmed.update(bodies)
        if not channel:
            raise EOFError

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

    async def _pass(self, client: Client, number: int) -> None:
        """Take some messages from a queue that goes with its last consumer, or with its connection, and leave. Others
        may come to it and go, too."""
        queue = self._random.choice(PASSING)
        answer = await client.call(
            Queue.Declare(queue=queue, auto_delete=True, exclusive=self._random.random() < 0.3, arguments={})
        )
        if answer is None or answer.name != "Queue.DeclareOk":
            raise EOFError  # it is another connection's own
        await client.publish(queue, *[b"passing"] * self._random.randint(1, 40))
        await client.call(Basic.Qos(prefetch_count=self._random.choice((0, 2, 10))))
        if (await client.consume(queue)).name != "Basic.ConsumeOk":
            raise EOFError  # it has gone with somebody else
        for _ in range(self._random.randint(0, 30)):
            told = await client.hear()
            if told is None or told.name == "Basic.Cancel":
                raise EOFError  # it went with a consumer before this one had come
            client.said.appendleft((1, told))
            method, _, body = await client.delivery()
            assert body == b"passing"
            await client.say(
                self._random.choice((Basic.Ack(method.delivery_tag), Basic.Nack(method.delivery_tag, requeue=True)))
            )

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
        for queue in await house.broker.queues():
            if queue.name in PASSING:
                self._violate(f"P9: queue {queue.name} outlived its consumers")

    async def _last_look(self) -> None:
        self._slow = 0.0
        async with self._house() as house:
            if await house.broker.has_queue("q"):
                await self._take_all(house)
            elif self._confirmed:
                self._violate("P1: the queue is not there")

    def _violate(self, text: str) -> None:
        self.violations.append(text)
