"""Long bodies over HTTP: refused unread if their queue can never take them, and staged within a budget of disk."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
import trio

from mq.broker import Broker, BrokerConfig, open_broker
from mq.doors.budget import PATIENCE_SECONDS, Budget, ClientMemory
from mq.storage.memory import MemoryStorage
from mq.web.batches import MOST_A_BYTE, MOST_BESIDE
from mq.web.endpoints import Endpoints
from mq.web.exchange import Reply, Request
from mq.web.request_body import IN_MEMORY_BYTES, STAGED_STEP
from tests.web.talking import contents, detail, parse, start_server

MIB = 1 << 20
MAX_BODY = 4 * MIB
DISK = 16 * MIB
"""Of which a connection may have a quarter."""
FEW = 1000


@pytest.fixture
def budget() -> Budget:
    return Budget(disk=DISK)


@pytest.fixture
async def broker(store: MemoryStorage) -> AsyncIterator[Broker]:
    async with open_broker(store, BrokerConfig(max_body=64 * MIB)) as broker:
        await broker.create_queue("q")
        await broker.create_queue("small")
        await broker.change_settings("small", {"max_bytes": FEW})
        yield broker


@pytest.fixture
def endpoints(broker: Broker, budget: Budget) -> Endpoints:
    return Endpoints(broker, 64 * MIB, budget=budget)


async def unread() -> AsyncGenerator[bytes]:
    raise AssertionError("a byte of it was read")
    yield b""


async def pieces(size: int, taken: list[int] | None = None) -> AsyncGenerator[bytes]:
    for _ in range(0, size, IN_MEMORY_BYTES):
        await trio.lowlevel.checkpoint()
        if taken is not None:
            taken.append(IN_MEMORY_BYTES)
        yield bytes(IN_MEMORY_BYTES)


async def stalled(size: int, seconds: float = 1.0) -> AsyncGenerator[bytes]:
    """So many bytes at once, and then one now and then."""
    yield bytes(size)
    while True:
        await trio.sleep(seconds)
        yield b"x"


async def post(
    endpoints: Endpoints,
    path: str,
    body: AsyncGenerator[bytes],
    length: int | None,
    memory: ClientMemory | None = None,
    **headers: str,
) -> Reply:
    target, _, query = path.partition("?")
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    async with aclosing(body) as chunks:
        request = Request("POST", target.encode(), query.encode(), given, chunks, length, memory=memory)
        return await endpoints.handle(request)


# Bodies that never fit


@pytest.mark.parametrize("length", [FEW + 1, IN_MEMORY_BYTES + 1, 45 * MIB])
async def test_publish_of_more_than_the_queue_may_hold_is_refused_unread(endpoints: Endpoints, length: int) -> None:
    reply = await post(endpoints, "/small/messages", unread(), length)
    assert (reply.status, reply.is_last) == (413, True)
    assert "exceeds the maximum of 1000 bytes (max_bytes of queue small" in detail(reply)


async def test_publish_without_a_length_is_refused_at_the_limit(endpoints: Endpoints, store: MemoryStorage) -> None:
    taken: list[int] = []
    reply = await post(endpoints, "/small/messages", pieces(45 * MIB, taken), None)
    assert (reply.status, sum(taken)) == (413, 2 * IN_MEMORY_BYTES)
    assert await contents(store) == (["q", "small"], 0)


async def test_publish_of_a_body_that_is_here_is_413_not_429(endpoints: Endpoints) -> None:
    """429 asks the client to try again."""
    request = Request("POST", b"/small/messages", b"", {}, bytes(FEW + 1), FEW + 1)
    reply = await endpoints.handle(request)
    assert reply.status == 413
    assert "retry-after" not in dict(reply.headers)
    assert (await endpoints.handle(request._replace(body=bytes(FEW), content_length=FEW))).status == 201
    assert (await endpoints.handle(request._replace(body=b"x", content_length=1))).status == 429


async def test_publish_to_a_queue_that_drops_its_oldest_is_not_refused(endpoints: Endpoints, broker: Broker) -> None:
    await broker.change_settings("small", {"overflow": "drop-head"})
    assert (await post(endpoints, "/small/messages", pieces(MIB), MIB)).status == 201


async def test_publish_with_a_known_key_is_answered_after_the_limit_was_lowered(
    endpoints: Endpoints, broker: Broker
) -> None:
    first = await post(endpoints, "/q/messages", pieces(MIB), MIB, idempotency_key="k")
    await broker.change_settings("q", {"max_bytes": FEW})
    again = await post(endpoints, "/q/messages", pieces(MIB), MIB, idempotency_key="k")
    assert (first.status, again.status, first.headers) == (201, 200, again.headers)
    assert (await post(endpoints, "/q/messages", unread(), MIB, idempotency_key="other")).status == 413


@pytest.mark.parametrize("path", ["/small/messages/batch", "/small/writes/job?part=0&number=0"])
async def test_batch_of_which_not_all_can_fit_is_refused_unread(endpoints: Endpoints, path: str) -> None:
    reply = await post(endpoints, path, unread(), MOST_A_BYTE * FEW + MOST_BESIDE + 1)
    assert reply.status == 413
    assert "queue small has max_bytes" in detail(reply)


async def test_rows_that_come_together_and_never_fit_together_are_refused(endpoints: Endpoints) -> None:
    async def rows() -> AsyncGenerator[bytes]:
        for _ in range(2):
            yield json.dumps({"body": "x" * 501}).encode() + b"\n"

    reply = await post(endpoints, "/small/writes/job?part=0&number=0", rows(), None)
    assert reply.status == 413
    assert "1002 bytes" in detail(reply)


@pytest.mark.parametrize("is_expecting", [True, False])
async def test_413_comes_before_the_body_and_without_100(
    endpoints: Endpoints, nursery: trio.Nursery, fast_lane: bool, is_expecting: bool
) -> None:
    server = await start_server(nursery, endpoints, fast_lane=fast_lane)
    head = f"POST /small/messages HTTP/1.1\r\nHost: mq\r\nContent-Length: {45 * MIB}\r\n"
    async with await server.connect() as stream:
        await stream.send_all(
            f"{head}Expect: 100-continue\r\n\r\n".encode() if is_expecting else f"{head}\r\n".encode()
        )
        received = b""
        with trio.fail_after(10):
            while not received.endswith(b"}\n"):
                received += await stream.receive_some()
    assert parse(received)[0] == 413
    server.stop.set()


# The budget of disk


async def test_announced_length_is_reserved_before_the_first_byte_until_the_message_is_stored(
    endpoints: Endpoints, budget: Budget, nursery: trio.Nursery, autojump_clock: object
) -> None:
    nursery.start_soon(post, endpoints, "/q/messages", stalled(IN_MEMORY_BYTES + 1), MAX_BODY)
    await trio.testing.wait_all_tasks_blocked()
    assert budget.staged == MAX_BODY
    nursery.cancel_scope.cancel()


async def test_disk_is_given_back_once_the_message_is_stored(endpoints: Endpoints, budget: Budget) -> None:
    for length in (MAX_BODY, None):
        assert (await post(endpoints, "/q/messages", pieces(MAX_BODY), length)).status == 201
        assert budget.staged == 0
    assert (await post(endpoints, "/q/messages", pieces(MAX_BODY), MAX_BODY + 1)).status == 400  # it ended early
    assert budget.staged == 0


async def test_body_of_unknown_length_reserves_as_it_comes(
    endpoints: Endpoints, budget: Budget, nursery: trio.Nursery, autojump_clock: object
) -> None:
    nursery.start_soon(post, endpoints, "/q/messages", stalled(2 * STAGED_STEP + 1), None)
    await trio.testing.wait_all_tasks_blocked()
    assert 2 * STAGED_STEP < budget.staged <= 3 * STAGED_STEP + 1
    nursery.cancel_scope.cancel()


async def test_connection_stages_at_most_a_quarter(
    endpoints: Endpoints, budget: Budget, nursery: trio.Nursery, autojump_clock: object
) -> None:
    first, second = budget.client("first"), budget.client("second")
    nursery.start_soon(post, endpoints, "/q/messages", stalled(MIB), DISK // 4, first)
    await trio.testing.wait_all_tasks_blocked()
    refused = await post(endpoints, "/q/messages", pieces(MIB), MIB, first)
    assert (refused.status, dict(refused.headers)["retry-after"]) == (503, "10")
    assert "disk" in detail(refused)
    assert (await post(endpoints, "/q/messages", pieces(MIB), MIB, second)).status == 201
    nursery.cancel_scope.cancel()


async def test_user_stages_at_most_a_quarter_over_all_connections(
    broker: Broker, nursery: trio.Nursery, autojump_clock: object
) -> None:
    budget = Budget(disk=DISK, has_users=True)
    endpoints, clients = Endpoints(broker, 64 * MIB, budget=budget), []
    for user in ("alice", "alice", "bob"):
        clients.append(budget.client(f"a connection of {user}"))
        clients[-1].log_in(user)
    nursery.start_soon(post, endpoints, "/q/messages", stalled(MIB), DISK // 4, clients[0])
    await trio.testing.wait_all_tasks_blocked()
    refused = await post(endpoints, "/q/messages", pieces(MIB), MIB, clients[1])
    assert refused.status == 503
    assert "the limit for user alice" in detail(refused)
    assert (await post(endpoints, "/q/messages", pieces(MIB), MIB, clients[2])).status == 201
    nursery.cancel_scope.cancel()


async def test_slowest_body_ends_first_and_the_next_one_waits_for_its_disk(
    endpoints: Endpoints, budget: Budget, nursery: trio.Nursery, autojump_clock: object
) -> None:
    """All of them began fast, which does not excuse the pause that follows."""
    replies: dict[str, Reply] = {}

    async def slowly(name: str, seconds: float) -> None:
        body, memory = stalled(3 * MIB, seconds), budget.client(name)
        replies[name] = await post(endpoints, "/q/messages", body, MAX_BODY, memory)

    for name, seconds in (("slow", 1.0), ("slowest", 10.0), ("slower", 2.0), ("also slow", 1.0)):
        nursery.start_soon(slowly, name, seconds)
    await trio.sleep(PATIENCE_SECONDS / 2)
    assert (await post(endpoints, "/q/messages", pieces(MIB), MIB, budget.client("early"))).status == 503
    assert not replies
    await trio.sleep(PATIENCE_SECONDS)
    assert (await post(endpoints, "/q/messages", pieces(MIB), MIB, budget.client("honest"))).status == 201
    assert list(replies) == ["slowest"]
    assert (replies["slowest"].status, replies["slowest"].is_last) == (408, True)
    assert "other clients needed the disk space" in detail(replies["slowest"])
    assert dict(replies["slowest"].headers)["retry-after"]
    assert budget.ended == {"staged": 1}
    nursery.cancel_scope.cancel()


async def test_body_that_comes_fast_enough_is_left_alone(
    endpoints: Endpoints, budget: Budget, nursery: trio.Nursery, autojump_clock: object
) -> None:
    async def steady() -> AsyncGenerator[bytes]:
        for _ in range(0, DISK, 160 * 1024):
            await trio.sleep(1)
            yield bytes(160 * 1024)

    nursery.start_soon(post, endpoints, "/q/messages", steady(), DISK)
    await trio.sleep(3 * PATIENCE_SECONDS)
    assert (await post(endpoints, "/q/messages", pieces(MIB), MIB)).status == 503
    assert not budget.ended
    nursery.cancel_scope.cancel()


async def test_36_unfinished_bodies_leave_little_on_the_disk(
    nursery: trio.Nursery, temp_root: Path, fast_lane: bool
) -> None:
    """Each announced 64 MiB, for a queue of 1,000 bytes and for one without a limit."""

    def staged() -> int:
        return sum(path.stat().st_blocks * 512 for path in temp_root.rglob("*") if path.is_file())

    budget = Budget(disk=DISK)
    async with open_broker(f"posix:{temp_root}", BrokerConfig(max_body=64 * MIB)) as broker:
        await broker.create_queue("q")
        await broker.create_queue("small")
        await broker.change_settings("small", {"max_bytes": FEW})
        before = staged()
        server = await start_server(
            nursery, Endpoints(broker, 64 * MIB, budget=budget), budget=budget, fast_lane=fast_lane
        )
        statuses: list[int] = []

        async def send(queue: str) -> None:
            async with await server.connect() as stream:
                head = f"POST /{queue}/messages HTTP/1.1\r\nHost: mq\r\nContent-Length: {12 * MIB}\r\n\r\n"
                await stream.send_all(head.encode())
                async with trio.open_nursery() as sending:
                    sending.start_soon(stream.send_all, bytes(2 * MIB))
                    received = await stream.receive_some()
                    sending.cancel_scope.cancel()
                statuses.append(int(received.split()[1]))

        with trio.fail_after(60):
            async with trio.open_nursery() as clients:
                for queue in ("small", "q") * 18:
                    clients.start_soon(send, queue)
                while len(statuses) < 35:  # all but the one that the budget has room for
                    await trio.sleep(0.01)
                assert sorted(set(statuses)) == [413, 503]
                assert statuses.count(413) == 18
                assert staged() - before <= DISK
                clients.cancel_scope.cancel()
        server.stop.set()
