"""Messages that were read in the hop that moved them, because whoever moves them reads them next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mq.message import MessageId
from mq.storage.folders import Folders, Opened
from mq.storage.interface import Entry, Move, Operation, Outcome, Result

LARGEST: Final = 1 << 16
"""Bytes of a body that is read ahead."""
MOST: Final = 2048
"""Messages that wait to be asked for. Who moved one and was too slow with it does not ask."""


class Ahead:
    """What was read ahead. Filled in the thread that moves, asked for in the event loop's."""

    def __init__(self) -> None:
        self._read: dict[MessageId, tuple[Entry, Opened]] = {}

    def fill(self, folders: Folders, operations: Sequence[Operation], outcomes: Sequence[Outcome]) -> None:
        """Read what was moved to be read, as far as that takes no thought."""
        entries = [
            outcome.entry
            for operation, outcome in zip(operations, outcomes, strict=True)
            if type(operation) is Move and operation.reads and outcome.result is Result.DONE and outcome.entry
        ]
        if not entries:
            return
        if len(self._read) + len(entries) > MOST:
            self._read.clear()
        for entry, opened in zip(entries, folders.read_plain(entries, LARGEST), strict=True):
            if opened is not None:
                self._read[entry.id] = entry, opened

    def take(self, entries: Sequence[Entry]) -> list[Opened] | None:
        """All of them; None when one was not read, or moved since."""
        if not self._read:
            return None
        taken = [self._read.pop(entry.id, None) for entry in entries]
        found = [each[1] for each, entry in zip(taken, entries, strict=True) if each is not None and each[0] == entry]
        return found if len(found) == len(entries) else None
