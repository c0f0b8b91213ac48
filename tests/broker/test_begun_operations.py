"""Operations that begin in the caller's step: a fetch and a removal whose answers come to a callback."""

from __future__ import annotations

from typing import cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mq.broker import Broker, Draft, open_broker
from mq.broker.commit import Future
from mq.errors import BrokerClosed, InvalidSetting, NoSuchMessage, ReceiptMismatch
from mq.storage.memory import MemoryStorage


async def warmed_up(broker: Broker) -> None:
    """Let a fetch worker measure the event loop, as with the first fetch in a while."""
    await broker.create_queue("measured")
    await broker.publish("measured", b"x")
    assert await broker.fetch("measured") is not None


async def test_fetch_now_answers_an_empty_queue_in_the_same_step(broker: Broker) -> None:
    await warmed_up(broker)
    assert broker.fetch_now("q", 1) == []


async def test_fetch_now_leases_a_message_and_calls_back_once(broker: Broker) -> None:
    await warmed_up(broker)
    await broker.publish("q", b"x")
    await wait_all_tasks_blocked()
    future, errors = broker.fetch_now("q", 1, visibility=60), list[Exception | None]()
    assert isinstance(future, Future)
    future.then(errors.append)
    await wait_all_tasks_blocked()
    assert errors == [None]
    assert future.value is not None
    [message] = future.value
    assert (await message.body.read(), message.receives, message.lease) == (b"x", 1, 60)
    assert broker.fetch_now("q", 1) == [], "it is leased"


async def test_fetch_now_begins_nothing_for_an_unknown_queue(broker: Broker) -> None:
    assert broker.fetch_now("missing", 1) is None


async def test_fetch_now_leaves_the_first_fetch_in_a_while_to_a_worker(broker: Broker) -> None:
    await broker.publish("q", b"x")
    await wait_all_tasks_blocked()
    assert broker.fetch_now("q", 1) is None, "a worker measures how late the event loop is"


async def test_fetch_now_refuses_a_visibility_out_of_range(broker: Broker) -> None:
    await warmed_up(broker)
    with pytest.raises(InvalidSetting):
        broker.fetch_now("q", 1, visibility=-1)


async def test_an_abandoned_fetch_returns_its_message_and_does_not_count(broker: Broker) -> None:
    await warmed_up(broker)
    await broker.publish("q", b"x")
    await wait_all_tasks_blocked()
    future = broker.fetch_now("q", 1)
    assert isinstance(future, Future)
    if not future.answered:  # a store that waits for nothing has answered by now
        future.abandon()
        assert isinstance(future.error, BrokerClosed)
        message = await broker.fetch("q", wait=5)
        assert message is not None
        assert message.receives == 1


async def test_remove_now_calls_back_once_the_message_is_gone(broker: Broker) -> None:
    await warmed_up(broker)
    id, errors = await broker.publish("q", b"x"), list[Exception | None]()
    await wait_all_tasks_blocked()
    assert broker.remove_now("q", id, errors.append)
    await wait_all_tasks_blocked()
    assert errors == [None]
    with pytest.raises(NoSuchMessage):
        broker.remove_now("q", id, errors.append)
    assert errors == [None]


async def test_remove_now_refuses_another_deliverys_receipt(broker: Broker) -> None:
    await warmed_up(broker)
    id = await broker.publish("q", b"x")
    assert await broker.fetch("q") is not None
    with pytest.raises(ReceiptMismatch):
        broker.remove_now("q", id, lambda _: None, receipt="0" * 16)


async def test_a_broker_ends_after_its_begun_operations(broker: Broker) -> None:
    await warmed_up(broker)
    await broker.publish("q", b"x")
    await wait_all_tasks_blocked()
    future = broker.fetch_now("q", 1)
    assert isinstance(future, Future)
    await broker.finish()
    assert future.answered
    with pytest.raises(BrokerClosed):
        broker.fetch_now("q", 1)


async def test_stop_does_not_wait_for_a_publish_that_an_error_ended(autojump_clock: MockClock) -> None:
    async with open_broker(MemoryStorage()) as broker:
        await broker.create_queue("q")
        wrong = Draft(cast("bytes", 5))
        with pytest.raises(TypeError):
            broker.publish_now("q", [wrong], lambda outcomes: None)
        began = trio.current_time()
    assert trio.current_time() == began
