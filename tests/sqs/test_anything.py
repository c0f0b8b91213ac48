"""Any request is answered or refused, never failed at; and one that is refused has changed nothing: nor has one that is
not as it was signed."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from mq.access import UserDirectory
from mq.access.aws_keys import AwsKey
from mq.access.rights import Right
from mq.access.users_editor import UsersFile
from mq.broker import Broker, BrokerConfig, open_broker
from mq.doors.budget import Budget
from mq.doors.logins import Logins
from mq.sqs.door import SqsDoor
from mq.storage.memory import MemoryStorage
from mq.web.authorizer import Authorizer
from mq.web.endpoints import Endpoints
from mq.web.exchange import Reply, Request
from tests.sqs.forgeries import FORGERIES, forged, reordered, signed_request
from tests.sqs.oddities import odd_request
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
            reply, body = await answer(door, odd.request)
            statuses[reply.status] = statuses.get(reply.status, 0) + 1
            assert reply.status < 500, f"seed {seed}: {odd.told}: {body!r}"
            assert budget.free == budget.most, f"seed {seed}: {odd.told}"
            if reply.status >= 400:
                assert before == await seen(broker), f"seed {seed}: {odd.told}: {body!r}"
            handles = [*handles, *_handles(body)][-20:]
        door.end()
    await store.aclose()
    return statuses


async def answer(door: SqsDoor, request: Request) -> tuple[Reply, bytes]:
    """The reply, within the time that the clock of the test has for all waits together."""
    reply = await door.handle(request)
    if isinstance(reply.body, bytes):
        return reply, reply.body
    body = b"".join([piece async for piece in reply.body])
    await reply.body.aclose()
    return reply, body


async def seen(broker: Broker) -> Any:
    """All that a request could change and a refused one must not. Leases run out by themselves, and messages die."""
    queues = await broker.queues()
    messages = sum(queue.ready + queue.leased + queue.delayed for queue in queues)
    return [(queue.name, queue.settings, queue.created_ns) for queue in queues], messages


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


class Keys:
    """Two users who may do everything, and their keys."""

    def __init__(self, folder: Path) -> None:
        users = UsersFile(str(folder / "users.toml"))
        self.found: list[AwsKey] = []
        for name in ("anna", "bert"):
            users.add(name, {Right.ADMINISTER: ["*"]}, None, only_aws_key=True)
            self.found.append(users.add_aws_key(name))
        self.logins = Logins(UserDirectory(str(folder / "users.toml")))


SIGNATURE_CODES = (b"SignatureDoesNotMatch", b"IncompleteSignature", b"InvalidClientTokenId", b"MissingAuthentication")


async def forge(keys: Keys, seed: int, count: int) -> dict[str, int]:
    """Send `count` signed requests to a fresh broker, most of them forged; how many of each kind there were."""
    random, kinds, handles = Random(seed), dict[str, int](), list[str]()
    store = MemoryStorage()
    await store.open()
    async with open_broker(store, BrokerConfig(max_body=MAX_BODY)) as broker, trio.open_nursery() as nursery:
        budget = Budget()
        behind = Authorizer(Endpoints(broker, MAX_BODY), keys.logins)
        door = SqsDoor(behind, broker, budget, nursery, keys.logins)
        for number in range(count):
            for queue in ("q", "dead"):
                if await broker.create_queue(queue):
                    await broker.publish(queue, b"hello")
            signed = signed_request(random, handles, keys.found[0])
            kind, is_forged = "as signed", number % 3 != 0
            if is_forged:
                kind, signed = forged(signed, random, keys.found[1])
            elif random.random() < 0.5:
                kind, signed = "reordered", reordered(signed, random)
            before = [await seen(broker), [(queue.ready, queue.leased) for queue in await broker.queues()]]
            reply, body = await answer(door, signed.sent())
            after = [await seen(broker), [(queue.ready, queue.leased) for queue in await broker.queues()]]
            told = f"seed {seed}, number {number}: {kind}: {signed}: {reply.status} {body!r}"
            assert reply.status < 500, told
            assert budget.free == budget.most, told
            is_refused = any(each in body for each in SIGNATURE_CODES)
            if is_forged:
                assert before == after, told
                assert is_refused or ("x-amzn-requestid" not in dict(reply.headers)), told
            else:
                assert not is_refused, told
                handles = [*handles, *_handles(body)][-20:]
            kind = kind if is_forged else f"{kind} {reply.status}"
            kinds[kind] = kinds.get(kind, 0) + 1
        door.end()
    await store.aclose()
    return kinds


async def test_what_is_not_as_it_was_signed_changes_nothing(tmp_path: Path, autojump_clock: trio.abc.Clock) -> None:
    kinds = await forge(Keys(tmp_path), 1, 600)
    assert kinds["as signed 200"] > 10  # or nothing shows that the signatures were right before
    assert kinds["reordered 200"] > 10
    assert kinds.keys() >= FORGERIES


@pytest.mark.proof
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(10))
async def test_a_hundred_thousand_signed_ones(tmp_path: Path, autojump_clock: trio.abc.Clock, part: int) -> None:
    keys = Keys(tmp_path)
    for seed in range(50):
        await forge(keys, 1000 + part * 50 + seed, ROUND)
