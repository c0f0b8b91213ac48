"""What mq's own checks of a store cannot provoke: a full server, a lost connection, a client that dies."""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing, asynccontextmanager

import pytest
import trio
from mq_memcached import chains, link
from mq_memcached.batches import LONGEST_PART
from mq_memcached.places import SIZE
from mq_memcached.storage import MemcachedStorage
from mq_memcached.testing.server import Server
from mq_memcached.testing.wire import Wire, wire_to

from mq.broker import BrokerConfig, open_broker
from mq.errors import StorageFull, StorageUnusable
from mq.lifecycle import State
from mq.message import MessageIds
from mq.storage.conformance import check_whole
from mq.storage.interface import QUEUE, Entry, Meta, Move, Operation, Outcome, Result, Storage, Unlink, Write
from mq.storage.registry import open_storage

logger = logging.getLogger("test_storage")
IDS = MessageIds()
LEASE = Meta(deadline_ms=1, receives=1, receipt="f" * 16)


async def publish(storage: Storage, body: bytes = b"body") -> Entry:
    [outcome] = await storage.commit([Write("orders", IDS.new(), body)])
    assert outcome.result is Result.DONE, outcome
    assert outcome.entry is not None
    return outcome.entry


async def do(storage: Storage, operation: Operation) -> Outcome:
    [outcome] = await storage.commit([operation])
    return outcome


@asynccontextmanager
async def opened(port: int, prefix: str = "") -> AsyncIterator[Storage]:
    async with open_storage(f"memcached://127.0.0.1:{port}/{prefix}") as storage:
        yield storage


# -- what it is


async def test_says_that_it_is_not_durable_and_promises_no_order(storage: Storage) -> None:
    description = storage.description
    assert (description.durable, description.ordered, description.shared) == (False, False, True)


async def test_refuses_a_server_that_evicts(serve) -> None:
    with pytest.raises(StorageUnusable, match="start it with -M"):
        async with opened(serve("-m", "64").port):
            pytest.fail("it opened")


async def test_refuses_to_open_where_nobody_listens(serve) -> None:
    server = serve()
    server.stop()
    with pytest.raises(StorageUnusable, match="Try again later"):
        async with opened(server.port):
            pytest.fail("it opened")


@pytest.mark.parametrize(
    "address", ["", "//", "//:11211", "//a:b", "//a:0", "//a:99999", "//a:1/a b", "//a:1/\n", "//a:²"]
)
async def test_refuses_an_address_that_is_none(address: str) -> None:
    with pytest.raises(StorageUnusable, match=r"memcached://127\.0\.0\.1:11211"):
        async with open_storage(f"memcached:{address}"):
            pytest.fail("it opened")


async def test_stores_on_one_server_are_apart(shared_server: Server) -> None:
    async with opened(shared_server.port, "one") as one, opened(shared_server.port, "two") as two:
        await one.put_record(QUEUE, "orders", {"created": 0})
        await publish(one)
        assert await two.records(QUEUE) == {}
        assert await two.scan(State.NEW) == []


# -- bodies


async def test_a_body_over_the_item_limit_is_split(storage: Storage) -> None:
    body = b"".join(number.to_bytes(4, "big") for number in range(5 * LONGEST_PART // 8))
    entry = await publish(storage, body)
    [found] = await storage.read([entry])
    assert found is not None
    assert await found.body.read() == body


async def test_a_split_body_for_which_there_is_no_room_is_absent(serve) -> None:
    server = serve("-M", "-m", "16")
    async with opened(server.port) as storage:
        await storage.put_record(QUEUE, "orders", {"created": 0})
        body = bytes(storage.description.max_body or 0)
        written = []
        while (outcome := await do(storage, Write("orders", IDS.new(), body))).result is Result.DONE:
            written.append(outcome.entry)
        assert outcome.result is Result.FULL
        assert sorted(await storage.scan(State.NEW)) == sorted(entry for entry in written if entry)
        await check_whole(storage)
        owners = {key.split(":")[1] for key in server.listed() if key.startswith("b:")}
        assert owners == {entry.id for entry in written if entry}, "nothing stays of the one that was refused"


async def test_a_body_that_is_too_long_is_refused(storage: Storage) -> None:
    most = storage.description.max_body
    assert most is not None
    outcome = await do(storage, Write("orders", IDS.new(), bytes(most + 1)))
    assert (outcome.result, str(most) in outcome.reason) == (Result.FULL, True)

    async def chunks() -> AsyncIterator[bytes]:
        while True:
            yield bytes(1 << 20)

    async with aclosing(chunks()) as endless:
        with pytest.raises(StorageFull, match=str(most)):
            await storage.stage(endless)


# -- a full server


async def test_a_full_server_refuses_and_evicts_nothing_and_can_be_emptied(serve) -> None:
    server = serve("-M", "-m", "4")
    async with opened(server.port) as storage:
        await storage.put_record(QUEUE, "orders", {"created": 0})
        kept = []
        for refused in itertools.count():
            outcomes = await storage.commit([Write("orders", IDS.new(), b"x" * 300) for _ in range(100)])
            kept += [outcome.entry for outcome in outcomes if outcome.result is Result.DONE]
            assert {outcome.result for outcome in outcomes} <= {Result.DONE, Result.FULL}
            if not any(outcome.result is Result.DONE for outcome in outcomes):
                break
            assert refused < 100, "it is never full"
        assert sorted(await storage.scan(State.NEW)) == sorted(entry for entry in kept if entry)
        await check_whole(storage)
        server.fill_with(len("e:") + 36, SIZE)  # what a swap takes while the old value is still there
        for state, meta in ((State.READY, Meta()), (State.DELAYED, LEASE), (State.REMOVED, Meta())):
            outcomes = await storage.commit([Move(entry, state, meta) for entry in kept if entry])
            assert {outcome.result for outcome in outcomes} == {Result.DONE}, f"moves to {state.name} need no room"
            kept = [outcome.entry for outcome in outcomes]
        outcomes = await storage.commit([Unlink(entry) for entry in kept if entry])
        assert {outcome.result for outcome in outcomes} == {Result.DONE}
        assert (await do(storage, Write("orders", IDS.new(), b"x" * 300))).result is Result.DONE
    assert "STAT evictions 0" in server.ask("stats")


# -- a lost connection


async def test_a_server_that_is_away_is_answered_full_and_comes_back_by_itself(server: Server) -> None:
    with wire_to(server.port) as wire:
        port = wire.port
        async with opened(port) as storage:
            await storage.put_record(QUEUE, "orders", {"created": 0})
            entry = await publish(storage)
            wire.close()
            assert (await do(storage, Move(entry, State.READY))).result in (Result.FULL, Result.UNKNOWN)
            assert (await do(storage, Move(entry, State.READY))).result is Result.FULL
            for verb in (
                lambda: storage.scan(State.NEW),
                lambda: storage.read([entry]),
                lambda: storage.find("orders", entry.id),
                lambda: storage.records(QUEUE),
                lambda: storage.put_record(QUEUE, "other", {"created": 0}),
                lambda: storage.drop_record(QUEUE, "other"),
            ):
                with pytest.raises(StorageFull, match="Try again later"):
                    await verb()
            again = Wire(server.port, 1 << 30, lambda: None, port)
            try:
                assert (await do(storage, Move(entry, State.READY))).result is Result.DONE
                assert await storage.scan(State.READY, "orders") == [entry._replace(state=State.READY)]
            finally:
                again.close()


async def test_a_server_that_is_silent_is_given_up_in_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "PATIENCE_SECONDS", 0.1)
    async with opened(server.port) as storage:
        await storage.put_record(QUEUE, "orders", {"created": 0})
        entry = await publish(storage)
        server.pause()
        try:
            with trio.fail_after(5):
                outcome = await do(storage, Move(entry, State.READY))
        finally:
            server.resume()
        assert outcome.result in (Result.FULL, Result.UNKNOWN)
        assert (await do(storage, Move(entry, State.READY))).result is Result.DONE, "what was late is undone"


async def test_says_that_a_server_that_was_started_anew_has_lost_everything(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(server.port) as storage:
        await storage.put_record(QUEUE, "orders", {"created": 0})
        entry = await publish(storage)
        server.stop()
        server.start()
        assert (await do(storage, Move(entry, State.DELAYED, LEASE))).result is Result.GONE
        assert "started anew: all messages and queues on it are lost" in caplog.text
        await storage.put_record(QUEUE, "orders", {"created": 0})
        await publish(storage)


async def test_a_server_that_comes_back_without_m_is_not_used(serve: Callable[..., Server]) -> None:
    server = serve()
    async with opened(server.port) as storage:
        server.stop()
        server._flags = ("-m", "64")
        server.start()
        outcome = await do(storage, Write("orders", IDS.new(), b"x"))
        assert (outcome.result, "start it with -M" in outcome.reason) == (Result.FULL, True)


# -- tidying


async def test_chains_do_not_grow(storage: Storage) -> None:
    """One message stays for ever; thousands come and go."""
    assert isinstance(storage, MemcachedStorage)
    stays = await publish(storage)
    for _ in range(60):
        outcomes = await storage.commit([Write("orders", IDS.new(), b"x") for _ in range(100)])
        moved = await storage.commit([Move(o.entry, State.REMOVED) for o in outcomes if o.entry])
        await storage.commit([Unlink(o.entry) for o in moved if o.entry])
    walk = await storage._reader._chains.walk(b"q.orders")
    assert walk.length < 3000
    assert await storage.scan(State.NEW) == [stays]


async def test_a_writer_whose_slot_was_buried_takes_another(
    storage: Storage, place, no_grace: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sleeps after it took its slot, for as long as it takes others to think it dead."""
    assert isinstance(storage, MemcachedStorage)
    async with place.reopen() as other:
        assert isinstance(other, MemcachedStorage)
        awake = storage._batches._store_bodies

        async def sleeps(drafts: list) -> None:
            await awake(drafts)
            for _ in range(2):
                await other._reader.tidy("orders")
            monkeypatch.undo()

        await publish(storage)
        monkeypatch.setattr(storage._batches, "_store_bodies", sleeps)
        monkeypatch.setattr(chains, "GRACE_SECONDS", 0)
        entry = await publish(storage, b"late")
        assert entry in await other.scan(State.NEW)
        [found] = await other.read([entry])
        assert found is not None
        assert await found.body.read() == b"late"


async def test_a_writer_who_sleeps_before_its_slot_takes_another(
    storage: Storage, place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number was passed over by then: the empty slot has a tombstone, or lies behind the tail."""
    assert isinstance(storage, MemcachedStorage)
    async with place.reopen() as other:
        assert isinstance(other, MemcachedStorage)
        awake = storage._batches._chains._reserve

        async def sleeps(chain: bytes, count: int) -> int:
            head = await awake(chain, count)
            for _ in range(3):
                await other._reader.tidy("orders")
            monkeypatch.undo()
            return head

        first = await publish(storage)
        await do(storage, Move(first, State.REMOVED))
        await do(storage, Unlink(first._replace(state=State.REMOVED)))
        monkeypatch.setattr(storage._batches._chains, "_reserve", sleeps)
        monkeypatch.setattr(chains, "GRACE_SECONDS", 0)
        entry = await publish(storage)
        assert await other.scan(State.NEW) == [entry]


async def test_a_writer_who_wakes_while_its_slot_is_buried_takes_another(
    storage: Storage, place, no_grace: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look whether its message is there and the tombstone: so the slot was condemned before the look."""
    assert isinstance(storage, MemcachedStorage)
    asleep, wake, awake = trio.Event(), trio.Event(), trio.Event()
    written: list[Entry] = []
    store_bodies = storage._batches._store_bodies

    async def sleeps(drafts: list) -> None:
        await store_bodies(drafts)
        asleep.set()
        await wake.wait()

    async def write() -> None:
        written.append(await publish(storage, b"late"))
        awake.set()

    async with place.reopen() as other, trio.open_nursery() as nursery:
        assert isinstance(other, MemcachedStorage)
        bury = other._reader._bury

        async def slowly(things: Iterable[bytes]) -> None:
            wake.set()
            await awake.wait()
            await bury(things)

        monkeypatch.setattr(storage._batches, "_store_bodies", sleeps)
        monkeypatch.setattr(other._reader, "_bury", slowly)
        nursery.start_soon(write)
        await asleep.wait()
        with trio.fail_after(30):
            await other._reader.tidy("orders")
            await awake.wait()
    assert await storage.scan(State.NEW) == written
    [found] = await storage.read(written)
    assert found is not None
    assert await found.body.read() == b"late"


async def test_dropped_queues_are_reaped(server: Server) -> None:
    async with opened(server.port) as storage:
        await storage.put_record(QUEUE, "orders", {"created": 0})
        for _ in range(3):
            await do(storage, Move(await publish(storage), State.READY))
        await storage.drop_record(QUEUE, "orders")
        removed = await storage.scan(State.REMOVED, "orders")
        assert len(removed) == 3
        for entry in removed:
            assert (await do(storage, Unlink(entry))).result is Result.DONE
    assert not [key for key in server.listed() if key.startswith(("e:", "b:"))]


# -- behind a broker


async def test_unique_messages_are_stored_once_behind_a_broker(place) -> None:
    async with place.make() as storage, open_broker(storage) as broker:
        await broker.create_queue("set")
        await broker.change_settings("set", {"unique": True})
        first = await broker.publish("set", b"a")
        assert await broker.publish("set", b"a") == first
        assert await broker.contains("set", b"a")
        assert not await broker.contains("set", b"b")
        taken = await broker.take("set")
        assert taken is not None
        assert await taken.body.read() == b"a"
        assert not await broker.contains("set", b"a")


async def test_peers_hear_of_each_other(place) -> None:
    """By looking, each second of a real clock: the server's answers take real time."""
    async with place.make() as storage, place.reopen() as other:
        config = BrokerConfig(peers=1)
        async with open_broker(storage, config) as here, open_broker(other, config) as there:
            await here.create_queue("orders")
            id = await here.publish("orders", b"to a peer")
            with trio.fail_after(30):
                while (message := await there.fetch("orders")) is None:
                    await trio.sleep(0.1)
            assert message.id == id
            assert await here.fetch("orders") is None
            await there.remove("orders", id)
