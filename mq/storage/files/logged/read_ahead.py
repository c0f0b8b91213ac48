"""Messages that are read together with their move, because the caller reads them next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mq.message import MessageId
from mq.storage.files.folders import Folders, Opened
from mq.storage.interface import AnyOperation, Entry, Move

LARGEST_READ_AHEAD: Final = 1 << 16
"""Bytes of a body that is read ahead."""
MOST_READ_AHEAD: Final = 2048
"""Messages that wait to be asked for. A caller that moved one and was too slow with it does not ask."""
MOST_BYTES_READ_AHEAD: Final = 16 << 20
"""Of their bodies, before nothing more is read ahead."""
_READ_IN_ONE_GO: Final = 128


class ReadAhead:
    """Messages that were read in the same hop as their move, because the caller reads them next. They are read before
    they are moved, so that they are there when the first ones are told of.

    Filled in the thread that moves, asked for in the event loop's.
    """

    def __init__(self) -> None:
        self._read: dict[MessageId, tuple[Entry, Opened]] = {}
        self._bytes = 0

    def fill(self, folders: Folders, operations: Sequence[AnyOperation]) -> None:
        """Read what is about to be moved to be read, where it is plain."""
        moves = [each for each in operations if type(each) is Move and each.reads]
        if not moves:
            return
        if len(self._read) + len(moves) > MOST_READ_AHEAD or self._bytes > MOST_BYTES_READ_AHEAD:
            self._read.clear()
            self._bytes = 0
        for start in range(0, len(moves), _READ_IN_ONE_GO):
            if self._bytes > MOST_BYTES_READ_AHEAD:
                return  # the others are read when they are asked for
            some = moves[start : start + _READ_IN_ONE_GO]
            found = folders.read_plain([move.entry for move in some], LARGEST_READ_AHEAD)
            for move, opened in zip(some, found, strict=True):
                if opened is not None:
                    self._read[move.entry.id] = move.target, opened
                    self._bytes += len(opened.data)

    def take(self, entries: Sequence[Entry]) -> list[Opened] | None:
        """All of them; None when one was not read, or moved since."""
        if not self._read:
            return None
        taken = [self._read.pop(entry.id, None) for entry in entries]
        self._bytes -= sum(len(each[1].data) for each in taken if each is not None)
        if not self._read:
            self._bytes = 0  # two threads count, so it may be a little wrong by now
        found = [each[1] for each, entry in zip(taken, entries, strict=True) if each is not None and each[0] == entry]
        return found if len(found) == len(entries) else None
