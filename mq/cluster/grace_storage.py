"""The storage between a master's broker and the cluster's store.

* On opening, everything leased is READY again at once: the leases came from a master that is no more.
* A removed message is unlinked only after a while, and not before the broker asks for it: a client may be reading its
  body, as long as that takes. If its publisher got no answer, it asks the next master, which finds
  the message in REMOVED and does not store it again.
* What earlier masters removed is unlinked once this one serves. Nothing that a take-over waits for lists it: there may
  be 100,000 of it.
* After an unknown outcome, or a failed fence, the contents of the store are unknown. That is reported, and ends the
  mastership: the next master reads the store.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from itertools import islice, takewhile
from typing import Final

import trio

from mq.errors import StorageError, StorageFailed, StorageFenced, StorageFull
from mq.lifecycle import State
from mq.message import MessageId
from mq.storage.interface import (
    Change,
    ClusterStorage,
    Description,
    Entry,
    Move,
    Operation,
    Outcome,
    Result,
    Staged,
    Unlink,
)

logger = logging.getLogger("mq.cluster")

GRACE_SECONDS: Final = 60.0
"""How long a removed message can still be told from one that was never stored; longer than a publisher asks again."""
MOST_KEPT: Final = 100_000
"""Removed messages at the most; beyond that the oldest go before their time."""
_OPERATIONS_PER_BATCH: Final = 500
_LISTED_AT_ONCE: Final = 2000
"""Messages removed by earlier masters that are listed, and unlinked, at a time."""
_SIGNS_IN_PATIENCE: Final = 8
"""How often a sign of life is asked for until patience ends."""
_ENDING: Final = (Result.FENCED, Result.UNKNOWN, Result.FAILED)
_DONE: Final = Outcome(Result.DONE)


class GraceStorage:
    """A :class:`~mq.storage.interface.Storage` over another one.

    Args:
        below: the cluster's store, not open yet.
        broken: called with a reason once the contents of the store are unknown.
    """

    def __init__(self, below: ClusterStorage, broken: Callable[[str], None]) -> None:
        self._below = below
        self.aclose, self.records, self.read, self.find = below.aclose, below.records, below.read, below.find
        self._broken = broken
        self._removed: OrderedDict[Entry, float] = OrderedDict()
        self._removing: set[Entry] = set()
        self._asked: set[Entry] = set()

    @property
    def description(self) -> Description:
        """The description of the store below; but what is unlinked is kept for a while, in REMOVED."""
        return self._below.description._replace(removes=False)

    async def open(self) -> None:
        """Open the store below, and requeue what was leased."""
        await self._below.open()
        leased = [entry for entry in await self._below.scan(State.DELAYED) if entry.meta.receipt is not None]
        moves = [Move(entry, State.READY, entry.meta.at_rest()) for entry in leased]
        for start in range(0, len(moves), _OPERATIONS_PER_BATCH):
            for outcome in await self._below.commit(moves[start : start + _OPERATIONS_PER_BATCH]):
                if outcome.result in (*_ENDING, Result.FULL):
                    raise StorageFailed(f"cannot requeue leased messages: {outcome.reason or outcome.result.value}")

    async def knows(self, queues: Collection[str], id: MessageId) -> bool:
        """Return whether a message was stored in one of these queues: it is there, or was removed a short while ago."""
        return await self._below.contains(queues, id)

    async def run(self) -> None:
        """Unlink messages that were kept for long enough, for ever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._unlink_own)
            nursery.start_soon(self._unlink_inherited)

    async def watch(self, patience_seconds: float) -> None:
        """Report the store as broken once its servers have given no sign of life for so long; returns then.

        Another node may reach a store that this one is cut off from.
        """
        heard = trio.current_time()

        async def ask() -> None:
            nonlocal heard
            while True:
                asked = trio.current_time()
                with suppress(StorageError):
                    await self._below.check_reachable()
                    heard = asked
                await trio.sleep(patience_seconds / _SIGNS_IN_PATIENCE)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            while (left := heard + patience_seconds - trio.current_time()) > 0:  # noqa: ASYNC110 - it ends by the clock
                await trio.sleep(left)
            self._broken(f"the store has not responded for {patience_seconds:g} seconds")
            nursery.cancel_scope.cancel()

    async def _unlink_inherited(self) -> None:
        """Unlink what earlier masters removed, when the last of them has been gone for as long as messages are kept."""
        await trio.sleep(GRACE_SECONDS)
        while True:
            try:
                # As many more as this master has removed itself: or else the list might name those alone.
                listed = await self._below.scan(State.REMOVED, limit=len(self._removed) + _LISTED_AT_ONCE)
            except StorageError as error:
                logger.info("temporarily unable to list removed messages: %s", error)
                await trio.sleep(GRACE_SECONDS)
                continue
            # A removal that is on its way may be listed already.
            own = self._removed.keys() | self._removing
            inherited = [entry for entry in listed if entry not in own]
            if not inherited:
                return
            if not await self._unlink(inherited):
                await trio.sleep(GRACE_SECONDS)

    async def _unlink_own(self) -> None:
        while True:
            due = self._due()
            excess = len(self._removed) - MOST_KEPT
            await self._unlink(due if len(due) >= excess else self._oldest(excess))
            await trio.sleep(1.0)

    # As they are

    async def stage(self, chunks: AsyncIterable[bytes]) -> Staged:
        """As below."""
        with self._watching():
            return await self._below.stage(chunks)

    async def scan(self, state: State, queue: str | None = None, limit: int | None = None) -> list[Entry]:
        """As below; but of REMOVED only with a queue: this class unlinks by itself what earlier masters removed."""
        if state is State.REMOVED and queue is None:
            await trio.lowlevel.checkpoint()
            return []
        return await self._below.scan(state, queue, limit)

    def changes(self) -> AbstractAsyncContextManager[AsyncIterator[Change]] | None:
        """None: no other process changes what one master serves."""
        return None

    # Not quite as they are

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        """As below, but for Unlink: that is done later."""
        now = [operation for operation in operations if not isinstance(operation, Unlink)]
        removing = {each.target for each in now if isinstance(each, Move) and each.state is State.REMOVED}
        self._removing |= removing
        try:
            return self._note(operations, iter(await self._commit(now) if now else ()))
        finally:
            self._removing -= removing

    # How it is done

    def _note(self, operations: Sequence[Operation], found: Iterator[Outcome]) -> list[Outcome]:
        """Note what was removed, and what is to be unlinked later; the outcomes of all operations."""
        outcomes = []
        for operation in operations:
            outcome = _DONE if isinstance(operation, Unlink) else next(found)
            if isinstance(operation, Unlink):
                self._keep(operation.entry)
                self._asked.add(operation.entry)
            elif outcome.entry is not None and outcome.entry.state is State.REMOVED:
                self._keep(outcome.entry)
            outcomes.append(outcome)
        return outcomes

    async def _commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        with self._watching():
            outcomes = await self._below.commit(operations)
        if any(outcome.result is Result.FULL for outcome in outcomes):
            await self._unlink(self._oldest(_OPERATIONS_PER_BATCH))  # what is of no use may make room
        for outcome in outcomes:
            if outcome.result in _ENDING:
                self._broken(outcome.reason or f"an operation of the store is {outcome.result.value}")
                break
        return outcomes

    async def _unlink(self, entries: Sequence[Entry]) -> bool:
        """Unlink removed messages, and parts of deleted queues; False if the store has no room to do so now."""
        for start in range(0, len(entries), _OPERATIONS_PER_BATCH):
            some = entries[start : start + _OPERATIONS_PER_BATCH]
            try:
                outcomes = await self._commit_unlinks(some)
            except StorageFull as error:
                logger.info("temporarily unable to delete messages that were removed from their queues: %s", error)
                return False
            for entry, outcome in zip(some, outcomes, strict=True):
                if outcome.result in (Result.DONE, Result.GONE, Result.EXISTS):
                    self._removed.pop(entry, None)
                    self._asked.discard(entry)
            if any(outcome.result is Result.FULL for outcome in outcomes):
                return False
        return True

    async def _commit_unlinks(self, entries: Sequence[Entry]) -> list[Outcome]:
        with self._watching():
            outcomes = await self._below.commit([Unlink(entry) for entry in entries])
        if any(outcome.result is Result.FENCED for outcome in outcomes):
            self._broken("another node is the master")
        return outcomes

    def _due(self) -> list[Entry]:
        """The messages that were kept for long enough. Those removed later are not looked at: there may be 100,000."""
        until = trio.current_time() - GRACE_SECONDS
        old = takewhile(lambda kept: kept[1] <= until, self._removed.items())
        return [entry for entry, _ in old if entry in self._asked]

    def _oldest(self, most: int) -> list[Entry]:
        """The messages that were removed first, of those that may be unlinked."""
        return list(islice((entry for entry in self._removed if entry in self._asked), most))

    def _keep(self, entry: Entry) -> None:
        self._removed.setdefault(entry, trio.current_time())

    @contextmanager
    def _watching(self) -> Iterator[None]:
        try:
            yield
        except (StorageFailed, StorageFenced) as error:
            self._broken(str(error))
            raise
