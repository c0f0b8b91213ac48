"""Queues that come and go in a root with a log: each is recorded before its folder is made or moved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mq.message import MessageIds
from mq.storage.files.calls import Calls, UnsyncedCalls
from mq.storage.files.logged.commit import recorded
from mq.storage.files.logged.record import Kept, QueueRemoved
from mq.storage.files.logged.root import LoggedRoot
from mq.storage.files.record_changes import RecordChanges
from mq.storage.interface import QUEUE


class LoggedQueues(RecordChanges):
    """Make and delete queues in a root with a log.

    Args:
        root: the root.
        ids: name the folders of deleted queues.
    """

    def __init__(self, root: LoggedRoot, ids: MessageIds) -> None:
        super().__init__(root.folders, root.records, ids)
        self._root = root

    @contextmanager
    def _making(self, name: str, value: Mapping[str, Any]) -> Iterator[Calls]:
        # Where names have no order, a message that is moved there could be on the disk without its folder.
        is_ordered = self._folders.volume.mount.ordered
        with recorded(self._root.log, Kept(QUEUE, name, value)):
            yield UnsyncedCalls(self._calls) if is_ordered else self._calls

    @contextmanager
    def _deleting(self, name: str, removed: str) -> Iterator[Calls]:
        log = self._root.log
        with recorded(log, QueueRemoved(name, self._folders.layout.below_root(removed))):
            self._root.removed_queues.add(removed, log.epoch)
            yield UnsyncedCalls(self._calls)
