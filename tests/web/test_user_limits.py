"""Limits of users over HTTP: refused with 429, and when to try again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from mq.access import UserDirectory
from mq.broker import Broker, BrokerConfig, open_broker
from mq.doors.logins import Logins
from mq.doors.open_connections import OpenConnections
from mq.doors.quotas import Quotas
from mq.storage.interface import QUEUE
from mq.storage.memory import MemoryStorage
from mq.web.authorizer import Authorizer
from mq.web.endpoints import Endpoints
from mq.web.exchange import Reply, Request
from tests.access.files import OTHER_TOKEN, TOKEN, write_users
from tests.web.talking import MAX_BODY, ask, detail, http1, parse, start_server, stream

USERS = """
[users.shop]
tokens = ["TOKEN"]
publish = ["*"]
configure = ["*"]
{}
[users.ben]
tokens = ["OTHER_TOKEN"]
administer = ["*"]
"""


class House:
    """Endpoints behind users."""

    def __init__(self, broker: Broker, path: Path, limits: str) -> None:
        self.path = path
        self.access = UserDirectory(write_users(path, USERS.format(limits)))
        self.seen = OpenConnections()
        self.quotas = Quotas(self.seen)
        self.handler = Authorizer(Endpoints(broker, MAX_BODY), Logins(self.access), quotas=self.quotas)

    def limit(self, limits: str) -> None:
        """Change the limits of the shop, as SIGHUP does."""
        write_users(self.path, USERS.format(limits))
        self.access.reload()

    async def ask(self, method: str, path: str, body: bytes = b"", token: str = TOKEN) -> Reply:
        headers = {"authorization": f"Bearer {token}"}
        return await ask(self.handler, method, path, *([body] if body else []), headers=headers)


async def test_queues_of_a_user_are_limited(broker: Broker, tmp_path: Path) -> None:
    house = House(broker, tmp_path / "users", "max_queues = 2")
    assert (await house.ask("PUT", "/of-ben", token=OTHER_TOKEN)).status == 201
    assert [(await house.ask("PUT", f"/q{number}")).status for number in range(2)] == [201, 201]
    refused = await house.ask("PUT", "/q2")
    assert (refused.status, dict(refused.headers)["retry-after"]) == (429, "10")
    assert (
        detail(refused)
        == "user shop already has 2 queues, the maximum for this user (max_queues). Delete some queues first"
    )
    assert (await house.ask("PUT", "/q1")).status == 200  # it is there
    assert (await house.ask("PUT", "/q3", token=OTHER_TOKEN)).status == 201
    assert (await house.ask("DELETE", "/q0")).status == 200
    assert (await house.ask("PUT", "/q2")).status == 201
    house.limit("max_queues = 3")
    assert (await house.ask("PUT", "/q4")).status == 201
    house.limit("")
    assert (await house.ask("PUT", "/q5")).status == 201


async def test_queues_count_after_a_restart_and_changed_settings(tmp_path: Path) -> None:
    store = MemoryStorage()
    await store.open()
    async with open_broker(store, BrokerConfig()) as broker:
        house = House(broker, tmp_path / "users", "max_queues = 1")
        assert (await house.ask("PUT", "/q")).status == 201
        await broker.change_settings("q", {"max_messages": 7})
        await broker.purge("q")
    async with open_broker(store, BrokerConfig()) as broker:
        house = House(broker, tmp_path / "users", "max_queues = 1")
        assert (await house.ask("PUT", "/r")).status == 429
    assert (await store.records(QUEUE))["q"]["owner"] == "shop"
    await store.aclose()


async def test_queue_that_no_user_makes_has_no_owner(broker: Broker, store: MemoryStorage) -> None:
    await ask(Endpoints(broker, MAX_BODY), "PUT", "/q")
    assert "owner" not in (await store.records(QUEUE))["q"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/q/messages", b"x"),
        ("/q/messages/batch", b'{"body": "x"}\n'),
        ("/q/writes/job?part=0&number={number}", b'{"body": "x"}\n'),
    ],
)
async def test_messages_a_second_of_a_user_are_limited(
    broker: Broker, tmp_path: Path, path: str, body: bytes, autojump_clock: object
) -> None:
    house = House(broker, tmp_path / "users", "max_publish_rate = 0.5")
    await house.ask("PUT", "/q")
    statuses, waited = [], []
    for number in range(3):
        target, _, query = path.format(number=number).partition("?")
        reply = await _post(house, target, query, body)
        statuses.append(reply.status)
        waited.append(dict(reply.headers).get("retry-after"))
        await trio.sleep(0.5)
    assert statuses[0] in (200, 201)
    assert (statuses[1:], waited) == ([429, 429], [None, "2", "1"])
    await trio.sleep(1)
    assert (await _post(house, target, query, body)).status == statuses[0]
    assert (await house.ask("POST", "/q/messages", b"x", token=OTHER_TOKEN)).status == 201
    house.limit("")
    assert (await house.ask("POST", "/q/messages", b"x")).status == 201
    assert house.quotas.refused == {"publish_rate": 2}


async def _post(house: House, target: str, query: str, body: bytes) -> Reply:
    headers = {"authorization": f"Bearer {TOKEN}"}
    return await house.handler.handle(Request("POST", target.encode(), query.encode(), headers, stream(body), None))


async def test_batch_counts_each_of_its_messages(broker: Broker, tmp_path: Path, autojump_clock: object) -> None:
    house = House(broker, tmp_path / "users", "max_publish_rate = 10")
    await house.ask("PUT", "/q")
    batch = b'{"body": "x"}\n' * 6
    assert [(await house.ask("POST", "/q/messages/batch", batch)).status for _ in range(2)] == [200, 429]
    assert (await broker.status("q")).ready == 6


async def test_connections_of_a_user_are_limited(
    broker: Broker, tmp_path: Path, nursery: trio.Nursery, fast_lane: bool
) -> None:
    house = House(broker, tmp_path / "users", "max_connections = 2")
    server = await start_server(nursery, house.handler, seen=house.seen, fast_lane=fast_lane)
    lines = (f"Authorization: Bearer {TOKEN}",)

    async def look(stream: trio.SocketStream) -> tuple[int, dict[str, str], bytes]:
        await stream.send_all(http1("PUT", "/q", b"", *lines))
        received = b""
        while not received.endswith(b"}\n"):
            received += await stream.receive_some()
        return parse(received)

    with trio.fail_after(10):
        first, second = await server.connect(), await server.connect()
        assert [(await look(stream))[0] for stream in (first, second, first)] == [201, 200, 200]
        third = await server.connect()
        status, headers, body = await look(third)
        assert (status, headers["retry-after"], headers["connection"]) == (429, "10", "close")
        assert "max_connections" in json.loads(body)["detail"]
        await third.aclose()
        await second.aclose()
        while house.seen.count("shop") > 1:
            await trio.sleep(0.01)
        fourth = await server.connect()
        assert (await look(fourth))[0] == 200
        house.limit("max_connections = 3")
        fifth = await server.connect()
        assert (await look(fifth))[0] == 200
        for stream in (first, fourth, fifth):
            await stream.aclose()
    server.stop.set()
