"""Idempotency keys: :class:`Keys` knows which message a client's key stands for, within the queue's window; a
:class:`Ledger` keeps them, a durable map of many small values in few records.

The ledger has a key before its message is written, marked *unsure*. Once the message is durable the key is sure; the
ledger writes that with its next entries, at the latest before the message leaves its queue. So after a crash an unsure
key whose message is not in its queue stands for nothing. A sure one stands for a message that was published, and
perhaps consumed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import trio

from mq.broker.commit import Committer
from mq.broker.core import Core
from mq.broker.index import QueueIndex
from mq.errors import StorageFull, StorageUnsure
from mq.message import MessageId
from mq.storage.interface import Storage

LARGEST_SEGMENT = 512
"""Entries of a segment, which is one record. Not Final: the simulation makes it smaller."""
KIND: Final = "key"
"""The kind of the ledger's records."""
_FORGET_PER_PUT: Final = 16
"""Old keys that are looked at with each put, besides as many as it puts."""
_UNSURE, _SURE = 0, 1


class Keys:
    """The idempotency keys of all queues.

    Args:
        core: what every part has.
        ledger: keeps them.
    """

    def __init__(self, core: Core, ledger: Ledger) -> None:
        self._ledger = ledger
        self._catalog = core.catalog
        self._clock_ns = core.clock_ns
        self._noted: dict[MessageId, str] = {}
        self._unsettled: set[MessageId] = set()
        # When each key was noted (Trio's clock); those to look at next come first.
        self._since: OrderedDict[str, float] = OrderedDict()

    async def load(self) -> None:
        """Load the keys, and decide those that a crash left unsure. Call it once the catalog knows all messages."""
        await self._ledger.load()
        for name in list(self._ledger):
            self._complete(name)
            kept = self._kept(name)
            if kept is not None and not kept.is_sure:
                if self._is_there(name, kept.id):
                    self._mark_sure(name, kept)
                else:
                    self._ledger.forget(name)
        self._since.update((name, self._noted_at(name)) for name in self._ledger)
        self._forget_old(len(self._since))

    def find(self, index: QueueIndex, key: str) -> MessageId | None:
        """The message that `key` stands for; None without one."""
        name = _name(index, key)
        kept = self._kept(name)
        if kept is None:
            return None
        if self._is_over(name, kept):
            self._ledger.forget(name)
            return None
        return kept.id

    async def note(self, index: QueueIndex, ids: Mapping[str, MessageId]) -> None:
        """Let keys stand for messages that are about to be written. Durable on return.

        Raises:
            StorageError: nothing is noted.
        """
        self._noted.update({id: _name(index, key) for key, id in ids.items()})
        try:
            await self._put(index, ids, _UNSURE)
        except BaseException:
            self.drop(ids.values())
            raise

    async def note_known(self, index: QueueIndex, ids: Mapping[str, MessageId]) -> None:
        """Let keys stand for messages that are durable. Durable on return.

        Raises:
            StorageError: nothing is noted.
        """
        try:
            await self._put(index, ids, _SURE)
        except BaseException:
            for key in ids:
                self._ledger.forget(_name(index, key))
            raise

    def landed(self, id: MessageId) -> None:
        """Mark the key of a message sure: the message is durable."""
        name = self._noted.pop(id, "")
        kept = self._kept(name)
        if kept is not None:
            self._mark_sure(name, kept)

    def drop(self, ids: Iterable[MessageId]) -> None:
        """Forget the keys of messages that were not stored after all."""
        for id in ids:
            name = self._noted.pop(id, None)
            if name is not None:
                self._ledger.forget(name)

    async def settle(self, ids: Iterable[MessageId]) -> None:
        """Make durable that the keys of messages are sure, before the messages leave their queue.

        Raises:
            StorageError: that may not be durable; the messages must stay.
        """
        if not self._unsettled.isdisjoint(ids):
            await self._flush()

    async def _put(self, index: QueueIndex, ids: Mapping[str, MessageId], mark: int) -> None:
        now_ms = self._clock_ns() // 1_000_000
        entries = {_name(index, key): [id, now_ms, mark, index.incarnation] for key, id in ids.items()}
        self._forget_old(len(entries) + _FORGET_PER_PUT)
        self._since.update(dict.fromkeys(entries, trio.current_time()))
        self._ledger.put_later(entries)
        await self._flush()

    async def _flush(self) -> None:
        settled = set(self._unsettled)
        await self._ledger.flush()
        self._unsettled -= settled

    def _mark_sure(self, name: str, kept: _KeyRecord) -> None:
        self._ledger.put_later({name: [kept.id, kept.time_ns // 1_000_000, _SURE, kept.incarnation]})
        self._unsettled.add(kept.id)

    def _complete(self, name: str) -> None:
        """Give a key of an earlier release, which has no incarnation, that of the queue of its name."""
        value, index = self._ledger.get(name), self._catalog.queues.get(_queue(name))
        if len(value) == 3:
            self._ledger.put_later({name: [*value, 0 if index is None else index.incarnation]})

    def _kept(self, name: str) -> _KeyRecord | None:
        value = self._ledger.get(name)
        if value is None:
            return None
        id, time_ms, mark, incarnation = value
        return _KeyRecord(MessageId(id), time_ms * 1_000_000, mark == _SURE, incarnation)

    def _is_there(self, name: str, id: MessageId) -> bool:
        index = self._catalog.queues.get(_queue(name))
        return index is not None and (index.find(id) is not None or id in self._catalog.locks)

    def _is_over(self, name: str, kept: _KeyRecord) -> bool:
        """Whether a key is over: its window has ended, or its queue was deleted or made anew."""
        index = self._catalog.queues.get(_queue(name))
        if index is None or kept.incarnation != index.incarnation:
            return True
        return trio.current_time() - self._since[name] > index.settings.key_window

    def _noted_at(self, name: str) -> float:
        """When a key that was loaded had been noted (Trio's clock), by the wall clock and not later than now."""
        # So a wall clock that was ahead then keeps a key for no longer than one window from now.
        kept = self._kept(name)
        age_ns = 0 if kept is None else self._clock_ns() - kept.time_ns
        return trio.current_time() - max(0.0, age_ns / 1e9)

    def _forget_old(self, count: int) -> None:
        """Look at so many keys, in turn, and forget those that are over."""
        # Each put looks at more keys than it adds, so the old never outnumber the others.
        for _ in range(min(count, len(self._since))):
            name = next(iter(self._since))
            kept = self._kept(name)
            if kept is None or (kept.id not in self._noted and self._is_over(name, kept)):
                self._ledger.forget(name)
                del self._since[name]
            else:
                self._since.move_to_end(name)


class _KeyRecord(NamedTuple):
    id: MessageId
    time_ns: int
    is_sure: bool
    incarnation: int


class Ledger:
    """A durable map from text to JSON values, kept in segments of many entries.

    Args:
        storage: keeps the records.
        committer: notes a failure of the medium.
        kind: the kind of the records.
        writer: 12 hexadecimal digits, unique among the processes that write to the store now.
        is_shared: whether others write to the store; then the ledger changes its own segments only.
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
        """Load the entries of all writers, or load them again where others write.

        Raises:
            StorageError: they cannot be read.
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
                    if known is None or (_age(known) <= _age(name) and not self._is_own(known)):
                        self._set(key, value, name)  # but our entries stay in ours: a peer may drop its segment
        for name in [name for name in self._segments if name not in records and not self._is_own(name)]:
            for key in list(self._segments[name]):
                self.forget(key)
            del self._segments[name]

    async def put(self, entries: Mapping[str, Any]) -> None:
        """Put entries; durable on return.

        Raises:
            StorageError: they may not be durable.
        """
        self.put_later(entries)
        await self.flush()

    def put_later(self, entries: Mapping[str, Any]) -> None:
        """Put entries that the next :meth:`put` or :meth:`flush` makes durable."""
        for key, value in entries.items():
            self._set(key, value, self._room())
            self._dirty.add(self._filling)
        self._changes += 1

    def forget(self, key: str) -> None:
        """Remove an entry. It may be there again after a crash."""
        if key in self._values:
            del self._values[key]
            self._leave(key)

    async def flush(self) -> None:
        """Make durable what was put so far.

        Raises:
            StorageError: it may not be durable.
        """
        wanted = self._changes
        async with self._writing:
            if self._durable < wanted:
                with trio.CancelScope(shield=True):
                    await self._write()

    async def _write(self) -> None:
        """Write the changed segments as they are now, and drop empty ones."""
        # Entries may move to another segment meanwhile: these copies still have them, the new segment is written next.
        changes = self._changes
        dirty = {name: {key: self._values[key] for key in sorted(self._segments[name])} for name in self._dirty}
        empty = [name for name, keys in self._segments.items() if not keys and name != self._filling]
        self._dirty.clear()
        with self._committer.noting_failure():
            try:
                for name in sorted(dirty, key=_age, reverse=True):  # an entry that left a segment is in a later one
                    await self._storage.put_record(self._kind, name, {"entries": dirty[name]})
            except BaseException:
                self._dirty.update(dirty)
                raise
            self._durable = changes
            with suppress(StorageFull, StorageUnsure):  # empty segments can wait
                await self._drop(empty)

    async def _drop(self, empty: Iterable[str]) -> None:
        for name in empty:
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
        """The name of a segment of our own that has room, and that is the latest of all."""
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


def _name(index: QueueIndex, key: str) -> str:
    return f"{index.name}/{key}"


def _queue(name: str) -> str:
    return name.partition("/")[0]
