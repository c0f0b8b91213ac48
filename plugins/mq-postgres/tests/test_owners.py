"""One broker at a time: a live one is not pushed aside, a killed one blocks no other, a hung one changes nothing."""

from __future__ import annotations

import pytest
import trio
from mq_postgres import owner
from mq_postgres.store import PostgresStorage

from mq.broker import open_broker
from mq.errors import StorageFenced, StorageUnusable
from mq.lifecycle import State
from mq.message import MessageIds
from mq.storage.conformance import check_whole
from mq.storage.interface import QUEUE, Result, Storage, Write
from mq.storage.records import drop_record, put_record
from mq.storage.registry import open_storage

IDS = MessageIds()


def hang(storage: Storage) -> PostgresStorage:
    """It renews nothing any more, as if its machine slept."""
    assert isinstance(storage, PostgresStorage)
    assert storage._keeping is not None
    storage._keeping.cancel()
    return storage


async def test_a_second_one_is_refused_while_the_first_lives(place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "LEASE_SECONDS", 1.0)
    async with open_broker(place.address) as broker:
        await broker.create_queue("orders")
        with pytest.raises(StorageUnusable, match=r"in use by .* process \d+.*Stop that daemon first"):
            async with open_broker(place.address):
                pytest.fail("two have the store")
        await broker.publish("orders", b"still mine")


async def test_who_hung_changes_nothing(place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch, a record, a large body: not one of them, however often it tries."""
    monkeypatch.setattr(owner, "LEASE_SECONDS", 0.5)
    async with open_storage(place.address) as first:
        await put_record(first, QUEUE, "orders", {"created": 0})
        write = Write("orders", IDS.new(), b"first")
        assert (await first.commit([write]))[0].result is Result.DONE
        hang(first)
        async with open_storage(place.address) as second:
            results = [(await first.commit([Write("orders", IDS.new(), b"late")]))[0].result for _ in range(3)]
            # its session was ended in between, so of the first one it cannot know
            assert results == [Result.UNKNOWN, Result.FENCED, Result.FENCED]
            with pytest.raises(StorageFenced, match="Restart mq"):
                await put_record(first, "exchange", "a", {})
            with pytest.raises(StorageFenced):
                await drop_record(first, QUEUE, "orders")
            assert [entry.id for entry in await second.scan(State.NEW)] == [write.id]
            assert list(await second.records(QUEUE)) == ["orders"]
            await first.aclose()
            assert (await second.commit([Write("orders", IDS.new(), b"second")]))[0].result is Result.DONE
            await check_whole(second)


async def test_who_hangs_in_a_transaction_holds_nobody_up(place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its session has the epoch FOR SHARE, and is ended by the successor."""
    monkeypatch.setattr(owner, "LEASE_SECONDS", 0.5)
    async with open_storage(place.address) as first:
        link = hang(first)._writer
        connection = link.connect()
        connection.execute("BEGIN")
        connection.execute("SELECT 1 FROM fence FOR SHARE")
        with trio.fail_after(8):
            async with open_storage(place.address) as second:
                assert await put_record(second, "exchange", "a", {})


async def test_a_server_whose_clock_was_set_back_does_not_lock_it_for_years(
    place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place.make():
        pass
    with place.server.admin() as admin:
        admin.execute(f"UPDATE {place.schema}.lease SET session = 'x', until = 'infinity'".encode())
    monkeypatch.setattr(owner, "LEASE_SECONDS", 0.2)
    with trio.fail_after(10):
        async with open_storage(place.address) as storage:
            await put_record(storage, "exchange", "a", {})


async def test_who_lost_the_store_ends(place, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lose() -> None:
        async with open_broker(place.address) as broker:
            await broker.create_queue("orders")
            with place.server.admin() as admin:
                admin.execute(f"UPDATE {place.schema}.fence SET epoch = epoch + 1".encode())
            with trio.move_on_after(10):
                await broker.publish("orders", b"too late")
            pytest.fail("it carries on")

    with pytest.raises(ExceptionGroup) as raised:
        await lose()
    assert raised.group_contains(StorageFenced, match="another daemon")


# The leader of a cluster


async def test_a_leader_takes_it_from_every_earlier_one(place) -> None:
    """At once, and from one that lives, too: who leads is decided elsewhere."""
    first = f"{place.address}&term=100"
    async with open_storage(first) as old:
        await put_record(old, QUEUE, "orders", {"created": 0})
        connection = hang(old)._writer.connect()
        connection.execute("BEGIN")
        connection.execute("SELECT 1 FROM fence FOR SHARE")
        with trio.fail_after(5):
            async with open_storage(f"{place.address}&term=107") as new:
                results = [(await old.commit([Write("orders", IDS.new(), b"late")]))[0].result for _ in range(3)]
                assert results[-1] is Result.FENCED
                assert Result.DONE not in results
                with pytest.raises(
                    StorageUnusable, match=r"taken over the store in a later term \(this node's term is 100\)"
                ):
                    async with open_storage(first):
                        pytest.fail("it was deposed")
                assert (await new.commit([Write("orders", IDS.new(), b"new")]))[0].result is Result.DONE
                assert len(await new.scan(State.NEW)) == 1
