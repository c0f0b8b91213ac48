"""What programs on asyncio do with the asynchronous client in asyncio's own words. What it does on both event loops is
tested beside, wherever a test says `on_both_loops`."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from mq.client import AsyncClient, LeaseLost
from tests.client.loops import run_on
from tests.client.scripted import Script, message, refused
from tests.client.test_renewal import Lender


def test_a_task_that_is_cancelled_gives_its_message_back() -> None:
    async def main() -> None:
        script = Script(message(), httpx.Response(200))
        holds = asyncio.Event()

        async def work(client: AsyncClient) -> None:
            async with client.receive("q"):
                holds.set()
                await asyncio.Future()

        async with script.async_client() as client:
            task = asyncio.create_task(work(client))
            await holds.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert [asked.method for asked in script.asked] == ["GET", "PATCH"]
        assert json.loads(script.asked[1].body) == {"delay": 0.0}

    run_on("asyncio", main)


def test_a_timeout_around_the_block_is_asyncios() -> None:
    async def main() -> None:
        lender = Lender()
        async with lender.client() as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(45), client.receive("q"):
                    await asyncio.Future()
        assert lender.asked[-1] == ("BACK", 45.0)
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]

    run_on("asyncio", main)


def test_a_lost_lease_ends_a_block_that_waits_for_tasks_of_its_own() -> None:
    """They are cancelled with it."""

    async def main() -> None:
        lender = Lender()
        lender.extend = lambda: refused(412, "the lease has expired")
        ends: list[str] = []

        async def part() -> None:
            try:
                await asyncio.Future()
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise

        async def whole(client: AsyncClient) -> None:
            async with client.receive("q"), asyncio.TaskGroup() as group:
                group.create_task(part())
                group.create_task(part())

        async with lender.client() as client:
            with pytest.raises(LeaseLost, match="the lease has expired"):
                await whole(client)
            assert ends == ["cancelled", "cancelled"]
            await asyncio.sleep(1)  # nothing is left that would cancel it

    run_on("asyncio", main)
