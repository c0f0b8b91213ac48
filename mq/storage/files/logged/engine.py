"""The engine *logged*: one flush of the log makes a batch durable, before its file calls are made."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

from mq.message import MessageIds
from mq.storage.files.engine import Traits
from mq.storage.files.folders import Opened
from mq.storage.files.hop import EarlyResults
from mq.storage.files.logged.commit import commit, most_together
from mq.storage.files.logged.queues import LoggedQueues
from mq.storage.files.logged.read_ahead import ReadAhead
from mq.storage.files.logged.root import LoggedRoot
from mq.storage.interface import AnyOperation, Change, Entry, Outcome


class LoggedEngine:
    """Changes a root with a log.

    Args:
        ids: name the folders of deleted queues.

    Attributes:
        commit: as of :class:`mq.storage.files.engine.Engine`; so are stage, tells_early, keeps_movers_away and
            waits_to_end.
    """

    tells_early = True
    keeps_movers_away = False  # the mark of the log does
    waits_to_end = True

    def __init__(self, root: LoggedRoot, ids: MessageIds) -> None:
        self.root = root
        self.stage = root.folders.layout.stage
        self._read_ahead = ReadAhead()
        self.commit: Callable[[EarlyResults, Sequence[AnyOperation]], list[Outcome]] = partial(
            commit, root, LoggedQueues(root, ids), self._read_ahead
        )

    @property
    def traits(self) -> Traits:
        most, most_bytes = most_together(self.root.log)
        return Traits(places=True, removes=True, groups=most, group_bytes=most_bytes)

    def read_ahead(self, entries: Sequence[Entry]) -> list[Opened] | None:
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
