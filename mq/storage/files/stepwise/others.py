"""Other processes on a root: what a batch owes to them.

:class:`Alone` owes them nothing. :class:`Others` lets a message appear in new/ only when its file is complete, because
movers and brokers look there, syncs what they wrote before it is moved, and heeds the alarm.
"""

from __future__ import annotations

from typing import Final

from mq.lifecycle import State
from mq.message import MessageId
from mq.storage.files.calls import FileKind
from mq.storage.files.folders import Folders
from mq.storage.files.layout import Planned
from mq.storage.files.stepwise.peers import Alarm
from mq.storage.files.unlinks import NO_QUEUE
from mq.storage.interface import MessageOperation, Move, Outcome, Result, Write

_REMEMBERED_WRITES: Final = 10_000
_CLEARED: Final = Outcome(Result.FULL, reason="a peer considered this daemon dead and removed its incoming messages")


class Alone:
    """No other process changes the root."""

    def is_durable(self, operation: MessageOperation) -> bool:
        """Whether an operation has to be durable before it is answered."""
        return operation.durable

    def arrival(self, planned: Planned) -> str:
        """Return the path under which a small body is written."""
        return planned.path

    def refusal(self, operation: Write) -> Outcome | None:
        """Return why a message cannot be written; None if it can."""
        return None

    def lost(self, error: OSError) -> Outcome | None:
        """Return why a body could not arrive, if others have removed it."""
        return None

    def wrote(self, id: MessageId) -> None:
        """Note that this process has written a message, and will have synced it before it moves it."""

    def needs_sync(self, operation: Move) -> bool:
        """Whether a message has to be synced because it is moved: another process may have written it."""
        return False

    def check(self) -> None:
        """Check that the last sync can be relied on.

        Raises:
            PeerFailed: it cannot, for another process has seen the disk fail.
        """

    def is_alarmed(self) -> bool:
        """Whether another process has seen the disk fail."""
        return False

    def failed(self) -> None:
        """Let the others know that the disk has failed."""


class Others(Alone):
    """Brokers, a mover or a reaper in other processes, where names reach the disk in the order of their changes.

    Args:
        folders: of the root.
        stage: the folder in which this process's bodies arrive.

    Attributes:
        written: messages in NEW that this process wrote.
    """

    def __init__(self, folders: Folders, stage: str) -> None:
        self.written: set[MessageId] = set()
        self._folders = folders
        self._stage = stage
        self._alarm = Alarm(folders.calls, folders.layout.alarm)

    def arrival(self, planned: Planned) -> str:
        """Under a name of this process's own."""
        return f"{self._stage}/{planned.entry.id}"

    def refusal(self, operation: Write) -> Outcome | None:
        """The queue may have been deleted by another broker."""
        folder = f"{self._folders.layout.queues}/{operation.queue}"
        return None if self._folders.calls.kind(folder) is FileKind.FOLDER else NO_QUEUE

    def lost(self, error: OSError) -> Outcome | None:
        """Peers may have taken this process for dead, and cleared its folder."""
        return _CLEARED if isinstance(error, FileNotFoundError) else None

    def wrote(self, id: MessageId) -> None:
        """Remember it for its move."""
        if len(self.written) >= _REMEMBERED_WRITES:
            self.written.clear()  # a mover in another process moves them: here they are forgotten, and synced again
        self.written.add(id)

    def needs_sync(self, operation: Move) -> bool:
        """Its writer may have been killed before its barrier, and the kernel have the bytes in memory only."""
        if operation.entry.state is not State.NEW:
            return False
        is_own = operation.entry.id in self.written
        self.written.discard(operation.entry.id)
        return not is_own


class OthersOutOfOrder(Others):
    """The same, where names have no order. The others unlink, and cannot know which names could come back: so every
    move is durable. Nor does a failed sync of theirs fail those of this process: so there is an alarm."""

    def is_durable(self, operation: MessageOperation) -> bool:
        """Every operation is."""
        return True

    def check(self) -> None:
        """Look for the alarm."""
        self._alarm.check()

    def is_alarmed(self) -> bool:
        """Whether the alarm is set."""
        return self._alarm.is_set()

    def failed(self) -> None:
        """Set the alarm."""
        self._alarm.set()
