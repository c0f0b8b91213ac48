"""Settlements that the store refuses: what a consumer has had comes again, and says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import pytest
import trio
from pamqp import commands as methods
from trio.testing import MockClock

from mq.broker import Broker, Draft, Removal, UnackedMessage, open_broker
from mq.broker.commit import PORTION
from mq.errors import MQError, StorageError, StorageFull, StorageUnsure
from mq.message import MessageId
from mq.storage.interface import Move, Operation, Outcome, Result, Unlink
from mq.storage.memory import MemoryStorage
from tests.amqp.dialling import open_house

SECONDS: Final = 30.0


class Refusing(MemoryStorage):
    """A store that can refuse to move and to unlink messages."""

    refuses: Result | None = None
    seconds = 0.0

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        await trio.sleep(self.seconds)
        refuses = self.refuses
        if refuses is not None and any(isinstance(each, Move | Unlink) for each in operations):
            return [Outcome(refuses, reason="not now") for _ in operations]
        return await super().commit(operations)


async def acknowledge(broker: Broker, held: Sequence[UnackedMessage]) -> None:
    await broker.acknowledge(held)


async def acknowledge_durably(broker: Broker, held: Sequence[UnackedMessage]) -> None:
    await broker.acknowledge(held, durable=True)


async def reject(broker: Broker, held: Sequence[UnackedMessage]) -> None:
    await broker.reject(held)


async def send_back(broker: Broker, held: Sequence[UnackedMessage]) -> None:
    await broker.put_back(held, to_back=True)


async def fail(broker: Broker, held: Sequence[UnackedMessage]) -> None:
    await broker.put_back(held, failed=True, most=5)


@pytest.mark.parametrize("refusal", [Result.FULL, Result.UNKNOWN])
@pytest.mark.parametrize("count", [1, 3, 3 * PORTION])
@pytest.mark.parametrize("settle", [acknowledge, acknowledge_durably, reject, send_back, fail])
async def test_refused_settlement_comes_again_as_redelivered(
    autojump_clock: MockClock,
    settle: Callable[[Broker, Sequence[UnackedMessage]], Awaitable[None]],
    count: int,
    refusal: Result,
) -> None:
    store = Refusing()
    async with open_broker(store) as broker:
        await broker.create_queue("q")
        await broker.publish_many("q", [Draft(b"x")] * (count + 1))
        held = await broker.hold("q", count)
        assert not any(each.redelivered for each in held)
        store.refuses = refusal
        with pytest.raises(StorageError):
            await settle(broker, held)
        store.refuses = None
        again = await broker.hold("q", count + 1, wait=SECONDS)
        while len(again) <= count:
            again += await broker.hold("q", count + 1, wait=SECONDS)
        marked = {each.message.id for each in again if each.redelivered}
        assert marked == {each.message.id for each in held}


async def test_message_that_no_consumer_had_is_not_marked_where_its_removal_is_refused(
    autojump_clock: MockClock,
) -> None:
    store = Refusing()
    async with open_broker(store) as broker:
        await broker.create_queue("q")
        id = await broker.publish("q", b"x")
        store.refuses = Result.FULL
        with pytest.raises(StorageFull):
            await broker.remove("q", id)
        assert [type(each) for each in await broker.remove_many("q", [Removal(id)])] == [StorageFull]
        store.refuses = None
        assert [each.redelivered for each in await broker.hold("q", wait=1)] == [False]


async def test_keys_that_cannot_be_secured_leave_nothing_held(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An acknowledgement makes the idempotency keys of its messages durable first."""

    async def refuse(ids: Iterable[MessageId]) -> None:
        raise StorageFull("not now")

    async with open_broker(Refusing()) as broker:
        await broker.create_queue("q")
        await broker.publish_many("q", [Draft(b"x")] * 3)
        held = await broker.hold("q", 3)
        with monkeypatch.context() as patch:
            patch.setattr(broker._unacked, "_secure_keys", refuse)
            with pytest.raises(StorageFull):
                await broker.acknowledge(held)
        assert [each.redelivered for each in await broker.hold("q", 3)] == [True] * 3


async def test_acknowledgement_that_is_cut_off_leaves_nothing_held(autojump_clock: MockClock) -> None:
    """As after 20 seconds without an answer of the store: portions that were not begun come again, too."""
    store = Refusing()
    async with open_broker(store) as broker:
        await broker.create_queue("q")
        await broker.publish_many("q", [Draft(b"x")] * (5 * PORTION))
        held = await broker.hold("q", 5 * PORTION)
        while len(held) < 5 * PORTION:
            held += await broker.hold("q", 5 * PORTION)
        store.seconds = 100.0
        with trio.move_on_after(10):
            await broker.acknowledge(held)
        store.seconds = 0.0
        await trio.sleep(200)  # the first portion is removed meanwhile
        again: list[UnackedMessage] = []
        while more := await broker.hold("q", 5 * PORTION):
            again += more
        assert len(again) == 4 * PORTION
        assert all(each.redelivered for each in again)


@pytest.mark.parametrize("no_ack", [False, True])
async def test_other_connection_gets_refused_settlement_as_redelivered(autojump_clock: MockClock, no_ack: bool) -> None:
    store = Refusing()
    async with open_house(store) as house:
        publisher, consumer = await house.connect(), await house.connect()
        await publisher.declare("q", durable=True)
        await publisher.publish("q", b"x", delivery_mode=2)
        if no_ack:  # then it is removed as it is delivered
            store.refuses = Result.UNKNOWN
        await consumer.consume("q", no_ack=no_ack)
        method, _, _ = await consumer.delivery()
        assert not method.redelivered
        store.refuses = Result.UNKNOWN
        if not no_ack:
            await consumer.say(methods.Basic.Ack(method.delivery_tag))
        assert (await consumer.hear()).name == "Connection.Close"
        store.refuses = None
        other = await house.connect()
        await other.consume("q")
        again, _, body = await other.delivery()
        assert (again.redelivered, body) == (True, b"x")


async def test_leased_message_counts_as_received_again(autojump_clock: MockClock) -> None:
    """Over HTTP and SQS: the lease goes on, and the next one is the second."""
    store = Refusing()
    async with open_broker(store) as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"x")
        message = await broker.fetch("q", visibility=10)
        assert message is not None
        store.refuses = Result.UNKNOWN
        with pytest.raises(MQError) as refused:
            await broker.remove("q", message.id, receipt=message.receipt)
        assert isinstance(refused.value, StorageUnsure)
        store.refuses = None
        again = await broker.fetch("q", wait=SECONDS)
        assert again is not None
        assert (again.id, again.receives) == (message.id, 2)
