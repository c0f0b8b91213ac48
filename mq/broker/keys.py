"""Idempotency keys: which message a client's key stands for, for as long as the queue's window says.

A key is in the ledger before its message is written, marked *unsure*; once the message is durable it is sure, and
that is written with whatever comes next, at the latest before the message leaves its queue. So after a crash an unsure
key whose message is not in its queue stands for nothing, and a sure one for a message that was published, and perhaps
consumed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, NamedTuple

from mq.broker.catalog import Catalog
from mq.broker.index import QueueIndex
from mq.broker.ledger import Ledger
from mq.message import MessageId

Settle = Callable[[Iterable[MessageId]], Awaitable[None]]
"""Called before messages leave their queue. Raises StorageError: they must not."""

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
        catalog: the queues, and which messages there are.
        clock_ns: wall clock, nanoseconds since 1970.
    """

    def __init__(self, ledger: Ledger, catalog: Catalog, clock_ns: Callable[[], int]) -> None:
        self._ledger = ledger
        self._catalog = catalog
        self._clock_ns = clock_ns
        self._noted: dict[MessageId, str] = {}
        self._unsettled: set[MessageId] = set()
        self._looked_at: OrderedDict[str, None] = OrderedDict()

    async def load(self) -> None:
        """Learn what is in the store, and settle what a crash left unsure. The catalog knows all messages by now."""
        await self._ledger.load()
        for name in list(self._ledger):
            kept = self._kept(name)
            if kept is not None and not kept.is_sure:
                if self._is_there(name, kept.id):
                    self._mark_sure(name, kept)
                else:
                    self._ledger.forget(name)
        self._looked_at.update(dict.fromkeys(self._ledger))
        self._forget_old(len(self._looked_at))

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
        """These keys will stand for these messages, which are about to be written. Durable on return.

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
        """These keys stand for these messages, which are durable. So is this on return.

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
        """The message is durable."""
        name = self._noted.pop(id, "")
        kept = self._kept(name)
        if kept is not None:
            self._mark_sure(name, kept)

    def drop(self, ids: Iterable[MessageId]) -> None:
        """These messages were not stored after all."""
        for id in ids:
            name = self._noted.pop(id, None)
            if name is not None:
                self._ledger.forget(name)

    async def settle(self, ids: Iterable[MessageId]) -> None:
        """These messages are about to leave their queue: from now on their keys must not need them.

        Raises:
            StorageError: they still do.
        """
        if not self._unsettled.isdisjoint(ids):
            await self._flush()

    async def _put(self, index: QueueIndex, ids: Mapping[str, MessageId], mark: int) -> None:
        now_ms = self._clock_ns() // 1_000_000
        entries = {_name(index, key): [id, now_ms, mark] for key, id in ids.items()}
        self._forget_old(len(entries) + _SOME)
        self._looked_at.update(dict.fromkeys(entries))
        self._ledger.put_later(entries)
        await self._flush()

    async def _flush(self) -> None:
        settled = set(self._unsettled)
        await self._ledger.flush()
        self._unsettled -= settled

    def _mark_sure(self, name: str, kept: _Kept) -> None:
        self._ledger.put_later({name: [kept.id, kept.time_ns // 1_000_000, _SURE]})
        self._unsettled.add(kept.id)

    def _kept(self, name: str) -> _Kept | None:
        value = self._ledger.get(name)
        return _Kept(MessageId(value[0]), value[1] * 1_000_000, value[2] == _SURE) if value is not None else None

    def _is_there(self, name: str, id: MessageId) -> bool:
        index = self._catalog.queues.get(_queue(name))
        return index is not None and (index.find(id) is not None or id in self._catalog.transit)

    def _is_over(self, name: str, kept: _Kept) -> bool:
        """Its time is over, or its queue is no more, or another one of the same name."""
        index = self._catalog.queues.get(_queue(name))
        if index is None or kept.id.time < index.created:
            return True
        return self._clock_ns() - kept.time_ns > index.settings.key_window * 1e9

    def _forget_old(self, count: int) -> None:
        """Those whose time is over, among so many: some whenever new ones come, in turn, so that they never
        outnumber the others."""
        for _ in range(min(count, len(self._looked_at))):
            name, _none = self._looked_at.popitem(last=False)
            kept = self._kept(name)
            if kept is not None and kept.id not in self._noted and self._is_over(name, kept):
                self._ledger.forget(name)
            elif kept is not None:
                self._looked_at[name] = None


def _name(index: QueueIndex, key: str) -> str:
    return f"{index.name}/{key}"


def _queue(name: str) -> str:
    return name.partition("/")[0]
