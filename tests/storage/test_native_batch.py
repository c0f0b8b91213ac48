"""With mq-native and without it, a store does the same."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from mq.errors import CorruptMessage
from mq.lifecycle import State
from mq.message import MessageIds
from mq.storage.conformance import check_storage
from mq.storage.files.calls import LinuxCalls
from mq.storage.files.layout import LARGEST_ATTRIBUTES
from mq.storage.files.posix import FolderStorage, load_native
from mq.storage.interface import QUEUE, Entry, Meta, Move, Operation, Result, Storage, Stored, Unlink, Write
from mq.storage.options import StorageOptions
from mq.storage.records import put_record
from mq.storage.registry import open_storage
from tests.cases import for_each
from tests.storage.disks import MOUNTS, new_id
from tests.storage.places import Places

pytestmark = pytest.mark.skipif(
    load_native() is None, reason="mq-native is not compiled here: apt install gcc libc6-dev"
)

STATES = (State.NEW, State.READY, State.DELAYED, State.REMOVED)


@asynccontextmanager
async def open_root(root: Path, *, native: bool = True) -> AsyncIterator[FolderStorage]:
    """A store with a log on a real root, whatever its file system: only such a store does something natively."""
    calls = LinuxCalls(load_native() if native else None)
    mount = MOUNTS["rename"]._replace(logged=True)
    storage = FolderStorage(f"test:{root}", str(root), calls, StorageOptions(), mount=lambda root: mount, syncfs=True)
    await storage.open()
    try:
        assert (storage._root_open.folders.native is not None) == native
        yield storage
    finally:
        await storage.aclose()


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


@pytest.mark.slow
async def test_the_conformance_suite_holds_without_it(temp_root: Path) -> None:
    places = Places("posix", str(temp_root), native=False)
    await check_storage(places.make, places.reopen)


@pytest.mark.parametrize("native", [True, False])
async def test_messages_are_their_owners_only(temp_root: Path, native: bool) -> None:
    async with open_storage(f"posix:{temp_root}/mq", native=native) as storage:
        await put_record(storage, QUEUE, "q", {})
        staged = await storage.stage(chunks(b"large"))
        await storage.commit([Write("q", new_id(), b"small"), Write("q", new_id(), staged)])
        everything = list((temp_root / "mq").rglob("*"))
    assert {path.stat().st_mode & 0o777 for path in everything if path.is_file()} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in everything if path.is_dir()} == {0o700}


@pytest.mark.slow
@for_each("seed", range(20))
async def test_batches_have_the_same_outcomes_and_leave_the_same_files(temp_root: Path, seed: int) -> None:
    both = []
    for native in (True, False):
        root = temp_root / str(native)
        async with open_storage(f"posix:{root}", native=native) as storage:
            both.append(await _after_ten_batches(storage, root, seed))
    assert both[0] == both[1]
    assert {result for result, _ in both[0][0]} > {Result.DONE, Result.GONE}


@pytest.mark.slow
@for_each("seed", range(10))
async def test_batches_with_one_operation_a_message_have_the_same_outcomes(temp_root: Path, seed: int) -> None:
    both = []
    for native in (True, False):
        root = temp_root / str(native)
        async with open_root(root, native=native) as storage:
            both.append(await _after_ten_batches(storage, root, seed, each_once=True))
    assert both[0] == both[1]
    assert {result for result, _ in both[0][0]} >= {Result.DONE, Result.GONE, Result.EXISTS}


Left = tuple[list[tuple[Result, Entry | None]], list[object], dict[str, tuple[bytes, dict[str, bytes]]]]


async def _after_ten_batches(storage: Storage, root: Path, seed: int, *, each_once: bool = False) -> Left:
    """Outcomes, what can be read, and files; with `each_once`, of a message a batch has one operation at the most."""
    random, ids = Random(seed), MessageIds(lambda: 10**18, 1)
    for queue in ("a", "b"):
        await put_record(storage, QUEUE, queue, {"created": 0})
    told, known = [], [Entry("a", ids.new(), State.READY)]
    for _ in range(10):
        batch = list(_batch(random, ids, known))
        if each_once:
            batch = list({each.id if isinstance(each, Write) else each.entry.id: each for each in batch}.values())
        outcomes = await storage.commit(batch)
        known += [outcome.entry for outcome in outcomes if outcome.entry is not None]
        told += [(outcome.result, outcome.entry) for outcome in outcomes]
    read = [found and (found.properties, await _body(found)) for found in await storage.read(known)]
    return told, read, _tree(root)


async def test_side_files_go_with_their_messages_and_no_others(temp_root: Path) -> None:
    async with open_root(temp_root) as storage:
        await put_record(storage, QUEUE, "q", {})
        large = {"long": "x" * LARGEST_ATTRIBUTES}
        written = [each.entry for each in await storage.commit([Write("q", new_id(), b"", large) for _ in range(3)])]
        kept, gone, moved = [entry for entry in written if entry is not None]
        [delivered] = await storage.commit([Move(moved, State.READY)])
        removals: list[Operation] = []
        for entry in (gone, moved):  # the second is not there any more
            removals += [Move(entry, State.REMOVED), Unlink(entry._replace(state=State.REMOVED))]
        told = [outcome.result for outcome in await storage.commit(removals)]
        assert told == [Result.DONE, Result.DONE, Result.GONE, Result.GONE]
        assert {path.name for path in (temp_root / "state" / "properties").iterdir()} == {kept.id, moved.id}
        assert delivered.entry is not None
        [stored] = await storage.read([delivered.entry])
        assert stored is not None
        assert stored.properties.attributes == large


async def _body(found: Stored) -> bytes | str:
    """Or what is wrong with it: an id that is there twice loses the side file of both with the first that goes."""
    try:
        return await found.body.read()
    except CorruptMessage as error:
        return str(error)


def _batch(random: Random, ids: MessageIds, known: list[Entry]) -> Iterator[Operation]:
    """What follows from each other and what does not; much of it too late, or for a name that is taken."""
    for _ in range(random.randrange(1, 30)):
        kind, entry = random.random(), random.choice(known)
        if kind < 0.4:
            id = ids.new() if random.random() < 0.9 else entry.id
            yield Write(random.choice("ab"), id, random.randbytes(random.randrange(2000)), _attributes(random))
            known.append(Entry("a", id, State.NEW))
        elif kind < 0.9:
            yield Move(entry, random.choice(STATES), _meta(random), durable=random.random() < 0.7)
        else:
            yield Unlink(Entry(entry.queue, entry.id, State.REMOVED, entry.meta))


def _attributes(random: Random) -> dict[str, str]:
    return random.choice([{}, {}, {"content_type": "text/plain"}, {"long": "x" * LARGEST_ATTRIBUTES}])


def _meta(random: Random) -> Meta:
    return Meta(receives=random.randrange(3), receipt=random.choice([None, "0123456789abcdef"]))


def _tree(root: Path) -> dict[str, tuple[bytes, dict[str, bytes]]]:
    """Every file of a message: its bytes and attributes."""
    return {
        str(path.relative_to(root)): (path.read_bytes(), {name: os.getxattr(path, name) for name in os.listxattr(path)})
        for path in root.rglob("*")
        if path.is_file() and path.name != "ballast" and path.parent.name not in ("log", "peers")
    }
