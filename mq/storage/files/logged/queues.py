"""Queues that come and go in a root with a log: each is recorded before its folder is made or moved."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mq.message import MessageIds
from mq.storage.files.calls import Calls, UnsyncedCalls
from mq.storage.files.logged.commit import NO_ROOM
from mq.storage.files.logged.log import Log
from mq.storage.files.logged.record import Kept, QueueRemoved, Refused, Saying, encode
from mq.storage.files.logged.root import LoggedRoot
from mq.storage.files.record_changes import RecordChanges
from mq.storage.interface import QUEUE


class LoggedQueues(RecordChanges):
    """Make and delete queues in a root with a log.

    Args:
        ids: name the folders of deleted queues.
    """

    def __init__(self, root: LoggedRoot, ids: MessageIds) -> None:
        super().__init__(root.folders, root.records, ids)
        self._root = root

    @contextmanager
    def _making(self, name: str, value: Mapping[str, Any]) -> Iterator[Calls]:
        # Where names have no order, a message that is moved there could be on the disk without its folder.
        is_ordered = self._folders.volume.mount.ordered
        with _recorded(self._root.log, Kept(QUEUE, name, value)):
            yield UnsyncedCalls(self._calls) if is_ordered else self._calls

    @contextmanager
    def _deleting(self, name: str, removed: str) -> Iterator[Calls]:
        log = self._root.log
        with _recorded(log, QueueRemoved(name, self._folders.layout.below_root(removed))):
            self._root.removed_queues.add(removed, log.epoch)
            yield UnsyncedCalls(self._calls)


@contextmanager
def _recorded(log: Log, *sayings: Saying) -> Iterator[None]:
    """Record what the file calls of the block do. The record is on disk before they are made.

    Raises:
        OSError: the medium has failed, or has no room for a longer log.
    """
    payload = encode(sayings)
    has_room = log.takes(len(payload))
    if not has_room:
        raise OSError(errno.ENOSPC, NO_ROOM)
    with log.lock:
        sequence = log.append(payload, flushes=True)
        try:
            yield
        except OSError:
            log.append(encode([Refused(sequence, tuple(range(len(sayings))))]))
            log.flush()
            raise
        except BaseException:
            log.cut_off()
            raise
