"""What is particular to ``memory:``; what it has in common with every store is the conformance checks'."""

from __future__ import annotations

import pytest

from mq.errors import StorageUnusable
from mq.lifecycle import State
from mq.message import MessageIds
from mq.storage.interface import QUEUE, Description, Move, Sharing, Storage, Write
from mq.storage.records import drop_record, put_record
from mq.storage.registry import open_storage

pytestmark = pytest.mark.parametrize("backend", ["memory"], indirect=True)


async def test_says_that_it_is_not_durable(storage: Storage) -> None:
    expected = Description("memory:", False, False, None, True, places=True, removes=True, groups=10_000)
    assert storage.description == expected


async def test_hears_nothing_from_other_processes(storage: Storage) -> None:
    assert storage.changes() is None


async def test_two_stores_share_nothing(storage: Storage) -> None:
    await put_record(storage, QUEUE, "orders", {"created": 0})
    async with open_storage("memory:") as other:
        assert await other.records(QUEUE) == {}


async def test_forgets_everything_when_closed(storage: Storage) -> None:
    await put_record(storage, QUEUE, "orders", {"created": 0})
    await storage.commit([Write("orders", MessageIds().new(), b"body")])
    await storage.aclose()
    assert await storage.records(QUEUE) == {}
    assert await storage.scan(State.NEW) == []


async def test_keeps_no_trace_of_empty_places(storage: Storage) -> None:
    await put_record(storage, QUEUE, "orders", {"created": 0})
    [outcome] = await storage.commit([Write("orders", MessageIds().new(), b"body")])
    assert outcome.entry is not None
    await storage.commit([Move(outcome.entry, State.READY)])
    await drop_record(storage, QUEUE, "orders")
    assert storage._places == {}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("address", "options"),
    [("memory:x", {}), ("memory:", {"sharing": Sharing.PEERS}), ("memory:", {"sharing": Sharing.WATCHED})],
)
async def test_refuses_what_it_cannot_do(backend: str, address: str, options: dict[str, bool]) -> None:
    with pytest.raises(StorageUnusable, match=r'^the storage backend "memory" '):
        async with open_storage(address, **options):
            pass
