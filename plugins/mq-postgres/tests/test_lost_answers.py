"""A wire that is cut before and after every message of a change: each is done once, or known not to be."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from mq_postgres import owner
from mq_postgres.testing.server import Server
from mq_postgres.testing.wire import Wire, wire_to

from mq.broker import open_broker
from mq.errors import StorageError, StorageFull, StorageUnsure
from mq.lifecycle import State
from mq.message import MessageIds
from mq.storage.conformance import check_whole
from mq.storage.interface import (
    QUEUE,
    AnyOperation,
    Drop,
    Entry,
    Group,
    Meta,
    Move,
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
SOON = "&deadline=0.4"
"""For who is to give up, and not before a busy machine has answered what it can."""


@pytest.fixture(autouse=True)
def nobody_renews(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that each message on the wire belongs to the change."""
    monkeypatch.setattr(owner, "LEASE_SECONDS", 600.0)


@pytest.fixture(autouse=True)
def nothing_is_said_by_the_driver(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A connection that is lost is mq's to tell of."""
    yield
    for when in ("setup", "call"):
        assert [each.getMessage() for each in caplog.get_records(when) if each.name.startswith("psycopg")] == []


@asynccontextmanager
async def wired(place, options: str = "") -> AsyncIterator[tuple[Wire, Storage]]:
    """A store whose wire does as the test says; looked over at the end, when it is whole again."""
    async with wire_to(place.server.port) as wire:
        place.port, place.options = wire.port, options
        async with open_storage(place.address) as storage:
            await put_record(storage, QUEUE, "orders", {"created": 0})
            yield wire, storage
            await check_whole(storage)


async def everything(storage: Storage) -> set[Any]:
    """Where all messages are, and the records of the ledger."""
    found: list[Any] = [*await storage.scan(State.READY, "orders")]
    for state in (State.NEW, State.DELAYED, State.REMOVED):
        found += await storage.scan(state)
    return {*found, *(("ledger", key, value["n"]) for key, value in (await storage.records("ledger")).items())}


async def results(storage: Storage, batch: list[AnyOperation]) -> list[Result]:
    return [outcome.result for outcome in await storage.commit(batch)]


async def prepared(storage: Storage) -> tuple[list[AnyOperation], list[Result], set[Any], set[Any]]:
    """A batch of everything, what becomes of each, and what is there before and after."""
    ready, removed, fresh, leased, keyed = (IDS.new() for _ in range(5))
    here, there, gone = (
        Entry("orders", id, state)
        for id, state in ((ready, State.READY), (leased, State.READY), (removed, State.REMOVED))
    )
    setting: list[AnyOperation] = [Write("orders", id, b"body") for id in (ready, removed, leased)]
    setting += [Move(entry._replace(state=State.NEW), entry.state) for entry in (here, there, gone)]
    setting += [Put("ledger", "old", {"n": 1}), Put("ledger", "going", {"n": 1}), Drop("ledger", "new")]
    assert {*await results(storage, setting)} <= {Result.DONE, Result.GONE}
    before = await everything(storage)
    batch: list[AnyOperation] = [
        Write("orders", fresh, b"fresh"),
        Write("orders", fresh, b"again"),
        Move(here, State.DELAYED, LEASED),
        Move(here, State.REMOVED),
        Group(
            (
                Write("orders", keyed, b"keyed", state=State.READY),
                Move(there, State.DELAYED, LEASED),
                Put("ledger", "new", {"n": 2}),
                Put("ledger", "old", {"n": 2}),
                Drop("ledger", "going"),
                Drop("ledger", "never"),
            )
        ),
        Put("ledger", "old", {"n": 3}),
        Drop("ledger", "never"),
        Unlink(Entry("orders", fresh, State.REMOVED)),
        Unlink(gone),
    ]
    done, absent = Result.DONE, Result.GONE
    expected = [done, Result.EXISTS, done, absent, done, done, absent, absent, done]
    after = before - {here, there, gone, ("ledger", "old", 1), ("ledger", "going", 1)}
    after |= {entry._replace(state=State.DELAYED, meta=LEASED) for entry in (here, there)}
    after |= {Entry("orders", fresh, State.NEW), Entry("orders", keyed, State.READY)}
    return batch, expected, before, after | {("ledger", "old", 3), ("ledger", "new", 2)}


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("side", ["asks", "answers"])
async def test_a_cut_changes_no_outcome(place, side: str) -> None:
    """Wherever it comes, the change is done once, and each operation is told what became of it."""
    async with wired(place) as (wire, storage):
        messages = 0
        while True:
            batch, expected, _, after = await prepared(storage)
            setattr(wire, side, messages)
            cuts = wire.cuts
            assert await results(storage, batch) == expected, f"cut after {messages} {side}"
            setattr(wire, side, None)
            assert await everything(storage) == after, f"cut after {messages} {side}"
            if wire.cuts == cuts:
                break
            messages += 1
        assert messages > 12, "every message of the change was the last one once"


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("side", ["asks", "answers"])
async def test_a_cut_lets_no_half_of_a_refused_group_through(place, side: str) -> None:
    async with wired(place) as (wire, storage):
        messages = 0
        while True:
            ready, new = IDS.new(), IDS.new()
            assert await results(storage, [Write("orders", ready, b"body", state=State.READY)]) == [Result.DONE]
            before = await everything(storage)
            absent = Move(Entry("orders", IDS.new(), State.READY), State.DELAYED, LEASED)
            lease = Move(Entry("orders", ready, State.READY), State.DELAYED, LEASED)
            refused = Group((Write("orders", IDS.new(), b"never"), Put("ledger", "never", {"n": 1}), lease, absent))
            batch: list[AnyOperation] = [Write("orders", new, b"beside"), refused]
            setattr(wire, side, messages)
            cuts = wire.cuts
            assert await results(storage, batch) == [Result.DONE, Result.GONE], f"cut after {messages} {side}"
            setattr(wire, side, None)
            assert await everything(storage) == before | {Entry("orders", new, State.NEW)}, f"{messages} {side}"
            if wire.cuts == cuts:
                break
            messages += 1
        assert messages > 12, "every message of the change was the last one once"


async def longest(storage: Storage, wire: Wire) -> int:
    """How many answers a change has whose statements are known to the server."""
    for _ in range(2):
        batch, *_ = await prepared(storage)
        wire.answers = 1000
        await results(storage, batch)
    assert wire.answers is not None
    count, wire.answers = 1000 - wire.answers, None
    return count


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("passing", ["nothing", "all but the last"])
async def test_what_stays_in_doubt_is_undone_before_anything_else(place, passing: str) -> None:
    """UNKNOWN, whether it was done or not; and then it is not."""
    async with wired(place, SOON) as (wire, storage):
        count = await longest(storage, wire)
        batch, _, before, _ = await prepared(storage)
        wire.stays_cut = True
        if passing == "nothing":
            wire.asks = 0
        else:
            wire.answers = count - 1
        assert await results(storage, batch) == [Result.UNKNOWN] * len(batch)
        assert await results(storage, batch) == [Result.FULL] * len(batch), "nobody answers for what came before"
        wire.is_down = wire.stays_cut = False
        last = Write("orders", IDS.new(), b"next")
        assert await results(storage, [last]) == [Result.DONE]
        found = await everything(storage) - {Entry("orders", last.id, State.NEW)}
        unlinked = {batch[-1].entry} if passing != "nothing" else set()  # type: ignore[union-attr]
        assert found == before - unlinked, "an Unlink stays done"


@pytest.mark.proof
async def test_an_undoing_that_is_cut_is_undone_once(place) -> None:
    async with wired(place, SOON) as (wire, storage):
        count = await longest(storage, wire)
        for messages in range(count):
            batch, _, before, _ = await prepared(storage)
            wire.stays_cut, wire.answers = True, count - 1
            assert await results(storage, batch) == [Result.UNKNOWN] * len(batch)
            wire.is_down = wire.stays_cut = False
            wire.answers = messages
            last = Write("orders", IDS.new(), b"next")
            assert await results(storage, [last]) == [Result.DONE]
            wire.answers = None
            assert await everything(storage) == before - {batch[-1].entry} | {Entry("orders", last.id, State.NEW)}  # type: ignore[union-attr]


async def test_records_survive_cuts(place) -> None:
    async with wired(place) as (wire, storage):
        for messages in range(0, 30, 2):
            wire.asks = messages
            await put_record(storage, "exchange", f"{messages}", {"n": messages})
            wire.asks, wire.answers = None, messages
            await put_record(storage, "exchange", f"{messages}", {"n": -messages})
            assert not await put_record(storage, QUEUE, "orders", {"created": 0})
            assert await drop_record(storage, QUEUE, "orders")
            wire.answers, wire.asks = None, messages
            assert await put_record(storage, QUEUE, "orders", {"created": 0})
            wire.asks = None
        assert await storage.records("exchange") == {f"{n}": {"n": -n} for n in range(0, 30, 2)}
        assert wire.cuts > 20


async def test_a_record_in_doubt_says_so(place) -> None:
    async with wired(place, SOON) as (wire, storage):
        wire.stays_cut, wire.asks = True, 0
        with pytest.raises(StorageUnsure, match="Try again"):
            await put_record(storage, "exchange", "a", {})
        with pytest.raises(StorageFull):
            await put_record(storage, "exchange", "a", {})
        with pytest.raises(StorageFull):
            await storage.records("exchange")
        wire.is_down = wire.stays_cut = False
        await put_record(storage, "exchange", "a", {"b": 1})
        assert await storage.records("exchange") == {"a": {"b": 1}}


@pytest.mark.proof
async def test_a_broker_gets_over_any_cut(place) -> None:
    """Without a restart: what it acknowledged is handed out, and what was removed does not come back."""
    async with wire_to(place.server.port) as wire:
        place.port, place.options = wire.port, "&deadline=0.3"
        acknowledged: list[bytes] = []
        async with open_broker(place.address) as broker:
            await broker.create_queue("orders")
            for number in range(24):
                wire.stays_cut = number % 2 == 0
                setattr(wire, "asks" if number % 4 < 2 else "answers", number)
                with suppress(StorageError):
                    await broker.publish("orders", b"%d" % number)
                    acknowledged.append(b"%d" % number)
                wire.asks = wire.answers = None
                wire.is_down = wire.stays_cut = False
            await broker.publish("orders", b"last")
            got: list[bytes] = []
            while len(set(got)) < len(acknowledged) + 1:
                message = await broker.fetch("orders", wait=10)
                assert message is not None, f"{set(acknowledged) - set(got)} of what was acknowledged is not handed out"
                got.append(await message.body.read())
                await broker.remove("orders", message.id, receipt=message.receipt)
            assert await broker.fetch("orders") is None
        assert set(got) == {*acknowledged, b"last"}
        assert len(got) == len(set(got))
        async with open_broker(place.address) as broker:
            assert await broker.fetch("orders") is None


async def let_off(server: Server) -> None:
    """Do as an administrator who is tired of waiting: the commit that waits for a standby succeeds, with a warning."""
    with server.admin() as admin:
        while True:
            waiting = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            if admin.execute(waiting).fetchone() is not None:
                return
            await trio.sleep(0.01)


async def until_commits_wait(server: Server) -> None:
    """Commit until one has to wait for a standby: another process of the server tells the sessions to."""
    warnings: list[str] = []

    def commit() -> None:
        with server.admin() as admin:
            admin.add_notice_handler(lambda told: warnings.append(told.severity))
            while not warnings:
                admin.execute("COMMENT ON SCHEMA public IS 'committed'")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(let_off, server)
        await trio.to_thread.run_sync(commit)


@pytest.mark.parametrize("is_let_off", [True, False])
async def test_a_commit_that_did_not_wait_for_its_standby_is_unknown(place, is_let_off: bool) -> None:
    """It succeeds with only a warning, or is given up. Asking again waits for the standby, too."""
    place.options = SOON
    async with open_storage(place.address) as storage:
        await put_record(storage, QUEUE, "orders", {"created": 0})
        place.server.set(synchronous_standby_names="ANY 1 (nobody)")
        try:
            await until_commits_wait(place.server)
            async with trio.open_nursery() as nursery:
                if is_let_off:
                    nursery.start_soon(let_off, place.server)
                assert await results(storage, [Write("orders", IDS.new(), b"alone")]) == [Result.UNKNOWN]
        finally:
            place.server.set(synchronous_standby_names="")
        assert await results(storage, [Write("orders", IDS.new(), b"together")]) == [Result.DONE]
        assert len(await everything(storage)) == 1
