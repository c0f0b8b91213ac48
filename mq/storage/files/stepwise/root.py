"""A root whose file calls are synced one by one, what its batches remember of it, and the processes that share it."""

from __future__ import annotations

from typing import Final

from mq.lifecycle import State
from mq.message import MessageId
from mq.storage.files.calls import FileKind
from mq.storage.files.folders import Folders
from mq.storage.files.outcomes import NO_QUEUE
from mq.storage.files.stepwise.peers import Alarm
from mq.storage.interface import Move, Outcome, Write

_REMEMBERED_WRITES: Final = 10_000


class Others:
    """Brokers, a mover or a reaper in other processes that change the root.

    Args:
        alarm: tells all of them that the disk has failed; None if a failed sync of one fails those of all.

    Attributes:
        written: messages in NEW that this process wrote.
    """

    def __init__(self, folders: Folders, alarm: Alarm | None = None) -> None:
        self.alarm = alarm
        self.written: set[MessageId] = set()
        self._folders = folders

    def admit(self, operation: Write) -> Outcome | None:
        """Refuse a message if its queue was deleted, perhaps by another broker; else remember it for its move."""
        folder = f"{self._folders.layout.queues}/{operation.queue}"
        if self._folders.calls.kind(folder) is not FileKind.FOLDER:
            return NO_QUEUE
        if len(self.written) >= _REMEMBERED_WRITES:
            self.written.clear()  # a mover in another process moves them: here they are forgotten, and synced again
        self.written.add(operation.id)
        return None

    def needs_sync(self, operation: Move) -> bool:
        """Return whether a message has to be synced because it is moved."""
        # Its writer may have been killed before its barrier, and the kernel have the bytes in memory only.
        if operation.entry.state is not State.NEW:
            return False
        is_own = operation.entry.id in self.written
        self.written.discard(operation.entry.id)
        return not is_own

    def check(self) -> None:
        """Check that the last sync can be relied on.

        Raises:
            PeerFailed: another process has seen the disk fail.
        """
        if self.alarm is not None:
            self.alarm.check()


class SteppedRoot:
    """A root without a log.

    Args:
        others: the processes that change it besides this one; None if there are none.
        stage: the folder in which this process's bodies arrive.

    Attributes:
        by_state: the folder of each state, as :attr:`mq.storage.files.layout.Layout.by_state`.
        dirty_folders: folders that lost names since their last sync.
    """

    def __init__(self, folders: Folders, others: Others | None, stage: str) -> None:
        self.folders = folders
        self.others = others
        self.stage = stage
        self.by_state = folders.layout.by_state
        self.dirty_folders: set[str] = set()
        if others is not None and others.alarm is not None:
            folders.volume.failing = others.alarm.set
