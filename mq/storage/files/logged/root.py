"""A root with a log: what each part of the engine works on. And the folders of removed queues that have to stay."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import NamedTuple

from mq.lifecycle import State
from mq.storage.files.calls import Calls
from mq.storage.files.folders import Folders
from mq.storage.files.logged.log import Log
from mq.storage.files.records import Records


class RemovedQueues:
    """Folders of removed queues that records of the log name. Each stays in remove/, emptied, until none does.

    Without it, the next start would take a younger queue's folder for the removed one's.

    Args:
        emptied: gets the paths of those that nothing is left in.
    """

    def __init__(self, calls: Calls, emptied: set[str]) -> None:
        self._emptied = emptied
        self._calls = calls
        self._epochs: dict[str, int] = {}

    def add(self, path: str, epoch: int) -> None:
        """Note a folder that records of this epoch name."""
        self._epochs[path] = epoch

    def rmdir(self, path: str) -> None:
        """Remove an emptied folder, now or once no record names it."""
        if path in self._epochs:
            self._emptied.add(path)
        else:
            self._calls.rmdir(path)

    def forget(self, epoch: int) -> None:
        """Remove the folders that are empty: the records of this epoch and of those before count no more."""
        for path in [path for path, its in self._epochs.items() if its <= epoch]:
            del self._epochs[path]
            if path in self._emptied:
                self._emptied.remove(path)
                with contextlib.suppress(OSError):  # what is left of it is found at the next start
                    self._calls.rmdir(path)


class LoggedRoot(NamedTuple):
    """A root with a log.

    Attributes:
        records: its records, by calls that do not sync.
        log: makes batches durable before their file calls.
        prefix: what the path of everything in the root begins with.
        by_state: the folder of each state, as :attr:`mq.storage.files.layout.Layout.by_state`.
    """

    folders: Folders
    records: Records
    log: Log
    removed_queues: RemovedQueues
    prefix: str
    by_state: Mapping[State, str]
