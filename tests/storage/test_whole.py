"""The look over a whole store sees what is wrong with it, and no check ends without it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from mq.lifecycle import State
from mq.message import BytesBody, MessageIds
from mq.storage.conformance import check_whole, run_check
from mq.storage.interface import QUEUE, Entry, Move, Storage, Stored, Write
from mq.storage.memory import MemoryStorage
from mq.storage.records import put_record

ID = MessageIds().new()


class Distorted(MemoryStorage):
    """Gives back its messages as `distort` changes them."""

    def distort(self, stored: Stored) -> Stored | None:
        return stored

    async def read(self, entries: Sequence[Entry]) -> list[Stored | None]:
        return [stored and self.distort(stored) for stored in await super().read(entries)]


class Unreadable(Distorted):
    def distort(self, stored: Stored) -> None:
        return None


class TooLong(Distorted):
    def distort(self, stored: Stored) -> Stored:
        return stored._replace(properties=stored.properties._replace(size=5))


class TooShort(Distorted):
    def distort(self, stored: Stored) -> Stored:
        return stored._replace(body=BytesBody(b"bod"))


class Damaged(Distorted):
    def distort(self, stored: Stored) -> Stored:
        return stored._replace(body=BytesBody(b"b0dy"))


class ListsForeign(Distorted):
    async def scan(self, state: State, queue: str | None = None, limit: int | None = None) -> list[Entry]:
        return [entry._replace(queue="other") for entry in await super().scan(state, queue, limit)]


class ClosesOnce(MemoryStorage):
    def __init__(self) -> None:
        super().__init__()
        self.open_ = True

    async def aclose(self) -> None:
        assert self.open_, "closed twice"
        self.open_ = False


async def filled(store: type[MemoryStorage]) -> MemoryStorage:
    """A store with one message in READY."""
    storage = store()
    await put_record(storage, QUEUE, "orders", {"created": 0})
    await storage.commit([Write("orders", ID, b"body"), Move(Entry("orders", ID, State.NEW), State.READY)])
    return storage


async def test_finds_nothing_wrong() -> None:
    await check_whole(await filled(Distorted))


@pytest.mark.parametrize(
    ("store", "text"),
    [
        (Unreadable, "read does not find it"),
        (TooLong, "size 5"),
        (TooShort, "size 4, body 3"),
        (Damaged, "checksum"),
        (ListsForeign, "scan of NEW in all queues lists|scan of READY in orders lists"),
    ],
)
async def test_sees_what_is_wrong(store: type[MemoryStorage], text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        await check_whole(await filled(store))


@pytest.mark.parametrize("state", [State.NEW, State.DELAYED, State.REMOVED])
async def test_sees_a_message_in_two_places(state: State) -> None:
    storage = await filled(MemoryStorage)
    await storage.commit([Write("orders", ID, b"body")])
    if state is not State.NEW:
        await storage.commit([Move(Entry("orders", ID, State.NEW), state)])
    with pytest.raises(AssertionError, match="in two places"):
        await check_whole(storage)


@pytest.mark.parametrize(("store", "text"), [(Damaged, "checksum"), (ClosesOnce, "closed twice")])
async def test_every_check_ends_with_it(store: type[MemoryStorage], text: str) -> None:
    @asynccontextmanager
    async def make() -> AsyncIterator[Storage]:
        storage = await filled(store)
        yield storage
        await storage.aclose()

    async def checks_nothing(storage: Storage) -> None:
        pass

    with pytest.raises(AssertionError, match=text):
        await run_check(checks_nothing, make)
