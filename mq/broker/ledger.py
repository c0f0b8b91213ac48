"""A ledger: a durable map of many small values in few records, of which as little as may be is in memory.

A record is a *segment*: up to some hundred entries in JSON. The segment that is being filled is written anew with each
put, so its entries are there as they came. A full segment is never written again, so it is packed: names stand beside
each other, and so do values, each in as many bytes as its :class:`Codec` makes of it. The map from entries to segments
is bytes, too: as Python objects, for a million entries, it would take twice what all else takes. An entry that is put
again goes to the segment in use. Its old segment keeps it on the disk until all entries have left there.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from json.encoder import encode_basestring_ascii
from operator import itemgetter
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import trio

from mq import turns
from mq.broker.commit import Committer
from mq.errors import StorageFull, StorageUnsure
from mq.message import SharedAttributes
from mq.storage.interface import Put, Storage
from mq.storage.records import drop_record, put_record

LARGEST_SEGMENT = 512
"""Entries of a segment, which is one record. Not Final: the simulation makes it smaller."""
LARGEST_KEYS: Final = 16 << 10
"""Bytes of a segment's keys: so the record of one takes at most half of a group."""
_STALE_ENTRIES: Final = 16
"""Entries that have left may stay in a packed segment up to this number, and more in one of many."""
_BUCKETS: Final = 1 << 14
"""For the names of all entries."""
_PLACE_BYTES: Final = 5
"""Of the number of a segment: a ledger never makes more."""

_KEY: Final = itemgetter(0)

V = TypeVar("V")


def segments_changed(entries: int, key_bytes: int) -> int:
    """How many segments a ledger changes at the most when so many entries are put, with keys of so many bytes."""
    return 2 + entries // LARGEST_SEGMENT + key_bytes // LARGEST_KEYS  # the one that is being filled, and the last


class Codec(Protocol[V]):
    """What a ledger's entries are, in the store and in memory."""

    width: int

    def name(self, key: str) -> bytes:
        """The name of the entry of `key` in memory; no other key has it."""

    def pack(self, value: V) -> bytes:
        """A value in few bytes."""

    def unpack(self, packed: bytes) -> V:
        """What :meth:`pack` was given."""

    def to_json(self, value: V) -> Any:
        """A value as the store keeps it."""

    def from_json(self, key: str, kept: Any) -> V | None:
        """A value that the store has kept; None for one that is of no use any more."""


class Ledger(Generic[V]):
    """A durable map from text to values, kept in segments of many entries.

    Args:
        writer: 12 hexadecimal digits, unique among the processes that write to the store now.
        is_shared: whether others write to the store; then the ledger changes its own segments only.
    """

    def __init__(
        self,
        storage: Storage,
        committer: Committer,
        kind: str,
        writer: str,
        codec: Codec[V],
        *,
        is_shared: bool,
    ) -> None:
        self._storage = storage
        self._committer = committer
        self._kind = kind
        self._writer = writer
        self._codec = codec
        self._is_shared = is_shared
        self._where: _Places[V] = _Places(codec.width)
        self._segments: dict[str, _Segment[V]] = {}
        self._numbers = itertools.count()
        self._filling: _Segment[V] | None = None
        self._number = 0
        self._dirty: set[_Segment[V]] = set()
        self._full: set[_Segment[V]] = set()
        self._empty: set[_Segment[V]] = set()
        self._turn = self._in_turn()
        self._changes = 0
        self._durable = 0
        self.writing = trio.Lock()

    def __iter__(self) -> Iterator[bytes]:
        """The names of all entries."""
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)

    def get(self, key: str) -> V | None:
        """The value of `key`, or None."""
        name = self._codec.name(key)
        segment = self._where.get(name)
        return None if segment is None else segment.get(name)

    async def load(self) -> None:
        """Load the entries of all writers, or load them again where others write."""
        records = await self._storage.records(self._kind)
        for name in sorted(records, key=_age):
            self._number = max(self._number, _age(name)[0])
            if not self._is_own(name):
                await turns.spend(frames=len(records[name].get("entries", ())))
                self._take_up(self._segments.get(name) or self._new(name), records[name])
        for name in [name for name in self._segments if name not in records and not self._is_own(name)]:
            segment = self._segments[name]
            for entry in list(self._of(segment)):
                self._leave(entry)
            self._let_go(segment)

    async def put(self, entries: Mapping[str, V]) -> None:
        """Put entries; durable on return."""
        self.put_later(entries)
        await self.flush()

    def put_later(self, entries: Mapping[str, V]) -> None:
        """Put entries that the next :meth:`put` or :meth:`flush` makes durable."""
        for key, value in entries.items():
            name, segment = self._codec.name(key), self._room()
            before = self._where.put(name, segment)
            if before is not None and before is not segment:
                self._has_left(name, before)
            segment.put(name, key, value)
            self._dirty.add(segment)
        self._changes += 1

    def forget(self, key: str) -> None:
        """Remove an entry. It may be there again after a crash."""
        self._leave(self._codec.name(key))

    def sweep(self, count: int, is_over: Callable[[V], bool]) -> bool:
        """Look at `count` entries, in turn, and forget those that are over. True once all had their turn; the next call
        begins with the first."""
        for _ in range(count):
            seen = next(self._turn, None)
            if seen is None:
                self._turn = self._in_turn()
                return True
            name, value, segment = seen
            if is_over(value) and self._where.get(name) is segment:  # else it has left, and what it is now is there
                self._leave(name)
        return False

    async def flush(self) -> None:
        """Make durable what was put so far."""
        wanted = self._changes
        async with self.writing:
            if self._durable < wanted:
                with trio.CancelScope(shield=True):
                    await self._write()

    def begin(self) -> LedgerWrite[V]:
        """Begin to write the changed segments as they are now: :meth:`end` it. Only with :attr:`writing`."""
        # Entries may move to another segment meanwhile: these copies still have them, the new segment is written next.
        dirty = sorted(self._dirty, key=_by_age, reverse=True)  # what left a segment is in a later one
        self._dirty.clear()
        puts = [Put(self._kind, segment.name, SharedAttributes(segment.record())) for segment in dirty]
        return LedgerWrite(puts, dirty, sorted(self._empty, key=_by_age), self._changes)

    def end(self, write: LedgerWrite[V], *, is_done: bool) -> None:
        """Note that all of it is durable, or that it is to be written again."""
        if is_done:
            self._durable = write.changes
            self._pack()
        else:
            self._dirty.update(write.segments)

    async def drop_empty(self, write: LedgerWrite[V]) -> None:
        """Drop the segments that were empty when a finished write began, if that is possible now."""
        with self._committer.noting_failure(), suppress(StorageFull, StorageUnsure):
            await self._drop(write.empty)

    async def _write(self) -> None:
        """Write the changed segments as they are now, and drop empty ones."""
        write = self.begin()
        with self._committer.noting_failure():
            try:
                for put in write.puts:
                    await put_record(self._storage, *put)
            except BaseException:
                self.end(write, is_done=False)
                raise
        self.end(write, is_done=True)
        await self.drop_empty(write)

    def _pack(self) -> None:
        """Pack the full segments that are written as they are."""
        for segment in self._full - self._dirty:
            segment.pack([(name, value) for name, (_, value) in segment.open.items()])
            self._full.discard(segment)

    async def _drop(self, empty: Iterable[_Segment[V]]) -> None:
        for segment in empty:
            if self._is_own(segment.name) or not self._is_shared:
                await drop_record(self._storage, self._kind, segment.name)
                self._let_go(segment)

    def _let_go(self, segment: _Segment[V]) -> None:
        del self._segments[segment.name]
        self._where.end(segment)
        for among in (self._dirty, self._full, self._empty):
            among.discard(segment)

    def _take_up(self, segment: _Segment[V], record: Mapping[str, Any]) -> None:
        """Take up another writer's segment as its record says: those of its entries that no later segment has."""
        found: dict[bytes, V | None] = {}
        for key, kept in record.get("entries", {}).items():
            name = self._codec.name(key)
            known = self._where.get(name)
            # But our entries stay in ours: a peer may drop its segment.
            if known is None or (known.age <= segment.age and not self._is_own(known.name)):
                found[name] = self._codec.from_json(key, kept)
        counting = {name: value for name, value in found.items() if value is not None}
        for name in [*self._of(segment), *found]:
            self._leave(name)
        segment.pack(list(counting.items()))
        for name in counting:
            self._where.put(name, segment)
        (self._empty.discard if counting else self._empty.add)(segment)

    def _of(self, segment: _Segment[V]) -> Iterator[bytes]:
        """The names of the entries that are still in a segment."""
        return (name for name in segment.names() if self._where.get(name) is segment)

    def _in_turn(self) -> Iterator[tuple[bytes, V, _Segment[V]]]:
        """All entries with their segments, whatever is put and forgotten on the way; some have left their segments."""
        for segment in list(self._segments.values()):
            for name, value in segment.items():
                yield name, value, segment

    def _leave(self, name: bytes) -> None:
        """Take an entry out of the segment that it is in."""
        segment = self._where.pop(name)
        if segment is not None:
            self._has_left(name, segment)

    def _has_left(self, name: bytes, segment: _Segment[V]) -> None:
        segment.leave(name)
        if not segment.live:
            if segment is not self._filling:
                self._empty.add(segment)
        elif segment.is_worth_packing_again:
            segment.keep(set(self._of(segment)))

    def _room(self) -> _Segment[V]:
        """The latest segment of all, if it is our own and has room."""
        filling = self._filling
        if filling is None or filling.is_full or filling.age[0] < self._number:
            if filling is not None:
                (self._full if filling.live else self._empty).add(filling)
            self._number += 1
            filling = self._filling = self._new(f"{self._number:012d}-{self._writer}")
        return filling

    def _new(self, name: str) -> _Segment[V]:
        segment = self._segments[name] = _Segment(name, next(self._numbers), self._codec)
        self._where.begin(segment)
        return segment

    def _is_own(self, name: str) -> bool:
        return _age(name)[1] == self._writer


class LedgerWrite(NamedTuple, Generic[V]):
    """Segments that are being written.

    Attributes:
        empty: the segments that had no entries any more when it began.
        changes: how often the ledger was changed before.
    """

    puts: list[Put]
    segments: list[_Segment[V]]
    empty: list[_Segment[V]]
    changes: int


class _Places(Generic[V]):
    """Which segment each entry is in: a map from names of one width, in some bytes more than these.

    Names stand beside each other in buckets, each with the number of its segment. A bucket of a ledger of a million
    has some sixty names, which are searched in less than a microsecond.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._step = width + _PLACE_BYTES
        self._buckets: dict[int, bytearray] = {}
        self._segments: dict[bytes, _Segment[V]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[bytes]:
        """All names, as they are now."""
        for bucket in list(self._buckets.values()):
            names = bytes(bucket)
            for start in range(0, len(names), self._step):
                yield names[start : start + self._width]

    def get(self, name: bytes) -> _Segment[V] | None:
        """The segment that a name is in; None without it."""
        bucket = self._buckets.get(hash(name) % _BUCKETS)
        place = -1 if bucket is None else _find(bucket, name, self._step)
        if bucket is None or place < 0:
            return None
        return self._segments[bytes(bucket[place + self._width : place + self._step])]

    def put(self, name: bytes, segment: _Segment[V]) -> _Segment[V] | None:
        """Note that a name is in that segment; the one that it was in before."""
        number = hash(name) % _BUCKETS
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = bytearray()
        place = _find(bucket, name, self._step)
        if place < 0:
            bucket += name + segment.number
            self._count += 1
            return None
        told = slice(place + self._width, place + self._step)
        before = self._segments[bytes(bucket[told])]
        bucket[told] = segment.number
        return before

    def pop(self, name: bytes) -> _Segment[V] | None:
        """Take a name out; the segment that it was in, None without it."""
        number, step = hash(name) % _BUCKETS, self._step
        bucket = self._buckets.get(number)
        place = -1 if bucket is None else _find(bucket, name, step)
        if bucket is None or place < 0:
            return None
        before = self._segments[bytes(bucket[place + self._width : place + step])]
        bucket[place : place + step] = bucket[-step:]
        del bucket[-step:]
        if not bucket:
            del self._buckets[number]
        self._count -= 1
        return before

    def begin(self, segment: _Segment[V]) -> None:
        """Note a segment that will have names."""
        self._segments[segment.number] = segment

    def end(self, segment: _Segment[V]) -> None:
        """Note that it has none, and gets no more."""
        self._segments.pop(segment.number, None)


class _Packed(NamedTuple):
    """Entries that do not change: their names beside each other, and where their values end in the data."""

    names: bytes
    ends: array[int]
    data: bytes


_NOTHING: Final = _Packed(b"", array("I"), b"")


class _Segment(Generic[V]):
    """One segment: open as long as it may be written again, packed from then on.

    Attributes:
        age: later segments have greater ones.
        open: its entries with their keys, by their names; empty once it is packed.
    """

    __slots__ = ("_codec", "_key_bytes", "_live", "_packed", "age", "name", "number", "open")

    def __init__(self, name: str, number: int, codec: Codec[V]) -> None:
        self.name = name
        self.number = number.to_bytes(_PLACE_BYTES)
        self.age = _age(name)
        self.open: dict[bytes, tuple[str, V]] = {}
        self._codec = codec
        self._packed = _NOTHING
        self._live = 0
        self._key_bytes = 0

    @property
    def live(self) -> int:
        """How many entries have not left it."""
        return self._live + len(self.open)

    @property
    def is_full(self) -> bool:
        """Whether an open segment takes no more entries."""
        return self.live >= LARGEST_SEGMENT or self._key_bytes > LARGEST_KEYS

    def put(self, name: bytes, key: str, value: V) -> None:
        """Put an entry into an open segment."""
        if name not in self.open:
            self._key_bytes += len(encode_basestring_ascii(key))
        self.open[name] = (key, value)

    @property
    def is_worth_packing_again(self) -> bool:
        """Whether most of what is packed has left."""
        return len(self._packed.ends) > 2 * self._live + _STALE_ENTRIES

    def get(self, name: bytes) -> V | None:
        """The value of that name; None without it."""
        if self.open:
            return self.open[name][1]
        packed, width = self._packed, self._codec.width
        place = _find(packed.names, name, width)
        return None if place < 0 else self._value(packed, place // width)

    def names(self) -> Iterator[bytes]:
        """The names of its entries, also of those that have left it since it was packed."""
        return iter(list(self.open)) if self.open else self._packed_names(self._packed)

    def items(self) -> Iterator[tuple[bytes, V]]:
        """The same with their values, each as it is when it is asked for."""
        packed = self._packed
        for name in list(self.open):
            if name in self.open:
                yield name, self.open[name][1]
        for place, name in enumerate(self._packed_names(packed)):
            yield name, self._value(packed, place)

    def record(self) -> dict[str, Any]:
        """What the store keeps of an open segment."""
        to_json = self._codec.to_json
        return {"entries": {key: to_json(value) for key, value in sorted(self.open.values(), key=_KEY)}}

    def pack(self, entries: list[tuple[bytes, V]]) -> None:
        """Pack these entries, in the place of all that it had."""
        values = [self._codec.pack(value) for _, value in entries]
        ends, end = array("I"), 0
        for value in values:
            end += len(value)
            ends.append(end)
        self._packed = _Packed(b"".join(name for name, _ in entries), ends, b"".join(values))
        self.open, self._live = {}, len(entries)

    def keep(self, names: set[bytes]) -> None:
        """Pack those entries again that have not left."""
        self.pack([(name, value) for name, value in self.items() if name in names])

    def leave(self, name: bytes) -> None:
        """Note that an entry has left."""
        if self.open.pop(name, None) is None:
            self._live -= 1

    def _packed_names(self, packed: _Packed) -> Iterator[bytes]:
        width = self._codec.width
        return (packed.names[start : start + width] for start in range(0, len(packed.names), width))

    def _value(self, packed: _Packed, place: int) -> V:
        start = packed.ends[place - 1] if place else 0
        return self._codec.unpack(packed.data[start : packed.ends[place]])


def _find(among: bytes | bytearray, name: bytes, step: int) -> int:
    """Where a name is among others that stand `step` bytes apart; -1 without it."""
    place = among.find(name)
    while place >= 0 and place % step:  # the end of one and the beginning of the next
        place = among.find(name, place + 1)
    return place


def _age(name: str) -> tuple[int, str]:
    number, _, writer = name.partition("-")
    return (int(number) if number.isdecimal() else 0, writer)


def _by_age(segment: _Segment[Any]) -> tuple[int, str]:
    return segment.age
