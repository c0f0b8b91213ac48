"""What clients declare reserves memory until it is deleted, whatever becomes of their connections."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from mq.amqp.model.declared import Binding, Destination, Exchange, ExchangeType, Queue
from mq.amqp.model.vhost import TopologyChange
from mq.amqp.server.declared_memory import BINDING_BYTES, EXCHANGE_BYTES, QUEUE_BYTES, WORD_BYTES
from mq.doors.budget import Budget
from tests.amqp.dialling import Client, House, open_house

Exchanges, Queues = commands.Exchange, commands.Queue
MEMORY = 4 * 200_000
"""A client may declare a quarter of it, all of them a half."""


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house(memory=Budget(MEMORY)) as opened:
        yield opened


def used(house: House) -> int:
    """Bytes that declarations have reserved."""
    return house.door.memory._declared.used


async def bind(client: Client, key: str, exchange: str = "amq.topic", queue: str = "q", **more: Any) -> Any:
    return await client.call(Queues.Bind(queue=queue, exchange=exchange, routing_key=key, **more))


async def declare_many(client: Client, name: str) -> int:
    """Declare exchanges until one is refused. Returns how many there are."""
    for number in range(1000):
        answer = await client.call(Exchanges.Declare(exchange=f"{name}-{number}", auto_delete=False))
        if answer.name != "Exchange.DeclareOk":
            assert (answer.name, answer.reply_code) == ("Channel.Close", 406)
            assert "memory" in answer.reply_text
            await client.say(commands.Channel.CloseOk())
            await client.open_channel(1)
            return number
    raise AssertionError("none was refused")


async def test_declarations_reserve_memory_until_they_are_deleted(house: House) -> None:
    client = await house.connect()
    await client.declare("q", durable=True)
    assert used(house) == 0  # the number of queues that last is limited elsewhere
    await client.call(Exchanges.Declare(exchange="e", exchange_type="topic"))
    assert used(house) == EXCHANGE_BYTES
    for _ in range(2):
        await bind(client, "a.b.c", "e")
    assert EXCHANGE_BYTES + BINDING_BYTES + 3 * WORD_BYTES < used(house) < EXCHANGE_BYTES + 2 * BINDING_BYTES + 2000
    await client.call(Queues.Unbind(queue="q", exchange="e", routing_key="a.b.c"))
    assert used(house) == EXCHANGE_BYTES
    await bind(client, "a.b.c", "e")
    await client.call(Exchanges.Delete(exchange="e"))
    assert used(house) == 0


async def test_exclusive_queues_reserve_memory_until_their_connection_ends(house: House) -> None:
    client, other = await house.connect(), await house.connect()
    for _ in range(3):
        name = await client.declare("", exclusive=True)
    await bind(client, "k", "amq.direct", name)
    assert used(house) == 3 * QUEUE_BYTES + BINDING_BYTES + 2 + 3 * len("{}")
    await client.call(commands.Connection.Close(200, "bye", 0, 0), 0)
    await other.declare("q", exclusive=True)
    assert used(house) == QUEUE_BYTES


async def test_client_is_refused_above_its_share_and_others_are_not(house: House) -> None:
    client, other = await house.connect(), await house.connect()
    count = await declare_many(client, "e")
    assert count == MEMORY // 4 // EXCHANGE_BYTES
    assert await declare_many(other, "f") == count
    await client.call(Exchanges.Delete(exchange="e-0"))
    assert (await client.call(Exchanges.Declare(exchange="again"))).name == "Exchange.DeclareOk"
    assert (await client.call(Exchanges.Declare(exchange="e-1"))).name == "Exchange.DeclareOk"  # it is there


async def test_refused_declaration_leaves_nothing(house: House) -> None:
    client = await house.connect()
    count = await declare_many(client, "e")
    before = used(house)
    assert await declare_many(client, "f") == 0
    assert used(house) == before == count * EXCHANGE_BYTES


async def test_long_arguments_count(house: House) -> None:
    client = await house.connect()
    await client.declare("q", durable=True)
    await bind(client, "k", "amq.headers", arguments={f"h{number}": "x" * 1000 for number in range(10)})
    assert used(house) > 10 * (WORD_BYTES + 3000)
    before = used(house)
    await client.declare("", {"x-note": "y" * 10_000}, exclusive=True)
    assert used(house) > before + 30_000


async def test_declarations_in_the_store_count_after_a_start(tmp_path: Path) -> None:
    for _ in range(2):
        async with open_house(f"posix:{tmp_path}/root", memory=Budget(MEMORY)) as house:
            client = await house.connect()
            await client.declare("q", durable=True)
            await client.call(Exchanges.Declare(exchange="e", exchange_type="topic", durable=True))
            await bind(client, "a.b", "e")
            assert used(house) == EXCHANGE_BYTES + BINDING_BYTES + 2 * WORD_BYTES + 2 * len("a.b") + 3 * len("{}")
    async with open_house(f"posix:{tmp_path}/root", memory=Budget(MEMORY)) as house:
        client = await house.connect()
        await client.call(Queues.Delete(queue="q"))
        assert used(house) == EXCHANGE_BYTES


@pytest.mark.slow
async def test_reserved_memory_is_what_declarations_take() -> None:
    """Within a factor of two, also for the patterns that take the most."""
    async with open_house() as house:
        store = house.door.topology_store
        await store.change(lambda: house.door.topology.declare_queue(Queue("/", "q", durable=True)))
        to, count = Destination(True, "q"), 100

        def exchanges(number: int) -> TopologyChange:
            return house.door.topology.declare_exchange(Exchange("/", f"e{number}", ExchangeType.TOPIC))

        def direct(number: int) -> TopologyChange:
            return house.door.topology.bind(Binding("/", "amq.direct", to, f"key-{number}"))

        def topic(number: int) -> TopologyChange:
            return house.door.topology.bind(Binding("/", "amq.topic", to, f"key-{number}" + ".word" * 40))

        def by_headers(number: int) -> TopologyChange:
            given = {"x-match": "any"} | {f"h-{number}-{each}": each for each in range(40)}
            return house.door.topology.bind(Binding("/", "amq.headers", to, "", given))

        def queues(number: int) -> TopologyChange:
            return house.door.topology.declare_queue(Queue("/", f"q{number}", owner="someone"))

        for make in (exchanges, direct, topic, by_headers, queues):
            tracemalloc.start()
            try:
                gc.collect()
                reserved, (before, _) = used(house), tracemalloc.get_traced_memory()
                for number in range(count):
                    await store.change(lambda made=number, make=make: make(made))  # type: ignore[misc]
                gc.collect()
                took = (tracemalloc.get_traced_memory()[0] - before) / count
            finally:
                tracemalloc.stop()
            each = (used(house) - reserved) / count
            assert took / 1.3 < each < 2.5 * took, f"{make.__name__}: {took:.0f} bytes, reserved {each:.0f}"
