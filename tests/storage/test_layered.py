"""Two stores as one: what need not last is in memory and nowhere else."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from mq.errors import StorageUnusable
from mq.lifecycle import State
from mq.storage.fake import make_calls
from mq.storage.interface import QUEUE, Entry, Meta, Move, Outcome, Result, Storage, Unlink, Write
from mq.storage.layered import LayeredStorage, make_layered
from mq.storage.options import StorageOptions
from tests.storage.disks import LARGE, MOUNTS, Disk, new_id

LIMIT = 1000


@pytest.fixture
async def disk() -> AsyncIterator[Disk]:
    """What is below; nobody has opened it."""
    disk = Disk(MOUNTS["rename"], make_calls())
    yield disk
    disk.heal()


@pytest.fixture
async def store(disk: Disk) -> AsyncIterator[LayeredStorage]:
    store = LayeredStorage(disk.another(), LIMIT)
    await store.open()
    await store.put_record(QUEUE, "lasting", {"created": 1})
    await store.put_record(QUEUE, "passing", {"created": 1, "transient": True})
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
    assert await store.drop_record(QUEUE, "passing")
    assert not await store.drop_record(QUEUE, "passing")
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


async def test_a_queue_that_goes_gives_its_memory_back(store: LayeredStorage) -> None:
    await bring(store, "passing", bytes(LIMIT))
    await store.drop_record(QUEUE, "passing")
    await bring(store, "lasting", bytes(LIMIT), transient=True)


@pytest.mark.parametrize("options", [StorageOptions(shared=True), StorageOptions(watched=True)])
def test_nobody_else_can_take_part(options: StorageOptions) -> None:
    with pytest.raises(StorageUnusable, match="one process"):
        make_layered("memory:", options)


def test_what_is_below_must_be_known() -> None:
    with pytest.raises(StorageUnusable, match="no storage backend"):
        make_layered("nowhere:", StorageOptions())
