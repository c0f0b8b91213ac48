"""Other processes on a root: what a batch owes to them.

:class:`NoOthers` owes them nothing. :class:`Others` syncs what another process wrote before it is moved, and heeds the
alarm where there is one.
"""

from __future__ import annotations

from typing import Final, Protocol

from mq.lifecycle import State
from mq.message import MessageId
from mq.storage.files.calls import FileKind
from mq.storage.files.folders import Folders
from mq.storage.files.outcomes import NO_QUEUE
from mq.storage.files.stepwise.peers import Alarm
from mq.storage.interface import Move, Outcome, Result, Write

_REMEMBERED_WRITES: Final = 10_000
_CLEARED: Final = Outcome(Result.FULL, reason="a peer considered this daemon dead and removed its incoming messages")


class OtherProcesses(Protocol):
    """What a batch owes to other processes.

    Attributes:
        sync_all: every operation has to be durable before it is answered.
    """

    sync_all: bool

    def admit(self, operation: Write) -> Outcome | None:
        """Return why a message cannot be written; None if it can. Its file is synced before it is moved."""

    def lost(self, error: OSError) -> Outcome | None:
        """Return why a body could not be written, if others have removed it."""

    def needs_sync(self, operation: Move) -> bool:
        """Whether a message has to be synced because it is moved: another process may have written it."""

    def check(self) -> None:
        """Check that the last sync can be relied on.

        Raises:
            PeerFailed: it cannot, for another process has seen the disk fail.
        """

    def is_alarmed(self) -> bool:
        """Whether another process has seen the disk fail."""

    def failed(self) -> None:
        """Let the others know that the disk has failed."""


class NoOthers:
    """No other process changes the root."""

    sync_all = False

    def admit(self, operation: Write) -> Outcome | None:
        """Each one can be written."""
        return None

    def lost(self, error: OSError) -> Outcome | None:
        """None are removed."""
        return None

    def needs_sync(self, operation: Move) -> bool:
        """This process has synced all messages."""
        return False

    def check(self) -> None:
        """Each sync can be relied on."""

    def is_alarmed(self) -> bool:
        """No other process can set an alarm."""
        return False

    def failed(self) -> None:
        """There is no process to be told."""


class Others:
    """Brokers, a mover or a reaper in other processes, where names reach the disk in the order of their changes.

    Args:
        folders: of the root.

    Attributes:
        written: messages in NEW that this process wrote.
    """

    sync_all = False

    def __init__(self, folders: Folders) -> None:
        self.written: set[MessageId] = set()
        self._folders = folders

    def admit(self, operation: Write) -> Outcome | None:
        """Refuse it if its queue was deleted, perhaps by another broker; else remember the message for its move."""
        folder = f"{self._folders.layout.queues}/{operation.queue}"
        if self._folders.calls.kind(folder) is not FileKind.FOLDER:
            return NO_QUEUE
        if len(self.written) >= _REMEMBERED_WRITES:
            self.written.clear()  # a mover in another process moves them: here they are forgotten, and synced again
        self.written.add(operation.id)
        return None

    def lost(self, error: OSError) -> Outcome | None:
        """Peers may have taken this process for dead, and cleared its folder."""
        return _CLEARED if isinstance(error, FileNotFoundError) else None

    def needs_sync(self, operation: Move) -> bool:
        """Its writer may have been killed before its barrier, and the kernel have the bytes in memory only."""
        if operation.entry.state is not State.NEW:
            return False
        is_own = operation.entry.id in self.written
        self.written.discard(operation.entry.id)
        return not is_own

    def check(self) -> None:
        """Each sync can be relied on: the others' failed syncs fail those of this process."""

    def is_alarmed(self) -> bool:
        """No alarm is set here."""
        return False

    def failed(self) -> None:
        """Their own syncs fail."""


class OthersOutOfOrder(Others):
    """The same, where names have no order. The others unlink, and cannot know which names could come back: so every
    move is durable. Nor does a failed sync of theirs fail those of this process: so there is an alarm."""

    sync_all = True

    def __init__(self, folders: Folders) -> None:
        super().__init__(folders)
        self._alarm = Alarm(folders.calls, folders.layout.alarm)

    def check(self) -> None:
        """Look for the alarm."""
        self._alarm.check()

    def is_alarmed(self) -> bool:
        """Whether the alarm is set."""
        return self._alarm.is_set()

    def failed(self) -> None:
        """Set the alarm."""
        self._alarm.set()
