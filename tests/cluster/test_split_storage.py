"""A cluster's store in two: one says which queues there are, the other one has their messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from mq.cluster.split_storage import SplitStorage
from mq.errors import StorageFull
from mq.lifecycle import State
from mq.message import MessageIds
from mq.storage.conformance import CHECKS, Check, run_check
from mq.storage.interface import QUEUE, Result, Storage, Write
from mq.storage.memory import MemoryStorage
from mq.storage.records import drop_record, put_record
from tests.cases import for_each
from tests.record_hooks import hook_records

IDS = MessageIds()


@asynccontextmanager
async def made() -> AsyncIterator[Storage]:
    store = SplitStorage(MemoryStorage(), MemoryStorage())
    await store.open()
    yield store
    await store.aclose()


@for_each("check", CHECKS)
async def test_it_keeps_what_a_store_promises(check: Check) -> None:
    await run_check(check, made)


async def ready(store: Storage, queue: str = "q") -> int:
    return len(await store.scan(State.READY, queue))


def life(number: int) -> dict[str, int]:
    return {"created": number, "incarnation": number}


async def filled(names: Storage, messages: Storage) -> SplitStorage:
    store = SplitStorage(names, messages)
    await store.open()
    await put_record(store, QUEUE, "q", life(1) | {"settings": {}})
    [outcome] = await store.commit([Write("q", IDS.new(), b"x", state=State.READY)])
    assert outcome.result is Result.DONE
    return store


async def test_what_is_named_in_one_is_made_and_deleted_in_both() -> None:
    names, messages = MemoryStorage(), MemoryStorage()
    store = await filled(names, messages)
    await put_record(store, QUEUE, "q", life(1) | {"settings": {"ttl": 5}})
    assert await ready(store) == 1, "its settings are another, its life is not"
    await put_record(store, "amqp-exchange", "x", {})
    await put_record(store, "key", "k", {})
    assert ("x" in await names.records("amqp-exchange"), "k" in await messages.records("key")) == (True, True)
    assert not await messages.records("amqp-exchange")
    assert not await names.records("key")
    assert await drop_record(store, QUEUE, "q")
    assert not await drop_record(store, QUEUE, "q")
    assert not await messages.records(QUEUE)


async def test_a_deletion_that_was_cut_short_leaves_nothing_to_the_next_queue_of_its_name() -> None:
    names, messages = MemoryStorage(), MemoryStorage()
    store = await filled(names, messages)

    async def fail(kind: str, key: str) -> bool:
        raise StorageFull("no answer")

    end = hook_records(messages, drop=fail)
    with pytest.raises(StorageFull):
        await drop_record(store, QUEUE, "q")
    end()
    assert await ready(store) == 1
    await put_record(store, QUEUE, "q", life(2))
    assert await ready(store) == 0


@pytest.mark.parametrize("now", [None, 2])
async def test_the_next_leader_makes_them_agree(now: int | None) -> None:
    names, messages = MemoryStorage(), MemoryStorage()
    await filled(names, messages)
    await drop_record(names, QUEUE, "q")
    if now is not None:
        await put_record(names, QUEUE, "q", life(now))
    await put_record(names, QUEUE, "only named", life(3))
    store = SplitStorage(names, messages)
    await store.open()
    assert set(await messages.records(QUEUE)) == set(await names.records(QUEUE))
    assert await ready(store) == 0
    [outcome] = await store.commit([Write("only named", IDS.new(), b"x", state=State.READY)])
    assert outcome.result is Result.DONE
