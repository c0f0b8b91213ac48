"""Records, and queues with their folders, in a root without a log: each change is synced by itself."""

from __future__ import annotations

from mq.message import MessageIds
from mq.storage.files.record_changes import RecordChanges
from mq.storage.files.records import Records
from mq.storage.files.stepwise.root import SteppedRoot
from mq.storage.files.sync import synced_after
from mq.storage.interface import QUEUE, Outcome, Put


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
    inode. Of two names of a folder a repair takes one away, perhaps the wrong one. So the names in all folders of the
    layout are synced after a folder is made, and before anybody hears of it: another process may free an inode until
    then."""

    def __init__(self, root: SteppedRoot, records: Records, ids: MessageIds) -> None:
        super().__init__(root, records, ids)
        self._kinds: set[str] = set()  # of records that this process has put: their folders are there

    def _put(self, put: Put) -> Outcome:
        if put.kind == QUEUE or put.kind in self._kinds:
            return super()._put(put)
        with synced_after(self._calls, *self._folders.layout.all()):  # the first record of a kind makes a folder
            outcome = super()._put(put)
        self._kinds.add(put.kind)
        return outcome

    def _to_sync(self, *, made: bool) -> tuple[str, ...]:
        # A folder that is there may have been made this moment, by a process that has not synced yet.
        is_new = made or self._others is not None
        return self._folders.layout.all() if is_new else super()._to_sync(made=made)
