"""WaitingRequests as plain tasks: who is cancelled, and what is given back."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext

import pytest
import trio
import trio.testing

from mq.broker import open_broker
from mq.errors import NoSuchQueue
from mq.message import Message, QueueName
from mq.web.exchange import Tell
from mq.web.http_connection import WaitingRequests


def never(tell: Tell) -> AbstractAsyncContextManager[None]:
    return nullcontext()


async def test_what_came_is_given() -> None:
    async def work() -> str:
        return "message"

    assert await WaitingRequests().unless_gone(never, work) == "message"


async def test_who_is_gone_in_the_very_step_in_which_it_came_gives_it_back() -> None:
    tells, given_back = [], []

    def on_hang_up(tell: Tell) -> AbstractAsyncContextManager[None]:
        tells.append(tell)
        return nullcontext()

    async def work() -> str:
        with trio.CancelScope(shield=True):  # it is being served just now
            tells[0]()
            await trio.testing.wait_all_tasks_blocked()
        return "message"

    async def undo(message: str) -> None:
        await trio.lowlevel.checkpoint()
        given_back.append(message)

    assert await WaitingRequests().unless_gone(on_hang_up, work, undo) is None
    assert given_back == ["message"]


async def test_an_error_passes_as_it_is() -> None:
    async def work() -> None:
        raise NoSuchQueue("deleted meanwhile")

    with pytest.raises(NoSuchQueue, match="deleted"):
        await WaitingRequests().unless_gone(never, work)


async def test_the_end_lets_all_go(nursery: trio.Nursery) -> None:
    waits, given = WaitingRequests(), []

    async def wait() -> None:
        given.append(await waits.unless_gone(never, trio.sleep_forever))

    async with trio.open_nursery() as waiting:
        for _ in range(3):
            waiting.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        waits.end()
    await wait()  # who comes later does not begin to wait
    assert given == [None] * 4


async def test_only_who_has_to_wait_is_watched_for_a_hang_up(nursery: trio.Nursery) -> None:
    tells: list[Tell] = []
    given: list[list[Message]] = []
    queue = QueueName("q")

    def on_hang_up(tell: Tell) -> AbstractAsyncContextManager[None]:
        tells.append(tell)
        return nullcontext()

    async with open_broker("memory:") as broker:
        await broker.create_queue(queue)

        async def fetch(wait: float) -> list[Message]:
            return await broker.fetch_many(queue, 1, wait=wait)

        async def ask() -> None:
            given.append(await WaitingRequests().fetch(broker, queue, 10, on_hang_up, fetch))

        await broker.publish(queue, b"first")
        await ask()
        assert ([await message.body.read() for message in given[0]], tells) == ([b"first"], [])
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        tells[0]()
        await trio.testing.wait_all_tasks_blocked()
        assert given[1:] == [[]]
        await broker.publish(queue, b"second")
        assert (await broker.status(queue)).ready == 1


async def test_who_finds_no_more_what_was_there_waits(autojump_clock: trio.testing.MockClock) -> None:
    queue = QueueName("q")

    async with open_broker("memory:") as broker:
        await broker.create_queue(queue)
        await broker.publish(queue, b"first")
        await broker.change_settings(queue, {"paused": True})  # it is there, and not handed out

        async def fetch(wait: float) -> list[Message]:
            return await broker.fetch_many(queue, 1, wait=wait)

        began = trio.current_time()
        assert await WaitingRequests().fetch(broker, queue, 10, never, fetch) == []
        assert trio.current_time() - began == 10
