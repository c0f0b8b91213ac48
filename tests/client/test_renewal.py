"""The lease of a message at hand is renewed while the block runs; a lost one ends it. The clock is virtual."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest

from mq.client import AsyncClient, Client, Head, LeaseLost, Received, Requeue, Retry
from mq.client.leases import Renewal
from tests.client.inside import Inside, running
from tests.client.loops import on_both_loops
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
        await anyio.lowlevel.checkpoint()
        if request.method == "GET":
            return message(x_message_lease=f"{self.lease:g}")
        if request.method == "PATCH":
            self.told.append(json.loads(await request.aread()))
        is_back = request.method == "PATCH" and b'"delay":' in await request.aread()
        self.asked.append(("BACK" if is_back else request.method, round(anyio.current_time() - self.began, 3)))
        if request.method == "DELETE" or is_back:
            return httpx.Response(202)
        reply = self.extend()
        if reply is None:
            await anyio.sleep_forever()
            raise AssertionError
        return reply

    def client(self) -> AsyncClient:
        self.began = anyio.current_time()
        return AsyncClient(URL, retry=Retry(patience=0), transport=httpx.MockTransport(self.answer))

    def times(self, method: str) -> list[float]:
        return [time for asked, time in self.asked if asked == method]


@on_both_loops
async def test_a_block_of_five_leases_keeps_its_message() -> None:
    lender = Lender()
    async with lender.client() as client, client.receive("q"):
        await anyio.sleep(5 * LEASE - 1)
    assert lender.times("PATCH") == [10.0 * turn for turn in range(1, 15)]
    assert lender.asked[-1] == ("DELETE", 149.0)


@on_both_loops
async def test_a_quick_block_costs_no_extension() -> None:
    lender = Lender()
    async with lender.client() as client, client.receive("q"):
        await anyio.sleep(LEASE / 3 - 1)
    assert [method for method, _ in lender.asked] == ["DELETE"]


@on_both_loops
async def test_a_lost_lease_cancels_the_block() -> None:
    lender = Lender()
    lender.extend = lambda: refused(412, "the lease has expired")
    async with lender.client() as client:
        with pytest.raises(LeaseLost, match="the lease has expired"):
            async with client.receive("q"):
                await anyio.sleep_forever()
    assert lender.times("DELETE") == []


@on_both_loops
@pytest.mark.parametrize("status", [404, 409, 412])
async def test_all_that_says_that_it_is_gone_cancels(status: int) -> None:
    lender = Lender()
    lender.extend = lambda: refused(status)
    async with lender.client() as client:
        with pytest.raises(LeaseLost):
            async with client.receive("q"):
                await anyio.sleep_forever()
        assert anyio.current_time() - lender.began == pytest.approx(10)


@on_both_loops
async def test_a_daemon_that_is_away_is_asked_until_the_lease_is_over() -> None:
    lender = Lender()
    lender.extend = lambda: refused(503)
    async with lender.client() as client:
        with pytest.raises(LeaseLost, match="before it could be extended"):
            async with client.receive("q"):
                await anyio.sleep_forever()
        assert LEASE < anyio.current_time() - lender.began < LEASE + 4  # a restart adds two seconds to a lease
    assert len(lender.times("PATCH")) > 10


@on_both_loops
async def test_a_daemon_that_comes_back_in_time_costs_nothing() -> None:
    lender = Lender()
    lender.extend = lambda: refused(503) if 5 < anyio.current_time() - lender.began < 25 else httpx.Response(200)
    async with lender.client() as client, client.receive("q"):
        await anyio.sleep(5 * LEASE)
    assert lender.asked[-1] == ("DELETE", 150.0)


@on_both_loops
async def test_a_cut_link_is_given_up_and_tried_again() -> None:
    lender = Lender()
    first = iter([None])
    lender.extend = lambda: next(first, httpx.Response(200))
    async with lender.client() as client, client.receive("q"):
        await anyio.sleep(29)
    assert lender.times("PATCH") == [10.0, 21.0]
    assert lender.asked[-1] == ("DELETE", 29.0)


@on_both_loops
async def test_a_block_is_bounded_and_its_message_given_back() -> None:
    lender = Lender()
    async with lender.client() as client:
        with pytest.raises(LeaseLost, match="max_handling=70"):
            async with client.receive("q", max_handling=70):
                await anyio.sleep_forever()
    assert lender.asked[-1] == ("BACK", 70.0)
    assert lender.times("DELETE") == []


@on_both_loops
async def test_what_waited_in_a_batch_is_extended_at_once() -> None:
    lender = Lender()
    async with lender.client() as client:
        received = await client.fetch("q")
        assert received is not None
        await anyio.sleep(LEASE - 1)
        async with client.handling(received):
            await anyio.sleep(5)
    assert lender.times("PATCH") == [29.0]


@on_both_loops
async def test_renewing_alone_leaves_the_message_leased() -> None:
    lender = Lender()
    async with lender.client() as client:
        received = await client.fetch("q")
        assert received is not None
        async with client.renewing(received) as lease:
            await anyio.sleep(15)
            assert not lease.lost.is_set()
    assert [method for method, _ in lender.asked] == ["PATCH"]


@on_both_loops
async def test_the_error_of_a_block_leaves_as_it_came() -> None:
    lender = Lender()

    async def fail(client: AsyncClient) -> None:
        async with client.receive("q"):
            await anyio.sleep(20)
            raise ZeroDivisionError("by nothing")

    async with lender.client() as client:
        with pytest.raises(ZeroDivisionError):
            await fail(client)
    assert lender.asked[-1] == ("BACK", 20.0)
    assert lender.told[-1] == {"delay": None, "reason": "ZeroDivisionError: by nothing"}


@on_both_loops
async def test_a_cancelled_block_gives_back_and_ends() -> None:
    lender = Lender()
    async with lender.client() as client:
        with anyio.move_on_after(45) as scope:
            async with client.receive("q"):
                await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert lender.asked[-1] == ("BACK", 45.0)
    assert lender.told[-1] == {"delay": 0.0}


@on_both_loops
async def test_a_block_says_when_its_message_comes_back() -> None:
    lender = Lender()
    async with lender.client() as client, client.receive("q"):
        raise Requeue(90, "the printer is busy")
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


def test_what_remains_of_a_lease_does_not_count_on_the_daemon() -> None:
    head = Head(queue="q", id=ID, receipt="r", lease=LEASE, fetched=100.0)
    renewal = Renewal(head, 101.0, 1000.0)
    assert (renewal.remaining(101.0), renewal.is_failing) == (LEASE - 1, False)
    assert renewal.failed(LeaseLost(503, "away"), 110.0) is not None
    assert (renewal.remaining(110.0), renewal.is_failing) == (LEASE - 10, True)
    renewal.extended(111.0)
    assert (renewal.remaining(112.0), renewal.is_failing) == (LEASE - 1, False)
