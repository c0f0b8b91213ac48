"""Clocks that are years wrong in one life and right in the next: nothing answered is lost, doubled or held for ever."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import pytest
import trio

from mq.broker import Broker, Draft, Published, open_broker
from mq.broker.clock import KEY, KIND, ClockRecord
from mq.broker.config import RETRY_SECONDS
from mq.errors import NoSuchMessage, NoSuchQueue, StorageFull
from mq.message import MessageId
from mq.storage.interface import QUEUE, AnyOperation, Drop, Outcome, Put, State
from mq.storage.memory import MemoryStorage
from mq.storage.registry import open_storage
from tests.broker.conftest import Opener, WallClock, leave
from tests.broker.test_broker import take
from tests.storage.disks import MOUNTS, open_disk

YEARS: Final = (-53, -2, 2, 80)
YEAR_SECONDS: Final = 365 * 86_400.0


@pytest.fixture(params=YEARS)
def years(request: pytest.FixtureRequest) -> int:
    """By so many the clock is set between two lives."""
    found: int = request.param
    return found


async def test_what_is_published_after_the_clock_was_set_is_delivered(
    disk_address: str, opened: Opener, wall_clock: WallClock, years: int
) -> None:
    """A machine without a clock of its own starts in 1970; or the one that made the queue was years ahead."""
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
    wall_clock.ahead_seconds += years * YEAR_SECONDS
    async with opened(disk_address) as broker:
        await broker.publish("q", b"x")
        assert await take(broker) == b"x"
    async with opened(disk_address) as broker:
        await trio.sleep(40)
        assert await take(broker) == b"x", "it is there after its lease, and after another start"


async def test_what_dies_after_the_clock_was_set_is_in_the_dead_letter_queue(
    disk_address: str, opened: Opener, wall_clock: WallClock, years: int
) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("dead")
        await broker.create_queue("q")
        await broker.change_settings("q", {"dead_letter_queue": "dead", "max_receives": 1})
        await broker.publish("q", b"x")
    wall_clock.ahead_seconds += years * YEAR_SECONDS
    async with opened(disk_address) as broker:
        assert await take(broker) == b"x"
        await trio.sleep(40)
        message = await broker.fetch("dead")
        assert message is not None
        assert [death["queue"] for death in message.dead_letter_history] == ["q"]
        await trio.sleep(40)
        assert (await broker.redrive("dead", to="q")).moved == 1
        assert await take(broker) == b"x"


async def test_order_is_kept_whatever_the_clock_shows(
    disk_address: str, opened: Opener, wall_clock: WallClock, years: int
) -> None:
    """Of each rank, too: a rank is part of a message's order, and no instant that a clock showed."""
    for day in range(3):
        async with opened(disk_address) as broker:
            await broker.create_queue("q")
            await broker.change_settings("q", {"max_priority": 200})
            [_, done] = await broker.publish_many(
                "q", [Draft(b"%d" % day, priority=200), Draft(b"ranked %d" % day, priority=0)]
            )
            assert isinstance(done, Published)
            assert done.id.time < 1 << 58, "no id is ahead by a rank"
        wall_clock.ahead_seconds += years * YEAR_SECONDS / 3
    async with opened(disk_address) as broker:
        expected = [b"0", b"1", b"2", b"ranked 0", b"ranked 1", b"ranked 2"]
        assert [await take(broker) for _ in range(6)] == expected


@pytest.mark.slow
async def test_a_deleted_queue_made_again_in_the_past_is_empty(
    disk_address: str, opened: Opener, wall_clock: WallClock, years: int
) -> None:
    """Also where the broker died before it had removed what the deleted one left."""
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"leased")
        await take(broker)
        await broker.delete_queue("q")
    async with open_storage(disk_address) as storage:
        await leave(storage)
    wall_clock.ahead_seconds += years * YEAR_SECONDS
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await trio.sleep(100)
        assert await take(broker) is None
        await broker.publish("q", b"x")
        assert await take(broker) == b"x"
    async with opened(disk_address) as broker:
        await broker.purge("q")
        await trio.sleep(50_000)
        assert await take(broker) == b"x", "that one alone: its lease has ended"
        assert await take(broker) is None


# A queue is made when nothing of the one before it is left


class Held(MemoryStorage):
    """A store whose batches of messages wait while a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.until: trio.Event | None = None

    async def commit(self, operations: Sequence[AnyOperation]) -> list[Outcome]:
        if self.until is not None and not all(isinstance(each, Put | Drop) for each in operations):
            await self.until.wait()
        return await super().commit(operations)


@pytest.mark.parametrize("what", ["publish", "extend", "fetch"])
async def test_a_queue_is_not_made_while_something_is_under_way_of_the_one_before_it(
    wall_clock: WallClock, nursery: trio.Nursery, what: str
) -> None:
    store = Held()
    made = trio.Event()

    async def try_it(broker: Broker, id: MessageId) -> None:
        verbs: dict[str, Callable[[], Awaitable[Any]]] = {
            "publish": lambda: broker.publish("q", b"x"),
            "extend": lambda: broker.extend("q", id, 60),
            "fetch": lambda: broker.fetch("q"),
        }
        with suppress(NoSuchQueue, NoSuchMessage):  # or it was faster
            await verbs[what]()

    async def make(broker: Broker) -> None:
        assert await broker.create_queue("q")
        made.set()

    async with open_broker(store, clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"leased")
        await broker.publish("q", b"ready")
        leased = await broker.fetch("q")
        assert leased is not None
        store.until = until = trio.Event()
        nursery.start_soon(try_it, broker, leased.id)
        await trio.testing.wait_all_tasks_blocked()
        await broker.delete_queue("q")
        nursery.start_soon(make, broker)
        await trio.testing.wait_all_tasks_blocked()
        assert not made.is_set()
        store.until = None
        until.set()
        await trio.testing.wait_all_tasks_blocked()
        assert made.is_set()
        assert [await store.scan(state, "q") for state in (State.NEW, State.READY, State.DELAYED)] == [[], [], []]
        await trio.sleep(100)
        assert await broker.fetch("q") is None
        await broker.publish("q", b"y")
        assert await take(broker) == b"y"


async def test_a_queue_whose_leftovers_cannot_be_removed_is_not_made(wall_clock: WallClock) -> None:
    """On a full disk that takes not even a removal: refused, not waited for, and made when there is room."""
    async with open_disk(MOUNTS["rename"]) as disk, open_broker(disk.storage, clock_ns=wall_clock) as broker:
        await broker.publish("q", b"x")
        await take(broker)
        disk.calls.fail("rename", errno.ENOSPC, path="delay/*", times=None)
        await broker.delete_queue("q")
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(3):
            with pytest.raises(StorageFull, match="are still being removed"):
                await broker.create_queue("q")
            await trio.sleep(0.3 * RETRY_SECONDS)
        disk.heal()
        await trio.sleep(RETRY_SECONDS)
        assert await broker.create_queue("q")
        await trio.sleep(100)
        assert await broker.fetch("q") is None


async def test_what_a_start_finds_of_no_queue_is_removed_before_that_queue_is_made(wall_clock: WallClock) -> None:
    """Durably: a crash right behind that leaves none of it to the new queue."""
    async with open_disk(MOUNTS["unordered"]) as disk:
        await leave(disk.storage, "gone")
        async with open_broker(disk.storage, clock_ns=wall_clock) as broker:
            disk.calls.fail("rename", errno.EMFILE, path="delay/*", times=None)
            with pytest.raises(StorageFull):
                await broker.create_queue("gone")
            assert "gone" not in await disk.storage.records(QUEUE)
            disk.heal()
            await trio.sleep(2 * RETRY_SECONDS)
            assert await broker.create_queue("gone")
            await trio.sleep(100)
            assert await broker.fetch("gone") is None


# Keys and consumers


async def test_a_key_stands_for_its_window_and_no_longer(
    disk_address: str, opened: Opener, wall_clock: WallClock, years: int
) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.change_settings("q", {"key_window": 600})
        id = await broker.publish("q", b"x", key="k")
        wall_clock.ahead_seconds += years * YEAR_SECONDS  # by NTP, in the middle of a life
        await trio.sleep(500)
        assert await broker.publish("q", b"x", key="k") == id
        await trio.sleep(200)
        assert await broker.publish("q", b"x", key="k") != id


async def test_a_key_from_a_clock_that_was_ahead_ends_a_window_after_the_start(
    disk_address: str, opened: Opener, wall_clock: WallClock
) -> None:
    """Else what is published with it would not be stored, for years."""
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.change_settings("q", {"key_window": 600})
        id = await broker.publish("q", b"x", key="k")
    wall_clock.ahead_seconds -= 2 * YEAR_SECONDS
    async with opened(disk_address) as broker:
        await trio.sleep(500)
        assert await broker.publish("q", b"x", key="k") == id
        await trio.sleep(200)
        assert await broker.publish("q", b"x", key="k") != id


async def test_an_epoch_is_greater_than_those_before_it_though_the_clock_was_set_back(
    disk_address: str, opened: Opener, wall_clock: WallClock
) -> None:
    """Also where the consumer was forgotten meanwhile."""
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        before = (await broker.claims.start("q", "c")).epoch
    wall_clock.ahead_seconds -= 2 * YEAR_SECONDS
    async with opened(disk_address) as broker:
        await broker.claims.forget("q", "c")
        assert (await broker.claims.start("q", "c")).epoch > before


async def test_stop_records_that_the_clock_was_set_though_an_idle_broker_did_not_look(wall_clock: WallClock) -> None:
    """Or the next start takes the step for time without a daemon, by which leases and times to live end."""
    store = MemoryStorage()
    async with open_broker(store, clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"x")
        await trio.sleep(3600)
        wall_clock.ahead_seconds = 3 * 86_400.0
    record = ClockRecord.stored((await store.records(KIND))[KEY])
    assert record is not None
    assert not record.is_settled
