"""A broker whose store tells what others do to it, and one whose store cannot tell."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mq.broker import Broker, BrokerConfig, open_broker
from mq.errors import StorageFull
from mq.lifecycle import State
from mq.message import MessageIds
from mq.storage.interface import QUEUE, Change, Entry, Meta, Move, Write
from mq.storage.memory import MemoryStorage
from mq.storage.records import put_record
from tests.broker.conftest import WallClock
from tests.broker.inside import catalog_of
from tests.broker.test_broker import take

ALONE_WITHOUT_MOVER = BrokerConfig(mover=False)
"""Whoever has a mover elsewhere goes by what the store tells, and looks at no folder when somebody fetches."""
LEASE = Meta(10**13, 1, "0" * 16)


class Telling(MemoryStorage):
    """A store in memory, and the hands of somebody else in it.

    Args:
        is_silent: nothing can be told of what they do.
    """

    def __init__(self, clock: WallClock, *, is_silent: bool = False) -> None:
        super().__init__()
        self.is_full = False
        self._ids = MessageIds(clock)
        self._is_silent = is_silent
        self._send, self._told = trio.open_memory_channel[Change](math.inf)

    def changes(self):
        return None if self._is_silent else self._open_told()

    @asynccontextmanager
    async def _open_told(self) -> AsyncIterator[trio.MemoryReceiveChannel[Change]]:
        yield self._told

    async def records(self, kind: str):
        if self.is_full:
            raise StorageFull("no handles")
        return await super().records(kind)

    async def write(self, *states: State) -> Entry:
        """Somebody else publishes, and moves the message along these states."""
        entry = (await self.commit([Write("q", self._ids.new(), b"x")]))[0].entry
        assert entry is not None
        return await self.move(entry, *states)

    async def move(self, entry: Entry, *states: State) -> Entry:
        for state in states:
            moved = (await self.commit([Move(entry, state, LEASE if state is State.DELAYED else Meta())]))[0].entry
            assert moved is not None
            entry = moved
        return entry

    async def tell(self, *changes: Change) -> None:
        for change in changes:
            await self._send.send(change)
        await wait_all_tasks_blocked()


@pytest.fixture
def store(wall_clock: WallClock) -> Telling:
    return Telling(wall_clock)


@asynccontextmanager
async def following(store: Telling, clock: WallClock, config: BrokerConfig) -> AsyncIterator[Broker]:
    """A broker on the store, which has a queue; it has taken its first look."""
    await put_record(store, QUEUE, "q", {"created": 0})
    async with open_broker(store, config, clock_ns=clock) as broker:
        await wait_all_tasks_blocked()
        yield broker


async def fetch_many(broker: Broker, count: int) -> Sequence[bytes | None]:
    return [await take(broker) for _ in range(count)]


async def test_what_appears_can_be_fetched_and_what_vanishes_cannot(store: Telling, wall_clock: WallClock) -> None:
    async with following(store, wall_clock, ALONE_WITHOUT_MOVER) as broker:
        kept, taken = await store.write(State.READY), await store.write(State.READY)
        assert await take(broker) is None  # nobody has told yet
        await store.tell(Change(kept), Change(taken))
        leased = await store.move(taken, State.DELAYED)
        await store.tell(Change(taken, present=False), Change(leased))
        removed = await store.write(State.READY)
        await store.tell(Change(removed), Change(removed, present=False))
        index = catalog_of(broker).queues["q"]
        assert [index.find(entry.id) for entry in (kept, taken, removed)] == [kept, leased, None]
        await store.move(removed, State.REMOVED)
        assert await fetch_many(broker, 2) == [b"x", None]


async def test_what_was_told_of_a_place_that_a_message_has_left_again_is_not_believed(
    store: Telling, wall_clock: WallClock
) -> None:
    async with following(store, wall_clock, ALONE_WITHOUT_MOVER) as broker:
        entry = await store.write(State.READY)
        await store.tell(Change(entry), Change(entry._replace(state=State.DELAYED, meta=LEASE), present=False))
        assert await take(broker) == b"x"


async def test_new_and_removed_messages_are_others_business_and_so_are_strange_queues(
    store: Telling, wall_clock: WallClock
) -> None:
    async with following(store, wall_clock, ALONE_WITHOUT_MOVER) as broker:
        entry = await store.write()
        await store.tell(Change(entry), Change(entry._replace(queue="stranger", state=State.READY)))
        assert catalog_of(broker).queues["q"].find(entry.id) is None
        assert set(catalog_of(broker).queues) == {"q"}


async def test_a_store_that_lost_count_is_looked_at_again(store: Telling, wall_clock: WallClock) -> None:
    async with following(store, wall_clock, ALONE_WITHOUT_MOVER) as broker:
        gone, there = await store.write(State.READY), await store.write()
        await store.tell(Change(gone))
        await store.move(gone, State.REMOVED)
        await store.move(there, State.READY)
        await store.tell(Change(None))
        assert await fetch_many(broker, 2) == [b"x", None]


@pytest.mark.parametrize("is_silent", [True, False])
async def test_what_a_dead_peer_left_in_new_is_delivered_in_a_while(wall_clock: WallClock, is_silent: bool) -> None:
    store = Telling(wall_clock, is_silent=is_silent)
    async with following(store, wall_clock, BrokerConfig(peers=1)) as broker:
        await store.write()
        removed = await store.write(State.READY, State.REMOVED)
        await trio.sleep(9)
        assert await take(broker) is None
        await trio.sleep(12)
        assert await take(broker) == b"x"
        assert removed not in await store.scan(State.REMOVED)


async def test_a_look_that_the_medium_refuses_is_told_and_taken_again(
    wall_clock: WallClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = Telling(wall_clock, is_silent=True)
    async with following(store, wall_clock, ALONE_WITHOUT_MOVER) as broker:
        await store.write(State.READY)
        store.is_full = True
        with caplog.at_level(logging.WARNING, "mq.broker"):
            await trio.sleep(2)
        assert "temporarily unable to read from storage: no handles" in caplog.text
        assert await take(broker) is None
        store.is_full = False
        await trio.sleep(2)
        assert await take(broker) == b"x"
