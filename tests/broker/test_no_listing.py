"""A fetch knows its message from the index: with peers = 0 it lists no folder, however many messages there are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from trio.testing import wait_all_tasks_blocked

from mq.broker import Broker, BrokerConfig, open_broker
from mq.message import MessageId
from mq.storage.files.fake import FakeCalls, make_calls
from mq.storage.files.hop import inline_hop
from mq.storage.files.mount import Mount
from mq.storage.files.posix import FolderStorage
from mq.storage.interface import Sharing
from mq.storage.options import StorageOptions

MESSAGES = 300


class Listings:
    """A broker's fake file system, and the folders that were listed on it."""

    def __init__(self, calls: FakeCalls, mount: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = calls
        self.mount = mount
        self.folders: list[str] = []
        names = calls.names

        def noted(path: str) -> list:
            self.folders.append(path)
            return names(path)

        monkeypatch.setattr(calls, "names", noted)

    @asynccontextmanager
    async def broker(self, peers: int = 0) -> AsyncIterator[Broker]:
        """A broker on that file system. What its start lists is forgotten."""
        options = StorageOptions(sharing=Sharing.PEERS if peers else Sharing.ALONE)
        storage = FolderStorage(
            "fake:/root", "/root", self.calls, options, mount=lambda _: self.mount, hop=inline_hop, syncfs=False
        )
        await storage.open()
        try:
            async with open_broker(storage, BrokerConfig(peers=peers)) as broker:
                self.folders.clear()
                yield broker
        finally:
            await storage.aclose()


@pytest.fixture(params=[True, False], ids=["rename", "link"])
def listings(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Listings:
    mount = Mount("fake", atomic_rename=request.param, ordered=request.param)
    return Listings(make_calls(), mount, monkeypatch)


async def fetch(broker: Broker) -> MessageId | None:
    message = await broker.fetch("q")
    if message is None:
        return None
    await message.body.aclose()
    return message.id


@pytest.mark.slow
async def test_fetching_lists_no_folder(listings: Listings) -> None:
    async with listings.broker() as broker:
        await broker.create_queue("q")
        listings.folders.clear()
        published = [await broker.publish("q", b"body") for _ in range(MESSAGES)]
        await wait_all_tasks_blocked()
        assert [await fetch(broker) for _ in range(MESSAGES)] == published
        assert await fetch(broker) is None
        assert listings.folders == []


async def test_a_message_that_comes_back_is_fetched_without_listing(listings: Listings) -> None:
    async with listings.broker() as broker:
        await broker.create_queue("q")
        listings.folders.clear()
        id = await broker.publish("q", b"body")
        await wait_all_tasks_blocked()
        assert await fetch(broker) == id
        await broker.requeue("q", id)
        assert await fetch(broker) == id
        await broker.remove("q", id)
        assert await fetch(broker) is None
        assert listings.folders == []


@pytest.mark.slow
async def test_what_a_start_found_is_fetched_without_listing(listings: Listings) -> None:
    async with listings.broker() as broker:
        await broker.create_queue("q")
        published = [await broker.publish("q", b"body") for _ in range(MESSAGES)]
    async with listings.broker() as broker:
        assert [await fetch(broker) for _ in range(MESSAGES)] == published
        assert listings.folders == []


async def test_with_peers_a_fetch_does_list(listings: Listings) -> None:
    """The counter counts: where others change the store, a fetch that knows of no message looks again."""
    async with listings.broker(peers=1) as broker:
        await broker.create_queue("q")
        listings.folders.clear()
        assert await fetch(broker) is None
        assert "/root/queues/q" in listings.folders
