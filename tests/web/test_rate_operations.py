"""How much happens, as it is told: sorted and cut by the daemon, in little time."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import trio

from mq.broker import Broker, BrokerConfig, open_broker
from mq.doors.open_connections import OpenConnections
from mq.observers.metrics import Metrics
from mq.storage.memory import MemoryStorage
from mq.web.endpoints import Endpoints
from mq.web.exchange import Request
from tests.web.talking import MAX_BODY, ask, publish, stream


async def get(endpoints: Endpoints, path: str, query: str = "") -> Any:
    reply = await endpoints.handle(Request("GET", path.encode(), query.encode(), {}, stream(), None))
    assert isinstance(reply.body, bytes)
    return json.loads(reply.body)


async def test_a_view_in_one_request(store: MemoryStorage) -> None:
    metrics, seen = Metrics(), OpenConnections()
    async with open_broker(store, BrokerConfig(), observers=[metrics]) as broker:
        endpoints = Endpoints(broker, MAX_BODY, metrics, connections=seen)
        for name in ("dead", "emails", "mail", "quiet"):
            await broker.create_queue(name)
        await broker.change_settings("mail", {"dead_letter_queue": "dead", "max_receives": 1, "paused": True})
        for queue in ("emails", "mail", "mail"):
            await publish(endpoints, queue, b"x")
        await ask(endpoints, "GET", "/emails/messages")

        found = await get(endpoints, "/-/rates", "sort=ready")
        assert [row["name"] for row in found["queues"]] == ["mail", "dead", "emails", "quiet"]
        assert (found["total"], found["matching"], found["ready"], found["leased"]) == (4, 4, 2, 1)
        assert found["per_second"]["publish"][1] > 0
        mail, dead, emails, quiet = found["queues"]
        assert (mail["ready"], mail["paused"], mail["dead_letter_queue"]) == (2, True, "dead")
        assert mail["oldest_seconds"] >= 0
        assert dead["is_dead_letter_queue"]
        assert not mail["is_dead_letter_queue"]
        assert emails["per_second"]["deliver"][1] > 0
        assert quiet["per_second"]["publish"] == [0, 0, 0]
        assert "messages" not in mail

        found = await get(endpoints, "/-/rates", "filter=MAIL&sort=deliver&max=1&skip=1&history=true")
        assert (found["total"], found["matching"], found["ready"]) == (4, 2, 2)
        [row] = found["queues"]
        assert (row["name"], row["messages"][-2:]) == ("mail", [0, 2])
        seen.count_consumers_by({"quiet": 2, "mail": 1, "dead": 0, "emails": 0}.__getitem__)
        consumed = await get(endpoints, "/-/rates", "sort=consumers")
        assert [(row["name"], row["consumers"]) for row in consumed["queues"][:2]] == [("quiet", 2), ("mail", 1)]
        oldest = await get(endpoints, "/-/rates", "sort=oldest")
        assert oldest["queues"][0]["name"] == "mail"


async def test_one_queue_minute_by_minute(store: MemoryStorage) -> None:
    metrics = Metrics()
    async with open_broker(store, BrokerConfig(), observers=[metrics]) as broker:
        endpoints = Endpoints(broker, MAX_BODY, metrics)
        await broker.create_queue("q")
        await publish(endpoints, "q", b"x")
        found = await get(endpoints, "/q/rates")
    assert (found["name"], found["ready"], found["visibility"]) == ("q", 1, None)
    assert (found["minutes"]["seconds"], found["slots"]["seconds"]) == (60, 5)
    assert (found["minutes"]["publish"], sum(found["slots"]["publish"])) == ([0] * 59 + [1], 1)
    assert found["minutes"]["messages"] == [0] * 59 + [1]


async def test_a_queue_that_is_not_there_has_none(endpoints: Endpoints) -> None:
    assert (await ask(endpoints, "GET", "/nowhere/rates")).status == 404


@pytest.fixture
async def crowded(broker: Broker) -> Broker:
    for number in range(10_000):
        await broker.create_queue(f"queue{number:05d}")
    return broker


@pytest.mark.slow
@pytest.mark.parametrize("room", [pytest.param(1, marks=pytest.mark.proof, id="the figure"), 5])
async def test_ten_thousand_queues_are_listed_soon(crowded: Broker, room: int) -> None:
    """Processor time of this thread, and what others wait for meanwhile; the best of some rounds. Tests with each
    commit share their processor, and hold five times the figure."""
    endpoints, taken, stalls = Endpoints(crowded, MAX_BODY), [], []
    for _ in range(3):
        stall = 0.0

        async def others() -> None:
            nonlocal stall
            while True:
                before = time.thread_time()
                await trio.lowlevel.checkpoint()
                stall = max(stall, time.thread_time() - before)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            begun = time.thread_time()
            reply = await endpoints.handle(
                Request("GET", b"/-/rates", b"sort=publish&history=true", {}, stream(), None)
            )
            taken.append(time.thread_time() - begun)
            nursery.cancel_scope.cancel()
        stalls.append(stall)
    assert isinstance(reply.body, bytes)
    assert len(reply.body) < 100 * 1024
    assert min(taken) <= room * 0.1
    assert min(stalls) <= room * 0.05
