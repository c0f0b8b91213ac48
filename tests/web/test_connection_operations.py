"""Who is connected and who waits, over real sockets; and an end to a connection."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from mq.access import UserDirectory
from mq.broker import Broker
from mq.doors.logins import Logins
from mq.doors.open_connections import ConnectionStatus, ConsumerStatus, OpenConnections
from mq.web.admin_operations import LOOKED_AT_TOGETHER
from mq.web.authorizer import Authorizer
from mq.web.endpoints import Endpoints
from mq.web.exchange import Handler, Reply, Request
from tests.access.files import TOKEN, write_users
from tests.web.talking import MAX_BODY, Server, ask, detail, http1, parse, read_all, start_server, stream
from tests.web.test_waiting import answer, until, waiting

USERS = '[users.alice]\ntokens = ["TOKEN"]\nconsume = ["*"]\nadminister = ["*"]\n'
AS_ALICE = f"Authorization: Bearer {TOKEN}"


@pytest.fixture
def seen() -> OpenConnections:
    return OpenConnections()


@pytest.fixture
async def server(
    broker: Broker, seen: OpenConnections, nursery: trio.Nursery, fast_lane: bool, tmp_path: Path
) -> Server:
    await broker.create_queue("q")
    gate = Authorizer(
        Endpoints(broker, MAX_BODY, connections=seen), Logins(UserDirectory(write_users(tmp_path / "users", USERS)))
    )
    return await start_server(nursery, gate, fast_lane=fast_lane, seen=seen)


@asynccontextmanager
async def connected(server: Server, broker: Broker) -> AsyncIterator[tuple[trio.SocketStream, trio.SocketStream]]:
    """One that waits for a message, and one that asks."""
    async with await server.connect() as waits, await server.connect() as asks:
        await waits.send_all(http1("GET", "/q/messages?wait=60", None, AS_ALICE))
        await until(lambda: waiting(broker) == 1)
        yield waits, asks


async def asked(stream: trio.SocketStream, method: str, path: str) -> tuple[int, Any]:
    await stream.send_all(http1(method, path, None, AS_ALICE))
    status, _, body = await answer(stream)
    return status, json.loads(body) if body else None


async def test_who_is_connected_and_who_waits(server: Server, broker: Broker) -> None:
    async with connected(server, broker) as (waits, asks):
        status, found = await asked(asks, "GET", "/-/connections")
        assert (status, found["open"], found["next"]) == (200, 2, None)
        first, second = found["connections"]
        port = waits.socket.getsockname()[1]
        assert (first["protocol"], first["state"], first["address"], first["port"]) == (
            "http",
            "waiting",
            "127.0.0.1",
            port,
        )
        assert (first["user"], first["vhost"], first["channels"]) == ("alice", None, [])
        assert first["received_bytes"] > 50
        assert first["sent_bytes"] == 0
        assert second["state"] == "open"
        status, found = await asked(asks, "GET", "/-/consumers")
        [consumer] = found["consumers"]
        assert (consumer["queue"], consumer["connection"], consumer["user"]) == ("q", first["id"], "alice")
        assert (consumer["prefetch"], consumer["unacknowledged"], consumer["tag"]) == (None, 0, None)
        assert consumer["idle_seconds"] < 60
        assert await consumers_of_q(asks) == {1}
        await broker.publish("q", b"x")
        assert (await answer(waits))[0] == 200
        assert (await asked(asks, "GET", "/-/consumers"))[1]["consumers"] == []
        assert await consumers_of_q(asks) == {0}


async def consumers_of_q(asks: trio.SocketStream) -> set[int]:
    """The number of q's consumers, wherever HTTP tells it."""
    one = (await asked(asks, "GET", "/q"))[1]
    [listed] = (await asked(asks, "GET", "/-/queues"))[1]["queues"]
    [rated] = (await asked(asks, "GET", "/-/rates?sort=consumers"))[1]["queues"]
    history = (await asked(asks, "GET", "/q/rates"))[1]
    return {each["consumers"] for each in (one, listed, rated, history)}


async def test_what_has_ended_is_not_there(server: Server, broker: Broker, seen: OpenConnections) -> None:
    async with connected(server, broker):
        assert len(seen.all()) == 2
    await until(lambda: not seen.all())


async def test_closing_one_that_waits_loses_no_message(
    server: Server, broker: Broker, seen: OpenConnections, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mq.audit")
    async with connected(server, broker) as (waits, asks):
        [(id, _), _] = seen.all()
        assert (await asked(asks, "DELETE", f"/-/connections/{id}"))[0] == 200
        with trio.fail_after(5):
            assert await read_to_the_end(waits) == b""
        await until(lambda: not waiting(broker))
        await broker.publish("q", b"still there")
        assert (await broker.status("q")).ready == 1
    [line] = [record.getMessage() for record in caplog.records if "connection-closed" in record.getMessage()]
    assert f'connection="{id}"' in line
    assert 'user="alice"' in line


async def read_to_the_end(stream: trio.SocketStream) -> bytes:
    try:
        return await read_all(stream)
    except trio.BrokenResourceError:  # a socket that is closed with bytes unread resets its connection
        return b""


class Endless(Handler):
    """Answers without end."""

    async def handle(self, request: Request) -> Reply:
        return Reply(200, (), self)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            yield bytes(65536)

    async def aclose(self) -> None: ...


async def test_closing_one_whose_client_reads_nothing(
    nursery: trio.Nursery, seen: OpenConnections, fast_lane: bool
) -> None:
    server = await start_server(nursery, Endless(), fast_lane=fast_lane, seen=seen)
    async with await server.connect() as stream:
        await stream.send_all(http1("GET", "/"))
        await until(lambda: bool(seen.all()))
        [(_, connection)] = seen.all()

        def is_stuck() -> bool:
            return bool((connection.status().sent_bytes or 0) and connection.status().idle_seconds > 0.2)

        await until(is_stuck)
        connection.close("enough")
        await until(lambda: not seen.all())
    server.stop.set()


async def test_the_connection_that_asks_ends_with_its_answer(server: Server, seen: OpenConnections) -> None:
    async with await server.connect() as stream:
        await asked(stream, "GET", "/-/connections")
        [(id, _)] = seen.all()
        await stream.send_all(http1("DELETE", f"/-/connections/{id}", None, AS_ALICE))
        with trio.fail_after(5):
            status, headers, _ = parse(await read_all(stream))
        assert (status, headers["connection"]) == (200, "close")


class Fake:
    """A connection that is looked at."""

    protocol = "amqp"

    def status(self) -> ConnectionStatus:
        return ConnectionStatus("amqp", "open", "::1", 7, None, "/", 1.0, 0.5, 1, 2, ())

    def consumers(self) -> list[ConsumerStatus]:
        return [ConsumerStatus("q", "c", 1, 0, True, 0, 0, 0.0, 1.0, 0.5)] * 2

    def close(self, why: str) -> None:
        raise AssertionError


async def test_many_are_shown_page_by_page(broker: Broker, seen: OpenConnections) -> None:
    endpoints = Endpoints(broker, MAX_BODY, connections=seen)
    for _ in range(LOOKED_AT_TOGETHER + 1):
        seen.entry(Fake()).__enter__()
    for path, each in (("connections", 1), ("consumers", 2)):
        ids: list[str] = []
        after = ""
        while after is not None:
            reply = await ask_query(endpoints, f"/-/{path}", f"max=10{after and '&after='}{after}")
            page = json.loads(reply.body)
            ids += [found.get("connection") or found["id"] for found in page[path]]
            assert len(page[path]) <= 11
            after = page["next"]
        assert ids == [id for id, _ in seen.all() for _ in range(each)]


async def ask_query(endpoints: Endpoints, path: str, query: str) -> Any:
    return await endpoints.handle(Request("GET", path.encode(), query.encode(), {}, stream(), None))


async def test_closing_what_is_not_there_says_where_to_look(endpoints: Endpoints) -> None:
    reply = await ask(endpoints, "DELETE", "/-/connections/nonsense")
    assert reply.status == 404
    assert "GET /-/connections" in detail(reply)
