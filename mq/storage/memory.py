"""``memory:`` keeps everything in this process: the store of transient queues and messages.

Not durable, not shared. Dropping a queue forgets its READY messages on the spot, so nothing of it appears in REMOVED.
Attributes and records are kept as JSON text: callers cannot change them, and get the same values as from any other
store.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import AsyncIterable, Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import trio

from mq import turns
from mq.errors import StorageUnusable
from mq.lifecycle import State
from mq.message import BytesBody, MessageId, Properties, checksum, encode_attributes
from mq.storage.groups import undoing
from mq.storage.interface import (
    MESSAGE_BYTES,
    QUEUE,
    AnyOperation,
    Description,
    Drop,
    Entry,
    Group,
    MessageOperation,
    Meta,
    Move,
    Outcome,
    Put,
    Result,
    Sharing,
    Staged,
    Stored,
    Unlink,
    Write,
)
from mq.storage.options import StorageOptions

_FEW: Final = 16
"""Operations of a batch that are done in one step of the event loop."""
_FREED_TOGETHER: Final = 1024
"""Messages of a dropped queue that are freed in one step."""
_OF_A_PIECE: Final = 256
"""Items of a long list that are written as JSON at a time."""
MOST_TOGETHER: Final = 10_000
"""Operations of a group at the most."""


def make_memory(rest: str, options: StorageOptions) -> MemoryStorage:
    """The factory of ``memory:``.

    Raises:
        StorageUnusable: something follows the colon, or another process is to take part.
    """
    if rest:
        raise StorageUnusable(
            'the storage backend "memory" does not take an address. Use "memory:" with nothing after the colon'
        )
    if options.sharing is not Sharing.ALONE:
        raise StorageUnusable(
            'the storage backend "memory" can be used by only one process. Omit --peers, --no-mover and --no-reaper'
        )
    return MemoryStorage()


MOST_BESIDE: Final = 16 << 20
"""Bytes that messages may take besides what bodies may have: a limit of bodies alone is none of messages of a byte."""
_DONE: Final = Outcome(Result.DONE)
_IS_DONE: Final = Result.DONE  # quicker than an attribute of the enumeration
_READY: Final = State.READY
_GONE: Final = Outcome(Result.GONE)


class _KeptMessage(NamedTuple):
    meta: Meta
    data: bytes
    attributes: bytes


class _StagedBytes:
    def __init__(self, data: bytes) -> None:
        self.data: bytes | None = data
        self.size = self.unwritten = len(data)
        self.checksum = checksum(data)

    async def discard(self) -> None:
        self.data = None


class MemoryStorage:
    """A :class:`~mq.storage.interface.Storage` of dictionaries. Its life is that of the object, from open to close.

    Args:
        max_bytes: of bodies; a write that would be more is FULL, as is one with which messages take
            :data:`MOST_BESIDE` more than these in all, or those of its queue more than is left for all others: one
            queue has at most half of it, and however many queues are long, a short one still has room. None for no
            limit.
    """

    def __init__(self, max_bytes: int | None = None) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._beside = 0
        self._of_queue: Counter[str] = Counter()  # bytes of each queue's messages, in all states, if there is a limit
        self._places: dict[tuple[State, str], dict[MessageId, _KeptMessage]] = {}
        self._records: dict[str, dict[str, str]] = {}
        self._does: dict[type, Callable[[Any], Outcome]] = {Write: self._write, Move: self._move, Unlink: self._unlink}

    @property
    def description(self) -> Description:
        return Description(
            "memory:",
            durable=False,
            shared=False,
            max_body=None,
            journaled=True,
            places=True,
            removes=True,
            groups=MOST_TOGETHER,
        )

    async def open(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self._places.clear()
        self._bytes = self._beside = 0
        self._of_queue.clear()
        self._records.clear()
        await trio.lowlevel.checkpoint()

    async def records(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        await trio.lowlevel.checkpoint()
        now = list(self._records.get(kind, {}).items())
        return {key: json.loads(value) async for key, value in turns.in_turns(now, turns.LIGHT)}

    async def stage(self, chunks: AsyncIterable[bytes]) -> Staged:
        return _StagedBytes(b"".join([chunk async for chunk in chunks]))

    async def commit(self, operations: Sequence[AnyOperation]) -> list[Outcome]:
        """Do all of them, in order. A checkpoint only for many, and for records: a few have nothing to wait for."""
        if operations and isinstance(operations[0], Put | Drop):  # callers change one record after the other
            await trio.lowlevel.checkpoint()
        if len(operations) <= _FEW:  # which their caller has counted
            return [
                await self._do_long(each) if isinstance(each, Group | Put | Drop) else self._do(each)
                for each in operations
            ]
        outcomes: list[Outcome] = []
        async for some in turns.slices(operations, turns.LIGHT // 2):
            outcomes += [
                await self._do_long(each) if isinstance(each, Group | Put | Drop) else self._do(each) for each in some
            ]
        return outcomes

    @property
    def is_instant(self) -> bool:
        """Whether a batch waits for nothing: not where :meth:`commit` is another one, which is asked then."""
        return getattr(self.commit, "__func__", None) is MemoryStorage.commit

    def commit_now(self, operations: Sequence[MessageOperation]) -> list[Outcome] | None:
        does = self._does
        return [does[type(each)](each) for each in operations] if self.is_instant else None

    async def read(self, entries: Sequence[Entry]) -> list[Stored | None]:
        await trio.lowlevel.checkpoint()
        found: list[Stored | None] = []
        async for some in turns.slices(entries, turns.LIGHT // 4):
            found += [_stored(self._at(entry)) for entry in some]
            # Their checksums are computed here, in a thirtieth of the time that Python takes to parse so many bytes.
            await turns.spend(size=sum(each.properties.size for each in found[-len(some) :] if each is not None) // 32)
        return found

    async def find(self, queue: str, id: MessageId) -> Entry | None:
        await trio.lowlevel.checkpoint()
        for state in (State.NEW, State.READY, State.DELAYED):
            kept = self._places.get((state, queue), {}).get(id)
            if kept is not None:
                return Entry(queue, id, state, kept.meta)
        return None

    async def contains(self, queues: Collection[str], id: MessageId) -> bool:
        await trio.lowlevel.checkpoint()
        return any(id in self._places.get((state, queue), {}) for queue in queues for state in State)

    async def check_reachable(self) -> None:
        await trio.lowlevel.checkpoint()

    async def scan(self, state: State, queue: str | None = None, limit: int | None = None) -> list[Entry]:
        await trio.lowlevel.checkpoint()
        there = list(itertools.islice(self._there(state, queue), limit))
        entries: list[Entry] = []
        async for some in turns.slices(there, turns.LIGHT // 16):
            entries += [Entry(name, id, state, kept.meta) for name, id, kept in some]
        return entries

    def changes(self) -> None:
        """No other process can reach it."""

    @property
    def is_empty(self) -> bool:
        """Whether there is no message."""
        return not any(self._places.values())

    def holds(self, entry: Entry) -> bool:
        """Whether that message is at this place now."""
        return self._at(entry) is not None

    def _there(self, state: State, queue: str | None) -> Iterator[tuple[str, MessageId, _KeptMessage]]:
        for (place, name), messages in self._places.items():
            if place is state and queue in (None, name):
                yield from zip(itertools.repeat(name), messages, messages.values())

    def _set_record(self, kind: str, key: str, text: str | None) -> str | None:
        """Keep or forget a record; what it was before."""
        records = self._records.setdefault(kind, {})
        before = records.pop(key, None)
        if text is not None:
            records[key] = text
        return before

    async def _do_long(self, operation: Group | Put | Drop) -> Outcome:
        if isinstance(operation, Group):
            return await self._do_group(operation)
        if isinstance(operation, Put):
            before = self._set_record(operation.kind, operation.key, await _text(operation.value))
            return Outcome(Result.DONE, existed=before is not None)
        if self._set_record(operation.kind, operation.key, None) is None:
            return Outcome(Result.GONE)
        if operation.kind == QUEUE:
            await self._free(operation.key, list(self._places.pop((State.READY, operation.key), {}).values()))
        return Outcome(Result.DONE)

    async def _free(self, queue: str, left: list[_KeptMessage]) -> None:
        """Free the messages of a dropped queue, some in each turn."""
        while left:
            for kept in left[-_FREED_TOGETHER:]:
                self._count(queue, kept, -1)
            del left[-_FREED_TOGETHER:]
            await turns.spend(frames=_FREED_TOGETHER // 16)

    async def _do_group(self, group: Group) -> Outcome:
        """Do all of it, or take back what was done."""
        undo: list[Callable[[], object]] = []
        async for operation in turns.in_turns(group.operations, turns.LIGHT // 4):
            if isinstance(operation, Put | Drop):
                text = await _text(operation.value) if isinstance(operation, Put) else None
                before = self._set_record(operation.kind, operation.key, text)
                undo.append(partial(self._set_record, operation.kind, operation.key, before))
                continue
            outcome = self._do(operation)
            if outcome.result is not Result.DONE:
                for take_back in reversed(undo):
                    take_back()
                return outcome
            undo += [partial(self._do, step) for step in reversed(list(undoing([operation])))]
        return Outcome(Result.DONE)

    def _do(self, operation: MessageOperation) -> Outcome:
        return self._does[type(operation)](operation)

    def _unlink(self, unlink: Unlink) -> Outcome:
        kept = self._take(unlink.entry)
        if kept is None:
            return _GONE
        self._count(unlink.entry.queue, kept, -1)
        return _DONE

    def _write(self, write: Write) -> Outcome:
        body = write.body
        if not isinstance(body, bytes):
            assert isinstance(body, _StagedBytes), "a body that another store staged"
            if body.data is None:
                return Outcome(Result.GONE)
            body = body.data
        entry = write.entry
        kept = _KeptMessage(entry.meta, body, encode_attributes(write.attributes))
        if self._max_bytes is not None:
            size, beside = len(body), len(kept.attributes) + MESSAGE_BYTES
            full = (
                self._no_room_at_all(size + beside) if write.has_room else self.no_room_for(entry.queue, size, beside)
            )
            if full is not None:
                return full
        if entry.state is _READY and self._is_queue_missing(entry.queue):
            return Outcome(Result.NO_QUEUE)
        if not self._put(entry, kept):
            return Outcome(Result.EXISTS)
        self._count(entry.queue, kept, 1)
        return Outcome(_IS_DONE, entry)

    @property
    def limits_memory(self) -> bool:
        """Whether there is a limit."""
        return self._max_bytes is not None

    def no_room_for(
        self, queue: str, size: int, beside: int = MESSAGE_BYTES, *, reserved: int = 0, reserved_in_queue: int = 0
    ) -> Outcome | None:
        """Return why a message with a body of so many bytes has no room in a queue now; None if it has."""
        if self._max_bytes is None:
            return None
        used, own = self._bytes + self._beside, self._of_queue[queue]
        free = self._max_bytes + MOST_BESIDE - used - reserved - size - beside
        if self._bytes + reserved + size <= self._max_bytes and own + reserved_in_queue <= free:
            return None
        reason = f"{used} bytes of transient messages are in memory, {own} of them in queue {queue}"
        return Outcome(Result.FULL, reason=reason)

    def _no_room_at_all(self, size: int) -> Outcome | None:
        """Return why even a message that takes another one's place has no room. A dead letter is longer than the
        message that died, each time it dies."""
        used = self._bytes + self._beside
        if self._max_bytes is None or used + size <= (self._max_bytes + MOST_BESIDE) * 3 // 2:
            return None
        return Outcome(Result.FULL, reason=f"{used} bytes of transient messages are in memory")

    def _move(self, move: Move) -> Outcome:
        left, target = move.entry, move.target
        if target.state is _READY and self._is_queue_missing(target.queue):
            return Outcome(Result.NO_QUEUE)
        kept = self._take(left)
        if kept is None:
            return _GONE
        if not self._put(target, _KeptMessage(target.meta, kept.data, kept.attributes)):
            self._put(left, kept)
            return Outcome(Result.EXISTS)
        if self._max_bytes is not None and target.queue != left.queue:
            self._count_of_queue(left.queue, kept, -1)
            self._count_of_queue(target.queue, kept, 1)
        return Outcome(_IS_DONE, target)

    def _is_queue_missing(self, queue: str) -> bool:
        return queue not in self._records.get(QUEUE, {})

    def _at(self, entry: Entry) -> _KeptMessage | None:
        kept = self._places.get((entry.state, entry.queue), {}).get(entry.id)
        return kept if kept is not None and kept.meta == entry.meta else None

    def _put(self, entry: Entry, kept: _KeptMessage) -> bool:
        queue, id, state, _ = entry
        place = self._places.get((state, queue))
        if place is None:
            place = self._places[state, queue] = {}
        return place.setdefault(id, kept) is kept

    def _take(self, entry: Entry) -> _KeptMessage | None:
        queue, id, state, meta = entry
        place = self._places.get((state, queue))
        kept = None if place is None else place.get(id)
        if place is None or kept is None or kept.meta != meta:
            return None
        del place[id]
        if not place:  # queues come and go: an empty place is not kept
            del self._places[state, queue]
        return kept

    def _count(self, queue: str, kept: _KeptMessage, sign: int) -> None:
        """Count a message that has come or gone."""
        self._bytes += sign * len(kept.data)
        self._beside += sign * (len(kept.attributes) + MESSAGE_BYTES)
        if self._max_bytes is not None:
            self._count_of_queue(queue, kept, sign)

    def _count_of_queue(self, queue: str, kept: _KeptMessage, sign: int) -> None:
        self._of_queue[queue] += sign * (len(kept.data) + len(kept.attributes) + MESSAGE_BYTES)
        if not self._of_queue[queue]:
            del self._of_queue[queue]


async def _text(value: Mapping[str, Any]) -> str:
    """A record as JSON. One of a claim has up to 100,000 ids."""
    if not any(isinstance(item, list | tuple) for item in value.values()):  # nearly always
        return json.dumps(value)
    return "".join([piece async for piece in turns.in_turns(_pieces(value), turns.LIGHT)])


def _pieces(value: Any) -> Iterator[str]:
    """JSON in pieces, of which each takes little time."""
    if isinstance(value, Mapping):
        yield "{"
        for number, (key, item) in enumerate(value.items()):
            yield f"{', ' if number else ''}{json.dumps(key)}: "
            yield from _pieces(item)
        yield "}"
    elif isinstance(value, list | tuple) and (len(value) <= _OF_A_PIECE or isinstance(value[0], list | tuple)):
        yield "["
        for number, item in enumerate(value):
            yield ", " if number else ""
            yield from _pieces(item)
        yield "]"
    elif isinstance(value, list | tuple):
        for at in range(0, len(value), _OF_A_PIECE):
            yield (", " if at else "[") + json.dumps(value[at : at + _OF_A_PIECE])[1:-1]
        yield "]"
    else:
        yield json.dumps(value)


def _stored(kept: _KeptMessage | None) -> Stored | None:
    if kept is None:
        return None
    attributes = json.loads(kept.attributes) if kept.attributes else {}
    return Stored(Properties(len(kept.data), checksum(kept.data), attributes), BytesBody(kept.data))
