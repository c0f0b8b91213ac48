"""A durable map of many small values in few records.

Entries share a record, its *segment*, and those that are put at the same time share a barrier. A segment that is full
is not written again until it is of no use any more; a value that is put again goes to the segment that is being
filled, and of two segments the later one counts. Only its writer writes a segment, so that processes which share a
store never undo each other's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import trio

from mq.broker.commit import Committer
from mq.errors import StorageFull
from mq.storage.interface import Storage

LARGEST_SEGMENT: Final = 512


class Ledger:
    """A map from text to JSON values.

    Args:
        storage: keeps it.
        committer: is told when the medium fails.
        kind: the kind of its records.
        writer: 12 hexadecimal digits that no other process has which writes to the same store now.
        is_shared: whether others write to the store: then their segments are left to them.
    """

    def __init__(self, storage: Storage, committer: Committer, kind: str, writer: str, *, is_shared: bool) -> None:
        self._storage = storage
        self._committer = committer
        self._kind = kind
        self._writer = writer
        self._is_shared = is_shared
        self._values: dict[str, Any] = {}
        self._segments: dict[str, set[str]] = {}
        self._segment_of: dict[str, str] = {}
        self._filling = ""
        self._number = 0
        self._dirty: set[str] = set()
        self._changes = 0
        self._durable = 0
        self._writing = trio.Lock()

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def get(self, key: str) -> Any:
        """The value of `key`, or None."""
        return self._values.get(key)

    async def load(self) -> None:
        """Learn what is in the store, whoever wrote it; again, when others write to it.

        Raises:
            StorageError: it cannot be looked at.
        """
        records = await self._storage.records(self._kind)
        for name in sorted(records, key=_age):
            self._number = max(self._number, _age(name)[0])
            if not self._is_own(name):
                entries = records[name].get("entries", {})
                for key in self._segments.setdefault(name, set()) - entries.keys():
                    self.forget(key)
                for key, value in entries.items():
                    known = self._segment_of.get(key)
                    if known is None or _age(known) <= _age(name):
                        self._set(key, value, name)
        for name in [name for name in self._segments if name not in records and not self._is_own(name)]:
            for key in list(self._segments[name]):
                self.forget(key)
            del self._segments[name]

    async def put(self, entries: Mapping[str, Any]) -> None:
        """Keep these; durable on return.

        Raises:
            StorageError: they are not known to be kept.
        """
        self.put_later(entries)
        await self.flush()

    def put_later(self, entries: Mapping[str, Any]) -> None:
        """Keep these; durable with the next :meth:`put`."""
        for key, value in entries.items():
            self._set(key, value, self._room())
            self._dirty.add(self._filling)
        self._changes += 1

    def forget(self, key: str) -> None:
        """`key` is of no use any more. It may be there again after a crash."""
        if key in self._values:
            del self._values[key]
            self._leave(key)

    async def flush(self) -> None:
        """Make durable what was put so far.

        Raises:
            StorageError: it is not known to be.
        """
        wanted = self._changes
        async with self._writing:
            if self._durable < wanted:
                with trio.CancelScope(shield=True):
                    await self._write()

    async def _write(self) -> None:
        changes, dirty = self._changes, sorted(self._dirty, key=_age)
        with self._committer.noting_failure():
            for name in dirty:
                entries = {key: self._values[key] for key in sorted(self._segments[name])}
                self._dirty.discard(name)
                try:
                    await self._storage.put_record(self._kind, name, {"entries": entries})
                except BaseException:
                    self._dirty.add(name)
                    raise
            self._durable = changes
            with suppress(StorageFull):  # what is of no use any more can wait
                await self._drop_empty()

    async def _drop_empty(self) -> None:
        for name in [name for name, keys in self._segments.items() if not keys and name != self._filling]:
            if self._is_own(name) or not self._is_shared:
                await self._storage.drop_record(self._kind, name)
                del self._segments[name]
                self._dirty.discard(name)

    def _set(self, key: str, value: Any, segment: str) -> None:
        self._leave(key)
        self._values[key] = value
        self._segment_of[key] = segment
        self._segments[segment].add(key)

    def _leave(self, key: str) -> None:
        segment = self._segment_of.pop(key, None)
        if segment is not None:
            self._segments[segment].discard(key)

    def _room(self) -> str:
        """The segment that is being filled: the latest of all that are known, and ours."""
        full = not self._filling or len(self._segments[self._filling]) >= LARGEST_SEGMENT
        if full or _age(self._filling)[0] < self._number:
            self._number += 1
            self._filling = f"{self._number:012d}-{self._writer}"
            self._segments[self._filling] = set()
        return self._filling

    def _is_own(self, name: str) -> bool:
        return _age(name)[1] == self._writer


def _age(name: str) -> tuple[int, str]:
    number, _, writer = name.partition("-")
    return (int(number) if number.isdecimal() else 0, writer)
