"""Batches on a root that other processes change, too: brokers, a mover or a reaper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mq.storage.files.stepwise.batch import Batch, LinkBatch, OrderedBatch
from mq.storage.files.stepwise.root import SteppedRoot
from mq.storage.files.sync import Barrier
from mq.storage.interface import MessageOperation, Move, Outcome, Result, Write

_CLEARED: Final = Outcome(
    Result.FULL, reason="another daemon assumed that this daemon had stopped, and removed its incoming messages"
)


class SharedBatch(Batch):
    """A batch that syncs what another process wrote before it moves it."""

    def __init__(self, root: SteppedRoot, operations: Sequence[MessageOperation]) -> None:
        super().__init__(root, operations)
        assert root.others is not None, "no other process changes this root"
        self._others = root.others

    def _admit(self, operation: Write) -> Outcome | None:
        return self._others.admit(operation)

    def _refusal(self, operation: MessageOperation, error: OSError) -> Outcome:
        if isinstance(operation, Write) and isinstance(error, FileNotFoundError):
            return _CLEARED  # with the folder in which its body was written
        return super()._refusal(operation, error)

    def _needs_sync(self, operation: Move) -> bool:
        return self._others.needs_sync(operation)


class SharedOrderedBatch(SharedBatch, OrderedBatch):
    """The same where names reach the disk in the order in which they were changed."""


class SharedUnorderedBatch(SharedBatch):
    """The same where names have no order. The others unlink, and cannot know which names could come back: so every move
    is durable. Nor does a failed sync of theirs fail those of this process: so there is an alarm."""

    def _is_durable(self, operation: MessageOperation) -> bool:
        return True

    def _flush(self, barrier: Barrier) -> None:
        super()._flush(barrier)
        self._others.check()


class SharedLinkBatch(SharedUnorderedBatch, LinkBatch):
    """The same where no rename is atomic."""
