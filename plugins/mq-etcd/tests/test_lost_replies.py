"""What was sent and not answered may have been done, or may be done much later. Each change is done once anyway."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import pytest
import trio
from mq_etcd.client import open_client
from mq_etcd.testing.wire import Times, Wire, is_look, is_txn, wire_to
from mq_etcd.values import end_of_prefix

from mq.broker import open_broker
from mq.errors import NoSuchMessage, StorageError, StorageFull, StorageUnsure
from mq.lifecycle import State
from mq.message import MessageIds
from mq.storage.conformance import check_whole
from mq.storage.groups import commit
from mq.storage.interface import (
    QUEUE,
    AnyOperation,
    Drop,
    Entry,
    Group,
    Meta,
    Move,
    Operation,
    Outcome,
    Put,
    Result,
    Storage,
    Unlink,
    Write,
)
from mq.storage.records import drop_record, put_record
from mq.storage.registry import open_storage

IDS = MessageIds()
LEASED = Meta(deadline_ms=1_700_000_000_000, receives=1, receipt="00000000000000aa")


@asynccontextmanager
async def wired(place, prefix: str) -> AsyncIterator[tuple[Wire, Storage]]:
    """A store whose wire does as the test says; looked over at the end, when it is whole again."""
    place.prefix = f"/wired/{prefix}"
    [member] = place.cluster.members
    async with wire_to(member.port) as wire:
        address = f"etcd:{wire.endpoint}?prefix={place.prefix}&patience=0.4"
        async with open_storage(address) as storage:
            await put_record(storage, QUEUE, "orders", {"created": 0})
            yield wire, storage
            await check_whole(storage)


@contextmanager
def giving_up_soon(storage: Storage) -> Iterator[None]:
    """No test waits long for what will not come; what is to come has as long as a busy machine needs."""
    members = storage._client._members  # type: ignore[attr-defined]
    members._deadline, before = 0.6, members._deadline
    yield
    members._deadline = before


async def one(storage: Storage, operation: AnyOperation) -> Outcome:
    [outcome] = await commit(storage, [operation])
    return outcome


def life(id) -> list[tuple[Operation, Entry | None]]:
    """A message's life: each operation, and where the message is then."""
    new = Entry("orders", id, State.NEW)
    ready = Entry("orders", id, State.READY)
    lease = Entry("orders", id, State.DELAYED, LEASED)
    again = Entry("orders", id, State.READY, Meta(receives=1))
    removed = Entry("orders", id, State.REMOVED, Meta(receives=1))
    return [
        (Write("orders", id, b"body"), new),
        (Move(new, State.READY), ready),
        (Move(ready, State.DELAYED, LEASED), lease),
        (Move(lease, State.READY, again.meta), again),
        (Move(again, State.REMOVED, again.meta), removed),
        (Unlink(removed), None),
    ]


async def everything(storage: Storage) -> list[Entry]:
    found = [*await storage.scan(State.READY, "orders")]
    for state in (State.NEW, State.DELAYED, State.REMOVED):
        found += await storage.scan(state)
    return found


async def test_a_lost_reply_changes_no_outcome(place) -> None:
    """Every operation of a life is done, its reply is lost, and what came of it is found out."""
    async with wired(place, "lost") as (wire, storage):
        for operation, now in life(IDS.new()):
            wire.loses = Times(1)
            assert await one(storage, operation) == Outcome(Result.DONE, now)
            assert await everything(storage) == ([now] if now else [])
        assert wire.lost == 6


async def test_a_lost_reply_makes_no_loser_a_winner(place) -> None:
    """In one batch, the reply to which is lost: some are done, some are not."""
    async with wired(place, "losers") as (wire, storage):
        first, second = IDS.new(), IDS.new()
        await storage.commit([Write("orders", first, b"1")])
        ready = Entry("orders", first, State.READY)
        wire.loses = Times(2)
        outcomes = await storage.commit(
            [
                Write("orders", first, b"again"),
                Write("orders", second, b"2"),
                Move(ready, State.DELAYED, LEASED),
                Move(Entry("orders", first, State.NEW), State.READY),
                Move(Entry("orders", second, State.NEW, LEASED), State.READY),
            ]
        )
        results = [outcome.result for outcome in outcomes]
        assert results == [Result.EXISTS, Result.DONE, Result.GONE, Result.DONE, Result.GONE]
        assert wire.lost == 2
        assert await everything(storage) == [ready, Entry("orders", second, State.NEW)]


async def test_records_survive_lost_replies(place) -> None:
    async with wired(place, "records") as (wire, storage):
        for is_new in (True, False):
            wire.loses = Times(1)
            await put_record(storage, "exchange", "e", {"new": is_new})
        for is_new in (True, False):
            wire.loses = Times(1)
            assert await put_record(storage, QUEUE, "other", {"created": 0}) is is_new
        wire.loses = Times(1)
        assert await drop_record(storage, QUEUE, "other")
        assert wire.lost == 5
        assert await storage.records("exchange") == {"e": {"new": False}}
        assert list(await storage.records(QUEUE)) == ["orders"]


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("number", range(6))
async def test_what_lands_late_changes_nothing(place, number: int) -> None:
    """A request is held back as by a member that is asleep, sent again, done; and comes through when all is over."""
    async with wired(place, f"late{number}") as (wire, storage):
        id = IDS.new()
        for each, (operation, now) in enumerate(life(id)):
            wire.holds = Times(each == number)
            assert await one(storage, operation) == Outcome(Result.DONE, now)
        assert len(wire.held) == 1
        assert b'"succeeded":true' not in (await wire.release())[0]
        assert await everything(storage) == []
        async with open_client(place.cluster.endpoints) as client:
            bodies = f"{place.prefix}/body/"
            assert (await client.range(bodies, end_of_prefix(bodies))).found == []


async def a_group(storage: Storage, *others: Write | Move) -> Group:
    """One that does all that a group may."""
    ready, old = Entry("orders", IDS.new(), State.READY), {"old": True}
    await storage.commit([Write("orders", ready.id, b"ready", state=State.READY)])
    await commit(storage, [Put("ledger", "changed", old), Put("ledger", "gone", old), Drop("ledger", "made")])
    records = (Put("ledger", "changed", {}), Put("ledger", "made", {}), Drop("ledger", "gone"), Drop("ledger", "never"))
    return Group((Write("orders", IDS.new(), b"new"), Move(ready, State.DELAYED, LEASED), *records, *others))


async def all_of(storage: Storage) -> tuple[set[Entry], object]:
    return set(await everything(storage)), await storage.records("ledger")


async def test_a_lost_reply_changes_no_outcome_of_a_group(place) -> None:
    async with wired(place, "lost-group") as (wire, storage):
        group = await a_group(storage)
        wire.loses = Times(1)
        assert await one(storage, group) == Outcome(Result.DONE)
        entries, records = await all_of(storage)
        assert {entry.state for entry in entries} == {State.NEW, State.DELAYED}
        assert records == {"changed": {}, "made": {}}
        for refused, result in (
            (Move(Entry("orders", IDS.new(), State.READY), State.DELAYED, LEASED), Result.GONE),
            (Write("orders", next(entry.id for entry in entries if entry.state is State.NEW), b""), Result.EXISTS),
        ):
            group = await a_group(storage, refused)
            before = await all_of(storage)
            wire.loses = Times(1)
            assert (await one(storage, group)).result is result
            assert await all_of(storage) == before
        for operation in (Put("ledger", "alone", {}), Drop("ledger", "alone")):
            wire.loses = Times(1)
            assert (await one(storage, operation)).result is Result.DONE
        assert wire.lost == 5
        assert await all_of(storage) == before


async def test_a_group_that_lands_late_changes_nothing(place) -> None:
    async with wired(place, "late-group") as (wire, storage):
        group = await a_group(storage)
        wire.holds = Times(1)
        assert await one(storage, group) == Outcome(Result.DONE)
        entries, _ = await all_of(storage)
        for entry in entries:
            await storage.commit([Move(entry, State.REMOVED, entry.meta), Unlink(entry._replace(state=State.REMOVED))])
        await commit(storage, [Drop("ledger", "made"), Put("ledger", "changed", {"later": True})])
        assert len(wire.held) == 1
        assert b'"succeeded":true' not in (await wire.release())[0]
        assert await all_of(storage) == (set(), {"changed": {"later": True}})


@pytest.mark.parametrize("lands", [True, False])
async def test_a_group_in_doubt_is_undone_as_a_whole(place, lands: bool) -> None:
    """What was in its records before is there again, too; and it can be done again."""
    async with wired(place, f"doubt-group{lands}") as (wire, storage):
        group = await a_group(storage)
        before = await all_of(storage)
        wire.holds = is_txn
        with giving_up_soon(storage):
            assert (await one(storage, group)).result is Result.UNKNOWN
        wire.holds = Times(0)
        if lands:
            assert b'"succeeded":true' in (await wire.release())[0]
            assert await all_of(storage) != before
        await one(storage, Put("other", "k", {}))
        assert await all_of(storage) == before
        await wire.release()
        assert await all_of(storage) == before
        assert await one(storage, group) == Outcome(Result.DONE)


async def test_a_group_in_doubt_whose_past_is_thrown_away_stops_the_store(place) -> None:
    """It cannot be undone. A start takes it as it is: as a whole."""
    async with wired(place, "compacted") as (wire, storage):
        group = await a_group(storage)
        wire.holds = is_txn
        with giving_up_soon(storage):
            assert (await one(storage, group)).result is Result.UNKNOWN
        wire.holds = Times(0)
        await wire.release()
        async with open_client(place.cluster.endpoints) as client:
            await client.compact((await client.status()).revision)
        for _ in range(2):
            outcome = await one(storage, Write("orders", IDS.new(), b""))
            assert outcome.result is Result.FAILED
            assert "Restart mq" in outcome.reason
        assert (await all_of(storage))[1] == {"changed": {}, "made": {}}
    async with place.reopen() as storage:
        assert (await one(storage, group)).result is Result.EXISTS


@pytest.mark.parametrize("lands", [True, False])
async def test_a_publish_with_a_key_in_doubt_is_stored_once(place, lands: bool) -> None:
    """By the broker that asked, which says meanwhile that it does not know, and by the next one. What is in doubt when
    a broker ends is undone: it records the time, and nothing is changed before a doubt is settled."""
    async with wired(place, f"key{lands}") as (wire, storage):
        async with open_broker(storage) as broker:
            for key in ("first", "second"):
                wire.holds = is_txn
                with giving_up_soon(storage):
                    for _ in range(2):
                        with pytest.raises(StorageUnsure, match="same idempotency key"):
                            await broker.publish("orders", key.encode(), key=key)
                wire.holds = Times(0)
                if lands:
                    await wire.release()
                if key == "first":
                    id = await broker.publish("orders", b"again", key=key)
                    assert await broker.publish("orders", b"and again", key=key) == id
            doubtful = {entry.id for entry in await storage.scan(State.READY, "orders")} - {id}
            assert len(doubtful) == lands
        await wire.release()
        assert [entry.id for entry in await storage.scan(State.READY, "orders")] == [id]
    async with open_broker(place.address) as broker:
        second = await broker.publish("orders", b"second", key="second")
        assert await broker.publish("orders", b"first", key="first") == id
        there = {message.id for message in await broker.fetch_many("orders", 10)}
        assert there == {id, second}


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("number", range(5))
async def test_what_is_in_doubt_is_undone(place, number: int, lands: bool) -> None:
    """Nothing comes through until the deadline: UNKNOWN. What the broker believes then, that nothing has happened, is
    so as soon as anything else is changed, whether it had been done or would be done later."""
    async with wired(place, f"doubt{number}{lands}") as (wire, storage):
        id = IDS.new()
        steps = life(id)
        before = None
        for operation, now in steps[:number]:
            assert await one(storage, operation) == Outcome(Result.DONE, now)
            before = now
        operation, after = steps[number]
        wire.holds = is_txn
        with giving_up_soon(storage):
            assert (await one(storage, operation)).result is Result.UNKNOWN
        assert wire.held
        wire.holds = Times(0)
        if lands:
            assert b'"succeeded":true' in (await wire.release())[0]
            assert await everything(storage) == [after]
        await one(storage, Unlink(Entry("orders", IDS.new(), State.REMOVED)))
        assert await everything(storage) == ([before] if before else [])
        await wire.release()
        assert await everything(storage) == ([before] if before else [])
        assert await one(storage, operation) == Outcome(Result.DONE, after)


async def test_done_without_a_reply_while_etcd_is_silent_is_undone(place) -> None:
    """It was tried, and then there is no answer whether it was done: that is in doubt, too."""
    async with wired(place, "silent") as (wire, storage):
        id = IDS.new()
        wire.loses, wire.holds = Times(1), is_look
        with giving_up_soon(storage):
            assert (await one(storage, Write("orders", id, b"body"))).result is Result.UNKNOWN
        wire.holds = Times(0)
        assert await everything(storage) == [Entry("orders", id, State.NEW)]
        await one(storage, Unlink(Entry("orders", IDS.new(), State.REMOVED)))
        assert await everything(storage) == []
        assert await one(storage, Write("orders", id, b"body")) == Outcome(Result.DONE, Entry("orders", id, State.NEW))


async def test_while_nothing_comes_through_nothing_is_promised(place) -> None:
    async with wired(place, "away") as (wire, storage):
        wire.holds = is_txn
        id = IDS.new()
        with giving_up_soon(storage), trio.fail_after(10):
            assert (await one(storage, Write("orders", id, b"body"))).result is Result.UNKNOWN
            again = await one(storage, Write("orders", IDS.new(), b"body"))
            assert again.result is Result.FULL
            assert "did not report the outcome of a change within 0.6 seconds" in again.reason
            with pytest.raises(StorageFull, match="Try again later"):
                await put_record(storage, "exchange", "e", {})
        wire.holds = Times(0)
        assert (await one(storage, Write("orders", id, b"body"))).result is Result.DONE


async def test_nothing_follows_a_change_in_doubt(place) -> None:
    """A removal that may be taken back, and the unlink of what it removes."""
    async with wired(place, "follows") as (wire, storage):
        new, removed = Entry("orders", IDS.new(), State.NEW), State.REMOVED
        await one(storage, Write("orders", new.id, b"body"))
        wire.holds = is_txn
        with giving_up_soon(storage):
            outcomes = await storage.commit([Move(new, removed), Unlink(new._replace(state=removed))])
        assert [outcome.result for outcome in outcomes] == [Result.UNKNOWN, Result.FULL]
        wire.holds = Times(0)
        await wire.release()
        await one(storage, Unlink(Entry("orders", IDS.new(), removed)))
        assert await everything(storage) == [new]


async def test_a_broker_behind_a_bad_wire_loses_nothing_and_stores_nothing_twice(place) -> None:
    """Each fourth reply to a change is lost."""
    place.prefix = "/wired/broker"
    [member] = place.cluster.members
    count = 0

    def each_fourth(request: bytes) -> bool:
        nonlocal count
        count += is_txn(request)
        return is_txn(request) and count % 4 == 0

    async with wire_to(member.port) as wire:
        wire.loses = each_fourth
        address = f"etcd:{wire.endpoint}?prefix={place.prefix}"
        async with open_broker(address) as broker:
            await broker.create_queue("orders")
            published: set[str] = set()
            removed: set[str] = set()

            async def produce(name: int) -> None:
                for number in range(40):
                    published.add(await broker.publish("orders", b"%d.%d" % (name, number)))

            async def consume() -> None:
                while len(removed) < 100:
                    message = await broker.fetch("orders", wait=5)
                    assert message is not None
                    assert message.receives == 1
                    await broker.remove("orders", message.id, receipt=message.receipt)
                    assert message.id not in removed, "handed out twice"
                    removed.add(message.id)

            async with trio.open_nursery() as nursery:
                for name in range(5):
                    nursery.start_soon(produce, name)
                for _ in range(4):
                    nursery.start_soon(consume)
        assert wire.lost >= 5, "there were too few changes to tell"
    async with open_broker(place.address) as broker:
        left = {message.id for message in await broker.fetch_many("orders", 500)}
        assert left == published - removed


@pytest.mark.slow
@pytest.mark.parametrize("lands", [True, False])
async def test_a_broker_whose_changes_were_in_doubt_goes_on(place, lands: bool) -> None:
    """Publishes, deliveries, leases and removals: without a restart, what was acknowledged is handed out, and what was
    removed is not."""
    async with wired(place, f"goes-on{lands}") as (wire, storage), open_broker(storage) as broker:
        await broker.create_queue("jobs")
        published: set[str] = set()
        removed: set[str] = set()

        async def produce() -> None:
            for _ in range(30):
                with suppress(StorageError):
                    published.add(await broker.publish("jobs", b"body"))

        async def consume(stop: Callable[[], bool]) -> None:
            while not stop():
                with suppress(StorageError, NoSuchMessage):
                    message = await broker.fetch("jobs", wait=0.5, visibility=3)
                    if message is not None:
                        await broker.remove("jobs", message.id)
                        removed.add(message.id)

        async def doubt() -> None:
            with giving_up_soon(storage):
                for _ in range(3):
                    await trio.sleep(0.1)
                    wire.holds = is_txn
                    await trio.sleep(1)
                    wire.holds = Times(0)
                    if lands:
                        await wire.release()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(doubt)
            for _ in range(4):
                nursery.start_soon(produce)
            nursery.start_soon(consume, lambda: len(removed) >= 30)
        assert published
        with trio.fail_after(30):
            await consume(lambda: published <= removed)
        await wire.release()
        assert await storage.scan(State.NEW) == []
        left = [*await storage.scan(State.READY, "jobs"), *await storage.scan(State.DELAYED)]
        assert not {entry.id for entry in left} & removed
