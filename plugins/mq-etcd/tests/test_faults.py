"""Three members, of which one is killed, or put to sleep, while a broker works. Clocks are real: so are the members."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator

import pytest
import trio
import trio.lowlevel
from mq_etcd.client import open_client
from mq_etcd.testing.cluster import Cluster, Member, running

from mq.broker import Broker, open_broker
from mq.errors import StorageError
from mq.lifecycle import State
from mq.storage.conformance import check_whole
from mq.storage.interface import Storage
from mq.storage.registry import open_storage

pytestmark = pytest.mark.slow

LONGEST_SILENCE_SECONDS = 8.0
"""Electing a leader takes one to two seconds, and a machine of two cores may be busy with other things."""


@pytest.fixture
def cluster(installed: None) -> Iterator[Cluster]:
    """Three members of the test's own."""
    with running(3) as cluster:
        yield cluster


class Load:
    """Publishers and consumers who note what they were answered.

    Attributes:
        published: what was answered to be published, id by body.
        tried: every body that a publisher tried to publish.
        is_over: everybody finishes what they are at, and ends.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.is_over = False
        self.published: dict[bytes, str] = {}
        self.tried: set[bytes] = set()
        self.removed: list[str] = []
        self.answers: list[float] = []
        self.errors: list[StorageError] = []

    async def run(self, nursery: trio.Nursery) -> None:
        for name in range(8):
            nursery.start_soon(self._produce, name)
        for _ in range(4):
            nursery.start_soon(self._consume)

    async def _produce(self, name: int) -> None:
        number = 0
        while not self.is_over:
            body = b"%d.%d" % (name, number)
            number += 1
            self.tried.add(body)
            try:
                self.published[body] = await self._broker.publish("orders", body)
            except StorageError as error:
                self.errors.append(error)
                await trio.sleep(0.05)
            else:
                self.answers.append(trio.current_time())

    async def _consume(self) -> None:
        while not self.is_over:
            try:
                message = await self._broker.fetch("orders", wait=1)
                if message is not None:
                    await self._broker.remove("orders", message.id, receipt=message.receipt)
                    self.removed.append(message.id)
            except StorageError as error:
                self.errors.append(error)
                await trio.sleep(0.05)

    def longest_silence(self, since: float) -> float:
        """The longest time without an answer to a publisher, in seconds."""
        times = [since, *(time for time in self.answers if time > since)]
        return max((later - earlier for earlier, later in itertools.pairwise(times)), default=float("inf"))

    async def check(self, storage: Storage) -> None:
        """What is in the store, against what was answered."""
        await check_whole(storage)
        places = [*await storage.scan(State.NEW), *await storage.scan(State.DELAYED)]
        places += await storage.scan(State.READY, "orders")
        left = {entry.id for entry in places}
        bodies = [await stored.body.read() for stored in await storage.read(places) if stored]
        lost = set(self.published.values()) - set(self.removed) - left
        assert not lost, f"{len(lost)} of {len(self.published)} acknowledged messages are lost"
        back = left & set(self.removed)
        assert not back, f"{len(back)} messages came back after they were removed"
        assert len(self.removed) == len(set(self.removed)), "a message was removed twice"
        assert set(bodies) <= self.tried, "a message that nobody published"
        assert len(set(bodies)) == len(bodies), "a message is stored twice"


async def leader_of(cluster: Cluster) -> Member:
    async with open_client(cluster.endpoints) as client:
        states = [await client.status(endpoint) for endpoint in client.endpoints]
    return next(member for member, state in zip(cluster.members, states, strict=True) if state.member == state.leader)


async def follower_of(cluster: Cluster) -> Member:
    leader = await leader_of(cluster)
    return next(member for member in cluster.members if member is not leader)


def kill(cluster: Cluster, member: Member) -> Callable[[], None]:
    member.kill()
    return lambda: cluster.restart(member)


def pause(cluster: Cluster, member: Member) -> Callable[[], None]:
    member.pause()
    return member.resume


@pytest.mark.parametrize("choose", [leader_of, follower_of], ids=["leader", "follower"])
@pytest.mark.parametrize("hurt", [kill, pause], ids=["killed", "asleep"])
async def test_nothing_is_lost_when_a_member_fails(cluster: Cluster, choose, hurt) -> None:
    """The member that the broker asks first is among those that fail, each in turn."""
    victim = await choose(cluster)
    first = [victim, *(member for member in cluster.members if member is not victim)]
    address = f"etcd:{','.join(member.endpoint for member in first)}?patience=0.5"
    async with open_broker(address) as broker:
        await broker.create_queue("orders")
        load = Load(broker)
        async with trio.open_nursery() as nursery:
            await load.run(nursery)
            await trio.sleep(1)
            assert load.published, "nothing was published before the fault"
            started = trio.current_time()
            heal = hurt(cluster, victim)
            await trio.sleep(2.5)
            await trio.to_thread.run_sync(heal)
            await trio.sleep(0.5)
            load.is_over = True
        counts = f"{len(load.published)} published, {len(load.removed)} removed, {len(load.errors)} errors"
        sys.stdout.write(f"{counts}, no answer for {load.longest_silence(started):.2f} s\n")  # with -s
        assert load.longest_silence(started) < LONGEST_SILENCE_SECONDS
        assert load.removed
    async with open_storage(address) as storage:
        await load.check(storage)
