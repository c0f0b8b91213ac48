"""However a connection ends: what it published is stored, or somebody is told that it is not."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

import pytest
import trio
from pamqp import commands
from trio.testing import MockClock

from mq.amqp.server import listener
from mq.amqp.server.backlog import Backlog
from mq.amqp.server.client_connection import LINGER_SECONDS
from mq.amqp.server.served_connection import GOODBYE_SECONDS, READ_BYTES
from mq.amqp.server.state import AmqpState
from mq.doors.budget import Budget
from mq.storage.interface import Operation, Outcome, Result, Write
from mq.storage.layered import LayeredStorage
from mq.storage.memory import MemoryStorage
from tests.amqp.dialling import Client, House, open_house

Basic, Channel, Confirm, Connection, Queue = (
    commands.Basic,
    commands.Channel,
    commands.Confirm,
    commands.Connection,
    commands.Queue,
)
GOODBYE = Connection.Close(200, "bye", 0, 0)
SLOW: float = 3 * LINGER_SECONDS
PERSISTENT = {"delivery_mode": 2}
MANY = 1000
"""Messages: several batches of the store."""


class Store(MemoryStorage):
    """A disk that takes its time for messages, has no room, or fails."""

    seconds = 0.0
    result = Result.DONE

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        if not any(isinstance(operation, Write) for operation in operations):
            return await super().commit(operations)
        with trio.CancelScope(shield=True):
            await trio.sleep(self.seconds)
        if self.result is Result.DONE:
            return await super().commit(operations)
        outcomes = []
        for each in operations:
            refused = [Outcome(self.result, reason="what a pity")]
            outcomes += refused if isinstance(each, Write) else await super().commit([each])
        return outcomes


class Place(House):
    """A house with such a store."""

    store: Store


@asynccontextmanager
async def open_place(memory: Budget | None = None) -> AsyncIterator[Place]:
    store = Store()
    layered = LayeredStorage(store, 1 << 30)
    await layered.open()
    async with open_house(layered, memory=memory) as house:
        place = Place(house.broker, house.door, house.nursery)
        place.store = store
        yield place
        store.result = Result.DONE


@pytest.fixture
async def place(autojump_clock: MockClock) -> AsyncIterator[Place]:
    async with open_place() as place:
        yield place


async def publisher(place: Place, *bodies: bytes, confirms: bool = False) -> Client:
    """It has published these, and the store takes its time."""
    client = await place.connect()
    await client.declare(durable=True)
    if confirms:
        await client.call(Confirm.Select())
    place.store.seconds = SLOW
    await client.publish("q", *bodies, **PERSISTENT)
    return client


def bodies(number: int) -> list[bytes]:
    return [b"%d" % each for each in range(number)]


async def all_stored(place: Place) -> None:
    await trio.sleep(1)  # it is read
    while place.door.backlog.value:
        await trio.sleep(1)


@pytest.mark.slow
@pytest.mark.parametrize("goodbye", [GOODBYE, Channel.Close(200, "", 0, 0)])
async def test_close_ok_waits_for_messages_with_confirms(
    autojump_clock: MockClock, place: Place, goodbye: Connection.Close | Channel.Close
) -> None:
    client = await publisher(place, *bodies(MANY), confirms=True)
    begin = trio.current_time()
    answer = await client.call(goodbye, int(isinstance(goodbye, Channel.Close)))
    assert answer.name == goodbye.valid_responses[0]
    assert trio.current_time() - begin >= SLOW
    assert place.door.backlog.value == 0
    confirmed = [frame for _, frame in client.said if frame.name == "Basic.Ack"]
    assert confirmed[-1].delivery_tag == MANY
    assert await (await place.connect()).bodies() == bodies(MANY)


@pytest.mark.slow
@pytest.mark.parametrize("goodbye", [GOODBYE, Channel.Close(200, "", 0, 0)])
async def test_close_ok_does_not_wait_long_for_messages_without_confirms(
    autojump_clock: MockClock, place: Place, goodbye: Connection.Close | Channel.Close
) -> None:
    client = await publisher(place, *bodies(MANY))
    begin = trio.current_time()
    answer = await client.call(goodbye, int(isinstance(goodbye, Channel.Close)))
    assert answer.name == goodbye.valid_responses[0]
    assert trio.current_time() - begin == pytest.approx(GOODBYE_SECONDS)
    await client.stream.aclose()
    await all_stored(place)
    assert await (await place.connect()).bodies() == bodies(MANY)


async def test_close_ok_comes_once_everything_is_stored_by_a_quick_store(
    autojump_clock: MockClock, place: Place
) -> None:
    client = await publisher(place, *bodies(MANY))
    place.store.seconds = GOODBYE_SECONDS / 20
    assert (await client.call(GOODBYE, 0)).name == "Connection.CloseOk"
    assert place.door.backlog.value == 0
    assert await client.hear() is None  # and the stream ends
    assert await (await place.connect()).bodies() == bodies(MANY)


async def test_what_a_client_has_to_itself_goes_before_its_goodbye_is_answered(
    autojump_clock: MockClock, place: Place
) -> None:
    client = await publisher(place, b"x")
    place.store.seconds = 0
    await client.declare("own", exclusive=True)
    place.store.seconds = SLOW
    await client.publish("q", b"y", **PERSISTENT)
    assert (await client.call(GOODBYE, 0)).name == "Connection.CloseOk"
    assert [queue.name for queue in await place.broker.queues()] == ["q"]
    other = await place.connect()
    await other.declare("own", exclusive=True)


async def test_nobody_waits_for_a_closing_client_to_get_what_it_held(autojump_clock: MockClock, place: Place) -> None:
    client, other = await place.connect(), await place.connect()
    await client.declare("held")
    await client.publish("held", b"held")
    await client.consume("held", exclusive=True)
    await client.delivery()
    await client.declare(durable=True)
    place.store.seconds = SLOW
    await client.publish("q", b"x", **PERSISTENT)
    await client.say(GOODBYE, channel=0)
    await trio.sleep(1)
    got = await other.get("held")
    assert got is not None
    assert got[2] == b"held"
    assert (await client.hear()).name == "Connection.CloseOk"


@pytest.mark.slow
@pytest.mark.parametrize("is_closing", [False, True])
async def test_what_was_read_is_stored_when_the_connection_breaks(
    autojump_clock: MockClock, place: Place, *, is_closing: bool
) -> None:
    client = await publisher(place, *bodies(MANY))
    if is_closing:
        await client.say(GOODBYE, channel=0)
    await client.stream.aclose()
    await all_stored(place)
    await trio.sleep(LINGER_SECONDS + 1)
    assert place.door.connections == set()
    assert await (await place.connect()).bodies() == bodies(MANY)


async def test_what_was_read_is_stored_when_the_daemon_stops(autojump_clock: MockClock, place: Place) -> None:
    client = await publisher(place, *bodies(MANY))
    await trio.sleep(1)
    [served] = place.door.connections
    served.close("mq stops")  # type: ignore[attr-defined]
    assert (await client.hear()).name == "Connection.Close"
    await client.say(GOODBYE, channel=0)  # it was about to
    assert (await client.hear()).name == "Connection.CloseOk"
    await client.stream.aclose()
    await all_stored(place)
    await trio.sleep(LINGER_SECONDS + 1)
    assert place.door.connections == set()
    assert await (await place.connect()).bodies() == bodies(MANY)


async def test_a_client_that_waits_for_its_goodbye_is_not_silent_and_hears_us(
    autojump_clock: MockClock, place: Place
) -> None:
    client = await place.connect(heartbeat=4)
    await client.declare(durable=True)
    await client.call(Confirm.Select())
    place.store.seconds = 100
    await client.publish("q", b"x", **PERSISTENT)
    await client.say(GOODBYE, channel=0)
    raw, begin = b"", trio.current_time()
    while b"\x00\x0a\x00\x33" not in raw:  # connection.close-ok
        more = await client.stream.receive_some()
        assert more, "it was dropped"
        raw += more
    assert trio.current_time() - begin >= 99
    assert raw.count(b"\x08\x00\x00\x00\x00\x00\x00\xce") > 20


async def test_a_client_that_goes_on_sending_after_its_goodbye_is_not_cut_off(
    autojump_clock: MockClock, place: Place
) -> None:
    client = await publisher(place, b"x")
    await client.say(GOODBYE, channel=0)
    await client.publish("q", *[bytes(1000)] * 5000, **PERSISTENT)  # with no one to read this it would wait for ever
    assert (await client.hear()).name == "Connection.CloseOk"
    assert await client.hear() is None
    await client.stream.aclose()
    await all_stored(place)
    assert await (await place.connect()).bodies() == [b"x"]


@pytest.mark.parametrize("goodbye", [GOODBYE, Channel.Close(200, "", 0, 0)])
async def test_a_store_that_fails_is_the_answer_to_a_goodbye(
    autojump_clock: MockClock, place: Place, caplog: pytest.LogCaptureFixture, goodbye: Connection.Close | Channel.Close
) -> None:
    client = await publisher(place, *bodies(10), confirms=True)
    place.store.result = Result.FAILED
    answer = await client.call(goodbye, int(isinstance(goodbye, Channel.Close)))
    assert (answer.name, answer.reply_code) == ("Connection.Close", 541)
    assert "what a pity" in answer.reply_text
    await client.say(Connection.CloseOk(), channel=0)
    assert await client.hear() is None
    await trio.sleep(1)
    [lost] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "10 messages" in lost
    assert "what a pity" in lost
    other = await place.connect()
    await other.declare("passing")
    await other.publish("passing", b"x")
    begin = trio.current_time()
    assert (await other.call(GOODBYE, 0)).name == "Connection.Close"  # nothing is stored any more: that is said at once
    assert trio.current_time() - begin < 1


@pytest.mark.slow
async def test_what_clients_leave_in_a_full_store_is_bounded_and_logged(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    budget = Budget(2 << 20)
    async with open_place(budget) as place:
        client = await place.connect()
        await client.declare(durable=True)
        place.store.result = Result.FULL
        for _ in range(40):
            other = await place.connect()
            await other.publish("q", *[bytes(1000)] * 50, **PERSISTENT)
            await other.stream.aclose()
            await trio.sleep(5)
        assert place.door.backlog.value < budget.most * 2 // 3 + READ_BYTES
        assert "50 messages" in caplog.text
        left = place.door.backlog.value // 50 // 2000 * 50
        place.store.result = Result.DONE
        await trio.sleep(10)
        assert await client.count() >= left > 0
        assert place.door.backlog.value == 0
        assert budget.free == budget.most


@pytest.mark.slow
async def test_nothing_more_is_read_from_publishers_while_too_much_waits_in_all(autojump_clock: MockClock) -> None:
    budget = Budget(3 << 20)
    async with open_place(budget) as place:
        other, *clients = [await place.connect() for _ in range(11)]
        await clients[0].declare(durable=True)
        await clients[0].publish("q", b"before", **PERSISTENT)
        assert await clients[0].count() == 1
        place.store.result = Result.FULL
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(_flood, client)
            await trio.sleep(60)
            most = budget.most * 2 // 3
            assert most <= place.door.backlog.value < most + len(clients) * 3 * READ_BYTES
            assert await other.bodies() == [b"before"]  # who publishes nothing is heard
            place.store.result = Result.DONE
            await trio.sleep(60)
            nursery.cancel_scope.cancel()
        assert place.door.backlog.value < most


async def _flood(client: Client) -> None:
    for _ in range(60):
        await client.publish("q", *[bytes(1000)] * 50, **PERSISTENT)


async def test_what_is_not_stored_when_the_daemon_is_cut_off_is_logged(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_place() as place:
        client = await publisher(place, *bodies(10))
        await client.say(GOODBYE, channel=0)
        await trio.sleep(1)
        place.nursery.cancel_scope.cancel()
    [lost] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "10 messages" in lost


async def test_a_stop_waits_as_long_as_the_store_takes_something(autojump_clock: MockClock) -> None:
    backlog = Backlog()
    door = cast("AmqpState", SimpleNamespace(backlog=backlog))
    ended = 0.0
    async with trio.open_nursery() as behind:
        with trio.CancelScope() as scope:
            behind.start_soon(listener._cut_off, scope, door, 10.0)
            for _ in range(4):
                await trio.sleep(8)
                assert backlog.is_awaited
                backlog.wake()
            await trio.sleep_forever()
        ended = trio.current_time()
        behind.cancel_scope.cancel()
    assert ended == pytest.approx(4 * 8 + 10)
