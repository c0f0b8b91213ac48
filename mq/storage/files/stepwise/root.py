"""A root whose file calls are synced one by one, and what its batches remember of it."""

from __future__ import annotations

from mq.storage.files.folders import Folders
from mq.storage.files.stepwise.others import OtherProcesses


class SteppedRoot:
    """A root without a log.

    Args:
        folders: its folders.
        others: what a batch owes to other processes.
        stage: the folder in which this process's bodies arrive.

    Attributes:
        folders, others, stage: as given.
        dirty_folders: folders that lost names since their last sync.
    """

    def __init__(self, folders: Folders, others: OtherProcesses, stage: str) -> None:
        self.folders = folders
        self.others = others
        self.stage = stage
        self.dirty_folders: set[str] = set()
