"""A folder store on a medium in which a test has its hands: it sees every call, and lets chosen ones fail."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Final

import trio

from mq.lifecycle import State
from mq.message import MessageId, MessageIds
from mq.storage.checks.whole import check_whole
from mq.storage.files.calls import OPEN_NEW, OPEN_READ, Calls, FileKind
from mq.storage.files.engine import LOGGED
from mq.storage.files.folders import Folders
from mq.storage.files.hop import inline_hop
from mq.storage.files.mount import Mount
from mq.storage.files.posix import FolderStorage
from mq.storage.interface import QUEUE, Entry, Meta, Move, Operation, Outcome, Result, Write
from mq.storage.options import StorageOptions
from mq.storage.records import put_record
from simulation import disk as simulated
from simulation.calls import FaultyCalls
from simulation.faults import Faults
from simulation.stepped import SteppedThreads

MOUNTS: Final = {
    "rename": Mount("rename", atomic_rename=True, ordered=True),
    "unordered": Mount("unordered", atomic_rename=True),
    "link": Mount("link"),
}
"""By the way moves are made: as on ext4 or xfs, as on btrfs, and as where nothing is known of the file system."""

LEASE: Final = Meta(deadline_ms=1_700_000_000_000, receives=1, receipt="0123456789abcdef")
LARGE: Final = {"note": "x" * 5000}
"""Attributes that no extended attribute of mq's holds."""

_ids: Final = MessageIds()


def new_id() -> MessageId:
    """An id that no test has used, younger than all before."""
    return _ids.new()


def make_calls() -> simulated.Disk:
    """Calls on a file system of their own, whose power nobody cuts."""
    random = Random(0)
    return simulated.Disk(simulated.Medium.ORDERED, random, Faults(random, lambda told: None))


_SHARED_CALLS: Final = make_calls()


def make_disk(rest: str, options: StorageOptions) -> FolderStorage:
    """A backend for addresses such as ``disk:/root``: all of a process's share one simulated disk. Not durable."""
    mount = Mount("disk", persistent=False, atomic_rename=True, ordered=True)
    return FolderStorage(
        f"disk:{rest}", rest, _SHARED_CALLS, options, mount=lambda root: mount, hop=inline_hop, syncfs=False
    )


class Disk:
    """A root, the calls by which it is reached, and at most one open store on it.

    Args:
        mount: what the store is told of the file system.
        inner: does the work; a fake file system of its own when not given.
        root: the root.
        syncfs: whether the store may use that call.
        told_together: outcomes of which the store tells together before a batch ends; 0 where it tells of none.
        options: how the store is used.
    """

    def __init__(
        self,
        mount: Mount,
        inner: Calls | None = None,
        root: str = "/root",
        *,
        syncfs: bool = False,
        told_together: int = 0,
        **options: Any,
    ) -> None:
        self.mount = mount
        self.root = root
        self.inner = inner or make_calls()
        self.calls = FaultyCalls(self.inner, root)
        self.syncfs = syncfs
        threads = SteppedThreads(told_together, trio.lowlevel.checkpoint)
        self._hop_in_parts = threads.hop_in_parts if told_together else None
        self.options = StorageOptions(**options)
        self._storage: FolderStorage | None = None

    @property
    def storage(self) -> FolderStorage:
        """The open store."""
        assert self._storage is not None, "the disk is not open"
        return self._storage

    @property
    def folders(self) -> Folders:
        """The open store's folders."""
        return self.storage._root_open.folders

    @property
    def has_log(self) -> bool:
        """Whether the open store makes batches durable by a log."""
        return self.storage._root_open.choice.engine == LOGGED

    def another(self, **options: Any) -> FolderStorage:
        """A store on the same root, not open yet."""
        return FolderStorage(
            f"test:{self.root}",
            self.root,
            self.calls,
            StorageOptions(**options) if options else self.options,
            mount=lambda root: self.mount,
            hop=inline_hop,
            hop_in_parts=self._hop_in_parts,
            syncfs=self.syncfs,
        )

    async def open(self) -> FolderStorage:
        """Open the store, as after a kill when it was open."""
        if self._storage is not None:
            if self._storage._open is not None and not self.has_log:
                self.folders.volume.failure = self.folders.volume.failure or "killed"
            await self._storage.aclose()
        self._storage = self.another()
        await self._storage.open()
        return self._storage

    async def check_whole(self) -> None:
        """Look over the whole store as it is, and as it is after a restart. The medium is well again."""
        self.heal()
        if self._storage is None:
            return
        if not self.folders.volume.failure:
            await check_whole(self._storage)
        await check_whole(await self.open())
        await self.storage.aclose()

    def heal(self) -> None:
        """No call fails any more."""
        self.calls.faults.clear()
        self.calls.most_written = None

    # What is there

    def tree(self) -> dict[str, bytes | FileKind]:
        """Everything below the root: path -> the bytes of a file, or what else it is."""
        found: dict[str, bytes | FileKind] = {}
        waiting = [""]
        while waiting:
            folder = waiting.pop()
            for name, kind in self.inner.names(f"{self.root}/{folder}".rstrip("/")):
                path = f"{folder}/{name}".lstrip("/")
                found[path] = self.bytes_of(path) if kind is FileKind.FILE else kind
                if kind is FileKind.FOLDER:
                    waiting.append(path)
        return found

    def files(self, *folders: str) -> set[str]:
        """The files below these folders, or below the root; records, the format and the lock are left out."""
        return {
            path
            for path, what in self.tree().items()
            if isinstance(what, bytes)
            and path.startswith(folders or "")
            and not path.startswith(("state/rec", "state/l", "state/format"))
        }

    def bytes_of(self, path: str) -> bytes:
        """The content of a file."""
        fd = self.inner.open(f"{self.root}/{path}", OPEN_READ)
        try:
            return self.inner.read(fd, 1 << 24)
        finally:
            self.inner.close(fd)

    def put(self, path: str, content: bytes = b"", attributes: dict[str, bytes] | None = None) -> None:
        """Lay a file there."""
        fd = self.inner.open(f"{self.root}/{path}", OPEN_NEW)
        for name, value in (attributes or {}).items():
            self.inner.set_attribute(fd, name, value)
        self.inner.write(fd, content)
        self.inner.close(fd)

    def overwrite(self, path: str, content: bytes) -> None:
        """Change a file's bytes behind the store's back."""
        fd = self.inner.open(f"{self.root}/{path}", os.O_WRONLY | os.O_TRUNC)
        self.inner.write(fd, content)
        self.inner.close(fd)

    def note(self, path: str, attributes: dict[str, bytes]) -> None:
        """Change what is noted of a file behind the store's back."""
        fd = self.inner.open(f"{self.root}/{path}", OPEN_READ)
        for name, value in attributes.items():
            self.inner.set_attribute(fd, name, value)
        self.inner.close(fd)

    def path(self, entry: Entry) -> str:
        """The entry's file, below the root."""
        return self.folders.layout.path(entry).removeprefix(f"{self.root}/")

    # What is done

    async def make_queue(self, name: str = "q") -> str:
        """A queue of that name."""
        await put_record(self.storage, QUEUE, name, {"created": new_id().time})
        return name

    async def commit(self, *operations: Operation) -> list[Outcome]:
        """One batch."""
        return await self.storage.commit(operations)

    async def one(self, operation: Operation) -> Result:
        """How an operation in a batch of its own ends."""
        return (await self.commit(operation))[0].result

    async def done(self, operation: Write | Move) -> Entry:
        """Do it; where the message is now."""
        outcome = (await self.commit(operation))[0]
        assert outcome.result is Result.DONE, outcome
        assert outcome.entry is not None
        return outcome.entry

    async def bring(self, state: State, body: bytes = b"body", queue: str = "q", **attributes: Any) -> Entry:
        """A message of that queue in `state`."""
        entry = await self.done(Write(queue, new_id(), body, attributes))
        if state is State.NEW:
            return entry
        return await self.done(Move(entry, state, LEASE if state is State.DELAYED else Meta()))

    async def body(self, entry: Entry) -> bytes:
        """The bytes of a message that must be there."""
        found = (await self.storage.read([entry]))[0]
        assert found is not None, f"not there: {entry}"
        try:
            return await found.body.read()
        finally:
            await found.body.aclose()

    async def attributes(self, entry: Entry) -> dict[str, Any]:
        """The attributes of a message that must be there."""
        found = (await self.storage.read([entry]))[0]
        assert found is not None, f"not there: {entry}"
        await found.body.aclose()
        return dict(found.properties.attributes)

    async def everything(self, *queues: str) -> set[Entry]:
        """Every entry that a scan lists, of these queues, or of q."""
        found: set[Entry] = set()
        for state in (State.NEW, State.DELAYED, State.REMOVED):
            found.update(await self.storage.scan(state))
        for queue in queues or ("q",):
            found.update(await self.storage.scan(State.READY, queue))
        return found


@asynccontextmanager
async def open_disk(
    mount: Mount, inner: Calls | None = None, root: str = "/root", queues: Sequence[str] = ("q",), **options: Any
) -> AsyncIterator[Disk]:
    """A disk with an open store that holds empty queues; nothing is written down yet. Looked over at the end."""
    disk = Disk(mount, inner, root, **options)
    await disk.open()
    for queue in queues:
        await disk.make_queue(queue)
    disk.calls.log.clear()
    yield disk
    await disk.check_whole()
