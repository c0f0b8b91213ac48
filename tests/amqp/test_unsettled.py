"""What unsettled deliveries keep in memory: neither bodies nor attributes, and no more than a client's share."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import trio
from pamqp import commands

from mq.amqp.protocol.session import CONSUMER_BYTES, UNSETTLED_BYTES, UNSETTLED_STEP, UNSETTLED_UNCOUNTED
from mq.doors.budget import CLIENT_PART, UNSETTLED_PART, Budget, Use
from tests.amqp.dialling import House, open_house
from tests.amqp.talking import Peer, deliveries, ready

Basic = commands.Basic
WAITING = 400
MEMORY = 4 * (CONSUMER_BYTES + 100 * UNSETTLED_BYTES)
"""A quarter of it is for a consumer and 100 unsettled deliveries."""


def consuming(memory: Budget) -> Peer:
    """A client without a prefetch that consumes from a queue of so many messages."""
    peer = ready(*[b"x"] * WAITING)
    peer.connection.session.use_memory(memory.client("a client"))
    peer.say(Basic.Consume(queue="q", consumer_tag="t"))
    while (answer := peer.said.popleft()[1]).name != "Basic.ConsumeOk":
        pass
    assert answer.consumer_tag == "t"
    return peer


async def test_unsettled_deliveries_stay_within_the_share_of_their_client() -> None:
    memory = Budget(MEMORY)
    peer = consuming(memory)
    got = len(deliveries(peer))
    assert got == 100 == peer.connection.session.unsettled
    assert memory.used == memory.most // CLIENT_PART
    peer.say(Basic.Ack(50, multiple=True))
    assert len(deliveries(peer)) == 50
    assert memory.used == memory.most // CLIENT_PART


async def test_settling_all_gives_the_memory_back() -> None:
    memory = Budget(MEMORY)
    peer = consuming(memory)
    peer.say(Basic.Cancel(consumer_tag="t"))
    peer.say(Basic.Nack(0, multiple=True))
    assert (peer.connection.session.unsettled, memory.used) == (0, 0)


async def test_memory_is_given_back_as_deliveries_are_settled() -> None:
    memory = Budget(MEMORY * 100)
    peer = consuming(memory)
    peer.say(Basic.Cancel(consumer_tag="t"))
    count = peer.connection.session.unsettled
    assert count > 3 * UNSETTLED_STEP
    for tag in range(1, count + 1):
        peer.say(Basic.Ack(tag))
        left = count - tag
        spare = memory.used - left * UNSETTLED_BYTES
        assert spare < 2 * UNSETTLED_STEP * UNSETTLED_BYTES
        assert spare >= 0 or left <= UNSETTLED_UNCOUNTED


async def test_few_unsettled_deliveries_need_no_memory() -> None:
    memory = Budget(MEMORY)
    peer = ready(*[b"x"] * WAITING)
    peer.connection.session.use_memory(memory.client("a client"))
    with memory.own().reserve(Use.ANSWER, memory.most - CONSUMER_BYTES):
        peer.say(Basic.Consume(queue="q", consumer_tag="t"))
        peer.said.popleft()
        assert len(deliveries(peer)) == UNSETTLED_UNCOUNTED
        peer.say(Basic.Ack(1))
        assert len(deliveries(peer)) == 1


async def test_gets_without_memory_are_refused() -> None:
    memory = Budget(MEMORY)
    with memory.own().reserve(Use.ANSWER, memory.most):
        peer = ready(*[b"x"] * WAITING)
        peer.connection.session.use_memory(memory.client("a client"))
        peer.say(*[Basic.Get(queue="q")] * UNSETTLED_UNCOUNTED)
        peer.heard()
        peer.say(Basic.Get(queue="q"))
        [(_, close)] = peer.heard()
    assert (close.name, close.reply_code) == ("Connection.Close", 506)
    assert "Acknowledge some of them first" in close.reply_text


async def test_half_of_the_memory_is_left_for_what_is_read_soon() -> None:
    memory = Budget(MEMORY)
    counts = [consuming(memory).connection.session.unsettled for _ in range(4)]
    assert sum(counts) - UNSETTLED_UNCOUNTED == memory.most // UNSETTLED_PART // UNSETTLED_BYTES
    assert min(counts) == UNSETTLED_UNCOUNTED


def tokens(house: House) -> list[Any]:
    """What the server keeps of each unsettled delivery of the house's one connection."""
    [served] = house.door.connections
    [channel] = served.connection.channels()  # type: ignore[attr-defined]
    return [delivery.token for delivery in channel.deliveries._unsettled.values()]


@pytest.mark.slow
@pytest.mark.parametrize("store", ["layered:memory:", "posix:"])
async def test_unsettled_deliveries_keep_no_bodies_and_no_attributes(tmp_path: Path, store: str) -> None:
    count, size = 200, 30_000
    address = store if store.endswith("memory:") else f"{store}{tmp_path}/root"
    async with open_house(address) as house:
        client = await house.connect()
        await client.declare("q", durable=True)
        await client.consume("q")
        await client.publish("q", b"x", delivery_mode=2)
        await client.delivery()
        tracemalloc.start()
        try:
            gc.collect()
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(count):
                await client.publish("q", b"x" * size, delivery_mode=2, headers={"h": "y" * 10_000})
                await client.delivery()
            await trio.testing.wait_all_tasks_blocked()
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        kept = tokens(house)
        assert len(kept) == count + 1
        assert {(token.message.body.size, len(token.message.properties.attributes)) for token in kept} == {(0, 0)}
        if store == "posix:":
            assert after - before < count * 6_000  # of 40,000 bytes each
        await client.call(Basic.Cancel(consumer_tag="c"))
        await client.say(Basic.Nack(0, multiple=True))
        assert len(await client.bodies("q")) == count + 1
