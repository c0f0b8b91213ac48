"""A publisher that is faster than the store: it is told so, loses nothing, and delays no other connection."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import pytest
import trio
from pamqp import commands
from trio.testing import MockClock

from mq.amqp.server import listener
from mq.amqp.server.listener import LONGEST_STOP_SECONDS
from mq.amqp.server.publishes import OWN_RESERVE
from mq.broker.commit import PATIENCE_SECONDS
from mq.doors.budget import CLIENT_PART, Budget
from mq.storage.interface import AnyOperation, Description, Drop, Outcome, Put
from mq.storage.layered import LayeredStorage
from mq.storage.memory import MemoryStorage
from tests.amqp.dialling import Client, House, open_house

Basic, Channel, Confirm, Connection, Queue, Tx = (
    commands.Basic,
    commands.Channel,
    commands.Confirm,
    commands.Connection,
    commands.Queue,
    commands.Tx,
)
GOODBYE: Final = Connection.Close(200, "bye", 0, 0)
PERSISTENT: Final = {"delivery_mode": 2}
EACH_SECONDS: Final = 0.003
"""For a message: the disk syncs about 300 times a second."""
RECORD_SECONDS: Final = 0.01


class SlowStore(MemoryStorage):
    """Syncs each message and record for itself. What comes meanwhile waits in line, as in a store of files."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = EACH_SECONDS
        self._gate = trio.Lock()

    @property
    def description(self) -> Description:
        return super().description._replace(durable=True, places=False, groups=0)

    async def commit(self, operations: Sequence[AnyOperation]) -> list[Outcome]:
        async with self._gate:
            with trio.CancelScope(shield=True):
                await trio.sleep(sum(map(self._seconds_of, operations)))
            return await super().commit(operations)

    def _seconds_of(self, operation: AnyOperation) -> float:
        return (
            RECORD_SECONDS if isinstance(operation, Put | Drop) else self.seconds * getattr(operation, "durable", True)
        )


@asynccontextmanager
async def open_slow_house(memory: Budget | None = None) -> AsyncIterator[tuple[House, SlowStore]]:
    store = SlowStore()
    layered = LayeredStorage(store, 1 << 30)
    await layered.open()
    async with open_house(layered, memory=memory) as house:
        yield house, store


async def flood(client: Client, count: int, queue: str = "flood", size: int = 1024) -> None:
    """Publish without waiting for anything."""
    await client.publish(queue, *[b"%0*d" % (size, number) for number in range(count)], **PERSISTENT)


async def all_stored(house: House) -> None:
    await trio.sleep(1)  # it is read
    while house.door.backlog.value:
        await trio.sleep(1)


async def longest_declare(house: House, seconds: float, name: str = "other") -> float:
    """Declare and delete a queue each second, on a connection of its own. How long the longest took."""
    longest = 0.0
    for _ in range(int(seconds)):
        began = trio.current_time()
        client = await house.connect()
        await client.declare(name, durable=True)
        declared = trio.current_time()
        assert (await client.call(Queue.Delete(queue=name))).name == "Queue.DeleteOk"
        longest = max(longest, declared - began, trio.current_time() - declared)
        await client.close()
        await trio.sleep(1)
    return longest


@pytest.mark.parametrize("count", [3000, pytest.param(20_000, marks=pytest.mark.slow)])
async def test_flood_without_confirms_arrives_and_delays_no_declaration(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    async with open_slow_house() as (house, _):
        client = await house.connect()
        await client.declare("flood", durable=True)
        longest = 0.0

        async def others() -> None:
            nonlocal longest
            longest = await longest_declare(house, count // 600)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            began = trio.current_time()
            await flood(client, count)
            assert (await client.call(GOODBYE, 0)).name == "Connection.CloseOk"
            assert trio.current_time() - began < 2  # as long as aio-pika waits
            await client.stream.aclose()
        assert 0 < longest <= 1
        assert house.door.backlog.value > 0  # it was still being stored
        await all_stored(house)
        assert await (await house.connect()).count("flood") == count
        assert house.door.memory.free == house.door.memory.most
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_many_floods_delay_no_declaration_and_share_the_store(autojump_clock: MockClock) -> None:
    async with open_slow_house() as (house, _):
        clients = [await house.connect() for _ in range(10)]
        for number, client in enumerate(clients):
            await client.declare(f"flood-{number}", durable=True)
        for number, client in enumerate(clients):
            await flood(client, 400, f"flood-{number}")
        await trio.sleep(2)
        assert await longest_declare(house, 4) <= 1
        probe = await house.connect()
        counts = [await probe.count(f"flood-{number}") for number in range(10)]
        assert min(counts) > 0.5 * max(counts) > 0


async def test_publish_of_another_connection_is_confirmed_soon(autojump_clock: MockClock) -> None:
    async with open_slow_house() as (house, _):
        client, other = await house.connect(), await house.connect()
        await client.declare("flood", durable=True)
        await other.call(Confirm.Select())
        await flood(client, 4000)
        await trio.sleep(3)
        for _ in range(5):
            began = trio.current_time()
            await other.publish("flood", b"x", **PERSISTENT)
            assert (await other.hear()).name == "Basic.Ack"
            assert trio.current_time() - began < 0.5
            await trio.sleep(0.3)


async def test_only_a_connection_that_publishes_too_fast_is_blocked_until_it_is_not(autojump_clock: MockClock) -> None:
    async with open_slow_house() as (house, _):
        client, other = await house.connect(), await house.connect()
        await client.declare("flood", durable=True)
        await other.call(Confirm.Select())
        await flood(client, 3000)
        began = trio.current_time()
        blocked = await client.hear()
        assert (blocked.name, blocked.reason) == ("Connection.Blocked", "publishing faster than the store can write")
        assert trio.current_time() - began < 2  # of 9 seconds of work
        await other.publish("flood", b"x", **PERSISTENT)
        assert (await other.hear()).name == "Basic.Ack"
        assert (await client.hear()).name == "Connection.Unblocked"
        assert 6 < trio.current_time() - began < 12
        assert await other.is_silent()


async def test_client_that_vanishes_loses_nothing_of_what_was_read(autojump_clock: MockClock) -> None:
    async with open_slow_house() as (house, _):
        client = await house.connect()
        await client.declare("flood", durable=True)
        await flood(client, 1000)
        await trio.sleep(0.1)
        await client.stream.aclose()
        await all_stored(house)
        assert await (await house.connect()).count("flood") == 1000


async def test_backlog_of_a_connection_leaves_it_some_of_its_quarter_of_the_memory(autojump_clock: MockClock) -> None:
    memory = Budget(1 << 22)
    async with open_slow_house(memory) as (house, _):
        client = await house.connect()
        await client.declare("flood", durable=True)
        await flood(client, 2000)
        await trio.sleep(1)
        most = memory.most // CLIENT_PART - memory.most // OWN_RESERVE
        assert most <= house.door.backlog.value < most + 512 * 1024
        assert memory.used == pytest.approx(house.door.backlog.value, rel=0.5)


@pytest.mark.slow
async def test_backlog_is_limited_in_seconds_while_others_wait_for_the_store(autojump_clock: MockClock) -> None:
    async with open_slow_house() as (house, store):
        client = await house.connect()
        await client.declare("flood", durable=True)
        await flood(client, 300)
        await trio.sleep(2)
        house.broker.progress.note_wait(1.0)
        for _ in range(30):
            await flood(client, 500)
            house.broker.progress.note_wait(1.0)
            await trio.sleep(0.5)
        [served] = house.door.connections
        waiting = served.publishes.size / 2100  # type: ignore[attr-defined]
        assert 8 < waiting * store.seconds < 14


@pytest.mark.slow
async def test_connection_is_not_closed_because_others_keep_the_store_busy(autojump_clock: MockClock) -> None:
    async with open_slow_house() as (house, store):
        client, other = await house.connect(), await house.connect()
        await client.declare("flood", durable=True)
        await other.declare("q", durable=True)
        await other.publish("q", *[b"x"] * 20, **PERSISTENT)
        assert await other.count("q") == 20
        await flood(client, 2000)
        await trio.sleep(1)
        store.seconds = 0.05
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(150):
                third = await house.connect()
                nursery.start_soon(declared, third, f"new-{number}")
        assert trio.current_time() - began > PATIENCE_SECONDS
        assert (await other.call(Queue.Purge(queue="q"))).message_count == 20


async def declared(client: Client, name: str) -> None:
    await client.declare(name, durable=True)


async def test_declaring_a_queue_again_does_not_delay_others(autojump_clock: MockClock) -> None:
    """What was under way to a deleted queue of that name has to go first."""
    async with open_slow_house() as (house, _):
        client, other = await house.connect(), await house.connect()
        await client.declare("flood", durable=True)
        await flood(client, 3000)
        await trio.sleep(2)
        assert (await other.call(Queue.Delete(queue="flood"))).name == "Queue.DeleteOk"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(declared, other, "flood")
            await trio.sleep(0.1)
            assert await longest_declare(house, 3) <= 1


async def test_transaction_of_many_messages_delays_no_declaration(autojump_clock: MockClock) -> None:
    async with open_slow_house() as (house, _):
        client = await house.connect()
        await client.declare("flood", durable=True)
        await client.call(Tx.Select())
        await flood(client, 3000)
        await client.say(Tx.Commit())
        await trio.sleep(2)
        assert await longest_declare(house, 4) <= 1
        assert (await client.hear()).name == "Tx.CommitOk"
        assert await (await house.connect()).count("flood") == 3000


@pytest.mark.slow
async def test_flood_of_a_queue_with_a_maximum_length_delays_no_declaration(autojump_clock: MockClock) -> None:
    async with open_slow_house() as (house, _):
        client = await house.connect()
        await client.declare("flood", {"x-max-length": 10}, durable=True)
        await flood(client, 3000)
        await trio.sleep(2)
        assert await longest_declare(house, 4) <= 1
        await all_stored(house)
        await trio.sleep(5)
        assert await client.count("flood") == 10


async def test_stop_waits_for_the_backlog_for_a_limited_time_and_logs_what_is_lost(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_slow_house() as (house, store):
        client = await house.connect()
        await client.declare("flood", durable=True)
        await client.stream.aclose()
        store.seconds = 0.06
        async with trio.open_nursery() as behind:
            async with trio.open_nursery() as running:
                client = await House(house.broker, house.door, running).connect()
                await flood(client, 1000)
                await trio.sleep(0.1)
                await client.stream.aclose()
                began = trio.current_time()
                behind.start_soon(listener._cut_off, running.cancel_scope, house.door, 10.0)
            assert trio.current_time() - began == pytest.approx(LONGEST_STOP_SECONDS)
            behind.cancel_scope.cancel()
    [lost] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    stored = int(LONGEST_STOP_SECONDS / 0.06)
    count = int(lost.removeprefix("mq cannot confirm that it stored ").split()[0])
    assert 1000 - stored <= count < 1000 - stored + 200  # in portions of 128
