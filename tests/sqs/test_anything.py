"""Any request is answered or refused, never failed at; and one that is refused has changed nothing."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
import trio

from mq.broker import Broker, BrokerConfig, open_broker
from mq.doors.budget import Budget
from mq.sqs.door import SqsDoor
from mq.storage.memory import MemoryStorage
from mq.web.endpoints import Endpoints
from mq.web.exchange import Reply
from tests.sqs.oddities import Odd, odd_request
from tests.web.talking import MAX_BODY

ROUND = 200
"""Requests to one broker."""


async def talk(seed: int, count: int) -> dict[int, int]:
    """Send `count` requests to a fresh broker; how many were answered with each status."""
    random, statuses, handles = Random(seed), dict[int, int](), list[str]()
    store = MemoryStorage()
    await store.open()
    async with open_broker(store, BrokerConfig(max_body=MAX_BODY)) as broker, trio.open_nursery() as nursery:
        budget = Budget()
        door = SqsDoor(Endpoints(broker, MAX_BODY), broker, budget, nursery)
        for _ in range(count):
            for queue in ("q", "dead"):
                if await broker.create_queue(queue):
                    await broker.publish(queue, b"hello")
            before = await seen(broker)
            odd = odd_request(random, handles)
            reply, body = await answer(door, odd)
            statuses[reply.status] = statuses.get(reply.status, 0) + 1
            assert reply.status < 500, f"seed {seed}: {odd.told}: {body!r}"
            assert budget.free == budget.most, f"seed {seed}: {odd.told}"
            if reply.status >= 400:
                assert before == await seen(broker), f"seed {seed}: {odd.told}: {body!r}"
            handles = [*handles, *_handles(body)][-20:]
        door.end()
    await store.aclose()
    return statuses


async def answer(door: SqsDoor, odd: Odd) -> tuple[Reply, bytes]:
    """The reply, within the time that the clock of the test has for all waits together."""
    reply = await door.handle(odd.request)
    if isinstance(reply.body, bytes):
        return reply, reply.body
    body = b"".join([piece async for piece in reply.body])
    await reply.body.aclose()
    return reply, body


async def seen(broker: Broker) -> Any:
    """All that a request could change and a refused one must not. Leases run out by themselves, and messages die."""
    queues = await broker.queues()
    messages = sum(queue.ready + queue.leased + queue.delayed for queue in queues)
    records = json.dumps(await broker.declarations.records("sqs"), sort_keys=True)
    return [(queue.name, queue.settings, queue.created_ns) for queue in queues], messages, records


def _handles(body: bytes) -> list[str]:
    try:
        found = json.loads(body).get("Messages", ())
    except ValueError:
        return []
    return [message["ReceiptHandle"] for message in found]


async def test_anything_is_answered_or_refused(autojump_clock: trio.abc.Clock) -> None:
    statuses: dict[int, int] = {}
    for seed in range(5):
        for status, count in (await talk(seed, ROUND)).items():
            statuses[status] = statuses.get(status, 0) + count
    assert statuses[200] > 100  # or the requests are too odd to find anything
    assert statuses[400] > 100


@pytest.mark.proof
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(10))
async def test_a_hundred_thousand_are(autojump_clock: trio.abc.Clock, part: int) -> None:
    for seed in range(50):
        await talk(1000 + part * 50 + seed, ROUND)
