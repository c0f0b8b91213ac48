"""An etcd that is full, and one that never becomes so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
import trio
from mq_etcd import room
from mq_etcd.client import Client, open_client
from mq_etcd.errors import Compacted, NoSpace
from mq_etcd.testing.cluster import Cluster, running

from mq.broker import Broker, open_broker
from mq.broker.consuming import Removal
from mq.broker.publishing import Draft
from mq.errors import MQError, StorageFull
from mq.lifecycle import State
from mq.message import MessageIds
from mq.storage.conformance import check_whole
from mq.storage.interface import QUEUE, Entry, Move, Result, Storage, Unlink, Write
from mq.storage.records import drop_record, put_record
from mq.storage.registry import open_storage

IDS = MessageIds()
QUOTA = 64 << 20
LITTLE = 8 << 20
BODY = bytes(100_000)


@pytest.fixture
def cluster(installed: None, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One member that may hold little: what the test's parameter says, or less."""
    with running(1, f"--quota-backend-bytes={getattr(request, 'param', LITTLE)}") as cluster:
        yield cluster


async def fill(broker: Broker) -> int:
    """Publish until there is no room, not even when etcd's size has been looked at again; how many were."""
    published = refusals = 0
    for _ in range(2 * QUOTA // len(BODY)):
        outcomes = await broker.publish_many("orders", [Draft(BODY)] * 10)
        refused = [outcome for outcome in outcomes if isinstance(outcome, MQError)]
        assert all(isinstance(error, StorageFull) for error in refused)
        published += len(outcomes) - len(refused)
        refusals = refusals + 1 if len(refused) == len(outcomes) else 0
        if refusals == 3:
            return published
        if refusals:
            await trio.sleep(2 * room.LAG_SECONDS)
    raise AssertionError("it never became full")


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [QUOTA], indirect=True)
async def test_new_messages_are_refused_before_etcd_is_full(cluster: Cluster) -> None:
    """What is there can be fetched and removed, and then there is room again, without an operator's help."""
    address = f"etcd:{cluster.endpoints[0]}?quota={QUOTA >> 20}MiB"
    async with open_client(cluster.endpoints) as client, open_broker(address) as broker:
        await broker.create_queue("orders")
        count = await fill(broker)
        assert count * len(BODY) > QUOTA / 4, "its history alone filled it"
        await compact_whole(client)
        with pytest.raises(StorageFull, match=r"\d+ bytes, but mq uses at most 26843545 bytes \(40% of"):
            await broker.publish("orders", BODY)
        while messages := await broker.fetch_many("orders", 100):
            outcomes = await broker.remove_many("orders", [Removal(message.id, None) for message in messages])
            assert outcomes == [None] * len(messages)
            count -= len(messages)
        assert count == 0
        assert not await alarms(client), "etcd was filled to the last byte"
        with trio.fail_after(20):
            while not await is_published(broker):
                await trio.sleep(0.1)


async def is_published(broker: Broker) -> bool:
    [outcome] = await broker.publish_many("orders", [Draft(BODY)])
    return not isinstance(outcome, StorageFull)


@pytest.mark.parametrize("quota", ["2GiB", f"{LITTLE >> 20}MiB"])
async def test_a_full_etcd_refuses_and_recovers(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, quota: str) -> None:
    """Another program's history fills etcd, whose alarm refuses everything. It ends once the history is thrown away,
    whether or not the store knows how much etcd may hold."""
    monkeypatch.setattr(room, "MEND_SECONDS", 0.5)
    address = f"etcd:{cluster.endpoints[0]}?quota={quota}"
    async with open_client(cluster.endpoints) as client, open_storage(address) as storage:
        await put_record(storage, QUEUE, "orders", {"created": 0})
        [kept] = await commit(storage, Write("orders", IDS.new(), b"kept"), Result.DONE)
        await overwrite_until_full(client)
        assert await alarms(client)
        [full] = await storage.commit([Write("orders", IDS.new(), BODY)])
        assert full.result is Result.FULL
        if quota == "2GiB":
            assert "database space exceeded. Remove messages or raise etcd's --quota-backend-bytes" in full.reason
        with trio.fail_after(20):
            while (await storage.commit([Move(kept, State.READY)]))[0].result is not Result.DONE:
                await trio.sleep(0.1)
        assert not await alarms(client)
        await commit(storage, Write("orders", IDS.new(), BODY), Result.DONE)
        await check_whole(storage)


async def test_messages_can_be_removed_after_the_alarm_where_live_data_fill_most_of_etcd(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MEND_SECONDS", 0.5)
    address = f"etcd:{cluster.endpoints[0]}?quota={LITTLE >> 20}MiB"
    async with open_client(cluster.endpoints) as client, open_storage(address) as storage:
        await put_record(storage, QUEUE, "orders", {"created": 0})
        [kept] = await commit(storage, Write("orders", IDS.new(), b"kept"), Result.DONE)
        for number in range(4):  # half of the quota, more than mq fills with messages
            await client.put(f"/live/{number}", bytes(1_000_000))
        await overwrite_until_full(client)
        with trio.fail_after(20):
            while (await storage.commit([Move(kept, State.REMOVED)]))[0].result is not Result.DONE:
                await trio.sleep(0.1)
        [refused] = await storage.commit([Write("orders", IDS.new(), BODY)])
        assert "mq uses at most" in refused.reason


async def test_alarm_is_ended_where_all_messages_are_refused_before_they_meet_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a compaction that etcd has not carried out yet, the write by which it counts what is free meets the
    alarm."""
    calls: list[str] = []

    async def refused_put(*_: object) -> int:
        calls.append("put")
        raise NoSpace("database space exceeded")

    async def defragment() -> None:
        calls.append("defragment")

    async with open_client(cluster.endpoints) as client, open_storage(f"etcd:{cluster.endpoints[0]}?quota=8MiB") as mq:
        await put_record(mq, QUEUE, "orders", {"created": 0})
        for number in range(4):
            await client.put(f"/live/{number}", bytes(1_000_000))
        with trio.fail_after(60):
            while (await client.status()).used < 4_000_000:  # it tells its size a moment later
                await trio.sleep(0.01)
        monkeypatch.setattr(mq._client, "put", refused_put)  # type: ignore[attr-defined]
        monkeypatch.setattr(mq._client, "defragment", defragment)  # type: ignore[attr-defined]
        [refused] = await mq.commit([Write("orders", IDS.new(), BODY)])
        assert "mq uses at most" in refused.reason
        assert calls == ["put", "defragment"]


async def test_a_record_that_finds_no_room_says_so(cluster: Cluster) -> None:
    async with open_client(cluster.endpoints) as client, open_storage(f"etcd:{cluster.endpoints[0]}") as storage:
        await overwrite_until_full(client)
        with pytest.raises(StorageFull, match="database space exceeded"):
            await put_record(storage, QUEUE, "orders", {"created": 0})
        assert await storage.records(QUEUE) == {}


async def test_the_room_of_a_dropped_queue_is_given_back(storage: Storage, place, client: Client) -> None:
    """Its bodies go with it, some at a time."""
    ids = [IDS.new() for _ in range(130)]
    await storage.commit([Write("orders", id, b"x") for id in ids])
    await storage.commit([Move(Entry("orders", id, State.NEW), State.READY) for id in ids])
    await drop_record(storage, QUEUE, "orders")
    results = []
    [grave] = await storage.scan(State.REMOVED)
    while not results or results[-1] is Result.MORE:
        [outcome] = await storage.commit([Unlink(grave)])
        results.append(outcome.result)
    assert results == [Result.MORE, Result.MORE, Result.DONE]
    assert (await storage.commit([Unlink(grave)]))[0].result is Result.GONE
    left = await client.range(f"{place.prefix}/", f"{place.prefix}0", keys_only=True)
    kinds = {found.key.removeprefix(place.prefix).split("/")[1] for found in left.found}
    assert kinds == {"lane", "owner"}


async def commit(storage: Storage, write: Write, wanted: Result) -> list[Entry]:
    outcomes = await storage.commit([write])
    assert [outcome.result for outcome in outcomes] == [wanted]
    return [outcome.entry for outcome in outcomes if outcome.entry is not None]


async def overwrite_until_full(client: Client) -> None:
    """One key, again and again: all but the last is history."""
    for _ in range(2 * LITTLE // 1_000_000):
        try:
            await client.put("/other", bytes(1_000_000))
        except NoSpace:
            return
    raise AssertionError("it never became full")


async def compact_whole(client: Client) -> None:
    """Throw away all history, and wait until its pages have been written anew: the most room etcd ever needs."""
    revision = (await client.status()).revision
    with suppress(Compacted):
        await client._members.ask("/v3/kv/compaction", {"revision": str(revision), "physical": True}, changes=True)


async def alarms(client: Client) -> list[object]:
    """What etcd itself says of being full."""
    reply = await client._members.ask("/v3/maintenance/alarm", {"action": "GET"})
    return list(reply.get("alarms", ()))
