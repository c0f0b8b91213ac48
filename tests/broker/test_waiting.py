"""Whoever waits for a message gets it the moment it is there; first come, first served; and nobody waits too long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mq.broker import Broker, open_broker
from mq.errors import NoSuchQueue
from mq.lifecycle import State
from mq.message import Message
from mq.storage.interface import Entry, Move, Operation, Outcome, Stored
from mq.storage.memory import MemoryStorage
from tests.broker.conftest import Opener, WallClock
from tests.broker.inside import catalog_of, wiring_of
from tests.broker.test_broker import take


class Waiter:
    """A fetch that waits, and what became of it and when."""

    def __init__(self, broker: Broker, wait: float = 100, most: int = 1, queue: str = "q") -> None:
        self._broker = broker
        self._wait = wait
        self._most = most
        self._queue = queue
        self.answered: float | None = None
        self.messages: list[Message] = []
        self.error: Exception | None = None
        self.scope = trio.CancelScope()

    async def run(self) -> None:
        with self.scope:
            try:
                self.messages = await self._broker.fetch_many(self._queue, self._most, wait=self._wait)
            except NoSuchQueue as error:
                self.error = error
            self.answered = trio.current_time()


async def start(nursery: trio.Nursery, *waiters: Waiter) -> None:
    for waiter in waiters:
        nursery.start_soon(waiter.run)
        await wait_all_tasks_blocked()


async def publish(broker: Broker) -> None:
    await broker.publish("q", b"x")


async def publish_with_delay(broker: Broker) -> None:
    await broker.publish("q", b"x", delay=7)


async def let_a_lease_end(broker: Broker) -> None:
    await broker.publish("q", b"x")
    assert await broker.fetch("q", visibility=7) is not None


async def give_back_later(broker: Broker) -> None:
    id = await broker.publish("q", b"x")
    assert await take(broker) == b"x"
    await trio.sleep(7)
    await broker.requeue("q", id)


async def end_a_lease_early(broker: Broker) -> None:
    id = await broker.publish("q", b"x")
    assert await take(broker) == b"x"
    await broker.extend("q", id, 7)


async def redrive(broker: Broker) -> None:
    await broker.create_queue("other")
    await broker.publish("other", b"x")
    await trio.sleep(7)
    assert (await broker.redrive("other", "q")).moved == 1


async def pause_and_go_on(broker: Broker) -> None:
    await broker.change_settings("q", {"paused": True})
    await broker.publish("q", b"x")
    await trio.sleep(7)
    await broker.change_settings("q", {"paused": None})


@pytest.mark.parametrize(
    ("make_ready", "seconds"),
    [
        (publish, 0),
        (publish_with_delay, 7),
        (let_a_lease_end, 7),
        (give_back_later, 7),
        (end_a_lease_early, 7),
        (redrive, 7),
        (pause_and_go_on, 7),
    ],
)
async def test_who_waits_is_answered_the_moment_a_message_is_ready(
    broker: Broker, make_ready: Callable[[Broker], Awaitable[None]], seconds: float
) -> None:
    started = trio.current_time()
    await make_ready(broker)
    waiter = Waiter(broker)
    async with trio.open_nursery() as nursery:
        await start(nursery, waiter)
    assert [await message.body.read() for message in waiter.messages] == [b"x"]
    assert waiter.answered == pytest.approx(started + seconds, abs=0.002)


async def test_who_is_waiting_already_is_answered_at_once(broker: Broker) -> None:
    waiter = Waiter(broker)
    async with trio.open_nursery() as nursery:
        await start(nursery, waiter)
        await trio.sleep(10)
        published = trio.current_time()
        await broker.publish("q", b"x")
    assert waiter.answered == published


async def test_first_come_first_served(broker: Broker) -> None:
    waiters = [Waiter(broker) for _ in range(5)]
    async with trio.open_nursery() as nursery:
        await start(nursery, *waiters)
        for number, waiter in enumerate(waiters):
            await broker.publish("q", b"%d" % number)
            await wait_all_tasks_blocked()
            assert [await message.body.read() for message in waiter.messages] == [b"%d" % number]


async def test_who_does_not_wait_is_not_served_before_those_who_do(broker: Broker) -> None:
    async with trio.open_nursery() as nursery:
        waiter = Waiter(broker)
        await start(nursery, waiter)
        await broker.publish("q", b"first")
        assert await broker.fetch("q") is None
        await wait_all_tasks_blocked()
        assert len(waiter.messages) == 1


async def test_nothing_comes_and_the_wait_is_over(broker: Broker) -> None:
    started = trio.current_time()
    assert await broker.fetch("q", wait=12.5) is None
    assert trio.current_time() == started + 12.5
    assert not wiring_of(broker).waiters.queues


async def test_a_batch_waits_for_the_first_message_only(broker: Broker) -> None:
    waiter = Waiter(broker, most=10)
    async with trio.open_nursery() as nursery:
        await start(nursery, waiter)
        await broker.publish("q", b"x")
        await wait_all_tasks_blocked()
        assert len(waiter.messages) == 1


async def test_who_goes_takes_no_message_and_no_place_in_the_line(broker: Broker) -> None:
    gone, stays = Waiter(broker), Waiter(broker)
    async with trio.open_nursery() as nursery:
        await start(nursery, gone, stays)
        gone.scope.cancel()
        await wait_all_tasks_blocked()
        await broker.publish("q", b"x")
    assert (len(gone.messages), len(stays.messages)) == (0, 1)
    assert stays.messages[0].receives == 1


@pytest.mark.slow
@pytest.mark.parametrize("steps", range(30))
async def test_whoever_goes_in_any_step_of_an_arrival_leaves_the_message_to_the_next(
    broker: Broker, steps: int
) -> None:
    gone, stays = Waiter(broker), Waiter(broker)
    async with trio.open_nursery() as nursery:
        await start(nursery, gone, stays)
        nursery.start_soon(broker.publish, "q", b"x")
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        gone.scope.cancel()
        await wait_all_tasks_blocked()
        assert len(gone.messages) + len(stays.messages) == 1
        stays.scope.cancel()
    status = await broker.status("q")
    assert (status.ready, status.leased) == (0, 1)


async def test_who_waits_for_a_queue_that_is_deleted_is_told(broker: Broker) -> None:
    waiters = [Waiter(broker), Waiter(broker)]
    async with trio.open_nursery() as nursery:
        await start(nursery, *waiters)
        await broker.delete_queue("q")
    assert all(isinstance(waiter.error, NoSuchQueue) for waiter in waiters)


async def test_who_waits_when_the_broker_closes_gets_nothing_at_once(address: str, opened: Opener) -> None:
    async with trio.open_nursery() as nursery, opened(address) as broker:
        await broker.create_queue("q")
        waiter = Waiter(broker, wait=3600)
        await start(nursery, waiter)
        closing = trio.current_time()
    assert (waiter.messages, waiter.answered) == ([], closing)


class Stolen(MemoryStorage):
    """A store in which somebody else takes the next message just before it can be leased, after so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.steals = True
        self.seconds = seconds

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        leases = [each for each in operations if isinstance(each, Move) and each.state is State.DELAYED]
        if self.steals and leases:
            self.steals = False
            await trio.sleep(self.seconds)
            await super().commit([Move(each.entry, State.REMOVED) for each in leases])
        return await super().commit(operations)


async def test_a_wait_that_is_over_while_its_message_is_lost_to_another_ends(wall_clock: WallClock) -> None:
    """It had left the line and come back, with nobody who would end it."""
    async with open_broker(Stolen(1.5), clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        waiter = Waiter(broker, wait=1)
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                await start(nursery, waiter)
                await broker.publish("q", b"x", ttl=60)  # not to be leased by the batch that writes it
        assert waiter.messages == []


async def test_a_broker_ends_though_a_message_is_lost_to_another_just_then(wall_clock: WallClock) -> None:
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery, open_broker(Stolen(1.5), clock_ns=wall_clock) as broker:
            await broker.create_queue("q")
            await start(nursery, Waiter(broker, wait=3600))
            await broker.publish("q", b"x", ttl=60)  # not to be leased by the batch that writes it
            await trio.sleep(1)


class SlowToRead(MemoryStorage):
    """A store whose bodies take a second to be opened."""

    async def read(self, entries: Sequence[Entry]) -> list[Stored | None]:
        await trio.sleep(1)
        return await super().read(entries)


async def test_a_lease_that_ends_before_its_body_is_there_leaves_the_message_in_its_queue(
    wall_clock: WallClock,
) -> None:
    """Whoever asked has gone: what was leased is given back, but not from where it is no more."""
    async with open_broker(SlowToRead(), clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"x", ttl=60)  # not to be leased by the batch that writes it
        with trio.move_on_after(0.75):
            await broker.fetch("q", visibility=0.5)
        await trio.sleep(5)
        assert await take(broker) == b"x"


async def test_what_was_published_is_found_behind_any_number_of_deliveries(
    wall_clock: WallClock, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mq.broker.mover.LARGEST_ROUND", 10)
    async with opened("memory:", strict=True) as broker:  # else nothing is delivered: it is READY at once
        await broker.create_queue("q")
        await broker.create_queue("busy")
        async with trio.open_nursery() as nursery:
            for _ in range(95):
                nursery.start_soon(broker.publish, "busy", b"")
            nursery.start_soon(broker.publish, "q", b"x")
            while not (index := catalog_of(broker).queues["q"]).undelivered:
                await trio.lowlevel.checkpoint()
            assert catalog_of(broker).queues["busy"].undelivered
            assert await take(broker) == b"x"
            assert not index.undelivered
