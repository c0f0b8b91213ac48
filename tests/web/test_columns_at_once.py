"""Columns that the store has read together, beside columns of messages that were read one by one."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from mq.broker import Broker, Draft, open_broker
from mq.doors.budget import Budget
from mq.lifecycle import State
from mq.message import MessageId, MessageIds
from mq.storage.files.calls import LinuxCalls, Native
from mq.storage.files.layout import LARGEST_ATTRIBUTES
from mq.storage.files.posix import FolderStorage, load_native
from mq.storage.interface import QUEUE, Entry, MessageColumns, Write
from mq.storage.options import StorageOptions
from mq.storage.records import put_record
from mq.storage.registry import open_storage
from mq.web.columns import COLUMNS
from mq.web.endpoints import Endpoints
from mq.web.exchange import Reply
from mq.web.replies import LARGEST_PAGE
from simulation.calls import StepByStep
from tests.storage.disks import MOUNTS
from tests.web.test_columns import decoded
from tests.web.test_consumer_operations import get

WAYS = ["native", "step by step"]
LONG = "a/" + "b" * LARGEST_ATTRIBUTES
"""Too long for the message's own file."""
NEEDS_NATIVE = "mq-native is not compiled here: apt install gcc libc6-dev"


def native_of(way: str) -> Native | None:
    if way == "native":
        if load_native() is None:
            pytest.skip(NEEDS_NATIVE)
        return load_native()
    return StepByStep(LinuxCalls()) if way == "step by step" else None


@asynccontextmanager
async def serving(root: Path, native: Native | None) -> AsyncIterator[tuple[Broker, FolderStorage]]:
    mount = MOUNTS["rename"]._replace(logged=True)  # only the engine with a log reads natively
    calls = LinuxCalls(native)
    storage = FolderStorage(f"test:{root}", str(root), calls, StorageOptions(), mount=lambda root: mount, syncfs=True)
    await storage.open()
    try:
        async with open_broker(storage) as broker:
            yield broker, storage
    finally:
        await storage.aclose()


async def whole(reply: Reply) -> bytes:
    if isinstance(reply.body, bytes):
        return reply.body
    pieces = [piece async for piece in reply.body]
    await reply.body.aclose()
    return b"".join(pieces)


async def pages(broker: Broker, target: str, budget: Budget | None = None) -> list[bytes]:
    """Each answer from the first on."""
    endpoints = Endpoints(broker, 1 << 30, **({} if budget is None else {"budget": budget}))
    found = []
    while target:
        reply = await get(endpoints, target, accept=COLUMNS)
        assert (reply.status, dict(reply.headers)["content-type"]) == (200, COLUMNS)
        found.append(await whole(reply))
        target = dict(reply.headers).get("link", "")[1:].partition(">")[0]
    return found


async def fill(broker: Broker) -> list[str]:
    """Messages of every kind: short ones, empty, long, said, due to expire, received before."""
    await broker.create_queue("q")
    for number in range(40):
        await broker.publish("q", b"%d" % number * (number % 7))
    await broker.publish("q", bytes(300_000), {"content_type": "a/long"})
    for number in range(40):
        said: dict[str, Any] = {"content_type": f"a/{number % 2}", "attributes": {"n": "ü"}} if number % 3 else {}
        if number == 20:
            said = {"attributes": {"much": "x" * 3000}}  # more than an extended attribute may hold
        await broker.publish_many("q", [Draft(b"%d" % number, said, ttl=3600.0 if number % 5 == 0 else None)])
    for message in await broker.fetch_many("q", 3):
        await broker.requeue("q", message.id, receipt=message.receipt)
    return [str(seen.message.id) for seen in (await broker.browsing.browse("q", most=1000)).messages]


def damage(root: Path, id: str) -> None:
    [file] = (root / "queues" / "q").glob(f"{id}*")
    with open(file, "r+b") as opened:
        opened.write(b"?")


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("most", [1000, 7])
async def test_both_ways_answer_with_the_same_bytes(
    temp_root: Path, way: str, most: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With a damaged message at each of several places, one that is gone, and one whose attributes make no sense."""
    native = native_of(way)
    async with serving(temp_root / "mq", None) as (broker, _):
        ids = await fill(broker)
        for place in (0, 5, 6, 30, len(ids) - 1):
            damage(temp_root / "mq", ids[place])
        [gone] = (temp_root / "mq" / "queues" / "q").glob(f"{ids[12]}*")
        gone.unlink()
        [senseless] = (temp_root / "mq" / "queues" / "q").glob(f"{ids[45]}*")
        assert os.getxattr(senseless, "user.mq.attributes")
        os.setxattr(senseless, "user.mq.attributes", b"{")
    target = f"/q/browse?max={most}"
    async with serving(temp_root / "mq", None) as (broker, _):
        assert broker.columns is not None
        assert await broker.columns.browse("q", after=0, up_to=None, most=9, base=0, most_bytes=99) is None
        one_by_one = await pages(broker, target)
    caplog.clear()
    async with serving(temp_root / "mq", native) as (broker, storage):
        together = []
        read = storage.read_columns

        async def noted(*args: Any) -> MessageColumns | None:
            found = await read(*args)
            assert found is not None
            together.append(found.length)
            return found

        monkeypatch.setattr(storage, "read_columns", noted)
        with caplog.at_level(logging.ERROR, "mq.web"):
            assert await pages(broker, target) == one_by_one
        assert sum(together) > len(ids) // 3, "hardly any came together"
    rows = [row for page in one_by_one for row in decoded(page)[0]]
    missing = {ids[place] for place in (0, 5, 6, 12, 30, 45, len(ids) - 1)}
    assert [id for *_, id, _ in rows] == [id for id in ids if id not in missing]
    assert len([record for record in caplog.records if "cannot deliver message" in record.message]) == len(missing) - 1


@pytest.mark.parametrize("way", WAYS)
async def test_a_claim_is_the_same_both_ways(temp_root: Path, way: str) -> None:
    native = native_of(way)
    root = temp_root / "mq"
    async with serving(root, native) as (broker, storage):
        ids = await fill(broker)
        epoch = (await broker.claims.start("q", "c")).epoch
        await broker.claims.claim("q", "c", 1, epoch, most=60, lease=3600.0)
        target = f"/q/consumers/c/claim?batch=1&epoch={epoch}&expected=60&from=2&to=58&max=25"
        together = await pages(broker, target)
        storage._root_open.folders.native = None
        assert await pages(broker, target) == together
    rows = [row for page in together for row in decoded(page)[0]]
    assert [id for *_, id, _ in rows] == ids[2:58]
    assert {receives for _, _, receives, *_ in rows} == {1, 2}


@pytest.mark.parametrize("way", WAYS)
async def test_a_page_has_an_end_and_its_memory_comes_back(temp_root: Path, way: str) -> None:
    """Bodies that are short, and one that is longer than a page: none of them makes a page longer than it may be."""
    native = native_of(way)
    budget = Budget()
    async with serving(temp_root / "mq", native) as (broker, _):
        await broker.create_queue("q")
        for size in (200_000, LARGEST_PAGE + 5, 200_000):
            await broker.publish_many("q", [Draft(bytes(size))] * (1 if size > LARGEST_PAGE else 50))
        found = [decoded(page)[0] for page in await pages(broker, "/q/browse?max=1000", budget)]
    sizes = [[len(body) for *_, body in rows] for rows in found]
    assert [size for page in sizes for size in page] == [200_000] * 50 + [LARGEST_PAGE + 5] + [200_000] * 50
    assert all(sum(page) <= LARGEST_PAGE or len(page) == 1 for page in sizes)
    assert budget.free == budget.most


async def test_little_memory_makes_shorter_reads_and_no_refusal(temp_root: Path) -> None:
    budget = Budget(1 << 20)
    async with serving(temp_root / "mq", StepByStep(LinuxCalls())) as (broker, _):
        await broker.create_queue("q")
        await broker.publish_many("q", [Draft(bytes(2000))] * 500)
        held = budget.reserve((1 << 20) - 100_000)
        found = await pages(broker, "/q/browse?max=20", budget)
        held.give_back()
    assert [len(decoded(page)[0]) for page in found if decoded(page)[0]] == [20] * 25
    assert budget.free == budget.most


async def test_what_cannot_come_in_columns_is_read_in_slices_that_grow(
    temp_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where attributes are in files of their own, a queue may have nothing else: a hop for each few would be slow."""
    sizes = []
    async with serving(temp_root / "mq", StepByStep(LinuxCalls())) as (broker, storage):
        await broker.create_queue("q")
        for said in ({"content_type": LONG}, {}, {"content_type": LONG}):
            await broker.publish_many("q", [Draft(b"x", said)] * 150)
        read = storage.read

        async def noted(entries: Sequence[Entry]) -> Any:
            sizes.append(len(entries))
            return await read(entries)

        monkeypatch.setattr(storage, "read", noted)
        [page] = await pages(broker, "/q/browse?max=1000")
    assert len(decoded(page)[0]) == 450
    assert sizes == [16, 32, 64, 128, 16, 32, 64, 38]


async def test_two_pages_are_read_at_once(temp_root: Path) -> None:
    """Each read waits in its thread until the other one is there, too."""
    both = threading.Barrier(2, timeout=20)

    class Meeting(StepByStep):
        def read_columns(self, *args: Any) -> Any:
            both.wait()
            return super().read_columns(*args)

    async with serving(temp_root / "mq", Meeting(LinuxCalls())) as (broker, _):
        await broker.create_queue("q")
        await broker.publish_many("q", [Draft(b"x")] * 10)
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(pages, broker, "/q/browse?max=10")
    assert not both.broken


async def test_what_cannot_be_read_natively_is_read_as_ever(temp_root: Path) -> None:
    """No file handle is free for the native way: the other way has a spare one, or says so."""

    class Poor(StepByStep):
        def _read(self, path: str, largest: int) -> Any:
            return errno.EMFILE

    async with serving(temp_root / "mq", Poor(LinuxCalls())) as (broker, _):
        await broker.create_queue("q")
        await broker.publish_many("q", [Draft(b"%d" % number) for number in range(40)])
        [page] = await pages(broker, "/q/browse?max=100")
    assert [body for *_, body in decoded(page)[0]] == [b"%d" % number for number in range(40)]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["lines", *WAYS])
@pytest.mark.parametrize(("most", "longest"), [(1, 100), (2, 100), (3, 100), (100, 5), (100, 10), (100, 100)])
async def test_no_page_passes_over_one_of_two_with_one_sequence(
    temp_root: Path, way: str, most: int, longest: int
) -> None:
    """Two brokers have published them within the same 100 ns."""
    first = MessageIds().new()
    keys = [first.key, *(key + place for key in (first.key + (1 << 64), first.key + (2 << 64)) for place in (0, 1, 2))]
    ids = [MessageId.from_key(key) for key in keys]
    assert len({id.time for id in ids}) == 3
    async with open_storage(f"posix:{temp_root / 'mq'}") as storage:
        await put_record(storage, QUEUE, "q", {"created": 0})
        await storage.commit([Write("q", id, b"four", state=State.READY) for id in ids])
    async with serving(temp_root / "mq", native_of(way)) as (broker, _):
        endpoints, found, target = Endpoints(broker, longest), list[str](), f"/q/browse?max={most}"
        while target:
            reply = await get(endpoints, target, accept="*/*" if way == "lines" else COLUMNS)
            body = await whole(reply)
            found += (
                [json.loads(line)["id"] for line in body.splitlines()]
                if way == "lines"
                else [row[3] for row in decoded(body)[0]]
            )
            link = re.fullmatch(r'<(.+)>; rel="next"', dict(reply.headers).get("link", ""))
            target = link[1] if link else ""
        assert found == ids
