"""An event loop that comes late to everything, because thousands want something of it: its own delay is not taken for
the store's, and nobody gets a message whose lease is nearly over.

A loop is late by construction here: virtual time passes in each of its steps.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mq.broker import Broker, BrokerConfig, Draft, open_broker
from mq.broker.catalog import LARGEST_BODY
from mq.broker.config import GLANCE_SECONDS, MARGIN_SECONDS
from mq.broker.dispatch import LARGEST_GROUP, FetchWorker
from mq.broker.index import QueueIndex
from mq.broker.leases import MOST_ALLOWED_SECONDS
from mq.broker.settings import SHORTEST_SECONDS
from mq.broker.upkeep import Upkeep
from mq.errors import StorageSlow
from mq.lifecycle import State
from mq.message import Message
from mq.storage.interface import Entry, Move, Operation, Outcome, Stored
from mq.storage.memory import MemoryStorage
from mq.storage.outcomes import Outcomes
from tests.broker.conftest import WallClock

LEASE_SECONDS = 30.0


class Store(MemoryStorage):
    """A store in memory whose outcomes are heard of late, and whose bodies take their time.

    Attributes:
        late_seconds: from the end of a batch until the event loop comes to it.
    """

    late_seconds = 0.0
    read_seconds = 0.0

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        outcomes = Outcomes(await super().commit(operations))
        outcomes.heard_late = self.late_seconds
        await trio.sleep(self.late_seconds)
        return outcomes

    async def read(self, entries: Sequence[Entry]) -> list[Stored | None]:
        await trio.sleep(self.read_seconds)
        return await super().read(entries)


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    store = Store()
    await store.open()
    yield store
    await store.aclose()


@pytest.fixture
async def broker(store: Store, wall_clock: WallClock) -> AsyncIterator[Broker]:
    config = BrokerConfig(visibility_seconds=LEASE_SECONDS)
    async with open_broker(store, config, clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        await broker.create_queue("other")
        yield broker


class Late(trio.abc.Instrument):
    """Each step of the event loop takes so long."""

    def __init__(self, clock: MockClock, step_seconds: float) -> None:
        self._clock = clock
        self._step_seconds = step_seconds

    def after_io_wait(self, timeout: float) -> None:
        self._clock.jump(self._step_seconds)


@asynccontextmanager
async def late(broker: Broker, step_seconds: float) -> AsyncIterator[None]:
    """A late event loop, once others have asked for something, too."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, MockClock)
    instrument = Late(clock, step_seconds)
    trio.lowlevel.add_instrument(instrument)
    try:
        with suppress(StorageSlow):
            await broker.fetch("other")
        yield
    finally:
        trio.lowlevel.remove_instrument(instrument)


async def left_seconds(store: Store, wall_clock: WallClock) -> float:
    """How long the one lease goes on, by the name that a restart would go by."""
    [entry] = await store.scan(State.DELAYED)
    assert entry.meta.deadline_ms is not None
    return entry.meta.deadline_ms / 1000 - wall_clock() / 1e9


async def fetch(broker: Broker, wait: float = 0) -> Message:
    message = await broker.fetch("q", wait=wait)
    assert message is not None
    return message


@pytest.mark.parametrize("step_seconds", [0.1, 0.3, 0.6])
async def test_a_message_is_handed_out_all_the_same_with_its_whole_lease(
    broker: Broker, store: Store, wall_clock: WallClock, step_seconds: float
) -> None:
    await broker.publish("q", b"x")
    async with late(broker, step_seconds):
        await fetch(broker)
        left = await left_seconds(store, wall_clock)
        began = trio.current_time()
    assert left >= LEASE_SECONDS
    await fetch(broker, wait=1000)
    assert trio.current_time() - began >= LEASE_SECONDS - 10 * step_seconds


@pytest.mark.parametrize("step_seconds", [0.1, 0.3, 0.6])
async def test_who_waits_is_handed_what_is_published(
    broker: Broker, store: Store, wall_clock: WallClock, step_seconds: float
) -> None:
    async with late(broker, step_seconds), trio.open_nursery() as nursery:

        async def wait() -> None:
            await fetch(broker, wait=1000)
            assert await left_seconds(store, wall_clock) >= LEASE_SECONDS

        nursery.start_soon(wait)
        for _ in range(20):
            await trio.lowlevel.checkpoint()
        await broker.publish("q", b"x")


async def test_what_the_loop_hears_late_was_done_in_time(broker: Broker, store: Store) -> None:
    await broker.publish("q", b"x")
    await wait_all_tasks_blocked()
    store.late_seconds = 5
    assert (await fetch(broker)).receives == 1


async def test_too_late_a_loop_leases_nothing(broker: Broker, store: Store) -> None:
    """Who came before that was known is not handed a lease that has nearly run out either."""
    await broker.publish("q", b"x")
    await wait_all_tasks_blocked()
    async with late(broker, 3 * MOST_ALLOWED_SECONDS):
        for _ in range(3):
            with pytest.raises(StorageSlow):
                await broker.fetch("q")
    await trio.sleep(10 * MOST_ALLOWED_SECONDS)
    with trio.fail_after(1):
        assert (await fetch(broker, wait=1)).receives == 1


@pytest.mark.parametrize("read_seconds", [10, 16.9, 17.1, 40])
async def test_a_lease_that_is_nearly_over_is_given_back(broker: Broker, store: Store, read_seconds: float) -> None:
    await broker.publish("q", bytes(LARGEST_BODY + 1))  # nobody remembers that
    await wait_all_tasks_blocked()
    store.read_seconds = read_seconds
    if read_seconds < 17:  # two seconds are the barrier's, and of the lease at least a half has to be left
        assert (await fetch(broker)).receives == 1
        return
    with pytest.raises(StorageSlow, match="overloaded"):
        await broker.fetch("q")
    store.read_seconds = 0
    is_over = read_seconds > LEASE_SECONDS  # then it counts
    assert (await fetch(broker, wait=1)).receives == 1 + is_over


@pytest.mark.parametrize("peers", [0, 1])
async def test_a_short_lease_that_ended_while_it_was_read_is_not_handed_out(
    store: Store, wall_clock: WallClock, peers: int
) -> None:
    """Somebody else may have the message by then, and has it here."""
    got: list[int] = []
    config = BrokerConfig(visibility_seconds=LEASE_SECONDS, peers=peers)
    async with open_broker(store, config, clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        await broker.publish("q", bytes(LARGEST_BODY + 1))
        await wait_all_tasks_blocked()
        store.read_seconds = 1

        async def fetch_late() -> None:
            with pytest.raises(StorageSlow, match="overloaded"):
                await broker.fetch("q", visibility=0.2)
            got.append(0)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch_late)
            await trio.sleep(0.5)
            store.read_seconds = 0
            got.append((await fetch(broker, wait=0.2)).receives)
    assert sorted(got) == [0, 2]


@pytest.mark.parametrize("peers", [0, 1])
@pytest.mark.parametrize("size", [1, LARGEST_BODY + 1])  # remembered, or to be read
async def test_a_lease_that_is_over_at_once_begins_when_its_message_was_read(
    store: Store, wall_clock: WallClock, peers: int, size: int
) -> None:
    """It stands while it is read, however long that takes: nobody else is handed the message, nor does it die unseen.
    Then it is over at once, and counts."""
    config = BrokerConfig(visibility_seconds=LEASE_SECONDS, peers=peers)
    async with open_broker(store, config, clock_ns=wall_clock) as broker:
        await broker.create_queue("dead")
        await broker.create_queue("q")
        await broker.change_settings("q", {"max_receives": 2, "dead_letter_queue": "dead"})
        await broker.publish("q", bytes(size))
        await wait_all_tasks_blocked()
        for receives in (1, 2):
            store.read_seconds = 10
            async with trio.open_nursery() as nursery:

                async def fetch_slowly(receives: int = receives) -> None:
                    message = await broker.fetch("q", visibility=SHORTEST_SECONDS)
                    assert message is not None
                    assert message.receives == receives
                    assert len(await message.body.read()) == size

                nursery.start_soon(fetch_slowly)
                if size > LARGEST_BODY:
                    await trio.sleep(5)
                    assert await broker.fetch("q") is None
            await trio.sleep(0.1)
        store.read_seconds = 0
        assert await broker.fetch("q") is None
        assert await broker.fetch("dead") is not None


@pytest.mark.parametrize("read_seconds", [16.9, 17.1])
async def test_a_lease_that_is_over_at_once_is_given_back_as_any_other(
    broker: Broker, store: Store, read_seconds: float
) -> None:
    await broker.publish("q", bytes(LARGEST_BODY + 1))
    await wait_all_tasks_blocked()
    store.read_seconds = read_seconds
    is_late = read_seconds > 17
    with pytest.raises(StorageSlow, match="overloaded") if is_late else nullcontext():
        assert await broker.fetch("q", visibility=SHORTEST_SECONDS) is not None
    store.read_seconds = 0
    assert (await fetch(broker, wait=1)).receives == (1 if is_late else 2)


async def test_a_lease_that_is_over_at_once_is_named_short_where_others_end_it(
    store: Store, wall_clock: WallClock
) -> None:
    async with open_broker(store, BrokerConfig(peers=1, mover=False), clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"x")
        [new] = await store.scan(State.NEW)
        await store.commit([Move(new, State.READY, new.meta)])
        assert await broker.fetch("q", visibility=SHORTEST_SECONDS) is not None
        assert await left_seconds(store, wall_clock) < MARGIN_SECONDS + 0.1


async def test_an_old_look_at_a_shared_store_makes_no_lease_late(store: Store, wall_clock: WallClock) -> None:
    """A listing that began before the lease says that the message is READY. The store has said DONE: that counts."""
    config = BrokerConfig(visibility_seconds=LEASE_SECONDS, peers=1)
    async with open_broker(store, config, clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        await broker.publish("q", bytes(LARGEST_BODY + 1))
        await wait_all_tasks_blocked()
        [before] = await store.scan(State.READY, "q")
        store.read_seconds = GLANCE_SECONDS / 2  # it is over before the store is looked at again
        async with trio.open_nursery() as nursery:

            async def fetch_one() -> None:
                assert (await fetch(broker)).receives == 1

            nursery.start_soon(fetch_one)
            while not await store.scan(State.DELAYED):
                await trio.sleep(0.001)
            await trio.sleep(0.001)
            broker._watcher._appeared(before)


async def test_whoever_comes_while_it_is_looked_for_others_finds_what_he_published(
    store: Store, wall_clock: WallClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where messages come by way of NEW: elsewhere there is nothing to look for."""
    found: dict[str, bytes] = {}
    caught_up = Upkeep.caught_up
    came = trio.Event()
    async with open_broker(store, BrokerConfig(strict=True), clock_ns=wall_clock) as broker:
        await broker.create_queue("q")

        async def take_one(who: str) -> None:
            found[who] = await (await fetch(broker)).body.read()

        async with trio.open_nursery() as nursery:

            async def caught_up_while_another_comes(upkeep: Upkeep, index: QueueIndex) -> None:
                await caught_up(upkeep, index)
                if not came.is_set():
                    came.set()
                    await broker.publish("q", b"his")
                    nursery.start_soon(take_one, "he")
                    for _ in range(3):
                        await trio.lowlevel.checkpoint()

            monkeypatch.setattr(Upkeep, "caught_up", caught_up_while_another_comes)
            await broker.publish("q", b"first")
            await take_one("the first")
        assert came.is_set()
        assert found == {"the first": b"first", "he": b"his"}


async def test_nobody_waits_while_thousands_of_messages_are_chosen(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[int] = []
    choose = FetchWorker._choose

    def count(*args: object) -> object:
        found = choose(*args)  # type: ignore[arg-type]
        chosen.append(len(found[0]) + sum(len(hand.messages) for hand in found[1]))
        return found

    monkeypatch.setattr(FetchWorker, "_choose", count)
    for _ in range(5):
        await broker.publish_many("q", [Draft(b"x")] * 1000)
    await wait_all_tasks_blocked()
    found: list[int] = []

    async def fetch_many() -> None:
        found.append(len(await broker.fetch_many("q", 500)))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(fetch_many)
    assert found == [500] * 10
    assert max(chosen) < LARGEST_GROUP + 500
