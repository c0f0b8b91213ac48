"""Group commit: what many tasks want done at the same time shares one durability barrier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import trio

from mq.broker.mailbox import Mailbox
from mq.errors import MQError, NoSuchMessage, NoSuchQueue, StorageError, StorageFailed, StorageFenced, StorageFull
from mq.storage.interface import Operation, Outcome, Result, Storage

LARGEST_BATCH: Final = 1024
"""Groups of operations that are committed together at the most."""
QUIET_STEPS: Final = 3
"""Steps of the event loop, one after another, that bring a batch nothing more before it begins: from a request that has
arrived to the operation that it asks for are about so many."""
MOST_STEPS: Final = 16
"""Steps that it waits at the most, whatever comes."""


class _Group:
    __slots__ = ("done", "operations", "outcomes")

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = operations
        self.outcomes: list[Outcome] = []
        self.done = trio.Event()


class Committer:
    """Commits to one store, one batch at a time; what arrives meanwhile is the next batch.

    So a waiter is satisfied only by a barrier that began after its own operation was done, and under load the batches
    grow to what one barrier's time lets in.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._gathers = storage.description.durable  # where a barrier costs nothing, waiting does
        self._waiting: Mailbox[_Group] = Mailbox()
        self.failure = ""
        self._shut_out: StorageFenced | None = None

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        """Do these together with whatever else waits. One outcome each, in order."""
        group = _Group(operations)
        self._waiting.put(group)
        await group.done.wait()
        return group.outcomes

    @contextmanager
    def noting_failure(self) -> Iterator[None]:
        """What fails outside a batch stops the batches, too: what is on the medium is unknown. Being shut out of the
        store ends the broker."""
        try:
            yield
        except StorageFenced as error:
            self._shut_out = error
            self._waiting.put(_Group([]))
            raise
        except StorageFailed as error:
            self.failure = self.failure or str(error)
            raise

    async def run(self) -> None:
        """Commit for ever.

        Raises:
            StorageFenced: another broker is in charge of the store. What this one believes is of no worth any more.
        """
        before = 0
        while True:
            groups = await self._waiting.drain(LARGEST_BATCH)
            if self._shut_out is not None:
                raise self._shut_out
            if self._gathers and max(len(groups), before) > 1:
                await self._gather(groups)
            before = len(groups)
            operations = [operation for group in groups for operation in group.operations]
            outcomes = iter(await self._commit(operations))
            for group in groups:
                group.outcomes = [next(outcomes) for _ in group.operations]
                group.done.set()

    async def _gather(self, groups: list[_Group]) -> None:
        """Take along who is just about to come. Those whom one barrier let go come back one by one; whoever is a
        little too late for the next would wait for two, and each barrier costs its flushes."""
        quiet = 0
        for _ in range(MOST_STEPS):
            if quiet == QUIET_STEPS:
                break
            await trio.lowlevel.checkpoint()
            more = self._waiting.take(LARGEST_BATCH - len(groups))
            quiet = 0 if more else quiet + 1
            groups += more

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
