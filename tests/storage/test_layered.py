"""Two stores as one: what need not last is in memory and nowhere else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

import pytest
import trio

from mq.errors import StorageFull, StorageUnusable
from mq.lifecycle import State
from mq.message import encode_attributes
from mq.storage.interface import (
    MESSAGE_BYTES,
    QUEUE,
    Entry,
    Meta,
    Move,
    Outcome,
    Result,
    Sharing,
    Storage,
    Stored,
    Unlink,
    Write,
)
from mq.storage.layered import LayeredStorage, make_layered
from mq.storage.options import StorageOptions
from mq.storage.records import drop_record, put_record
from tests.record_hooks import hook_records
from tests.storage.disks import LARGE, MOUNTS, Disk, make_calls, new_id

LIMIT = 1000


@pytest.fixture
async def disk() -> AsyncIterator[Disk]:
    """What is below; nobody has opened it."""
    disk = Disk(MOUNTS["rename"], make_calls())
    yield disk
    disk.heal()


@pytest.fixture
def below(disk: Disk) -> Storage:
    return disk.another()


@pytest.fixture
async def store(below: Storage) -> AsyncIterator[LayeredStorage]:
    store = LayeredStorage(below, LIMIT)
    await store.open()
    await put_record(store, QUEUE, "lasting", {"created": 1})
    await put_record(store, QUEUE, "passing", {"created": 1, "transient": True})
    yield store
    await store.aclose()


async def one(store: Storage, operation: Write | Move | Unlink) -> Outcome:
    [outcome] = await store.commit([operation])
    return outcome


async def bring(store: Storage, queue: str, body: bytes = b"body", *, transient: bool = False) -> Entry:
    written = await one(store, Write(queue, new_id(), body, {"note": "n"}, transient=transient))
    assert written.entry is not None
    ready = await one(store, Move(written.entry, State.READY))
    assert ready.entry is not None
    return ready.entry


async def body(store: Storage, entry: Entry) -> bytes:
    [found] = await store.read([entry])
    assert found is not None
    assert found.properties.attributes == {"note": "n"}
    return await found.body.read()


def on_disk(disk: Disk) -> set[str]:
    return {path.rpartition("/")[2] for path in disk.files("new", "queues", "delay", "remove")}


async def test_a_transient_message_never_touches_the_disk(disk: Disk, store: LayeredStorage) -> None:
    lasting, passing = await bring(store, "lasting"), await bring(store, "lasting", transient=True)
    assert on_disk(disk) == {lasting.id}
    assert {entry.id for entry in await store.scan(State.READY, "lasting")} == {lasting.id, passing.id}
    assert await body(store, passing) == await body(store, lasting) == b"body"
    assert await store.find("lasting", passing.id) == passing


async def test_only_what_lasts_is_there_after_a_restart(disk: Disk, store: LayeredStorage) -> None:
    lasting = await bring(store, "lasting")
    await bring(store, "lasting", transient=True)
    await bring(store, "passing")
    await store.aclose()
    await store.open()
    assert (await store.records(QUEUE)).keys() == {"lasting"}
    assert await store.scan(State.READY, "lasting") == [lasting]


async def test_a_transient_queue_makes_no_folder(disk: Disk, store: LayeredStorage) -> None:
    assert disk.inner.names(f"{disk.root}/queues") == [("lasting", disk.inner.kind(f"{disk.root}/queues/lasting"))]
    assert await drop_record(store, QUEUE, "passing")
    assert not await drop_record(store, QUEUE, "passing")
    assert (await store.records(QUEUE)).keys() == {"lasting"}


async def test_one_batch_reaches_both_layers_and_keeps_its_order(store: LayeredStorage) -> None:
    writes = [Write("lasting", new_id(), b"%d" % number, transient=number % 2 == 0) for number in range(6)]
    outcomes = await store.commit(writes)
    assert [outcome.entry and outcome.entry.id for outcome in outcomes] == [write.id for write in writes]
    assert [outcome.result for outcome in outcomes] == [Result.DONE] * 6


@pytest.mark.parametrize("transient", [True, False])
async def test_a_lease_and_a_removal_stay_in_their_layer(disk: Disk, store: LayeredStorage, *, transient: bool) -> None:
    ready = await bring(store, "lasting", transient=transient)
    leased = await one(store, Move(ready, State.DELAYED, Meta(1, 1, "0123456789abcdef")))
    assert leased.entry is not None
    removed = await one(store, Move(leased.entry, State.REMOVED))
    assert removed.entry is not None
    assert len(on_disk(disk)) == (0 if transient else 1)
    assert (await one(store, Unlink(removed.entry))).result is Result.DONE
    assert on_disk(disk) == set()


async def test_a_batch_that_removes_a_transient_message_is_all_in_memory(store: LayeredStorage) -> None:
    """Its last step went to the disk, where it waited for a thread to find nothing."""
    ready = await bring(store, "lasting", transient=True)
    removed = Entry(ready.queue, ready.id, State.REMOVED)
    outcomes = await store.commit([Move(ready, State.REMOVED), Unlink(removed)])
    assert [outcome.result for outcome in outcomes] == [Result.DONE] * 2
    assert await store.scan(State.REMOVED) == []


async def test_a_message_from_below_comes_up_into_a_transient_queue(disk: Disk, store: LayeredStorage) -> None:
    ready = await bring(store, "lasting")
    moved = await one(store, Move(ready, State.READY, Meta(order=7), "passing"))
    assert moved.entry == Entry("passing", ready.id, State.READY, Meta(order=7))
    assert on_disk(disk) == set()
    assert await body(store, moved.entry) == b"body"
    assert (await one(store, Move(ready, State.READY, Meta(order=8), "passing"))).result is Result.GONE


async def test_a_transient_message_moves_to_a_lasting_queue_in_memory(disk: Disk, store: LayeredStorage) -> None:
    ready = await bring(store, "passing")
    moved = await one(store, Move(ready, State.READY, Meta(order=7), "lasting"))
    assert moved.entry == Entry("lasting", ready.id, State.READY, Meta(order=7))
    assert on_disk(disk) == set()


async def test_a_large_body_for_a_transient_queue_is_staged_below_and_comes_up(
    disk: Disk, store: LayeredStorage
) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"large"

    staged = await store.stage(chunks())
    written = await one(store, Write("passing", new_id(), staged, LARGE))
    assert written.entry is not None
    ready = await one(store, Move(written.entry, State.READY))
    assert ready.entry is not None
    [found] = await store.read([ready.entry])
    assert found is not None
    assert (await found.body.read(), found.properties.attributes) == (b"large", LARGE)
    assert on_disk(disk) == set()


async def test_memory_has_an_end(store: LayeredStorage) -> None:
    entry = await bring(store, "passing", bytes(LIMIT))
    refused = await one(store, Write("lasting", new_id(), b"x", transient=True))
    assert refused.result is Result.FULL
    assert "in memory" in refused.reason
    await bring(store, "lasting")  # the disk has room
    removed = await one(store, Move(entry, State.REMOVED))
    assert removed.entry is not None
    await one(store, Unlink(removed.entry))
    await bring(store, "passing", bytes(LIMIT))


@pytest.mark.parametrize("attributes", [{}, {"a": "x" * 10_000}])
async def test_memory_counts_attributes_and_messages_without_a_body(
    store: LayeredStorage, monkeypatch: pytest.MonkeyPatch, attributes: dict[str, str]
) -> None:
    monkeypatch.setattr("mq.storage.memory.MOST_BESIDE", 100_000)
    together = (LIMIT + 100_000) // (len(encode_attributes(attributes)) + MESSAGE_BYTES)
    fitting = (together + 1) // 2  # one queue has no more than is left for others
    writes = [Write("passing", new_id(), b"", attributes) for _ in range(fitting + 1)]
    outcomes = await store.commit(writes)
    assert [outcome.result for outcome in outcomes] == [Result.DONE] * fitting + [Result.FULL]
    await drop_record(store, QUEUE, "passing")
    for outcome in outcomes[:-1]:
        assert outcome.entry is not None
        await one(store, Unlink(outcome.entry))
    assert (await one(store, Write("lasting", new_id(), b"", attributes, transient=True))).result is Result.DONE


async def test_a_short_queue_has_room_in_memory_however_many_are_long(
    store: LayeredStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mq.storage.memory.MOST_BESIDE", 100_000)
    for number in range(5):
        await put_record(store, QUEUE, f"long{number}", {"created": 1, "transient": True})
        outcomes = await store.commit([Write(f"long{number}", new_id(), b"") for _ in range(200)])
        assert outcomes[0].result is Result.DONE
        assert outcomes[-1].result is Result.FULL
        assert f"in queue long{number}" in outcomes[-1].reason
    await bring(store, "passing", b"short")


async def test_messages_that_take_the_place_of_others_have_half_as_much_memory_again(
    store: LayeredStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mq.storage.memory.MOST_BESIDE", 100_000)
    fitting = (LIMIT + 100_000) * 3 // 2 // MESSAGE_BYTES
    outcomes = await store.commit([Write("passing", new_id(), b"", has_room=True) for _ in range(fitting + 1)])
    assert [outcome.result for outcome in outcomes] == [Result.DONE] * fitting + [Result.FULL]


async def test_a_queue_that_goes_gives_its_memory_back(store: LayeredStorage) -> None:
    await bring(store, "passing", bytes(LIMIT))
    await drop_record(store, QUEUE, "passing")
    await bring(store, "lasting", bytes(LIMIT), transient=True)


async def test_a_queue_that_goes_while_messages_come_into_it_gives_its_memory_back(store: LayeredStorage) -> None:
    for _ in range(20):  # the scheduler decides which of the two is first
        written = await one(store, Write("passing", new_id(), bytes(LIMIT)))
        assert written.entry is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drop_record, store, QUEUE, "passing")
            nursery.start_soon(store.commit, [Move(written.entry, State.READY)])
        await put_record(store, QUEUE, "passing", {"created": 1, "transient": True})
        left = written.entry
        if (moved := await one(store, Move(left, State.REMOVED))).entry is not None:
            assert (await one(store, Unlink(moved.entry))).result is Result.DONE


@pytest.fixture
def queue_goes_during_reads(
    store: LayeredStorage, below: Storage, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], None]:
    """From the call on the queue `passing` is dropped before the store below reads."""
    read = below.read

    async def drop_and_read(entries: Sequence[Entry]) -> list[Stored | None]:
        await drop_record(store, QUEUE, "passing")
        return await read(entries)

    return lambda: monkeypatch.setattr(below, "read", drop_and_read)


async def test_a_queue_that_goes_while_the_store_below_is_read(
    store: LayeredStorage, queue_goes_during_reads: Callable[[], None]
) -> None:
    entries = [await bring(store, queue) for queue in ("passing", "lasting", "passing", "passing")]
    queue_goes_during_reads()
    for expected in ([b"body"] * 4, [None, b"body", None, None]):
        found = await store.read(entries)
        assert [None if each is None else await each.body.read() for each in found] == expected


async def test_of_messages_in_memory_some_vanish_while_others_are_read(store: LayeredStorage) -> None:
    for _ in range(20):
        entries = [await bring(store, "passing") for _ in range(4)]
        found: list[Stored | None] = []

        async def read() -> None:
            found.extend(await store.read(entries))  # noqa: B023 - it ends within the round

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            nursery.start_soon(drop_record, store, QUEUE, "passing")
        assert len(found) == 4
        assert len({each is None for each in found}) == 1, "all of them are there, or none"
        await put_record(store, QUEUE, "passing", {"created": 1, "transient": True})


async def test_a_message_that_was_to_come_up_into_a_queue_that_goes_stays_where_it_is(
    disk: Disk, store: LayeredStorage, queue_goes_during_reads: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = await bring(store, "lasting", bytes(LIMIT))
    queue_goes_during_reads()
    moved = await one(store, Move(ready, State.READY, Meta(order=7), "passing"))
    assert moved.result in (Result.NO_QUEUE, Result.GONE)
    monkeypatch.undo()
    assert await store.scan(State.READY, "lasting") == [ready]
    assert on_disk(disk) == {ready.id}
    await bring(store, "lasting", bytes(LIMIT), transient=True)  # nothing of it is left in memory


async def test_a_queue_whose_record_cannot_be_dropped_keeps_its_messages_in_memory(
    below: Storage, store: LayeredStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    passing = await bring(store, "lasting", transient=True)

    async def refuse(kind: str, key: str) -> bool:
        raise StorageFull("no room")

    with monkeypatch.context() as patch:
        patch.setattr(below, "commit", below.commit)
        hook_records(below, drop=refuse)
        with pytest.raises(StorageFull):
            await drop_record(store, QUEUE, "lasting")
    assert await body(store, passing) == b"body"
    await bring(store, "lasting", transient=True)


@pytest.mark.parametrize("options", [StorageOptions(sharing=Sharing.PEERS), StorageOptions(sharing=Sharing.WATCHED)])
def test_nobody_else_can_take_part(options: StorageOptions) -> None:
    with pytest.raises(StorageUnusable, match="only one process"):
        make_layered("memory:", options)


def test_what_is_below_must_be_known() -> None:
    with pytest.raises(StorageUnusable, match="unknown storage backend"):
        make_layered("nowhere:", StorageOptions())


async def test_what_is_in_memory_takes_one_step_of_the_event_loop(store: LayeredStorage) -> None:
    """In a step each, a thousand operations took as long as whatever else was done in a thousand steps."""
    ids = [new_id() for _ in range(20)]
    operations: list[Write | Move] = [Write("passing", id, b"body") for id in ids]
    operations += [Move(Entry("passing", id, State.NEW), State.READY) for id in ids]
    steps = 0

    async def count() -> None:
        nonlocal steps
        while True:
            await trio.lowlevel.checkpoint()
            steps += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        outcomes = await store.commit(operations)
        nursery.cancel_scope.cancel()
    assert {outcome.result for outcome in outcomes} == {Result.DONE}
    assert len(await store.scan(State.READY, "passing")) == len(ids)
    assert steps <= 3


async def test_what_finds_no_more_room_in_a_batch_leaves_the_rest_as_it_is(store: LayeredStorage) -> None:
    sizes = [LIMIT // 2, LIMIT, LIMIT // 2, 1]
    ids = [new_id() for _ in sizes]
    writes = [Write("passing", id, bytes(size)) for id, size in zip(ids, sizes, strict=True)]
    moves = [Move(Entry("passing", id, State.NEW), State.READY) for id in ids]
    done = [outcome.result for outcome in await store.commit([*writes, *moves])]
    assert done == [Result.DONE, Result.FULL, Result.DONE, Result.FULL, *[Result.DONE, Result.GONE] * 2]
    again = [await one(store, write) for write in (writes[0], writes[3])]
    assert [outcome.result for outcome in again] == [Result.FULL, Result.FULL]
