"""The lease of a message at hand is renewed while the block runs; a lost one ends it. Trio's clock is virtual."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import trio

from mq.client import AsyncClient, Client, GiveBack, Head, LeaseLost, Received, Retry
from mq.client.renewal import Renewal
from tests.client.inside import Inside, running
from tests.client.scripted import ID, URL, message, refused

LEASE = 30.0


class Lender:
    """A daemon that lends one message, and notes when it was asked for what."""

    def __init__(self, lease: float = LEASE) -> None:
        self.lease = lease
        self.asked: list[tuple[str, float]] = []
        self.told: list[dict[str, Any]] = []
        self.extend: Callable[[], httpx.Response | None] = lambda: httpx.Response(200)
        """What an extension is answered; None never."""

    async def answer(self, request: httpx.Request) -> httpx.Response:
        await trio.lowlevel.checkpoint()
        if request.method == "GET":
            return message(x_message_lease=f"{self.lease:g}")
        if request.method == "PATCH":
            self.told.append(json.loads(await request.aread()))
        is_back = request.method == "PATCH" and b'"delay":' in await request.aread()
        self.asked.append(("BACK" if is_back else request.method, round(trio.current_time() - self.began, 3)))
        if request.method == "DELETE" or is_back:
            return httpx.Response(202)
        reply = self.extend()
        if reply is None:
            await trio.sleep_forever()
            raise AssertionError
        return reply

    def client(self) -> AsyncClient:
        self.began = trio.current_time()
        return AsyncClient(URL, retry=Retry(patience=0), transport=httpx.MockTransport(self.answer))

    def times(self, method: str) -> list[float]:
        return [time for asked, time in self.asked if asked == method]


async def test_a_block_of_five_leases_keeps_its_message(autojump_clock: trio.testing.MockClock) -> None:
    lender = Lender()
    async with lender.client() as client, client.receive("q"):
        await trio.sleep(5 * LEASE - 1)
    assert lender.times("PATCH") == [10.0 * turn for turn in range(1, 15)]
    assert lender.asked[-1] == ("DELETE", 149.0)


async def test_a_quick_block_costs_no_extension(autojump_clock: trio.testing.MockClock) -> None:
    lender = Lender()
    async with lender.client() as client, client.receive("q"):
        await trio.sleep(LEASE / 3 - 1)
    assert [method for method, _ in lender.asked] == ["DELETE"]


async def test_a_lost_lease_cancels_the_block(autojump_clock: trio.testing.MockClock) -> None:
    lender = Lender()
    lender.extend = lambda: refused(412, "your lease has run out")
    async with lender.client() as client:
        with pytest.raises(LeaseLost, match="your lease has run out"):
            async with client.receive("q"):
                await trio.sleep_forever()
    assert lender.times("DELETE") == []


@pytest.mark.parametrize("status", [404, 409, 412])
async def test_all_that_says_that_it_is_gone_cancels(status: int, autojump_clock: trio.testing.MockClock) -> None:
    lender = Lender()
    lender.extend = lambda: refused(status)
    async with lender.client() as client:
        with pytest.raises(LeaseLost):
            async with client.receive("q"):
                await trio.sleep_forever()
        assert trio.current_time() - lender.began == pytest.approx(10)


async def test_a_daemon_that_is_away_is_asked_until_the_lease_is_over(autojump_clock: trio.testing.MockClock) -> None:
    lender = Lender()
    lender.extend = lambda: refused(503)
    async with lender.client() as client:
        with pytest.raises(LeaseLost, match="before it could be extended"):
            async with client.receive("q"):
                await trio.sleep_forever()
        assert LEASE < trio.current_time() - lender.began < LEASE + 4  # a restart adds two seconds to a lease
    assert len(lender.times("PATCH")) > 10


async def test_a_daemon_that_comes_back_in_time_costs_nothing(autojump_clock: trio.testing.MockClock) -> None:
    lender = Lender()
    lender.extend = lambda: refused(503) if 5 < trio.current_time() - lender.began < 25 else httpx.Response(200)
    async with lender.client() as client, client.receive("q"):
        await trio.sleep(5 * LEASE)
    assert lender.asked[-1] == ("DELETE", 150.0)


async def test_a_cut_link_is_given_up_and_tried_again(autojump_clock: trio.testing.MockClock) -> None:
    lender = Lender()
    first = iter([None])
    lender.extend = lambda: next(first, httpx.Response(200))
    async with lender.client() as client, client.receive("q"):
        await trio.sleep(29)
    assert lender.times("PATCH") == [10.0, 21.0]
    assert lender.asked[-1] == ("DELETE", 29.0)


async def test_a_block_is_bounded_and_its_message_given_back(autojump_clock: trio.testing.MockClock) -> None:
    lender = Lender()
    async with lender.client() as client:
        with pytest.raises(LeaseLost, match="max_handling=70"):
            async with client.receive("q", max_handling=70):
                await trio.sleep_forever()
    assert lender.asked[-1] == ("BACK", 70.0)
    assert lender.times("DELETE") == []


async def test_what_waited_in_a_batch_is_extended_at_once(autojump_clock: trio.testing.MockClock) -> None:
    lender = Lender()
    async with lender.client() as client:
        received = await client.fetch("q")
        assert received is not None
        await trio.sleep(LEASE - 1)
        async with client.handling(received):
            await trio.sleep(5)
    assert lender.times("PATCH") == [29.0]


async def test_renewing_alone_leaves_the_message_leased(autojump_clock: trio.testing.MockClock) -> None:
    lender = Lender()
    async with lender.client() as client:
        received = await client.fetch("q")
        assert received is not None
        async with client.renewing(received) as lease:
            await trio.sleep(15)
            assert not lease.lost.is_set()
    assert [method for method, _ in lender.asked] == ["PATCH"]


async def test_the_error_of_a_block_leaves_as_it_came(autojump_clock: trio.testing.MockClock) -> None:
    lender = Lender()

    async def fail(client: AsyncClient) -> None:
        async with client.receive("q"):
            await trio.sleep(20)
            raise ZeroDivisionError("by nothing")

    async with lender.client() as client:
        with pytest.raises(ZeroDivisionError):
            await fail(client)
    assert lender.asked[-1] == ("BACK", 20.0)
    assert lender.told[-1] == {"delay": None, "reason": "ZeroDivisionError: by nothing"}


async def test_a_cancelled_block_gives_back_and_ends(autojump_clock: trio.testing.MockClock) -> None:
    lender = Lender()
    async with lender.client() as client:
        with trio.move_on_after(45) as scope:
            async with client.receive("q"):
                await trio.sleep_forever()
    assert scope.cancelled_caught
    assert lender.asked[-1] == ("BACK", 45.0)
    assert lender.told[-1] == {"delay": 0.0}


async def test_a_block_says_when_its_message_comes_back(autojump_clock: trio.testing.MockClock) -> None:
    lender = Lender()
    async with lender.client() as client, client.receive("q"):
        raise GiveBack(90, "the printer is busy")
    assert lender.told == [{"delay": 90.0, "reason": "the printer is busy"}]
    assert lender.times("DELETE") == []


def test_an_unknown_lease_is_extended_at_once_and_none_never() -> None:
    assert Renewal(Head(queue="q", id=ID, receipt="r"), 5.0, 100).next == 5.0
    assert Renewal(Head(queue="q", id=ID), 5.0, 100).next == 105.0


def test_a_clock_of_another_loop_is_not_believed() -> None:
    assert Renewal(Head(queue="q", id=ID, receipt="r", lease=30, fetched=1e6), 5.0, 100).next == 5.0
    assert Renewal(Head(queue="q", id=ID, receipt="r", lease=30, fetched=1.0), 1e6, 100).next == 1e6


# Threads: a real clock, for threads have no other


@pytest.fixture
def daemon() -> Iterator[Inside]:
    with running() as inside:
        yield inside


def inside_client(daemon: Inside) -> Client:
    return Client(URL, retry=Retry(patience=0), transport=daemon)


def lent(client: Client, **settings: float) -> Received:
    client.create_queue("q")
    client.configure("q", **settings)
    client.publish("q", "work")
    received = client.fetch("q")
    assert received is not None
    return received


def test_a_thread_keeps_its_message_for_longer_than_the_lease(daemon: Inside) -> None:
    with inside_client(daemon) as client:
        received = lent(client, visibility=0.3)
        assert received.lease == 0.3
        with client.handling(received) as lease:
            assert not lease.lost.wait(0.9)
            assert client.fetch("q") is None
        assert client.queue("q").leased == client.queue("q").ready == 0


def test_a_thread_is_told_of_a_lost_lease_and_gets_the_error_at_its_end(daemon: Inside) -> None:
    with inside_client(daemon) as client:
        received = lent(client, visibility=0.2)
        client.requeue(received)
        assert client.fetch("q", visibility=60) is not None
        with pytest.raises(LeaseLost), client.handling(received) as lease:
            assert lease.lost.wait(10)
        assert client.queue("q").leased == 1


def test_a_thread_is_bounded(daemon: Inside) -> None:
    with inside_client(daemon) as client:
        received = lent(client, visibility=60)
        with pytest.raises(LeaseLost, match="max_handling"), client.renewing(received, max_handling=0.05) as lease:
            assert lease.lost.wait(10)


def test_no_thread_is_left(daemon: Inside) -> None:
    with inside_client(daemon) as client:
        with client.handling(lent(client)):
            pass
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("lease of")]
