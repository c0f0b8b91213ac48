"""Records, and queues with their folders, in a root without a log: each change is synced by itself."""

from __future__ import annotations

from mq.message import MessageIds
from mq.storage.files.record_changes import RecordChanges
from mq.storage.files.records import Records
from mq.storage.files.stepwise.root import SteppedRoot
from mq.storage.files.sync import sync_folder


class SyncedRecords(RecordChanges):
    """Do Puts and Drops in a root without a log.

    Args:
        ids: name the folders of deleted queues.
    """

    def __init__(self, root: SteppedRoot, records: Records, ids: MessageIds) -> None:
        super().__init__(root.folders, records, ids)
        self._others = root.others

    def _check(self) -> None:
        if self._others is not None:
            self._others.check()


class LinkedRecords(SyncedRecords):
    """The same without a journal. There a name can outlive its file on the disk, and lead to the folder that gets its
    inode. Of two names of a folder a repair takes one away, perhaps the wrong one."""

    def _forget_names(self) -> None:
        for folder in self._folders.layout.all():
            sync_folder(self._calls, folder)
