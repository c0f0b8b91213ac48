"""The broker on etcd, whole: what it answered is so after a restart, and one at a time has the store."""

from __future__ import annotations

import pytest
import trio
from mq_etcd import owner
from mq_etcd.client import open_client

from mq.broker import open_broker
from mq.errors import BodyTooLarge, StorageFenced, StorageUnusable
from mq.storage.interface import Sharing
from mq.storage.registry import open_storage


async def test_what_was_answered_is_there_after_a_restart(place) -> None:
    place.prefix = "/broker/restart"
    async with open_broker(place.address) as broker:
        await broker.create_queue("orders")
        ids = [await broker.publish("orders", b"%d" % number, {"n": number}) for number in range(20)]
        held = await broker.fetch("orders")
        assert held is not None
        done = await broker.fetch("orders")
        assert done is not None
        await broker.remove("orders", done.id, receipt=done.receipt)
        large = await broker.publish("orders", bytes(1 << 20))
    async with open_broker(place.address) as broker:
        assert [status.name for status in await broker.queues()] == ["orders"]
        rest = await broker.fetch_many("orders", 100)
        assert [message.id for message in rest] == [*ids[2:], large], "in order, without what is leased or removed"
        assert [(await message.body.read(), message.properties.attributes) for message in rest[:-1]] == [
            (b"%d" % number, {"n": number}) for number in range(2, 20)
        ]
        await broker.requeue("orders", held.id, receipt=held.receipt)
        again = await broker.fetch("orders")
        assert again is not None
        assert (again.id, again.receives) == (held.id, 2)
        await broker.delete_queue("orders")
    async with open_broker(place.address) as broker:
        assert await broker.queues() == []


async def test_a_body_that_is_too_long_is_refused_by_the_broker(place) -> None:
    place.prefix = "/broker/long"
    async with open_broker(place.address) as broker:
        await broker.create_queue("orders")
        with pytest.raises(BodyTooLarge, match="1048576 bytes"):
            await broker.publish("orders", bytes((1 << 20) + 1))


async def test_a_second_broker_is_refused(place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "LEASE_SECONDS", 1)
    place.prefix = "/broker/second"
    async with open_broker(place.address) as broker:
        await broker.create_queue("orders")
        with pytest.raises(StorageUnusable, match=r"in use by .* process \d+.*Stop that daemon first"):
            async with open_broker(place.address):
                pytest.fail("two have the store")
        await broker.publish("orders", b"still mine")


async def test_who_was_killed_with_the_store_in_hand_loses_it(place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease may last as long as that of the one who waits for it."""
    monkeypatch.setattr(owner, "LEASE_SECONDS", 2)
    place.prefix = "/broker/killed"
    async with open_client(place.cluster.endpoints) as client:
        killed = owner.Owner(client, f"{place.prefix}/owner", "killed")
        await killed.take()
        assert killed._keeping is not None
        killed._keeping.cancel()
        await client.keep_alive(killed._lease)
        with trio.fail_after(8):
            async with open_broker(place.address) as broker:
                await broker.create_queue("orders")


async def test_who_lost_the_store_ends(place, client, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it had been cut off for longer than its lease."""
    place.prefix = "/broker/lost"

    async def lose() -> None:
        async with open_broker(place.address) as broker:
            await broker.create_queue("orders")
            await client.delete(f"{place.prefix}/owner")
            async with open_broker(place.address) as successor:
                await successor.publish("orders", b"mine now")
                with trio.move_on_after(10):
                    await broker.publish("orders", b"too late")
            pytest.fail("it carries on")

    with pytest.raises(ExceptionGroup) as raised:
        await lose()
    assert raised.group_contains(StorageFenced, match="another daemon has taken over the store")
    async with open_broker(place.address) as broker:
        [message] = await broker.fetch_many("orders", 10)
        assert await message.body.read() == b"mine now"


@pytest.mark.parametrize("options", [{"sharing": Sharing.PEERS}, {"sharing": Sharing.WATCHED}])
async def test_says_whom_it_does_not_serve(place, options: dict[str, Sharing]) -> None:
    with pytest.raises(StorageUnusable, match="one daemon at a time"):
        async with open_storage(place.address, **options):
            pytest.fail("it opened")
