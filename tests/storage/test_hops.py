"""When a batch hops to a thread: always on a disk, and in memory when it takes longer than the hop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from mq.lifecycle import State
from mq.storage.files import hop
from mq.storage.files.hop import inline_hop
from mq.storage.files.mount import Mount
from mq.storage.files.posix import FolderStorage
from mq.storage.interface import QUEUE, Move, Operation, Outcome, Result, Unlink, Write
from mq.storage.options import StorageOptions
from mq.storage.outcomes import Outcomes
from mq.storage.records import put_record
from tests.storage.disks import make_calls, new_id

MEMORY = Mount("memory", persistent=False, atomic_rename=True, ordered=True)


def _name_of(verb: Callable[..., Any]) -> str:
    return _name_of(verb.func) if isinstance(verb, partial) else verb.__name__


class Hops:
    """A store, and the names of what was done in a thread."""

    def __init__(self, mount: Mount) -> None:
        self.taken: list[str] = []
        self.storage = FolderStorage(
            "test:", "/root", make_calls(), StorageOptions(), mount=lambda root: mount, hop=self._hop, syncfs=False
        )

    async def _hop(self, verb: Callable[..., Any], *args: object) -> Any:
        self.taken.append(_name_of(verb))
        return await inline_hop(verb, *args)

    async def of(self, *operations: Operation) -> list[str]:
        self.taken.clear()
        outcomes = await self.storage.commit(operations)
        assert {outcome.result for outcome in outcomes} <= {Result.DONE}
        return self.taken


@pytest.fixture
async def memory() -> AsyncIterator[Hops]:
    hops = Hops(MEMORY)
    await hops.storage.open()
    yield hops
    await hops.storage.aclose()


def write(size: int = 4) -> Write:
    return Write("q", new_id(), b"x" * size)


async def test_on_a_disk_every_batch_hops() -> None:
    hops = Hops(MEMORY._replace(persistent=True))
    await hops.storage.open()
    assert await hops.of(write()) == ["commit"]
    entries = await hops.storage.scan(State.NEW)
    await hops.storage.read(entries)
    assert hops.taken == ["commit", "scan", "read_many"]
    await hops.storage.aclose()


async def test_in_memory_a_few_writes_moves_and_reads_are_done_at_once(memory: Hops) -> None:
    assert await memory.of(*(write() for _ in range(4))) == []
    entries = await memory.storage.scan(State.NEW)
    assert await memory.of(*(Move(entry, State.REMOVED) for entry in entries)) == []
    memory.taken.clear()
    found = await memory.storage.read([entry._replace(state=State.REMOVED) for entry in entries])
    assert [await each.body.read() for each in found if each is not None] == [b"xxxx"] * 4
    assert memory.taken == []


async def test_many_hop_in_memory_too(memory: Hops) -> None:
    assert await memory.of(*(write() for _ in range(5))) == ["commit"]
    entries = await memory.storage.scan(State.NEW)
    memory.taken.clear()
    await memory.storage.read(entries)
    assert memory.taken == ["read_many"]


async def test_what_is_long_hops_in_memory_too(memory: Hops) -> None:
    assert await memory.of(write(1 << 16)) == []
    assert await memory.of(write(1 << 16), write(1)) == ["commit"]


async def test_an_unlink_hops_since_it_may_take_long(memory: Hops) -> None:
    await memory.of(write())
    [entry] = await memory.storage.scan(State.NEW)
    await memory.of(Move(entry, State.REMOVED))
    assert await memory.of(Unlink(entry._replace(state=State.REMOVED))) == ["commit"]


async def test_a_store_tells_how_late_its_last_batch_was_heard_of() -> None:
    """Of what was done in a thread. What is done at once is heard of at once."""
    calls, options = make_calls(), StorageOptions()
    for mount in (MEMORY._replace(persistent=True), MEMORY):
        store = FolderStorage("test:", "/root", calls, options, mount=lambda root, mount=mount: mount, syncfs=False)
        await store.open()
        since = trio.current_time()
        outcomes = await store.commit([write()])
        late = outcomes.heard_late if isinstance(outcomes, Outcomes) else 0
        assert 0 < late < trio.current_time() - since if mount.persistent else late == 0
        await store.aclose()


@pytest.mark.parametrize("logged", [True, False], ids=["with a log", "without"])
@pytest.mark.parametrize("size", [1, 16, 47])
async def test_a_batch_switches_threads_twice(monkeypatch: pytest.MonkeyPatch, size: int, logged: bool) -> None:
    """To the commit thread and back. Only a longer batch on a log reports parts of itself on the way."""
    mount = Mount("ext4", atomic_rename=True, ordered=True, logged=logged)
    store = FolderStorage("test:", "/root", make_calls(), StorageOptions(), mount=lambda root: mount, syncfs=True)
    await store.open()
    assert store.tells is logged
    await put_record(store, QUEUE, "q", {"created": 1})
    switches: list[str] = []
    thread, write_to_loop = store._committing, hop._write
    assert thread is not None
    ask = thread._jobs.put

    def put(job: Any) -> None:
        switches.append("to the thread")
        ask(job)

    def tell(fd: int, count: int) -> None:
        switches.append("back")
        write_to_loop(fd, count)

    thread._jobs = SimpleNamespace(put=put, get=thread._jobs.get)  # type: ignore[assignment]
    monkeypatch.setattr(hop, "_write", tell)
    monkeypatch.setattr(store, "_hop", None)  # no thread of Trio's
    told: list[Outcome] = []
    told += await store.commit_in_parts([write() for _ in range(size)], lambda outcomes, _: told.extend(outcomes))
    assert [outcome.result for outcome in told] == [Result.DONE] * size
    assert switches == ["to the thread", "back"]
    monkeypatch.undo()
    await store.aclose()
