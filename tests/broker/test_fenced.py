"""A broker that is shut out of its store ends, and does not carry on with what it believes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import trio

from mq.broker import Broker, open_broker
from mq.errors import StorageFenced
from mq.storage.interface import Operation, Outcome, Result
from mq.storage.memory import MemoryStorage

REASON = "another broker has taken over the store: it is at node b"


class Fenced(MemoryStorage):
    """A store that somebody else takes over when the test says so."""

    is_over = False

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        if self.is_over:
            await trio.lowlevel.checkpoint()
            return [Outcome(Result.FENCED, reason=REASON)] * len(operations)
        return await super().commit(operations)


async def publish(broker: Broker) -> None:
    await broker.publish("q", b"x")


async def fetch(broker: Broker) -> None:
    await broker.fetch("q")


async def remove(broker: Broker) -> None:
    [message] = await broker.peek("q")
    await broker.remove("q", message.message.id)


async def create(broker: Broker) -> None:
    await broker.create_queue("other")


@pytest.mark.parametrize("change", [publish, fetch, remove, create], ids=lambda change: change.__name__)
async def test_who_is_shut_out_ends(change: Callable[[Broker], Any]) -> None:
    storage = Fenced()
    answered = False

    async def go_on() -> None:
        nonlocal answered
        async with open_broker(storage) as broker:
            await broker.create_queue("q")
            await broker.publish("q", b"first")
            storage.is_over = True
            with trio.move_on_after(10):
                await change(broker)
                answered = True
            pytest.fail("it carries on")

    with pytest.raises(ExceptionGroup) as raised:
        await go_on()
    assert not answered, "it answered that something was done"
    assert raised.group_contains(StorageFenced, match=REASON)


async def test_what_moves_by_itself_ends_it_too(autojump_clock: trio.testing.MockClock) -> None:
    """Nobody need ask for anything: a lease that ends is enough."""
    storage = Fenced()

    async def wait() -> None:
        async with open_broker(storage) as broker:
            await broker.create_queue("q")
            await broker.publish("q", b"first")
            assert await broker.fetch("q", visibility=30) is not None
            storage.is_over = True
            await trio.sleep(60)
            pytest.fail("it carries on")

    with pytest.raises(ExceptionGroup) as raised:
        await wait()
    assert raised.group_contains(StorageFenced, match=REASON)
