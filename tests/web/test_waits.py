"""WaitingRequests as plain tasks: who is cancelled, and what is given back."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext

import pytest
import trio
import trio.testing

from mq.errors import NoSuchQueue
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
