"""Members of a cluster in etcd: the order in which they joined, and what is theirs for as long as they are members."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from mq_etcd import membership
from mq_etcd.client import open_client
from mq_etcd.connection import Endpoint
from mq_etcd.testing.cluster import Cluster
from mq_etcd.testing.wire import is_txn, never, wire_to

from mq.cluster.coordinator import CandidacyEnded, Coordinator, CoordinatorError, find_coordinator
from mq.errors import StorageFenced
from mq.message import MessageIds
from mq.storage.interface import QUEUE, Result, Write
from mq.storage.records import put_record

pytestmark = pytest.mark.slow

LEASE_SECONDS = 2.0


@pytest.fixture
async def coordinator(single: Cluster, prefix: str) -> AsyncIterator[Coordinator]:
    address = f"etcd:{single.endpoints[0]}?prefix={prefix}"
    async with find_coordinator(address, LEASE_SECONDS) as coordinator:
        yield coordinator


async def names(coordinator: Coordinator) -> list[str]:
    return [member.node for member in await coordinator.members()]


async def test_the_oldest_comes_first_and_who_left_is_the_youngest(coordinator: Coordinator) -> None:
    first = await coordinator.join("c")
    for node in "ab":
        await coordinator.join(node)
    assert await names(coordinator) == ["c", "a", "b"]
    assert (await coordinator.members())[0].number == first.number
    await first.leave()
    again = await coordinator.join("c")
    assert await names(coordinator) == ["a", "b", "c"]
    assert again.number > first.number


async def test_a_member_tells_how_far_it_is_and_stays_as_old(coordinator: Coordinator) -> None:
    first, second = await coordinator.join("a"), await coordinator.join("b")
    await first.note(7, is_draining=True)
    await first.renew()
    found = [(member.node, member.seen, member.is_draining) for member in await coordinator.members()]
    assert found == [("a", 7, True), ("b", 0, False)]
    store = first.storage()
    await store.open()
    assert await put_record(store, QUEUE, "q", {"created": 0}), "the fence holds"
    await store.aclose()
    await first.leave()
    with pytest.raises(CandidacyEnded):
        await first.note(8, is_draining=False)
    assert await names(coordinator) == ["b"]
    await second.leave()


async def test_three_and_no_more_each_with_a_name_of_its_own(coordinator: Coordinator) -> None:
    for node in "abc":
        await coordinator.join(node)
    with pytest.raises(CoordinatorError, match="already has 3 nodes: a, b, c"):
        await coordinator.join("d")
    with pytest.raises(CoordinatorError, match="node b is already a member"):
        await coordinator.join("b")


async def test_one_member_of_etcd_is_told_once(
    single: Cluster, three: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    for cluster, times in ((three, 0), (single, 1)):
        async with find_coordinator(f"etcd:{cluster.endpoints[0]}?prefix=/told{times}", LEASE_SECONDS) as coordinator:
            for node in "ab":
                await coordinator.join(node)
        assert caplog.text.count("has a single member: if its disk fails") == times


async def test_changes_are_told(coordinator: Coordinator) -> None:
    async with coordinator.changes() as changes:
        candidacy = await coordinator.join("a")
        with trio.fail_after(1):
            await anext(changes)
        await candidacy.leave()
        with trio.fail_after(1):
            await anext(changes)
    assert await names(coordinator) == []


async def test_who_does_not_renew_is_no_member_any_more(coordinator: Coordinator) -> None:
    renewed, forgotten = await coordinator.join("a"), await coordinator.join("b")
    with trio.fail_after(10):
        while await names(coordinator) != ["a"]:  # etcd's own clock
            await renewed.renew()
            await trio.sleep(0.2)
    with pytest.raises(CandidacyEnded):
        await forgotten.renew()


async def test_the_store_of_who_is_no_member_any_more_changes_nothing(coordinator: Coordinator) -> None:
    old = await coordinator.join("a")
    new = await coordinator.join("b")
    store = old.storage()
    await store.open()
    assert await put_record(store, QUEUE, "q", {"created": 1})
    await old.leave()
    with pytest.raises(StorageFenced):
        await put_record(store, QUEUE, "r", {"created": 1})
    await store.aclose()
    after = new.storage()
    await after.open()
    assert list(await after.records(QUEUE)) == ["q"]
    await after.aclose()


async def test_a_change_that_takes_longer_than_a_lease_is_late_and_the_master_stays(
    single: Cluster, prefix: str
) -> None:
    async with (
        wire_to(single.members[0].port) as wire,
        trio.open_nursery() as nursery,
        find_coordinator(f"etcd:{wire.endpoint}?prefix={prefix}", LEASE_SECONDS) as coordinator,
    ):
        master = await coordinator.join("a")

        async def renew() -> None:
            while True:
                await master.renew()
                await trio.sleep(LEASE_SECONDS / 5)

        async def answer_late() -> None:
            await trio.sleep(LEASE_SECONDS * 2)
            wire.holds = never

        nursery.start_soon(renew)
        store = master.storage()
        await store.open()
        await put_record(store, QUEUE, "q", {"created": 1})
        wire.holds = is_txn
        nursery.start_soon(answer_late)
        [outcome] = await store.commit([Write("q", MessageIds().new(), b"body")])
        assert outcome.result is Result.DONE
        assert wire.held, "it was asked for again and again"
        assert await names(coordinator) == ["a"]
        await store.aclose()
        nursery.cancel_scope.cancel()


async def test_etcd_is_led_from_another_machine_than_the_masters(
    three: Cluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here all members are on one machine: it is said which are taken for others."""
    async with find_coordinator(f"etcd:{','.join(three.endpoints)}?prefix={prefix}", 5.0) as coordinator:
        assert not await coordinator.lead_elsewhere(), "there is no other machine"
        async with open_client(three.endpoints) as client:

            async def leader() -> Endpoint:
                with trio.fail_after(30):
                    while True:
                        for member in client.endpoints:
                            state = await client.status(member)
                            if state.member == state.leader:
                                return member
                        await trio.sleep(0.05)

            first = await leader()
            monkeypatch.setattr(membership, "_is_here", lambda member: member == first)
            assert await coordinator.lead_elsewhere()
            with trio.fail_after(30):
                while (second := await leader()) == first:
                    await trio.sleep(0.05)
            assert not await coordinator.lead_elsewhere(), "it is led from elsewhere already"
            assert await leader() == second
