"""Idempotency keys: :class:`Keys` knows which message a client's key stands for, within the queue's window.

Where the store does groups a key and its message are one (:class:`mq.broker.publishing.KeyedJobs`). Elsewhere, and for
a body that no group takes, a ledger has a key before its message is written, marked *unsure*. Once the message is
durable the key is sure; the ledger writes that with its next entries, at the latest before the message leaves its
queue. So after a crash an unsure key whose message is not in its queue stands for nothing. A sure one stands for a
message that was published, and perhaps consumed.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import trio

from mq.broker.core import Core
from mq.broker.index import QueueIndex
from mq.broker.ledger import Ledger
from mq.errors import NoMemory
from mq.message import MessageId

KIND: Final = "key"
"""The kind of the ledger's records."""
_LOOKS_PER_KEY: Final = 3
"""Keys that are looked at, in turn, for each one that is put. So all have been looked at before there are half as many
again, and those that are over never outnumber the others."""
_LOOKS_IF_FULL: Final = 1024
"""Keys that are looked at for one that is refused, because there are too many."""
_UNSURE, _SURE = 0, 1
_DIGEST_BYTES: Final = 15
"""Of a key, in memory: so many that no two keys have one digest, and that it fits 48 bytes of Python."""
_PACKED: Final = struct.Struct(">16sdI?")
_GONE: Final = 0
"""In place of a queue's number: the queue is no more."""


class KeyRecord(NamedTuple):
    """What a key stands for, in memory.

    Attributes:
        id: the message's, as the bytes of its :attr:`mq.message.MessageId.key`.
        since: when the key was noted (Trio's clock).
        queue: its queue; None when that is no more.
        is_sure: whether the message is durable, or was.
        kept: the same as the ledger keeps it, as long as that may be written again.
    """

    id: bytes
    since: float
    queue: QueueIndex | None
    is_sure: bool
    kept: list[Any] | None = None

    @property
    def message(self) -> MessageId:
        """The message's id."""
        return MessageId.from_key(int.from_bytes(self.id))


class Keys:
    """The idempotency keys of all queues.

    Attributes:
        frozen: queues whose keys do not end now: rows of a committed write job come into them.
        unsecured: messages for which it is not durable yet that their keys are sure.
    """

    def __init__(self, core: Core) -> None:
        self.frozen: set[QueueIndex] = set()
        self._codec = _KeyCodec(core)
        self.ledger: Ledger[KeyRecord] = Ledger(
            core.storage, core.committer, KIND, core.writer, self._codec, is_shared=False
        )
        self._catalog = core.catalog
        self._clock = core.clock
        self._most = core.config.most_keys
        self._noted: dict[MessageId, str] = {}
        self.unsecured: set[MessageId] = set()

    async def load(self) -> None:
        """Load the keys, and decide those that a crash left unsure. Call it once the catalog knows all messages."""
        await self.ledger.load()
        for name, record in self._codec.take_doubtful().items():
            if self.ledger.get(name) is None or not self._is_there(record):
                self.ledger.forget(name)
            else:
                self._mark_sure(name, record, record.message)
        self.ledger.sweep(len(self.ledger), self._over())

    def find(self, index: QueueIndex, key: str) -> MessageId | None:
        """The message that `key` stands for; None without one."""
        name = _name(index, key)
        record = self.ledger.get(name)
        if record is None:
            return None
        if self._over()(record):
            self.ledger.forget(name)
            return None
        return record.message

    def check_room(self) -> None:
        """Refuse another key if there are too many.

        Raises:
            NoMemory: there are; some end soon.
        """
        if len(self.ledger) >= self._most:
            self._forget_old(_LOOKS_IF_FULL)
            if len(self.ledger) >= self._most:
                raise NoMemory(
                    f"the maximum of {self._most} idempotency keys has been reached (limited by --memory). Try again "
                    "later, set a shorter key_window, or publish without keys"
                )

    async def note(self, index: QueueIndex, ids: Mapping[str, MessageId]) -> None:
        """Let keys stand for messages that are about to be written. Durable on return.

        Raises:
            StorageError: nothing is noted.
        """
        self._noted.update({id: _name(index, key) for key, id in ids.items()})
        try:
            await self._put(index, ids, is_sure=False)
        except BaseException:
            self.drop(ids.values())
            raise

    async def note_known(self, index: QueueIndex, ids: Mapping[str, MessageId]) -> None:
        """Let keys stand for messages that are durable. Durable on return.

        Raises:
            StorageError: nothing is noted.
        """
        try:
            await self._put(index, ids, is_sure=True)
        except BaseException:
            for key in ids:
                self.ledger.forget(_name(index, key))
            raise

    def note_beside(self, index: QueueIndex, ids: Mapping[str, MessageId]) -> None:
        """Let keys stand for messages that are written in one group with what the ledger writes next."""
        for id in ids.values():
            self._noted.pop(id, None)
        self._add(index, ids, is_sure=True)

    def doubt(self, index: QueueIndex, key: str, id: MessageId) -> None:
        """Let a key stand, unsure, for a message that may be there: :meth:`landed` or :meth:`drop` ends that."""
        self._noted[id] = _name(index, key)
        self._add(index, {key: id}, is_sure=False)

    def give_up(self, index: QueueIndex, key: str) -> None:
        """Let a key stand for nothing: its group was refused."""
        self.ledger.forget(_name(index, key))

    def landed(self, id: MessageId) -> None:
        """Mark the key of a message sure: the message is durable."""
        name = self._noted.pop(id, None)
        record = None if name is None else self.ledger.get(name)
        if name is not None and record is not None and record.queue is not None:
            self._mark_sure(name, record, id)

    def drop(self, ids: Iterable[MessageId]) -> None:
        """Forget the keys of messages that were not stored after all."""
        for id in ids:
            name = self._noted.pop(id, None)
            if name is not None:
                self.ledger.forget(name)

    async def secure(self, ids: Iterable[MessageId]) -> None:
        """Make durable that the keys of messages are sure, before the messages leave their queue.

        Raises:
            StorageError: that may not be durable; the messages must stay.
        """
        if not self.unsecured.isdisjoint(ids):
            await self._flush()

    async def _put(self, index: QueueIndex, ids: Mapping[str, MessageId], *, is_sure: bool) -> None:
        self._add(index, ids, is_sure=is_sure)
        await self._flush()

    def _add(self, index: QueueIndex, ids: Mapping[str, MessageId], *, is_sure: bool) -> None:
        since, now_ms, mark = trio.current_time(), self._clock.steady_ms(), _SURE if is_sure else _UNSURE
        self._forget_old(_LOOKS_PER_KEY * len(ids))
        self.ledger.put_later(
            {
                _name(index, key): KeyRecord(
                    _bytes_of(id), since, index, is_sure, [id, now_ms, mark, index.incarnation]
                )
                for key, id in ids.items()
            }
        )

    async def _flush(self) -> None:
        secured = set(self.unsecured)
        await self.ledger.flush()
        self.unsecured -= secured

    def _mark_sure(self, name: str, record: KeyRecord, id: MessageId) -> None:
        noted_ms, incarnation = self._codec.noted_ms(record), 0 if record.queue is None else record.queue.incarnation
        kept = [id, noted_ms, _SURE, incarnation]
        self.ledger.put_later({name: KeyRecord(record.id, record.since, record.queue, is_sure=True, kept=kept)})
        self.unsecured.add(id)

    def _is_there(self, record: KeyRecord) -> bool:
        id = record.message
        return (record.queue is not None and record.queue.find(id) is not None) or id in self._catalog.locks

    def _over(self) -> Callable[[KeyRecord], bool]:
        """Tells which keys are over now: their window has ended, or their queue was deleted or made anew."""
        now, queues, frozen = trio.current_time(), self._catalog.queues, self.frozen

        def is_over(record: KeyRecord) -> bool:
            index = record.queue
            if index is None or queues.get(index.name) is not index:
                return True
            return now - record.since > index.settings.key_window and index not in frozen

        return is_over

    def _forget_old(self, count: int) -> None:
        """Look at so many keys, in turn, and forget those that are over."""
        if self.ledger.sweep(count, self._over()):
            self._codec.forget_queues()


class _KeyCodec:
    """What a key is in the ledger: ``[id, time, is sure, incarnation]`` in JSON, and a few bytes in memory.

    A key itself may have hundreds of characters, so in memory it is a digest. It is keyed with a secret of this
    process: no client can find two keys of one digest.
    """

    width = _DIGEST_BYTES

    def __init__(self, core: Core) -> None:
        self._catalog = core.catalog
        self._clock = core.clock
        self._digest = hashlib.blake2b(digest_size=_DIGEST_BYTES, key=os.urandom(16))
        self._numbers: dict[QueueIndex, int] = {}
        self._indexes: dict[int, QueueIndex] = {}
        self._count = itertools.count(_GONE + 1)
        self._doubtful: dict[str, KeyRecord] = {}

    def take_doubtful(self) -> dict[str, KeyRecord]:
        """The keys among those loaded that are still to be decided."""
        doubtful, self._doubtful = self._doubtful, {}
        return doubtful

    def forget_queues(self) -> None:
        """Forget queues that are no more. Their keys are over."""
        for number, index in list(self._indexes.items()):
            if self._catalog.queues.get(index.name) is not index:
                del self._indexes[number], self._numbers[index]

    def noted_ms(self, record: KeyRecord) -> int:
        """When a key was noted, by steady time where that was not kept: milliseconds since 1970."""
        if record.kept is not None:
            return int(record.kept[1])
        return self._clock.steady_ms() - round((trio.current_time() - record.since) * 1000)

    def name(self, key: str) -> bytes:
        """Its digest."""
        digest = self._digest.copy()  # with the secret in it
        digest.update(key.encode("utf-8", "surrogatepass"))
        return digest.digest()

    def pack(self, value: KeyRecord) -> bytes:
        """29 bytes."""
        number = _GONE if value.queue is None else self._number(value.queue)
        return _PACKED.pack(value.id, value.since, number, value.is_sure)

    def unpack(self, packed: bytes) -> KeyRecord:
        """What was packed."""
        id, since, number, is_sure = _PACKED.unpack(packed)
        return KeyRecord(id, since, self._indexes.get(number), is_sure)

    def to_json(self, value: KeyRecord) -> Any:
        """A list."""
        return value.kept

    def from_json(self, key: str, kept: Any) -> KeyRecord | None:
        """The key of a queue that is there; None for another one. Its window begins when it was noted, and not
        later than now."""
        # So a store whose record of the clock is lost keeps a key for no longer than one window from now.
        id, time_ms, mark, incarnation = kept
        index = self._catalog.queues.get(_queue(key))
        if index is None or incarnation != index.incarnation:
            return None
        since = trio.current_time() - max(0.0, self._clock.steady_ns() / 1e9 - time_ms / 1e3)
        record = KeyRecord(_bytes_of(MessageId(id)), since, index, mark == _SURE, kept)
        if not record.is_sure:
            self._doubtful[key] = record
        else:
            self._doubtful.pop(key, None)  # a later segment has it
        return record

    def _number(self, index: QueueIndex) -> int:
        number = self._numbers.get(index)
        if number is None:
            number = self._numbers[index] = next(self._count)
            self._indexes[number] = index
        return number


def _bytes_of(id: MessageId) -> bytes:
    return id.key.to_bytes(16)


def _name(index: QueueIndex, key: str) -> str:
    return f"{index.name}/{key}"


def _queue(name: str) -> str:
    return name.partition("/")[0]
