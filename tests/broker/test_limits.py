"""What a queue may hold: never more under reject, the newest under drop-head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pytest
import trio
import trio.lowlevel
from trio.testing import wait_all_tasks_blocked

from mq.broker import Broker, Draft, Published, open_broker
from mq.broker.index import QueueIndex
from mq.broker.settings import DROP_HEAD
from mq.errors import QueueFull
from mq.lifecycle import State, Transition
from mq.storage.interface import Description, Entry, Operation, Outcome, Write
from mq.storage.memory import MemoryStorage
from tests.broker.conftest import Opener, WallClock
from tests.broker.inside import catalog_of
from tests.broker.test_broker import take


class Weighing(MemoryStorage):
    """A store that knows the most that it ever held, and the most bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.most = self.most_bytes = 0

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        outcomes = await super().commit(operations)
        if any(isinstance(operation, Write) for operation in operations):
            held = [
                kept
                for (state, _), there in self._places.items()
                if state is not State.REMOVED
                for kept in there.values()
            ]
            self.most = max(self.most, len(held))
            self.most_bytes = max(self.most_bytes, sum(len(kept.data) for kept in held))
        return outcomes


@pytest.mark.parametrize("limit", [{"max_messages": 7}, {"max_bytes": 700}])
async def test_concurrent_publishers_never_get_over_a_limit(wall_clock: WallClock, limit: dict[str, int]) -> None:
    store, stored, refused = Weighing(), 0, 0

    async def publish(batch: int) -> None:
        nonlocal stored, refused
        for _ in range(10):
            for outcome in await broker.publish_many("q", [Draft(b"x" * 100)] * batch):
                stored += isinstance(outcome, Published)
                refused += isinstance(outcome, QueueFull)
            await trio.sleep(0.1)

    async def consume() -> None:
        for _ in range(15):
            message = await broker.fetch("q", wait=1)
            if message is not None:
                await trio.lowlevel.checkpoint()
                await broker.remove("q", message.id)

    async with open_broker(store, clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        await broker.change_settings("q", limit)
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(publish, 1 + number % 3)
                nursery.start_soon(consume)
        left = len(await broker.fetch_many("q", 100))
    assert refused > 0
    assert stored > 7
    assert left <= 7
    assert store.most <= 7
    assert store.most_bytes <= 700


@pytest.mark.parametrize("limit", [{"max_messages": 3}, {"max_bytes": 3}])
async def test_leased_and_delayed_messages_count_and_a_removal_makes_room(
    broker: Broker, limit: dict[str, int]
) -> None:
    await broker.change_settings("q", limit)
    await broker.publish("q", b"1")
    leased = await broker.fetch("q")
    assert leased is not None
    await broker.publish("q", b"2", delay=50)
    await broker.publish("q", b"3")
    with pytest.raises(QueueFull):
        await broker.publish("q", b"4")
    await broker.remove("q", leased.id)
    await broker.publish("q", b"5")
    with pytest.raises(QueueFull):
        await broker.publish("q", b"6")


async def test_a_body_over_what_is_left_is_refused_and_a_shorter_one_is_not(broker: Broker) -> None:
    await broker.change_settings("q", {"max_bytes": 100})
    await broker.publish("q", b"x" * 60)
    with pytest.raises(QueueFull):
        await broker.publish("q", b"x" * 41)
    await broker.publish("q", b"x" * 40)
    await broker.publish("q", b"")


@pytest.mark.parametrize("limit", [{"max_messages": 3}, {"max_bytes": 3}])
async def test_a_limit_holds_over_a_restart(disk_address: str, opened: Opener, limit: dict[str, int]) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.change_settings("q", limit)
        for _ in range(3):
            await broker.publish("q", b"x")
        assert await take(broker) == b"x"
    async with opened(disk_address) as broker:
        with pytest.raises(QueueFull):
            await broker.publish("q", b"x")
        assert await take(broker) == b"x"
        assert await broker.purge("q") == 1
        await broker.publish("q", b"x")
        with pytest.raises(QueueFull):
            await broker.publish("q", b"x")


@pytest.mark.parametrize("limit", [{"max_messages": 3}, {"max_bytes": 3}])
@pytest.mark.parametrize("when", ["before", "after", "restart"])
async def test_the_oldest_that_nobody_holds_goes(
    disk_address: str, opened: Opener, limit: dict[str, int], when: str
) -> None:
    settings = {**limit, "overflow": "drop-head"}
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        if when != "after":
            await broker.change_settings("q", settings)
        await broker.publish("q", b"0")
        held = await broker.fetch("q")
        assert held is not None
        if when == "restart":
            for number in range(1, 3):
                await broker.publish("q", b"%d" % number)
    async with opened(disk_address) as broker:
        for number in range(3 if when == "restart" else 1, 8):
            await broker.publish("q", b"%d" % number)
        if when == "after":
            await broker.change_settings("q", settings)
        await wait_all_tasks_blocked()
        status = await broker.status("q")
        assert (status.ready, status.leased) == (2, 1)
        assert [await take(broker), await take(broker)] == [b"6", b"7"]
        await broker.remove("q", held.id, receipt=held.receipt)


async def test_what_is_held_back_goes_too_when_it_is_the_oldest(broker: Broker) -> None:
    """Else a queue whose messages all wait would hold any number."""
    await broker.change_settings("q", {"max_messages": 3, "overflow": "drop-head", "delay": 50})
    ids = [await broker.publish("q", b"x") for _ in range(10)]
    await wait_all_tasks_blocked()
    assert (await broker.status("q")).delayed == 3
    await trio.sleep(51)
    assert [message.id for message in await broker.fetch_many("q", 10)] == ids[-3:]


async def test_what_is_dropped_goes_to_the_dead_letter_queue(broker: Broker) -> None:
    await broker.create_queue("dead")
    await broker.change_settings("q", {"max_messages": 1, "overflow": "drop-head", "dead_letter_queue": "dead"})
    for body in (b"old", b"new"):
        await broker.publish("q", body)
    await wait_all_tasks_blocked()
    message = await broker.fetch("dead")
    assert message is not None
    assert await message.body.read() == b"old"
    assert [(death["queue"], death["reason"]) for death in message.dead_letter_history] == [("q", "dropped")]


# Redrives


@pytest.mark.parametrize(
    ("limit", "fitting"),
    [
        ({"max_messages": 10}, 7),
        ({"max_bytes": 1000}, 7),
        ({"max_bytes": 950}, 6),
        ({"max_messages": 3}, 0),
        ({"max_bytes": 300}, 0),
        ({"max_messages": 5, "max_bytes": 1000}, 2),
        ({}, 30),
    ],
)
async def test_a_redrive_moves_no_more_than_its_target_takes(
    broker: Broker, limit: dict[str, int], fitting: int
) -> None:
    await broker.create_queue("full")
    await broker.change_settings("full", limit)
    await broker.publish_many("full", [Draft(b"x" * 100)] * 3)
    await broker.publish_many("q", [Draft(b"x" * 100)] * 30)
    assert await broker.redrive("q", "full") == (fitting, 30 - fitting)
    assert (await broker.status("full")).ready == 3 + fitting
    assert await broker.redrive("q", "full") == (0, 30 - fitting)
    assert await broker.take("full") is not None
    assert (await broker.redrive("q", "full")).moved == int(fitting < 30)


async def test_a_redrive_to_where_messages_died_passes_over_full_queues(broker: Broker) -> None:
    for queue in ("dead", "a", "b"):
        await broker.create_queue(queue)
    for queue in ("a", "b"):
        await broker.change_settings(queue, {"dead_letter_queue": "dead"})
        await broker.publish_many(queue, [Draft(b"x")] * 5)
        await broker.reject(await broker.hold(queue, 5))
    await broker.change_settings("a", {"max_messages": 2})
    assert await broker.redrive("dead") == (7, 3)
    assert [(await broker.status(queue)).ready for queue in ("dead", "a", "b")] == [3, 2, 5]


async def test_a_redrive_and_publishes_at_the_same_time_keep_the_limit(broker: Broker) -> None:
    await broker.create_queue("full")
    await broker.change_settings("full", {"max_messages": 20})
    await broker.publish_many("q", [Draft(b"x")] * 30)
    stored = 0

    async def publish() -> None:
        nonlocal stored
        for _ in range(30):
            outcomes = await broker.publish_many("full", [Draft(b"y")])
            stored += isinstance(outcomes[0], Published)
            assert (await broker.status("full")).ready <= 20

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(publish)
        moved = (await broker.redrive("q", "full")).moved
    assert moved + stored == (await broker.status("full")).ready == 20
    assert catalog_of(broker).queues["full"].reserved == 0


async def test_a_queue_that_drops_its_oldest_takes_every_redriven_message(broker: Broker) -> None:
    await broker.create_queue("newest")
    await broker.change_settings("newest", {"max_messages": 4, "overflow": DROP_HEAD})
    await broker.publish_many("q", [Draft(b"%d" % number) for number in range(10)])
    assert await broker.redrive("q", "newest") == (10, 0)
    await wait_all_tasks_blocked()
    assert [await take(broker, "newest") for _ in range(5)] == [b"6", b"7", b"8", b"9", None]


# A queue is never seen over its limits


class Watching:
    """An observer that looks at a queue's counts with each transition, and keeps the most that it has seen."""

    def __init__(self) -> None:
        self.broker: Broker | None = None
        self.most = self.most_bytes = 0

    def saw(self, transitions: Sequence[Transition]) -> None:
        self.look()

    def look(self) -> None:
        index = catalog_of(self.broker).queues.get("q") if self.broker is not None else None
        if self.broker is not None and index is not None:
            self.most = max(self.most, self.broker.declarations.ready("q"))
            self.most_bytes = max(self.most_bytes, 0 if index.bodies is None else index.bodies.total)


class Placing(MemoryStorage):
    """A store whose batches take time, in which others look. It writes a message where it rests."""

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        await trio.sleep(0.01)
        return await super().commit(operations)


class Delivering(Placing):
    """The same, from whose NEW messages are delivered."""

    @property
    def description(self) -> Description:
        return super().description._replace(places=False)


STORES: Final = {"places": Placing, "delivers": Delivering}


@pytest.mark.slow
@pytest.mark.parametrize("dead_letters", [False, True])
@pytest.mark.parametrize("more", [{}, {"max_priority": 5}, {"groups": True}], ids=str)
@pytest.mark.parametrize("limit", [{"max_messages": 10}, {"max_bytes": 1000}], ids=str)
@pytest.mark.parametrize("store", STORES)
async def test_a_queue_is_never_seen_over_its_limits_while_messages_are_dropped(
    wall_clock: WallClock, store: str, limit: dict[str, int], more: dict[str, Any], dead_letters: bool
) -> None:
    watching = Watching()

    async def publish(batch: int) -> None:
        for number in range(6):
            drafts = [Draft(b"x" * 100, priority=number % 6) for _ in range(batch)]
            assert all(isinstance(each, Published) for each in await broker.publish_many("q", drafts))

    async def look() -> None:
        while True:
            watching.look()
            await trio.sleep(0.001)

    async with open_broker(STORES[store](), observers=[watching], clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        await broker.create_queue("dead")
        settings = {**limit, **more, "overflow": DROP_HEAD} | ({"dead_letter_queue": "dead"} if dead_letters else {})
        await broker.change_settings("q", settings)
        watching.broker = broker
        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            async with trio.open_nursery() as publishers:
                for batch in (1, 3, 40, 150):
                    publishers.start_soon(publish, batch)
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        status = await broker.status("q")
        assert (watching.most <= limit.get("max_messages", 10), watching.most_bytes <= 1000) == (True, True)
        assert (status.ready, status.leased, status.delayed) == (limit.get("max_messages", 10), 0, 0)
        if dead_letters:
            assert (await broker.status("dead")).ready == 6 * 194 - status.ready


@pytest.mark.parametrize("store", STORES)
async def test_requeued_messages_over_the_limit_are_dropped(wall_clock: WallClock, store: str) -> None:
    async with open_broker(STORES[store](), clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        await broker.change_settings("q", {"max_messages": 10, "overflow": DROP_HEAD})
        await broker.publish_many("q", [Draft(b"%d" % number) for number in range(10)])
        held = await broker.hold("q", 10)
        await broker.publish_many("q", [Draft(b"%d" % number) for number in range(10, 20)])
        assert broker.declarations.ready("q") == 10
        await broker.put_back(held[:5])
        assert broker.declarations.ready("q") == 10
        await trio.sleep(1)
        assert [each.message.id for each in held[:5]] != [each.message.id for each in await broker.hold("q", 5)]


async def test_a_message_that_is_dropped_while_it_is_delivered_is_not_handed_out(
    wall_clock: WallClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One batch delivers it and writes the next one."""
    dropped: list[Entry] = []
    real = QueueIndex.drop_delivered

    def drop_delivered(index: QueueIndex, entry: Entry) -> None:
        real(index, entry)
        dropped.append(entry)

    async def publish() -> None:
        for _ in range(10):
            await broker.publish("q", b"old")

    monkeypatch.setattr(QueueIndex, "drop_delivered", drop_delivered)
    async with open_broker(Delivering(), clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        await broker.change_settings("q", {"max_messages": 1, "overflow": DROP_HEAD})
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(publish)
        last = await broker.publish("q", b"new")
        await trio.sleep(1)
        assert dropped
        assert [message.id for message in await broker.fetch_many("q", 10)] == [last]
        index = catalog_of(broker).queues["q"]
        assert (len(index.dropping), len(index.delivering), index.moving) == (0, 0, 0)
