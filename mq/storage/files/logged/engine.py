"""The engine *logged*: one flush of the log makes a batch durable, before its file calls are made."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager

from mq.message import MessageIds
from mq.storage.files.engine import Traits
from mq.storage.files.folders import Opened
from mq.storage.files.hop import EarlyResults
from mq.storage.files.logged.commit import commit
from mq.storage.files.logged.portion import most_together
from mq.storage.files.logged.queues import LoggedQueues
from mq.storage.files.logged.read_ahead import ReadAhead
from mq.storage.files.logged.root import LoggedRoot
from mq.storage.interface import AnyOperation, Change, Drop, Entry, Outcome, Put, changes_queue


class LoggedEngine:
    """Changes a root with a log.

    Args:
        root: the root.
        ids: name the folders of deleted queues.

    Attributes:
        root: as given.
        stage, tells_early, keeps_movers_away, waits_to_end: as of
            :class:`mq.storage.files.engine.Engine`.
    """

    tells_early = True
    keeps_movers_away = False  # the mark of the log does
    waits_to_end = True

    def __init__(self, root: LoggedRoot, ids: MessageIds) -> None:
        self.root = root
        self.stage = root.folders.layout.stage
        self._queues = LoggedQueues(root, ids)
        self._read_ahead = ReadAhead()

    @property
    def traits(self) -> Traits:
        """What it can do."""
        most, most_bytes = most_together(self.root.log)
        return Traits(places=True, removes=True, groups=most, group_bytes=most_bytes)

    def commit(self, operations: Sequence[AnyOperation], early: EarlyResults) -> list[Outcome]:
        """Do a batch."""
        if changes_queue(operations):
            return [self._queues.commit(each) for each in operations if isinstance(each, Put | Drop)]
        if self.root.folders.native is not None:  # else it costs as much as it saves
            self._read_ahead.fill(self.root.folders, operations)
        return commit(self.root, operations, early)

    def read_ahead(self, entries: Sequence[Entry]) -> list[Opened] | None:
        """Return messages that were read when they were moved."""
        return self._read_ahead.take(entries)

    def changes(self) -> AbstractAsyncContextManager[AsyncIterator[Change]] | None:
        """None: no other process changes the root."""
        return None

    def end(self) -> bool:
        """Empty the log."""
        volume, log = self.root.folders.volume, self.root.log
        log.close(failed=bool(volume.failure))
        if volume.failure or volume.is_cut_off:
            return False
        return log.is_empty
