"""The names of a cluster's queues: those of its store, and those that its nodes have reserved for queues of their own.

    QUEUE/NODE                  a name that a node has reserved, below a prefix beside the store's

A name is reserved only while the store has no queue of it, and the store makes a queue (:mod:`mq_etcd.records`) only
while no node has reserved its name. Each is one transaction, so of two that come together one finds the other.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence, Set
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Generic, TypeVar
from urllib.parse import unquote

from mq.cluster.coordinator import (
    CandidacyEnded,
    CoordinatorError,
    FoundQueue,
    NameChange,
    SharedRecord,
    Snapshot,
)
from mq.cluster.record_keeper import SHARED_KINDS
from mq.storage.interface import QUEUE
from mq_etcd.client import Client
from mq_etcd.errors import Absent, EtcdError
from mq_etcd.keys import Keys, escaped, record_key
from mq_etcd.values import Delete, Event, Get, KeyValue, Page, Put, absent, end_of_prefix, modified_at
from mq_etcd.watch import Watch

T = TypeVar("T")

MOST_TOGETHER: Final = 96
"""Names that are looked for in one transaction."""


def reserved_by(prefix: str, queue: str) -> str:
    """What the keys begin with that reserve a name."""
    return f"{prefix}{escaped(queue)}/"


@contextmanager
def translated() -> Iterator[None]:
    """Errors of etcd as those of a coordinator."""
    try:
        yield
    except Absent as error:
        raise CandidacyEnded(str(error)) from error
    except EtcdError as error:
        raise CoordinatorError(str(error)) from error


class EtcdNames:
    """A :class:`~mq.cluster.coordinator.NameRegistry`."""

    def __init__(self, client: Client, prefix: str, reserved: str) -> None:
        self._client = client
        self._keys = Keys(prefix)
        self._reserved = reserved

    async def find(self, queues: Sequence[str]) -> Snapshot:
        """Which of these the store has."""
        number, found = 0, dict[str, FoundQueue]()
        with translated():
            for start in range(0, len(queues), MOST_TOGETHER):
                keys = [self._keys.record(QUEUE, queue) for queue in queues[start : start + MOST_TOGETHER]]
                outcome = await self._client.txn([], [Get(key) for key in keys])
                number = min(number or outcome.revision, outcome.revision)
                for answer in outcome.answers:
                    assert isinstance(answer, Page)
                    found |= {record_key(record.key): _found(record) for record in answer.found}
        return Snapshot(number, found)

    @asynccontextmanager
    async def follow(self) -> AsyncIterator[tuple[Snapshot, AsyncIterator[NameChange]]]:
        """All that the store has, and what becomes of it."""
        begin = self._keys.records(QUEUE)
        end = end_of_prefix(begin)
        with translated():
            pages = [page async for page in self._client.pages(begin, end, size=100)]
            revision = pages[0].revision
            found = {record_key(record.key): _found(record) for page in pages for record in page.found}
            async with self._client.watch(begin, end, revision=revision + 1) as watch:
                yield Snapshot(revision, found), _Changes(watch, _name_change)

    async def shared(self, kind: str, key: str) -> Mapping[str, Any] | None:
        """One shared record."""
        with translated():
            found = await self._client.get(self._keys.record(kind, key))
        return None if found is None else json.loads(found.value)

    @asynccontextmanager
    async def follow_shared(self) -> AsyncIterator[tuple[list[SharedRecord], AsyncIterator[SharedRecord]]]:
        """All shared records, and what becomes of them."""
        begin = self._keys.records(SHARED_KINDS).rstrip("/")
        end = end_of_prefix(begin)
        with translated():
            pages = [page async for page in self._client.pages(begin, end, size=100)]
            found = [self._shared(record.key, record.value) for page in pages for record in page.found]
            async with self._client.watch(begin, end, revision=pages[0].revision + 1) as watch:
                yield found, _Changes(watch, lambda event: self._shared(event.key, _value_in(event)))

    def _shared(self, key: str, value: bytes | None) -> SharedRecord:
        kind, _, rest = key.removeprefix(self._keys.records("").rstrip("/") + "/").partition("/")
        return SharedRecord(unquote(kind), record_key(rest), None if value is None else json.loads(value))

    async def reserve(self, node: str, queue: str) -> bool:
        """Reserve a name. The key is written anew each time: a release that was sent before does not find it then."""
        key, record = self._key(node, queue), self._keys.record(QUEUE, queue)
        with translated():
            seen = await self._client.get(key)
            held = [absent(record), absent(key) if seen is None else modified_at(key, seen.modified)]
            done = await self._client.txn(held, [Put(key, b"")], [Get(record, keys_only=True)])
        if done.succeeded:
            return True
        [page] = done.answers
        if isinstance(page, Page) and page.found:
            return False
        raise CoordinatorError(f"the etcd key {key} changed while it was being written. Try again")

    async def release(self, node: str, queue: str) -> None:
        """Let go of a name; of the key that is there now, and of none that is written later."""
        key = self._key(node, queue)
        with translated():
            seen = await self._client.get(key)
            if seen is None:
                return
            done = await self._client.txn([modified_at(key, seen.modified)], [Delete(key)])
        if not done.succeeded:
            raise CoordinatorError(f"the etcd key {key} changed while it was being deleted. Try again")

    async def reserved(self, node: str) -> Set[str]:
        """What a node has reserved."""
        begin, end, found = self._reserved, end_of_prefix(self._reserved), set[str]()
        with translated():
            async for page in self._client.pages(begin, end, keys_only=True):
                names = (kept.key.removeprefix(begin).partition("/") for kept in page.found)
                found |= {unquote(queue, errors="surrogatepass") for queue, _, its in names if its == node}
        return found

    def _key(self, node: str, queue: str) -> str:
        return reserved_by(self._reserved, queue) + node


class _Changes(Generic[T]):
    """The events of a watch, as what they mean."""

    def __init__(self, watch: Watch, meaning: Callable[[Event], T]) -> None:
        self._watch = watch
        self._meaning = meaning

    def __aiter__(self) -> _Changes[T]:
        return self

    async def __anext__(self) -> T:
        with translated():
            return self._meaning(await anext(self._watch))


def _name_change(event: Event) -> NameChange:
    current = event.current
    return NameChange(event.revision, record_key(event.key), None if current is None else _found(current))


def _value_in(event: Event) -> bytes | None:
    return None if event.current is None else event.current.value


def _found(record: KeyValue) -> FoundQueue:
    return FoundQueue(record.created, json.loads(record.value))
