"""Dead letters of a daemon whose memory for transient messages is full: none is lost, stuck, or sent on twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import pytest
from pamqp import commands
from trio.testing import MockClock

from mq.storage.interface import MESSAGE_BYTES, AnyOperation, Move, Outcome, Result, Unlink
from mq.storage.layered import LayeredStorage
from mq.storage.memory import MemoryStorage
from tests.amqp.dialling import Client, open_house

Basic = commands.Basic
SIZE: Final = 1000
EACH: Final = SIZE + MESSAGE_BYTES + 200
"""What a message takes in memory, at the most; a dead letter takes more, for its history."""
FITTING: Final = 100
MEMORY: Final = FITTING * EACH
DEAD_LETTERS: Final = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> LayeredStorage:
    monkeypatch.setattr("mq.storage.memory.MOST_BESIDE", 0)
    return LayeredStorage(MemoryStorage(), MEMORY)


async def publish(client: Client, count: int, **properties: Any) -> None:
    await client.publish("q", *(b"%*d" % (SIZE, number) for number in range(count)), **properties)
    await client.count("q")


async def numbers(client: Client, queue: str) -> Counter[int]:
    return Counter(int(body) for body in await client.bodies(queue))


async def taken_slowly(client: Client, queue: str) -> Counter[int]:
    """What a queue has had, when a few of its messages were taken each second."""
    found: Counter[int] = Counter()
    for _ in range(100):
        await client.is_silent()
        for _ in range(7):
            if (got := await client.get(queue, no_ack=True)) is not None:
                found[int(got[2])] += 1
    return found


async def test_messages_in_memory_find_room_in_memory_when_they_die(
    autojump_clock: MockClock, store: LayeredStorage
) -> None:
    async with open_house(store) as house:
        client = await house.connect()
        await client.declare("dead", durable=True)
        await client.declare("other", durable=True)
        await client.declare("q", DEAD_LETTERS, durable=True)
        held = FITTING // 2  # one queue has no more than is left for all others
        await publish(client, held, delivery_mode=1)
        await client.publish("other", *[bytes(SIZE)] * (FITTING // 4), delivery_mode=1)
        assert await client.count("other") == FITTING // 4
        while (got := await client.get("q")) is not None:
            last = got[0].delivery_tag
        await client.say(Basic.Nack(last, True, False))
        while await client.count("dead") != held:
            await client.is_silent()
        assert max((await numbers(client, "dead")).values()) == 1
        assert await client.count("q") == 0


async def test_dead_letters_without_room_are_sent_on_once_each_as_room_comes(
    autojump_clock: MockClock, store: LayeredStorage
) -> None:
    async with open_house(store) as house:
        client = await house.connect()
        await client.declare("dead")  # it does not outlive the daemon: its messages are in memory
        await client.declare("q", DEAD_LETTERS | {"x-message-ttl": 1000}, durable=True)
        await publish(client, 200, delivery_mode=2)
        assert await taken_slowly(client, "dead") == Counter(range(200))


async def test_a_dead_letter_goes_once_to_each_queue_though_one_has_no_room(
    autojump_clock: MockClock, store: LayeredStorage
) -> None:
    async with open_house(store) as house:
        client = await house.connect()
        await client.declare("dead")
        await client.declare("disk", durable=True)
        for queue in ("dead", "disk"):
            await client.call(commands.Queue.Bind(queue=queue, exchange="amq.fanout"))
        arguments = {"x-dead-letter-exchange": "amq.fanout", "x-message-ttl": 1000}
        await client.declare("q", arguments, durable=True)
        await publish(client, 200, delivery_mode=2)
        assert await taken_slowly(client, "dead") == Counter(range(200))
        assert await numbers(client, "disk") == Counter(range(200))


async def test_a_dead_letter_whose_original_cannot_be_removed_is_sent_on_once(autojump_clock: MockClock) -> None:
    class Stubborn(MemoryStorage):
        """Refuses to remove messages for a while."""

        left = 20

        async def commit(self, operations: Sequence[AnyOperation]) -> list[Outcome]:
            if any(isinstance(each, Unlink | Move) and each.entry.queue == "q" for each in operations) and self.left:
                Stubborn.left -= 1
                return [Outcome(Result.FULL, reason="no room")] * len(operations)
            return await super().commit(operations)

    async with open_house(Stubborn()) as house:
        client = await house.connect()
        await client.declare("dead", durable=True)
        await client.declare("q", DEAD_LETTERS | {"x-message-ttl": 1000}, durable=True)
        await publish(client, 5, delivery_mode=2)
        await client.is_silent(100)
        assert not Stubborn.left
        assert await numbers(client, "dead") == Counter(range(5))
        assert await client.count("q") == 0
