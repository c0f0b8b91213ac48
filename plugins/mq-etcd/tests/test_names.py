"""The one name space of a cluster: found as it is, followed, and each name either the store's or reserved."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from mq_etcd.client import Client
from mq_etcd.testing.cluster import Cluster
from mq_etcd.values import Compare

from mq.cluster.coordinator import Coordinator, CoordinatorError, NameRegistry, SharedRecord, find_coordinator
from mq.errors import Conflict
from mq.storage.interface import QUEUE, Storage
from mq.storage.records import drop_record, put_record

pytestmark = pytest.mark.slow

LEASE_SECONDS = 10.0
ODD = "_@vhost@@a name/✓"


@pytest.fixture
async def coordinator(single: Cluster, prefix: str) -> AsyncIterator[Coordinator]:
    async with find_coordinator(f"etcd:{single.endpoints[0]}?prefix={prefix}", LEASE_SECONDS) as coordinator:
        yield coordinator


@pytest.fixture
def names(coordinator: Coordinator) -> NameRegistry:
    return coordinator.names


@pytest.fixture
async def store(coordinator: Coordinator) -> AsyncIterator[Storage]:
    store = (await coordinator.join("a")).storage()
    await store.open()
    yield store
    await store.aclose()


async def test_queues_are_found_as_they_are(names: NameRegistry, store: Storage) -> None:
    many = [f"q{number}" for number in range(200)]
    assert (await names.find(many)).queues == {}
    await put_record(store, QUEUE, "q150", {"created": 1, "declared": {"x": 1}})
    await put_record(store, QUEUE, ODD, {"created": 2})
    found = await names.find([*many, ODD])
    assert {queue: each.record["created"] for queue, each in found.queues.items()} == {"q150": 1, ODD: 2}
    first = found.queues["q150"].number
    assert found.number >= first
    await put_record(store, QUEUE, "q150", {"created": 1, "settings": {}})
    assert (await names.find(["q150"])).queues["q150"].number == first, "it is the same life"
    await drop_record(store, QUEUE, "q150")
    gone = await names.find(["q150"])
    assert not gone.queues
    assert gone.number > first
    await put_record(store, QUEUE, "q150", {"created": 3})
    assert (await names.find(["q150"])).queues["q150"].number > gone.number


async def test_what_becomes_of_queues_is_told(names: NameRegistry, store: Storage) -> None:
    await put_record(store, QUEUE, "old", {"created": 1})
    async with names.follow() as (snapshot, changes):
        assert list(snapshot.queues) == ["old"]
        await put_record(store, QUEUE, "new", {"created": 2})
        await put_record(store, "other", "new", {})
        await drop_record(store, QUEUE, "old")
        with trio.fail_after(5):
            made, gone = await anext(changes), await anext(changes)
    assert (made.queue, made.found is not None and made.found.record) == ("new", {"created": 2})
    assert (gone.queue, gone.found) == ("old", None)
    assert snapshot.number < made.number < gone.number


async def test_a_name_is_the_stores_or_reserved(names: NameRegistry, store: Storage) -> None:
    for queue in ("q", ODD):
        assert await names.reserve("b", queue)
        assert await names.reserve("b", queue), "again"
        assert await names.reserve("c", queue)
        with pytest.raises(Conflict, match="on node b and c as a local queue"):
            await put_record(store, QUEUE, queue, {"created": 1})
        assert (await names.find([queue])).queues == {}
    assert await names.reserved("b") == await names.reserved("c") == {"q", ODD}
    assert await names.reserved("a") == set()
    for node in "bc":
        await names.release(node, "q")
        await names.release(node, "q")
    assert await names.reserved("b") == {ODD}
    assert await put_record(store, QUEUE, "q", {"created": 1})
    assert not await put_record(store, QUEUE, "q", {"created": 1, "settings": {}})
    assert not await names.reserve("b", "q")
    assert await put_record(store, QUEUE, "qq", {"created": 1}), "a name that another one begins with"
    await put_record(store, "other", ODD, {})
    await drop_record(store, QUEUE, "q")
    assert await names.reserve("b", "q")


async def test_a_queue_that_is_there_is_changed_whatever_is_reserved(
    names: NameRegistry, store: Storage, client: Client, prefix: str
) -> None:
    await put_record(store, QUEUE, "q", {"created": 1})
    await client.put(f"{prefix.rstrip('/')}-reserved/q/b", b"")
    assert not await put_record(store, QUEUE, "q", {"created": 1, "settings": {}})
    assert (await store.records(QUEUE))["q"] == {"created": 1, "settings": {}}


async def test_of_a_name_that_both_want_at_once_one_gets_it(names: NameRegistry, store: Storage) -> None:
    for number in range(20):
        got: list[str] = []

        async def make(queue: str, got: list[str]) -> None:
            try:
                await put_record(store, QUEUE, queue, {"created": 1})
            except Conflict:
                return
            got.append("store")

        async def reserve(queue: str, got: list[str]) -> None:
            if await names.reserve("b", queue):
                got.append("node")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(make, f"q{number}", got)
            nursery.start_soon(reserve, f"q{number}", got)
        assert len(got) == 1, got


async def test_a_release_that_comes_late_releases_nothing_that_was_reserved_again(
    names: NameRegistry, client: Client, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await names.reserve("b", "q")
    txn = Client.txn

    async def held_back(self: Client, compares: list[Compare], *operations: object, **named: object) -> object:
        monkeypatch.undo()
        await names.release("b", "q")
        await names.reserve("b", "q")
        return await txn(self, compares, *operations, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Client, "txn", held_back)
    with pytest.raises(CoordinatorError, match="changed while it was being"):
        await names.release("b", "q")
    assert await names.reserved("b") == {"q"}


async def test_shared_records_are_followed_in_their_order(names: NameRegistry, store: Storage) -> None:
    await put_record(store, "amqp-exchange", ODD, {"kind": "topic"})
    await put_record(store, QUEUE, "q", {"created": 0})
    await put_record(store, "idempotency", "x", {})
    assert await names.shared("amqp-exchange", "none") is None
    assert await names.shared("amqp-exchange", ODD) == {"kind": "topic"}
    async with names.follow_shared() as (now, changes):
        assert list(now) == [SharedRecord("amqp-exchange", ODD, {"kind": "topic"})]
        await put_record(store, "amqp-binding", "b", {"to": "q"})
        await put_record(store, "idempotency", "y", {})
        await put_record(store, "amqp-changes", "last", {"number": 1})
        await drop_record(store, "amqp-exchange", ODD)
        with trio.fail_after(10):
            told = [await anext(changes) for _ in range(3)]
    assert told == [
        SharedRecord("amqp-binding", "b", {"to": "q"}),
        SharedRecord("amqp-changes", "last", {"number": 1}),
        SharedRecord("amqp-exchange", ODD, None),
    ]
