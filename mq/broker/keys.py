"""Idempotency keys: which message a client's key stands for, for as long as the queue's window says.

A key is in the ledger before its message is written, marked *unsure*; once the message is durable it is sure, and
that is written with whatever comes next, at the latest before the message is removed. So after a crash an unsure key
whose message is not in the store stands for nothing, and a sure one for a message that was published, and perhaps
consumed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from mq.broker.index import QueueIndex
from mq.broker.ledger import Ledger
from mq.message import MessageId
from mq.storage.interface import Storage

KIND: Final = "key"
"""The kind of the ledger's records."""
_SOME: Final = 16
_UNSURE, _SURE = 0, 1


class _Kept(NamedTuple):
    id: MessageId
    time_ns: int
    is_sure: bool


class Keys:
    """The keys of all queues.

    Args:
        ledger: keeps them.
        storage: knows which messages there are.
        queues: the queues there are now, by name.
        clock_ns: wall clock, nanoseconds since 1970.
    """

    def __init__(
        self, ledger: Ledger, storage: Storage, queues: Mapping[str, QueueIndex], clock_ns: Callable[[], int]
    ) -> None:
        self._ledger = ledger
        self._storage = storage
        self._queues = queues
        self._clock_ns = clock_ns
        self._unsettled: dict[MessageId, str] = {}

    async def load(self) -> None:
        """Learn what is in the store, and settle what a crash left unsure."""
        await self._ledger.load()
        for name in list(self._ledger):
            kept = self._kept(name)
            if kept is not None and not kept.is_sure:
                if await self._storage.find(_queue(name), kept.id) is None:
                    self._ledger.forget(name)
                else:
                    self._mark_sure(name, kept)
        self._forget_oldest(len(self._ledger))

    def find(self, index: QueueIndex, key: str) -> MessageId | None:
        """The message that `key` stands for."""
        name = _name(index, key)
        kept = self._kept(name)
        if kept is None:
            return None
        if self._is_over(name, kept):
            self._ledger.forget(name)
            return None
        return kept.id

    async def note(self, index: QueueIndex, ids: Mapping[str, MessageId]) -> None:
        """These keys will stand for these messages. Durable on return.

        Raises:
            StorageError: nothing is noted.
        """
        self._forget_oldest(len(ids) + _SOME)
        now_ms = self._clock_ns() // 1_000_000
        entries = {_name(index, key): [id, now_ms, _UNSURE] for key, id in ids.items()}
        self._unsettled.update({id: _name(index, key) for key, id in ids.items()})
        try:
            await self._ledger.put(entries)
        except BaseException:
            self.drop(ids.values())
            raise

    def landed(self, id: MessageId) -> None:
        """The message is durable."""
        name = self._unsettled.get(id, "")
        kept = self._kept(name)
        if kept is not None:
            self._mark_sure(name, kept)

    def drop(self, ids: Iterable[MessageId]) -> None:
        """These messages were not stored after all."""
        for id in ids:
            name = self._unsettled.pop(id, None)
            if name is not None:
                self._ledger.forget(name)

    async def settle(self, id: MessageId) -> None:
        """The message is about to be removed: from now on its key must not need it.

        Raises:
            StorageError: it still does.
        """
        if id in self._unsettled:
            await self._ledger.flush()
            self._unsettled.pop(id, None)

    def _mark_sure(self, name: str, kept: _Kept) -> None:
        self._ledger.put_later({name: [kept.id, kept.time_ns // 1_000_000, _SURE]})
        self._unsettled[kept.id] = name

    def _kept(self, name: str) -> _Kept | None:
        value = self._ledger.get(name)
        return _Kept(MessageId(value[0]), value[1] * 1_000_000, value[2] == _SURE) if value is not None else None

    def _is_over(self, name: str, kept: _Kept) -> bool:
        """Its time is over, or its queue is no more, or another one of the same name."""
        index = self._queues.get(_queue(name))
        if index is None or kept.id.time < index.created:
            return True
        return self._clock_ns() - kept.time_ns > index.settings.key_window * 1e9

    def _forget_oldest(self, count: int) -> None:
        """Those of the oldest whose time is over: some whenever new ones come, so that they never outnumber them."""
        for name in list(itertools.islice(self._ledger, count)):
            kept = self._kept(name)
            if kept is not None and self._is_over(name, kept):
                self._unsettled.pop(kept.id, None)
                self._ledger.forget(name)


def _name(index: QueueIndex, key: str) -> str:
    return f"{index.name}/{key}"


def _queue(name: str) -> str:
    return name.partition("/")[0]
