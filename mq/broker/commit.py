"""Group commit: what many tasks want done at the same time shares one durability barrier."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import trio

from mq.broker.mailbox import Reply
from mq.errors import MQError, NoSuchMessage, NoSuchQueue, StorageError, StorageFailed, StorageFenced, StorageFull
from mq.storage.interface import Operation, Outcome, Result, Storage

LARGEST_BATCH: Final = 1024
"""Messages after which a batch takes no further group along."""
QUIET_STEPS: Final = 3
"""Steps of the event loop, one after another, that bring a batch nothing more before it begins: from a request that has
arrived to the operation that it asks for are about so many."""
MOST_STEPS: Final = 16
"""Steps that it waits at the most, whatever comes."""
BATCHES: Final = 2
"""Batches that are under way at the most: one that is being done, and one that begins the moment it ends."""
_FADES: Final = 0.95
"""What is left of :attr:`Committer._together` with every batch, if fewer come."""


class _Group:
    __slots__ = ("messages", "operations", "then")

    def __init__(self, operations: Sequence[Operation], messages: int, then: Callable[[list[Outcome]], None]) -> None:
        self.operations = operations
        self.messages = messages
        self.then = then


class Committer:
    """Commits to one store. What arrives while a batch is being done is the next one, so a waiter is satisfied only by
    a barrier that began after its own operation was done, and under load the batches grow to what one barrier's time
    lets in.

    Where all who wait would be let go by the same barrier, the store would idle while they run, and they while it
    works. So half of them take turns with the other half, unless barriers are so dear that all had better share one.

    Start :meth:`run` :data:`BATCHES` times.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._gathers = storage.description.durable  # where a barrier costs nothing, waiting does
        self._waiting: deque[_Group] = deque()
        self._size = 0  # messages that wait
        self._under_way: deque[list[_Group]] = deque()
        self._doing = 0  # messages whose operations are under way
        self._together = 0.0  # messages that were under way or waited at once, lately
        self._before = 0
        self._is_called = False  # somebody is about to form a batch
        self._idle = trio.lowlevel.ParkingLot()
        self._answered = trio.lowlevel.ParkingLot()
        self.failure = ""
        self._shut_out: StorageFenced | None = None

    @property
    def share(self) -> int:
        """How many messages' operations are best handed over together."""
        return self._half or LARGEST_BATCH

    def submit(self, operations: Sequence[Operation], messages: int, then: Callable[[list[Outcome]], None]) -> None:
        """Do what is to be done to so many messages together, with whatever else waits, and call `then` with one
        outcome for each operation, in order. Who comes first is answered first."""
        self._waiting.append(_Group(operations, messages, then))
        self._size += messages
        self._call()

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        """Do these together, with whatever else waits. One outcome each, in order."""
        reply: Reply[list[Outcome]] = Reply()
        self.submit(operations, len(operations), reply.set)
        return await reply.get()

    @contextmanager
    def noting_failure(self) -> Iterator[None]:
        """What fails outside a batch stops the batches, too: what is on the medium is unknown. Being shut out of the
        store ends the broker."""
        try:
            yield
        except StorageFenced as error:
            self._shut_out = error
            self._idle.unpark_all()
            raise
        except StorageFailed as error:
            self.failure = self.failure or str(error)
            raise

    async def run(self) -> None:
        """Commit for ever.

        Raises:
            StorageFenced: another broker is in charge of the store. What this one believes is of no worth any more.
        """
        while True:
            while self._shut_out is None and not self._is_time():
                await self._idle.park()
                self._is_called = False
            if self._shut_out is not None:
                raise self._shut_out
            groups = await self._gathered()
            self._call()
            operations = [operation for group in groups for operation in group.operations]
            outcomes = iter(await self._commit(operations))
            while self._under_way[0] is not groups:
                await self._answered.park()
            self._under_way.popleft()
            self._doing -= sum(group.messages for group in groups)
            self._answered.unpark_all()
            for group in groups:
                group.then([next(outcomes) for _ in group.operations])

    @property
    def _half(self) -> int | None:
        """Half of those who are under way at once, where it pays that they take turns."""
        least, half = self._storage.description.overlap_from, math.ceil(self._together / 2)
        return half if least is not None and half >= max(2, least) else None

    def _call(self) -> None:
        """Who is not parked will look for himself."""
        if self._idle and self._is_time():
            self._is_called = True
            self._idle.unpark()

    def _is_time(self) -> bool:
        """Whether somebody should form a batch."""
        if not self._waiting or self._is_called:
            return False
        if not self._under_way:
            return True
        half = self._half if len(self._under_way) < BATCHES else None
        return half is not None and self._size >= half

    async def _gathered(self) -> list[_Group]:
        """The next batch, with whoever is just about to come. Those whom one barrier let go come back one by one;
        whoever is a little too late for the next would wait for two, and each barrier costs its flushes."""
        self._is_called = True
        quiet = steps = 0
        while not self._is_enough() and quiet < QUIET_STEPS and steps < MOST_STEPS:
            size = self._size
            await trio.lowlevel.checkpoint()
            quiet, steps = quiet + 1 if self._size == size else 0, steps + 1
        self._is_called = False
        return self._take()

    def _is_enough(self) -> bool:
        if not self._gathers or max(len(self._waiting), self._before) <= 1:
            return True
        return self._size >= self.share

    def _take(self) -> list[_Group]:
        groups: list[_Group] = []
        most, size = self.share, 0
        while self._waiting and size < most:
            groups.append(self._waiting.popleft())
            size += groups[-1].messages
        self._together = max(self._together * _FADES, float(self._size + self._doing))
        self._before = len(groups)
        self._size -= size
        self._doing += size
        self._under_way.append(groups)
        return groups

    async def _commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        outcomes = await self._storage.commit(operations)
        for outcome in outcomes:
            if outcome.result is Result.FENCED:
                raise StorageFenced(outcome.reason or "another broker is in charge of the store. Start mq again")
            if outcome.result is Result.FAILED:
                self.failure = self.failure or outcome.reason or "the medium failed"
        return outcomes


def error_of(outcome: Outcome, what: str) -> MQError:
    """The error that an outcome other than DONE means to whoever asked for it."""
    if outcome.result is Result.FULL:
        return StorageFull(f"cannot {what} now: {outcome.reason}. Try again later")
    if outcome.result is Result.NO_QUEUE:
        return NoSuchQueue("the queue does not exist any more")
    if outcome.result is Result.GONE:
        return NoSuchMessage("the message is not in the queue any more")
    if outcome.result is Result.FAILED:
        return StorageFailed(
            f"the store has failed ({outcome.reason}); repair the disk, remount it, and start mq again"
        )
    return StorageError(f"cannot {what}: {outcome.result.value}. Try again")
