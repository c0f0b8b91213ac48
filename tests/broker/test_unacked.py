"""Messages that are held as long as a connection lasts: nothing moves until they are settled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mq.broker import Broker, Draft, UnackedMessage, open_broker
from mq.broker.catalog import LARGEST_BODY
from mq.errors import Conflict, NoSuchQueue, QueueHeld, StorageError, StorageFailed, StorageFull, StorageStopped
from mq.lifecycle import Kind, State
from mq.observers.metrics import Metrics
from mq.storage.interface import Entry, Move, Operation, Outcome, Result, Stored
from mq.storage.memory import MemoryStorage
from tests.broker.conftest import Legal, Opener, WallClock
from tests.broker.inside import catalog_of
from tests.broker.test_broker import take
from tests.record_hooks import RecordHooks

READ = b"1" * (LARGEST_BODY + 1)
"""A body that is read from the store, however recently it was published."""


async def publish(broker: Broker, *bodies: bytes) -> None:
    await broker.publish_many("q", [Draft(body) for body in bodies])


async def hold(broker: Broker, most: int = 1, wait: float = 0) -> list[UnackedMessage]:
    return await broker.hold("q", most, wait=wait)


async def bodies(held: Sequence[UnackedMessage]) -> list[bytes]:
    return [await each.message.body.read() for each in held]


class Watching(Metrics):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[Kind, str, int]] = []

    def counted(self, kind: Kind, queue: str, count: int = 1, *rest: Any, **more: Any) -> None:
        self.told.append((kind, queue, count))


async def test_observers_hear_nothing_of_a_hold_that_gets_no_message(autojump_clock: MockClock) -> None:
    """Each report makes an entry for the queue, which counts against a limit."""
    watching = Watching()
    async with open_broker(MemoryStorage(), observers=[watching]) as broker:
        await broker.create_queue("q")
        for paused in (True, False):
            await broker.change_settings("q", {"paused": paused})
            assert await hold(broker) == []
            assert await hold(broker, wait=1) == []
        assert watching.told == []
        await publish(broker, b"x")
        await hold(broker)
    assert watching.told[:2] == [(Kind.PUBLISH, "q", 1), (Kind.LEASE, "q", 1)]


async def test_a_wall_clock_that_jumps_makes_no_message_old(wall_clock: WallClock) -> None:
    metrics = Metrics()
    async with open_broker(MemoryStorage(), observers=[metrics], clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        for fetch in (take, hold):
            await publish(broker, b"x")
            wall_clock.ahead_seconds += 3600
            await fetch(broker)
    ages = metrics.durations()["delivery_age"]
    assert ages.buckets[-1] == ("+Inf", 2)
    assert ages.total < 1


async def test_what_is_held_is_nobody_elses_however_long(broker: Broker) -> None:
    await publish(broker, b"1", b"2")
    held = await hold(broker)
    await trio.sleep(80_000)
    assert await bodies(held) == [b"1"]
    assert await take(broker) == b"2"
    assert await take(broker) is None
    status = await broker.status("q")
    assert (status.ready, status.leased, status.delayed) == (0, 2, 0)


async def test_holding_moves_nothing(broker: Broker, observer: Legal) -> None:
    await publish(broker, b"1")
    before = len(observer.seen)
    await hold(broker)
    assert {seen.kind for seen in observer.seen[before:]} <= {Kind.DELIVER}  # of what the store has in NEW first


async def test_what_is_acknowledged_is_gone(broker: Broker) -> None:
    await publish(broker, *(b"%d" % number for number in range(5)))
    held = await hold(broker, 3)
    await broker.acknowledge(held[1:2])
    await broker.acknowledge([held[2]], durable=True)
    await broker.put_back(held)
    assert await bodies(await hold(broker, 10)) == [b"0", b"3", b"4"]


async def test_what_is_put_back_is_in_its_place_and_marked(broker: Broker) -> None:
    await publish(broker, b"1", b"2", b"3")
    held = await hold(broker, 2)
    assert [each.redelivered for each in held] == [False, False]
    await broker.put_back(held[1:], redelivered=False)
    await broker.put_back(held[:1])
    again = await hold(broker, 3)
    assert await bodies(again) == [b"1", b"2", b"3"]
    assert [each.redelivered for each in again] == [True, False, False]


async def test_what_was_leased_before_is_redelivered(broker: Broker) -> None:
    await publish(broker, b"1")
    message = await broker.fetch("q")
    assert message is not None
    await broker.requeue("q", message.id)
    assert [each.redelivered for each in await hold(broker)] == [True]


async def test_what_is_sent_back_is_last_after_a_restart_too(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await publish(broker, b"1", b"2", b"3")
        await broker.put_back(await hold(broker, 2), to_back=True)
        assert [each.redelivered for each in await hold(broker, 3)] == [False, True, True]
    async with opened(disk_address) as broker:
        assert await bodies(await hold(broker, 3)) == [b"3", b"1", b"2"]


async def test_what_was_there_before_a_restart_may_have_been_held(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await publish(broker, b"held", b"not")
        [message] = await hold(broker)
        assert not message.redelivered
    async with opened(disk_address) as broker:
        await publish(broker, b"new")
        again = await hold(broker, 3)
        assert await bodies(again) == [b"held", b"not", b"new"]
        assert [each.redelivered for each in again] == [True, True, False]
        assert [each.message.receives for each in again] == [1, 1, 1]  # a hint, and not counted


async def test_all_that_was_held_is_there_after_a_restart(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await publish(broker, b"1", b"2")
        await hold(broker, 2)
    async with opened(disk_address) as broker:
        assert await bodies(await hold(broker, 3)) == [b"1", b"2"]


async def test_what_is_rejected_goes_to_the_dead_letters_with_its_history(broker: Broker) -> None:
    await broker.create_queue("dead")
    await broker.change_settings("q", {"dead_letter_queue": "dead"})
    await publish(broker, b"1")
    await broker.reject(await hold(broker))
    [held] = await broker.hold("dead")
    assert [death["reason"] for death in held.message.dead_letter_history] == ["rejected"]
    assert await take(broker) is None


async def test_what_is_rejected_is_removed_where_there_are_no_dead_letters(broker: Broker, observer: Legal) -> None:
    await publish(broker, b"1")
    await broker.reject(await hold(broker))
    assert (await broker.status("q")).leased == 0
    assert observer.seen[-1].kind in (Kind.REMOVE, Kind.REAP)
    assert Kind.EXPIRE not in {seen.kind for seen in observer.seen}


async def test_messages_are_dealt_one_each_in_turn(broker: Broker) -> None:
    got: dict[str, list[bytes]] = {"a": [], "b": [], "c": []}

    async def consume(name: str, most: int) -> None:
        got[name] += await bodies(await hold(broker, most, wait=math.inf))

    async with trio.open_nursery() as nursery:
        for name, most in (("a", 10), ("b", 1), ("c", 10)):
            nursery.start_soon(consume, name, most)
            await wait_all_tasks_blocked()
        await publish(broker, *(b"%d" % number for number in range(6)))
    assert got == {"a": [b"0", b"3", b"5"], "b": [b"1"], "c": [b"2", b"4"]}


async def test_those_who_lease_and_those_who_hold_are_served_in_turn(broker: Broker) -> None:
    got: list[str] = []

    async def fetch() -> None:
        assert await broker.fetch("q", wait=100) is not None
        got.append("leased")

    async def consume() -> None:
        assert await hold(broker, wait=100)
        got.append("held")

    async with trio.open_nursery() as nursery:
        for waiter in (fetch, consume, fetch):
            nursery.start_soon(waiter)
            await wait_all_tasks_blocked()
        for _ in range(3):
            await publish(broker, b"x")
            await wait_all_tasks_blocked()
            await trio.sleep(1)
    assert got == ["leased", "held", "leased"]


async def test_whoever_hung_up_holds_nothing(broker: Broker) -> None:
    with trio.move_on_after(5):
        await hold(broker, wait=math.inf)
    await publish(broker, b"1")
    assert [each.redelivered for each in await hold(broker)] == [False]


@pytest.mark.parametrize("call", ["purge", "redrive", "expire"])
async def test_what_is_held_is_let_be(broker: Broker, call: str) -> None:
    await broker.create_queue("other")
    id = await broker.publish("q", b"1", ttl=10)
    held = await hold(broker)
    if call == "purge":
        assert await broker.purge("q") == 0
    elif call == "redrive":
        assert (await broker.redrive("q", "other", ids=[id])).moved == 0
    else:
        await trio.sleep(20)
    assert (await broker.status("q")).leased == 1
    await broker.acknowledge(held, durable=True)
    assert not await hold(broker)
    assert not await broker.hold("other")


async def test_what_has_expired_while_it_was_held_is_not_handed_out_again(broker: Broker) -> None:
    await broker.publish("q", b"1", ttl=10)
    held = await hold(broker)
    await trio.sleep(20)
    await broker.put_back(held)
    assert not await hold(broker)


async def test_others_may_remove_what_is_held(broker: Broker) -> None:
    await publish(broker, b"1", b"2")
    held = await hold(broker, 2)
    await broker.remove("q", held[0].message.id)
    await broker.put_back(held)
    await broker.acknowledge(held)
    assert await bodies(await hold(broker, 2)) == [b"2"]


async def test_held_messages_can_be_looked_at(broker: Broker) -> None:
    await publish(broker, b"1", b"2")
    [held] = await hold(broker)
    seen = await broker.show("q", held.message.id)
    assert seen.state == "leased"
    assert [each.message.id for each in await broker.peek("q", state="leased")] == [held.message.id]
    assert len(await broker.peek("q")) == 1


async def test_held_messages_do_not_count_for_the_queues_limits(broker: Broker) -> None:
    await broker.change_settings("q", {"max_messages": 1, "overflow": "drop-head"})
    await publish(broker, b"1")
    await hold(broker)
    await publish(broker, b"2")
    await publish(broker, b"3")
    await broker.peek("q")  # what is published has come to its queue
    assert await bodies(await hold(broker)) == [b"3"]


async def test_a_held_message_counts_for_a_unique_queue(broker: Broker) -> None:
    await publish(broker, b"1")
    [held] = await hold(broker)
    await broker.change_settings("q", {"unique": True})
    assert await broker.publish("q", b"1") == held.message.id


async def test_marks_of_what_has_gone_are_forgotten(broker: Broker) -> None:
    await publish(broker, b"1", b"2")
    await broker.put_back(await hold(broker, 2))
    await broker.acknowledge(await hold(broker), durable=True)
    await broker.take("q")
    assert not catalog_of(broker).queues["q"].returned


async def test_a_paused_queue_gives_nothing_to_hold(broker: Broker) -> None:
    await publish(broker, b"1")
    await broker.change_settings("q", {"paused": True})
    assert not await hold(broker)
    await broker.change_settings("q", {"paused": False})
    assert await hold(broker)


async def test_who_waits_hears_that_the_queue_is_deleted_and_what_is_held_is_gone(broker: Broker) -> None:
    await publish(broker, b"1")
    held = await hold(broker)
    async with trio.open_nursery() as nursery:

        async def consume() -> None:
            with pytest.raises(NoSuchQueue):
                await hold(broker, wait=math.inf)

        nursery.start_soon(consume)
        await wait_all_tasks_blocked()
        await broker.delete_queue("q")
    await broker.create_queue("q")
    await broker.acknowledge(held)
    await broker.put_back(held)
    assert not await hold(broker)


async def test_one_consumer_may_have_a_queue_alone(broker: Broker) -> None:
    await publish(broker, b"1")
    exclusion = await broker.exclude("q")
    for refused in (broker.fetch("q"), broker.take("q"), broker.hold("q"), broker.exclude("q")):
        with pytest.raises(QueueHeld):
            await refused
    assert await broker.hold("q", exclusion=exclusion)
    exclusion.end()
    exclusion.end()
    assert not await broker.hold("q")


async def test_who_waits_hears_that_somebody_has_the_queue_alone(broker: Broker) -> None:
    async with trio.open_nursery() as nursery:

        async def fetch() -> None:
            with pytest.raises(QueueHeld):
                await broker.fetch("q", wait=100)

        nursery.start_soon(fetch)
        await wait_all_tasks_blocked()
        await broker.exclude("q")


class Stubborn(MemoryStorage):
    """A store that refuses what it is told to."""

    unreadable = False
    damaged = False
    full = False
    cancels: trio.CancelScope | None = None
    is_slow = False

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        if self.full:
            return [Outcome(Result.FULL, reason="no room") for _ in operations]
        return await super().commit(operations)

    async def read(self, entries: Sequence[Entry]) -> list[Stored | None]:
        if self.unreadable:
            raise StorageError("cannot read")
        stored = [None] * len(entries) if self.damaged else await super().read(entries)
        if self.cancels is not None:
            self.cancels.cancel()
        if self.is_slow:
            await trio.sleep(1)
        return stored


async def test_what_cannot_be_read_is_held_by_nobody(autojump_clock: object) -> None:
    storage = Stubborn()
    async with open_broker(storage) as broker:
        await broker.create_queue("q")
        await publish(broker, READ)
        storage.unreadable = True
        with pytest.raises(StorageError):
            await hold(broker)
        storage.unreadable = False
        assert [each.redelivered for each in await hold(broker)] == [False]


async def test_what_is_damaged_is_set_aside_for_a_while(autojump_clock: object) -> None:
    storage = Stubborn()
    async with open_broker(storage) as broker:
        await broker.create_queue("q")
        await publish(broker, READ)
        storage.damaged = True
        assert not await hold(broker)
        await wait_all_tasks_blocked()
        assert (await broker.status("q")).leased == 1
        storage.damaged = False
        await trio.sleep(40)
        assert await bodies(await hold(broker)) == [READ]


async def test_what_cannot_be_acknowledged_is_ready_again(autojump_clock: object) -> None:
    storage = Stubborn()
    async with open_broker(storage) as broker:
        await broker.create_queue("q")
        await publish(broker, b"1")
        held = await hold(broker)
        storage.full = True
        with pytest.raises(StorageFull):
            await broker.acknowledge(held)
        storage.full = False
        assert await bodies(await hold(broker)) == [b"1"]


async def test_at_the_back_it_is_behind_those_of_its_priority_only(broker: Broker) -> None:
    await broker.change_settings("q", {"max_priority": 9})
    await broker.publish_many("q", [Draft(b"low 1", priority=4), Draft(b"low 2", priority=4), Draft(b"lowest")])
    await broker.put_back(await hold(broker), to_back=True)
    await broker.publish_many("q", [Draft(b"high", priority=9), Draft(b"low 3", priority=4)])
    await wait_all_tasks_blocked()  # delivered
    first = await hold(broker)
    assert await bodies(first) == [b"high"]
    await broker.put_back(first, to_back=True)
    assert await bodies(await hold(broker, 5)) == [b"high", b"low 2", b"low 1", b"low 3", b"lowest"]


async def test_what_is_acknowledged_twice_is_removed_once(broker: Broker, observer: Legal) -> None:
    await publish(broker, b"1", b"2")
    one, two = await hold(broker, 2)
    await broker.acknowledge([one, one, two])
    await broker.acknowledge([two])
    assert [seen.id for seen in observer.seen if seen.kind is Kind.REMOVE] == [one.message.id, two.message.id]


@pytest.mark.slow
async def test_among_peers_a_hold_is_a_lease_that_is_renewed(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address, peers=1) as broker:
        await broker.create_queue("q")
        await publish(broker, b"1", b"2", b"3")
        held = await hold(broker, 3)
        assert all(each.entry.state is State.DELAYED for each in held)
        await trio.sleep(1000)
        assert not await hold(broker)
        one, two, three = sorted(held, key=lambda each: each.message.id.key)
        await broker.acknowledge([one])
        await broker.put_back([two])
        await broker.put_back([three], to_back=True)
        assert [each.redelivered for each in await hold(broker, 3)] == [True, True]
        with pytest.raises(Conflict):
            await broker.exclude("q")


async def test_among_peers_a_hold_ends_when_nobody_renews_it(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address, peers=1) as broker:
        await broker.create_queue("q")
        await publish(broker, b"1")
        await hold(broker)
    async with opened(disk_address, peers=1) as broker:
        assert not await hold(broker)
        await trio.sleep(40)
        assert await bodies(await hold(broker)) == [b"1"]


@pytest.mark.parametrize("is_slow", [False, True], ids=["in the step of the answer", "before the answer"])
async def test_whoever_is_cancelled_holds_nothing(autojump_clock: object, is_slow: bool) -> None:
    storage = Stubborn()
    async with open_broker(storage) as broker:
        await broker.create_queue("q")
        await publish(broker, READ)
        storage.is_slow = is_slow
        with trio.CancelScope() as storage.cancels:
            await hold(broker, wait=math.inf)
        assert storage.cancels.cancelled_caught
        storage.cancels = None
        await wait_all_tasks_blocked()
        await trio.sleep(2)
        assert [each.redelivered for each in await hold(broker)] == [False]


class SlowToDrop(RecordHooks, MemoryStorage):
    """A queue is gone a while before that is known."""

    async def drop_record(self, kind: str, key: str) -> bool:
        dropped = await super().drop_record(kind, key)
        for _ in range(5):
            await trio.lowlevel.checkpoint()
        return dropped


@pytest.mark.parametrize("kind", [MemoryStorage, SlowToDrop])
async def test_what_goes_with_its_queue_while_it_is_delivered_or_read_is_no_damage(
    caplog: pytest.LogCaptureFixture, kind: type[MemoryStorage]
) -> None:
    async with open_broker(kind()) as broker:
        for steps in range(40):
            await broker.create_queue("q")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_publish_and_hold, broker)
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                await broker.delete_queue("q")
    assert [record.getMessage() for record in caplog.records] == []


async def _publish_and_hold(broker: Broker) -> None:
    with suppress(NoSuchQueue):
        await publish(broker, *[READ] * 5)
        await hold(broker, 5)


@pytest.mark.parametrize("turns", range(8))
async def test_what_is_put_back_comes_before_what_was_published_later(broker: Broker, turns: int) -> None:
    """Also what was handed out before it was delivered: its mover is slower than that of the later ones."""
    held: list[UnackedMessage] = []

    async def consume() -> None:
        while len(held) < 20:
            held.extend(await broker.hold("q", 5, wait=5))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(consume)
        for _ in range(20):
            await broker.publish("q", b"x")
    await broker.publish_many("q", [Draft(b"later")] * 5)
    for _ in range(turns):
        await trio.lowlevel.checkpoint()
    await broker.put_back(held)
    again: list[UnackedMessage] = []
    while len(again) < 25:
        again += await broker.hold("q", 30, wait=5)
    ids = [each.message.id for each in again]
    assert ids == sorted(ids)


class HalfMoving(MemoryStorage):
    """A store whose medium fails while messages are leased: they have moved, and no outcome says so."""

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        outcomes = await super().commit(operations)
        if not any(isinstance(each, Move) and each.state is State.DELAYED for each in operations):
            return outcomes
        await trio.sleep(1)
        return [Outcome(Result.FAILED, reason="Input/output error")] * len(operations)


async def test_what_a_failed_medium_may_have_moved_is_held_by_no_consumer(autojump_clock: MockClock) -> None:
    """Not the next one of a group, either: the one before it is not damaged."""
    async with open_broker(HalfMoving()) as broker:
        await broker.create_queue("q")
        await broker.change_settings("q", {"groups": True})
        await broker.publish_many("q", [Draft(READ, group="g"), Draft(b"2", group="g")])

        async def lease() -> None:
            with pytest.raises(StorageFailed):
                await broker.fetch("q")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lease)
            await trio.sleep(0.5)
            with pytest.raises(StorageStopped):
                await hold(broker, wait=math.inf)
