"""The verbs of a store, each with one hop to a thread. The promises are :mod:`mq_template.database`'s."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import trio

from mq.errors import StorageFull, StorageUnusable
from mq.lifecycle import State
from mq.message import MessageId, checksum
from mq.storage.interface import Description, Entry, Operation, Outcome, Sharing, Staged, Stored
from mq.storage.options import StorageOptions
from mq_template.database import Database

MAX_BODY: Final = 64 * 1024 * 1024
"""Bytes. Bodies pass through memory here."""

_T = TypeVar("_T")


def make_template(rest: str, options: StorageOptions) -> TemplateStorage:
    """The factory that the entry point names: a store that is not open yet. No I/O here.

    Raises:
        StorageUnusable: the address or the options ask for what this store cannot do.
    """
    if not rest:
        raise StorageUnusable(
            'the storage backend "template" requires a file path, such as template:/var/lib/mq/queue.db'
        )
    if options.sharing is not Sharing.ALONE:
        raise StorageUnusable(
            'the storage backend "template" can be used by only one process. Omit --peers, --no-mover and --no-reaper'
        )
    return TemplateStorage(rest)


@dataclass(frozen=True)
class StagedBytes:
    """A large body on its way. In memory here; discarding it is forgetting it.

    Author: a medium that takes bodies in parts puts them there as they come, under a name that means nothing, and
    clears such names away when the store is opened.
    """

    data: bytes

    @property
    def size(self) -> int:
        """Length in bytes."""
        return len(self.data)

    @property
    def unwritten(self) -> int:
        """All of its bytes: they are in memory until the Write."""
        return len(self.data)

    @property
    def checksum(self) -> int:
        """CRC-32 of the bytes."""
        return checksum(self.data)

    async def discard(self) -> None:
        """Nothing to take away."""


class TemplateStorage:
    """A :class:`~mq.storage.interface.Storage` in one SQLite file. It need not inherit from anything."""

    def __init__(self, path: str) -> None:
        self._name = f"template:{path}"
        self._path = os.path.abspath(path)
        self._database = Database(self._path)
        self._one_at_a_time = trio.CapacityLimiter(1)

    @property
    def description(self) -> Description:
        """What it is. Author: say durable only if you saw each sync end before its answer is told."""
        # Author: places=True where your Write can make a message in READY or DELAYED: a publish is one step then.
        return Description(
            self._name,
            durable=True,
            shared=False,
            max_body=MAX_BODY,
            journaled=True,
            places=True,
            removes=True,
        )

    async def open(self) -> None:
        """Make the file, or take it up where it was left. SQLite repairs what a crash left.

        Raises:
            StorageUnusable: it cannot be served; in one line, why.
        """
        try:
            await self._hop(self._database.open)
        except sqlite3.Error as error:
            raise StorageUnusable(
                f"cannot serve {self._path}: {error}. The file may be in use, or it may not be an mq database"
            ) from error

    async def aclose(self) -> None:
        """Let go of the file.

        Author: this is called while the caller is being cancelled, too. Whatever takes a checkpoint is shielded,
        and must end by itself.
        """
        with trio.CancelScope(shield=True):
            await self._hop(self._database.close)

    async def records(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        """All records of a kind."""
        return await self._hop(self._database.records, kind)

    async def stage(self, chunks: AsyncIterable[bytes]) -> Staged:
        """Collect a large body. What `chunks` raises passes through by itself.

        Raises:
            StorageFull: it is longer than `max_body`.
        """
        data = bytearray()
        async for chunk in chunks:
            data += chunk
            if len(data) > MAX_BODY:
                raise StorageFull(
                    f"the message body is too large: {self._name} supports bodies of up to {MAX_BODY} bytes"
                )
        return StagedBytes(bytes(data))

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        """Do a batch: one hop, one transaction, one sync.

        Author: a cancelled commit may be done or not done, but never half an operation, and it leaves no lock
        behind. A thread that has begun is waited for here, so its outcomes are always told.
        """
        return await self._hop(self._database.commit, operations)

    async def read(self, entries: Sequence[Entry]) -> list[Stored | None]:
        """The messages at these places."""
        return await self._hop(self._database.read, entries)

    async def find(self, queue: str, id: MessageId) -> Entry | None:
        """Where that message is."""
        return await self._hop(self._database.find, queue, id)

    async def scan(self, state: State, queue: str | None = None, limit: int | None = None) -> list[Entry]:
        """Entries in a state."""
        return await self._hop(self._database.scan, state, queue, limit)

    def changes(self) -> None:
        """None: no other process can change the file while it is open."""

    async def _hop(self, verb: Callable[..., _T], *arguments: object) -> _T:
        return await trio.to_thread.run_sync(verb, *arguments, limiter=self._one_at_a_time)
