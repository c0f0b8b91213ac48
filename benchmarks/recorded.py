"""A store that records how its batches are made up."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from mq.lifecycle import State
from mq.storage.files.calls import LinuxCalls
from mq.storage.files.engine import LOGGED
from mq.storage.files.logged.log import LARGEST
from mq.storage.files.mount import mount_of_root
from mq.storage.files.posix import FolderStorage, load_native
from mq.storage.interface import AnyOperation, Entry, Hear, Move, Outcome, Stored, Unlink, Write
from mq.storage.options import StorageOptions

Step = tuple[str, str]
"""From and to, as values of State: hashing members of an enumeration is slow."""

_STATE: Final = operator.attrgetter("entry.state._value_")
_REMOVED: Final = State.REMOVED
_NEW: Final = State.NEW.value
_STEP: Final = operator.attrgetter("entry.state._value_", "state._value_")


class Group(NamedTuple):
    """What was done together.

    Attributes:
        removals: how many were unlinked where they were, by state, instead of moved and unlinked.
        reads: messages read. They stand in a group of their own.
        placed: how many messages were written where they rest, by state.
    """

    writes: int = 0
    moves: tuple[tuple[Step, int], ...] = ()
    unlinks: int = 0
    removals: tuple[tuple[str, int], ...] = ()
    reads: int = 0
    durable: bool = False
    placed: tuple[tuple[str, int], ...] = ()

    @property
    def written(self) -> int:
        """Messages written, wherever."""
        return self.writes + sum(number for _, number in self.placed)


class RecordedStorage(FolderStorage):
    """The POSIX store, and how what it was asked for is made up.

    It keeps numbers only, and counts without a call in Python for each operation: whatever it cost would be charged to
    mq, and so would the work of the garbage collector on whatever it kept.

    Its log is as long from the beginning as logs get: a root writes the zeros by which one grows once and for all, and
    in the seconds that are measured they would be a sixth of all that a publish takes.
    """

    def __init__(self, root: str) -> None:
        calls = LinuxCalls(load_native())
        super().__init__(f"posix:{root}", root, calls, StorageOptions(log_bytes=LARGEST), mount=mount_of_root)
        self._groups: list[Group] = []

    @property
    def logs(self) -> bool:
        """Whether it makes batches durable by a log. Once it is open."""
        return self._root_open.choice.engine == LOGGED

    async def commit(self, operations: Sequence[AnyOperation]) -> list[Outcome]:
        """As the store does it."""
        outcomes = await super().commit(operations)
        self._groups.append(_group(operations))
        return outcomes

    async def commit_in_parts(self, operations: Sequence[AnyOperation], hear: Hear) -> list[Outcome]:
        """As the store does it."""
        outcomes = await super().commit_in_parts(operations, hear)
        self._groups.append(_group(operations))
        return outcomes

    async def read(self, entries: Sequence[Entry]) -> list[Stored | None]:
        """As the store does it."""
        found = await super().read(entries)
        self._groups.append(Group(reads=len(entries)))
        return found

    def take_groups(self) -> list[Group]:
        """How the batches and reads since the last time were made up, in the order in which they ended."""
        groups, self._groups = self._groups, []
        return groups


@asynccontextmanager
async def open_recorded(root: str) -> AsyncIterator[RecordedStorage]:
    """An open store below `root` for the length of the block."""
    storage = RecordedStorage(root)
    try:
        await storage.open()
        yield storage
    finally:
        await storage.aclose()


def _group(operations: Sequence[AnyOperation]) -> Group:
    moves = [operation for operation in operations if type(operation) is Move]
    written = Counter([each.state._value_ for each in operations if type(each) is Write])
    writes = written.pop(_NEW, 0)
    removed = Counter(
        [_STATE(each) for each in operations if type(each) is Unlink and each.entry.state is not _REMOVED]
    )
    return Group(
        writes=writes,
        moves=tuple(Counter(map(_STEP, moves)).items()),
        unlinks=len(operations) - writes - written.total() - len(moves) - removed.total(),
        removals=tuple(removed.items()),
        durable=any(getattr(operation, "durable", True) for operation in operations),  # a record always is
        placed=tuple(written.items()),
    )


def mean_group(groups: Sequence[Group]) -> float:
    """How many operations shared a barrier, on average."""
    sizes = [
        group.written + sum(number for _, number in (*group.moves, *group.removals))
        for group in groups
        if group.durable
    ]
    return sum(sizes) / len(sizes) if sizes else 0.0
